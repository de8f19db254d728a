"""Measures against plain NumPy formulas and known values."""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import proxdasa
from proxdasa import metrics, networks
from proxdasa.contracts import Averaging, Facts
from proxdasa.data import from_tensors
from proxdasa.engines import Simulator, Task
from proxdasa.problems import Quadratic, Supervised
from proxdasa.regularizers import L1, L2Ball, Zero
from proxdasa.schedules import Alpha, Number
from tests.transcription import prox_l1

N, D, TRIALS, GAMMA, WEIGHT = 5, 4, 3, 0.2, 0.3


class WithZ(NamedTuple):
    x: Tensor
    z: Tensor


@pytest.fixture
def scene():
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(N, D, D))
    A, b = roots @ roots.transpose(0, 2, 1), rng.normal(size=(N, D))
    problem = Quadratic(torch.tensor(A), torch.tensor(b))
    engine = Simulator(Task(problem, networks.ring(N), L1(WEIGHT), proxdasa.Gossip(), trials=TRIALS, seed=0))
    x, z = rng.normal(size=(2, TRIALS, N, D))
    x[0, :, 1] = 0.0  # a coordinate that is zero everywhere, for the density
    state = WithZ(torch.tensor(x), torch.tensor(z))
    return A, b, x, z, metrics.View(engine, GAMMA, state, state.z)


def F(A, b, x):
    return np.mean([0.5 * x @ A[i] @ x - b[i] @ x for i in range(N)])


def dF(A, b, x):
    return np.mean([A[i] @ x - b[i] for i in range(N)], axis=0)


def G(x, z, gamma):
    return (x - prox_l1(WEIGHT)(x - gamma * z, gamma)) / gamma


def sq(v):
    return float(np.sum(np.square(v)))


def expected(name, A, b, x, z):
    """One trial, agent by agent."""
    mean_x, mean_z = x.mean(0), z.mean(0)
    grad = dF(A, b, mean_x)
    psi = WEIGHT * np.abs(mean_x).sum()
    y = prox_l1(WEIGHT)(mean_x - GAMMA * mean_z, GAMMA)
    eta = mean_z @ (y - mean_x) + sq(y - mean_x) / (2 * GAMMA) + WEIGHT * np.abs(y).sum()
    return {
        "loss": F(A, b, mean_x),
        "objective": F(A, b, mean_x) + psi,
        "stationarity": sq(G(mean_x, grad, GAMMA)),
        "consensus": np.mean([sq(row - mean_x) for row in x]),
        "table_stationarity": sq(G(mean_x, grad, 1.0)) + sum(sq(row - mean_x) for row in x),
        "density": np.mean(np.abs(mean_x) > 1e-6),
        "solution_density": np.mean(y != 0),
        "dual_gap": sq(mean_z - grad),
        "z_consensus": np.mean([sq(row - mean_z) for row in z]),
        "certificate": sq(G(mean_x, mean_z, GAMMA)),
        "edge_consensus": sum(sq(x[i] - x[(i + 1) % N]) for i in range(N)),
        "per_agent": np.mean([sq(G(row, dF(A, b, row), GAMMA)) + 4.0 * sq(row - mean_x) for row in x]),
        "merit": F(A, b, mean_x) + psi - 0.5 + psi - eta + 1 / (8 * GAMMA * 9) * sq(mean_z - grad),
    }[name]


MEASURES = [*metrics.STANDARD, metrics.edge_consensus, metrics.per_agent(2.0), metrics.merit(3.0, optimum=0.5)]


@pytest.fixture(params=[False, True], ids=["whole", "slices"])
def long(request, monkeypatch):
    """Slices of two coordinates, or one of all."""
    if request.param:
        monkeypatch.setattr(metrics, "AT_ONCE", 1)
        monkeypatch.setattr(metrics, "SLICE", 2 * TRIALS)


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize("metric", MEASURES, ids=lambda metric: metric.name)
def test_equals_its_formula(metric, scene):
    A, b, x, z, view = scene
    got = metric.of(view)
    assert got.shape == (TRIALS,)
    for trial in range(TRIALS):
        assert float(got[trial]) == pytest.approx(expected(metric.name, A, b, x[trial], z[trial]), rel=1e-10)


def test_every_measure_is_checked():
    names = {metric.name if isinstance(metric, metrics.Metric) else metric.__name__ for metric in metrics.ALL}
    assert {metric.name for metric in MEASURES} | {"lowest_accuracy"} == names  # which has a test of its own


