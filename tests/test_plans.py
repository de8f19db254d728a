"""Plans: known contractions and conditions, messages as engines count them, and the command."""

import csv
import json
import math

import networkx as nx
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import algorithms, cli, networks, plans, problems, schedules
from proxdasa.configs import network_expressions
from proxdasa.engines import Simulator, Task
from proxdasa.mixing import Chebyshev, Every, Gossip
from proxdasa.plans import theory
from proxdasa.plans.planning import measure
from proxdasa.regularizers import Zero
from proxdasa.reports.plan_tables import consequence_sheet
from proxdasa.runs.setup import Setup
from tests.setups import LocalSteps, in_threads
from tests.test_algorithms import made, quadratic

NETWORKS = [networks.ring(9), networks.path(7), networks.paper(), networks.complete(5), networks.ring(1)]


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setattr(cli.out, "width", 80)


# contraction


def test_a_complete_graph_needs_one_round():
    plan = proxdasa.plan(networks.complete(8), K=800)
    assert (plan.rho, plan.gap, plan.n, plan.edges, plan.degrees) == (0.0, 1.0, 8, 28, (7, 7.0, 7))
    assert [row.m for row in plan.mixings] == [1, 1, 1, 1]
    assert all(row.predicted == 0 and row.varrho == 0 for row in plan.mixings)
    assert all(row.measured == pytest.approx(0, abs=1e-12) for row in plan.mixings)
    assert plan.alpha == pytest.approx(0.1)


def test_a_ring_in_closed_form():
    n = 12
    rho = 1 / 3 + 2 / 3 * math.cos(2 * math.pi / n)
    plan = proxdasa.plan(networks.ring(n))
    one, below, gossip, chebyshev = plan.mixings
    assert plan.rho == pytest.approx(rho)
    assert one.m == 1
    assert below.m == math.ceil(math.log(3) / (2 * (1 - rho)))
    assert gossip.m == math.ceil(1 / (1 - rho))
    assert chebyshev.m == math.ceil(1 / math.sqrt(1 - rho))
    for row in (one, below, gossip):
        assert row.predicted == pytest.approx(rho**row.m)
        assert row.measured == pytest.approx(rho**row.m)
        square = rho ** (2 * row.m)
        assert row.varrho == pytest.approx((1 + square) * square / (1 - square) ** 2)
    assert below.varrho <= 1
    T = np.polynomial.chebyshev.Chebyshev.basis(chebyshev.m)
    assert chebyshev.measured == pytest.approx(1 / T(1 / rho))
    assert chebyshev.predicted == pytest.approx(2 * (1 - math.sqrt(1 - rho)) ** chebyshev.m)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.label)
@pytest.mark.parametrize("mixing", [Gossip(1), Gossip(4), Chebyshev(1), Chebyshev(5), Chebyshev("auto")], ids=str)
def test_what_is_measured_is_what_mixing_does(network, mixing):
    """The spectral norm of mixing on all disagreements, by matrices; the paper's bound is above it."""
    n, W = network.n, torch.from_numpy(network.W.toarray())
    mixed = mixing(lambda x: W @ x, torch.eye(n, dtype=torch.float64) - 1 / n, network.rho)
    norm = float(torch.linalg.matrix_norm(mixed, 2))
    assert measure(network, mixing) == pytest.approx(norm, abs=1e-12)
    assert theory.contraction(mixing, network.rho) == pytest.approx(norm, abs=1e-12)
    assert theory.bound(mixing, network.rho) >= norm - 1e-12


def test_large_networks_are_measured_on_a_random_disagreement_or_not_at_all():
    large = networks.ring(1000)
    assert measure(large, Gossip("auto")) is None
    found = measure(large, Chebyshev("auto"))
    assert 0.5 * theory.contraction(Chebyshev("auto"), large.rho) < found < theory.bound(Chebyshev("auto"), large.rho)
    assert theory.contraction(Chebyshev(100_000), networks.ring(100).rho) == 0.0  # cosh would overflow


def test_rules_may_ask_for_more_rounds_than_a_run_takes():
    plan = proxdasa.plan(networks.ring(2000))
    assert [way.m for way in plan.mixings] == [1, 166970, 303964, 552]
    with pytest.raises(ValueError, match=r"at most 100,000, but .* asks for 1,000,000 on"):
        proxdasa.plan(networks.ring(8), mixing=Gossip(10**6))


