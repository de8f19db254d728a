"""Drawing curves in a grid of panels."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogFormatterSciNotation, LogLocator

from proxdasa import disk
from proxdasa.reports.curves import Array, Curve
from proxdasa.reports.looks import Look, numbered_looks

WIDTH = 11.0
"""The most inches that a figure may take, so that its text stays legible when a page shrinks it."""
SPACING = 1.5
"""The space between the columns of a legend, in sizes of its font."""
PRINTED: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}
"""Sizes of text for a figure that is printed at its own width."""


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves on a pair of axes. Panels of a figure share the range of an axis if its label is the same."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = True
    """The scale is linear anyway if panels that share it have negative values, or only zeros."""
    y_range: tuple[float | None, float | None] = (None, None)
    """The part of the y axis to show, if not all of it."""
    lasting: Sequence[Curve] = ()
    """The curves that choose the scale of the y axis, if not all of them: what diverges may be negative."""


def draw_panels(
    grid: Sequence[Sequence[Panel]],
    path: Path,
    ordered: bool = False,
    looks: Mapping[str, Look] | None = None,
    legend: Mapping[str, Look] | None = None,
    printed: float | None = None,
) -> Path:
    """Draw rows of panels, each curve with a band for the 95% interval of its mean, and write the file.

    A label looks the same everywhere: as ``looks`` say, or, if labels are ``ordered``, as sizes are, by colours from a
    colour map; otherwise each label has a colour and a marker of its own. One legend serves all rows, unless their
    labels differ; ``legend`` says what it explains, if not the curves' labels. ``printed`` is the width in inches at
    which the figure will be printed, with text that is legible there.
    """
    rows = [list(dict.fromkeys(curve.label for panel in row for curve in panel.curves)) for row in grid]
    labels = list(dict.fromkeys(label for row in rows for label in row))
    chosen = looks or (_ordered_looks(labels) if ordered else numbered_looks(labels))
    columns, one_legend = max(map(len, grid)), bool(legend) or all(set(row) == set(labels) for row in rows)
    with mpl.rc_context(PRINTED if printed else {}):
        size = mpl.rcParams["font.size"] / 10
        width = printed or min(3.7 * columns, WIDTH)
        entries = {label: Line2D([], [], label=label, **look) for label, look in (legend or chosen).items()}
        beside = _legend_columns(list(entries), width)
        legend_height = 0.25 * size * -(-len(entries) // beside) if one_legend else 0.0
        height = 2.5 if printed is None else 0.75 * width / columns
        figure = Figure(figsize=(width, height * len(grid) + 0.5 + legend_height), layout="constrained")
        axes = figure.subplots(len(grid), columns, squeeze=False)
        _fill(axes, grid, {label: chosen[label] for label in labels})
        if one_legend:
            handles = list(entries.values())
            _show_verbatim(
                figure.legend(
                    handles=handles, loc="outside upper center", ncols=beside, frameon=False, columnspacing=SPACING
                )
            )
        else:
            for ax, own in zip(axes[:, 0], rows, strict=True):
                _show_verbatim(ax.legend(handles=[entries[label] for label in own], fontsize=9))
        return save(figure, path)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """As many columns as fit into the width in inches; a legend fills them one after the other."""
    style = mpl.rcParams
    size = FontProperties(size=style["legend.fontsize"]).get_size_in_points()
    shown = [label.replace("$", "S") for label in labels]  # dollar signs do not make formulas here
    texts = [TextPath((0, 0), label, size=size).get_extents().width if label.strip() else 0.0 for label in shown]
    handle = size * (style["legend.handlelength"] + style["legend.handletextpad"] + SPACING)
    for columns in range(len(texts), 1, -1):
        taken = sum(max(part) + handle for part in np.array_split(texts, columns))
        if taken + size <= 72 * width:
            return columns
    return 1


def save(figure: Figure, path: Path) -> Path:
    """Write a figure. A file of that name is replaced, and a link is not followed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a box is drawn in its place
        # As type 42 the fonts are embedded whole, and text can be selected, which journals ask for. A file without its
        # date is the same whenever it is drawn.
        kind = path.suffix.lstrip(".") or None
        with mpl.rc_context({"pdf.fonttype": 42}):
            figure.savefig(drawn, format=kind, dpi=144, metadata={"CreationDate": None} if kind == "pdf" else None)
    disk.replace(path, drawn.getvalue())
    return path


