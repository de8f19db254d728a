"""Every algorithm against its transcription, its invariants and what it declares about itself."""

import dataclasses
import itertools
from functools import cache, partial

import numpy as np
import pytest
import torch

import proxdasa
from proxdasa import algorithms, networks, problems, regularizers, schedules
from proxdasa.contracts import Algorithm
from proxdasa.engines import Simulator, Task
from proxdasa.runs.checkpoints import fingerprint
from proxdasa.runs.setup import Setup
from proxdasa.samples import Samples
from proxdasa.testing import check, check_algorithm
from proxdasa.testing.case import LONG, Case
from tests import transcription

D = 6
NETWORKS = {
    "ring": networks.ring(5),
    "star": networks.star(6),
    "random": networks.erdos_renyi(7, 0.5, seed=1),
}
MIXINGS = {
    "one round": (proxdasa.Gossip(1), transcription.gossip, 1),
    "gossip": (proxdasa.Gossip(3), transcription.gossip, 3),
    "chebyshev": (proxdasa.Chebyshev(4), transcription.chebyshev, 4),
}
REGULARIZERS = {
    "none": (regularizers.Zero(), transcription.prox_zero),
    "l1": (regularizers.L1(0.3), transcription.prox_l1(0.3)),
    "box": (regularizers.Box(-0.4, 0.2), transcription.prox_box(-0.4, 0.2)),
    "group": (regularizers.GroupL2(0.3, 2), transcription.prox_group(0.3, 2)),
}
DEEPSTORM = {"alpha": schedules.cube_root(0.15, 2.0), "beta": 8.0}
TRANSCRIBED = {
    algorithms.ProxDASA: (transcription.prox_dasa, {"gamma": 0.15, "alpha": schedules.diminishing(0.4)}),
    algorithms.ProxDASAGT: (transcription.prox_dasa_gt, {"gamma": 0.15, "alpha": schedules.diminishing(0.4)}),
    algorithms.DPSGD: (transcription.dpsgd, {"gamma": 0.1}),
    algorithms.DProxSGT: (transcription.dprox_sgt, {"gamma": 0.05}),
    algorithms.D2: (transcription.d2, {"gamma": 0.05}),
    algorithms.PGExtra: (transcription.pg_extra, {"gamma": 0.05}),
    algorithms.CDProxSGT: (transcription.cdprox_sgt, {"gamma": 0.05}),
    algorithms.NEXT: (transcription.next_, {"gamma": 0.1, "alpha": schedules.constant(0.4)}),
    algorithms.ProxGTSA: (transcription.prox_gt_sa, {"gamma": 0.05, "batch": 2}),
    algorithms.ProxGTSRO: (
        transcription.prox_gt_sr_o,
        {"gamma": 0.05, "period": 7, "restart_batch": 5, "batch": 2},
    ),
    algorithms.ProxGTSRE: (transcription.prox_gt_sr_e, {"gamma": 0.05, "period": 7, "batch": 2}),
    algorithms.DeepStormV2: (transcription.deepstorm_v2, DEEPSTORM | {"initial_batch": 3}),
    algorithms.DeepStormV1: (transcription.deepstorm_v1, DEEPSTORM | {"initial_batch": 3}),
    algorithms.DeepStormV1SVRG: (transcription.deepstorm_v1_svrg, DEEPSTORM | {"snapshot": 7}),
    algorithms.SPPDM: (
        transcription.sppdm,
        {"gamma": 3.0, "c": 0.5, "kappa": 0.3, "beta": 0.7, "alpha": 0.2, "momentum": schedules.nesterov()},
    ),
}
"""For each method the function of `transcription` and settings, which both take under the same names."""
PAPERS = (algorithms.ProxDASA, algorithms.ProxDASAGT)  # seen in every combination; the others in some
ALGORITHMS = pytest.mark.parametrize("method", algorithms.ALL, ids=lambda method: method.__name__)


def made(method, **changes):
    """The method with its settings of the table, or others where it has them."""
    settings = TRANSCRIBED[method][1]
    return method(**settings | {name: value for name, value in changes.items() if name in settings})


def some_regularizer(method, weight=0.3):
    return regularizers.L1(weight) if method.facts.composite else regularizers.Zero()


