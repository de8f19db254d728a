"""Weights of penalties: one number for all trials, or one per trial, so that a path over λ is one stacked run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from proxdasa.checks import InvalidArgumentError, invalid
from proxdasa.devices import Movable
from proxdasa.schedules import Number


@dataclass(frozen=True)
class PerTrial:
    """One weight for each trial, as `per_trial` gives them; a value, so that equal penalties compare equal."""

    values: tuple[float, ...]

    def describe(self) -> dict[str, list[float]]:
        """The form of a configuration file, where a plain list may mean one weight for each coordinate."""
        return {"per_trial": list(self.values)}

    @cached_property
    def tensor(self) -> Tensor:
        """The weights as ``[trials, 1, 1]``."""
        return torch.tensor(self.values, dtype=torch.float64).reshape(-1, 1, 1)

    @cached_property
    def movable(self) -> Movable:
        """The same weights, in the types and on the devices where they are needed."""
        return Movable(self.tensor)


Weight = float | Tensor | PerTrial
"""The weight of a penalty: a number, or `per_trial` of some, which is kept as `PerTrial`."""


def check_weight(value: Weight, name: str, check: Callable[[object, str], float]) -> float | PerTrial:
    """The weight in plain form, if every number in it passes the check."""
    if isinstance(value, PerTrial):
        return PerTrial(tuple(check(each, f"{name} of trial {trial}") for trial, each in enumerate(value.values)))
    if not isinstance(value, Tensor):
        return check(value, name)
    if value.ndim != 3 or value.shape[1:] != (1, 1) or not len(value):
        given = value.flatten().tolist() if value.numel() <= 8 else f"a tensor of shape {list(value.shape)}"
        raise invalid(name, "one number, or per_trial([...]); in a file { per_trial = [...] }", given)
    return check_weight(PerTrial(tuple(value.flatten().tolist())), name, check)


def weight_like(weight: Weight, x: Tensor, owner: str) -> Number:
    """The weight to multiply with x: a number, or a tensor ``[trials, 1, 1]`` in the type of x ``[trials, ?, d]``."""
    assert not isinstance(weight, Tensor)  # `check_weight` keeps it as PerTrial
    if not isinstance(weight, PerTrial):
        return weight
    if x.ndim != 3 or len(x) != len(weight.values):
        raise InvalidArgumentError(
            f"{owner} has weights for {len(weight.values)} trials, so x must be [{len(weight.values)}, agents, d]; "
            f"got a tensor of shape {list(x.shape)}"
        )
    return weight.movable.like(x)


def scale(weight: Weight, values: Tensor, x: Tensor, owner: str) -> Tensor:
    """The weight times one value for each row of x."""
    number = weight_like(weight, x, owner)
    return values * (number.squeeze(-1) if isinstance(number, Tensor) else number)


def weights_within(thing: Any, name: str) -> Iterator[tuple[str, PerTrial]]:
    """The weights per trial in a regularizer, and in those that it is made of, by their names."""
    if isinstance(thing, PerTrial):
        yield name, thing
    for path, inner in parts_within(thing, name):
        yield from weights_within(inner, path)


def parts_within(thing: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The fields of an object, or the entries of a sequence or mapping, by their names."""
    if isinstance(thing, Mapping):
        yield from ((f"{name}.{key}", value) for key, value in thing.items())
    elif isinstance(thing, tuple | list):
        yield from ((f"{name}[{number}]", value) for number, value in enumerate(thing))
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type | PerTrial):
        yield from ((f"{name}.{entry.name}", getattr(thing, entry.name)) for entry in dataclasses.fields(thing))
