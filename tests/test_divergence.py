"""A diverging trial stops with agent and iteration named while the others go on, wherever the agents live."""

import dataclasses
import functools
import itertools

import pytest
import torch

import proxdasa
from proxdasa import networks, problems, schedules
from proxdasa.runs.divergence import Replay, broken_trials
from proxdasa.runs.loop import Saving
from proxdasa.runs.setup import Setup
from tests.setups import digest, in_threads

pytestmark = pytest.mark.filterwarnings("ignore::proxdasa.DivergenceWarning")

GOSSIP = proxdasa.Gossip()
GAMMAS = [1e-9, 1.0, 1e-3]
SPENT = {"wire_bytes", "computation", "communication", "waiting", "seconds"}


def setup(gammas=GAMMAS, **changes) -> Setup:
    """Six agents: 4 and 5 overflow first, in the same iteration; trial 0 stays finite, and trial 2 breaks after 1."""
    A = torch.eye(3).expand(6, 3, 3).clone()
    A[4:] *= 1e8
    settings = {"trials": len(gammas), "iterations": 25, "observe_every": 5, "exact": True}
    method = proxdasa.ProxDASA(proxdasa.per_trial(gammas), schedules.constant(0.5))
    problem = problems.Quadratic(A, torch.ones(6, 3))
    return Setup(method, problem, networks.ring(6), **settings | changes)


def in_processes(size, **changes):
    """The results of all processes; the first has the records."""
    return in_threads(size, lambda transport: setup(**changes).run(processes=transport))


def same_rows(mine, theirs):
    """The same trials and iterations, and of the trial that goes on the same measures up to the order of sums."""
    assert [(row["trial"], row["k"]) for row in mine] == [(row["trial"], row["k"]) for row in theirs]
    for row, other in zip(mine, theirs, strict=True):
        if row["trial"] == 0:
            assert all(row[name] == pytest.approx(other[name], rel=1e-3, abs=1e-9) for name in row.keys() - SPENT)


@functools.cache
def in_one_process(mixing):
    return setup(mixing=mixing).run()


def combinations():
    """Every size and every mixing; the other pairs are slow tests."""
    for (i, size), (j, mixing) in itertools.product(*map(enumerate, ((1, 2, 3, 6), (GOSSIP, proxdasa.Chebyshev(3))))):
        yield pytest.param(size, mixing, marks=[] if i % 2 == j else [pytest.mark.slow])


@pytest.mark.parametrize(("size", "mixing"), list(combinations()))
def test_a_diverging_trial_stops_while_the_others_go_on(size, mixing):
    one = in_one_process(mixing)
    assert set(one.diverged) == {1, 2}
    assert one.diverged[1].agent == one.diverged[2].agent == 4, "the first of those that broke together"
    assert one.diverged[1].iteration < one.diverged[2].iteration
    results = in_processes(size, mixing=mixing)
    for several in results:
        assert (several.stopped, several.iterations, several.diverged) == (None, 25, one.diverged)
    assert digest(results[0].x[0]) == digest(one.x[0])
    assert results[0].mean.shape == (3, 3)
    same_rows(one.records, results[0].records)


def test_stacked_agents_and_agents_one_by_one_break_in_the_same_place():
    assert setup(exact=False).run().diverged == in_one_process(GOSSIP).diverged


@pytest.mark.parametrize("method", [proxdasa.ProxDASAGT, proxdasa.DPSGD, proxdasa.SPPDM])
def test_other_methods_break_in_the_same_place_too(method):
    """SPPDM sends to its neighbours without mixing, and breaks by a small proximal step."""
    small = {"gamma": 1e-6, "c": 1e-6, "kappa": 1e-6, "beta": 0.9, "alpha": 0.01}
    given = small if method is proxdasa.SPPDM else {"gamma": 1.0}
    algorithm = method(**given)
    one = dataclasses.replace(setup(trials=1, gammas=[1.0]), algorithm=algorithm)
    alone, results = one.run(), in_threads(3, lambda transport: one.run(processes=transport))
    assert alone.diverged.keys() == {0}
    assert [result.diverged for result in results] == [alone.diverged] * 3


@pytest.mark.parametrize("size", [1, 3])
def test_a_run_ends_when_every_trial_has_diverged(size):
    one = setup(gammas=[1.0, 0.01], iterations=1_000).run()
    assert (one.stopped, one.iterations < 100) == ("diverged", True)
    for several in in_processes(size, gammas=[1.0, 0.01], iterations=1_000):
        assert (several.stopped, several.iterations, several.diverged) == ("diverged", one.iterations, one.diverged)
        assert several.x.shape[0] == 2