def test_rounds_are_those_of_the_mixings():
    for network in NETWORKS:
        plan = proxdasa.plan(network, mixing=Gossip(29))
        *_, gossip, chebyshev, given = plan.mixings
        assert gossip.m == Gossip("auto").rounds_for(network.rho)
        assert chebyshev.m == Chebyshev("auto").rounds_for(network.rho)
        assert (given.rule, given.m) == ("as given", 29)
    assert len(proxdasa.plan(networks.ring(8), mixing=Chebyshev("auto")).mixings) == 4  # there already


# conditions


def meets(method, α, varrho, γ, L):
    """The conditions as the lemmas state them (7 and 11, or 8 and 11)."""
    C = 2 * math.sqrt((1 + 1 / γ) ** 2 + (1 + γ / 2) ** 2)
    merit = α <= min(1 / (8 * γ * L), 1 / (8 * γ * C), 1 / (32 * γ * C * L**2))
    if method is algorithms.ProxDASA:
        consensus = varrho * α**2 <= min(1 / 8, 1 / (24 * L**2 * γ**2))
    else:
        consensus = varrho * α**2 <= 1 / 8 and varrho * α <= 1 / (9 * L * γ)
    return merit and consensus and α <= 1


@pytest.mark.parametrize("method", [algorithms.ProxDASA, algorithms.ProxDASAGT])
@pytest.mark.parametrize(("γ", "L"), [(0.01, 0.5), (2.0, 0.5), (1.0, 0.01), (0.1, 10.0), (30.0, 0.001), (3.0, 0.5)])
def test_the_largest_alpha_meets_all_conditions_and_a_larger_one_does_not(method, γ, L):
    plan = proxdasa.plan(networks.ring(20), method, gamma=γ, L=L)
    for row in plan.mixings:
        assert meets(method, row.alpha_limit * (1 - 1e-9), row.varrho, γ, L)
        assert not meets(method, row.alpha_limit * (1 + 1e-9), row.varrho, γ, L)
        assert min(math.sqrt(20 / row.K_0), 1) <= row.alpha_limit * (1 + 1e-6)
        assert max(row.K_0, 20**3 * row.varrho) == row.K_T


@pytest.mark.parametrize(("γ", "L"), [(3.0, 0.5), (0.7, 4.0)])
def test_conditions_are_those_of_the_lemmas(γ, L):
    """Each by its own name; Lγ is neither 1 nor small, so that no power of it is like another."""
    ϱ, C = 5.0, 2 * math.sqrt((1 + 1 / γ) ** 2 + (1 + γ / 2) ** 2)
    both = {
        ("α ≤ 1/(8γC_γ)", "Lemma 11"): 1 / (8 * γ * C),
        ("α ≤ 1/(8γL)", "Lemma 11"): 1 / (8 * γ * L),
        ("α ≤ 1/(32γC_γL²)", "Lemma 11"): 1 / (32 * γ * C * L * L),
    }
    lemma_7 = {
        ("α ≤ 1", "Lemma 7"): 1,
        ("ϱ(m) α² ≤ 1/8", "Lemma 7"): math.sqrt(1 / (8 * ϱ)),
        ("ϱ(m) α² ≤ 1/(24L²γ²)", "Lemma 7"): math.sqrt(1 / (24 * L * L * γ * γ * ϱ)),
    }
    lemma_8 = {
        ("α ≤ 1", "Lemma 8"): 1,
        ("ϱ(m) α² ≤ 1/8", "Lemma 8"): math.sqrt(1 / (8 * ϱ)),
        ("ϱ(m) α ≤ 1/(9Lγ)", "Lemma 8"): 1 / (9 * L * γ * ϱ),
    }
    for tracking, own in ((False, lemma_7), (True, lemma_8)):
        found = {(text, place): limit for text, place, limit in theory.conditions(tracking, ϱ, γ, L)}
        assert found == pytest.approx(own | both)


