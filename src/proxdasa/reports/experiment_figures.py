"""The tables and figures of three experiments.

They compare methods on uneven data, communication rounds on different graphs, and what keeps a network on a plateau.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from proxdasa.reports.axis_quantities import quantity, value
from proxdasa.reports.curves import Run, finals, spread
from proxdasa.reports.figures import second_half, shown_curve
from proxdasa.reports.panels import Panel, draw_panels
from proxdasa.reports.ranking import quantity_of
from proxdasa.reports.table_files import INTERVALS, Cell, Sheet

LEVEL_MEASURES = ("consensus", "table_stationarity", "loss", "lowest_accuracy")
"""Measures that uneven data may make worse. Stationarity is at γ = 1, because D-PSGD's own γ differs from that of the
others."""


def draw_levels(shares: Mapping[Run, float], path: Path) -> Path:
    """Draw runs on data of different unevenness, given as the share of an agent's largest class.

    The upper row has the final measures against that share. The lower row has the measures against iterations, for the
    runs on the most uneven data only.
    """
    runs, most = list(shares), max(shares.values())
    extreme = [run for run in runs if shares[run] == most]
    upper, lower = [], []
    for measure in LEVEL_MEASURES:
        look = quantity(measure)
        ends = finals(runs, lambda run: shares[run], measure)
        upper.append(Panel("at the end", "share of the largest class", f"final {look.name}", ends, log_y=look.log))
        curves = [shown_curve(replace(run, label=run.title), measure) for run in extreme]
        y_range = (None, None) if look.log else second_half(curves)
        lower.append(Panel(extreme[0].label, quantity("k").label, look.label, curves, log_y=look.log, y_range=y_range))
    return draw_panels([upper, lower], path)


class GraphRun(NamedTuple):
    """A run of the study of graphs, and what it ran on."""

    run: Run
    graph: str
    rho: float
    mixing: str
    """Such as "gossip, ⌈1/(1 − ρ)⌉ rounds"; the table shows the part before the comma."""
    m: int
    """Rounds in an iteration."""
    budget: int
    """Rounds that the whole run was allowed."""


def rounds_sheet(runs: Sequence[GraphRun]) -> Sheet:
    """The final stationarity: a row for each graph and mixing, a column for each number of rounds."""
    rows: dict[tuple[str, str], list[Cell]] = {}
    for each in runs:
        first: list[Cell] = [each.graph, each.rho, each.mixing.partition(",")[0], each.m]
        rows.setdefault((each.graph, each.mixing), first).append(each.run.final("stationarity"))
    columns = {"graph": "graph", "rho": "ρ", "mixing": "mixing", "m": "m"}
    columns |= {f"rounds_{each.budget}": f"{each.budget:,} rounds" for each in runs}
    return Sheet(columns, list(rows.values()))


def draw_rounds(runs: Sequence[GraphRun], path: Path) -> Path:
    """Draw final stationarity and consensus error against the number of rounds: a column per graph, a curve per mixing.

    On a complete graph agents agree up to rounding, so there is no consensus error to show.
    """
    every, labels = [each.run for each in runs], {each.run: each.mixing for each in runs}
    grid = []
    for measure in ("stationarity", "consensus"):
        row = []
        for graph in dict.fromkeys(each.graph for each in runs):
            if measure == "consensus" and graph == "complete":
                continue
            mine = [each.run for each in runs if each.graph == graph]
            curves = finals(mine, lambda run: run.final("rounds").mean, measure, lambda run: labels[run])
            row.append(Panel(graph, quantity("rounds").label, quantity_of(measure, every).label, curves, log_x=True))
        grid.append(row)
    return draw_panels(grid, path)


def plateau_sheet(runs: Mapping[str, Run], above: float) -> Sheet:
    """How many trials of each run left a plateau, and where they are at the end.

    A trial has left it if it ends with an accuracy in per cent above ``above``; one that diverged has not.
    """
    rows: list[list[Cell]] = []
    for name, run in runs.items():
        end = max(row["k"] for row in run.rows)
        left = [row for row in run.rows if row["k"] == end and value(row, "accuracy") > above]
        measured: list[Cell] = [
            spread([value(row, measure) for row in left]) if left else "none"
            for measure in ("accuracy", "loss", "density")
        ]
        rows.append([name, f"{len(left)} of {len(run.began)}", run.final("accuracy"), *measured])
    columns = {"run": "Prox-DASA", "left": "left the plateau", "accuracy": "accuracy % of all"}
    columns |= {"accuracy_left": "accuracy % of those", "loss_left": "their loss", "density_left": "their density"}
    note = f"A trial has left the plateau if its test accuracy at the end is above {above:g}%."
    return Sheet(columns, rows, [note, INTERVALS])
