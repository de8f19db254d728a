"""The studies of heterogeneity and topology: the promises of their set-ups, and small versions of what they show."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from proxdasa import DPSGD, ProxDASA, ProxDASAGT, cli, experiments, mixing
from proxdasa.configs import read
from proxdasa.data import Dirichlet, digits
from proxdasa.experiments.heterogeneity import BATCH, BETAS, heterogeneity, skew, skewed_partition
from proxdasa.experiments.speedup import speedup
from proxdasa.experiments.topology import MIXINGS, ROUNDS, disagreeing_quadratics, topology
from proxdasa.problems.single_index import SQUARE
from proxdasa.regularizers import L1
from proxdasa.reports import quantity
from proxdasa.runs.saving import Saving


def mean(result, measure, since=0.0):
    """The mean over trials and over the observations from a share of the iterations on."""
    return np.mean([row[measure] for row in result.records if row["k"] >= since * result.iterations])


# Speed-up -----------------------------------------------------------------------------------------------------


def test_the_speed_up_has_the_papers_settings():
    """Section 5.1: d = 100, λ = 0.01, γ = 0.01, α = √(n/K), K = 10,000, weights 1/3, m = ⌈1/(1 − ρ)⌉, batch 1."""
    setups = speedup()
    assert list(setups) == [f"{name}-n{n:03d}" for name in ("prox-dasa", "prox-dasa-gt") for n in (5, 10, 20, 40)]
    for name, setup in setups.items():
        n, title = int(name[-3:]), "Prox-DASA-GT" if "-gt-" in name else "Prox-DASA"
        assert (setup.algorithm.facts.title, setup.algorithm.gamma) == (title, 0.01)
        assert setup.bound().alpha(0) == setup.bound().alpha(9_999) == math.sqrt(n / 10_000)
        assert (setup.iterations, setup.trials, setup.regularizer) == (10_000, 10, L1(0.01))
        problem = setup.problem
        assert (problem.agents, problem.dim, problem.link, problem.evaluation) == (n, 100, SQUARE, 10_000)
        np.testing.assert_allclose(setup.network.W.data, 1 / 3, rtol=1e-15)
        assert set(setup.network.degrees) == {2}
        rho = 1 / 3 + 2 / 3 * math.cos(2 * math.pi / n)
        assert setup.mixing.rounds_for(setup.network.rho) == math.ceil(1 / (1 - rho))


# Heterogeneity ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def levels():
    return heterogeneity()


def test_each_method_runs_at_each_level(levels):
    methods = {"prox-dasa": ProxDASA, "prox-dasa-gt": ProxDASAGT, "d-psgd": DPSGD}
    assert list(levels) == [f"{name}-beta-{beta:g}" for name in methods for beta in BETAS]
    for name, setup in levels.items():
        assert type(setup.algorithm) is methods[name.rpartition("-beta-")[0]]
        assert setup.network.label == "ring(10)"
        assert setup.mixing == mixing.Gossip(1)
        assert setup.regularizer.weight == 1e-3


def test_what_is_compared_is_the_same(levels):
    for beta in BETAS:
        plain, tracked, sgd = (levels[f"{name}-beta-{beta:g}"] for name in ("prox-dasa", "prox-dasa-gt", "d-psgd"))
        assert plain.problem is tracked.problem is sgd.problem
        assert plain.algorithm.gamma == tracked.algorithm.gamma == 3
        assert sgd.algorithm.gamma == 0.3
        for setup in (plain, tracked):
            assert setup.bound().alpha(0) == setup.bound().alpha(999) == math.sqrt(10 / 1_000)
        assert len({(setup.iterations, setup.trials, setup.seed) for setup in (plain, tracked, sgd)}) == 1


def test_labels_go_from_alike_to_one_class_per_agent(levels):
    largest = {}
    for beta in BETAS:
        problem = levels[f"prox-dasa-beta-{beta:g}"].problem
        counts = torch.stack([torch.bincount(problem.data.y[rows], minlength=10) for rows in problem.parts])
        assert int(counts.sum()) == len(problem.data.y)
        assert int(counts.sum(1).min()) >= BATCH
        largest[beta] = (counts.amax(1) / counts.sum(1)).mean()
    assert largest[100.0] < 0.15 < largest[1.0] < largest[0.1] < largest[0.0]
    # One class, but for what the cuts add of the next: classes have 134 to 154 rows, agents 143 or 144.
    assert float((counts.amax(1) / counts.sum(1)).min()) > 0.9
    assert sorted(counts.argmax(1).tolist()) == list(range(10))


def test_the_first_draw_that_gives_every_agent_a_batch():
    y = digits().y
    partition = skewed_partition(y, 0.1, 10)
    smallest = [min(map(len, Dirichlet(0.1, seed=seed)(y, 10))) for seed in range(partition.seed + 1)]
    assert smallest[-1] >= BATCH > max(smallest[:-1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"data": "cifar"}, "data must be digits or mnist; got 'cifar'"),
        ({"betas": [1e-6]}, "beta = 1e-06 gives each of 10 agents 16 examples; choose a larger beta, or 0"),
        ({"betas": [-1.0]}, "beta must be a positive, finite number"),
    ],
)
def test_refused_levels(arguments, words):
    with pytest.raises(ValueError, match=words):
        heterogeneity(**arguments)


def test_its_runs_can_be_repeated_from_their_files(levels, tmp_path):
    for name in ("prox-dasa-gt-beta-0.1", "d-psgd-beta-0"):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(levels[name].config()), encoding="utf-8")
        assert read(path).config() == levels[name].config()


@pytest.mark.slow
def test_tracking_removes_what_heterogeneity_adds():
    """At one class per agent Prox-DASA's agents disagree many times more than at β = 100, those of GT do not."""
    setups = heterogeneity(betas=(100.0, 0.0), iterations=300, trials=1)
    del setups["d-psgd-beta-100"]
    ends = {name: replace(setup, observe_every=30).run() for name, setup in setups.items()}

    def end(run, measure):
        return mean(ends[run], measure, since=0.8)

    def grown(method, measure):
        return end(f"{method}-beta-0", measure) / end(f"{method}-beta-100", measure)

    assert grown("prox-dasa", "consensus") > 6
    assert grown("prox-dasa", "z_consensus") > 2
    assert grown("prox-dasa", "loss") > 1.4
    assert grown("prox-dasa-gt", "consensus") < 2
    assert grown("prox-dasa-gt", "z_consensus") < 1.5
    assert grown("prox-dasa-gt", "loss") < 1.1
    for other in ("prox-dasa", "d-psgd"):
        assert end(f"{other}-beta-0", "loss") > 1.4 * end("prox-dasa-gt-beta-0", "loss")
        assert end(f"{other}-beta-0", "lowest_accuracy") < end("prox-dasa-gt-beta-0", "lowest_accuracy") - 0.1


