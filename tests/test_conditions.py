"""Networks that fail: the laws of W_r, named events, and what methods make of them."""

import dataclasses
import functools
import itertools
import math
import re
import shutil

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from typer.testing import CliRunner

import proxdasa
from proxdasa import conditions, configs, networks, problems, regularizers
from proxdasa.cli import app
from proxdasa.conditions import Bursts, Downtimes, LinkLoss, Outages, Participation, Stragglers, Weather
from proxdasa.conditions.events import Draws
from proxdasa.engines import Simulator, Task
from proxdasa.engines.products import adjacency
from proxdasa.engines.varying_products import VaryingProduct
from proxdasa.runs.loop import Saving
from tests.laws import FEWER
from tests.setups import METHODS, in_threads, light, setup

KINDS = {
    "loss": [LinkLoss(0.4)],
    "bursts": [Bursts(6, 3)],
    "outages": [Outages(8, 4)],
    "downtimes": [Downtimes([(0, 1, 4), (3, 2, 9)])],
    "participation": [Participation(0.6)],
    "stragglers": [Stragglers([(1, 3), (2, 2)])],
    "several": [LinkLoss(0.2), Outages(8, 4), Bursts(9, 2)],
}
GRAPHS = {
    "ring": networks.ring(6),
    "star": networks.star(5),
    "random": networks.erdos_renyi(9, 0.5, seed=3),
    "large": networks.ring(40),
}


def multiplication(network, exact=False):
    return VaryingProduct(network.W, range(network.n), np.arange(network.n), network.edges, torch.float64, exact)


def matrix(network, weather, number, exact=False, product=None):
    """W_r, as the product of a round with the identity."""
    product = product or multiplication(network, exact)
    identity = torch.eye(network.n, dtype=torch.float64)
    return product.in_weather(identity.expand(weather.trials, -1, -1), weather, number)


def combinations():
    """Every pair of graph, kind and way to multiply; the other triples are slow tests."""
    for (i, graph), (j, kind), exact in itertools.product(enumerate(GRAPHS), enumerate(KINDS), (False, True)):
        yield pytest.param(graph, kind, exact, marks=[] if (i + j) % 2 == exact else [pytest.mark.slow])


@pytest.mark.parametrize(("graph", "kind", "exact"), list(combinations()))
def test_the_matrix_of_every_round_is_symmetric_doubly_stochastic_and_on_the_graph(graph, kind, exact):
    network = GRAPHS[graph]
    weather, product = Weather(KINDS[kind], network, trials=2, seed=1), multiplication(network, exact)
    seen = []
    for k in range(10):
        weather.enter(k)
        up = weather.links(k)
        for W, links in zip(matrix(network, weather, k, product=product), up, strict=True):
            expected = network.W.toarray()
            for (i, j), works in zip(network.edges, links.tolist(), strict=True):
                if not works:
                    w = expected[i, j]
                    expected[[i, j], [j, i]] = 0
                    expected[[i, j], [i, j]] += w
            np.testing.assert_allclose(W.numpy(), expected, rtol=0, atol=1e-15)
            np.testing.assert_array_equal(W, W.T)
            np.testing.assert_allclose(W.sum(dim=1).numpy(), 1, rtol=0, atol=1e-14)
            assert (W >= 0).all()
            seen.append(links.all().item())
    assert not all(seen), "something must fail"


MEANS = st.floats(2, 50)
ANY = st.one_of(
    st.builds(LinkLoss, st.floats(0, 1)),
    st.builds(Bursts, MEANS, MEANS),
    st.builds(Outages, MEANS, MEANS),
    st.builds(lambda agent, k, length: Downtimes([(agent, k, k + length)]), *map(st.integers, (0, 0, 1), (4, 99, 99))),
    st.builds(Participation, st.floats(0.01, 1)),
    st.builds(lambda agent, period: Stragglers([(agent, period)]), st.integers(0, 4), st.integers(1, 9)),
)


