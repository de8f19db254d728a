"""What is shown of a run while it runs: bars or lines for people, lines of JSON for programs, or nothing."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from proxdasa.cli.display import err, out, say
from proxdasa.cli.shared_options import add_options
from proxdasa.cli.terminal import Screen
from proxdasa.runs.progress import Progress as Report
from proxdasa.runs.records import Row, format_rows, mean_row

if TYPE_CHECKING:
    from proxdasa import experiments
    from proxdasa.runs.results import Result
    from proxdasa.runs.setup import Setup

json_lines = Screen()
"""Standard output for lines of JSON, which --json leaves on while it silences `out`."""

SILENCE = 30
"""Seconds between lines where there is no terminal to draw a bar on."""
SHOWN = {"loss": "loss", "stationarity": "‖G‖²", "consensus": "consensus"}
"""Measures that are shown, and their names."""


@dataclass(frozen=True)
class Audience:
    """Who reads the output of a command: the options --quiet and --json."""

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")] = False
    json: Annotated[
        bool,
        typer.Option("--json", help="For programs: print one JSON object per line, and nothing else, to stdout."),
    ] = False

    def arguments(self) -> list[str]:
        """The options as command-line arguments, to pass on to other processes."""
        return [f"--{name}" for name, given in dataclasses.asdict(self).items() if given]


audience = Audience()
"""The audience of the command that is running."""


def add_audience_options(command: Callable[..., None]) -> Any:
    """The command with the options --quiet and --json."""

    def call(given_audience: Audience, arguments: dict[str, Any]) -> None:
        with _speak_to(given_audience):
            command(**arguments)

    return add_options(command, Audience, call)


@contextmanager
def _speak_to(whom: Audience) -> Iterator[None]:
    global audience  # noqa: PLW0603 - there is one command, as there is one terminal
    audience = whom
    out.quiet = whom.quiet or whom.json
    try:
        yield
    finally:
        audience = Audience()
        out.quiet = False


@contextmanager
def progress(series: Sequence[str] = (), output: Path | None = None) -> Iterator[experiments.Announce]:
    """Show the progress of runs; those of a series have their own folders in ``output``."""
    if audience.json:
        yield functools.partial(_print_json, series, output)
    elif audience.quiet:
        yield lambda _name, _setup: lambda _k, _iterations, _rows: None
    else:
        one_line = Column(no_wrap=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            MofNCompleteColumn(table_column=one_line),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=one_line),
            _Measures(),
        )
        # The time left is judged by the last hour, since iterations may take minutes.
        with Progress(*columns, console=err, speed_estimate_period=3600, disable=not err.is_terminal) as bars:
            yield functools.partial(_show_bar, series, bars)


class _Measures(ProgressColumn):
    """The means of the last observation. This column alone is cut where the terminal is narrow."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["measures"], no_wrap=True, overflow="ellipsis")


def note(text: str) -> None:
    """Print something that is neither the result of the command nor a warning."""
    if not audience.quiet:
        say(text, err)


def print_end(name: str, folder: Path, result: Result) -> None:
    """Print the JSON event of a run that has ended; people are shown a table by `show_final`."""
    if not audience.json:
        return
    how = {"stopped": result.stopped, "made": result.iterations, "iterations": result.config["iterations"]}
    how |= {"diverged": sorted(result.diverged), "output": str(folder)}
    print_event("end", name, how | mean_row(result.last))


def print_event(event: str, name: str, fields: Row) -> None:
    """Print a line of JSON if --json asks for it."""
    if audience.json:
        say(format_rows([{"event": event, "run": name, **fields}]).rstrip(), json_lines)


class Pace:
    """Estimates how long a run will take from its pace since the first report: a resumed run does not begin at 0."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def update(self, k: int, iterations: int) -> None:
        """Note that k of the iterations are made."""
        self._last = (k, time.monotonic())
        self._first, self._iterations = self._first or self._last, iterations

    @property
    def left(self) -> float | None:
        """Seconds until the last iteration, if there is a pace to judge by."""
        if self._first is None or self._last[0] == self._first[0]:
            return None
        (first, began), (k, now) = self._first, self._last
        return max(0.0, (now - began) / (k - first) * (self._iterations - k) - (time.monotonic() - now))


def _print_json(series: Sequence[str], output: Path | None, name: str, setup: Setup) -> Report:
    folder = None if output is None else str(output / name if name in series else output)
    print_event("begin", name, {"output": folder, "config": setup.config()})
    pace = Pace()

    def update(k: int, iterations: int, rows: Sequence[Row]) -> None:
        pace.update(k, iterations)
        if rows:
            known = {"k": k, "iterations": iterations, "trials": len(rows), "seconds_left": pace.left}
            print_event("observation", name, known | mean_row(rows))

    return update


def _show_bar(series: Sequence[str], bars: Progress, name: str, setup: Setup) -> Report:
    """Show a bar on a terminal; elsewhere print a line when the run ends, and every `SILENCE` seconds before."""
    place, short = "", ""
    if len(series) > 1:
        number = series.index(name) + 1
        place, short = f"run {number} of {len(series)}: ", f"{number}/{len(series)} "
    pace, printed, shown = Pace(), time.monotonic(), 0
    task = bars.add_task(short + name, total=setup.iterations, measures="")

    def update(k: int, iterations: int, rows: Sequence[Row]) -> None:
        nonlocal printed, shown
        pace.update(k, iterations)
        shown = max(shown, k)  # the trials of a part may begin when those of another have ended
        bars.update(task, completed=shown)
        if not rows:
            return
        means = mean_row(rows)
        measures = " ".join(f"{shown} {means[name]:.2g}" for name, shown in SHOWN.items() if name in means)
        bars.update(task, measures=measures)
        if not err.is_terminal and (k == iterations or time.monotonic() > printed + SILENCE):
            printed = time.monotonic()
            left = "" if k == iterations or pace.left is None else f"{timedelta(seconds=round(pace.left))} left"
            say(", ".join(filter(None, (f"{place}{name}: {k} of {iterations} iterations", measures, left))), err)

    update.note = lambda text: say(f"{place}{name}: {text}", err)  # type: ignore[attr-defined]
    return update
