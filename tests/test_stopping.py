"""The stopping rule: right when it stops, not deceived by the start, the same wherever agents live."""

import pytest
import torch

import proxdasa
from proxdasa import Stationary, networks, problems, regularizers, schedules
from proxdasa.configs.reading import build
from proxdasa.runs.loop import Saving
from proxdasa.runs.setup import Setup
from proxdasa.runs.stopping import Watch
from tests.setups import in_threads

N, D = 6, 8
GENERATOR = torch.Generator().manual_seed(3)
ROOTS = torch.randn(N, D, D, generator=GENERATOR, dtype=torch.float64) / D**0.5
CURVATURE = ROOTS @ ROOTS.mT + 0.5 * torch.eye(D, dtype=torch.float64)
TARGETS = 3 * torch.randn(N, D, generator=GENERATOR, dtype=torch.float64)
FACTOR = 1.0
"""What the true measure may be of the tolerance when the agents stop."""


SOON = {"alpha": 0.4, "noise": 0.1}
"""With these, agents that look every four iterations stop after some 40."""


def setup(stop, noise=0.5, alpha=0.02, method=proxdasa.ProxDASAGT, regularizer=None, **changes) -> Setup:
    """Agents that differ, with noise; gradients are known."""
    settings = {"iterations": 20_000, "trials": 1, "observe_every": 20_000} | changes
    return Setup(
        method(gamma=0.2, alpha=schedules.constant(alpha)),
        problems.Quadratic(CURVATURE, TARGETS, noise),
        networks.ring(N),
        regularizer=regularizer or regularizers.L1(0.1),
        stop=stop,
        **settings,
    )


@pytest.mark.parametrize("method", [proxdasa.ProxDASA, proxdasa.ProxDASAGT])
@pytest.mark.parametrize("regularizer", [regularizers.L1(0.1), regularizers.Zero(), regularizers.Box(-1.0, 1.0)])
def test_the_true_measure_is_within_the_factor_when_agents_stop(method, regularizer):
    """Prox-DASA on data that differ does not reach small tolerances: its agents' z differ; then it does not stop."""
    tolerance = 0.05 if method is proxdasa.ProxDASAGT else 30.0
    settings = {"alpha": 0.05, "trials": 20, "observe_every": 20, "metrics": (proxdasa.metrics.stationarity,)}
    result = setup(Stationary(tolerance, every=20), method=method, regularizer=regularizer, **settings).run()
    assert result.stopped == "stationary"
    assert sorted(result.stationary) == list(range(20))
    for trial, k in result.stationary.items():
        true = next(row["stationarity"] for row in result.records if (row["trial"], row["k"]) == (trial, k))
        assert true <= FACTOR * tolerance


def test_a_trial_is_done_when_it_first_was_however_long_the_others_take():
    rule, settings = Stationary(0.05, every=5), {"alpha": 0.4, "noise": 0.2}
    together, alone = setup(rule, trials=2, **settings).run(), setup(rule, trials=1, **settings).run()
    assert together.stationary[0] == alone.stationary[0] == alone.iterations
    assert together.stationary[0] < together.iterations == max(together.stationary.values())


def test_it_does_not_stop_where_agents_cannot_know():
    """The z of Prox-DASA differ by agent as their data do, so no small tolerance is certified."""
    result = setup(Stationary(0.05, every=4), method=proxdasa.ProxDASA, alpha=0.2, iterations=300).run()
    assert result.stopped is None
    assert result.stationary == {}


def test_z_that_begins_at_zero_deceives_nobody():
    """Without a regulariser G(x⁰, 0, γ) = 0, which looks stationary; 0.8^k ≤ 0.01 from k = 21 on."""
    result = setup(Stationary(1e6, patience=1, every=1), regularizer=regularizers.Zero(), noise=0.0, alpha=0.2).run()
    assert result.stationary == {0: 21}
    assert result.iterations == 21
    assert result.records[-1]["k"] == 21, "the end is observed"


def test_a_lucky_moment_is_not_enough():
    """Noise keeps ‖G‖² large; nine of 35 looks see less than the tolerance, but never five in a row."""
    noisy = {"noise": 20.0, "iterations": 700, "regularizer": regularizers.Zero()}
    once = setup(Stationary(6.0, patience=1, every=20), **noisy).run()
    patient = setup(Stationary(6.0, patience=5, every=20), **noisy).run()
    assert once.stopped == "stationary"
    assert patient.stopped is None


def test_it_costs_no_gradient():
    result = setup(Stationary(0.05, every=4), **SOON).run()
    last = result.records[-1]
    assert last["gradients"] == last["samples"] == last["rounds"] == result.iterations
    assert last["full_gradients"] == 0