@pytest.mark.parametrize(
    ("method", "γ", "L", "decisive"),
    [
        (algorithms.ProxDASA, 0.01, 0.5, "ϱ(m) α² ≤ 1/8 (Lemma 7)"),
        (algorithms.ProxDASA, 3.0, 0.5, "ϱ(m) α² ≤ 1/(24L²γ²) (Lemma 7)"),
        (algorithms.ProxDASA, 30.0, 0.001, "α ≤ 1/(8γC_γ) (Lemma 11)"),
        (algorithms.ProxDASA, 0.1, 10.0, "α ≤ 1/(32γC_γL²) (Lemma 11)"),
        (algorithms.ProxDASAGT, 0.001, 0.5, "ϱ(m) α² ≤ 1/8 (Lemma 8)"),
        (algorithms.ProxDASAGT, 3.0, 0.5, "ϱ(m) α ≤ 1/(9Lγ) (Lemma 8)"),
    ],
)
def test_the_condition_that_decides_is_named(method, γ, L, decisive):
    assert proxdasa.plan(networks.ring(20), method, gamma=γ, L=L).mixings[0].condition == decisive


def test_fewer_iterations_than_agents_have_a_step_of_one():
    assert proxdasa.plan(networks.ring(8), K=4).alpha == 1.0
    assert proxdasa.plan(networks.ring(8), K=32).alpha == 0.5


def test_without_gamma_and_l():
    row = proxdasa.plan(networks.complete(8)).mixings[0]
    assert (row.alpha_limit, row.K_0, row.K_T) == (1 / 16, 2048, 2048)
    assert proxdasa.plan(networks.ring(8), L=4.0).gamma == 0.25
    assert all(1 / (8 * γ * theory.c_gamma(γ)) < 1 / 16 for γ in (1e-6, 0.1, 1, 10))


def test_the_theory_is_about_its_own_methods():
    row = proxdasa.plan(networks.ring(8), algorithms.DPSGD, L=1.0).mixings[0]
    assert (row.alpha_limit, row.condition, row.K_0, row.K_T) == (None, None, None, None)
    assert row.vectors == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gamma": 0.0}, "gamma must be a positive, finite number"),
        ({"L": -1.0}, "L must be a positive, finite number"),
        ({"K": 0}, "K must be a whole number"),
        ({"d": 2.5}, "d must be a whole number"),
        ({"every": 0}, "every must be a whole number"),
        ({"problem": quadratic(3)}, "has 8 agents, but the problem has 3; they must match"),
    ],
)
def test_refusals(settings, words):
    with pytest.raises(ValueError, match=words):
        proxdasa.plan(networks.ring(8), **settings)


# smoothness


def test_the_estimate_of_l_finds_the_largest_curvature():
    curvatures = torch.tensor([[1.0, 2.0, 5.0], [0.5, 7.0, -9.0], [3.0, 3.0, 3.0]], dtype=torch.float64)
    problem = problems.Quadratic(torch.diag_embed(curvatures), torch.ones(3, 3, dtype=torch.float64))
    found = plans.estimate_lipschitz(problem)
    assert found == pytest.approx(9.0, rel=1e-3)
    assert found <= 9.0 * (1 + 1e-9)
    plan = proxdasa.plan(networks.ring(3), problem=problem)
    assert (plan.L, plan.L_estimated, plan.gamma, plan.d) == (found, True, 1 / found, 3)
    assert not proxdasa.plan(networks.ring(3), problem=problem, L=20.0).L_estimated


