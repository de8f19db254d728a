"""The check: all laws on one method, and a report."""

from __future__ import annotations

import dataclasses
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from proxdasa import schedules
from proxdasa.contracts import Algorithm
from proxdasa.runs.divergence import DivergenceWarning
from proxdasa.schedules import Alpha, Number, is_annotated
from proxdasa.testing.case import Case
from proxdasa.testing.law import Law, LeftOut, Seen
from proxdasa.testing.laws import FOUNDATIONS, LAWS

SUITABLE = ((Number, "Number", 0.2), (Alpha, "Alpha", schedules.constant(0.2)), (int, "int", 3), (float, "float", 0.2))
"""What parameters get, by their annotation, if a class is given and has no default; they suit the laws' problems."""


class Breach(NamedTuple):
    """A broken law, and what was seen."""

    law: Law
    seen: str

    def __str__(self) -> str:
        parts = (self.law.demand, f"seen: {self.seen}", f"usually: {self.law.usually}")
        lines = (textwrap.fill(part, 110, initial_indent="  ", subsequent_indent="    ") for part in parts)
        return "\n".join([self.law.name, *lines])


class LawError(AssertionError):
    """A method breaks laws: what each demands, what was seen, and what is usually behind it."""

    def __init__(self, title: str, breaches: Sequence[Breach]) -> None:
        number = f"{len(breaches)} laws" if len(breaches) > 1 else "a law"
        super().__init__("\n\n".join([f"{title} breaks {number}:", *map(str, breaches)]))
        self.laws = tuple(breach.law.name for breach in breaches)
        """The names of the broken laws."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What was checked, and what was left out."""

    title: str
    checked: tuple[str, ...]
    """The names of the laws that it keeps."""
    left_out: Mapping[str, str]
    """Laws that were not checked, and why."""

    def __str__(self) -> str:
        lines = [f"{self.title} keeps {len(self.checked)} laws: {', '.join(self.checked)}"]
        return "\n".join([*lines, *(f"left out: {name} ({why})" for name, why in self.left_out.items())])


def check_algorithm(method: Algorithm | type[Algorithm], *, tracks: Mapping[str, str] | None = None) -> Report:
    """Check that a method keeps the laws that all methods of the library keep.

    Args:
        method: the method, with step sizes for curvatures from 1 to 2; a class is given such parameters where it has
            no defaults.
        tracks: trackers among the state's variables and what they track, such as ``{"u": "v"}``: the means over agents
            of both must agree after every step.

    Raises:
        LawError: if laws are broken; an AssertionError with all of them in its message.
    """
    algorithm: Any = _made(method) if isinstance(method, type) else method
    case = Case(algorithm, tracks or {})
    checked: list[str] = []
    left_out: dict[str, str] = {}
    breaches: list[Breach] = []
    raised: Exception | None = None
    for law in (*FOUNDATIONS, *LAWS):
        if breaches and breaches[0].law in FOUNDATIONS:
            break
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore", DivergenceWarning)
                law.check(case)
            checked.append(law.name)
        except LeftOut as reason:
            left_out[law.name] = str(reason)
        except Seen as seen:
            breaches.append(Breach(law, str(seen)))
        except Exception as error:
            breaches.append(Breach(law, f"{type(error).__name__}: {error}"))
            raised = raised or error
    title = type(algorithm).__name__
    if breaches:
        raise LawError(title, breaches) from raised
    return Report(title, tuple(checked), left_out)


def _made(method: Any) -> Any:
    """The class with suitable parameters where it has no defaults."""
    given: dict[str, Any] = {}
    for field in dataclasses.fields(method) if dataclasses.is_dataclass(method) else ():
        if not field.init or (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING):
            continue
        values = [value for kind, name, value in SUITABLE if is_annotated(field.type, kind, name)]
        if not values:
            raise TypeError(
                f"{method.__name__}.{field.name} is annotated as {field.type!r}, for which there is no value to try; "
                "give an instance in place of the class"
            )
        given[field.name] = values[0]
    return method(**given)
