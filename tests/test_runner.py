"""The loop: observation, divergence, interruption, starting points, the random iterate, and its refusals."""

import dataclasses
import inspect
import re
import threading

import numpy as np
import pytest
import torch

import proxdasa
from proxdasa import networks, problems, regularizers, schedules, tuning
from proxdasa.contracts import Evaluation
from proxdasa.engines import Simulator
from proxdasa.runs.binding import draw_random_iterates
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.divergence import Replay
from proxdasa.runs.interleaved_runs import take_turns
from proxdasa.runs.results import Result
from proxdasa.runs.setup import Setup

POPULATION = problems.PhaseRetrieval(agents=4, dim=10, evaluation="population")
HALF = problems.Quadratic(torch.eye(10).half().expand(4, 10, 10), torch.ones(4, 10).half())
METHOD = proxdasa.ProxDASA(gamma=0.01)
RING = networks.ring(4)


def run(algorithm=METHOD, problem=POPULATION, network=RING, **settings):
    settings = {"iterations": 40, "trials": 2, "observe_every": 10} | settings
    return proxdasa.run(algorithm, problem, network, **settings)


def without_time(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_the_call_of_the_readme():
    result = proxdasa.run(
        proxdasa.ProxDASA(gamma=0.01, alpha=schedules.horizon()),
        problems.PhaseRetrieval(agents=20, dim=100, evaluation=100),
        networks.ring(20),
        regularizer=regularizers.L1(0.01),
        mixing=proxdasa.Gossip(rounds="auto"),
        iterations=30, trials=3, seed=0, observe_every=10, x0=None, dtype=None,
    )  # fmt: skip
    assert result.x.shape == (3, 20, 100)
    assert result.mean.shape == (3, 100)
    assert result.x.dtype == torch.get_default_dtype()
    assert [(row["trial"], row["k"]) for row in result.records] == [(t, k) for k in (0, 10, 20, 30) for t in range(3)]
    expected = {
        "trial", "k", "loss", "objective", "stationarity", "consensus", "table_stationarity", "density",
        "solution_density", "dual_gap", "z_consensus", "certificate", "samples", "gradients", "full_gradients",
        "rounds", "vectors", "bytes", "seconds",
    }  # fmt: skip
    assert set(result.records[0]) == expected
    last = result.records[-1]
    assert (last["samples"], last["rounds"], last["vectors"]) == (30, 30 * 31, 30 * 31 * 2)
    assert result.config["facts"]["rounds"] == 31


@pytest.mark.parametrize(
    ("iterations", "every", "expected"),
    [(10, 5, [0, 5, 10]), (10, 4, [0, 4, 8, 10]), (3, 100, [0, 3]), (5, None, [0, 1, 2, 3, 4, 5])],
)
def test_observes_at_the_start_every_so_often_and_at_the_end(iterations, every, expected):
    result = run(iterations=iterations, observe_every=every, trials=1)
    assert [row["k"] for row in result.records] == expected
    assert result.iterations == iterations


def test_the_last_records_are_those_of_the_last_observation():
    result = run(iterations=10, observe_every=5, trials=2)
    assert [(row["trial"], row["k"]) for row in result.last] == [(0, 10), (1, 10)]


def test_observing_does_not_change_the_run():
    often, seldom = run(observe_every=1), run(observe_every=40)
    assert torch.equal(often.x, seldom.x)
    assert without_time(often.records)[-2:] == without_time(seldom.records)[-2:]


def test_the_same_seed_gives_the_same_run_and_another_another():
    first, again, other = run(seed=1), run(seed=1), run(seed=2)
    assert torch.equal(first.x, again.x)
    assert without_time(first.records) == without_time(again.records)
    assert not torch.equal(first.x, other.x)


def test_records_describe_the_final_state():
    result = run(regularizer=regularizers.L1(0.01))
    for row in result.records[-2:]:
        mean = result.mean[row["trial"]]
        evaluation = POPULATION.evaluate(mean.reshape(1, 1, -1))
        assert row["loss"] == pytest.approx(float(evaluation.loss), rel=1e-6)
        spread = (result.x[row["trial"]] - mean).square().sum(-1).mean()
        assert row["consensus"] == pytest.approx(float(spread), rel=1e-3, abs=1e-12)


@pytest.mark.parametrize("shape", [(10,), (1, 10), (4, 10), (2, 1, 10), (2, 4, 10)])
def test_x0_broadcasts(shape):
    x0 = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    setup = Setup(METHOD, POPULATION, RING, trials=2, iterations=1, x0=x0)
    assert torch.equal(setup.start(), x0.expand(2, 4, 10))
    assert run(x0=x0.tolist(), iterations=1).x.shape == (2, 4, 10)


def test_x0_of_a_list_is_not_rounded_to_single_precision():
    setup = Setup(METHOD, POPULATION.to(torch.float64), RING, x0=[0.1] * 9 + [1e300])
    assert setup.start()[0, 0].tolist() == [0.1] * 9 + [1e300]
    assert tuning.Search(setup, [{"gamma": 0.1}]).setup.start()[0, 0].tolist() == [0.1] * 9 + [1e300]


@pytest.mark.parametrize("x0", ["zero", [[1.0], [1.0, 2.0]], [None] * 10, object(), torch.full((10,), 1j)])
def test_x0_that_is_no_list_of_numbers_is_refused(x0):
    with pytest.raises(ValueError, match="x0 must be "):
        run(x0=x0)


def test_x0_is_not_written_to():
    x0 = torch.full((2, 4, 10), 0.3)
    run(x0=x0)
    assert torch.equal(x0, torch.full((2, 4, 10), 0.3))


def test_method_without_z_and_metrics_on_request():
    result = run(metrics=[proxdasa.metrics.loss, proxdasa.metrics.edge_consensus], iterations=2, trials=1)
    assert list(result.records[0])[:4] == ["trial", "k", "loss", "edge_consensus"]
    assert "stationarity" not in result.records[0]


def test_any_callable_is_a_schedule():
    assert torch.equal(
        run(proxdasa.ProxDASA(0.01, alpha=lambda k: 0.2)).x, run(proxdasa.ProxDASA(0.01, schedules.constant(0.2))).x
    )


# ------------------------------------------------------------------------------------------------ divergence


def poisoned(agent: int, trial_gammas, n: int = 4) -> tuple[problems.Quadratic, proxdasa.ProxDASA]:
    """One agent with an enormous curvature, which overflows first where γ is large."""
    A = torch.eye(3).expand(n, 3, 3).clone()
    A[agent] *= 1e4
    b = torch.ones(n, 3)
    return problems.Quadratic(A, b), proxdasa.ProxDASA(
        gamma=proxdasa.per_trial(trial_gammas), alpha=schedules.constant(0.5)
    )


def first_broken(algorithm, problem, trial: int) -> tuple[int, int]:
    """Step by step with an unmixed look at the gradients: the first agent and iteration that is not finite."""
    setup = Setup(algorithm, problem, RING, trials=3, iterations=300)
    bound, agents = setup.bound(), setup.engine()
    state = bound.init(agents, torch.zeros(3, 4, 3))
    for k in range(300):
        y = state.x - bound.gamma * state.z
        broken = ~torch.isfinite(agents.grad(state.x, k)[trial]).all(-1) | ~torch.isfinite(y[trial]).all(-1)
        tilde = 0.5 * state.z + 0.5 * agents.grad(state.x, k)
        broken |= ~torch.isfinite(tilde[trial]).all(-1)
        if broken.any():
            return int(broken.nonzero()[0]), k
        state = bound.step(agents, k, state)
    raise AssertionError("never diverged")


@pytest.mark.parametrize("observe_every", [1, 7, 40])
def test_divergence_names_trial_agent_and_iteration_and_others_go_on(observe_every):
    problem, algorithm = poisoned(agent=2, trial_gammas=[1e-5, 1.0, 1e-5])
    with pytest.warns(proxdasa.DivergenceWarning, match=r"trial 1 diverged: agent 2 .* in iteration \d+; .*gamma"):
        result = run(algorithm, problem, trials=3, iterations=60, observe_every=observe_every)
    assert set(result.diverged) == {1}
    assert tuple(result.diverged[1]) == first_broken(algorithm, problem, 1)
    assert result.stopped is None
    assert result.iterations == 60
    kept = [row["k"] for row in result.records if row["trial"] == 1]
    assert kept[-1] <= result.diverged[1].iteration
    assert kept[-1] + observe_every > result.diverged[1].iteration
    assert [row["k"] for row in result.records if row["trial"] == 0][-1] == 60
    assert all(np.isfinite(value) for row in result.records for value in row.values() if row["trial"] != 1)
    alone = run(proxdasa.ProxDASA(1e-5, schedules.constant(0.5)), problem, trials=3, iterations=60, observe_every=60)
    torch.testing.assert_close(result.x[0], alone.x[0], rtol=1e-6, atol=1e-7)
    assert not torch.isfinite(result.x[1]).all()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda state: None, "step of Odd must return its State; got NoneType"),
        (tuple, "step of Odd must return its State; got tuple"),
        (lambda state: state._replace(z=state.z[..., :1]), r"z must be \[1, 2, 3\] of .*, as x is; got \[1, 2, 1\]"),
        (lambda state: state._replace(x=state.x.numpy()), "x must be .*; got ndarray"),
        (lambda state: state._replace(x=state.x.double()), "got .* of torch.float64"),
    ],
)  # fmt: skip
def test_what_is_no_state_is_refused(returned, words):
    class Odd(proxdasa.ProxDASA):
        def step(self, agents, k, state):
            return returned(super().step(agents, k, state))

    problem = problems.Quadratic(torch.eye(3).expand(2, 3, 3), torch.ones(2, 3))
    with pytest.raises(TypeError, match=words):
        proxdasa.run(Odd(gamma=0.1), problem, networks.complete(2), iterations=3)