def test_a_problem_without_curvature_has_no_estimate():
    flat = problems.Quadratic(torch.zeros(2, 3, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="L cannot be estimated"):
        plans.estimate_lipschitz(flat)


# messages


@pytest.mark.parametrize("method", algorithms.ALL, ids=lambda method: method.__name__)
@pytest.mark.parametrize("mixing", [Gossip(4), Chebyshev(3)], ids=str)
def test_vectors_are_those_that_an_engine_counts(method, mixing):
    network, problem = networks.ring(5), quadratic(5)
    agents = Simulator(Task(problem, network, Zero(), mixing, trials=1, seed=0))
    algorithm = Setup(made(method), problem, network, mixing=Gossip(2), iterations=9).bound()
    state = algorithm.init(agents, torch.zeros(1, 5, problem.dim, dtype=torch.float64))
    state = algorithm.step(agents, 1, state)
    before = agents.counts()["vectors"]
    algorithm.step(agents, 2, state)
    planned = proxdasa.plan(network, method, mixing=mixing).mixings[-1]
    assert planned.rule == "as given"
    assert planned.vectors == agents.counts()["vectors"] - before


@pytest.mark.parametrize(
    ("method", "mixing", "period", "every"),
    [
        (algorithms.ProxDASA(gamma=0.1), Every(4, Chebyshev(3)), 4, 4),
        (algorithms.ProxDASA(gamma=0.1), Every(4, Every(6, Chebyshev(3))), 12, 12),
        (LocalSteps(local_steps=3), Gossip(5), 1, 3),
        (LocalSteps(local_steps=4), Every(6, Gossip(5)), 6, 12),
    ],
    ids=["Every", "Every in Every", "local steps", "both"],
)
def test_what_iterations_send_and_how_many_do(method, mixing, period, every):
    network, problem, K = networks.ring(5), quadratic(5), 40
    setup = Setup(method, problem, network, mixing=mixing, iterations=K)
    plan = proxdasa.plan(network, **plans.settings(setup))
    own = plan.mixings[-1]
    assert (own.rule, own.m, plan.every) == ("as given", mixing.rounds_for(network.rho), every)
    assert own.vectors * (K // every) == setup.run().records[-1]["vectors"]
    assert own.alpha_limit is None, "the theory assumes that every iteration sends"
    assert plans.settings(setup, algorithms.DPSGD)["every"] == period
    notes = consequence_sheet(plan).notes
    assert notes[0].startswith(f"in an iteration that sends, one of {every}: vectors to each neighbour; ")
    assert notes[-1] == "α and K are known if every iteration sends; the theory does not cover local steps"


@pytest.mark.parametrize("method", [algorithms.ProxDASA, algorithms.ProxDASAGT, algorithms.DPSGD, algorithms.ProxGTSA])
def test_megabytes_are_those_that_processes_count(method):
    K, network, problem = 3, networks.star(4), quadratic(4)
    setup = Setup(made(method), problem, network, mixing=Chebyshev(3), iterations=K)
    counted = in_threads(4, lambda transport: setup.run(processes=transport).records[-1]["wire_bytes"])
    planned = proxdasa.plan(network, method, d=problem.dim, dtype=problem.dtype, mixing=Chebyshev(3)).mixings[-1]
    headers = 0 if method is not algorithms.ProxGTSA else 16 * 3 * 1.5 * K  # it sends its two vectors one by one
    assert counted == [pytest.approx(K * planned.megabytes * 1e6 + headers)] * 4
    half = proxdasa.plan(network, method, d=problem.dim, mixing=Chebyshev(3)).mixings[-1].megabytes
    assert half == planned.megabytes / 2


# runs that depart from the theory


def run_of(gamma=0.01, alpha=schedules.HORIZON, K=1_000, network=None, method=algorithms.ProxDASA, **changes):
    network = network or networks.complete(4)
    return Setup(method(gamma=gamma, alpha=alpha), quadratic(network.n), network, iterations=K, **changes)


def test_runs_that_keep_to_the_conditions_are_silent():
    assert plans.departure(run_of(K=10_000)) is None
    assert plans.departure(run_of(K=10_000, method=algorithms.ProxDASAGT)) is None
    ring = networks.ring(20)  # the paper's own speed-up experiment
    assert plans.departure(run_of(K=10_000, network=ring, mixing=Gossip("auto"))) is None
    other = Setup(proxdasa.DPSGD(gamma=100.0), quadratic(4), networks.ring(4), iterations=3)
    assert plans.departure(other) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"K": 100}, "Prox-DASA asks for α_k ≤ 0.0619 here, by α ≤ 1/(8γC_γ) of Lemma 11, and α_0 is 0.2"),
        ({"K": 100, "method": algorithms.ProxDASAGT}, "the theory of Prox-DASA-GT asks"),
        ({"K": 4_000, "network": networks.ring(20)}, "α_k ≤ 0.0169 here, by ϱ(m) α² ≤ 1/8 of Lemma 7, and α_0 is 0.07"),
        ({"alpha": schedules.diminishing(0.3)}, "and α_0 is 0.6 (and less from k = "),
        ({"alpha": lambda k: 1e-3 * (k + 1)}, "step sizes that do not grow, and these do"),
        ({"alpha": lambda k: 1e-3 / (k + 1) if k < 500 else 1e-3}, "step sizes that do not grow, and these do"),
        ({"gamma": schedules.per_trial([0.01, 10.0]), "trials": 2, "K": 10_000}, "α_k ≤ 0.00102 here"),
        ({"alpha": schedules.constant(schedules.per_trial([0.01, 0.5])), "trials": 2}, "and α_0 is 0.5"),
    ],
)
def test_a_run_that_departs_is_told_in_a_sentence(settings, words):
    sentence = plans.departure(run_of(**settings))
    assert words in sentence
    assert "\n" not in sentence