class Quadratic(problems.Quadratic):
    """∇G_i(x, ξ) = A_i x − b_i + noise · ξ ∘ (1 + x): the noise depends on x.

    Noise that is added would cancel in ∇G(x', ξ) − ∇G(x, ξ), whatever sample a method takes there.
    """

    def grad(self, x, sample):
        return self.evaluate(x).grad + (sample * (1 + x) if self.noise else 0.0)


def quadratic(n: int, noise: float = 0.5, seed: int = 0) -> Quadratic:
    """Agents that disagree strongly: their curvatures and their minimisers differ."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(n, D, D))
    A = roots @ roots.transpose(0, 2, 1) / D + 0.5 * np.eye(D)
    return Quadratic(torch.tensor(A), torch.tensor(rng.normal(size=(n, D)) * 3), noise=noise)


class PlainGradient:
    """The same named samples, but the gradient in NumPy."""

    def __init__(self, problem: Quadratic, seed: int, trial: int, trials: int) -> None:
        self.A, self.b, self.trial = problem.A.numpy(), problem.b.numpy(), trial
        self.samples, self.drawn = Samples(problem, seed, trials, range(problem.agents)), {}

    def __call__(self, i, x, k, sample=0):
        if (k, sample) not in self.drawn:
            self.drawn[k, sample] = self.samples(k, sample)[self.trial].numpy()
        return self.full(i, x) + self.drawn[k, sample][i] * (1 + x)

    def full(self, i, x):
        return self.A[i] @ x - self.b[i]


class Pooled:
    """The network's gradient at one point, as the only agent of a centralised method sees it."""

    def __init__(self, gradient: PlainGradient) -> None:
        self.gradient, self.agents = gradient, range(len(gradient.b))

    def __call__(self, _i, x, k, sample=0):
        return np.mean([self.gradient(i, x, k, sample) for i in self.agents], axis=0)

    def full(self, _i, x):
        return np.mean([self.gradient.full(i, x) for i in self.agents], axis=0)


def transcribed(method, n, W, mix, m, prox, grad, x0, K, **changes):
    """The transcription with the settings of `made` and its schedules bound to n and K."""
    function, settings = TRANSCRIBED[method]
    settings = settings | {name: value for name, value in changes.items() if name in settings}
    bound = {k: v.bind(n, K, torch.float64) if isinstance(v, schedules.Schedule) else v for k, v in settings.items()}
    return function(W, mix, m, prox, grad, x0, K, **bound)


def combinations():
    """Every pair of graph, mixing and Ψ for the paper's methods; ring, star, m = 1, m > 1 and three Ψ for the others.

    The other triples are slow tests.
    """
    some = [
        ("ring", "one round", "l1"),
        ("star", "gossip", "box"),
        ("random", "chebyshev", "group"),
        ("star", "one round", "none"),
    ]
    smooth = [("ring", "one round", "none"), ("star", "gossip", "none"), ("random", "gossip", "none")]
    # One mixing for each Ψ and graph, so chosen that every mixing meets every graph and every Ψ.
    mixings, graphs = list(MIXINGS), list(enumerate(NETWORKS))
    pairs = {(graph, mixings[(i + j) % 3], psi) for i, psi in enumerate(REGULARIZERS) for j, graph in graphs}
    for method in algorithms.ALL:
        every = itertools.product(NETWORKS, MIXINGS, REGULARIZERS)
        for case in every if method in PAPERS else some if method.facts.composite else smooth:
            marks = [pytest.mark.slow] if method in PAPERS and case not in pairs else []
            yield pytest.param(method, *case, id="-".join((method.__name__, *case)), marks=marks)


def test_every_algorithm_is_transcribed():
    assert set(TRANSCRIBED) == set(algorithms.ALL)


