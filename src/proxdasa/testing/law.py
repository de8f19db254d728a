"""A law: what it requires, what usually causes a violation, and the function that checks it.

The function raises `Violation` with what was observed, or `NotApplicable` with the reason why the law does not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from proxdasa.testing.case import Case

NEAR = 0.01
"""How close: the fraction of the initial distance that may be left."""
ROUNDING = 1e-10


class Violation(Exception):  # noqa: N818 - a result of the check
    """What was observed instead of what a law requires."""


class NotApplicable(Exception):  # noqa: N818 - a result of the check
    """Why a law does not apply."""


class Law(NamedTuple):
    """What is required, the usual cause of a violation, and the check."""

    name: str
    requirement: str
    usually: str
    check: Callable[[Case], None]


def law(usually: str) -> Callable[[Callable[[Case], None]], Law]:
    """Decorator that turns a check into a law; the check's docstring says what is required."""
    return lambda check: Law(check.__name__, " ".join((check.__doc__ or "").split()), usually, check)


def close(a: Tensor, b: Tensor, tolerance: float = ROUNDING) -> bool:
    """Whether two tensors are equal up to rounding, relative to the size of the numbers."""
    return float((a - b).abs().max()) <= tolerance * (1 + float(b.abs().max()))


def largest(x: Tensor) -> float:
    """The largest absolute value."""
    return float(x.abs().max())