@FEWER
@given(
    st.lists(ANY, min_size=1, max_size=3), st.sampled_from([*GRAPHS]), st.booleans(), st.integers(0, 2**64 - 1),
    st.integers(0, 100), st.integers(0, 1000),
)  # fmt: skip
def test_any_conditions_give_such_a_matrix(chosen, graph, exact, seed, k, number):
    network = GRAPHS[graph]
    weather = Weather(chosen, network, trials=1, seed=seed)
    weather.enter(k)
    (W,) = matrix(network, weather, number, exact)
    torch.testing.assert_close(W.sum(dim=0), torch.ones(network.n, dtype=W.dtype))
    assert torch.equal(W, W.T)
    assert (W >= 0).all()
    assert not (W[torch.from_numpy(network.W.toarray() == 0)]).any()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("graph", ["random", "large"])
def test_all_links_lost_is_the_identity(graph, exact):
    network = GRAPHS[graph]
    for chosen in (LinkLoss(1.0), Downtimes([(agent, 0, 9) for agent in range(network.n)])):
        (W,) = matrix(network, Weather([chosen], network, trials=1, seed=0), 5, exact)
        torch.testing.assert_close(W, torch.eye(network.n, dtype=W.dtype))


@pytest.mark.parametrize("kind", [Participation(0.5), Stragglers([(0, 2)]), Downtimes([(0, 3, 9)])], ids=str)
def test_a_single_agent_may_be_out_too(kind):
    """Without a link, it has a share of the time in which it counts gradients."""
    weather = Weather([kind], networks.complete(1), trials=1, seed=0)
    problem = problems.Quadratic(torch.eye(2)[None], torch.ones(1, 2))
    result = proxdasa.run(proxdasa.DPSGD(0.1), problem, networks.complete(1), conditions=[kind], iterations=10)
    active = 0
    for k in range(10):
        weather.enter(k)
        active += int(weather.active)
    assert result.records[-1]["gradients"] == active < 10


def test_an_agent_that_is_out_has_no_link():
    network = GRAPHS["random"]
    weather = Weather([Downtimes([(4, 2, 3)])], network, trials=1, seed=0)
    weather.enter(2)
    (W,) = matrix(network, weather, 17)
    torch.testing.assert_close(W[4], torch.eye(9, dtype=W.dtype)[4])
    weather.enter(3)
    np.testing.assert_allclose(matrix(network, weather, 18)[0].numpy(), network.W.toarray())


@pytest.mark.parametrize("kind", ["loss", "bursts", "outages", "participation"])
def test_events_are_named_and_differ_between_trials(kind):
    network = GRAPHS["large"]

    def look(times, trials=3, seed=7):
        weather = Weather(KINDS[kind], network, trials, seed)
        masks = []
        for time in times:
            weather.enter(time)
            masks.append(weather.links(time))
        return torch.stack(masks)

    forward = look(range(200))
    order = [141, 3, 199, 0, 63, 64, 17, 16, 140]
    assert torch.equal(look(order), forward[order]), "in any order, from anywhere"
    assert torch.equal(look(range(60), trials=2), forward[:60, :2])
    assert not torch.equal(forward[:, 0], forward[:, 1])
    assert not torch.equal(look(range(60), seed=8), forward[:60])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 70)), min_size=2, max_size=20))
def test_links_do_not_depend_on_what_was_predicted(steps):
    """Iterations with any numbers of rounds, and gaps between them: a weather that looks ahead sees what others see."""
    chosen, network = [LinkLoss(0.3), Participation(0.7)], GRAPHS["star"]
    ahead = Weather(chosen, network, trials=2, seed=3)
    k = number = 0
    for rounds, gap in steps:
        ahead.enter(k)
        fresh = Weather(chosen, network, trials=2, seed=3)
        fresh.enter(k)
        for _ in range(2):  # two tensors go through the same rounds
            for r in range(number, number + rounds):
                assert torch.equal(ahead.links(r), fresh.links(r))
        number, k = number + rounds, k + gap


