"""Who is told of a run while it runs: people, by bars or lines; machines, by lines of JSON; or nobody."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.cells import cell_len
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from proxdasa import experiments
from proxdasa.cli.display import err, out, say
from proxdasa.cli.terminal import Screen
from proxdasa.runs.progress import Progress as Report
from proxdasa.runs.records import Row, format_rows, mean_row
from proxdasa.runs.results import Result
from proxdasa.runs.setup import Setup

lines = Screen()
"""Standard output for machines, whatever people are told."""

SILENCE = 30
"""Seconds without a line where there is no terminal to draw a bar on."""
SHOWN = {"loss": "loss", "stationarity": "‖G‖²", "consensus": "consensus"}
"""Measures that a line has room for."""
DROPPED = ("series", "consensus", "stationarity", "loss", "time")
"""What a narrow terminal does not show, the first to go first."""
BAR = (5, 10)
"""Columns of a bar, at least and at most."""


class Audience(NamedTuple):
    """Who is told, by the options of a command."""

    quiet: bool = False
    json: bool = False

    def words(self) -> list[str]:
        """The options again, for processes that are started."""
        return [f"--{name}" for name, asked in self._asdict().items() if asked]


audience = Audience()
"""That of the command that is running."""

OPTIONS = {
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings and errors.")],
    "json": Annotated[
        bool,
        typer.Option("--json", help="For machines: a JSON object a line on standard output, and nothing else there."),
    ],
}


def watched(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with the options --quiet and --json."""

    @functools.wraps(command)
    def told(*args: Any, quiet: bool, json: bool, **kwargs: Any) -> None:
        with _telling(Audience(quiet, json)):
            command(*args, **kwargs)

    own = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
        for name, option in OPTIONS.items()
    ]
    told.__signature__ = own.replace(parameters=[*own.parameters.values(), *more])  # type: ignore[attr-defined]
    return told


@contextmanager
def _telling(whom: Audience) -> Iterator[None]:
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
    """Tell whoever is to be told of runs, each in its own folder of ``output`` if they are a series."""
    if audience.json:
        yield functools.partial(_for_machines, series, output)
    elif audience.quiet:
        yield lambda _name, _setup: lambda _k, _iterations, _rows: None
    else:
        with Progress(_Line(), console=err, disable=not err.is_terminal) as bars:
            yield functools.partial(_for_people, series, bars)


def note(text: str) -> None:
    """Tell people something that is neither what they asked for nor a warning."""
    if not audience.quiet:
        say(text, err)


def ended(name: str, folder: Path, result: Result) -> None:
    """Tell machines how a run ended; for people see `show_final`."""
    if not audience.json:
        return
    how = {"stopped": result.stopped, "made": result.iterations, "iterations": result.config["iterations"]}
    how |= {"diverged": sorted(result.diverged), "output": str(folder)}
    tell("end", name, how | mean_row(result.last))


def tell(event: str, name: str, fields: Row) -> None:
    """Tell machines something; people are shown it otherwise."""
    if audience.json:
        _say_line(event, name, fields)


class Pace:
    """How long a run will take, judged from when it was first told of: one that is resumed does not begin at 0."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def update(self, k: int, iterations: int) -> None:
        """Of this many iterations, k are made."""
        self._last = (k, time.monotonic())
        self._first, self._iterations = self._first or self._last, iterations

    @property
    def left(self) -> float | None:
        """Seconds until the last iteration, if there is something to judge from."""
        if self._first is None or self._last[0] == self._first[0]:
            return None
        (first, began), (k, told) = self._first, self._last
        return max(0.0, (told - began) / (k - first) * (self._iterations - k) - (time.monotonic() - told))

    @property
    def words(self) -> str:
        """The time left on a clock; when there is none, the time that was needed."""
        if self._first is None or self._last[0] == self._iterations:
            return f"in {_clock(self._last[1] - self._first[1])}" if self._first else ""
        return "-:--" if self.left is None else _clock(self.left)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _for_machines(series: Sequence[str], output: Path | None, name: str, setup: Setup) -> Report:
    folder = None if output is None else str(output / name if name in series else output)
    _say_line("begin", name, {"output": folder, "config": setup.config()})
    pace = Pace()

    def update(k: int, iterations: int, rows: Sequence[Row]) -> None:
        pace.update(k, iterations)
        if rows:
            known = {"k": k, "iterations": iterations, "trials": len(rows), "seconds_left": pace.left}
            _say_line("observation", name, known | mean_row(rows))

    return update


def _say_line(event: str, name: str, fields: Row) -> None:
    say(format_rows([{"event": event, "run": name, **fields}]).rstrip(), lines)


def _for_people(series: Sequence[str], bars: Progress, name: str, setup: Setup) -> Report:
    """A bar on a terminal; elsewhere a line as a run ends, and now and then before."""
    place = f"run {series.index(name) + 1} of {len(series)}:" if len(series) > 1 else ""
    pace, told = Pace(), time.monotonic()
    task = bars.add_task(name, total=setup.iterations, series=place, pace=pace, measures={})

    def update(k: int, iterations: int, rows: Sequence[Row]) -> None:
        nonlocal told
        pace.update(k, iterations)
        bars.update(task, completed=k)
        if not rows:
            return
        measures = _measures(mean_row(rows))
        bars.update(task, measures=measures)
        if not err.is_terminal and (k == iterations or time.monotonic() > told + SILENCE):
            told = time.monotonic()
            left = "" if k == iterations or pace.left is None else f", {pace.words} left"
            say(f"{place} {name}: {k} of {iterations} iterations, {' '.join(measures.values())}{left}".lstrip(), err)

    return update


def _measures(means: Row) -> dict[str, str]:
    return {name: f"{shown} {means[name]:.2g}" for name, shown in SHOWN.items() if name in means}


class _Line(ProgressColumn):
    """A run in one line, as wide as the terminal; what does not fit is left out."""

    def render(self, task: Task) -> Text:
        fields = task.fields
        parts = {"series": fields["series"], "name": task.description, "k": _of(task.completed, task.total)}
        parts = _fitted({**parts, **fields["measures"], "time": fields["pace"].words}, err.width)
        texts = {name: Text(part) for name, part in parts.items()}
        columns = min(BAR[1], err.width - _width(parts) - 1)
        if columns >= BAR[0]:
            done = round(columns * task.percentage / 100)
            texts["name"] += Text.assemble(" ", ("━" * done, "bar.complete"), ("─" * (columns - done), "bar.back"))
        return Text(" ", no_wrap=True, overflow="ellipsis").join(texts.values())


def _of(k: float, iterations: float | None) -> str:
    """As wide at the beginning as at the end, so that what is left out does not change all the time."""
    last = f"{iterations:.0f}"
    return f"{k:{len(last)}.0f}/{last}"


def _fitted(parts: Mapping[str, str], width: int) -> dict[str, str]:
    """The parts that fit side by side."""
    kept = {name: part for name, part in parts.items() if part}
    for name in DROPPED:
        if _width(kept) <= width:
            break
        kept.pop(name, None)
    return kept


def _width(parts: Mapping[str, str]) -> int:
    return cell_len(" ".join(parts.values()))
