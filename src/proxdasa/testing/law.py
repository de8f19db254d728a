"""What a law is: a demand, what is usually behind a breach of it, and a check.

Its function raises `Seen` with what was seen instead of what it demands, or `LeftOut` with the reason why it does not
apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxdasa.testing.case import Case

LONG = 400
"""Iterations in which a method must come near a solution."""
NEAR = 0.01
"""How near: the share of the distance at the start that may be left."""
ROUNDING = 1e-10


class Seen(Exception):  # noqa: N818 - not a fault of ours
    """What was seen instead of what a law demands."""


class LeftOut(Exception):  # noqa: N818 - nor is this
    """Why a law does not apply."""


class Law(NamedTuple):
    """A demand, what is usually behind its breach, and the check."""

    name: str
    demand: str
    usually: str
    check: Callable[[Case], None]


def law(usually: str) -> Callable[[Callable[[Case], None]], Law]:
    """A check that demands what its docstring says."""
    return lambda check: Law(check.__name__, " ".join((check.__doc__ or "").split()), usually, check)


def close(a: Tensor, b: Tensor, tolerance: float = ROUNDING) -> bool:
    """Equal up to rounding, at the size of the numbers."""
    return float((a - b).abs().max()) <= tolerance * (1 + float(b.abs().max()))


def largest(x: Tensor) -> float:
    """The largest absolute value."""
    return float(x.abs().max())


def changed_names(state: Any, other: Sequence[Tensor]) -> str:
    """The names of the variables that differ."""
    pairs = zip(state._fields, state, other, strict=True)
    return ", ".join(name for name, a, b in pairs if not torch.equal(a, b))