def test_where_rounds_follow_iterations_evenly_many_are_looked_at_at_once():
    for rounds, gap in ((1, 1), (3, 1), (1, 5)):
        weather = Weather([LinkLoss(0.3), Participation(0.7)], GRAPHS["star"], trials=1, seed=3)
        spells = set()
        for iteration in range(100):
            weather.enter(iteration * gap)
            spells |= {id(weather.look(iteration * rounds + r)[0]) for r in range(rounds)}
        assert len(spells) <= 25 * max(gap, rounds)


@given(st.integers(0, 5), st.integers(0, 383), st.sampled_from([0, 0.5, 1]))
def test_comparing_words_is_comparing_numbers(block, place, towards):
    """At the numbers themselves and right beside them, and at the ends."""
    draws = Draws(0, 0, trials=2, items=3)
    numbers = draws(block)
    number = float(numbers.flatten()[place])
    for bound in (number if towards == 0.5 else math.nextafter(number, towards), towards, 2.0**-33, 1 - 2.0**-33):
        assert torch.equal(draws.below(block, bound), numbers < bound)


def test_frequencies_and_lengths_are_as_declared():
    network = networks.ring(400)

    def look(condition, rounds):
        weather = Weather([condition], network, trials=2, seed=0)
        return torch.stack([weather.links(number) for number in range(rounds)])

    loss = look(LinkLoss(0.3), 400)
    assert abs(loss.double().mean() - 0.7) < 0.005
    up = look(Bursts(12, 4), 1000)[100:]
    assert abs(up.double().mean() - 0.75) < 0.01
    ends = (up[1:] != up[:-1]).double().sum(dim=0)
    down_runs = ((~up[1:]) & up[:-1]).double().sum()
    assert abs((~up).double().sum() / down_runs - 4) < 0.1, "mean length of a burst"
    assert ends.min() > 0


def test_agents_are_out_as_often_and_as_long_as_declared():
    def look(condition, iterations):
        weather, seen = Weather([condition], networks.ring(400), trials=2, seed=0), []
        for k in range(iterations):
            weather.enter(k)
            assert weather.share == weather.active.double().mean()
            seen.append(weather.active)
        return torch.stack(seen)

    assert abs(look(Participation(0.6), 300).double().mean() - 0.6) < 0.005
    active = look(Outages(12, 4), 1000)[100:]
    assert abs(active.double().mean() - 0.75) < 0.01
    begins = ((~active[1:]) & active[:-1]).double().sum()
    assert abs((~active).double().sum() / begins - 4) < 0.1, "mean length of an outage"
    assert look(Stragglers([(1, 3)]), 9)[:, 0, 1].tolist() == [True, False, False] * 3


QUADRATIC = problems.Quadratic(
    torch.diag_embed(torch.linspace(0.5, 1.5, 40, dtype=torch.float64).view(8, 5)),
    torch.tensor(np.random.default_rng(0).normal(size=(8, 5)) * 2),
)
L1 = regularizers.L1(0.3)
UNSEEN = {"observe_every": 1_000, "metrics": ()}
"""For tests that look at x only."""


