"""The table and figures of the study of imperfect networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from proxdasa.reports.axis_quantities import quantity
from proxdasa.reports.curves import Array, Curve, Run, Spread, finals, spread
from proxdasa.reports.figures import ceiling
from proxdasa.reports.panels import Panel, draw_panels
from proxdasa.reports.table_files import Cell, Sheet

AXES = {"loss": "share of messages lost", "out": "share of time that agents are out"}
"""The kinds of conditions that have a level, and what the level is."""


class ImperfectRun(NamedTuple):
    """A run of the study, and its conditions."""

    run: Run
    split: str
    """How the data are divided, such as "agents alike"."""
    kind: str
    """"perfect", "loss", "out" or "bytes"."""
    level: str
    """A number in the kinds of `AXES`, or the name of a compressor."""

    @property
    def condition(self) -> str:
        """What is imperfect, in words."""
        words = {
            "perfect": "perfect network",
            "loss": "{:.0%} of messages lost",
            "out": "agents out {:.0%} of the time",
        }
        if self.kind not in words:
            return f"messages as {self.level}"
        return words[self.kind].format(float(self.level or 0))

    @property
    def complete(self) -> bool:
        """Whether no trial diverged."""
        return self.run.trials == len(self.run.began)


def robustness_sheet(runs: Sequence[ImperfectRun], measure: str) -> Sheet:
    """A measure at the end: a row for each division of the data and condition, a column for each method."""
    methods = list(dict.fromkeys(each.run.title for each in runs))
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    for each in runs:
        cell: Cell = each.run.final(measure) if each.complete else "diverged"
        rows.setdefault((each.split, each.condition), {})[each.run.title] = cell
    columns = {"data": "data", "network": "network"} | {title: title for title in methods}
    table = [[*where, *(cells.get(title, math.nan) for title in methods)] for where, cells in rows.items()]
    return Sheet(columns, table)


def draw_imperfections(runs: Sequence[ImperfectRun], path: Path) -> Path:
    """Draw the final objective and consensus error against how imperfect the network is; a curve for each method.

    A method has no point where one of its trials diverged.
    """
    grid = []
    for measure in ("objective", "consensus"):
        row = []
        for kind, axis in AXES.items():
            for split in dict.fromkeys(each.split for each in runs):
                mine = {
                    each.run: float(each.level or 0)
                    for each in runs
                    if each.split == split and each.kind in ("perfect", kind) and each.complete
                }
                look = quantity(measure)
                row.append(Panel(split, axis, f"final {look.name}", finals(list(mine), mine.__getitem__, measure)))
        grid.append(row)
    return draw_panels(grid, path)


def draw_bytes(runs: Sequence[ImperfectRun], path: Path) -> Path:
    """Draw the objective against bytes sent: a row for each division of the data, a column for each method.

    Each curve is a way to make messages small.
    """
    small = [each for each in runs if each.kind in ("perfect", "bytes") and each.complete]
    titles = [each.run.title for each in small if each.kind == "bytes"]
    grid = []
    for split in dict.fromkeys(each.split for each in small):
        row = []
        for title in dict.fromkeys(titles):
            mine = [each for each in small if (each.split, each.run.title) == (split, title)]
            curves = [replace(each.run, label=each.level or "full").curve("objective", "bytes") for each in mine]
            curves = [Curve(c.label, c.x[1:], c.mean[1:], c.half[1:], c.lowest[1:]) for c in curves]  # 0 bytes
            limits = (None, ceiling(curves))
            labels = quantity("bytes").label, f"{quantity('objective').name}, {split}"
            row.append(Panel(title, *labels, curves, log_x=True, y_range=limits))
        grid.append(row)
    return draw_panels(grid, path)


def rules_sheet(distances: Mapping[str, Mapping[str, Array]]) -> Sheet:
    """How far from the solution each rule for lost messages ends: a row for each rule, a column for each problem."""
    by_rule = {rule: [values[rule] for values in distances.values()] for rule in next(iter(distances.values()))}
    rows: list[list[Cell]] = [[rule, *(spread(list(each[-1])) for each in values)] for rule, values in by_rule.items()]
    return Sheet({"rule": "what happens to the weight"} | {title: title for title in distances}, rows)


def draw_rules(distances: Mapping[str, Mapping[str, Array]], every: int, path: Path) -> Path:
    """Draw how far from the solution each rule for lost messages ends; a panel for each problem.

    ``distances`` has values ``[observations, trials]`` by problem and rule, with ``every`` iterations between
    observations.
    """
    row = []
    for title, rules in distances.items():
        curves = [_curve(rule, values, every) for rule, values in rules.items()]
        row.append(Panel(title, quantity("k").label, "distance to the solution", curves))
    return draw_panels([row], path)


def _curve(label: str, values: Array, every: int) -> Curve:
    points: list[Spread] = [spread(list(row)) for row in values]
    mean, half, lowest, _ = np.array(points).T
    return Curve(label, every * np.arange(len(values), dtype=float), mean, half, lowest)
