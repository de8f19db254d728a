"""Printing to the terminal: tables, lines of text, errors and warnings in one line."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from proxdasa import memory_budget, reports
from proxdasa.cli.terminal import Screen
from proxdasa.disk import StorageError
from proxdasa.exit_codes import Code

if TYPE_CHECKING:
    from torch import Tensor

    from proxdasa.runs.results import Result

out = Screen()
"""Standard output: the results of a command."""
err = Screen(stderr=True)
"""Standard error: progress, notes, warnings, errors."""

T = TypeVar("T", int, float)

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of a disk that is full, read-only or broken."""
OUT_OF_MEMORY = "this does not fit into the memory of this machine; try fewer agents, trials or dimensions"
TEXTS = ("method", "run", "graph", "mixing", "weights", "rule", "fault", "measure")
"""Columns of tables that hold no numbers."""
LONG_WORD = 12
"""Words longer than this may be broken where the terminal is narrow."""


@contextmanager
def input_errors() -> Iterator[None]:
    """Turn errors of the input, the disk and the memory into one line and an exit code, without a traceback."""
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError, MemoryError, RuntimeError) as error:
        out_of_memory = memory_budget.is_exhausted(error)
        if isinstance(error, RuntimeError) and not out_of_memory:
            raise
        _print_line("[red]error:[/]", OUT_OF_MEMORY if out_of_memory else sentence(error))
        unwritten = isinstance(error, StorageError) or (isinstance(error, OSError) and error.errno in UNWRITABLE)
        raise typer.Exit(Code.UNWRITTEN if unwritten else Code.REFUSED) from None


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a warning in one line, in place of Python's two."""
    _print_line("[yellow]warning:[/]", str(message))


def _print_line(mark: str, text: str) -> None:
    err.print(f"{mark} {escape(_visible(text))}", soft_wrap=True, highlight=False)


def _visible(text: str) -> str:
    """The text with control characters escaped, since file names in it may hold some; lines stay lines."""
    return "\n".join(map(reports.visible, text.split("\n")))


def sentence(error: Exception) -> str:
    """The message of an error; for errors of the operating system, without their numbers."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def show_final(result: Result) -> None:
    """Show the measures at the end of a run."""
    if last := result.last:
        trials = "1 trial" if len(last) == 1 else f"{len(last)} trials"
        show_table(f"after {last[0]['k']} iterations, {trials}", reports.end_sheet(last))
        if result.config.get("regularizer") != {"name": "Zero"} and result.proximal_point is not None:
            _show_nonzeros(result.solution)


def _show_nonzeros(solution: Tensor) -> None:
    """Say how many nonzeros the solution has; the measure `solution_density` is their share."""
    finite = solution[~solution.isnan().any(dim=1)]
    if len(finite):
        counts = (finite != 0).sum(dim=1)
        least, most = int(counts.min()), int(counts.max())
        span = f"{least}" if least == most else f"{least} to {most}"
        say(f"the solution has {span} nonzeros in {finite.shape[1]} coordinates")


def show_report(runs: Sequence[reports.Run], summary: reports.Table, written: Mapping[str, Path]) -> None:
    """Show the table of some runs, say which of them did not end as planned, and name the files that have more."""
    sheet = summary.sheet()
    endings = [f"{run.title}, {run.label}: {run.ending}" for run in runs if run.ending]
    show_table(summary.title, replace(sheet, notes=[*endings, *sheet.notes]))
    for kind, path in written.items():
        say(f"{kind + ':':7} {path}")


def show_written(paths: Iterable[Path]) -> None:
    """Say which files were written."""
    for path in paths:
        say(f"written: {path}")


def show_table(title: str, sheet: reports.Sheet, sections: Collection[int] = ()) -> None:
    """Show a table under its title and above its notes, with a line above the rows that begin ``sections``.

    Where the terminal is narrow, texts are broken into lines. Numbers never are, even if the table is then too wide.
    """
    rows = [[reports.visible(cell) for cell in row] for row in sheet.texts()]
    table = Table()
    for i, (name, heading) in enumerate(sheet.columns.items()):
        cells = [row[i] for row in rows]
        if name in TEXTS:
            longest = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
            table.add_column(escape(heading), overflow="fold", min_width=min(longest, LONG_WORD))
        else:
            least = max(map(cell_len, (*cells, *heading.split())))
            table.add_column(escape(heading), justify="right", overflow="fold", min_width=least)
    for number, row in enumerate(rows):
        if number in sections:
            table.add_section()
        table.add_row(*map(escape, row))
    say(title)
    out.print(table, crop=False)
    for note in sheet.notes:
        say(note)


def output_option(help_text: str) -> Any:
    """The option --output of a command; the help says what goes into the folder."""
    return typer.Option("--output", "-o", metavar="DIR", parser=_folder, help=help_text)


def _folder(name: str | Path) -> Path:
    if not str(name).strip():  # for example an empty variable of the shell
        raise typer.BadParameter("a folder needs a name, such as .")
    return Path(name)


def parse_numbers(option: str, given: str, kind: Callable[[str], T]) -> list[T]:
    """The numbers of an option that takes several, separated by commas."""
    try:
        return [kind(part) for part in given.split(",")]
    except ValueError:
        raise ValueError(f"{option} takes numbers separated by commas, such as 5,10,20; got {given!r}") from None


def say(text: str, console: Screen = out) -> None:
    """Print text as it is: paths are neither wrapped, so that they can be copied, nor read as markup."""
    console.print(_visible(text), soft_wrap=True, highlight=False, markup=False)
