"""Step sizes are the paper's."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxdasa import schedules
from proxdasa.schedules import constant, diminishing, horizon, per_trial


def bound(schedule, n=20, K=10_000):
    return schedule.bind(n, K, torch.float64)


def test_the_papers_values():
    assert bound(horizon())(0) == pytest.approx(math.sqrt(20 / 10_000))
    assert bound(horizon())(9_999) == bound(horizon())(0)
    assert bound(constant(0.3))(17) == 0.3
    assert bound(diminishing(0.3), n=8)(0) == pytest.approx(0.3 * math.sqrt(8 / 1))  # k is counted from 1
    assert bound(diminishing(0.3), n=8)(99) == pytest.approx(0.3 * math.sqrt(8 / 100))


@given(scale=st.floats(1e-3, 1e3), n=st.integers(1, 1000), K=st.integers(1, 10**6), k=st.integers(0, 10**6))
def test_never_above_one_and_never_growing(scale, n, K, k):
    for schedule in (horizon(scale), diminishing(scale)):
        rule = bound(schedule, n, K)
        assert 0 < rule(k + 1) <= rule(k) <= 1


def test_the_scripts_step_is_not_capped():
    rule = bound(schedules.uncapped(3.0), n=8)
    assert [rule(0), rule(7)] == [3.0, 3.0]
    assert rule(31) == pytest.approx(3.0 * math.sqrt(8 / 32))


def test_deepstorms_values():
    rule = bound(schedules.cube_root(0.6, 7.0))
    assert rule(0) == pytest.approx(0.6 / 7 ** (1 / 3))
    assert rule(20) == pytest.approx(0.6 / 3)  # (20 + 7)^{1/3}
    assert bound(schedules.cube_root_horizon(3.0), K=1_000)(0) == pytest.approx(0.3)
    assert bound(schedules.cube_root_horizon(3.0), K=1_000)(999) == pytest.approx(0.3)


def test_nesterovs_values():
    rule, theta = bound(schedules.nesterov()), 1.0
    assert rule(50) == bound(schedules.nesterov())(50)  # of k alone, in any order
    for k in range(60):
        following = (1 + math.sqrt(1 + 4 * theta**2)) / 2
        assert rule(k) == pytest.approx((theta - 1) / following, abs=1e-15)
        theta = following
    assert rule(0) == 0
    assert rule(10_000) == pytest.approx(1 - 3 / 10_000, abs=1e-6)


def test_nesterovs_values_if_another_thread_computes_them_too(monkeypatch):
    rule, sqrt, others = schedules.nesterov(), math.sqrt, []
    expected = [rule(k) for k in range(10)]

    def sqrt_after_another_thread(value):
        if not others:
            others.append(None)
            rule(5)
        return sqrt(value)

    monkeypatch.setattr(schedules, "_THETAS", [1.0])
    monkeypatch.setattr(math, "sqrt", sqrt_after_another_thread)
    assert [rule(k) for k in range(10)] == expected


def test_one_value_per_trial():
    rule = bound(diminishing(per_trial([0.3, 3.0])), n=8)
    assert rule(99).flatten().tolist() == pytest.approx([0.3 * math.sqrt(0.08), 3 * math.sqrt(0.08)])
    assert rule(0).flatten().tolist() == pytest.approx([0.3 * math.sqrt(8), 1.0])
    assert rule(0).shape == (2, 1, 1)
    assert rule(0).dtype == torch.float64


@pytest.mark.parametrize("schedule", [s for s in schedules.ALL if s is not schedules.nesterov])
@pytest.mark.parametrize(
    "value", [0, -0.1, float("nan"), True, "0.1", torch.ones(3), per_trial([1.0, float("inf")]), torch.tensor(0.1)]
)
def test_refuses_what_is_not_a_positive_number(schedule, value):
    with pytest.raises(ValueError, match="must be a positive number"):
        schedule(value)


@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, math.inf])
def test_refuses_one_bad_value_among_those_of_the_trials(bad):
    with pytest.raises(ValueError, match="must be a positive number"):
        constant(per_trial([0.1, bad, 0.2]))


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]], 3.0])
def test_per_trial_wants_a_list(values):
    with pytest.raises(ValueError, match="one per trial"):
        per_trial(values)


NEEDS = {
    constant(0.3): (), schedules.cube_root(0.6, 7.0): (), schedules.nesterov(): (),
    horizon(): ("agents", "iterations"), diminishing(0.3): ("agents",), schedules.uncapped(0.3): ("agents",),
    schedules.cube_root_horizon(3.0): ("iterations",),
}  # fmt: skip


@pytest.mark.parametrize("schedule", NEEDS, ids=lambda schedule: schedule.name)
def test_only_what_depends_on_the_run_waits_for_it(schedule):
    """n and K change a schedule exactly if it says that it needs them, and one that needs neither answers at once."""
    usual = bound(schedule, n=20, K=10_000)(30)
    assert (bound(schedule, n=21)(30) != usual) == ("agents" in NEEDS[schedule])
    assert (bound(schedule, K=10_001)(30) != usual) == ("iterations" in NEEDS[schedule])
    if NEEDS[schedule]:
        with pytest.raises(ValueError, match=f"depends on the run's {' and '.join(NEEDS[schedule])}: call .bind"):
            schedule(30)
    else:
        assert schedule(30) == usual


def test_every_schedule_says_what_it_needs():
    assert {schedule.name for schedule in NEEDS} == {schedule.__name__ for schedule in schedules.ALL}
    assert all(schedule.needs == needs for schedule, needs in NEEDS.items())


def test_descriptions_are_configuration():
    assert horizon(2.0).describe() == {"name": "horizon", "scale": 2.0}
    assert diminishing(per_trial([1.0, 2.0])).describe() == {"name": "diminishing", "alpha": [1.0, 2.0]}
