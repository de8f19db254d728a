"""What the terminal shows: tables, notes, one-line errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from proxdasa import reports
from proxdasa.cli.terminal import Screen
from proxdasa.disk import StorageError
from proxdasa.exit_codes import Code
from proxdasa.runs.results import Result

out = Screen()
"""What a command is for, on standard output."""
err = Screen(stderr=True)
"""Everything else: progress, notes, warnings, errors."""

T = TypeVar("T", int, float)

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""What writing to a disk that is full, or broken, meets."""
LEFT_OUT = ("trials", "milliseconds")
"""Columns that a terminal has no room for."""
TEXTS = ("method", "run", "graph", "mixing")
"""Columns of tables that hold no numbers."""
WORD = 12
"""Letters of a word beyond which it may be broken where there is no room."""


@contextmanager
def input_errors() -> Iterator[None]:
    """Bad input is one line and an exit code, not a traceback; so is a disk that takes no more."""
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):  # torch's word for too much
            raise
        err.print(f"[red]error:[/] {escape(_visible(_said(error)))}", soft_wrap=True, highlight=False, emoji=False)
        unwritten = isinstance(error, StorageError) or (isinstance(error, OSError) and error.errno in UNWRITABLE)
        raise typer.Exit(Code.UNWRITTEN if unwritten else Code.REFUSED) from None


def _visible(text: str) -> str:
    """Names of files and words from them do not steer the terminal; lines stay lines."""
    return "\n".join(map(reports.visible, text.split("\n")))


def _said(error: Exception) -> str:
    """An error in a sentence, those of the system too."""
    if isinstance(error, MemoryError | RuntimeError):
        return "this does not fit into the memory of this machine; try fewer agents, trials or dimensions"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def show_final(result: Result) -> None:
    """The measures at the end of a run."""
    last = result.last
    if not last:
        return
    trials = "1 trial" if len(last) == 1 else f"{len(last)} trials"
    table = Table(title=f"after {last[0]['k']} iterations, {trials}", title_justify="left")
    table.add_column("measure")
    table.add_column("mean", justify="right")
    table.add_column("smallest", justify="right")
    table.add_column("largest", justify="right")
    for name in list(last[0])[2:]:
        values = [float(row[name]) for row in last]
        table.add_row(name, *map(_brief, (sum(values) / len(values), min(values), max(values))))
    show_table(table)


def _brief(value: float) -> str:
    """Four digits, but counts as they are."""
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def show_report(runs: Sequence[reports.Run], summary: reports.Table, written: Mapping[str, Path]) -> None:
    """The table of runs, how they ended, and the files that tell more."""
    sheet = summary.sheet()
    table = Table(title=summary.title, title_justify="left")
    for name, heading in sheet.columns.items():
        table.add_column(heading, justify="left" if name in TEXTS else "right")
    for row in sheet.texts():
        table.add_row(*map(escape, map(reports.visible, row)))
    show_table(table)
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
        table.add_column(sheet.columns[name], justify="left" if name in TEXTS else "right")
    for row in sheet.texts(brief=True):
        cells = dict(zip(sheet.columns, row, strict=True))
        published = {name: f" ({cells[other]})" for name in shown if (other := f"{name}_published") in cells}
        table.add_row(*(escape(cells[name] + published.get(name, "")) for name in shown))
    show_table(table)
    published_too = any(name.endswith("_published") for name in sheet.columns)
    say("mean over trials ± half the width of its 95% interval" + " (published value)" * published_too)
    for note in sheet.notes[1:]:
        say(note)


def show_table(table: Table) -> None:
    """Print a table in the width of the terminal: lines are broken between words, and numbers, on the right, never.

    Where that does not fit, each cell has a line.
    """
    texts = [[Text.from_markup(str(cell)) for cell in (column.header, *column.cells)] for column in table.columns]
    widths = [max(text.cell_len for text in column) for column in texts]
    least = [_least(*column, whole=of.justify == "right") for column, of in zip(texts, table.columns, strict=True)]
    room = out.width - 3 * len(widths) - 1  # beside lines and blanks
    if sum(least) > room:
        _show_cells(str(table.title or ""), texts)
        return
    while sum(widths) > room:
        widths[max(range(len(widths)), key=lambda i: widths[i] - least[i])] -= 1
    for column, width in zip(table.columns, widths, strict=True):
        column.width, column.overflow = width, "fold"
    out.print(table)


def _least(head: Text, *cells: Text, whole: bool) -> int:
    """The width that a column needs for its words."""
    lengths = [len(word) for text in (head, *cells) for word in text.plain.split()]
    kept = [len(word) for text in cells for word in text.plain.split() if whole]
    return max(min(WORD, max(lengths, default=0)), *kept, 1)


def _show_cells(title: str, columns: Sequence[Sequence[Text]]) -> None:
    say(title)
    for first, *rest in zip(*(cells for _, *cells in columns), strict=True):
        say(first.plain)
        for (head, *_), cell in zip(columns[1:], rest, strict=True):
            say(f"  {head.plain}: {cell.plain}")


def output_option(words: str) -> Any:
    """The option --output of a command, which says what goes into the folder."""
    return typer.Option("--output", "-o", metavar="DIR", parser=_folder, help=words)


def _folder(name: str | Path) -> Path:
    if not str(name).strip():  # such as that of a variable of the shell that is not set
        raise typer.BadParameter("a folder needs a name, such as .")
    return Path(name)


def numbers(option: str, given: str, kind: Callable[[str], T]) -> list[T]:
    """The numbers of an option that takes several."""
    try:
        return [kind(part) for part in given.split(",")]
    except ValueError:
        raise ValueError(f"{option} takes numbers separated by commas, such as 5,10,20; got {given!r}") from None


def say(text: str, console: Screen = out) -> None:
    """Print text as it is: paths are neither wrapped, so that they can be copied, nor read as markup."""
    console.print(_visible(text), soft_wrap=True, highlight=False, markup=False, emoji=False)


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning in one line, in place of Python's two."""
    err.print(f"[yellow]warning:[/] {escape(_visible(str(message)))}", soft_wrap=True, highlight=False, emoji=False)
