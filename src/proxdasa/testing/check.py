"""Check all laws on one method and report the result."""

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
from proxdasa.testing.law import Law, NotApplicable, Violation
from proxdasa.testing.laws import FOUNDATIONS, LAWS

SUITABLE = ((Number, "Number", 0.2), (Alpha, "Alpha", schedules.constant(0.2)), (int, "int", 3), (float, "float", 0.2))
"""Values by annotation, for parameters without a default when a class is checked; they suit the laws' problems."""


class Breach(NamedTuple):
    """A broken law, and what was observed."""

    law: Law
    observed: str

    def __str__(self) -> str:
        parts = (self.law.requirement, f"observed: {self.observed}", f"usually: {self.law.usually}")
        lines = (textwrap.fill(part, 110, initial_indent="  ", subsequent_indent="    ") for part in parts)
        return "\n".join([self.law.name, *lines])


class LawError(AssertionError):
    """A method breaks laws; the message has what each law requires, what was observed, and the usual cause.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, eq=False)
        ... class Forgetful(proxdasa.DPSGD):
        ...     def step(self, agents, k, state):
        ...         return self.State(agents.mix(state.x) - self.gamma * agents.grad(state.x, k))  # no prox
        >>> try:
        ...     testing.check_algorithm(Forgetful)
        ... except testing.LawError as error:
        ...     print(error.laws)
        ('sparsity', 'together')
    """

    def __init__(self, title: str, breaches: Sequence[Breach]) -> None:
        number = f"{len(breaches)} laws" if len(breaches) > 1 else "a law"
        super().__init__("\n\n".join([f"{title} breaks {number}:", *map(str, breaches)]))
        self.laws = tuple(breach.law.name for breach in breaches)
        """The names of the broken laws."""


@dataclasses.dataclass(frozen=True)
class Report:
    """The laws that a method keeps, and those that do not apply to it.

    Examples:
        >>> report = testing.check_algorithm(proxdasa.DPSGD)
        >>> report.title, "sparsity" in report.checked
        ('DPSGD', True)
        >>> report.left_out["tracking"]
        'facts.tracking declares no tracker'
    """

    title: str
    checked: tuple[str, ...]
    """The names of the laws that the method keeps."""
    left_out: Mapping[str, str]
    """Laws that were not checked, with the reasons."""

    def __str__(self) -> str:
        lines = [f"{self.title} keeps {len(self.checked)} laws: {', '.join(self.checked)}"]
        return "\n".join([*lines, *(f"left out: {name} ({why})" for name, why in self.left_out.items())])


def check_algorithm(method: Algorithm | type[Algorithm], *, tracks: Mapping[str, str] | None = None) -> Report:
    """Check that a method keeps the laws that all methods of the library keep.

    Args:
        method: the method, with step sizes that suit curvatures from 1 to 2. If it is a class, parameters without a
            default get suitable values.
        tracks: trackers besides the one that the facts declare and the variables that they track, such as
            ``{"u": "v"}``: the means over agents of both must agree after every step.

    Raises:
        LawError: if laws are broken. It is an AssertionError whose message has all of them.

    Examples:
        >>> report = testing.check_algorithm(proxdasa.ProxDASAGT(gamma=0.2, alpha=0.2))
        >>> len(report.checked) > 20, [*report.left_out]
        (True, ['late'])
    """
    algorithm: Any = _make(method) if isinstance(method, type) else method
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
        except NotApplicable as reason:
            left_out[law.name] = str(reason)
        except Violation as violation:
            breaches.append(Breach(law, str(violation)))
        except Exception as error:
            breaches.append(Breach(law, f"{type(error).__name__}: {error}"))
            raised = raised or error
    title = type(algorithm).__name__
    if breaches:
        raise LawError(title, breaches) from raised
    return Report(title, tuple(checked), left_out)


def _make(method: Any) -> Any:
    """An instance of the class, with suitable values for parameters without a default."""
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