def test_the_command_run_says_so_once_and_goes_on(tmp_path):
    file = tmp_path / "run.toml"
    text = (
        'iterations = 4\nalgorithm = {{ name = "ProxDASA", gamma = 0.01, alpha = {alpha} }}\nnetwork = "ring"\n'
        'problem = {{ name = "PhaseRetrieval", agents = 3, dim = 8, evaluation = "population" }}\n'
    )
    file.write_text(text.format(alpha=0.5))
    result = call("run", file, "-o", tmp_path / "a")
    assert result.exit_code == 0
    assert result.stderr.count("note: the theory of Prox-DASA asks for α_k ≤ 0.0619") == 1
    file.write_text(text.format(alpha=0.05))
    result = call("run", file, "-o", tmp_path / "b")
    assert result.exit_code == 0
    assert "note" not in result.stderr


# graphs as people type them


@pytest.mark.parametrize(
    ("text", "agents", "label"),
    [
        ("ring", 6, "ring(6)"),
        ("torus", 12, "torus(3, 4)"),
        ("grid", 7, "grid(1, 7)"),
        ("ladder", 6, "ladder(3)"),
        ("hypercube", 8, "hypercube(3)"),
        ("paper", 8, "paper()"),
        ("torus(4, 5)", None, "torus(4, 5)"),
        ("path(5, weights=max_degree)", None, "path(5, weights=max_degree)"),
        ("erdos_renyi(16, 0.4, seed=3)", 99, "erdos_renyi(16, 0.4, seed=3)"),
    ],
)
def test_graphs_by_name(text, agents, label):
    assert network_expressions.graph(text, agents).label == label


@pytest.mark.parametrize(
    ("text", "agents", "words"),
    [
        ("rung", 4, "there is no graph 'rung'; accepted: ring, path"),
        ("torus", None, r"torus: how large\? Give torus\(rows, columns\) with numbers, or --agents"),
        ("hypercube", 12, "a power of two"),
        ("ladder", 5, "an even number"),
        ("erdos_renyi", 8, r"erdos_renyi\.probability is missing; erdos_renyi needs it: a number"),
        ("ring(4, 5)", None, r"ring\(4, 5\): cannot be read: too many"),
        ("ring(1 +)", None, r"cannot be read: .*; write a call such as torus\(4, 5\)"),
        ("path(5, weights=foo)", None, "weights must be one of metropolis, .*; got 'foo'"),
        ("from_file", None, "path is missing; from_file needs it: a text$"),
    ],
)
def test_graphs_that_are_refused(text, agents, words):
    with pytest.raises(ValueError, match=words):
        network_expressions.graph(text, agents)


def test_lists_of_graphs():
    assert network_expressions.split("ring, torus(4, 5) ,erdos_renyi(8, 0.5),") == [
        "ring",
        "torus(4, 5)",
        "erdos_renyi(8, 0.5)",
    ]


# graphs that change


CHANGING = [networks.base_graph(6), networks.base_graph(7, 2), networks.random_matchings(nx.cycle_graph(6), rounds=5)]


@pytest.mark.parametrize("network", CHANGING, ids=lambda network: network.label)
@pytest.mark.parametrize("m", [1, 2, 4])
def test_what_is_measured_of_a_changing_graph_is_its_products(network, m):
    n, R = network.n, len(network.rounds)
    found = []
    for iteration in range(R):
        product = np.eye(n)
        for r in range(iteration * m, (iteration + 1) * m):
            product = network.rounds[r % R].toarray() @ product
        found.append(np.linalg.norm(product - 1 / n, 2))
    (row,) = (row for row in proxdasa.plan(network, mixing=Gossip(m)).mixings if row.m == m)
    assert row.measured == pytest.approx(max(found), abs=1e-12)