def test_table_stationarity_of_another_penalty(scene):
    A, b, x, _, view = scene
    mine, other = (metrics.table_stationarity(psi).of(view) for psi in (None, L1(3 * WEIGHT)))
    for trial in range(TRIALS):
        mean = x[trial].mean(0)
        threshold = prox_l1(3 * WEIGHT)(mean - dF(A, b, mean), 1.0)
        spread = sum(sq(row - mean) for row in x[trial])
        assert float(other[trial]) == pytest.approx(sq(mean - threshold) + spread, rel=1e-10)
        assert float(other[trial]) != float(mine[trial])


@pytest.mark.parametrize(
    "metric", [*metrics.STANDARD, metrics.table_stationarity(L2Ball(0.1))], ids=lambda metric: metric.name
)
@pytest.mark.parametrize("psi", [L1([0.1, 0.2, 0.3, 0.4]), L2Ball(0.1)], ids=str)
def test_what_needs_all_coordinates_is_not_measured_in_slices(metric, psi, scene, monkeypatch):
    *_, view = scene
    view.engine._task = view.engine._task._replace(regularizer=psi)
    whole, threads = metric.of(view), torch.get_num_threads()
    monkeypatch.setattr(metrics, "AT_ONCE", 1)
    monkeypatch.setattr(metrics, "SLICE", 2 * TRIALS)
    assert torch.allclose(metric.of(view), whole, rtol=1e-10)
    assert torch.get_num_threads() == threads


def test_lowest_accuracy_is_that_of_the_worst_agent(scene):
    x, y = torch.tensor([[1.0], [-1.0], [2.0], [-3.0]]), torch.tensor([1, 0, 1, 0])
    problem = Supervised(lambda: torch.nn.Linear(1, 2, bias=False), from_tensors(x, y, x, y), agents=2)
    engine = Simulator(Task(problem, networks.ring(2), Zero(), proxdasa.Gossip(), trials=2, seed=0))
    right, wrong = torch.tensor([-1.0, 1.0]), torch.tensor([1.0, -1.0])
    rows = torch.stack([torch.stack([right, right]), torch.stack([right, wrong])])
    view = metrics.View(engine, 1.0, WithZ(rows, rows))
    assert metrics.lowest_accuracy.of(view).tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match="test examples"):
        metrics.lowest_accuracy.of(scene[-1])


def test_gamma_per_trial(scene):
    A, b, x, _, view = scene
    view.gamma = proxdasa.per_trial([0.1, 0.2, 0.4])
    got = metrics.stationarity.of(view)
    for trial, gamma in enumerate([0.1, 0.2, 0.4]):
        mean = x[trial].mean(0)
        assert float(got[trial]) == pytest.approx(sq(G(mean, dF(A, b, mean), gamma)), rel=1e-10)


def test_merit_takes_each_trials_own_gamma(scene):
    *_, view = scene
    gammas, merit, expected = [0.1, 0.2, 0.4], metrics.merit(3.0, optimum=0.5), []
    for trial, view.gamma in enumerate(gammas):
        expected.append(float(merit.of(view)[trial]))
    view.gamma = proxdasa.per_trial(gammas)
    got = merit.of(view)
    assert got.shape == (TRIALS,)
    assert got.tolist() == pytest.approx(expected, rel=1e-10)


def test_density_counts_what_is_above_a_millionth():
    x = torch.tensor([1.0, 2e-6, -2e-6, 0.5e-6, -0.5e-6, 1e-9, 0.0, 0.0]).double().expand(1, 3, 8)
    problem = Quadratic(torch.eye(8).double().expand(3, 8, 8), torch.zeros(3, 8).double())
    engine = Simulator(Task(problem, networks.ring(3), Zero(), proxdasa.Gossip(), trials=1, seed=0))
    assert metrics.density.of(metrics.View(engine, 1.0, WithZ(x, x))).tolist() == [3 / 8]


def test_the_density_of_the_solution_without_averaged_gradients_is_that_of_the_proximal_point_of_the_mean(scene):
    _, _, x, _, view = scene
    alone = metrics.View(view.engine, GAMMA, view.state)
    expected = [np.mean(prox_l1(WEIGHT)(rows.mean(0), GAMMA) != 0) for rows in x]
    assert metrics.solution_density.of(alone).tolist() == pytest.approx(expected)
    assert 0 < min(expected) < 1