# Topology -----------------------------------------------------------------------------------------------------


def test_each_mixing_runs_on_each_graph_with_equal_rounds():
    setups = topology()
    per_iteration = {}
    for name, setup in setups.items():
        graph, mixed, R = name.split("-")
        m = per_iteration[graph, mixed] = setup.mixing.rounds_for(setup.network.rho)
        assert setup.mixing == MIXINGS[mixed]
        assert setup.network.label.startswith(graph)
        assert setup.iterations * m <= int(R) < (setup.iterations + 1) * m
        assert setup.bound().alpha(0) == min(1, math.sqrt(16 / setup.iterations))
        assert setup.problem is next(iter(setups.values())).problem
    assert per_iteration == {
        ("ring", "single"): 1, ("ring", "gossip"): 20, ("ring", "chebyshev"): 5,
        ("grid", "single"): 1, ("grid", "gossip"): 8, ("grid", "chebyshev"): 3,
        ("exponential", "single"): 1, ("exponential", "gossip"): 2, ("exponential", "chebyshev"): 2,
        ("complete", "single"): 1,
    }  # fmt: skip
    assert len(setups) == len(per_iteration) * len(ROUNDS)


def test_too_few_rounds_are_refused():
    with pytest.raises(ValueError, match=r"10 rounds are less than one iteration of Gossip.*ring\(16\).*m = 20"):
        topology(rounds=(10, 1_000))


