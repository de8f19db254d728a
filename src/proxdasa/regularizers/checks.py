"""What the regularisers demand of their arguments, and the words in which they refuse."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real

from torch import Tensor

from proxdasa.schedules import Number


def step_size(gamma: Number, x: Tensor) -> Number:
    """The γ of a proximal step, checked against x and, if a tensor, in x's dtype and place.

    The entries of a tensor are not read: that would cost as much as the step itself, every iteration.
    """
    if isinstance(gamma, Tensor):
        axes = zip(reversed(gamma.shape), (1, *reversed(x.shape[:-1])), strict=False)
        if gamma.ndim > x.ndim or any(size not in (1, available) for size, available in axes):
            raise ValueError(
                f"gamma of shape {list(gamma.shape)} does not fit x of shape {list(x.shape)}: "
                "give a number, or a tensor with last axis 1 that broadcasts to x, such as [trials, 1, 1]"
            )
        return gamma.to(x)
    if not 0 < gamma < math.inf:
        raise ValueError(f"gamma must be a positive, finite number, or a tensor of such; got {gamma!r}")
    return float(gamma)


def length(owner: str, x: Tensor, expected: int) -> None:
    """Refuse an x with another number of coordinates than the regulariser was made for."""
    if x.shape[-1] != expected:
        raise ValueError(f"{owner} is over {expected} coordinates, but x has {x.shape[-1]}")


def number(owner: str, name: str, value: object) -> float:
    """A real number other than NaN."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{owner}: {name} must be a number; got {value!r}")
    if math.isnan(value):
        raise ValueError(f"{owner}: {name} must be a number; got nan")
    return float(value)


def weight(owner: str, name: str, value: object) -> float:
    """A finite number ≥ 0."""
    checked = number(owner, name, value)
    if not 0 <= checked < math.inf:
        raise ValueError(f"{owner}: {name} must be finite and at least 0, so that Ψ is convex; got {value!r}")
    return checked


def positive(owner: str, name: str, value: object) -> float:
    """A finite number > 0."""
    checked = number(owner, name, value)
    if not 0 < checked < math.inf:
        raise ValueError(f"{owner}: {name} must be finite and positive; got {value!r}")
    return checked


def integer(owner: str, name: str, value: object, least: int | None = None) -> int:
    """An integer, not below ``least`` if that is given."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{owner}: {name} must be an integer; got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{owner}: {name} must be at least {least}; got {value!r}")
    return int(value)


def entries(owner: str, name: str, values: object) -> list[object]:
    """The entries of a non-empty list or 1-D tensor, one per coordinate."""
    if isinstance(values, Tensor) and values.ndim != 1:
        raise ValueError(
            f"{owner}: {name} must be one number, or one for each coordinate; got shape {list(values.shape)}"
        )
    if not isinstance(values, Iterable):
        raise TypeError(f"{owner}: {name} must be one number, or a list with one per coordinate; got {values!r}")
    listed = values.tolist() if isinstance(values, Tensor) else list(values)
    if not listed:
        raise ValueError(f"{owner}: {name} is an empty list; give one number, or one for each coordinate")
    return listed


def weights(owner: str, name: str, value: object) -> float | tuple[float, ...]:
    """One finite number ≥ 0, or one for each coordinate."""
    if isinstance(value, Real):
        return weight(owner, name, value)
    return tuple(weight(owner, f"{name}[{j}]", w) for j, w in enumerate(entries(owner, name, value)))


def labels(owner: str, name: str, value: object) -> int | tuple[int, ...]:
    """One positive size, or an integer label for each coordinate."""
    if isinstance(value, Real):
        return integer(owner, name, value, least=1)
    return tuple(integer(owner, f"{name}[{j}]", g) for j, g in enumerate(entries(owner, name, value)))


def regularizer(owner: str, name: str, value: object) -> None:
    """An object with the two methods of a regulariser, not the class of one."""
    methods = (getattr(value, method, None) for method in ("value", "prox"))
    if isinstance(value, type) or not all(callable(method) for method in methods):
        raise TypeError(f"{owner}: {name} must be a regulariser such as L1(0.1); got {value!r}")
