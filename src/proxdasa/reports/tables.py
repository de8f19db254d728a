"""The table of a set of runs: how fast, how far, and how both scale with the number of agents."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proxdasa.reports.curves import Run


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
            *run.final("stationarity"),
            run.final("consensus")[0],
            run.final("loss")[0],
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
    finals = [loss for loss in (run.final("loss")[0] for run in runs) if np.isfinite(loss)]
    worst = max(finals, default=np.nan)
    if not worst > 0:
        return worst / 2
    first = min(float(run.lowest("loss")[0]) for run in runs)
    return min(2 * worst, (first * worst) ** 0.5) if first > worst else worst


def slope(n: Sequence[float], values: Sequence[float]) -> float:
    """The p of a least-squares fit log value = p log n + c; NaN if a value is missing or not positive."""
    if not all(np.isfinite(value) and value > 0 for value in values):
        return float("nan")
    return float(np.polyfit(np.log(n), np.log(values), 1)[0])


def write_csv(table: Table, path: Path) -> Path:
    """The lines as comma-separated values."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Line.__dataclass_fields__)
        writer.writerows(tuple(vars(line).values()) for line in table.lines)
    return path