def test_agents_disagree_more_than_their_samples():
    problem = disagreeing_quadratics(16)
    assert problem.dtype == torch.float64
    assert float(torch.linalg.eigvalsh(problem.A).min()) > -1e-12
    curvature = torch.linalg.eigvalsh(problem.A.mean(0))
    assert 0.5 < float(curvature.min()) < float(curvature.max()) < 1.5
    x = torch.linalg.solve(problem.A.mean(0), problem.b.mean(0))
    local = problem.evaluate(x.expand(1, 16, -1)).grad[0]
    torch.testing.assert_close(local.mean(0), torch.zeros(10, dtype=torch.float64))
    assert float(local.square().sum(1).mean()) > 5 * problem.noise**2 * problem.dim


@pytest.fixture(scope="module")
def ends():
    """‖G‖² of the last fifth of short runs."""
    setups = topology(rounds=(250, 1_000))
    return {
        name: mean(replace(setup, observe_every=10).run(), "stationarity", since=0.8) for name, setup in setups.items()
    }


def test_rounds_are_counted_as_promised():
    result = topology(rounds=(60,), trials=1)["ring-gossip-000060"].run()
    assert result.records[-1]["rounds"] == 60


@pytest.mark.slow
def test_a_transient_that_depends_on_the_graph(ends):
    """With one round: a ring is far from what the complete graph reaches, an exponential graph is not."""
    for R in ("000250", "001000"):
        best = ends[f"complete-single-{R}"]
        assert ends[f"ring-single-{R}"] > 8 * best
        assert ends[f"exponential-single-{R}"] == pytest.approx(best, rel=0.15)
    # ... and it passes: the grid comes closer with more rounds.
    excess = [ends[f"grid-single-{R}"] / ends[f"complete-single-{R}"] for R in ("000250", "001000")]
    assert excess[1] < 0.7 * excess[0]


@pytest.mark.slow
def test_rounds_pay_on_a_ring_and_not_on_an_exponential_graph(ends):
    for R in ("000250", "001000"):
        assert ends[f"ring-chebyshev-{R}"] < ends[f"ring-single-{R}"] / 2
        assert ends[f"exponential-single-{R}"] < ends[f"exponential-chebyshev-{R}"]
        assert ends[f"exponential-single-{R}"] < ends[f"exponential-gossip-{R}"]


@pytest.mark.slow
def test_chebyshev_does_with_a_quarter_of_the_rounds(ends):
    """m = 5 instead of 20 on the ring: the same K, and the same end, for R and 4 R."""
    assert ends["ring-chebyshev-000250"] == pytest.approx(ends["ring-gossip-001000"], rel=0.1)


# Commands -----------------------------------------------------------------------------------------------------


def call(*arguments):
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)])