def test_what_is_no_connection_is_refused():
    problem = problems.Quadratic(torch.eye(3).expand(2, 3, 3), torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"processes must be what engines.connect\(\) returns"):
        proxdasa.run(proxdasa.ProxDASA(gamma=0.1), problem, networks.complete(2), processes=2)


@pytest.mark.parametrize("value", [1e300, proxdasa.per_trial([0.1, 1e300])], ids=["one", "per trial"])
def test_parameters_that_the_runs_type_cannot_hold_are_refused(value):
    """In float32 they would be infinite."""
    problem = problems.Quadratic(torch.eye(3).expand(2, 3, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"gamma = 1e\+300 is too large for float32"):
        proxdasa.run(proxdasa.ProxDASA(gamma=value), problem, networks.complete(2), trials=2)
    with pytest.raises(ValueError, match=r"alpha = 1e\+300 is too large for float32"):
        proxdasa.run(proxdasa.ProxDASA(0.1, schedules.constant(value)), problem, networks.complete(2), trials=2)


def test_trials_that_diverge_between_two_observations_have_iterations_of_their_own():
    problem, algorithm = poisoned(agent=2, trial_gammas=[1e-2, 1e3, 1e-5])
    with pytest.warns(proxdasa.DivergenceWarning):
        result = run(algorithm, problem, trials=3, iterations=100, observe_every=100)
    expected = {trial: first_broken(algorithm, problem, trial) for trial in (0, 1)}
    assert {trial: tuple(where) for trial, where in result.diverged.items()} == expected
    assert expected[1][1] < expected[0][1]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("observe_every", [1, 100])
def test_of_agents_that_diverge_together_the_first_is_named(exact, observe_every):
    """Agents 1 and 3 of a ring of four have the same neighbours, data and start, so they overflow together."""
    A = torch.eye(3).repeat(4, 1, 1)
    A[1], A[3] = 1e4 * torch.eye(3), 1e4 * torch.eye(3)
    problem = problems.Quadratic(A, torch.ones(4, 3))
    method = proxdasa.ProxDASA(gamma=1.0, alpha=schedules.constant(0.5))
    with pytest.warns(proxdasa.DivergenceWarning, match="trial 0 diverged: agent 1 "):
        result = run(method, problem, trials=1, iterations=300, observe_every=observe_every, exact=exact)
    assert result.diverged[0].agent == 1


def test_a_run_ends_when_every_trial_has_diverged():
    problem, algorithm = poisoned(agent=0, trial_gammas=[1.0, 2.0])
    with pytest.warns(proxdasa.DivergenceWarning):
        result = run(algorithm, problem, trials=2, iterations=10_000, observe_every=50)
    assert result.stopped == "diverged"
    assert set(result.diverged) == {0, 1}
    assert result.iterations < 1_000
    assert result.records


def test_divergence_under_a_regulariser_that_decomposes_matrices():
    problem, algorithm = poisoned(agent=1, trial_gammas=[1.0, 1e-5])
    with pytest.warns(proxdasa.DivergenceWarning, match="trial 0 diverged"):
        result = run(algorithm, problem, regularizer=regularizers.NuclearNorm(0.1, (1, 3)), iterations=60)
    assert [row["k"] for row in result.records if row["trial"] == 1][-1] == 60


def test_a_start_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="starting point is not finite"):
        run(x0=torch.full((10,), float("nan")))