@functools.cache
def solution():
    A, b = QUADRATIC.A.mean(0), QUADRATIC.b.mean(0)
    x = torch.zeros(5, dtype=torch.float64)
    for _ in range(300):
        x = L1.prox(x - 0.5 * (A @ x - b), 0.5)
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_tracking_still_finds_the_solution_and_averaging_alone_does_not(kind):
    """Agents whose optima differ, no noise: the tracker's mean survives every event."""
    iterations = 350 if kind == "several" else 220
    settings = {"regularizer": L1, "iterations": iterations, "conditions": KINDS[kind]} | UNSEEN
    tracked = proxdasa.run(proxdasa.ProxDASAGT(0.5, 0.4), QUADRATIC, networks.torus(2, 4), **settings)
    alone = proxdasa.run(proxdasa.ProxDASA(0.5, 0.4), QUADRATIC, networks.torus(2, 4), **settings)
    assert (tracked.x - solution()).abs().max() < 1e-8
    assert (alone.x - solution()).abs().max() > 1e-2
    u, v = tracked.state["u"], tracked.state["v"]
    torch.testing.assert_close(u.mean(dim=1), v.mean(dim=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "name", "sizes"),
    [
        *(("several", name, (4,) if name == "prox-dasa-gt" else (2,)) for name in METHODS),
        ("loss", "prox-dasa-gt", (3,)),
        *(pytest.param("several", name, (3,), marks=pytest.mark.slow) for name in METHODS),
        pytest.param("loss", "prox-dasa-gt", (2, 4), marks=pytest.mark.slow),
    ],
)
def test_the_same_bits_in_any_number_of_processes(kind, name, sizes):
    made = (setup if kind == "loss" else light)(
        name, conditions=KINDS[kind], mixing=proxdasa.Gossip(2), iterations=6, **UNSEEN
    )
    alone = made.run().x
    assert not torch.equal(alone, dataclasses.replace(made, conditions=()).run().x)
    for size in sizes:
        first, *_ = in_threads(size, lambda transport: made.run(processes=transport))
        assert torch.equal(first.x, alone)


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_what_a_link_does_not_carry_is_not_sent(probability):
    """Each process has one agent, so every row belongs to one link; what is left of a message is its header."""
    network, d, K = networks.ring(4), 5, 6
    problem = problems.Quadratic(torch.eye(d).expand(4, d, d).double(), torch.ones(4, d).double())
    made = proxdasa.runs.setup.Setup(
        proxdasa.DPSGD(0.1), problem, network, iterations=K, observe_every=K, trials=3,
        conditions=[LinkLoss(probability)], metrics=(),
    )  # fmt: skip
    first, *_ = in_threads(4, lambda transport: made.run(processes=transport))
    weather = Weather([LinkLoss(probability)], network, trials=3, seed=0)
    carried = sum(weather.links(number).sum() for number in range(K))
    expected = (2 * int(carried) * d + 4 * 2 * K * 2) * 8 / 4  # both ways; a header of two numbers for each neighbour
    assert first.records[-1]["wire_bytes"] == expected
    assert first.records[-1]["bytes"] == made.run().records[-1]["bytes"] == 2 * int(carried) * d * 8 / 4 / 3


@pytest.mark.parametrize("name", METHODS)
def test_no_loss_is_the_perfect_run_bit_by_bit(name):
    perfect = light(name, mixing=proxdasa.Gossip(2), iterations=6, **UNSEEN)
    assert torch.equal(dataclasses.replace(perfect, conditions=[LinkLoss(0.0)]).run().x, perfect.run().x)


@functools.cache
def without_conditions(exact):
    made = light("prox-dasa-gt", mixing=proxdasa.Gossip(1), exact=exact, iterations=6, **UNSEEN)
    return made, made.run().x


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("nothing", [LinkLoss(0.0), Downtimes([]), Participation(1.0), Stragglers([(0, 1)])], ids=str)
def test_a_condition_under_which_nothing_happens_changes_no_bit(nothing, exact):
    perfect, x = without_conditions(exact)
    assert torch.equal(dataclasses.replace(perfect, conditions=[nothing]).run().x, x)


def test_the_simulator_agrees_with_exact_mode():
    for kind, chosen in KINDS.items():
        made = light(
            "prox-dasa-gt", conditions=chosen, mixing=proxdasa.Gossip(2), iterations=6, observe_every=3, metrics=()
        )
        fast, exact = dataclasses.replace(made, exact=False).run(), made.run()
        torch.testing.assert_close(fast.x, exact.x, rtol=1e-3, atol=1e-5, msg=kind)
        for one, other in zip(fast.records, exact.records, strict=True):
            assert one["samples"] == other["samples"]


def test_an_interrupted_run_meets_the_same_events(tmp_path):
    made = light("prox-dasa-gt", conditions=KINDS["several"], mixing=proxdasa.Gossip(2), iterations=8, **UNSEEN)

    def interrupt(k, _iterations, _rows):
        if k == 5:
            raise KeyboardInterrupt

    whole = made.run()
    assert made.run(interrupt, Saving(tmp_path / "stopped")).iterations == 5
    for size in (1, 2, 4):
        folder = shutil.copytree(tmp_path / "stopped", tmp_path / str(size))
        resumed, *_ = in_threads(size, lambda transport, folder=folder: made.run(None, Saving(folder), transport))
        assert torch.equal(resumed.x, whole.x)
        assert resumed.records[-1]["samples"] == whole.records[-1]["samples"]


