"""The weights of a regularizer by names such as ``regularizer.weight``: which can be searched, how to change them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_type_hints

from proxdasa.contracts import Regularizer
from proxdasa.regularizers.penalty_weights import PerTrial, parts_within
from proxdasa.schedules import Number

V = TypeVar("V")

PREFIX = "regularizer"
"""The first word of a weight's name; all other names are those of the method's parameters."""


def split(values: Mapping[str, V]) -> tuple[dict[str, V], dict[str, V]]:
    """The method's parameters and the regularizer's weights among the values of a setting."""
    weights = {name: value for name, value in values.items() if name.partition(".")[0] == PREFIX}
    return {name: value for name, value in values.items() if name not in weights}, weights


def searchable_weights(regularizer: Regularizer) -> dict[str, float | PerTrial]:
    """The weights that a search may change, by name: those of which a run accepts one per trial."""
    return dict(_weights(regularizer, PREFIX))


def _weights(thing: Any, name: str) -> list[tuple[str, float | PerTrial]]:
    hints = get_type_hints(type(thing)) if dataclasses.is_dataclass(thing) else {}
    found: list[tuple[str, float | PerTrial]] = []
    for path, inner in parts_within(thing, name):
        if PerTrial in get_args(hints.get(path.rpartition(".")[2])) and isinstance(inner, float | PerTrial):
            found.append((path, inner))
        else:
            found += _weights(inner, path)
    return found


def with_weights(regularizer: Regularizer, values: Mapping[str, Number]) -> Regularizer:
    """A copy of the regularizer with these weights, each one number or one per trial."""
    names = searchable_weights(regularizer)
    if unknown := [name for name in values if name not in names]:
        raise ValueError(
            f"{unknown[0]} cannot be searched: it is not a weight of {type(regularizer).__name__}; accepted: "
            f"{', '.join(names) or 'none'}"
        )
    changed: Regularizer = _replace(regularizer, PREFIX, values)
    return changed


def _replace(thing: Any, name: str, values: Mapping[str, Number]) -> Any:
    """The object at a name, with the values that are within it."""
    if name in values:
        return values[name]
    if not any(each.startswith((f"{name}.", f"{name}[")) for each in values):
        return thing
    parts = [(path, _replace(inner, path, values)) for path, inner in parts_within(thing, name)]
    if isinstance(thing, tuple):
        return tuple(part for _, part in parts)
    return dataclasses.replace(thing, **{path.rpartition(".")[2]: part for path, part in parts})