def test_looking_costs_nothing(scene):
    *_, view = scene
    for metric in MEASURES:
        metric.of(view)
    assert set(view.engine.counts().values()) == {0}


def consensus_measures(network, x):
    n, d = x.shape
    problem = Quadratic(torch.eye(d).double().expand(n, d, d), torch.zeros(n, d).double())
    engine = Simulator(Task(problem, network, Zero(), proxdasa.Gossip(), trials=1, seed=0))
    view = metrics.View(engine, 1.0, WithZ(x[None], x[None]))
    return float(metrics.edge_consensus.of(view)), float(metrics.consensus.of(view))


@pytest.mark.parametrize("n", [2, 3, 8, 40])
def test_sppdms_consensus_measure_against_ours(n):
    """The paper's last section: g_W = n² f on complete graphs, ≤ 4n f on cycles, n − 1 against Θ(n²) on a path."""
    x = torch.tensor(np.random.default_rng(n).normal(size=(n, 3)))
    g, f = consensus_measures(networks.complete(n), x)
    assert g == pytest.approx(n**2 * f)
    g, f = consensus_measures(networks.ring(n), x)
    assert g <= 4 * n * f * (1 + 1e-12)
    ranks = torch.arange(1.0, n + 1).double().reshape(n, 1)
    g, f = consensus_measures(networks.path(n), ranks)
    assert g == pytest.approx(n - 1)
    assert f == pytest.approx((n**2 - 1) / 12)


def test_edge_consensus_is_not_lost_where_agents_nearly_agree():
    """Rows that differ by 1e-3 around 1e4: sums of squares of the rows themselves would have no digit left."""
    x = 1e4 + 1e-3 * np.random.default_rng(0).normal(size=(6, 3))
    expected = sum(sq(x[i] - x[(i + 1) % 6]) for i in range(6))
    assert consensus_measures(networks.ring(6), torch.tensor(x))[0] == pytest.approx(expected, rel=1e-6)


def test_measures_refuse_constants_that_are_none():
    with pytest.raises(ValueError, match="lipschitz must be a positive, finite number"):
        metrics.merit(0.0)
    with pytest.raises(ValueError, match="optimum must be a number"):
        metrics.merit(1.0, optimum=math.nan)
    with pytest.raises(ValueError, match="lipschitz must be a finite number of at least 0"):
        metrics.per_agent(-1.0)


def test_parameters_are_part_of_the_description():
    assert metrics.loss.describe() == "loss"
    assert metrics.per_agent(2.0).describe() == {"name": "per_agent", "lipschitz": 2.0}
    assert metrics.table_stationarity().describe() == "table_stationarity"
    assert metrics.merit(3.0).describe() == {"name": "merit", "lipschitz": 3.0, "optimum": 0.0}


class PGExtra(NamedTuple):
    """What is called z here is h of PG-EXTRA, which does not follow ∇F."""

    x: Tensor
    z: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class CalledZ:
    """A method with a variable called z that it does not declare as an average of gradients."""

    facts: ClassVar[Facts] = Facts("called z", vectors=1, gradients=1)
    gamma: Number = 0.1
    State: ClassVar = PGExtra

    @property
    def mapping_gamma(self):
        return self.gamma

    def init(self, agents, x):
        return PGExtra(x, torch.ones_like(x))

    def step(self, agents, k, state):
        return PGExtra(agents.mix(state.x - self.gamma * agents.grad(state.x, k)), state.z + 1)


def test_nothing_is_taken_for_an_averaged_gradient_because_of_its_name():
    problem = Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    result = proxdasa.run(CalledZ(), problem, networks.ring(3), iterations=5)
    assert not {"dual_gap", "z_consensus", "certificate"} & result.records[-1].keys()
    with pytest.raises(ValueError, match="an average of gradients, and called z declares none"):
        proxdasa.run(CalledZ(), problem, networks.ring(3), stop=proxdasa.Stationary(1e-3))
    for metric in (metrics.dual_gap, metrics.merit(1.0)):
        with pytest.raises(ValueError, match=f"metrics: {metric.name} needs averaged gradients, and called z declares"):
            proxdasa.run(CalledZ(), problem, networks.ring(3), metrics=[metrics.loss, metric])
    with pytest.raises(ValueError, match="records no 'dual_gap'"):
        proxdasa.tune(CalledZ(), problem, networks.ring(3), grid={"gamma": [0.1]}, measure="dual_gap", iterations=5)


