"""What the terminal shows: progress, tables, one-line errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from proxdasa import experiments, reports
from proxdasa.loop import Progress as Report
from proxdasa.records import Row
from proxdasa.results import Result
from proxdasa.runner import Setup

out = Console()
err = Console(stderr=True)

T = TypeVar("T", int, float)

DIVERGED, BAD_INPUT, LOST, INTERRUPTED = 1, 2, 3, 130
LEFT_OUT = ("trials", "milliseconds")
"""Columns that a terminal has no room for."""
TEXTS = ("method", "run", "graph", "mixing")
"""Columns of tables that hold no numbers."""
SILENCE = 30
"""Seconds without a line where there is no terminal to draw a bar on."""


@contextmanager
def input_errors() -> Iterator[None]:
    """Bad input is one line and exit code 2, not a traceback."""
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        err.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False, emoji=False)
        raise typer.Exit(BAD_INPUT) from None


@contextmanager
def progress(series: Sequence[str] = ()) -> Iterator[experiments.Announce]:
    """A bar per run on a terminal, in 80 columns; elsewhere a line as a run ends, and now and then before."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TaskProgressColumn(),
        TextColumn("{task.fields[measures]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as bars:

        def announce(name: str, setup: Setup) -> Report:
            shown = f"run {series.index(name) + 1} of {len(series)}: {name}" if len(series) > 1 else name
            task, told = bars.add_task(shown, total=setup.iterations, measures=""), time.monotonic()

            def update(k: int, iterations: int, rows: Sequence[Row]) -> None:
                bars.update(task, completed=k)
                if rows:
                    bars.update(task, measures=mean_measures(rows))
                nonlocal told
                if rows and not err.is_terminal and (k == iterations or time.monotonic() > told + SILENCE):
                    told = time.monotonic()
                    say(f"{shown}: {k} iterations, {mean_measures(rows)}", err)

            return update

        yield announce


def mean_measures(rows: Sequence[Row]) -> str:
    """Loss and stationarity in a few words."""
    if not rows:
        return "every trial diverged"
    names = {"loss": "loss", "stationarity": "‖G‖²"}
    means = {shown: sum(row[name] for row in rows) / len(rows) for name, shown in names.items() if name in rows[0]}
    return " ".join(f"{name} {value:.2g}" for name, value in means.items())


def show_final(result: Result) -> None:
    """The measures at the end of a run."""
    last = [row for row in result.records if row["k"] == result.records[-1]["k"]] if result.records else []
    if not last:
        return
    table = Table(title=f"after {last[0]['k']} iterations, {len(last)} trials", title_justify="left")
    table.add_column("measure")
    table.add_column("mean", justify="right")
    table.add_column("smallest", justify="right")
    table.add_column("largest", justify="right")
    for name in list(last[0])[2:]:
        values = [float(row[name]) for row in last]
        table.add_row(name, f"{sum(values) / len(values):.4g}", f"{min(values):.4g}", f"{max(values):.4g}")
    out.print(table)


def show_report(runs: Sequence[reports.Run], summary: reports.Table, written: Mapping[str, Path]) -> None:
    """The table of runs, how they ended, and the files that tell more."""
    sheet = summary.sheet()
    table = Table(title=summary.title, title_justify="left")
    for name, heading in sheet.columns.items():
        side: Literal["left", "right"] = "left" if name in TEXTS else "right"
        table.add_column(heading, justify=side, no_wrap=name == "method", overflow="fold")
    for row in sheet.texts():
        table.add_row(*map(escape, row))
    out.print(table)
    for run in runs:
        if run.ending:
            say(f"{run.title}, {run.label}: {run.ending}")
    for note in sheet.notes:
        say(note)
    for kind, path in written.items():
        say(f"{kind + ':':7} {path}")


def show_sheet(title: str, sheet: reports.Sheet) -> None:
    """A table in brief: published values in brackets behind ours; the files have more."""
    table = Table(title=title, title_justify="left")
    shown = [name for name in sheet.columns if name not in LEFT_OUT and not name.endswith("_published")]
    for name in shown:
        text = name in TEXTS
        table.add_column(sheet.columns[name], justify="left" if text else "right", no_wrap=text, overflow="fold")
    for row in sheet.texts(brief=True):
        cells = dict(zip(sheet.columns, row, strict=True))
        published = {name: f" ({cells[other]})" for name in shown if (other := f"{name}_published") in cells}
        table.add_row(*(escape(cells[name] + published.get(name, "")) for name in shown))
    out.print(table)
    published_too = any(name.endswith("_published") for name in sheet.columns)
    say("mean over trials ± half the width of its 95% interval" + " (published value)" * published_too)
    for note in sheet.notes[1:]:
        say(note)


def numbers(option: str, given: str, kind: Callable[[str], T]) -> list[T]:
    """The numbers of an option that takes several."""
    try:
        return [kind(part) for part in given.split(",")]
    except ValueError:
        raise ValueError(f"{option} takes numbers separated by commas, such as 5,10,20; got {given!r}") from None


def say(text: str, console: Console = out) -> None:
    """Print text as it is: paths are neither wrapped, so that they can be copied, nor read as markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning in one line, in place of Python's two."""
    err.print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True, highlight=False, emoji=False)
