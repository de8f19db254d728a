"""The results of a search: tables of its settings, and a figure that shows where the good ones are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from proxdasa.reports.axis_quantities import quantity, value
from proxdasa.reports.curves import Array, Spread, spread
from proxdasa.reports.looks import PALETTE, Look
from proxdasa.reports.panels import WIDTH, save
from proxdasa.reports.table_files import Cell, Sheet, text

BLUE, ORANGE = PALETTE[:2]
SHADES = 1_000
"""Values larger than the best by more than this factor all have the same colour."""
ACROSS, DOWN = 14, 20
"""The most columns and rows of a heat map in which values are printed."""
BESIDE = 3
"""Panels in a row."""


class Tried(Protocol):
    """One setting of a search; sequences of them are sorted, best first."""

    @property
    def parameters(self) -> Mapping[str, float]:
        """The values of the parameters."""

    @property
    def values(self) -> Sequence[float]:
        """The measure at the end of each trial that reached it."""

    @property
    def fault(self) -> str:
        """Why the setting cannot be ranked; empty if it can."""

    @property
    def after(self) -> int | None:
        """The iterations after which the setting was measured, if that is not the same for all."""


def ranking(tried: Sequence[Tried], measure: str, notes: Sequence[str] = ()) -> Sheet:
    """A row per setting, best first; those that cannot be ranked come last and say why."""
    names = list(tried[0].parameters)
    columns = {"rank": "rank", **{name: name for name in names}, measure: quantity(measure).name}
    rows: list[list[Cell]] = [
        [math.nan if one.fault else place, *(one.parameters[name] for name in names), _end(one, measure)]
        for place, one in enumerate(tried, start=1)
    ]
    if any(one.after is not None for one in tried):
        columns["after"] = "after"
        rows = [[*row, one.after or 0] for row, one in zip(rows, tried, strict=True)]
    if any(one.fault for one in tried):
        columns["fault"] = "fault"
        rows = [[*row, one.fault] for row, one in zip(rows, tried, strict=True)]
    return Sheet(columns, rows, notes)


def cross_sheet(tried: Sequence[Tried], row: str, column: str, symbols: Mapping[str, str]) -> Sheet:
    """The mean of every combination of two parameters, or why it has none: a row and a column per value."""
    cells = {(one.parameters[row], one.parameters[column]): one.fault or text(_mean(one)) for one in tried}
    down, across = (sorted({one.parameters[name] for one in tried}) for name in (row, column))
    columns = {row: ""} | {f"{column}_{x:g}": f"{symbols[column]} = {x:g}" for x in across}
    return Sheet(columns, [[f"{symbols[row]} = {y:g}", *(cells[y, x] for x in across)] for y in down])


def draw_search(tried: Sequence[Tried], measure: str, path: Path) -> Path:
    """Draw a heat map of all combinations of two parameters, or else the measure against each parameter."""
    names = list(tried[0].parameters)
    columns = {name: sorted({one.parameters[name] for one in tried}) for name in names}
    varied = {name: column for name, column in columns.items() if len(column) > 1} or columns
    if len(varied) == 2 and math.prod(map(len, varied.values())) == len(tried):
        figure = _heat_map(tried, measure, varied)
    else:
        figure = _against_each(tried, measure, varied)
    return save(figure, path)


def _end(one: Tried, measure: str) -> Spread:
    """The measure over trials, in the unit of reports; NaN if the setting cannot be ranked."""
    if one.fault:
        return Spread(*[math.nan] * 4)
    return spread([value({measure: v, "k": 0}, measure) for v in one.values])


def _mean(one: Tried) -> float:
    return sum(one.values) / len(one.values)


def _heat_map(tried: Sequence[Tried], measure: str, columns: Mapping[str, list[float]]) -> Figure:
    """One cell per setting: the best is outlined, those without a value are hatched."""
    (y_name, y), (x_name, x) = columns.items()
    places = [(y.index(one.parameters[y_name]), x.index(one.parameters[x_name])) for one in tried]
    means = np.full((len(y), len(x)), np.nan)
    for place, one in zip(places, tried, strict=True):
        means[place] = _end(one, measure).mean
    width, height = np.clip(0.85 * len(x), 3.2, WIDTH - 2), np.clip(0.5 * len(y), 1.8, 7)
    figure = Figure(figsize=(width + 2, height + 1), layout="constrained")
    ax = figure.subplots()
    norm, colours = _norm([_end(one, measure).mean for one in tried], measure), _colours(tried)
    ax.set_facecolor("0.92")
    image = ax.imshow(means, origin="lower", aspect="auto", cmap=colours, norm=norm)
    for name, column, most, axis in ((x_name, x, ACROSS, ax.xaxis), (y_name, y, DOWN, ax.yaxis)):
        shown = range(0, len(column), -(-len(column) // most))
        axis.set_ticks(list(shown), [f"{column[i]:.3g}" for i in shown])
        axis.set_label_text(name)
    for (i, j), one in zip(places, tried, strict=True):
        if one.fault:
            hatched: Look = {"fill": False, "hatch": "////", "edgecolor": "0.75", "linewidth": 0}
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, **hatched))
        if len(x) <= ACROSS and len(y) <= DOWN:
            ax.text(j, i, _short(one, means[i, j]), **_ink(means[i, j], norm, colours), ha="center", va="center")
    if not tried[0].fault:
        i, j = places[0]
        ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, ec=ORANGE, lw=3, clip_on=False, zorder=3))
        beyond = float(np.nanmax(means)) > (norm.vmax or 0.0)
        figure.colorbar(image, ax=ax, label=quantity(measure).label, extend="max" if beyond else "neither")
    ax.set_title(_title(tried), fontsize=10)
    return figure


def _against_each(tried: Sequence[Tried], measure: str, columns: Mapping[str, list[float]]) -> Figure:
    """The measure against each parameter: a line if there is one parameter, dots if there are several."""
    beside = min(BESIDE, len(columns))
    below = -(-len(columns) // beside)
    figure = Figure(figsize=(max(5.0, WIDTH / BESIDE * beside), 3.2 * below + 0.3), layout="constrained")
    axes = figure.subplots(below, beside, squeeze=False, sharey=True).ravel()
    norm = _norm([_end(one, measure).mean for one in tried], measure)
    for ax, (name, column) in zip(axes, columns.items(), strict=False):
        _ticks(ax, name, column)
        _scatter(ax, tried, measure, name, norm, joined=len(columns) == 1)
    for ax in axes[len(columns) :]:
        ax.remove()
    for ax in axes[::beside]:
        ax.set_ylabel(quantity(measure).label)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(_title(tried), fontsize=10)
    return figure


def _scatter(ax: Axes, tried: Sequence[Tried], measure: str, name: str, norm: Normalize, joined: bool) -> None:
    """Draw means, with intervals if they are joined; settings without a value or far off are marks at the top."""
    ax.set_yscale("log" if isinstance(norm, LogNorm) else "linear")
    ax.grid(True, which="major", alpha=0.25)
    ends = sorted((one.parameters[name], *_end(one, measure)) for one in tried if not one.fault)
    assert norm.vmax is not None
    far = [x for x, mean, *_ in ends if mean > norm.vmax]
    if near := [end for end in ends if end[1] <= norm.vmax]:
        x, mean, half, low, _ = np.array(near).T
        down = np.minimum(mean - low, half)  # below the smallest trial the interval has no meaning
        error = np.nan_to_num(np.stack([down, half])) if joined else None
        ax.errorbar(x, mean, error, fmt="o-" if joined else "o", color=BLUE, markersize=5, elinewidth=1)
    top: Look = {"transform": ax.get_xaxis_transform(), "linestyle": "none", "zorder": 3}
    lost = [one.parameters[name] for one in tried if one.fault]
    if lost:
        ax.plot(lost, [0.95] * len(lost), marker="x", color="0.35", label="diverged", **top)
    if far:
        ax.plot(far, [0.95] * len(far), marker="^", color=BLUE, label="far above", **top)
    if not tried[0].fault:
        best = tried[0].parameters[name], _end(tried[0], measure).mean
        ax.plot(*best, marker="*", markersize=15, color=ORANGE, linestyle="none", label="best", zorder=4)


def _ticks(ax: Axes, name: str, column: Sequence[float]) -> None:
    """Set a log scale for positive values, with a tick at each value if they are few."""
    ax.set_xlabel(name)
    low, high = column[0], column[-1]
    if low > 0:
        beyond = max(1.1, (high / low) ** 0.05)
        ax.set(xscale="log", xlim=(low / beyond, high * beyond))
    if len(column) <= 8:
        ax.set_xticks(list(column), [f"{x:g}" for x in column])
        ax.set_xticks([], minor=True)


def _norm(means: Sequence[float], measure: str) -> Normalize:
    """The range of colours, on a log scale if the measure is drawn on one, and without values that are far off."""
    finite: Array = np.array([mean for mean in means if math.isfinite(mean)])
    if not len(finite):
        return Normalize(0, 1)
    low, high, middle = float(finite.min()), float(finite.max()), float(np.median(finite))
    if quantity(measure).log and low > 0:
        return LogNorm(low, min(high, SHADES * low) if high > low else 1.01 * low)
    if quantity(measure).log and middle > low:
        high = min(high, low + 10 * (middle - low))
    return Normalize(low, high if high > low else low + 1)


def _colours(tried: Sequence[Tried]) -> Colormap:
    """Colours that are lighter for better values; the best come first, so their order shows whether more is better."""
    ends = [_mean(one) for one in tried if not one.fault]
    more = len(ends) > 1 and ends[0] > ends[-1]
    return mpl.colormaps["viridis" if more else "viridis_r"]


def _ink(mean: float, norm: Normalize, colours: Colormap) -> Look:
    """Text that can be read on the colour of a cell."""
    red, green, blue, _ = colours(norm(mean)) if math.isfinite(mean) else (1.0, 1.0, 1.0, 1.0)
    light = 0.299 * red + 0.587 * green + 0.114 * blue
    return {"fontsize": 9, "color": "black" if light > 0.5 else "white"}


def _short(one: Tried, mean: float) -> str:
    if one.fault:
        return "diverged" if one.fault.startswith("diverged") else "not finite"
    return f"{mean:.3g}"


def _title(tried: Sequence[Tried]) -> str:
    best = ", ".join(f"{name} = {number:g}" for name, number in tried[0].parameters.items())
    return "no setting has a value" if tried[0].fault else f"best: {best}"