def columns(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_reproduce_heterogeneity(tmp_path, monkeypatch, drawn):
    monkeypatch.setattr(cli.out, "width", 200)
    chosen = ("heterogeneity", "--betas", "100,0", "--iterations", 4, "--trials", 2, "-o", tmp_path)
    result = call(*chosen)
    assert result.exit_code == 0, result.output
    assert "one class per agent" in result.stdout
    rows = columns(tmp_path / "table.csv")
    assert [(row["method"], row["run"]) for row in rows[:3]] == [
        ("Prox-DASA", "β = 100"), ("Prox-DASA", "one class per agent"), ("Prox-DASA-GT", "β = 100"),
    ]  # fmt: skip
    assert all(float(row["consensus"]) > 0 for row in rows)
    above, below = np.array(drawn[0].axes).reshape(2, 4)
    measures = ("consensus", "table_stationarity", "loss", "lowest_accuracy")
    assert [ax.get_title() for ax in (*above, *below)] == ["at the end"] * 4 + ["one class per agent"] * 4
    assert [ax.get_ylabel() for ax in above] == [f"final {quantity(measure).name}" for measure in measures]
    assert [ax.get_ylabel() for ax in below] == [quantity(measure).label for measure in measures]
    assert [ax.get_yscale() for ax in below] == ["log"] * 3 + ["linear"]
    assert {ax.get_xlabel() for ax in above} == {"share of the largest class"}
    for ends, curves, measure in zip(above, below, measures, strict=True):
        assert [line.get_label() for line in ends.lines] == ["Prox-DASA", "Prox-DASA-GT", "D-PSGD"]
        for i, (end, curve) in enumerate(zip(ends.lines, curves.lines, strict=True)):
            assert end.get_ydata() == pytest.approx([float(row[measure]) for row in rows[2 * i : 2 * i + 2]])
            assert curve.get_ydata()[-1] == end.get_ydata()[-1], "the most uneven level"
    monkeypatch.setattr("proxdasa.reports.draw_levels", lambda _runs, path: path)  # once is enough
    assert "6 finished runs reused" in call(*chosen).stderr


def test_reproduce_topology(tmp_path, monkeypatch, drawn):
    monkeypatch.setattr(cli.out, "width", 200)
    monkeypatch.setattr("proxdasa.experiments.series.Saving", lambda place, every: Saving(place, 10 * every))

    def observed_seldom(*arguments):
        return {name: replace(setup, observe_every=20) for name, setup in topology(*arguments).items()}

    monkeypatch.setattr(experiments, "topology", observed_seldom)
    result = call("topology", "--rounds", "20,40,20", "--trials", 2, "-o", tmp_path)
    assert result.exit_code == 0, result.output
    rows = columns(tmp_path / "table.csv")
    assert [(row["graph"], row["mixing"], row["m"]) for row in rows[:3]] == [
        ("ring", "one round", "1"), ("ring", "gossip", "20"), ("ring", "Chebyshev", "5"),
    ]  # fmt: skip
    assert {"rounds_20", "rounds_40"} <= set(rows[0])
    assert len(rows) == 10
    assert float(rows[0]["rho"]) == pytest.approx(0.949, abs=1e-3)
    above, below = drawn[0].axes[:4], drawn[0].axes[4:]
    assert [ax.get_title() for ax in above] == ["ring", "grid", "exponential", "complete"]
    assert [ax.get_title() for ax in below] == ["ring", "grid", "exponential"]
    assert above[0].get_ylabel() == "stationarity at own γ = 0.3\n‖G(x̄, ∇F(x̄), γ)‖²"
    assert {(ax.get_xscale(), ax.get_yscale()) for ax in drawn[0].axes} == {("log", "log")}
    assert [len(ax.lines) for ax in above] == [3, 3, 3, 1]
    for line, row in zip((line for ax in above for line in ax.lines), rows, strict=True):
        assert line.get_label().startswith(row["mixing"])
        assert line.get_ydata() == pytest.approx([float(row["rounds_20"]), float(row["rounds_40"])])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("heterogeneity", "--betas", "1,x"), "--betas takes numbers separated by commas"),
        (("topology", "--rounds", "1e3"), "--rounds takes numbers separated by commas"),
        (("topology", "--rounds", "5"), "5 rounds are less than one iteration"),
    ],
)
def test_bad_options(arguments, words, tmp_path):
    result = call(*arguments, "-o", tmp_path)
    assert result.exit_code == 2
    assert words in result.stderr


def test_skew_is_the_share_of_the_largest_class(levels):
    assert skew(levels["prox-dasa-beta-100"].problem) == pytest.approx(0.11, abs=0.02)
    assert skew(levels["d-psgd-beta-0"].problem) > 0.9