# ------------------------------------------------------------------------------------------------ interruption


def test_ctrl_c_keeps_the_records_so_far():
    def interrupt(k, iterations, rows):
        if k >= 20:
            raise KeyboardInterrupt

    result = run(iterations=1_000, observe_every=10, progress=interrupt)
    assert result.stopped == "interrupted"
    assert result.iterations == 20
    assert [row["k"] for row in result.records if row["trial"] == 0] == [0, 10, 20]
    assert torch.equal(result.x, run(iterations=20, algorithm=proxdasa.ProxDASA(
        0.01, schedules.constant((4 / 1_000) ** 0.5))).x)  # fmt: skip


def test_progress_is_told_even_between_observations():
    seen = []
    run(iterations=400, observe_every=400, progress=lambda k, K, rows: seen.append((k, K, len(rows))))
    assert seen[0] == (0, 400, 2)
    assert seen[-1] == (400, 400, 2)
    assert 50 < len(seen) < 500
    assert all(count == 0 for _, _, count in seen[1:-1])


# ------------------------------------------------------------------------------------------------ random iterate


def test_the_random_iterate_falls_where_all_of_the_step_size_is():
    """P(R = k) ∝ α_k of each trial, with k counted from 1: where α_7 is all there is, R = 7."""

    def alpha(k):
        return proxdasa.per_trial([0.5 if k == peak else 1e-12 for peak in (7, 3, 20)])

    setup = Setup(proxdasa.ProxDASA(0.01, alpha), POPULATION, RING, iterations=20, trials=3)
    assert draw_random_iterates(setup.bound(), setup.iterations, setup.trials, setup.seed) == {7: [0], 3: [1], 20: [2]}