@pytest.mark.parametrize(("method", "graph", "protocol", "psi"), list(combinations()))
def test_equals_the_papers_pseudo_code(method, graph, protocol, psi):
    network, (mixing, mix, m), (regularizer, prox) = NETWORKS[graph], MIXINGS[protocol], REGULARIZERS[psi]
    problem, trials, K, seed = quadratic(network.n), 2, 16, 3
    x0 = torch.tensor(np.random.default_rng(5).normal(size=(network.n, D)))
    result = proxdasa.run(
        made(method), problem, network,
        regularizer=regularizer, mixing=mixing, iterations=K, trials=trials, seed=seed, x0=x0,
        metrics=(), observe_every=K,
    )  # fmt: skip
    assert result.x.abs().max() < 50, "settings that blow up make the comparison worthless"
    for trial in range(trials) if graph == "ring" else [1]:
        gradient = PlainGradient(problem, seed, trial, trials)
        expected = transcribed(method, network.n, network.W.toarray(), mix, m, prox, gradient, x0.numpy(), K)
        for name, rows in expected.items():
            np.testing.assert_allclose(result.state[name][trial].numpy(), rows, rtol=0, atol=1e-10)


@pytest.mark.parametrize("momentum", [None, schedules.constant(0.8)])
def test_sppdm_with_other_momentum(momentum):
    """η = 0 and a constant, beside Nesterov's above."""
    problem, network, K = quadratic(5), networks.ring(5), 40
    result = proxdasa.run(
        made(algorithms.SPPDM, momentum=momentum), problem, network,
        regularizer=regularizers.L1(0.3), iterations=K, metrics=(), observe_every=K,
    )  # fmt: skip
    expected = transcribed(
        algorithms.SPPDM, 5, network.W.toarray(), None, 1, transcription.prox_l1(0.3), PlainGradient(problem, 0, 0, 1),
        np.zeros((5, D)), K, momentum=momentum,
    )  # fmt: skip
    np.testing.assert_allclose(result.x[0].numpy(), expected["x"], rtol=0, atol=1e-10)


def bound(algorithm: Algorithm, n: int = 5) -> Algorithm:
    """The algorithm as it is in a run of 100 iterations."""
    return Setup(algorithm, quadratic(n), networks.star(n), iterations=100).bound()


def agents_of(problem, network, trials=1, mixing=None, regularizer=None) -> Simulator:
    return Simulator(
        Task(problem, network, regularizer or regularizers.L1(0.2), mixing or proxdasa.Gossip(2), trials=trials, seed=0)
    )


TRACKERS = {
    algorithms.ProxDASAGT: ("u", "v"),
    **dict.fromkeys((algorithms.DProxSGT, algorithms.NEXT, algorithms.CDProxSGT), ("y", "g")),
    **dict.fromkeys((algorithms.ProxGTSA, algorithms.ProxGTSRO, algorithms.ProxGTSRE), ("y", "v")),
    **dict.fromkeys((algorithms.DeepStormV2, algorithms.DeepStormV1, algorithms.DeepStormV1SVRG), ("y", "d")),
}
"""Tracker and what it tracks."""
FULL_GRADIENTS = (algorithms.ProxGTSRE, algorithms.DeepStormV1SVRG)
SEVERAL_GRADIENTS = (
    algorithms.ProxGTSA, algorithms.ProxGTSRO, algorithms.ProxGTSRE,
    algorithms.DeepStormV2, algorithms.DeepStormV1, algorithms.DeepStormV1SVRG,
)  # fmt: skip
"""Methods that may ask for more than one in a step, which is therefore taken whole."""


@ALGORITHMS
@pytest.mark.parametrize("long", [100, pytest.param(LONG, marks=pytest.mark.slow)])
def test_keeps_the_laws_of_all_methods(method, long, monkeypatch):
    """Restarts every 7 iterations fall into them; 100 iterations are enough to come close to a solution."""
    monkeypatch.setattr(check, "Case", partial(Case, long=long))
    left_out = {
        "tracking": method not in TRACKERS,
        "pausing": method not in TRACKERS,
        "late": method in TRACKERS,
        "streams": method in FULL_GRADIENTS,
        "sparsity": not method.facts.composite,
        "single": method is algorithms.SPPDM,  # whose steps depend on the number of neighbours
        "averaging": method not in PAPERS,
        "heard": method is algorithms.SPPDM,  # which does not mix
        "slices": method in SEVERAL_GRADIENTS,
    }
    assert method.facts.tracking == TRACKERS.get(method)
    report = check_algorithm(made(method, **{"gamma": 0.3} if method in PAPERS else {}))
    assert set(report.left_out) == {name for name, applies in left_out.items() if applies}