def test_what_replaying_costs_is_not_counted():
    one, fine = in_one_process(GOSSIP), setup(gammas=[1e-9] * 3).run()
    several = in_processes(2)[0]
    for name in ("samples", "gradients", "rounds", "vectors"):
        assert one.records[-1][name] == several.records[-1][name] == fine.records[-1][name]
    assert several.records[-1]["wire_bytes"] == pytest.approx(
        in_processes(2, gammas=[1e-9] * 3)[0].records[-1]["wire_bytes"]
    )


@pytest.mark.filterwarnings("default::proxdasa.DivergenceWarning")
def test_one_process_tells_of_it_for_all():
    with pytest.warns(proxdasa.DivergenceWarning) as told:
        in_processes(3)
    assert [str(one.message).split(":")[0] for one in told] == ["trial 1 diverged", "trial 2 diverged"]


def test_a_resumed_run_remembers_it_in_every_process(tmp_path):
    one, saving, loop = in_one_process(GOSSIP), Saving(tmp_path, every=5), setup().loop()
    loop.iterations = 20  # as if it had been stopped there
    assert loop.run(None, saving).diverged == one.diverged
    results = in_threads(2, lambda transport: setup().run(None, saving, transport))
    for several in results:
        assert (several.stopped, several.iterations, several.diverged) == (None, 25, one.diverged)
    same_rows(one.records, results[0].records)


EASY = {
    "problem": problems.Quadratic(torch.eye(3).expand(6, 3, 3), torch.ones(6, 3)),
    "stop": proxdasa.Stationary(1e-3, patience=3, every=4),
    "iterations": 60,
}
"""Of these gammas, 0.5 is stationary after 28 iterations, and 1e3 diverges in iteration 32."""


@pytest.mark.parametrize(
    ("gammas", "changes", "moment"),
    [
        (GAMMAS, {}, 13),
        ([1.0, 1e-3], {}, 14),
        ([1.0, 1e-3], {"iterations": 20, "observe_every": 11}, 20),
        ([0.5, 1e3], EASY | {"observe_every": 17}, 34),
        ([1e3], EASY | {"observe_every": 10}, 33),
    ],
)
def test_a_run_that_goes_on_after_a_trial_diverged_ends_as_one_that_was_not_interrupted(
    gammas, changes, moment, tmp_path
):
    """The trial may be broken in the state that is saved, and not observed yet."""
    made = dataclasses.replace(setup(gammas, exact=False), **changes)
    whole, saving = made.run(), Saving(tmp_path, every=made.iterations)

    def interrupt(k, _iterations, _rows):
        if k == moment:
            raise KeyboardInterrupt

    made.run(interrupt, saving)
    for _ in range(2):  # and once more after it has ended
        resumed = made.run(None, saving)
        for name in ("stopped", "iterations", "diverged", "stationary"):
            assert getattr(resumed, name) == getattr(whole, name), name
        assert [(row["trial"], row["k"]) for row in resumed.records] == [
            (row["trial"], row["k"]) for row in whole.records
        ]


def test_an_interruption_amid_a_replay_is_undone(tmp_path, monkeypatch):
    """The replay counts from the last observation, and its counts must not stay."""
    made, put_back = setup(exact=False), Replay.put_back
    whole = made.run()

    def interrupted(self):
        monkeypatch.setattr(Replay, "put_back", put_back)
        raise KeyboardInterrupt

    monkeypatch.setattr(Replay, "put_back", interrupted)
    assert made.run(None, Saving(tmp_path)).stopped == "interrupted"
    resumed = made.run(None, Saving(tmp_path))
    assert resumed.diverged == whole.diverged
    assert [row["rounds"] for row in resumed.records] == [row["rounds"] for row in whole.records]


def test_large_numbers_are_not_broken_though_their_sum_is():
    problem = problems.Quadratic(torch.eye(4).expand(3, 4, 4), torch.ones(3, 4))
    engine = Setup(proxdasa.DPSGD(gamma=0.1), problem, networks.ring(3), trials=3).engine()
    x = torch.full((3, 3, 4), 3e38)
    assert broken_trials(engine, (x,)) == []
    x[1, 2, 0], x[2, 0, 3] = torch.nan, -torch.inf
    assert broken_trials(engine, (torch.zeros_like(x), x)) == [1, 2]