def test_random_iterate_is_an_iterate_drawn_by_its_step_size():
    """Each x^R is some x^k, 1 ≤ k ≤ K, and R falls where α is large."""
    trials, K = 400, 20
    alpha = [0.0, *([0.001] * 10), *([0.4] * 10)]  # α_1 .. α_20; α_0 has no iterate
    algorithm = proxdasa.ProxDASA(0.05, alpha=lambda k: alpha[k])
    problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))  # no noise: all trials alike
    unseen = {"observe_every": K, "metrics": ()}
    result = run(algorithm, problem, networks.ring(3), trials=trials, iterations=K, random_iterate=True, **unseen)
    iterates = {}
    for k in range(1, K + 1):
        iterates[k] = run(algorithm, problem, networks.ring(3), trials=1, iterations=k, **unseen).x[0]
    late = 0
    for x in result.random_iterate:
        matches = [k for k, iterate in iterates.items() if torch.equal(iterate, x)]
        assert matches, "x^R is not an iterate"
        late += matches[-1] > 10
    assert late / trials == pytest.approx(4.0 / 4.01, abs=0.02)


def test_random_iterate_is_uniform_for_a_constant_step_size():
    result = run(trials=300, iterations=30, random_iterate=True, observe_every=30, metrics=())
    setup = Setup(METHOD, POPULATION, RING, trials=300, iterations=30, random_iterate=True)
    chosen = draw_random_iterates(setup.bound(), setup.iterations, setup.trials, setup.seed)
    R = np.array([k for k, trials in chosen.items() for _ in trials])
    assert (R.min(), R.max()) == (1, 30)
    assert R.mean() == pytest.approx(15.5, abs=1.5)
    last = chosen.get(30, [])
    assert last
    assert torch.equal(result.random_iterate[last], result.x[last])