def test_a_plan_of_a_changing_graph_has_what_matrices_say_and_no_theory():
    network = networks.base_graph(6)
    plan = proxdasa.plan(network, K=100, L=2.0, d=10)
    assert (plan.period, plan.rho, plan.alpha, plan.gamma) == (4, 0, None, None)
    one, period = plan.mixings
    assert (one.m, one.rule, period.m, period.rule) == (1, "1", 4, "a period")
    assert (one.measured, period.measured) == (pytest.approx(1), pytest.approx(0, abs=1e-12))
    for row in plan.mixings:
        assert {row.predicted, row.varrho, row.alpha_limit, row.condition, row.K_0, row.K_T} == {None}
    sent = sum((W.toarray() > 0).sum() - 6 for W in network.rounds) / 6
    assert period.megabytes == pytest.approx((2 * 10 * sent + 2 * 4 * network.degrees.mean()) * 4 / 1e6)


def test_messages_compare_graphs_that_change_with_those_that_do_not(monkeypatch):
    ring, hypercube = networks.ring(16), networks.one_peer_hypercube(16)
    assert proxdasa.plan(hypercube).messages_to_agree == 4  # exact after four rounds with one message each
    found = proxdasa.plan(ring).messages_to_agree / 2
    assert ring.rho**found <= 0.1 < ring.rho ** (found - 1)
    assert proxdasa.plan(networks.complete(5)).messages_to_agree == 4
    monkeypatch.setattr(plans.sequences, "DENSE_LIMIT", 3)
    whole = proxdasa.plan(CHANGING[2]).messages_to_agree / CHANGING[2].messages_per_round
    assert whole % 5 == pytest.approx(0)
    assert CHANGING[2].rho ** whole <= 0.1 < CHANGING[2].rho ** (whole - 5)


def test_changing_graphs_on_the_command_line(tmp_path):
    result = call("plan", "base_graph(6)", "-d", 10, "-K", 100)
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80
    for words in ("repeats itself after 4 rounds", "gossip, a period", "theory is for a graph that does not change"):
        assert words in result.stdout
    assert "√(n/K)" not in result.stdout
    result = call("plan", "--compare", "ring,base_graph", "-n", 6, "-o", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "its own" in result.stdout
    assert [row["period"] for row in json.loads((tmp_path / "plan.json").read_text())][-1] == 4


def test_a_mixing_on_the_command_line(tmp_path):
    result = call("plan", "ring(8)", "--mixing", "Every(5, Chebyshev(3))", "-o", tmp_path)
    assert result.exit_code == 0, result.stderr
    expected = proxdasa.plan(networks.ring(8), mixing=proxdasa.Chebyshev(3), every=5)
    assert json.loads((tmp_path / "plan.json").read_text())[0]["mixings"][-1]["m"] == expected.mixings[-1].m == 3
    refused = call("plan", "ring(8)", "--mixing", "CompressedGossip(TopK(0.1), step=0.1)")
    assert refused.exit_code == 2
    assert "--mixing: plans know Gossip, Chebyshev, and Every of these" in " ".join(refused.stderr.split())


# weightings


def test_every_weighting_that_fits():
    made, refused = plans.weightings(networks.star(6))
    assert set(made) >= {"metropolis", "max_degree"}
    assert "does not fit this graph" in refused["best_constant"]
    own, _ = plans.weightings(networks.from_matrix((np.eye(4) + networks.ring(4).W) / 2))
    assert list(own)[:2] == ["its own", "metropolis"]
    assert own["its own"].rho > own["metropolis"].rho
    _, refused = plans.weightings(networks.ring(60))
    assert refused == {"fastest": "left out above 50 agents, where it takes minutes"}


# the command


def test_plan_prints_tables_in_80_columns(tmp_path):
    result = call("plan", "ring", "-n", 16, "-K", 10_000, "-d", 8066, "-o", tmp_path)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("written")), lines
    assert "ring(16): 16 agents, 16 edges, neighbours of an agent: 2" in lines
    assert "ρ = 0.9493, spectral gap 1 − ρ = 0.05075" in lines
    for words in ("⌈1/√(1 − ρ)⌉", "0.3782", "717,080", "0.6454", "α = √(n/K) = 0.04 for K = 10,000"):
        assert words in result.stdout
    (told,) = json.loads((tmp_path / "plan.json").read_text())
    assert told == proxdasa.plan(networks.ring(16), K=10_000, d=8066).describe() | {"degrees": [2, 2.0, 2]}
    rows = list(csv.DictReader((tmp_path / "plan.csv").read_text().splitlines()))
    assert [int(row["m"]) for row in rows] == [1, 11, 20, 5]
    assert (tmp_path / "graphs.png").read_bytes().startswith(b"\x89PNG")


