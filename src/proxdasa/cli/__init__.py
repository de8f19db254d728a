"""The command line: it reads arguments and sets exit codes, and leaves everything else to the library."""

from __future__ import annotations

import importlib.util
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

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
    study_command,
)
from proxdasa.cli.display import err, input_errors, out, say, show_warning
from proxdasa.cli.doctor import doctor
from proxdasa.cli.tune_command import tune
from proxdasa.configs import catalogue
from proxdasa.engines.launch import signals
from proxdasa.exit_codes import SUMMARY, Code

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
app.command()(study_command.study)


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
        say(f"{path}: {'downloaded' if path.name in tasks else 'already there'}, checksum correct")


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
    keys = catalogue.run_keys()
    needed = [key.name for key in keys if key.default is None]
    optional = [str(key) if _is_whole_or_truth(key.default) else key.name for key in keys if key.default is not None]
    out.print(f"[bold]keys[/]\n{', '.join(needed)}; optional: {', '.join(optional)}\n", highlight=False)
    for room, choices in catalogue.rooms().items():
        table = Table(title=room, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
        for choice in choices:
            table.add_row(
                f"[cyan]{choice.name}[/]", escape(", ".join(map(str, choice.parameters))), escape(choice.summary)
            )
        out.print(table)
        out.print()
    for kind, names in catalogue.values().items():
        out.print(f"[bold]{kind}[/]\n{escape(', '.join(names))}\n", highlight=False)


def main() -> None:
    """Run the command line; the entry point of the program."""
    warnings.showwarning = show_warning
    try:
        with signals.interrupting():
            app()
    except KeyboardInterrupt:  # commands that have begun handle it themselves
        raise SystemExit(Code.INTERRUPTED) from None


def _is_whole_or_truth(default: str) -> bool:
    """Whether a default is a whole number, True or False."""
    return default.isdecimal() or default in ("True", "False")
