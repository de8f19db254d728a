"""Runs as reports see them, and the curves and final values of their measures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from proxdasa.reports.axis_quantities import value
from proxdasa.runs import records

Array = NDArray[np.float64]


class Spread(NamedTuple):
    """A measure over trials: its mean, half the width of the mean's confidence interval, smallest and largest.

    The interval is Student's at 95%: mean ± t(0.975, T − 1) s/√T over T trials. One trial has none: NaN.
    """

    mean: float
    half: float
    lowest: float
    highest: float


def spread(values: Sequence[float]) -> Spread:
    """The spread of one value per trial; NaN if one of them is."""
    v = np.array(values, dtype=float)
    half = stdtrit(len(v) - 1, 0.975) * v.std(ddof=1) / len(v) ** 0.5 if len(v) > 1 else math.nan
    return Spread(float(v.mean()), float(half), float(v.min()), float(v.max()))


@dataclass(frozen=True, eq=False)
class Curve:
    """A line to draw: means over trials at each x, half the widths of their intervals, and the smallest trials."""

    label: str
    x: Array
    mean: Array
    half: Array
    lowest: Array


@dataclass(frozen=True, eq=False)
class Run:
    """One results folder, or the trials of one that share their parameters, as far as a report needs it.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=20, trials=2)
        >>> (run,) = reports.load_runs([result.save("results/dpsgd")])
        >>> run.title, run.agents, run.trials
        ('D-PSGD', 3, 2)
        >>> f"{run.final('loss').mean:.3f}"
        '-1.000'
    """

    title: str
    """The method."""
    label: str
    """What distinguishes the run from others of the same method."""
    agents: int
    config: Mapping[str, Any]
    rows: Sequence[records.Row]
    ending: str | None = None
    """A sentence on how the run ended, if not as planned."""
    folder: Path | None = None
    began: Sequence[int] = ()
    """The numbers of the trials that the run began with."""

    def has(self, quantity: str) -> bool:
        """Whether any record has a finite value of the quantity."""
        return any(math.isfinite(value(row, quantity)) for row in self.rows)

    def curve(self, measure: str, axis: str = "k") -> Curve:
        """A measure against iterations, or against the mean over trials of another quantity at each observation.

        The mean is NaN where the measure was not recorded.
        """
        x = [float(np.mean(values)) for values in self._by_k(axis)]
        return _through(self.label, x, [spread(values) for values in self._by_k(measure)])

    def final(self, measure: str) -> Spread:
        """The measure at the end, over the trials that reached it."""
        return spread(self._by_k(measure)[-1])

    @property
    def trials(self) -> int:
        """How many trials reached the end."""
        return len(self._by_k("k")[-1])

    def _by_k(self, quantity: str) -> list[list[float]]:
        groups: dict[int, list[float]] = {}
        for row in self.rows:
            groups.setdefault(row["k"], []).append(value(row, quantity))
        return list(groups.values())

    def first_below(self, measure: str, target: float) -> list[float]:
        """For each trial the first observed iteration at which the measure is at most the target (NaN if never)."""
        first: dict[int, float] = {}
        for row in self.rows:
            first.setdefault(row["trial"], np.nan)
            if np.isnan(first[row["trial"]]) and value(row, measure) <= target:
                first[row["trial"]] = row["k"]
        return list(first.values())


def distinctions(runs: Sequence[Run]) -> list[str]:
    """The labels of the runs, empty where the method alone distinguishes a run."""
    times = Counter(run.title for run in runs)
    return [run.label if times[run.title] > 1 else "" for run in runs]


def names(runs: Sequence[Run]) -> list[str]:
    """The names of the runs: their methods, with labels where a method occurs more than once."""
    return [", ".join(filter(None, (run.title, more))) for run, more in zip(runs, distinctions(runs), strict=True)]


def finals(
    runs: Sequence[Run],
    x: Callable[[Run], float],
    measure: str,
    label: Callable[[Run], str] = attrgetter("title"),
) -> list[Curve]:
    """A measure at the end of runs against a parameter x of the runs: one curve per label, by default per method."""
    curves = []
    for name in dict.fromkeys(map(label, runs)):
        mine = sorted((run for run in runs if label(run) == name), key=x)
        curves.append(_through(name, [x(run) for run in mine], [run.final(measure) for run in mine]))
    return curves


def _through(label: str, x: Sequence[float], points: Sequence[Spread]) -> Curve:
    mean, half, lowest, _ = np.array(points).T
    return Curve(label, np.array(x, dtype=float), mean, half, lowest)