def test_compare_puts_graphs_and_weightings_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr(plans.side_by_side, "MOST_AGENTS", 5)
    result = call("plan", "--compare", "ring,torus(2, 3),star", "-n", 6, "-o", tmp_path)
    assert result.exit_code == 0, result.stderr
    short = [line for line in result.stdout.splitlines() if not line.startswith(("written", "  star(6)"))]
    assert max(map(len, short)) <= 80, short
    assert "star(6): best_constant: a weight of" in result.stdout
    told = json.loads((tmp_path / "plan.json").read_text())
    assert {(row["network"], row["weights"]) for row in told} == {
        ("ring(6)", "metropolis"), ("ring(6)", "max_degree"), ("ring(6)", "best_constant"),
        ("torus(2, 3)", "metropolis"), ("torus(2, 3)", "max_degree"), ("torus(2, 3)", "best_constant"),
        ("star(6)", "metropolis"), ("star(6)", "max_degree"),
    }  # fmt: skip
    assert (tmp_path / "graphs.png").exists()


def test_plan_of_a_run(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'iterations = 100\nalgorithm = { name = "ProxDASAGT", gamma = 0.1 }\nnetwork = "ring"\n'
        'problem = { name = "PhaseRetrieval", agents = 5, dim = 8, evaluation = 20 }\n'
        'mixing = { name = "Gossip", rounds = 7 }\n'
    )
    result = call("plan", file, "-L", "estimate")
    assert result.exit_code == 0, result.stderr
    for words in ("what follows for Prox-DASA-GT", "gossip, as given", "with γ = 0.1, L = ", "d = 8", "for K = 100"):
        assert words in result.stdout
    assert "estimate: a lower bound" in result.stdout
    assert "note: the theory of Prox-DASA-GT asks for α_k ≤ 0.0566 here" in result.stdout
    assert "Prox-DASA-GT" not in call("plan", file, "--method", "SPPDM").stdout.partition("note")[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a graph, for example"),
        (["ring"], "ring: how large?"),
        (["/nowhere.txt"], "/nowhere.txt cannot be read: No such file or directory"),
        (["nowhere.toml"], "nowhere.toml: No such file or directory"),
        (["ring", "-n", 4, "-L", "much"], "--lipschitz takes a number, or estimate; got 'much'"),
        (["ring", "-n", 4, "-L", "estimate"], "--lipschitz estimate needs a problem"),
        (["ring", "-n", 4, "--method", "Newton"], "--method: there is no method 'Newton'; accepted: ProxDASA,"),
        (["--compare", "ring,rung", "-n", 4], "there is no graph 'rung'"),
        (["--compare", "ring,star", "-n", 4, "--mixing", "Gossip(9)"], "--mixing is for the plan of one graph"),
        (["ring(8)", "-n", 16], "ring(8) has 8 agents, but --agents is 16"),
        (["--compare", "ring,torus(3, 3)", "-n", 4], "torus(3, 3) has 9 agents, but --agents is 4"),
    ],
)
def test_bad_input_is_one_line(arguments, words):
    result = call("plan", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {words}")
    assert len(result.stderr.splitlines()) == 1


def test_a_bad_graph_file_is_one_line(tmp_path):
    file = tmp_path / "graph.txt"
    file.write_text("0 1\n1 x\n")
    result = call("plan", file)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"error: from_file: {file}: line 2, '1 x': a line must have the numbers of two agents"
    )


def test_a_run_can_name_a_graph_file(tmp_path):
    (tmp_path / "graph.txt").write_text("0 1\n1 2\n2 0\n")
    file = tmp_path / "run.toml"
    file.write_text(
        'iterations = 4\nalgorithm = { name = "ProxDASA", gamma = 0.01, alpha = 0.05 }\n'
        'problem = { name = "PhaseRetrieval", agents = 3, dim = 8, evaluation = "population" }\n'
        f'network = {{ name = "from_file", path = "{tmp_path / "graph.txt"}", weights = "max_degree" }}\n'
    )
    assert call("run", file, "-o", tmp_path / "results").exit_code == 0
    again = call("run", tmp_path / "results" / "config.json", "-o", tmp_path / "again")
    assert again.exit_code == 0, again.stderr
    first, second = (proxdasa.load(tmp_path / name) for name in ("results", "again"))
    assert (first.x == second.x).all()
    assert first.config == second.config
