"""Options that several commands share, written once as the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

G = TypeVar("G")

Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        metavar="N",
        help="Compute in N processes of this machine: runs, and the trials of large runs, are spread over them. The "
        "numbers are the same for any N. Default: all cores if it takes more than a few seconds.",
    ),
]


def add_options(command: Callable[..., None], group: type[G], call: Callable[[G, dict[str, Any]], None]) -> Any:
    """The command with every field of the dataclass ``group`` as a further option.

    ``call`` gets the group with its values, and the command's own arguments. A parameter of the command that is the
    group itself is no option.
    """

    @functools.wraps(command)
    def extended(**given: Any) -> None:
        names = [field.name for field in dataclasses.fields(group)]  # type: ignore[arg-type]
        call(group(**{name: given.pop(name) for name in names}), given)

    # Typer reads options from the signature.
    own = inspect.signature(command, eval_str=True)
    kept = [parameter for parameter in own.parameters.values() if parameter.annotation is not group]
    added = inspect.signature(group, eval_str=True).parameters.values()
    more = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in added]
    extended.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
    return extended