def test_a_declared_average_may_have_any_name():
    """Prox-DASA whose z is called m and whose α is called rate records and stops as Prox-DASA does."""

    class Renamed(NamedTuple):
        x: Tensor
        m: Tensor

    @dataclasses.dataclass(frozen=True, eq=False)
    class Other:
        facts: ClassVar[Facts] = proxdasa.ProxDASA.facts._replace(averaging=Averaging("m", "rate"))
        gamma: float = 0.1
        rate: Alpha = dataclasses.field(default_factory=lambda: proxdasa.schedules.constant(0.3))
        State: ClassVar = Renamed

        @property
        def mapping_gamma(self):
            return self.gamma

        def init(self, agents, x):
            return Renamed(x, torch.zeros_like(x))

        def step(self, agents, k, state):
            return Renamed(*proxdasa.ProxDASA(self.gamma, self.rate).step(agents, k, state))

    problem = Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2), noise=0.1)
    settings = {"iterations": 300, "stop": proxdasa.Stationary(1.0, every=10), "random_iterate": True}
    mine = proxdasa.run(Other(), problem, networks.ring(3), **settings)
    theirs = proxdasa.run(
        proxdasa.ProxDASA(0.1, proxdasa.schedules.constant(0.3)), problem, networks.ring(3), **settings
    )
    assert mine.iterations == theirs.iterations < 300
    assert torch.equal(mine.random_iterate.nan_to_num(7.0), theirs.random_iterate.nan_to_num(7.0))
    assert [row["dual_gap"] for row in mine.records] == [row["dual_gap"] for row in theirs.records]


@pytest.mark.parametrize(
    ("of", "said"),
    [(lambda view: view.x.sum((1, 2)) + 1j, "own must be a real"), (lambda _: [1.0], r"own must be \[1\].*got list")],
)
def test_a_measure_that_records_cannot_hold_is_refused(of, said):
    """At once, and not when the results are saved."""
    problem = Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    with pytest.raises(ValueError, match=said):
        proxdasa.run(proxdasa.DPSGD(0.1), problem, networks.ring(3), metrics=[metrics.Metric("own", of)])


def test_what_a_method_declares_must_be_there():
    class Wrong(proxdasa.ProxDASA):
        facts = proxdasa.ProxDASA.facts._replace(averaging=Averaging("m", "alpha"))

    problem = Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    with pytest.raises(ValueError, match="Prox-DASA declares that it averages by m, but has no such name"):
        proxdasa.run(Wrong(0.1), problem, networks.ring(3))


@pytest.mark.parametrize(
    ("chosen", "name"),
    [
        ([metrics.per_agent(1.0), metrics.per_agent(2.0)], "per_agent"),
        ([metrics.Metric("bytes", lambda view: view.x.sum(dim=(1, 2)))], "bytes"),
        ([metrics.Metric("trial", lambda view: view.x.sum(dim=(1, 2)))], "trial"),
        ([metrics.Metric("accuracy", lambda view: view.x.sum(dim=(1, 2)))], "accuracy"),  # as the problem's own score
    ],
    ids=lambda chosen: str(chosen) if isinstance(chosen, str) else "",
)
def test_numbers_of_one_name_are_refused(chosen, name):
    """The records have room for one of them, and the other would be lost without a word."""
    x, y = torch.arange(12.0).view(6, 2), torch.arange(6) % 2
    problem = Supervised(lambda: torch.nn.Linear(2, 2), from_tensors(x, y, x, y), agents=3)
    with pytest.raises(ValueError, match=f"would be called {name}, and one of them would be lost"):
        proxdasa.run(proxdasa.DPSGD(0.1), problem, networks.ring(3), iterations=2, metrics=chosen)


@pytest.mark.parametrize("write", [lambda view: view.x.sub_(view.x_mean), lambda view: view.x_mean.abs_()])
def test_a_measure_that_writes_into_the_state_is_refused(write):
    def of(view):
        return write(view).sum(dim=(1, 2))

    problem = Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"the measure mine, or what it calls .* writes into the state of the run"):
        proxdasa.run(proxdasa.DPSGD(0.1), problem, networks.ring(3), iterations=2, metrics=[metrics.Metric("mine", of)])