BATCHES = {
    # start; an ordinary step; a restart: (samples, gradients, full gradients). q = 7, b = 2, B = 5, initial batch 3.
    algorithms.ProxGTSA: ((2, 2, 0), (2, 2, 0), None),
    algorithms.ProxGTSRO: ((5, 5, 0), (2, 4, 0), (5, 5, 0)),
    algorithms.ProxGTSRE: ((0, 0, 1), (2, 4, 0), (0, 0, 1)),
    algorithms.DeepStormV2: ((3, 3, 0), (1, 2, 0), None),
    algorithms.DeepStormV1: ((3, 3, 0), (2, 3, 0), None),
    algorithms.DeepStormV1SVRG: ((0, 0, 1), (2, 4, 0), (1, 2, 1)),
}
"""What one agent spends in each kind of step; for all other methods it is one sample and one gradient a step."""
TWICE = (algorithms.ProxGTSA, algorithms.ProxGTSRO, algorithms.ProxGTSRE, algorithms.CDProxSGT)
EXCHANGES = dict.fromkeys(TWICE, 2)
"""Methods whose second vector can be sent only after the first has arrived."""


@ALGORITHMS
@pytest.mark.parametrize("mixing", [proxdasa.Gossip(1), proxdasa.Gossip(3), proxdasa.Chebyshev(2)], ids=repr)
def test_starts_and_restarts_cost_what_they_say(method, mixing):
    """Every step apart, beside the ordinary ones, whose costs the class declares."""
    network, K = networks.ring(5), 17
    result = proxdasa.run(made(method), quadratic(5), network, mixing=mixing, iterations=K, observe_every=1, metrics=())
    rounds = 1 if method is algorithms.SPPDM else mixing.rounds_for(network.rho)  # it does not mix
    names = ("samples", "gradients", "full_gradients", "rounds", "vectors")
    spent = np.array([[row[name] for name in names] for row in result.records])
    start, ordinary, restart = BATCHES.get(method, ((0, 0, 0), (1, 1, 0), None))
    messages = (rounds * EXCHANGES.get(method, 1), rounds * method.facts.vectors)
    assert spent[0].tolist() == [*start, 0, 0]
    for k, step in enumerate(np.diff(spent, axis=0), start=1):
        assert step.tolist() == [*(restart if restart and k % 7 == 0 else ordinary), *messages]


OWN_STEPS = (algorithms.DPSGD, algorithms.PGExtra, algorithms.NEXT, algorithms.SPPDM)


@pytest.mark.parametrize("method", [m for m in algorithms.ALL if m not in OWN_STEPS])
def test_centralised_on_the_complete_graph(method):
    """W = 11ᵀ/n and a common start: every agent carries the centralised method on the network's gradient.

    Not so D-PSGD and PG-EXTRA, whose agents step along their own gradients after mixing, NEXT, whose agents take the
    proximal step before it, nor SPPDM, which does not mix.
    """
    n, K = 4, 32
    problem, regularizer = quadratic(n), some_regularizer(method)
    prox = transcription.prox_l1(0.3) if method.facts.composite else transcription.prox_zero
    result = proxdasa.run(
        made(method), problem, networks.complete(n),
        regularizer=regularizer, iterations=K, seed=2, metrics=(), observe_every=K,
    )  # fmt: skip
    centralised = transcribed(
        method, n, np.eye(1), transcription.gossip, 1, prox, Pooled(PlainGradient(problem, 2, 0, 1)),
        np.zeros((1, D)), K,
    )  # fmt: skip
    for row in result.x[0].numpy():
        np.testing.assert_allclose(row, centralised["x"][0], rtol=0, atol=1e-11)


