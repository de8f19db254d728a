"""Checks of arguments, shared by all packages: each returns the value in plain form, or refuses it in one sentence.

The sentence is "NAME must be …; got VALUE" wherever there is a name and a value to show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeGuard

from torch import Tensor

SEEDS = 2**64
"""Seeds are the whole numbers below this: the generator's key has 64 bits for them."""


PIECE = 2**22
"""How many values are checked at a time."""


class InvalidArgumentError(ValueError, TypeError):
    """An argument that is of the wrong type or outside its range.

    It is both a ValueError and a TypeError: "a positive number" is refused for either reason by the same check.
    """


def invalid(name: str, wanted: str, given: object) -> InvalidArgumentError:
    """The error for an argument, to be raised by the caller."""
    return InvalidArgumentError(f"{name} must be {wanted}; got {given!r}")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number of Python or NumPy; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number of Python or NumPy; True and False are not."""
    # Steps ask this of every gamma, and most are floats, which need not ask the abstract class.
    return isinstance(value, (float, Real)) and not isinstance(value, bool)


def check_whole(value: object, name: str, least: int | None = None, most: int | None = None) -> int:
    """The value as an int, if it is a whole number within the bounds."""
    if is_whole(value) and (least is None or int(value) >= least) and (most is None or int(value) <= most):
        return int(value)
    if least is None and most is None:
        bounds = ""
    elif most is None:
        bounds = f" of at least {least}"
    else:
        bounds = f" of at most {most}" if least is None else f" from {least} to {most}"
    raise invalid(name, f"a whole number{bounds}", value)


def check_count(value: object, name: str) -> None:
    """Refuse anything but an int of at least 1, such as the size of a batch.

    NumPy's integers are refused, because callers keep the value as it is and JSON cannot represent them.

    Examples:
        >>> checks.check_count(0, "batch")
        Traceback (most recent call last):
            ...
        proxdasa.checks.InvalidArgumentError: batch must be a whole number of at least 1; got 0
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise invalid(name, "a whole number of at least 1", value)


def check_seed(value: object, name: str = "seed") -> None:
    """Refuse anything but an int that fits into the generator's key."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < SEEDS:
        raise invalid(name, "a whole number from 0 to 2^64 - 1", value)


def check_number(value: object, name: str) -> float:
    """The value as a float, if it is a number other than NaN."""
    if not is_number(value) or math.isnan(value):
        raise invalid(name, "a number", value)
    return float(value)


def check_not_negative(value: object, name: str) -> float:
    """The value as a float, if it is a finite number of at least 0."""
    if not is_number(value) or not 0 <= value < math.inf:
        raise invalid(name, "a finite number of at least 0", value)
    return float(value)


def check_positive_number(value: object, name: str) -> float:
    """The value as a float, if it is one finite number above 0; `check_positive` also takes one per trial."""
    if not is_number(value) or not 0 < value < math.inf:
        raise invalid(name, "a positive, finite number", value)
    return float(value)


def check_probability(value: object, name: str) -> float:
    """The value as a float, if it is a number from 0 to 1."""
    if not is_number(value) or not 0 <= value <= 1:
        raise invalid(name, "a number between 0 and 1", value)
    return float(value)


def check_positive(value: float | Tensor, name: str) -> float | Tensor:
    """The value as it is, if it is a positive number, or a tensor ``[trials, 1, 1]`` of positive numbers.

    Examples:
        >>> checks.check_positive(0.1, "gamma")
        0.1
        >>> try:
        ...     checks.check_positive(-1, "gamma")
        ... except ValueError as error:
        ...     print(error)
        gamma must be a positive number, or per_trial([...]) of positive numbers; got -1
    """
    if isinstance(value, Tensor):
        fits = value.shape[1:] == (1, 1) and len(value) > 0 and value.is_floating_point()
        fits = fits and bool(((value > 0) & value.isfinite()).all())
    else:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    if not fits:
        given: object = value
        if isinstance(value, Tensor):
            given = value.flatten().tolist() if value.shape[1:] == (1, 1) else value.shape
        raise invalid(name, "a positive number, or per_trial([...]) of positive numbers", given)
    return value


def check_step_size(gamma: float | Tensor, x: Tensor) -> float | Tensor:
    """The γ of a proximal step at x; a tensor must broadcast over the coordinates, and is cast to x's type and device.

    The entries of a tensor are not checked: that would cost as much as the step itself, in every iteration.
    """
    if not isinstance(gamma, Tensor):
        return check_positive_number(gamma, "gamma")
    axes = zip(reversed(gamma.shape), (1, *reversed(x.shape[:-1])), strict=False)
    if gamma.ndim > x.ndim or any(size not in (1, available) for size, available in axes):
        raise InvalidArgumentError(
            f"gamma of shape {list(gamma.shape)} does not fit x of shape {list(x.shape)}: "
            "give a number, or a tensor with last axis 1 that broadcasts to x, such as [trials, 1, 1]"
        )
    return gamma.to(x)


def check_entries(values: object, name: str) -> list[object]:
    """The entries of a list or 1-D tensor that has one for each coordinate, and at least one."""
    wanted = "one number, or a list with one for each coordinate"
    if isinstance(values, Tensor) and values.ndim != 1:
        raise InvalidArgumentError(f"{name} must be {wanted}; got a tensor of shape {list(values.shape)}")
    if not isinstance(values, Iterable):
        raise invalid(name, wanted, values)
    entries = values.tolist() if isinstance(values, Tensor) else list(values)
    if not entries:
        raise invalid(name, wanted, entries)
    return entries


def check_length(x: Tensor, expected: int, owner: str) -> None:
    """Refuse an x whose number of coordinates is not what its owner was made for."""
    if x.shape[-1] != expected:
        raise InvalidArgumentError(f"{owner} is over {expected} coordinates, but x has {x.shape[-1]}")


def check_finite(values: Tensor, name: str) -> None:
    """Refuse a tensor with NaN or infinity, and name the first row that has one."""
    rows = max(1, PIECE // max(1, values[:1].numel()))  # a few at a time: values may be a file larger than memory
    for start in range(0, len(values), rows):
        part = values[start : start + rows]
        finite = part.isfinite()
        if not bool(finite.all()):
            place = tuple((~finite).nonzero()[0].tolist())
            raise InvalidArgumentError(f"{name} must be finite; got {float(part[place])} in row {start + place[0]}")


def check_regularizer(value: object, name: str) -> None:
    """Refuse an object without the two methods of a regulariser, and a class in place of an object."""
    methods = (getattr(value, method, None) for method in ("value", "prox"))
    if isinstance(value, type) or not all(callable(method) for method in methods):
        raise invalid(name, "a regulariser such as L1(0.1)", value)
