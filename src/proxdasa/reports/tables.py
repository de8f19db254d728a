"""The tables of a set of runs.

`summarise` shows how fast runs are, how far they get, and how both scale with the number of agents. `compare` shows
methods next to each other and next to published values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from proxdasa.reports.axis_quantities import quantity
from proxdasa.reports.curves import Run, distinctions, names
from proxdasa.reports.ranking import alike, difference, own_gamma, quantity_of, stationarity_of
from proxdasa.reports.run_endings import divergences, loss_of
from proxdasa.reports.table_files import INTERVALS, Cell, Sheet
from proxdasa.runs.records import Row

EXPLANATION = f"{INTERVALS} The time is that of the simulation, all trials together."

ENDS = ("stationarity", "table_stationarity", "consensus", "loss", "objective")
"""The final measures in the summary."""
UNLIKE = (
    "stationarity is at the γ of each run, so it cannot compare these runs: they differ in γ, or γ was not recorded. "
    "Record table_stationarity to compare them at γ = 1"
)


@dataclass(frozen=True)
class Line:
    """One run of the table."""

    method: str
    run: str
    agents: int
    gamma: float
    """The γ of its own stationarity; NaN if it was not recorded."""
    iterations_to_target: float
    """Mean over trials of the first observed iteration with loss at most the target; NaN if a trial never got there."""
    stationarity: float
    """At the run's own γ."""
    stationarity_half_width: float
    table_stationarity: float
    """At γ = 1."""
    table_stationarity_half_width: float
    consensus: float
    loss: float
    objective: float
    lost: Mapping[str, str] = field(default_factory=dict)
    """Measures that were recorded and have no value at the end, and why: the run diverged, or they are not finite."""
    diverged: str = ""
    """How many trials diverged, if there are other runs: the means over its remaining trials would flatter this run."""


@dataclass(frozen=True)
class Slope:
    """Exponents p of a fit value ∝ n^p over the runs of one method."""

    method: str
    iterations_to_target: float
    stationarity: float
    measured: str = "‖G‖²"
    """What the stationarity is called."""


@dataclass(frozen=True)
class Table:
    """All lines, the target loss they refer to, and the slopes where a method ran with three or more sizes.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=10)
        >>> table = reports.summarise(reports.load_runs([result.save("results/dpsgd")]), target=-0.9)
        >>> table.target, len(table.lines)
        (-0.9, 1)
    """

    target: float
    lines: list[Line]
    slopes: list[Slope]
    stationarity: str = "stationarity"
    """Which stationarity is shown: at γ = 1 for all runs, unless their own γ is the same anyway."""
    heading: str = "stationarity at own γ"
    """What the stationarity is called."""
    notes: Sequence[str] = ()
    """Notes on the stationarity."""
    networks_differ: bool = False
    """Whether runs are on different networks, so that the method does not identify the run of a line."""

    @property
    def title(self) -> str:
        """The title of the table."""
        if math.isnan(self.target):
            return "measures at the end; no run has a finite loss there"
        return f"iterations k to a loss of {self.target:.4g}, and measures at the end"

    def sheet(self) -> Sheet:
        """The table as people read it, with the slopes as notes."""
        columns = {
            "method": "method",
            "run": "run",
            "iterations_to_target": "k to target",
            self.stationarity: f"{self.heading} ± 95%",
            "consensus": "consensus",
            "loss": "loss",
        }
        notes = [
            f"{slope.method}: iterations to target {_power(slope.iterations_to_target)}, "
            f"final {slope.measured} {_power(slope.stationarity)}"
            for slope in self.slopes
        ]
        rows = [self._cells(line) for line in self.lines]
        if len({line.method for line in self.lines}) == len(self.lines) > 1 and not self.networks_differ:
            del columns["run"]
            rows = [[method, *rest] for method, _, *rest in rows]
        return Sheet(columns, rows, [*self.notes, *notes])

    def _cells(self, line: Line) -> list[str]:
        reached = "not by all" if math.isnan(line.iterations_to_target) else f"{line.iterations_to_target:.0f}"
        shown = []
        for measure in (self.stationarity, "consensus", "loss"):
            number, half = getattr(line, measure), getattr(line, f"{measure}_half_width", math.nan)
            missing = line.lost.get(measure, "not recorded")
            recorded = line.diverged or f"{number:.3g}" + (f" ± {half:.2g}" if half > 0 else "")
            shown.append(recorded if math.isfinite(number) else missing)
        return [line.method, line.run, reached, *shown]


def summarise(runs: Sequence[Run], target: float | None = None) -> Table:
    """Summarise runs; the default target is one that every finished run has met: see `default_target`.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=10, observe_every=1)
        >>> table = reports.summarise(reports.load_runs([result.save("results/dpsgd")]), target=-0.9)
        >>> [(line.method, line.iterations_to_target) for line in table.lines]
        [('D-PSGD', 2.0)]
    """
    if target is None:
        target = default_target([run for run in runs if run.ending is None] or runs)
    lines = [
        Line(
            run.title,
            run.label,
            run.agents,
            math.nan if (gamma := own_gamma(run)) is None else gamma,
            float(np.mean(run.first_below("loss", target))),
            *run.final("stationarity")[:2],
            *run.final("table_stationarity")[:2],
            run.final("consensus").mean,
            run.final("loss").mean,
            run.final("objective").mean,
            {measure: why for measure in ENDS if (why := _lost(run, measure))},
            loss_of(run) if len(runs) > 1 else "",
        )
        for run in runs
    ]
    slopes = []
    for method in dict.fromkeys(line.method for line in lines):
        mine = [line for line in lines if line.method == method]
        if len(mine) >= 3 and len({line.agents for line in mine}) == len(mine):
            slopes.append(_slopes(mine, [run for run in runs if run.title == method]))
    measure = stationarity_of(runs)
    notes = [UNLIKE] if measure == "stationarity" and not alike(runs) and any(run.has(measure) for run in runs) else []
    if any(run.has("loss") for run in runs) and (why := difference("loss", runs)):
        notes.append(f"{why}, so their losses, and iterations to a loss, may not compare")
    elif any(run.has(measure) for run in runs) and (why := difference(measure, runs)):
        notes.append(f"{why}, so their {quantity_of(measure, runs).name} may not compare")
    differ = any(run.config.get("network") != runs[0].config.get("network") for run in runs)
    return Table(target, lines, slopes, measure, quantity_of(measure, runs).name, notes, differ)