@pytest.fixture(scope="module")
def alone():
    """A run in exact mode and one process."""
    return setup(Stationary(0.05, every=4), **SOON, trials=2, exact=True).run()


@pytest.mark.parametrize("size", [2, 3, 6])
def test_all_engines_stop_before_the_same_iteration(size, alone):
    made = setup(Stationary(0.05, every=4), **SOON, trials=2, exact=True)
    results = in_threads(size, lambda transport: made.run(processes=transport))
    for result in results:
        assert (result.stopped, result.iterations, result.stationary) == (
            "stationary",
            alone.iterations,
            alone.stationary,
        )
    assert torch.equal(results[0].x, alone.x)


def test_a_resumed_run_stops_where_it_would_have(tmp_path):
    rule = Stationary(0.05, patience=5, every=4)
    whole = setup(rule, **SOON, trials=2, exact=True).run()
    first = min(whole.stationary.values())

    def interrupt(k, _iterations, _rows):
        if k == first - 8:  # in the middle of a row of five
            raise KeyboardInterrupt

    part = setup(rule, **SOON, trials=2, exact=True, iterations=20_000)
    loop = part.loop()
    loop.observe_every = 4
    assert loop.run(interrupt, Saving(tmp_path)).stopped == "interrupted"
    result = part.run(None, Saving(tmp_path, 10))
    assert result.stationary == whole.stationary
    assert result.iterations == whole.iterations
    assert torch.equal(result.x, whole.x)
    again = part.run(None, Saving(tmp_path))
    assert (again.stopped, again.iterations) == ("stationary", whole.iterations), "it has stopped for good"


def test_an_interruption_before_agents_look_costs_no_look(tmp_path, monkeypatch):
    """Ctrl-C may come when the iteration is made, and the rule not applied yet."""
    made, original = setup(Stationary(0.05, patience=3, every=4), **SOON), Watch.note
    whole = made.run()

    def interrupted(self, engine, k, state):
        if k == whole.iterations - 4 and not any(tmp_path.iterdir()):
            raise KeyboardInterrupt
        return original(self, engine, k, state)

    monkeypatch.setattr(Watch, "note", interrupted)
    assert made.run(None, Saving(tmp_path)).stopped == "interrupted"
    resumed = made.run(None, Saving(tmp_path))
    assert (resumed.stationary, resumed.iterations) == (whole.stationary, whole.iterations)


def test_it_is_part_of_the_results(tmp_path):
    result = setup(Stationary(0.05, every=4), **SOON).run()
    result.save(tmp_path)
    loaded = proxdasa.load(tmp_path)
    assert loaded.stationary == result.stationary
    assert loaded.config["stop"] == {"name": "Stationary", "tolerance": 0.05, "patience": 5, "every": 4}


def test_a_trial_that_diverges_is_not_waited_for():
    gamma = proxdasa.per_trial([0.2, 1e30])
    made = Setup(
        proxdasa.ProxDASAGT(gamma=gamma, alpha=schedules.constant(0.4)),
        problems.Quadratic(CURVATURE, TARGETS, 0.1),
        networks.ring(N),
        iterations=20_000,
        trials=2,
        observe_every=20,
        stop=Stationary(0.05, every=4),
    )
    with pytest.warns(proxdasa.DivergenceWarning):
        result = made.run()
    assert result.stopped == "stationary"
    assert list(result.stationary) == [0]


def test_from_a_file():
    table = {
        "algorithm": {"name": "ProxDASAGT", "gamma": 0.01},
        "problem": {"name": "PhaseRetrieval", "agents": 4, "dim": 10, "evaluation": 20},
        "network": "ring",
        "stop": {"name": "Stationary", "tolerance": 0.1, "patience": 3},
    }
    assert build(table).stop == Stationary(0.1, patience=3)
    assert build(table).config()["stop"]["every"] == 100


@pytest.mark.parametrize(("name", "value"), [("tolerance", 0.0), ("patience", 0), ("every", 0)])
def test_bad_numbers(name, value):
    with pytest.raises(ValueError, match=name):
        Stationary(**{"tolerance": 1.0, name: value})


def test_methods_without_z_are_refused():
    with pytest.raises(ValueError, match=r"looks at z, an average of gradients, and D-PSGD declares none"):
        Setup(proxdasa.DPSGD(gamma=0.1), problems.Quadratic(CURVATURE, TARGETS), networks.ring(N), stop=Stationary(1.0))
    with pytest.raises(TypeError, match="stop must be a rule"):
        setup(0.1)