@pytest.mark.parametrize(
    "algorithm",
    [
        proxdasa.DPSGD(0.01),  # no α at all
        proxdasa.SPPDM(gamma=300.0, c=0.5, kappa=0.3, beta=0.7, alpha=0.2),  # one α for all k
    ],
    ids=lambda algorithm: algorithm.facts.title,
)
def test_random_iterate_is_uniform_for_methods_without_step_sizes_of_k(algorithm):
    setup = Setup(algorithm, POPULATION, RING, trials=300, iterations=30, random_iterate=True)
    chosen = draw_random_iterates(setup.bound(), setup.iterations, setup.trials, setup.seed)
    R = np.array([k for k, trials in chosen.items() for _ in trials])
    assert (R.min(), R.max()) == (1, 30)
    assert R.mean() == pytest.approx(15.5, abs=1.5)
    assert run(algorithm, iterations=5, random_iterate=True).random_iterate.shape == (2, 4, 10)


def test_random_iterate_only_on_request():
    with pytest.raises(ValueError, match="random_iterate=True"):
        _ = run(iterations=2).random_iterate


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": 0}, "iterations must be a whole number of at least 1"),
        ({"iterations": 10.5}, "iterations must be a whole number"),
        ({"trials": 0}, "trials must be a whole number"),
        ({"observe_every": 0}, "observe_every must be a whole number"),
        ({"problem": HALF}, "problem: its numbers are torch.float16, too coarse .*; choose float32 or float64"),
        ({"network": networks.ring(5)}, r"network: ring\(5\) has 5 agents, but the problem has 4"),
        ({"x0": torch.zeros(3)}, r"x0 of shape \[3\] does not broadcast to \[trials, agents, d\] = \[2, 4, 10\]"),
        ({"algorithm": proxdasa.ProxDASA(proxdasa.per_trial([0.1, 0.2, 0.3]))}, "gamma has 3 per-trial values"),
        (
            {"algorithm": proxdasa.ProxDASA(0.1, schedules.constant(proxdasa.per_trial([0.1])))},
            "alpha has 1 per-trial values, but the run has 2 trials",
        ),
        ({"seed": -1}, "seed must be a whole number from 0"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(ValueError, match=message):
        run(**settings)


def test_full_gradients_of_a_stream_are_refused():
    agents = Setup(METHOD, POPULATION, RING).engine()
    with pytest.raises(ValueError, match="has endless samples"):
        agents.full_grad(torch.zeros(1, 4, 10))


def test_full_gradients_of_data_are_exact():
    problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2), noise=1.0)
    agents = Setup(METHOD, problem, networks.ring(3)).engine()
    x = torch.randn(1, 3, 2)
    assert torch.equal(agents.full_grad(x), x - 1)
    assert agents.counts() == {"samples": 0, "gradients": 0, "full_gradients": 1, "rounds": 0, "vectors": 0, "bytes": 0}


def test_a_second_sample_is_independent_and_counted():
    agents = Setup(METHOD, POPULATION, RING).engine()
    x = torch.ones(1, 4, 10)
    first, again, second = agents.grad(x, 5), agents.grad(x, 5), agents.grad(x, 5, sample=1)
    assert torch.equal(first, again)
    assert not torch.any(first == second)
    assert agents.counts()["samples"] == 2
    assert agents.counts()["gradients"] == 3


def test_threads_are_given_back():
    before = torch.get_num_threads()
    run(iterations=3)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("exact", [True, False])
