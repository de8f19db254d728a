"""The pictures of a set of runs: a sweep against iterations, and methods against what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from proxdasa.reports.axis_quantities import AXES, quantity
from proxdasa.reports.curves import Array, Curve, Run
from proxdasa.reports.looks import run_looks
from proxdasa.reports.panels import Panel, draw_panels
from proxdasa.reports.ranking import quantity_of, stationarity_of
from proxdasa.reports.run_endings import divergences

WIDTHS = {"column": 3.35, "page": 6.9}
"""Inches of a column and of a page, as in two-column journals."""
MOST_CURVES, MOST_METHODS = 100, 20
"""The most runs and methods in one figure; with more, curves cannot be told apart."""


def drawable(runs: Sequence[Run]) -> tuple[list[Run], str]:
    """The first runs, as many as a figure has room for, and a sentence on those left out."""
    titles = list(dict.fromkeys(run.title for run in runs))[:MOST_METHODS]
    shown = [run for run in runs if run.title in titles][:MOST_CURVES]
    left = len(runs) - len(shown)
    return shown, f"the figure shows {len(shown)} of {len(runs):,} runs; the table has all of them" if left else ""


def draw(runs: Sequence[Run], path: Path, axis: str = "k") -> Path:
    """Draw the runs' measures against iterations, or another axis, such as "bytes": one panel per measure.

    The colour shows the method, and the dash what else distinguishes runs. In a sweep, with three runs of a method or
    more, each method has a row, and the colours are ordered as the runs are. Stationarity is at the runs' own γ if that
    is the same for all, otherwise at γ = 1. Measures that no run recorded are left out.

    Examples:
        >>> from pathlib import Path
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=10)
        >>> runs = reports.load_runs([result.save("results/dpsgd")])
        >>> reports.draw(runs, Path("figure.png")).name
        'figure.png'
    """
    if axis not in AXES:
        raise ValueError(f"axis must be one of {', '.join(AXES)}; got {axis!r}")
    _select_recorded(runs, (axis,))
    measures = _select_recorded(runs, ("loss", stationarity_of(runs), "consensus"))
    titles = list(dict.fromkeys(run.title for run in runs))
    mine = {title: [run for run in runs if run.title == title] for title in titles}
    # Three runs of one method or more are a sweep, whose order shows best in colours.
    if len(titles) > 1 and max(map(len, mine.values())) < 3:
        names, looks, legend = run_looks(runs)
        together = [[_panel("", list(runs), names, measure, axis) for measure in measures]]
        return draw_panels(together, path, looks=looks, legend=legend)
    grid = [
        [_panel(title, own, [run.label for run in own], measure, axis) for measure in measures]
        for title, own in mine.items()
    ]
    return draw_panels(grid, path, ordered=True)


def _panel(title: str, runs: Sequence[Run], labels: Sequence[str], measure: str, axis: str) -> Panel:
    curves = [shown_curve(replace(run, label=label), measure, axis) for run, label in zip(runs, labels, strict=True)]
    return Panel(title, quantity(axis).label, quantity_of(measure, runs).label, curves)


def draw_comparison(
    runs: Sequence[Run],
    path: Path,
    measures: Sequence[str] = ("accuracy", "loss", "table_stationarity"),
    axes: Sequence[str] = ("seconds", "epochs", "passes", "rounds"),
) -> Path:
    """Draw methods side by side: one row per measure, one column per cost, one curve per run.

    Measures and axes that no run recorded are left out.

    Examples:
        >>> from pathlib import Path
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=10)
        >>> runs = reports.load_runs([result.save("results/dpsgd")])
        >>> reports.draw_comparison(runs, Path("comparison.png"), ["loss"], ["k"]).name
        'comparison.png'
    """
    measures, axes = _select_recorded(runs, measures), _select_recorded(runs, axes)
    names, looks, legend = run_looks(runs)
    labelled = [replace(run, label=name) for run, name in zip(runs, names, strict=True)]
    grid = [[_cost_panel(labelled, measure, axis) for axis in axes] for measure in measures]
    return draw_panels(grid, path, looks=looks, legend=legend)


def draw_runs(
    runs: Sequence[Run],
    path: Path,
    measures: Sequence[str],
    axis: str,
    others: Sequence[str] | None = None,
    width: str = "page",
) -> Path:
    """Draw all runs in one panel for each measure, at the width of a column or a page of a paper.

    The colour shows the method, and the dash the text in ``others``, by default what distinguishes runs of a method.

    Examples:
        >>> from pathlib import Path
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=10)
        >>> runs = reports.load_runs([result.save("results/dpsgd")])
        >>> reports.draw_runs(runs, Path("loss.pdf"), ["loss"], "gradients", width="column").name
        'loss.pdf'
    """
    if width not in WIDTHS:
        raise ValueError(f"width must be {' or '.join(WIDTHS)}; got {width!r}")
    names, looks, legend = run_looks(runs, others)
    labelled = [replace(run, label=name) for run, name in zip(runs, names, strict=True)]
    panels = [_cost_panel(labelled, measure, axis) for measure in measures]
    panels[0] = replace(panels[0], title=_divergence_title(labelled))
    beside = 1 if width == "column" else 2 if len(panels) == 4 else min(3, len(panels))
    grid = [panels[i : i + beside] for i in range(0, len(panels), beside)]
    return draw_panels(grid, path, looks=looks, legend=legend, printed=WIDTHS[width])


def _divergence_title(runs: Sequence[Run]) -> str:
    """A title that says which runs diverged, because their curves end early or leave the panels."""
    lost = [run.label for run in runs if divergences(run)]
    told = f"diverged: {', '.join(lost)}"
    return "" if not lost else told if len(told) < 45 else f"{len(lost)} of {len(runs)} runs diverged"


def _select_recorded(runs: Sequence[Run], quantities: Sequence[str]) -> list[str]:
    found = [quantity for quantity in quantities if any(run.has(quantity) for run in runs)]
    if not found:
        raise ValueError(f"nothing to draw: the records hold none of {', '.join(quantities)}")
    return found


def shown_curve(run: Run, measure: str, axis: str = "k") -> Curve:
    """A run's curve, without the start of the consensus error if all agents start at one point.

    The error is then pure rounding at k = 0, and a thousand times larger or more at the next observation. A line from
    the start would only show the precision of floating point. The start is compared with the next observation rather
    than with the last, because a run that converges may come down to rounding again.
    """
    curve = run.curve(measure, axis)
    if measure == "consensus" and len(curve.mean) > 1 and curve.mean[0] < 1e-3 * curve.mean[1]:
        return _without_start(curve)
    return curve


def _without_start(curve: Curve) -> Curve:
    return Curve(curve.label, curve.x[1:], curve.mean[1:], curve.half[1:], curve.lowest[1:])


def _cost_panel(runs: Sequence[Run], measure: str, axis: str) -> Panel:
    curves, look = [shown_curve(run, measure, axis) for run in runs], quantity(measure)
    # Curves that diverge leave the panel, and do not set its range.
    lasting = [curve for run, curve in zip(runs, curves, strict=True) if not divergences(run)] or curves
    y_range = _range(lasting, look.log, diverged=len(lasting) < len(curves))
    log_x = far_apart(runs, axis)
    if log_x:
        curves = [_without_start(curve) for curve in curves]  # at the start the costs are 0, or nearly
    return Panel("", quantity(axis).label, look.label, curves, log_x, look.log, y_range, lasting)


def _range(curves: Sequence[Curve], log: bool, diverged: bool) -> tuple[float | None, float | None]:
    """The part of the y axis that shows the curves best; ``diverged`` says that there are others which leave it."""
    if not log:
        return second_half(curves)
    means = np.concatenate([curve.mean[np.isfinite(curve.mean)] for curve in curves])
    if (means < 0).any():
        return late_range(curves)
    top, high = ceiling(curves), float(means.max(initial=0.0))
    if not diverged or high <= 0:
        return None, top
    return float(means[means > 0].min()) / 2, 2 * high if top is None else top


def late_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """The range to show of curves that fall, on a linear scale: not the start, which would squash the rest.

    It goes up to the highest mean of the second half, but has at least a twentieth of the whole fall.
    """
    means = [mean for curve in curves if len(mean := curve.mean[np.isfinite(curve.mean)])]
    if not means:
        return 0.0, 1.0
    low, high = min(float(mean.min()) for mean in means), max(float(mean.max()) for mean in means)
    late = max(float(mean[0 if _few(mean) else len(mean) // 2 :].max()) for mean in means)
    high = max(late, low + 0.05 * (high - low))
    margin = 0.1 * (high - low) or 1.0
    return low - margin, high + margin


def _few(mean: Array) -> bool:
    """Whether a curve has so few points that little is left of it without the start."""
    return len(mean) < 3


def far_apart(runs: Sequence[Run], axis: str) -> bool:
    """Whether an axis needs a log scale, because one run extends so far that it would squash the others."""
    ends = [run.final(axis).mean for run in runs if run.has(axis)]
    return max(ends) > 5 * float(np.median(ends))


def second_half(curves: Sequence[Curve]) -> tuple[float, float]:
    """The range to show of curves that start far below: all of the second half of their means.

    Bands are left out: a few trials on a plateau make a band so wide that it would squash the rest.
    """
    means = [mean for curve in curves if len(mean := curve.mean[np.isfinite(curve.mean)])]
    if not means:
        return 0.0, 1.0
    low, high = min(float(mean[len(mean) // 2 :].min()) for mean in means), max(float(mean.max()) for mean in means)
    margin = 0.1 * (high - low) or 1.0
    return low - margin, high + margin


def ceiling(curves: Sequence[Curve]) -> float | None:
    """Where a log scale should end, if the start is more than ten times all the rest; otherwise None."""
    first = max(np.nanmax(curve.mean[:1], initial=0.0) for curve in curves)
    rest = max(np.nanmax(curve.mean[0 if _few(curve.mean) else 1 :], initial=0.0) for curve in curves)
    return float(2 * rest) if first > 10 * rest > 0 else None
