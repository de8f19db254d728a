"""Every algorithm against its transcription, its invariants and what it declares about itself."""

import dataclasses

import numpy as np
import pytest
import torch

import proxdasa
from proxdasa import algorithms, networks, problems, regularizers, schedules
from proxdasa.contracts import Algorithm
from proxdasa.engines import Simulator
from proxdasa.runner import Setup
from proxdasa.samples import Samples
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
TRANSCRIBED = {
    algorithms.ProxDASA: transcription.prox_dasa,
    algorithms.ProxDASAGT: transcription.prox_dasa_gt,
}
ALGORITHMS = pytest.mark.parametrize("method", algorithms.ALL, ids=lambda method: method.__name__)


def quadratic(n: int, noise: float = 0.5, seed: int = 0) -> problems.Quadratic:
    """Agents that disagree strongly: their curvatures and their minimisers differ."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(n, D, D))
    A = roots @ roots.transpose(0, 2, 1) / D + 0.5 * np.eye(D)
    return problems.Quadratic(torch.tensor(A), torch.tensor(rng.normal(size=(n, D)) * 3), noise=noise)


def plain_gradient(problem: problems.Quadratic, seed: int, trial: int, trials: int):
    """The same named samples, but the gradient in NumPy."""
    A, b = problem.A.numpy(), problem.b.numpy()
    samples = Samples(problem, seed, trials, range(problem.agents))
    return lambda i, x, k: A[i] @ x - b[i] + (samples(k)[trial, i].numpy() if problem.noise else 0.0)


def test_every_algorithm_is_transcribed():
    assert set(TRANSCRIBED) == set(algorithms.ALL)


@ALGORITHMS
@pytest.mark.parametrize("graph", NETWORKS)
@pytest.mark.parametrize("protocol", MIXINGS)
@pytest.mark.parametrize("psi", REGULARIZERS)
def test_equals_the_papers_pseudo_code(method, graph, protocol, psi):
    network, (mixing, mix, m), (regularizer, prox) = NETWORKS[graph], MIXINGS[protocol], REGULARIZERS[psi]
    problem, trials, K, seed = quadratic(network.n), 2, 200, 3
    x0 = torch.tensor(np.random.default_rng(5).normal(size=(network.n, D)))
    alpha = schedules.diminishing(0.4)
    result = proxdasa.run(
        method(gamma=0.15, alpha=alpha), problem, network,
        regularizer=regularizer, mixing=mixing, iterations=K, trials=trials, seed=seed, x0=x0,
    )  # fmt: skip
    for trial in range(trials):
        expected = TRANSCRIBED[method](
            network.W.toarray(), mix, m, prox, plain_gradient(problem, seed, trial, trials), 0.15,
            lambda k: min(0.4 * (network.n / (k + 1)) ** 0.5, 1.0), x0.numpy(), K,
        )  # fmt: skip
        for name, rows in expected.items():
            np.testing.assert_allclose(result.state[name][trial].numpy(), rows, rtol=0, atol=1e-10)


@ALGORITHMS
def test_trials_are_stacked_not_coupled(method):
    """One run of three trials equals three runs, with parameters per trial."""
    problem, network = quadratic(5), networks.ring(5)
    gammas, alphas = [0.05, 0.1, 0.2], [0.3, 0.2, 0.1]

    def run(gamma, alpha, trials):
        return proxdasa.run(
            method(gamma=gamma, alpha=schedules.constant(alpha)), problem, network,
            regularizer=regularizers.L1(0.1), iterations=60, trials=trials, seed=1,
        ).x  # fmt: skip

    together = run(proxdasa.per_trial(gammas), proxdasa.per_trial(alphas), 3)
    for trial in range(3):
        alone = run(gammas[trial], alphas[trial], trial + 1)[trial]
        torch.testing.assert_close(together[trial], alone, rtol=1e-12, atol=1e-12)


def agents_of(problem, network, trials=1, mixing=None, regularizer=None) -> Simulator:
    return Simulator(
        problem, network, regularizer or regularizers.L1(0.2), mixing or proxdasa.Gossip(2), trials=trials, seed=0
    )


def random_state(algorithm: Algorithm, agents, shape, seed=0):
    """A state whose every variable is non-zero."""
    state = algorithm.init(agents, torch.zeros(shape, dtype=torch.float64))
    rng = np.random.default_rng(seed)
    return type(state)(*(torch.tensor(rng.normal(size=shape)) for _ in state))


@ALGORITHMS
def test_no_state_variable_is_dead(method):
    """A nudge of any state variable changes a later x: nothing is carried and sent for nothing."""
    problem, network = quadratic(5), networks.ring(5)
    algorithm = method(gamma=0.1, alpha=lambda k: 0.3)
    agents = agents_of(problem, network, regularizer=regularizers.Zero())
    state = random_state(algorithm, agents, (1, 5, D))

    def x_after_two_steps(state):
        return algorithm.step(agents, 1, algorithm.step(agents, 0, state)).x

    base = x_after_two_steps(state)
    for name in state._fields:
        nudged = state._replace(**{name: getattr(state, name) + 0.1})
        assert (x_after_two_steps(nudged) - base).abs().max() > 1e-4, f"{name} never reaches x"


@ALGORITHMS
def test_a_step_leaves_its_input_alone(method):
    """Divergence is located by replaying from an earlier state, so steps must not write into it."""
    problem, network = quadratic(5), networks.ring(5)
    algorithm = method(gamma=0.1, alpha=lambda k: 0.3)
    agents = agents_of(problem, network)
    state = random_state(algorithm, agents, (1, 5, D))
    copies = [tensor.clone() for tensor in state]
    algorithm.step(agents, 0, state)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(state, copies, strict=True))


@ALGORITHMS
@pytest.mark.parametrize("mixing", [proxdasa.Gossip(1), proxdasa.Gossip(3), proxdasa.Chebyshev(2)], ids=repr)
def test_declared_costs_are_counted_costs(method, mixing):
    network, K = networks.ring(6), 17
    result = proxdasa.run(method(gamma=0.1), quadratic(6), network, mixing=mixing, iterations=K)
    last, rounds = result.records[-1], mixing.rounds_for(network.rho)
    assert last["k"] == K
    assert last["gradients"] == last["samples"] == method.gradients_per_step * K
    assert last["rounds"] == rounds * K
    assert last["vectors"] == method.vectors_per_step * rounds * K


@ALGORITHMS
def test_centralised_on_the_complete_graph(method):
    """W = 11ᵀ/n and a common start: every agent carries the centralised averaged stochastic approximation."""
    n, K, gamma, alpha = 4, 120, 0.1, 0.25
    problem = quadratic(n)
    result = proxdasa.run(
        method(gamma=gamma, alpha=schedules.constant(alpha)), problem, networks.complete(n),
        regularizer=regularizers.L1(0.3), iterations=K, seed=2,
    )  # fmt: skip
    grad, prox = plain_gradient(problem, 2, 0, 1), transcription.prox_l1(0.3)
    x, z = np.zeros(D), np.zeros(D)
    for k in range(K):
        y = prox(x - gamma * z, gamma)
        v = np.mean([grad(i, x, k) for i in range(n)], axis=0)
        x, z = (1 - alpha) * x + alpha * y, (1 - alpha) * z + alpha * v
    for row in result.x[0].numpy():
        np.testing.assert_allclose(row, x, rtol=0, atol=1e-11)


@ALGORITHMS
def test_one_agent_is_the_centralised_method_on_any_builder(method):
    problem = quadratic(1)
    for network in (networks.ring(1), networks.complete(1), networks.path(1), networks.star(1), networks.grid(1, 1)):
        for mixing in (proxdasa.Gossip("auto"), proxdasa.Chebyshev("auto"), proxdasa.Chebyshev(5)):
            result = proxdasa.run(method(gamma=0.1), problem, network, mixing=mixing, iterations=20)
            expected = transcription.prox_dasa(
                np.eye(1), transcription.gossip, 1, transcription.prox_zero, plain_gradient(problem, 0, 0, 1), 0.1,
                lambda k: (1 / 20) ** 0.5, np.zeros((1, D)), 20,
            )  # fmt: skip
            np.testing.assert_allclose(result.x[0].numpy(), expected["x"], rtol=0, atol=1e-12)


def test_tracker_mean_is_gradient_mean():
    """mean_i u_i = mean_i v_i after every step of Prox-DASA-GT, whatever the graph and the mixing."""
    problem, network = quadratic(6), networks.star(6)
    algorithm = algorithms.ProxDASAGT(gamma=0.1, alpha=lambda k: 0.3)
    for mixing in (proxdasa.Gossip(1), proxdasa.Chebyshev(3)):
        agents = agents_of(problem, network, mixing=mixing)
        state = algorithm.init(agents, torch.ones(1, 6, D, dtype=torch.float64))
        for k in range(30):
            state = algorithm.step(agents, k, state)
            torch.testing.assert_close(state.u.mean(1), state.v.mean(1), rtol=0, atol=1e-12)
            assert state.v.abs().max() > 0.1


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


@ALGORITHMS
def test_float32_follows_float64(method):
    """The same named samples in both types: only rounding differs."""
    results = [
        proxdasa.run(
            method(gamma=0.01), problems.PhaseRetrieval(agents=4, dim=10, evaluation="population"), networks.ring(4),
            regularizer=regularizers.L1(0.01), iterations=200, trials=2, dtype=dtype,
        ).x
        for dtype in (torch.float32, torch.float64)
    ]  # fmt: skip
    assert results[0].dtype == torch.float32
    assert results[1].dtype == torch.float64
    torch.testing.assert_close(results[0].double(), results[1], rtol=0, atol=2e-4)


@ALGORITHMS
@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan"), float("inf"), "0.1", torch.tensor([0.1])])
def test_refuses_a_bad_gamma(method, gamma):
    with pytest.raises(ValueError, match="gamma must be a positive number"):
        method(gamma=gamma)


@ALGORITHMS
def test_a_number_is_not_a_schedule(method):
    with pytest.raises(TypeError, match=r"schedules\.constant\(0\.1\)"):
        method(gamma=0.1, alpha=0.1)


@ALGORITHMS
def test_is_a_frozen_value_with_documented_equations(method):
    algorithm = method(gamma=0.1)
    assert isinstance(algorithm, Algorithm)
    assert "mix" in method.__doc__
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.gamma = 1.0
    assert Setup(algorithm, quadratic(3), networks.ring(3)).config()["algorithm"]["name"] == method.__name__