def _slopes(lines: Sequence[Line], runs: Sequence[Run]) -> Slope:
    """The exponents of one method's runs; those of ‖G‖² at the runs' own γ only if it is the same for all."""
    n, measure = [line.agents for line in lines], stationarity_of(runs)
    ends = [getattr(line, measure) if alike(runs) or measure == "table_stationarity" else math.nan for line in lines]
    measured = "‖G‖²" if measure == "stationarity" else quantity_of(measure, runs).name
    return Slope(lines[0].method, slope(n, [line.iterations_to_target for line in lines]), slope(n, ends), measured)


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


def _lost(run: Run, measure: str) -> str:
    """Why a measure that was recorded has no value at the end; empty if it has one, or was not recorded there."""
    if math.isfinite(run.final(measure).mean) or not run.has(measure):
        return ""
    return "diverged" if divergences(run) else "not finite" if measure in run.rows[-1] else ""


def _power(exponent: float) -> str:
    return "has no fit (a value is missing or 0)" if math.isnan(exponent) else f"∝ n^{exponent:.2f}"


def write_csv(table: Table, path: Path) -> Path:
    """Write the lines as comma-separated values.

    Examples:
        >>> from pathlib import Path
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=10)
        >>> table = reports.summarise(reports.load_runs([result.save("results/dpsgd")]), target=-0.9)
        >>> reports.write_csv(table, Path("table.csv")).read_text().splitlines()[0][:23]
        'method,run,agents,gamma'
    """
    fields = [name for name in Line.__dataclass_fields__ if name not in ("lost", "diverged")]
    rows = [[getattr(line, name) for name in fields] for line in table.lines]
    return Sheet(dict.fromkeys(fields, ""), rows).write_csv(path)


def compare(
    runs: Sequence[Run],
    published: Mapping[str, Mapping[str, float]],
    measures: Sequence[str] = ("accuracy", "loss", "table_stationarity"),
) -> Sheet:
    """A row per run: its final measures over trials, each next to the value published for the same method.

    ``published`` holds values by method and measure, accuracy in percent. Measures that no run recorded, and columns
    of published values without any, are left out. The last column is the simulation's time per iteration.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=10, trials=2)
        >>> runs = reports.load_runs([result.save("results/dpsgd")])
        >>> sheet = reports.compare(runs, published={"D-PSGD": {"loss": -0.9}}, measures=["loss"])
        >>> list(sheet.columns)
        ['method', 'trials', 'loss', 'loss_published', 'milliseconds']
    """
    columns: dict[str, tuple[str, Sequence[Cell]]] = {"method": ("method", [run.title for run in runs])}
    if any(labels := distinctions(runs)):
        columns["run"] = "run", labels
    columns["trials"] = "trials", [run.trials for run in runs]
    for measure in measures:
        if any(run.has(measure) for run in runs):
            columns[measure] = quantity(measure).name, [run.final(measure) for run in runs]
            known = [published.get(run.title, {}).get(measure, np.nan) for run in runs]
            if not np.isnan(known).all():
                columns[f"{measure}_published"] = "published", known
    columns["milliseconds"] = quantity("milliseconds").name, [run.final("milliseconds").mean for run in runs]
    notes = [f"{name}: {run.ending}." for name, run in zip(names(runs), runs, strict=True) if run.ending]
    return Sheet(
        {name: heading for name, (heading, _) in columns.items()},
        list(zip(*(cells for _, cells in columns.values()), strict=True)),
        [EXPLANATION, *notes],
    )


def shorten_comparison(sheet: Sheet) -> Sheet:
    """The table of `compare` for a terminal: published values in brackets after ours, and fewer columns."""
    shown = {
        name: heading
        for name, heading in sheet.columns.items()
        if name not in ("trials", "milliseconds") and not name.endswith("_published")
    }
    rows = []
    for row in sheet.texts(brief=True):
        cells = dict(zip(sheet.columns, row, strict=True))
        published = {name: f" ({cells[other]})" for name in shown if (other := f"{name}_published") in cells}
        rows.append([cells[name] + published.get(name, "") for name in shown])
    has_published = any(name.endswith("_published") for name in sheet.columns)
    explanation = "mean over trials ± half the width of its 95% interval" + " (published value)" * has_published
    return Sheet(shown, rows, [explanation, *(note for note in sheet.notes if note != EXPLANATION)])


def end_sheet(rows: Sequence[Row]) -> Sheet:
    """The measures at the end of a run, from the last record of each trial."""
    columns = {"measure": "measure", "mean": "mean", "smallest": "smallest", "largest": "largest"}
    cells = []
    for name in (name for name in rows[0] if name not in ("trial", "k")):
        values = [float(row[name]) for row in rows]
        cells.append([name, *map(_brief, (sum(values) / len(values), min(values), max(values)))])
    return Sheet(columns, cells)


def _brief(number: float) -> str:
    """Four significant digits, but all digits of a count."""
    return f"{number:,.0f}" if number.is_integer() and abs(number) < 1e9 else f"{number:.4g}"