def test_steps_in_several_threads_leave_the_number_that_later_threads_begin_with(exact):
    """The second steps begin within the first and end after them, so they must not set the 1 that they have found."""
    first, second = (Setup(METHOD, POPULATION, RING, exact=exact).engine() for _ in range(2))
    entered, left, seen = threading.Event(), threading.Event(), []

    def overlap():
        with second.stepping():
            entered.set()
            left.wait()
            seen.append(torch.get_num_threads())

    before, thread = torch.get_num_threads(), threading.Thread(target=overlap)
    torch.set_num_threads(2)
    try:
        with first.stepping():
            thread.start()
            entered.wait()
        left.set()
        thread.join()
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert [*seen, torch.get_num_threads()] == [1, 2, 2]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": proxdasa.ProxDASA}, r"algorithm must be a method .* such as ProxDASA\(gamma=0.01\)"),
        ({"algorithm": object()}, "algorithm must be a method that is a dataclass"),
        ({"problem": "phase retrieval"}, "problem must be a problem, such as Quadratic"),
        ({"network": networks.ring(4).graph}, r"network must be a network, such as networks.ring\(8\)"),
        ({"regularizer": None}, r"regularizer must be a regularizer, such as L1\(0.01\)"),
        ({"mixing": proxdasa.Gossip}, r"mixing must be a mixing, such as Gossip\(1\)"),
        ({"mixing": "gossip"}, "mixing must be a mixing"),
        ({"metrics": ["loss"]}, r"metrics must be a list of proxdasa\.metrics"),
        ({"metrics": None}, r"metrics must be a list of proxdasa\.metrics"),
        ({"dtype": "float64"}, r"dtype must be torch\.float32 or torch\.float64"),
        ({"exact": "no"}, "exact must be True or False; got 'no'"),
        ({"random_iterate": 1}, "random_iterate must be True or False; got 1"),
    ],
)
def test_refuses_the_wrong_kind_of_object(settings, message):
    with pytest.raises(TypeError, match=message):
        run(**settings)


def test_a_callable_may_give_one_value_per_trial():
    values = proxdasa.per_trial([0.1, 0.2])
    own = run(proxdasa.ProxDASA(0.01, alpha=lambda k: values))
    assert torch.equal(own.x, run(proxdasa.ProxDASA(0.01, schedules.constant(values))).x)
    assert torch.equal(run(proxdasa.ProxDASA(0.01, lambda k: np.float64(0.2))).x[1], own.x[1])
    with pytest.raises(ValueError, match=r"alpha\(0\) must be a number or per_trial"):
        run(proxdasa.ProxDASA(0.01, alpha=lambda k: proxdasa.per_trial([0.1] * 3)))


@pytest.mark.parametrize("value", [-0.1, np.nan, np.inf, "0.1", None, [0.2, -0.1], [0.2, np.nan]])
def test_a_callable_that_gives_no_step_size_is_refused(value):
    """A negative one goes uphill, and mixing may keep even that finite; NaN would be taken for divergence."""
    bad = proxdasa.per_trial(value) if isinstance(value, list) else value
    with pytest.raises(ValueError, match=r"alpha\(3\) must be (a finite number of at least 0|at least 0 in|finite)"):
        run(proxdasa.ProxDASA(0.01, alpha=lambda k: bad if k == 3 else 0.2))
    with pytest.raises(ValueError, match=r"alpha\(3\) must be"):
        run(proxdasa.ProxDASA(0.01, schedules.Schedule("mine", {"a": 0.2}, lambda k, n, K, a: bad if k == 3 else a)))


def test_an_interruption_before_R_leaves_no_random_iterate():
    def interrupt(k, iterations, rows):
        if k >= 5:
            raise KeyboardInterrupt

    result = run(iterations=1_000, observe_every=5, progress=interrupt, random_iterate=True)
    assert torch.isnan(result.random_iterate).all()


def test_divergence_that_does_not_replay_keeps_the_records():
    """A step size that is not a function of k: the replay may stay finite."""
    calls = []

    def alpha(k):
        calls.append(k)
        return 0.5 if len(calls) < 30 else 1e-9  # what was large the first time is small in the replay

    problem, _ = poisoned(agent=2, trial_gammas=[1.0])
    with pytest.warns(proxdasa.DivergenceWarning, match="trial 0 diverged"):
        result = run(proxdasa.ProxDASA(1e9, alpha), problem, trials=1, iterations=29, observe_every=29)
    assert result.stopped == "diverged"
    assert [row["k"] for row in result.records] == [0]