def test_prox_dasa_is_averaged_stochastic_approximation_on_the_complete_graph():
    """The same against the centralised recursion itself; with W = 11ᵀ/n tracking changes nothing."""
    n, K, gamma, alpha = 4, 40, 0.1, 0.25
    problem = quadratic(n)
    grad, prox = PlainGradient(problem, 2, 0, 1), transcription.prox_l1(0.3)
    x, z = np.zeros(D), np.zeros(D)
    for k in range(K):
        y = prox(x - gamma * z, gamma)
        v = np.mean([grad(i, x, k) for i in range(n)], axis=0)
        x, z = (1 - alpha) * x + alpha * y, (1 - alpha) * z + alpha * v
    for method in PAPERS:
        result = proxdasa.run(
            method(gamma=gamma, alpha=schedules.constant(alpha)), problem, networks.complete(n),
            regularizer=regularizers.L1(0.3), iterations=K, seed=2, metrics=(), observe_every=K,
        )  # fmt: skip
        for row in result.x[0].numpy():
            np.testing.assert_allclose(row, x, rtol=0, atol=1e-11)


@cache
def networks_of_one():
    """With mixings, from networks made once."""
    gossip, builders = proxdasa.Gossip("auto"), (networks.complete, networks.path, networks.star)
    ring, mixings = networks.ring(1), (gossip, proxdasa.Chebyshev("auto"), proxdasa.Chebyshev(5))
    others = networks.grid(1, 1), *(builder(1) for builder in builders)
    return [(ring, mixing) for mixing in mixings] + [(network, gossip) for network in others]


@ALGORITHMS
def test_one_agent_is_the_centralised_method_on_any_builder(method):
    problem = quadratic(1)
    expected = transcribed(
        method, 1, np.eye(1), transcription.gossip, 1, transcription.prox_zero, PlainGradient(problem, 0, 0, 1),
        np.zeros((1, D)), 8,
    )  # fmt: skip
    for network, mixing in networks_of_one():
        result = proxdasa.run(made(method), problem, network, mixing=mixing, iterations=8, metrics=(), observe_every=8)
        np.testing.assert_allclose(result.x[0].numpy(), expected["x"], rtol=0, atol=1e-12)


def test_d_psgd_of_one_agent_is_proximal_sgd():
    problem, prox, x = quadratic(1), transcription.prox_l1(0.3), np.zeros(D)
    gradient = PlainGradient(problem, 0, 0, 1)
    for k in range(50):
        x = prox(x - 0.1 * gradient(0, x, k), 0.1)
    result = proxdasa.run(
        proxdasa.DPSGD(0.1), problem, networks.ring(1), regularizer=regularizers.L1(0.3), iterations=50
    )
    np.testing.assert_allclose(result.x[0, 0].numpy(), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [method for method, (_, name) in TRACKERS.items() if name in "vd"][1:])
def test_estimates_are_exact_without_noise(method):
    """The recursions of variance reduction give the local gradient at x if every sample gradient is exact."""
    algorithm, estimate = bound(made(method)), TRACKERS[method][1]
    problem = quadratic(5, noise=0.0)
    agents = agents_of(problem, networks.ring(5))
    state = algorithm.init(agents, torch.ones(1, 5, D, dtype=torch.float64))
    for k in range(20):
        torch.testing.assert_close(getattr(state, estimate), problem.evaluate(state.x).grad, rtol=0, atol=1e-12)
        state = algorithm.step(agents, k, state)


def test_alpha_one_without_regulariser_is_a_method_on_last_steps_gradient():
    """Ψ = 0 and α = 1: x ← mix(x − γ z) with z the mixed gradient of the step before."""
    problem, network, gamma = quadratic(5), networks.ring(5), 0.05
    algorithm = algorithms.ProxDASA(gamma=gamma, alpha=lambda k: 1.0)
    agents = agents_of(problem, network, mixing=proxdasa.Gossip(1), regularizer=regularizers.Zero())
    W = torch.tensor(network.W.toarray())
    x = previous_gradient = torch.zeros(1, 5, D, dtype=torch.float64)
    state = algorithm.init(agents, x)
    for k in range(20):
        gradient = agents.grad(x, k)
        x, previous_gradient = W @ (x - gamma * previous_gradient), W @ gradient
        state = algorithm.step(agents, k, state)
        torch.testing.assert_close(state.x, x, rtol=0, atol=1e-12)