def _show_verbatim(legend: Legend) -> None:
    """Show labels as they are: two dollar signs in them do not make a formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def _ordered_looks(labels: Sequence[str]) -> dict[str, Look]:
    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(labels)))
    return {label: {"color": colour} for label, colour in zip(labels, colours, strict=True)}


def _fill(axes: Any, grid: Sequence[Sequence[Panel]], looks: dict[str, Look]) -> None:
    panels = {(i, j): panel for i, row in enumerate(grid) for j, panel in enumerate(row)}
    first_x: dict[str, Axes] = {}
    first_y: dict[str, Axes] = {}
    for (i, j), ax in np.ndenumerate(axes):
        if (i, j) not in panels:
            ax.remove()
            continue
        panel, below, left = panels[i, j], panels.get((i + 1, j)), panels.get((i, j - 1))
        if first_x.setdefault(panel.x_label, ax) is not ax:
            ax.sharex(first_x[panel.x_label])
        if first_y.setdefault(panel.y_label, ax) is not ax:
            ax.sharey(first_y[panel.y_label])
        along_x = [curve.x for other in panels.values() if other.x_label == panel.x_label for curve in other.curves]
        alike = [other for other in panels.values() if other.y_label == panel.y_label]
        along_y = [curve.mean for other in alike for curve in other.lasting or other.curves]
        _plot(ax, panel.curves, looks, panel.log_x and _positive(along_x), panel.log_y and _positive(along_y))
        ax.set_title(panel.title, fontsize=mpl.rcParams["font.size"], parse_math=False)
        if below and below.x_label == panel.x_label:
            ax.tick_params(which="both", labelbottom=False)
        else:
            ax.set_xlabel(panel.x_label, parse_math=False)
        if left and left.y_label == panel.y_label:
            ax.tick_params(which="both", labelleft=False)
        else:
            ax.set_ylabel(panel.y_label, parse_math=False)
    for place, panel in panels.items():  # last, because an axis with limits ignores further curves
        if panel.y_range != (None, None):
            axes[place].set_ylim(panel.y_range)


def _plot(ax: Axes, curves: Sequence[Curve], looks: dict[str, Look], log_x: bool, log_y: bool) -> None:
    ax.set(xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_formatter(_Plain())
            axis.set_minor_formatter(_Plain())
    if log_x:
        ax.xaxis.set_minor_locator(LogLocator(subs=(3,)))  # numbers take more room along x than along y
    size = mpl.rcParams["font.size"] / 10
    for curve in curves:
        shown = np.isfinite(curve.x) & np.isfinite(curve.mean)
        shown &= (curve.x > 0) | (not log_x)
        shown &= (curve.mean > 0) | (not log_y)
        x, mean, half, lowest = (part[shown] for part in (curve.x, curve.mean, curve.half, curve.lowest))
        look, every = looks[curve.label], max(1, len(x) // 5)
        # Labels have their markers at different points, so that both of two coinciding curves can be seen.
        places = (list(looks).index(curve.label) * every // len(looks), every)
        few: Look = {"marker": "o"} if len(x) < 10 else {}
        ax.plot(x, mean, label=curve.label, linewidth=1.6 * size, markersize=4 * size, markevery=places, **(few | look))
        # The interval is symmetric, the trials need not be: below the smallest trial it has no meaning.
        low = np.maximum(mean - half, lowest)
        ax.fill_between(x, low, mean + half, color=look["color"], alpha=0.2 if len(curves) < 5 else 0.1, linewidth=0)
    ax.grid(True, which="major", alpha=0.25)


def _positive(parts: Iterable[Array]) -> bool:
    """Whether a log scale suits the numbers: some are positive, and none is negative."""
    values = np.concatenate(list(parts))
    return bool((values > 0).any() and not (values < 0).any())


class _Plain(LogFormatterSciNotation):
    """0.4 rather than 4 × 10⁻¹ on a log scale whose numbers are neither large nor small."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        text: str = super().__call__(x, pos)
        assert self.axis is not None
        low, high = self.axis.get_view_interval()
        return f"{x:g}" if text and low > 5e-4 and high < 5e4 else text
