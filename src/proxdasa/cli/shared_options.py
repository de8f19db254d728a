"""Options that several commands share, written once as the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from proxdasa import configs

if TYPE_CHECKING:
    from proxdasa.runs.setup import Setup

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

Device = Annotated[
    Literal["cpu", "cuda", "mps"] | None,
    typer.Option(
        "--device",
        help="Where to compute: data, all agents' rows, mixing and measuring. cuda is an NVIDIA GPU, mps an Apple GPU; "
        "both take a single process. Default: cpu, unless a file says otherwise.",
    ),
]


def add_options(command: Callable[..., None], group: type[G], call: Callable[[G, dict[str, Any]], None]) -> Any:
    """The command with every field of the dataclass ``group`` as a further option.

    ``call`` gets the group with its values, and the command's own arguments. A parameter of the command that is the
    group itself is not an option.
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


@dataclass(frozen=True)
class NetworkOptions:
    """How agents communicate, in addition to what a file says about it, or instead of it."""

    condition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL",
            help="Something that goes wrong in the network, such as [b]LinkLoss(0.3)[/] or [b]Outages(200, 20)[/], "
            "in addition to the conditions of the file; may be given several times. See [b]proxdasa list[/].",
        ),
    ] = None
    mixing: Annotated[
        str | None,
        typer.Option(
            metavar="CALL",
            help="How agents mix, instead of the mixing in the file, such as [b]Gossip(2)[/], [b]Every(5)[/] or "
            "[b]CompressedGossip(TopK(0.1), step=0.3)[/].",
        ),
    ] = None

    def apply(self, setup: Setup) -> Setup:
        """The set-up of a file with these options."""
        changes: dict[str, Any] = {}
        if self.condition:
            changes["conditions"] = (*setup.conditions, *map(configs.calls.condition, self.condition))
        if self.mixing is not None:
            changes["mixing"] = configs.calls.mixing(self.mixing)
        return dataclasses.replace(setup, **changes) if changes else setup

    def arguments(self) -> list[str]:
        """The options as command-line arguments."""
        given = [("--condition", text) for text in self.condition or ()]
        given += [] if self.mixing is None else [("--mixing", self.mixing)]
        return [part for pair in given for part in pair]


def add_network_options(command: Callable[..., None]) -> Any:
    """The command with these options, which it gets as ``network``."""
    return add_options(command, NetworkOptions, lambda options, given: command(network=options, **given))