NUMBERS = [(m, name) for m, (_, settings) in TRANSCRIBED.items() for name, v in settings.items() if type(v) is float]
COUNTS = [(m, name) for m, (_, settings) in TRANSCRIBED.items() for name, v in settings.items() if type(v) is int]
SCHEDULES = [
    (m, name)
    for m, (_, settings) in TRANSCRIBED.items()
    for name, v in settings.items()
    if not isinstance(v, int | float)
]


@pytest.mark.parametrize(("method", "name"), NUMBERS)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "0.1", torch.tensor([0.1])])
def test_refuses_a_bad_number(method, name, value):
    with pytest.raises(ValueError, match=f"{name} must be a positive number"):
        made(method, **{name: value})


@pytest.mark.parametrize(("method", "name"), COUNTS)
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_refuses_a_bad_count(method, name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
        made(method, **{name: value})


@pytest.mark.parametrize(("method", "name"), SCHEDULES)
@pytest.mark.parametrize("value", [0.1, 1, proxdasa.per_trial([0.1, 0.2])], ids=["number", "whole", "per trial"])
def test_a_number_in_place_of_a_schedule_is_a_constant(method, name, value):
    """The same bits and the same configuration, so that checkpoints of one are the other's."""
    number, schedule = made(method, **{name: value}), made(method, **{name: schedules.constant(value)})
    bare, wrapped = (
        Setup(algorithm, quadratic(5), networks.ring(5), iterations=4, trials=2, metrics=(), observe_every=4)
        for algorithm in (number, schedule)
    )
    assert fingerprint(bare.config()) == fingerprint(wrapped.config())
    assert torch.equal(bare.run().x, wrapped.run().x)


@pytest.mark.parametrize(("method", "name"), SCHEDULES)
@pytest.mark.parametrize("value", [0, -0.1, float("nan"), float("inf"), True, torch.tensor(0.1), "0.1", [0.1], float])
def test_refuses_what_is_no_step_size(method, name, value):
    with pytest.raises((ValueError, TypeError), match=f"^{name} must be a positive number"):
        made(method, **{name: value})


def test_d2_refuses_a_regulariser():
    with pytest.raises(ValueError, match=r"D² is for Ψ = 0 only, but the regularizer is L1"):
        proxdasa.run(proxdasa.D2(0.1), quadratic(5), networks.ring(5), regularizer=regularizers.L1(0.1))


def test_d2_refuses_eigenvalues_of_minus_a_third():
    """Those of mixing, not of W alone: W² is fine on an even ring, and Chebyshev may not be where W is."""

    def setup(network, mixing):
        return Setup(proxdasa.D2(0.05), quadratic(network.n), network, mixing=mixing, iterations=10, metrics=())

    with pytest.raises(
        ValueError, match=r"D² needs eigenvalues of mixing above -0\.3333, but those of Gossip\(rounds=1\)"
    ):
        setup(networks.ring(6), proxdasa.Gossip(1))
    with pytest.raises(ValueError, match=r"on the network ring\(8\) reach down to -0\.3333"):
        setup(networks.ring(8), proxdasa.Gossip(1))
    setup(networks.ring(6), proxdasa.Gossip(2)).run()
    setup(networks.ring(7), proxdasa.Gossip(1)).run()
    with pytest.raises(ValueError, match="Chebyshev"):
        setup(networks.ring(9), proxdasa.Chebyshev(2))
    lazy = networks.from_matrix(0.25 * np.eye(12) + 0.75 * networks.ring(12).W.toarray())  # eigenvalues from 0 to 1
    setup(lazy, proxdasa.Gossip(1)).run()
    with pytest.raises(ValueError, match=r"reach down to -0\.58"):  # between the ends
        setup(lazy, proxdasa.Chebyshev(3))


@ALGORITHMS
def test_equations_are_documented(method):
    assert "mix" in method.__doc__
    assert " = " in method.__doc__


@ALGORITHMS
def test_stationarity_is_measured_at_the_methods_own_constant_step_or_at_one(method):
    own = {"gamma"} == {field.name for field in dataclasses.fields(method)} & {"gamma", "kappa"}
    assert made(method).mapping_gamma == (TRANSCRIBED[method][1]["gamma"] if own else 1.0)
