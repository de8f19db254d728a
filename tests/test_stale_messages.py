"""Messages that are late."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import configs, networks, problems
from proxdasa.cli import app
from proxdasa.conditions import Downtimes, LinkLoss, MessageNoise, Outages, StaleMessages, TrackerWarning, Weather
from proxdasa.conditions.events import Draws
from proxdasa.engines.late_rows import Aged
from proxdasa.engines.varying_products import VaryingProduct
from proxdasa.runs.footprint import footprint
from proxdasa.runs.loop import Saving
from proxdasa.runs.setup import Setup
from tests.processes import write_config
from tests.setups import LocalSteps, in_threads, light, setup

N, D, K, TRIALS, SEED = 6, 3, 9, 2, 3
RNG = np.random.default_rng(0)
QUADRATIC = problems.Quadratic(
    torch.diag_embed(torch.from_numpy(0.5 + RNG.random((N, D)))), torch.from_numpy(2 * RNG.normal(size=(N, D)))
)
TRACKER = pytest.mark.filterwarnings("ignore::proxdasa.conditions.TrackerWarning")


class Descends(proxdasa.DPSGD):
    """x ← mix[x − γ g], and perhaps x⁰ ← mix[x⁰] first."""

    def init(self, agents, x):
        return self.State(agents.mix(x) if self.gamma > 0.2 else x)

    def step(self, agents, k, state):
        return self.State(agents.mix(state.x - self.gamma * agents.grad(state.x, k)))


class Sums(proxdasa.DPSGD):
    """x ← ½ x + Σ_{j~i} x_j / 20 − γ g."""

    def step(self, agents, k, state):
        return self.State(state.x / 2 + agents.neighbour_sum(state.x) / 20 - self.gamma * agents.grad(state.x, k))


class Twice(proxdasa.DPSGD):
    """Two calls of mix in an iteration, whose rows must not be confused."""

    def step(self, agents, k, state):
        x = agents.mix(state.x)
        return self.State(agents.mix(x - self.gamma * agents.grad(x, k)))


class Transcription:
    """The definition with loops over trials, agents and links, and all that was ever sent in lists."""

    def __init__(self, network, conditions):
        self.network, self.weather = network, Weather(conditions, network, TRIALS, SEED)
        pairs = sorted((int(i), int(j)) for a, b in network.edges for i, j in ((a, b), (b, a)))
        self.numbers = {pair: number for number, pair in enumerate(pairs)}
        self.sent, self.round = {}, 0

    def enter(self, k):
        self.weather.enter(k)
        pauses = self.weather.pauses
        self.active = self.weather.active.numpy() if pauses else np.ones((TRIALS, N), dtype=bool)

    def mix(self, x, place, graph=False):
        """What the calls of an iteration return; ``place`` is None before the first one."""
        network, links, ages = (
            self.network,
            self.weather.links(self.round),
            self.weather.ages(self.round // 64)[self.round % 64],
        )
        W = (network.rounds or (network.W,))[self.round % max(len(network.rounds), 1)].toarray()
        W = (network.W.toarray() > 0) * (1 - np.eye(N)) if graph else W
        up = [
            {tuple(edge) for edge, works in zip(network.edges.tolist(), each, strict=True) if works} for each in links
        ]
        mixed = np.zeros_like(x)
        for t, i in np.ndindex(TRIALS, N):
            if place is not None and self.active[t, i]:
                self.sent.setdefault((place, t, i), []).append(x[t, i])
        for t, i in np.ndindex(TRIALS, N):
            mixed[t, i] = W[i, i] * x[t, i]
            for j in range(N):
                if (i, j) not in self.numbers:
                    continue
                got = x[t, i]
                if (min(i, j), max(i, j)) in up[t]:
                    history = self.sent.get((place, t, j), [x[t, j]])
                    got = history[max(len(history) - 1 - int(ages[t, self.numbers[i, j]]), 0)]
                mixed[t, i] += W[i, j] * got
        return mixed

    def grad(self, x):
        return np.einsum("nij,tnj->tni", QUADRATIC.A.numpy(), x) - QUADRATIC.b.numpy()

    def run(self, method):
        x, z = np.zeros((2, TRIALS, N, D))
        x = x + X0
        if isinstance(method, Descends) and method.gamma > 0.2:
            x, self.round = self.mix(x, None), 1
        for k in range(K):
            self.enter(k)
            γ, before = method.gamma, (x, z)
            if isinstance(method, Descends):
                x = self.mix(x - γ * self.grad(x), 0)
            elif isinstance(method, Sums):
                x = x / 2 + self.mix(x, 0, graph=True) / 20 - γ * self.grad(x)
            elif isinstance(method, Twice):
                x = self.mix(x, 0)
                self.round += 1
                x = self.mix(x - γ * self.grad(x), 1)
            else:
                α, y, g = 0.4, x - γ * z, self.grad(x)
                x, z = self.mix((1 - α) * x + α * y, 0), self.mix((1 - α) * z + α * g, 1)
            self.round += 1
            x, z = (np.where(self.active[..., None], *pair) for pair in zip((x, z), before, strict=True))
        return x


X0 = RNG.normal(size=(TRIALS, N, D))
KINDS = {
    "late": [StaleMessages(3)],
    "lost too": [LinkLoss(0.3), StaleMessages(2)],
    "out too": [StaleMessages(2), Outages(4, 3), Downtimes([(0, 0, 3), (2, 0, 1)])],
    "late twice": [StaleMessages(1), StaleMessages(2), LinkLoss(0.2)],
}
GRAPHS = {"ring": networks.ring(N), "star": networks.star(N), "changing": networks.base_graph(N)}
METHODS = {
    "one vector": Descends(0.1),
    "at its start": Descends(0.3),
    "two vectors": proxdasa.ProxDASA(0.3, 0.4),
    "two calls": Twice(0.1),
    "a sum": Sums(0.1),
}


UNSEEN = {"observe_every": 1_000, "metrics": ()}
"""For tests that look at x only."""


def small(method, network, conditions, **more):
    settings = {"iterations": K, "trials": TRIALS, "seed": SEED, "x0": X0} | UNSEEN
    return Setup(method, QUADRATIC, network, conditions=conditions, **settings | more)


def combinations():
    """Every pair of method, graph and kind; the other triples are slow tests."""
    for (i, name), (j, kind), (k, graph) in itertools.product(*map(enumerate, (METHODS, KINDS, GRAPHS))):
        yield pytest.param(name, graph, kind, marks=[] if (i + j) % 3 == k else [pytest.mark.slow])


@pytest.mark.parametrize(("name", "graph", "kind"), list(combinations()))
def test_against_the_definition_with_loops(name, graph, kind):
    method, network = METHODS[name], GRAPHS[graph]
    expected = Transcription(network, KINDS[kind]).run(method)
    for exact in (False, True):
        found = small(method, network, KINDS[kind], exact=exact).run().x
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_large_graphs_too():
    """They are not multiplied as dense matrices; in exact mode the terms are added one by one."""
    n = 40
    problem = problems.Quadratic(torch.eye(2).double().expand(n, 2, 2), torch.randn(n, 2).double())
    made = Setup(proxdasa.ProxDASA(0.3, 0.4), problem, networks.ring(n), conditions=KINDS["lost too"], iterations=6)
    torch.testing.assert_close(made.run().x, dataclasses.replace(made, exact=True).run().x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ages", [(3,), (126,), (127,), (200, 3), (200, 100)], ids=str)
def test_any_number_of_ages(ages):
    """Those of sparse products are bytes where they fit; in exact mode they never are."""
    n, span, network = 40, sum(ages) + 1, networks.ring(40)
    weather = Weather([LinkLoss(0.2), *map(StaleMessages, ages)], network, trials=2, seed=1)
    sparse, exact = (
        VaryingProduct(network.W, range(n), np.arange(n), network.edges, torch.float64, exact=each)
        for each in (False, True)
    )
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(4, span * n, 1)))
    for number, newest in ((0, 0), (1, 1), (70, span - 1), (71, span // 2)):
        found, expected = (each.in_weather(Aged(table, newest, span), weather, number) for each in (sparse, exact))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert weather.ages(0).max() > 0.9 * sum(ages)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("n", [6, 40])
def test_tables_made_for_later_iterations_are_not_used_in_others(n, exact):
    """Rounds 0 and 1 belong to iterations 0 and 65, not 1; of these, only 65 lacks an agent."""
    network = networks.ring(n)
    weather = Weather([StaleMessages(2), Downtimes([(1, 65, 66)])], network, trials=2, seed=1)
    used, fresh = (
        VaryingProduct(network.W, range(n), np.arange(n), network.edges, torch.float64, exact) for _ in range(2)
    )
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3 * n, 1)))
    used.in_weather(Aged(table, 0, 3), weather, 0)
    weather.enter(65)
    found, expected = (each.in_weather(Aged(table, 1, 3), weather, 1) for each in (used, fresh))
    assert torch.equal(found, expected)
    assert torch.equal(found[:, 1], table[:, n + 1]), "the agent that is out keeps its row"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 32, 33, 1000])
def test_whole_numbers_are_those_of_the_uniform_ones(count):
    draws = Draws(0, 0, trials=2, items=30)
    for block in (0, 3):
        assert torch.equal(draws.whole(block, count), (draws(block) * count).long()), "of a type that does not wrap"
        assert torch.equal(draws.whole_bytes(block, count).long(), draws.whole(block, count))


@dataclasses.dataclass(frozen=True)
class OwnDelay:
    """What a user computes with whole numbers below 4."""

    age: int
    compute: Callable[[torch.Tensor], torch.Tensor]
    concerns: ClassVar[str] = "delays"

    def begin(self, draws):
        return lambda block: self.compute(draws.whole(block, 4))


def test_a_delay_of_ones_own_may_compute_with_what_it_draws():
    weather = Weather([OwnDelay(300, lambda drawn: drawn * 100)], networks.ring(40), trials=2, seed=0)
    assert weather.ages(0).unique().tolist() == [0, 100, 200, 300]
    weather = Weather([OwnDelay(2, lambda drawn: (drawn - 1).clamp(0))], networks.ring(40), trials=2, seed=0)
    assert weather.ages(0).unique().tolist() == [0, 1, 2]
    both = [OwnDelay(1, lambda drawn: drawn > 1)] * 2
    assert Weather(both, networks.ring(40), trials=2, seed=0).ages(0).unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("compute", "found"),
    [
        (lambda drawn: drawn - 1, "int64 from -1 to 2"),
        (lambda drawn: drawn + 1, "int64 from 1 to 4"),
        (lambda drawn: drawn / 2, "float32 from 0.0 to 1.5"),
    ],
)
def test_ages_of_which_no_rows_are_kept_are_refused(compute, found):
    weather = Weather([StaleMessages(9), OwnDelay(3, compute)], networks.ring(40), trials=2, seed=0)
    with pytest.raises(ValueError, match=f"ages of OwnDelay must be whole numbers from 0 to its age, 3; got .*{found}"):
        weather.ages(0)


@pytest.mark.filterwarnings("ignore::proxdasa.DivergenceWarning")
def test_rows_of_the_last_observation_are_not_overwritten():
    """The replay that finds where a trial diverged goes back to them, over more iterations than there are ages."""
    made = Setup(
        Twice(proxdasa.per_trial([1e16, 0.1])), QUADRATIC, networks.ring(N), conditions=[StaleMessages(2)], trials=2,
        iterations=24, observe_every=12,
    )  # fmt: skip
    found, followed = made.run(), dataclasses.replace(made, observe_every=1).run()
    assert found.diverged == followed.diverged
    assert 14 < found.diverged[0].iteration < 24
    torch.testing.assert_close(found.x[1], followed.x[1], rtol=0, atol=1e-12)


@TRACKER
@pytest.mark.parametrize("name", ["prox-dasa", "prox-dasa-gt", "sppdm"])
def test_age_0_is_the_perfect_run_bit_by_bit(name):
    made = light(name, mixing=proxdasa.Gossip(1), iterations=6, **UNSEEN)
    perfect = made.run().x
    assert torch.equal(dataclasses.replace(made, conditions=[StaleMessages(0)]).run().x, perfect)
    assert not torch.equal(dataclasses.replace(made, conditions=[StaleMessages(1)]).run().x, perfect)


HARD = [StaleMessages(3), LinkLoss(0.2), Outages(9, 3), MessageNoise(0.01)]


@TRACKER
@pytest.mark.parametrize(
    ("name", "conditions", "sizes"),
    [
        ("prox-dasa", HARD[:1], (3,)),
        ("prox-dasa-gt", HARD, (3,)),
        ("sppdm", HARD, (2,)),
        pytest.param("sppdm", HARD, (3,), marks=pytest.mark.slow),
        pytest.param("prox-dasa", HARD[:1], (2,), marks=pytest.mark.slow),
        pytest.param("prox-dasa-gt", HARD, (2,), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_same_bits_in_any_number_of_processes_and_near_the_simulator(name, conditions, sizes):
    make = light if conditions is HARD else setup
    made = make(name, conditions=conditions, mixing=proxdasa.Gossip(1), iterations=7, **UNSEEN)
    alone = made.run()
    for size in sizes:
        first, *_ = in_threads(size, lambda transport: made.run(processes=transport))
        assert torch.equal(first.x, alone.x)
        assert first.state.keys() == alone.state.keys()
        assert all(torch.equal(first.state[key], alone.state[key]) for key in alone.state)
    torch.testing.assert_close(dataclasses.replace(made, exact=False).run().x, alone.x, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("moment", [1, 5])
def test_an_interrupted_run_goes_on_with_what_was_sent(moment, tmp_path):
    """In another number of processes, even; agents that have not taken part yet have sent nothing."""
    late = [StaleMessages(3), LinkLoss(0.2), *([Downtimes([(1, 0, 7)])] if moment > 1 else [])]
    made = light("prox-dasa", conditions=late, mixing=proxdasa.Gossip(1), iterations=9, **UNSEEN)

    def interrupt(k, _iterations, _rows):
        if k == moment:
            raise KeyboardInterrupt

    assert made.run(interrupt, Saving(tmp_path)).iterations == moment
    first, *_ = in_threads(3, lambda transport: made.run(None, Saving(tmp_path), transport))
    assert torch.equal(first.x, made.run().x)


@TRACKER
@pytest.mark.parametrize("ages", [1, 2, 4])
def test_after_an_interruption_it_has_the_same_bits(ages, tmp_path):
    """A product of few agents adds its terms in the order in which it holds rows of several ages."""
    made = small(proxdasa.ProxDASAGT(0.3, 0.2), networks.ring(N), [StaleMessages(ages)])
    made = dataclasses.replace(made, dtype=torch.float32)
    whole = made.run()
    for moment in (1, 4, 6):

        def interrupt(k, _iterations, _rows, moment=moment):
            if k == moment:
                raise KeyboardInterrupt

        assert made.run(interrupt, Saving(tmp_path / str(moment))).iterations == moment
        resumed = made.run(None, Saving(tmp_path / str(moment)))
        assert all(torch.equal(resumed.state[name], whole.state[name]) for name in whole.state)


def test_bytes_counted_are_bytes_sent():
    """With an agent in each process: one row over each link that is up, whatever its age."""
    made = small(proxdasa.ProxDASA(0.3, 0.4), networks.star(N), KINDS["lost too"])
    alone = made.run().records[-1]
    first = in_threads(N, lambda transport: made.run(processes=transport))[0].records[-1]
    degree = 2 * len(made.network.edges) / N
    assert first["bytes"] == alone["bytes"]
    assert first["wire_bytes"] == pytest.approx(TRIALS * first["bytes"] + 16 * first["rounds"] * degree)


def test_ages_are_uniform_named_and_differ():
    network = networks.ring(50)

    def look(times, trials=2, seed=1):
        weather = Weather([LinkLoss(0.1), StaleMessages(3)], network, trials, seed)
        return torch.stack([weather.ages(number // 64)[number % 64] for number in times])

    ages = look(range(200))
    assert ages.shape == (200, 2, 100)
    counts = torch.bincount(ages.flatten(), minlength=4)
    assert len(counts) == 4
    assert (counts / ages.numel() - 0.25).abs().max() < 0.01
    order = [150, 3, 64, 63, 199]
    assert torch.equal(look(order), ages[order]), "whoever asks, in any order"
    assert torch.equal(look(range(5), trials=1), ages[:5, :1])
    flat = ages.double().permute(1, 2, 0).flatten(0, 1)  # by trial and directed link
    assert torch.corrcoef(flat).fill_diagonal_(0).abs().max() < 0.4, "each trial, link and direction its own"
    assert not torch.equal(look(range(5), seed=2), ages[:5])


def test_trials_differ_and_equal_rows_that_stay_survive():
    made = small(proxdasa.ProxDASA(0.3, 0.4), networks.ring(N), [StaleMessages(2)])
    x = dataclasses.replace(made, x0=np.ones((N, D))).run().x
    assert not torch.equal(x[0], x[1])
    still = problems.Quadratic(torch.zeros(N, D, D).double(), torch.zeros(N, D).double())
    kept = dataclasses.replace(made, problem=still, x0=np.ones((N, D)), iterations=20).run().x
    torch.testing.assert_close(kept, torch.ones_like(kept))


@pytest.mark.parametrize("mixing", [proxdasa.Every(3), proxdasa.Chebyshev(1)], ids=str)
def test_ages_count_the_iterations_that_mix(mixing):
    """Without gradients, three times as many iterations of which every third mixes change nothing."""
    still = problems.Quadratic(torch.zeros(N, D, D).double(), torch.zeros(N, D).double())
    made = dataclasses.replace(small(Descends(0.1), networks.ring(N), [StaleMessages(2)]), problem=still)
    other = dataclasses.replace(made, mixing=mixing, iterations=K * getattr(mixing, "period", 1))
    assert torch.equal(other.run().x, made.run().x)
    assert torch.isfinite(dataclasses.replace(made, algorithm=LocalSteps()).run().x).all()


@TRACKER
def test_a_tracker_ends_elsewhere_and_an_average_where_it_does_without_delays():
    A, b = QUADRATIC.A.mean(0), QUADRATIC.b.mean(0)
    solution = torch.linalg.solve(A, b)

    def end(method, conditions, iterations=180):
        settings = {"conditions": conditions, "iterations": iterations} | UNSEEN
        return proxdasa.run(method(0.5, 0.5), QUADRATIC, networks.ring(N), **settings).x

    assert (end(proxdasa.ProxDASAGT, []) - solution).abs().max() < 1e-8
    settled = end(proxdasa.ProxDASAGT, [StaleMessages(3)], 220)
    assert (settled - solution).norm(dim=-1).max() > 0.1
    torch.testing.assert_close(settled, end(proxdasa.ProxDASAGT, [StaleMessages(3)], 260))
    averaged = end(proxdasa.ProxDASA, [StaleMessages(3)])
    torch.testing.assert_close(averaged, end(proxdasa.ProxDASA, []), rtol=0, atol=1e-8)


def test_a_tracker_is_warned_of_once():
    made = small(proxdasa.ProxDASAGT(0.3, 0.2), networks.ring(N), [StaleMessages(1)])
    with pytest.warns(TrackerWarning, match="Prox-DASA-GT has a tracker, u, and messages that are late") as caught:
        in_threads(2, lambda transport: made.run(processes=transport))
    assert len(caught) == 1
    for quiet in ([StaleMessages(0)], [LinkLoss(0.1)]):
        dataclasses.replace(made, conditions=quiet).run()


@pytest.mark.parametrize(
    "method", [proxdasa.PGExtra(0.2), proxdasa.D2(0.2), proxdasa.SPPDM(1.0, 0.2, 0.5, 0.9, 0.2)], ids=repr
)
def test_so_is_a_method_that_adds_up_differences(method):
    """It ends elsewhere if messages are late, and at the solution if links or agents fail."""
    network = networks.from_matrix((networks.ring(N).W.toarray() + np.eye(N)) / 2)
    settings = {"iterations": 200} | UNSEEN
    solution = torch.linalg.solve(QUADRATIC.A.mean(0), QUADRATIC.b.mean(0))
    with pytest.warns(TrackerWarning, match="adds up differences between neighbours from the first iteration on"):
        late = proxdasa.run(method, QUADRATIC, network, conditions=[StaleMessages(2)], **settings).x
    assert (late - solution).norm(dim=-1).max() > 0.05
    found = proxdasa.run(method, QUADRATIC, network, conditions=[LinkLoss(0.2), Outages(50, 10)], **settings).x
    assert (found - solution).norm(dim=-1).max() < 1e-4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mixing": proxdasa.Gossip(2)}, "late and 2 rounds of mixing exclude each other.*choose Gossip(1) instead of"),
        ({"mixing": proxdasa.Every(2, proxdasa.Gossip(3))}, "late and 3 rounds of mixing exclude each other"),
        ({"mixing": proxdasa.Chebyshev(2)}, "is a polynomial of one W"),
        (
            {"mixing": proxdasa.CompressedGossip(proxdasa.compressors.TopK(0.5), 0.1)},
            "and conditions exclude each other: after a lost message",
        ),
    ],
)
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(ValueError, match=re.escape(said).replace(r"\.\*", ".*")):
        small(proxdasa.DPSGD(0.1), networks.ring(N), [StaleMessages(1)], **given)


@pytest.mark.parametrize("age", [-1, 1.5, True, "2"])
def test_an_age_is_a_whole_number(age):
    with pytest.raises((ValueError, TypeError), match="age must be a whole number"):
        StaleMessages(age)


def test_in_files_and_on_the_command_line(tmp_path):
    plain = write_config(tmp_path / "run.toml", iterations=4)
    plain.write_text(plain.read_text().replace("ProxDASAGT", "ProxDASA"))
    done = CliRunner().invoke(
        app, ["run", str(plain), "--output", str(tmp_path / "out"), "--condition", "StaleMessages(3)"]
    )
    assert done.exit_code == 0, done.output
    listed = tmp_path / "listed.toml"
    listed.write_text('conditions = [{ name = "StaleMessages", age = 3 }]\n' + plain.read_text())
    made = configs.read(listed)
    assert made.conditions == (StaleMessages(3),)
    assert torch.equal(proxdasa.load(tmp_path / "out").x, made.run().x)


def test_older_rows_need_memory():
    made = small(proxdasa.ProxDASA(0.3, 0.4), networks.ring(N), [])
    settings = made.algorithm, made.problem, made.network, made.mixing, TRIALS
    assert footprint(*settings, oldest=5) - footprint(*settings) == 6 * 5 * 2 * TRIALS * N * D * 8
