"""The parameters of a method by name: which can be searched, and how to change them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from proxdasa.checks import check_positive
from proxdasa.contracts import Algorithm
from proxdasa.schedules import Number, Schedule, is_annotated
from proxdasa.tuning.settings import Setting, stack


def tunable(algorithm: Algorithm) -> dict[str, tuple[str, str | None]]:
    """The parameters that a search may change: by name, the field and, for a schedule, the parameter in it.

    These are the fields that accept one number per trial. The first parameter of a schedule is also known by the name
    of its field.
    """
    names: dict[str, tuple[str, str | None]] = {}
    for entry in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, entry.name)
        if isinstance(value, Schedule):
            first = {entry.name: (entry.name, next(iter(value.parameters)))} if value.parameters else {}
            names |= first | {f"{entry.name}.{parameter}": (entry.name, parameter) for parameter in value.parameters}
        elif is_annotated(entry.type, Number, "Number") and value is not None:
            names[entry.name] = entry.name, None
    return names


def with_parameters(algorithm: Algorithm, values: Mapping[str, Number]) -> Algorithm:
    """A copy of the method with these values of its parameters, each one number or one per trial."""
    names, fields = tunable(algorithm), [entry.name for entry in dataclasses.fields(algorithm)]  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    places: dict[tuple[str, str | None], str] = {}
    for name, value in values.items():
        if name not in names:
            why = "must be the same for all trials of a run" if name in fields else "is not one of its parameters"
            raise ValueError(
                f"{name} cannot be searched for {algorithm.facts.title}: it {why}; accepted: {', '.join(names)}"
            )
        field, parameter = place = names[name]
        if places.setdefault(place, name) != name:
            raise ValueError(f"{places[place]} and {name} are the same parameter; give one of them")
        if parameter:
            schedule = changes.get(field, getattr(algorithm, field))
            parameters = {**schedule.parameters, parameter: check_positive(value, name)}
            changes[field] = dataclasses.replace(schedule, parameters=parameters)
        else:
            changes[field] = value
    made: Algorithm = dataclasses.replace(algorithm, **changes)  # type: ignore[type-var]
    return made


def stack_settings(algorithm: Algorithm, settings: Sequence[Setting], repetitions: int = 1) -> Algorithm:
    """The method with all settings at once: trial s · R + r has setting s, for R repetitions."""
    return with_parameters(algorithm, stack(settings, repetitions))
