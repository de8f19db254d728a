"""Graphs side by side: agents as dots, edges as lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from proxdasa.reports.curves import Array
from proxdasa.reports.looks import PALETTE
from proxdasa.reports.network_drawings import MOST_AGENTS, MOST_EDGES, Pairs, layout
from proxdasa.reports.panels import WIDTH, save

BESIDE = 4
"""Graphs in a row."""
COLUMNS = {"grid": "columns", "torus": "columns", "ladder": "rungs", "path": "agents"}
"""The parameter that says how many agents are in a row, for graphs that are drawn in rows."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A graph with a title above and a note below it."""

    title: str
    note: str
    agents: int
    edges: Pairs
    recipe: Mapping[str, Any]
    """How the network was made, which decides the layout of some graphs."""


def draw_graphs(drawings: Sequence[Drawing], path: Path) -> Path:
    """Draw graphs in rows and write the file."""
    columns = min(BESIDE, len(drawings))
    rows = -(-len(drawings) // columns)
    side = WIDTH / BESIDE
    figure = Figure(figsize=(side * columns, (side + 0.55) * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, drawing in zip(axes, drawings, strict=False):
        _draw(ax, drawing)
    return save(figure, path)


def _draw(ax: Axes, drawing: Drawing) -> None:
    ax.set_title(drawing.title, fontsize=10)
    ax.text(0.5, -0.02, drawing.note, fontsize=9, linespacing=1.3, ha="center", va="top", transform=ax.transAxes)
    if drawing.agents > MOST_AGENTS or len(drawing.edges) > MOST_EDGES:
        ax.text(0.5, 0.5, "too large to draw", ha="center", va="center", transform=ax.transAxes)
        return
    places = _places(drawing)
    lines = places[drawing.edges]
    if drawing.recipe.get("name") == "torus":
        lines = _cut_open(lines)
    lengths = np.linalg.norm(lines[:, 1] - lines[:, 0], axis=1)
    shortest = float(lengths.min(initial=np.inf) / max(np.ptp(places, axis=0).max(), 1e-9))
    width = min(8.5, 80 * shortest, 90 / math.sqrt(drawing.agents))  # in points, at most half an edge
    ax.add_collection(LineCollection(list(lines), colors="0.6", linewidths=1.0 if len(lines) < 200 else 0.4, zorder=1))
    x, y = places.T
    ax.scatter(x, y, s=width**2, color=PALETTE[0], edgecolors="white", linewidths=0.4, zorder=2, clip_on=False)
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.08)


def _places(drawing: Drawing) -> Array:
    """The positions of the agents: in rows and columns, around the centre of a star, or by distances in the graph."""
    if (in_a_row := COLUMNS.get(str(drawing.recipe.get("name")))) is not None:
        columns = int(drawing.recipe[in_a_row])
        return np.array([(agent % columns, -(agent // columns)) for agent in range(drawing.agents)], dtype=float)
    if drawing.recipe.get("name") == "star":
        angles = 2 * np.pi * np.arange(drawing.agents - 1) / max(1, drawing.agents - 1)
        return np.vstack([np.zeros((1, 2)), np.stack([np.cos(angles), np.sin(angles)], axis=1)])
    return layout(drawing.agents, drawing.edges)


def _cut_open(lines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Edges around a torus as two ends that leave the square; as straight lines they would hide behind others."""
    start, end = lines[:, 0], lines[:, 1]
    around = np.abs(end - start).sum(axis=1) > 1.5
    out = 0.45 * np.sign(end - start)[around]
    ends = [np.stack([start[around], start[around] - out], axis=1), np.stack([end[around], end[around] + out], axis=1)]
    return np.concatenate([lines[~around], *ends])
