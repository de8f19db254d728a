"""The picture of a set of runs: one row per method, one column per measure, one curve per run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from proxdasa.reports.curves import Array, Run

MEASURES = {
    "loss": "loss F(x̄)",
    "stationarity": "stationarity ‖G(x̄, ∇F(x̄), γ)‖²",
    "consensus": "consensus error ‖X − X̄‖²/n",
}


def draw(runs: Sequence[Run], path: Path) -> Path:
    """Draw the runs' measures against iterations, mean over trials with 95% bands, log scale, and write the file.

    Measures that no run recorded are left out; those with negative values, or with none but 0, are linear.
    """
    measures = {measure: name for measure, name in MEASURES.items() if any(measure in run.rows[0] for run in runs)}
    if not measures:
        raise ValueError(f"nothing to draw: the records hold none of {', '.join(MEASURES)}")
    titles = list(dict.fromkeys(run.title for run in runs))
    labels = list(dict.fromkeys(run.label for run in runs))
    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(labels)))
    figure = Figure(figsize=(4.4 * len(measures), 3.1 * len(titles) + 0.5), layout="constrained")
    axes = figure.subplots(len(titles), len(measures), sharex=True, sharey="col", squeeze=False)
    for row, title in zip(axes, titles, strict=True):
        for ax, (measure, name) in zip(row, measures.items(), strict=True):
            means = np.concatenate([run.curve(measure)[1] for run in runs])
            log = bool((means > 0).any() and not (means < 0).any())
            for run in (run for run in runs if run.title == title):
                k, mean, half = run.curve(measure)
                shown = mean > 0 if log else np.isfinite(mean)
                if log and measure == "consensus" and _left_start(mean):
                    shown[0] = False
                colour = colours[labels.index(run.label)]
                ax.plot(k[shown], mean[shown], color=colour, label=run.label, linewidth=1.6)
                # The interval is symmetric and trials are not: below the smallest of them it has no meaning.
                low = np.maximum(mean - half, run.lowest(measure))
                ax.fill_between(k[shown], low[shown], (mean + half)[shown], color=colour, alpha=0.2, linewidth=0)
            ax.set_yscale("log" if log else "linear")
            ax.grid(True, which="major", alpha=0.25)
            ax.set_title(f"{title}: {name}", fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("iteration k")
    for row in axes:
        row[0].legend(fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def _left_start(mean: Array) -> bool:
    """Whether agents began together: their disagreement, rounding at k = 0, is a thousand times that or more at once.

    The start is then no value of the method, and a line from it shows nothing but the precision of floating point.
    The next observation is what to compare with, for a run that converges may come down to rounding again.
    """
    return len(mean) > 1 and bool(mean[0] < 1e-3 * mean[1])