def test_an_agent_that_is_out_keeps_its_state_and_draws_no_sample():
    seen = []
    settings = {"iterations": 6, "observe_every": 1, "conditions": [Downtimes([(2, 0, 6)])]}
    result = proxdasa.run(
        proxdasa.ProxDASAGT(0.3, 0.2), QUADRATIC, networks.ring(8), x0=torch.ones(5), regularizer=L1, **settings
    )
    assert torch.equal(result.x[:, 2], torch.ones(1, 5, dtype=torch.float64))
    assert not result.state["u"][:, 2].any()
    assert (result.x[:, 3] != 1).any()
    assert result.records[-1]["samples"] == 6 * 7 / 8
    assert not seen


class Fog:
    concerns = "air"

    def begin(self, draws):
        return draws


def test_divergence_is_found_where_it_happened():
    """The replay meets the events of the run."""
    made = proxdasa.runs.setup.Setup(
        proxdasa.DPSGD(proxdasa.per_trial([1e40, 0.1])), QUADRATIC, networks.ring(8), trials=2, iterations=20,
        observe_every=10, conditions=[Downtimes([(i, 0, 3) for i in range(8) if i != 5])],
    )  # fmt: skip
    with pytest.warns(proxdasa.DivergenceWarning, match="trial 0 diverged: agent 5 met"):
        made.run()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"conditions": [LinkLoss(0.1)], "mixing": proxdasa.Chebyshev(3)}, "Chebyshev.* is a polynomial of one W"),
        ({"conditions": [Downtimes([(8, 0, 1)])]}, "there is no agent 8: agents are numbered from 0 to 7"),
        ({"conditions": [0.3]}, "conditions must be a list of proxdasa.conditions"),
        ({"conditions": LinkLoss(0.3)}, r"conditions must be a list of proxdasa.conditions, such as .*; got LinkLoss"),
        ({"conditions": [LinkLoss]}, "conditions must be a list of proxdasa.conditions"),
        ({"conditions": None}, "conditions must be a list of proxdasa.conditions"),
        ({"conditions": [Fog()]}, "Fog.concerns must be links, agents, messages or delays; got 'air'"),
    ],
)
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises((ValueError, TypeError), match=said):
        proxdasa.run(proxdasa.ProxDASA(0.1, 0.1), QUADRATIC, networks.ring(8), iterations=2, **given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinkLoss(1.5), lambda: Outages(1, 1), lambda: Bursts(0, 3), lambda: Participation(0.0),
        lambda: Stragglers([(0, 0)]), lambda: Downtimes([(0, 5, 5)]), lambda: Stragglers([0, 3]),
        lambda: Stragglers([(0, 3), (0, 2)]),
        lambda: Stragglers({1: 3}), lambda: Downtimes((0, 1, 5)), lambda: Downtimes([(0, 1)]),
    ],
)  # fmt: skip
def test_impossible_conditions_are_refused(make):
    with pytest.raises(ValueError, match=r"must|too short"):
        make()


@pytest.mark.parametrize("concerns", ["links", "agents"])
@pytest.mark.parametrize(
    ("events", "found"),
    [
        (lambda u: u, r"\[64, 2, 8\] of torch.float64"),
        (lambda u: 2 * (u < 0.5).int(), r"\[64, 2, 8\] of torch.int32"),
        (lambda u: u[..., :1] < 0.5, r"\[64, 2, 1\] of torch.bool"),
        (lambda u: u[:8] < 0.5, r"\[8, 2, 8\] of torch.bool"),
    ],
)
def test_own_events_of_another_form_are_refused(concerns, events, found):
    """Numbers would multiply the weights of links, and one event for all of them would broadcast."""

    class Own:
        def begin(self, draws):
            return lambda block: events(draws(block))

    Own.concerns = concerns
    with pytest.raises(ValueError, match=rf"events of Own must be \[64, 2, 8\] of torch.bool .*; got {found}"):
        Weather([Own()], networks.ring(8), trials=2, seed=0).links(0)


