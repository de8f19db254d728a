"""The command line: it reads arguments and sets exit codes, and leaves everything else to the library."""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from proxdasa import data
from proxdasa.cli import (
    compare_command,
    keys_commands,
    plan_command,
    report_command,
    reproduce_commands,
    run_commands,
    site_commands,
)
from proxdasa.cli.display import err, input_errors, out, say, show_warning
from proxdasa.cli.doctor import doctor
from proxdasa.cli.tune_command import tune
from proxdasa.configs.objects import ROOMS, VALUES, parameters
from proxdasa.descriptions import describe
from proxdasa.engines.launch import signals
from proxdasa.exit_codes import SUMMARY, Code
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.setup import Setup

EXITS = f"{SUMMARY} More in docs/processes.md."
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
app.add_typer(reproduce_commands.app, name="reproduce")
app.add_typer(keys_commands.app, name="keys")
app.add_typer(site_commands.app, name="site")
data_app = typer.Typer(no_args_is_help=True, help="Download data sets, and list what is there.")
app.add_typer(data_app, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"proxdasa {version('proxdasa')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Decentralised composite optimisation: agents on a graph minimise a smooth loss plus a convex regulariser."""


app.command(epilog=EXITS)(run_commands.run)
app.command(epilog=EXITS)(run_commands.resume)
app.command()(plan_command.plan)
app.command()(tune)
app.command()(doctor)
app.command()(report_command.report)
app.command()(compare_command.compare)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help=f"The data set: {' or '.join(data.SOURCES)}.")],
    folder: Annotated[Path | None, typer.Option(help="The data folder; default: see [b]proxdasa data list[/].")] = None,
) -> None:
    """Download a data set and verify its checksums; files that are already there and correct are kept."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(), TimeRemainingColumn())
    with input_errors(), Progress(*columns, console=err, disable=not err.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def update(file: str, here: int, size: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=size)
            bars.update(tasks[file], completed=here)

        paths = data.fetch(name, folder, update)
    for path in paths:
        say(f"{path}: {'downloaded' if path.name in tasks else 'there already'}, checksum correct")


@data_app.command("list")
def data_list(
    folder: Annotated[Path | None, typer.Option(help="The data folder to look into.")] = None,
) -> None:
    """List what is in the data folder, what is missing, and where it is expected."""
    if folder is None:
        say(f"data folder: {data.folder()}   (set the environment variable {data.VARIABLE} to use another)")
    else:
        say(f"data folder: {folder}")
    for name, path, there in data.listing(folder):
        say(f"{name}: {path}" if there else f"{name}: {path} is missing (proxdasa data fetch {name})")
    ready = importlib.util.find_spec("sklearn") is not None
    say(f"digits, breast_cancer: {'with scikit-learn' if ready else 'missing (pip install scikit-learn)'}")


@app.command("list")
def list_() -> None:
    """List everything a configuration file can name, with parameters and defaults."""
    keys = {name: parameter.default for name, parameter in parameters(Setup).items()}
    needed = [name for name, default in keys.items() if default is inspect.Parameter.empty]
    optional = [
        f"{name}={default}" if isinstance(default, int) else name
        for name, default in keys.items()
        if name not in needed
    ]
    out.print(f"[bold]keys[/]\n{', '.join(needed)}; optional: {', '.join(optional)}\n", highlight=False)
    for room, choices in ROOMS.items():
        table = Table(title=room, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
        for choice in choices:
            table.add_row(f"[cyan]{choice.__name__}[/]", escape(_signature(choice)), escape(_first_line(choice)))
        out.print(table)
        out.print()
    for kind, values in VALUES.items():
        takes = {name: _signature(value) for name, value in values.items() if kind == "metric" and callable(value)}
        names = (f"{name}({takes[name]})" if name in takes else name for name in values)
        out.print(f"[bold]{kind}[/]\n{escape(', '.join(names))}\n", highlight=False)


def main() -> None:
    """Run the command line; the entry point of the program."""
    warnings.showwarning = show_warning
    try:
        with signals.interrupting(), flushed_denormals():  # before torch starts its threads, which inherit it
            app()
    except KeyboardInterrupt:  # commands that have begun handle it themselves
        raise SystemExit(Code.INTERRUPTED) from None


def _signature(thing: Any) -> str:
    shown = []
    for name, parameter in parameters(thing).items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            shown.append(name)
        elif isinstance(default, int | float | str) or default is None:
            shown.append(f"{name}={default!r}")
        else:
            described = describe(default)
            shown.append(f"{name}={described if isinstance(described, str) else described['name']}")
    return ", ".join(shown)


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