def test_interrupted_before_anything_was_computed(monkeypatch):
    monkeypatch.setattr(proxdasa.ProxDASA, "init", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    result = run()
    assert (result.stopped, result.iterations, result.records) == ("interrupted", 0, [])
    with pytest.raises(ValueError, match="stopped before its first iteration"):
        _ = result.mean


def test_interrupted_before_there_is_a_random_iterate(monkeypatch):
    monkeypatch.setattr(proxdasa.ProxDASA, "init", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(random_iterate=True).state == {}


def test_interrupted_before_its_first_pause():
    """An interruption may come before a run has begun; those beside it are interrupted too, and all have results."""
    nothing = Result({}, [], {}, 0, "interrupted")

    def course(early):
        try:
            if not early:
                yield
        except KeyboardInterrupt:
            return nothing
        return nothing

    assert take_turns([course(early=False), course(early=True)]) == [nothing, nothing]


def test_an_observation_that_was_interrupted_is_not_made_twice(tmp_path, monkeypatch):
    """Ctrl-C may come when its rows are there, and it is not noted yet that they are."""
    whole, original = run(), Replay.remember

    def interrupted(self, k, *args):
        if k == 12 and not any(tmp_path.iterdir()):
            raise KeyboardInterrupt
        original(self, k, *args)

    monkeypatch.setattr(Replay, "remember", interrupted)
    assert run(observe_every=4, checkpoints=tmp_path).stopped == "interrupted"
    resumed = run(observe_every=4, checkpoints=tmp_path)
    assert [row["k"] for row in resumed.records] == [k for k in range(0, 41, 4) for _ in range(2)]
    assert torch.equal(resumed.x, whole.x)


@pytest.mark.parametrize("verb", ["grad", "prox", "mix"])
def test_an_interrupted_iteration_is_not_counted_twice(verb, tmp_path, monkeypatch):
    """Ctrl-C may come within any verb; the iteration is made again, so its costs so far are forgotten."""
    whole, times = run(iterations=20), []

    def interrupted(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        times.append(verb)
        if len(times) == 13:
            raise KeyboardInterrupt
        return result

    original = getattr(Simulator, verb)
    monkeypatch.setattr(Simulator, verb, interrupted)
    assert run(iterations=20, checkpoints=tmp_path).stopped == "interrupted"
    resumed = run(iterations=20, checkpoints=tmp_path)
    assert without_time(resumed.records) == without_time(whole.records)


def test_tiny_numbers_are_zero_in_a_run_and_not_after_it():
    """Coordinates that shrink by 1 − α in every step would take tens of times as long once they are below 1e-38."""
    problem = problems.Quadratic(torch.zeros(2, 1, 1), torch.zeros(2, 1))
    result = proxdasa.run(
        proxdasa.ProxDASA(1.0, schedules.constant(0.5)),
        problem,
        networks.ring(2),
        regularizer=regularizers.L1(1.0),
        iterations=140,
        observe_every=140,
        x0=torch.full((1, 2, 1), 0.5),
    )
    assert bool((result.x == 0).all())  # 2^-141 has a float32
    tiny = torch.from_numpy(np.full(1, 1e-40, dtype=np.float32))
    assert float(tiny * 1.0) > 0
    torch.set_flush_denormal(True)
    with flushed_denormals():
        pass
    try:
        assert float(tiny * 1.0) == 0  # as it was before
    finally:
        torch.set_flush_denormal(False)


def test_the_arguments_of_run_are_the_settings_and_its_course():
    names = list(inspect.signature(proxdasa.run).parameters)
    settings = [entry.name for entry in dataclasses.fields(Setup)]
    assert names == [*settings, "progress", "checkpoints", "checkpoint_every", "processes", "jobs"]
    described = re.findall(r"^        (\w+): ", proxdasa.run.__doc__, re.MULTILINE)
    assert described == names


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: proxdasa.run(METHOD, POPULATION, RING, iteration=3),
            r"run\(\) got an unexpected.*'iteration'",
        ),
        (lambda: proxdasa.run(METHOD, POPULATION), r"run\(\) missing a required argument: 'network'"),
        (lambda: proxdasa.run(METHOD, POPULATION, RING, 3), r"run\(\) too many positional arguments"),
    ],
)
def test_a_wrong_call_is_refused_by_its_own_name(call, said):
    with pytest.raises(TypeError, match=said):
        call()