def test_sums_over_neighbours_take_the_own_row_for_a_missing_one():
    network = networks.ring(5)
    task = Task(problems.Quadratic(torch.eye(2).expand(5, 2, 2).double(), torch.zeros(5, 2).double()), network,
                regularizers.Zero(), proxdasa.Gossip(), trials=1, seed=0, conditions=[LinkLoss(1.0)])  # fmt: skip
    x = torch.arange(10.0, dtype=torch.float64).view(1, 5, 2)
    torch.testing.assert_close(Simulator(task).neighbour_sum(x), 2 * x)
    plain = Simulator(task._replace(conditions=()))
    torch.testing.assert_close(plain.neighbour_sum(x)[0], torch.from_numpy(adjacency(network.W) @ x[0].numpy()))


def test_all_are_listed():
    assert {condition.__name__ for condition in conditions.ALL} <= set(conditions.__all__)


def test_a_file_and_the_command_line_name_them(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        """
        iterations = 5
        conditions = [{ name = "LinkLoss", probability = 0.3 }, { name = "Downtimes", intervals = [[0, 1, 3]] }]
        algorithm = { name = "ProxDASA", gamma = 0.1, alpha = 0.1 }
        problem = { name = "PhaseRetrieval", agents = 4, dim = 6 }
        network = "ring"
        """,
        encoding="utf-8",
    )
    made = configs.read(file)
    assert list(made.conditions) == [LinkLoss(0.3), Downtimes(((0, 1, 3),))]
    results = tmp_path / "results"
    done = CliRunner().invoke(app, ["run", str(file), "-o", str(results), "--condition", "Outages(20, mean_down=5)"])
    assert done.exit_code == 0, done.output
    expected = dataclasses.replace(made, conditions=(*made.conditions, Outages(20, 5)))
    result = proxdasa.load(results)
    assert torch.equal(result.x, expected.run().x)
    assert result.config["conditions"][2] == {"name": "Outages", "mean_up": 20.0, "mean_down": 5.0}
    again = configs.build({key: value for key, value in result.config.items() if key != "facts"})
    assert again.conditions == expected.conditions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Fog(1)", "there is no condition 'Fog'; accepted: LinkLoss, "),
        ("LinkLoss", "LinkLoss().probability is missing; LinkLoss needs it: a number"),
        ("LinkLoss(0.3, 4)", "too many positional arguments; LinkLoss accepts probability"),
        ("LinkLoss(0.1)(0.2)", "cannot be read: it is not a single call"),
        ("Outages(200, 20", "'(' was never closed; write a call such as LinkLoss(0.3)"),
        ("Downtimes([(0, 5)])", "Downtimes([(0, 5)]).intervals[0] must be a list of 3 values; got [0, 5]"),
        ("LinkLoss(2)", "probability must be a number between 0 and 1; got 2"),
        ("LinkLoss(", "cannot be read"),
        ("LinkLoss(1/3)", "cannot be read: 1 / 3 is neither a number, a text, a list nor a call; write a call such as"),
    ],
)
def test_a_condition_that_cannot_be_read_is_refused(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        configs.calls.condition(text)


def test_a_run_without_conditions_is_described_as_before():
    assert "conditions" not in setup("prox-dasa").config()


def test_a_round_that_was_looked_at_in_another_iteration_is_looked_at_again():
    """A run that compares itself with a checkpoint mixes once more, before it goes on with that round's number."""
    network = GRAPHS["random"]
    weather = Weather([LinkLoss(0.2), Downtimes([(4, 0, 1)])], network, trials=1, seed=0)
    product = VaryingProduct(network.W, range(9), np.arange(9), network.edges, torch.float64, exact=False)
    x = torch.eye(9, dtype=torch.float64).unsqueeze(0)
    weather.enter(0)
    before = product.in_weather(x, weather, 5)
    weather.enter(1)
    after = product.in_weather(x, weather, 5)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, matrix(network, weather, 5))
