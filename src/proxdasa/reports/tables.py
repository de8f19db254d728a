"""The tables of a set of runs.

`summarise`: how fast, how far, and how both scale with the number of agents. `compare`: methods beside each other and
beside published values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proxdasa.reports.curves import Run, distinctions, names
from proxdasa.reports.endings import diverged
from proxdasa.reports.quantities import words
from proxdasa.reports.sheets import Cell, Sheet

EXPLANATION = (
    "± is half the width of the 95% confidence interval of the mean over trials; brackets hold the smallest and the "
    "largest trial. The time is that of the simulation, all trials together."
)

MEASURES = ("stationarity", "consensus", "loss")
"""What the summary has of the end of a run."""


@dataclass(frozen=True)
class Line:
    """One run of the table."""

    method: str
    run: str
    agents: int
    iterations_to_target: float
    """Mean over trials of the first observed iteration with loss at most the target; NaN if a trial never got there."""
    stationarity: float
    stationarity_half_width: float
    consensus: float
    loss: float
    lost: Sequence[str] = ()
    """Measures that have no value at the end because the run diverged."""


@dataclass(frozen=True)
class Slope:
    """Exponents p of a fit value ∝ n^p over the runs of one method."""

    method: str
    iterations_to_target: float
    stationarity: float


@dataclass(frozen=True)
class Table:
    """All lines, the target loss they refer to, and the slopes where a method ran with three or more sizes."""

    target: float
    lines: list[Line]
    slopes: list[Slope]

    @property
    def title(self) -> str:
        """What the table is about."""
        if math.isnan(self.target):
            return "measures at the end; no run has a finite loss there"
        return f"iterations k to a loss of {self.target:.4g}, and measures at the end"

    def sheet(self) -> Sheet:
        """The table as people read it, with the slopes as notes."""
        columns = {
            "method": "method",
            "run": "run",
            "iterations_to_target": "k to target",
            "stationarity": "‖G‖² ± 95%",
            "consensus": "consensus",
            "loss": "loss",
        }
        notes = [
            f"{slope.method}: iterations to target {_power(slope.iterations_to_target)}, "
            f"final ‖G‖² {_power(slope.stationarity)}"
            for slope in self.slopes
        ]
        return Sheet(columns, [_cells(line) for line in self.lines], notes)


def summarise(runs: Sequence[Run], target: float | None = None) -> Table:
    """Summarise runs; by default with a target that every run that came to its end has met: see `default_target`."""
    if target is None:
        target = default_target([run for run in runs if run.ending is None] or runs)
    lines = [
        Line(
            run.title,
            run.label,
            run.agents,
            float(np.mean(run.first_below("loss", target))),
            *run.final("stationarity")[:2],
            run.final("consensus").mean,
            run.final("loss").mean,
            [measure for measure in MEASURES if _lost(run, measure)],
        )
        for run in runs
    ]
    slopes = []
    for method in dict.fromkeys(line.method for line in lines):
        mine = [line for line in lines if line.method == method]
        if len(mine) >= 3 and len({line.agents for line in mine}) == len(mine):
            n = [line.agents for line in mine]
            slopes.append(
                Slope(
                    method,
                    slope(n, [line.iterations_to_target for line in mine]),
                    slope(n, [line.stationarity for line in mine]),
                )
            )
    return Table(target, lines, slopes)


def default_target(runs: Sequence[Run]) -> float:
    """Twice the largest final loss, or half of it if it is negative; NaN if no run has a finite final loss.

    After a short run, twice the final loss may be above the first. The target is therefore at most the geometric mean
    of the largest final loss and the smallest first loss of any trial: half of the way, on a log scale.
    """
    finals = [loss for loss in (run.final("loss").mean for run in runs) if np.isfinite(loss)]
    worst = max(finals, default=np.nan)
    if not worst > 0:
        return worst / 2
    first = min(float(run.curve("loss").lowest[0]) for run in runs)
    return min(2 * worst, (first * worst) ** 0.5) if first > worst else worst


def slope(n: Sequence[float], values: Sequence[float]) -> float:
    """The p of a least-squares fit log value = p log n + c; NaN if a value is missing or not positive."""
    if not all(np.isfinite(value) and value > 0 for value in values):
        return float("nan")
    return float(np.polyfit(np.log(n), np.log(values), 1)[0])


def _cells(line: Line) -> list[str]:
    reached = "not by all" if math.isnan(line.iterations_to_target) else f"{line.iterations_to_target:.0f}"
    numbers = {measure: getattr(line, measure) for measure in MEASURES}
    missing = {measure: "diverged" if measure in line.lost else "not recorded" for measure in MEASURES}
    shown = [missing[measure] if math.isnan(number) else f"{number:.3g}" for measure, number in numbers.items()]
    shown[0] += f" ± {line.stationarity_half_width:.2g}" if line.stationarity_half_width > 0 else ""
    return [line.method, line.run, reached, *shown]


def _lost(run: Run, measure: str) -> bool:
    return math.isnan(run.final(measure).mean) and run.has(measure) and bool(diverged(run))


def _power(exponent: float) -> str:
    return "has no fit (a value is missing or 0)" if math.isnan(exponent) else f"∝ n^{exponent:.2f}"


def write_csv(table: Table, path: Path) -> Path:
    """The lines as comma-separated values."""
    fields = [name for name in Line.__dataclass_fields__ if name != "lost"]
    rows = [[getattr(line, name) for name in fields] for line in table.lines]
    return Sheet(dict.fromkeys(fields, ""), rows).write_csv(path)


def compare(
    runs: Sequence[Run],
    published: Mapping[str, Mapping[str, float]],
    measures: Sequence[str] = ("accuracy", "loss", "table_stationarity"),
) -> Sheet:
    """A row per run: its measures at the end over trials, each beside the value published of the same method.

    ``published`` holds values by method and measure, accuracy in percent. Measures that no run recorded, and columns
    of published values without any, are left out. The last column is the simulation's time per iteration.
    """
    columns: dict[str, tuple[str, Sequence[Cell]]] = {"method": ("method", [run.title for run in runs])}
    if any(labels := distinctions(runs)):
        columns["run"] = "run", labels
    columns["trials"] = "trials", [run.trials for run in runs]
    for measure in measures:
        if any(run.has(measure) for run in runs):
            columns[measure] = words(measure).name, [run.final(measure) for run in runs]
            known = [published.get(run.title, {}).get(measure, np.nan) for run in runs]
            if not np.isnan(known).all():
                columns[f"{measure}_published"] = "published", known
    columns["milliseconds"] = words("milliseconds").name, [run.final("milliseconds").mean for run in runs]
    notes = [f"{name}: {run.ending}." for name, run in zip(names(runs), runs, strict=True) if run.ending]
    return Sheet(
        {name: heading for name, (heading, _) in columns.items()},
        list(zip(*(cells for _, cells in columns.values()), strict=True)),
        [EXPLANATION, *notes],
    )