class Centres:
    """F_i(x) = ½‖x − c_i‖², as somebody may write it; ``spoil`` is what an answer goes through."""

    agents, dim, dtype, epoch, words = 4, 10, torch.float32, 1.0, 0
    c = torch.arange(40.0).view(4, 10)

    def __init__(self, verb=None, spoil=None):
        self.verb, self.spoil = verb, spoil

    def start(self, seed, trials):
        return torch.zeros(10)

    def sample(self, words):
        return words

    def grad(self, x, sample):
        if self.verb == "in place":
            return x.sub_(self.c)
        return self.spoil(x - self.c) if self.verb == "grad" else x - self.c

    def evaluate(self, x):
        found = Evaluation(0.5 * (x - self.c).square().sum(-1), x - self.c)
        return found._replace(**{self.verb: self.spoil(getattr(found, self.verb))}) if self.verb == "loss" else found

    def scores(self, x):
        return {"size": self.spoil(x.norm(dim=-1))} if self.verb == "scores" else {}


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (Centres("grad", lambda g: g.mean(0)), r"Centres.grad must have the shape \[2, 4, 10\]; got \[4, 10\]"),
        (Centres("grad", lambda g: g.mean(1, keepdim=True)), r"Centres.grad must .*; got \[2, 1, 10\]"),
        (Centres("grad", lambda g: g.sum(-1, keepdim=True)), r"Centres.grad must .*; got \[2, 4, 1\]"),
        (Centres("loss", lambda v: v.sum(0)), r"loss of Centres.evaluate must .* \[2, 1\] or \[2, 4\]; got \[4\]"),
        (Centres("scores", lambda v: v.mean()), r"'size' of Centres.scores must have the shape \[2\]; got \[\]"),
        (Centres("scores", lambda v: v.tolist()), r"'size' of Centres.scores must have the shape \[2\]; got list"),
        (Centres("in place"), r"Centres.grad writes into x; use operations that are not in place"),
    ],
)
def test_answers_of_a_problem_that_would_broadcast_are_refused(problem, words):
    """A method such as this one keeps no gradient whose shape would give it away."""
    assert run(problem=Centres(), iterations=3).iterations == 3
    with pytest.raises(ValueError, match=words):
        run(problem=problem, iterations=3)


def test_a_penalty_that_adds_up_trials_is_refused():
    class Total:
        def value(self, x):
            return x.abs().sum()

        def prox(self, x, gamma):
            return x

    with pytest.raises(ValueError, match=r"Total.value must have the shape \[2, 1\]; got \[\]"):
        run(regularizer=Total(), iterations=3)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            lambda x: x.sum(-1, keepdim=True),
            r"Own.prox must be \[2, 4, 10\] of torch.float32, as x is; got \[2, 4, 1\]",
        ),
        (lambda x: x.double(), r"Own.prox must be .* as x is; got \[2, 4, 10\] of torch.float64"),
        (lambda x: x.numpy(), "Own.prox must be .* as x is; got ndarray"),
        (lambda x: x.mul_(0.9), "Own.prox writes into x; use operations that are not in place"),
    ],
)
@pytest.mark.parametrize("method", [proxdasa.ProxDASA(0.1), proxdasa.PGExtra(0.1)], ids=lambda m: m.facts.title)
def test_proximal_steps_of_another_form_are_refused(method, answer, words):
    """Prox-DASA would broadcast a number for each row, and PG-EXTRA uses the point before the step once more."""

    class Own:
        def value(self, x):
            return x.abs().sum(-1)

        def prox(self, x, gamma):
            return answer(x)

    made = Setup(method, Centres(), networks.ring(4), regularizer=Own(), trials=2, metrics=())
    algorithm, engine = made.bound(), made.engine()
    with pytest.raises(ValueError, match=words):
        algorithm.step(engine, 0, algorithm.init(engine, made.start()))
