"""Checks of arguments: what passes comes back plain, and what does not is refused in one form of sentence."""

import math
import pickle
import re

import numpy as np
import pytest
import torch

from proxdasa import checks
from proxdasa.schedules import per_trial

ANYTHING = (None, "1", True, [1], math.nan, 1j)

RULES = {
    "check_count": ((1, 7), (0, -1, 1.0, np.int64(3)), "a whole number of at least 1"),
    "check_whole": ((0, -5, np.int64(3)), (1.0, 0.5), "a whole number"),
    "check_seed": ((0, 2**64 - 1), (-1, 2**64, 1.0), "a whole number from 0 to 2^64 - 1"),
    "check_number": ((0, -math.inf, np.float32(0.5)), (), "a number"),
    "check_not_negative": ((0, 0.5, np.float64(2)), (-1, math.inf), "a finite number of at least 0"),
    "check_positive_number": ((0.5, 3, np.float32(0.5)), (0, -1, math.inf), "a positive, finite number"),
    "check_probability": ((0, 1, 0.5), (-0.1, 1.1), "a number between 0 and 1"),
    "check_positive": (
        (0.5, per_trial([1.0, 2.0])),
        (0, math.inf),
        "a positive number, or per_trial([...]) of positive numbers",
    ),
}
"""What each check lets pass, what it refuses besides ANYTHING, and how it names what it wants."""


@pytest.mark.parametrize("name", RULES)
def test_checks_let_pass_and_refuse(name):
    check, (fine, wrong, wanted) = getattr(checks, name), RULES[name]
    for value in fine:
        assert check(value, "beta") in (None, value) or torch.equal(check(value, "beta"), value)
    for value in (*ANYTHING, *wrong):
        with pytest.raises(ValueError, match=f"^beta must be {re.escape(wanted)}; got {re.escape(repr(value))}$"):
            check(value, "beta")
        with pytest.raises(TypeError, match="beta"):
            check(value, "beta")


@pytest.mark.parametrize("shape", [(1, 4, 1), (1, 1, 2), (3,), (0, 1, 1), (1, 1, 1, 1)])
def test_parameters_differ_by_trial_only(shape):
    """A γ for each agent would run, and be counted for each of them in the measures at the mean."""
    with pytest.raises(checks.InvalidArgumentError, match=r"gamma must be a positive number, or per_trial.*; got"):
        checks.check_positive(torch.ones(shape), "gamma")


def test_numbers_of_numpy_become_pythons():
    assert type(checks.check_whole(np.int64(3), "n")) is int
    assert type(checks.check_not_negative(np.float32(0.5), "w")) is float


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ({"least": 2}, "a whole number of at least 2"),
        ({"most": 0}, "a whole number of at most 0"),
        ({"least": 2, "most": 3}, "a whole number from 2 to 3"),
    ],
)
def test_bounds_of_whole_numbers_are_named(bounds, wanted):
    with pytest.raises(checks.InvalidArgumentError, match=f"degree must be {wanted}; got 1$"):
        checks.check_whole(1, "degree", **bounds)


def test_the_first_row_that_is_not_finite_is_named():
    with pytest.raises(ValueError, match="x must be finite; got -inf in row 1"):
        checks.check_finite(torch.tensor([[1.0, 2.0], [3.0, -math.inf], [math.nan, 0.0]]), "x")


def test_refusals_survive_the_way_between_processes():
    refusal = checks.invalid("n", "a number", "x")
    copy = pickle.loads(pickle.dumps(refusal))
    assert (type(copy), str(copy)) == (type(refusal), str(refusal))
