"""One HTML page about some runs, to look at and to share; a browser shows it without internet access.

`contents` collects the data of the page, and the script in ``page.html`` draws them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex

from proxdasa.reports.axis_quantities import AXES, OWN_GAMMA, measures, quantity, value
from proxdasa.reports.curves import Array, Curve, Run, distinctions
from proxdasa.reports.figures import ceiling, far_apart, late_range, second_half, shown_curve
from proxdasa.reports.loading import flatten
from proxdasa.reports.looks import run_looks, svg_dash
from proxdasa.reports.network_drawings import disagreement, drawing
from proxdasa.reports.ranking import RANKED, alike, hindrance, quantity_of
from proxdasa.reports.run_endings import differences, divergences, links, times
from proxdasa.reports.table_files import Sheet, text, write_text

Plain = dict[str, Any]
"""A part of the page's data, ready for JSON."""

MOST_POINTS = 500
"""The most points of a curve; no screen shows more."""
MOST_NUMBERS = 150_000
"""The most numbers of all curves together, so that a page is small enough to send: each takes about nine characters."""
SHOWN_ELSEWHERE = ("facts.title", "facts.edges", "facts.links.")
"""Beginnings of settings that are left out of the list, because the page shows them elsewhere."""
DATA, STYLE, SCRIPT = "__DATA__", "__STYLE__", "__SCRIPT__"
"""Placeholders in the template for the data and for the hashes of the style and the script."""


class Summary(Protocol):
    """The table of a page: a row for each run, in their order, followed by rows of methods without a run."""

    @property
    def title(self) -> str:
        """What the table shows."""

    def sheet(self) -> Sheet:
        """The rows."""


def write_page(
    path: Path,
    title: str,
    runs: Sequence[Run],
    summary: Summary,
    faults: Sequence[str] = (),
    others: Sequence[str] | None = None,
) -> Path:
    """Write the page of some runs; ``faults`` say what could not be read.

    ``others`` has a text for each run that distinguishes it from others of its method, by default all settings that
    differ.

    Examples:
        >>> from pathlib import Path
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=10)
        >>> runs = reports.load_runs([result.save("results/dpsgd")])
        >>> reports.write_page(Path("page.html"), "D-PSGD", runs, reports.summarise(runs)).name
        'page.html'
    """
    data = json.dumps(contents(title, runs, summary, faults, others), allow_nan=False, separators=(",", ":"))
    page = files("proxdasa.reports").joinpath("page.html").read_text(encoding="utf-8")
    for place, tag in {STYLE: "style", SCRIPT: "script"}.items():
        page = page.replace(place, _fingerprint(page, tag))
    # Otherwise a label with "</script>" in it would end the data, and the browser would run what follows.
    return write_text(path, page.replace(DATA, data.replace("<", "\\u003c")))


def _fingerprint(page: str, tag: str) -> str:
    """The hash of an element's text for the content security policy, which allows nothing else to run or to style."""
    text = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def contents(
    title: str, runs: Sequence[Run], summary: Summary, faults: Sequence[str], others: Sequence[str] | None = None
) -> Plain:
    """Everything that the page shows, as plain values."""
    recorded = [measure for measure in measures(row for run in runs for row in run.rows) if _any(runs, measure)]
    axes = [axis for axis in AXES if _any(runs, axis)]
    if "passes" in axes and not _any_differ(runs):
        axes.remove("passes")
    points = min(MOST_POINTS, max(2, MOST_NUMBERS // (len(runs) * (3 * len(recorded) + len(axes)))))
    thin = [_thin(run, points) for run in runs]
    networks = {_network(run): run for run in reversed(runs)}
    settings = [_settings(run) for run in runs]
    shared = {key: value for key, value in settings[0].items() if all(own.get(key) == value for own in settings)}
    (labels, looks, _), sheet = run_looks(runs, others), summary.sheet()
    others = distinctions(runs) if others is None else others
    return {
        "title": title,
        "tiles": _tiles(runs),
        "ends": _ends(runs, labels),
        "table": {
            "title": summary.title,
            "columns": list(sheet.columns.values()),
            "rows": sheet.texts(),
            "bold": sorted(sheet.bold),
            "texts": sum(name in ("method", "run") for name in sheet.columns),
        },
        "notes": list(sheet.notes),
        "axes": [{"key": axis, "label": quantity(axis).label, "log": far_apart(runs, axis)} for axis in axes],
        "measures": [
            {"key": key, **quantity_of(key, runs)._asdict(), "alike": key not in OWN_GAMMA or alike(runs)}
            for key in recorded
        ],
        "thinned": any(len(few.rows) < len(run.rows) for few, run in zip(thin, runs, strict=True)),
        "shared": shared,
        "runs": [
            {
                "name": labels[i],
                "method": run.title,
                "label": others[i],
                # Black becomes the colour of text, since it cannot be seen on a dark page.
                "colour": looks[labels[i]]["color"].replace("#000000", "currentColor"),
                "dash": svg_dash(looks[labels[i]]),
                "trials": run.trials,
                "x": {axis: _round(thin[i].curve(axis).mean, 7) for axis in axes if thin[i].has(axis)},
                "curves": {key: _curve(thin[i], key) for key in recorded if thin[i].has(key)},
                "settings": {key: value for key, value in settings[i].items() if key not in shared},
                "differences": differences(run),
                "diverged": bool(divergences(run)),
                "times": times(run),
                "links": links(run),
                "network": list(networks).index(_network(run)),
                **_errors(run),
            }
            for i, run in enumerate(runs)
        ],
        "networks": [drawing(run) for run in networks.values()],
        "colours": [to_hex(colour) for colour in mpl.colormaps["viridis"](np.linspace(0, 1, 17))],
        "faults": list(faults),
    }


def _network(run: Run) -> str:
    """A key that is the same for runs whose networks have the same drawing."""
    return repr([run.agents, *(run.config["facts"].get(key) for key in ("rho", "rounds", "edges"))])


def _any(runs: Sequence[Run], quantity: str) -> bool:
    return any(run.has(quantity) for run in runs)


def _any_differ(runs: Sequence[Run]) -> bool:
    """Whether passes over the data differ from epochs of samples, because there are full gradients."""
    return any(row.get("full_gradients") for run in runs for row in run.rows)


def _thin(run: Run, points: int) -> Run:
    """The run with at most ``points`` observations, including the first and the last."""
    ks = list(dict.fromkeys(row["k"] for row in run.rows))
    chosen = {ks[i] for i in np.linspace(0, len(ks) - 1, min(points, len(ks))).round().astype(int)}
    return replace(run, rows=[row for row in run.rows if row["k"] in chosen])


def _curve(run: Run, measure: str) -> Plain:
    """Means, half widths and smallest trials, and the range to show on either scale."""
    curve = shown_curve(run, measure)
    hidden = [None] * (len(run.curve("k").x) - len(curve.x))
    log = _log_range(curve)
    linear = second_half([curve]) if log or not quantity(measure).log else late_range([curve])
    plain: Plain = {"mean": hidden + _round(curve.mean), "linear": list(linear), "log": log}
    if np.isfinite(curve.half).any():
        plain |= {"half": hidden + _round(curve.half), "lowest": hidden + _round(curve.lowest)}
    return plain


def _log_range(curve: Curve) -> tuple[float, float] | None:
    mean = curve.mean[np.isfinite(curve.mean)]
    if (mean < 0).any() or not (mean > 0).any():
        return None
    return float(mean[mean > 0].min()), ceiling([curve]) or float(mean.max())


def _round(numbers: Array, digits: int = 5) -> list[float | None]:
    """Numbers rounded to save space, with None for NaN, which JSON lacks."""
    short = [float(f"{number:.{digits}g}") if np.isfinite(number) else None for number in numbers.tolist()]
    return [int(number) if number is not None and number.is_integer() else number for number in short]


def _errors(run: Run) -> Plain:
    try:
        return {"errors": _round(np.array(disagreement(run)))}
    except (ValueError, OSError) as error:
        return {"unknown": str(error)}


def _settings(run: Run) -> dict[str, str]:
    config = {key: value for key, value in run.config.items() if key != "ending"}
    return {key: _as_text(value) for key, value in flatten(config).items() if not key.startswith(SHOWN_ELSEWHERE)}


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_as_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def _tiles(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The numbers at the top of the page, as (what, how many)."""
    seconds: Mapping[Any, float] = {run.folder or i: value(run.rows[-1], "seconds") for i, run in enumerate(runs)}
    return [
        ("runs", str(len(runs))),
        ("methods", str(len({run.title for run in runs}))),
        ("agents", _from_to(run.agents for run in runs)),
        ("iterations", _from_to(run.rows[-1]["k"] for run in runs)),
        ("trials", _from_to(run.trials for run in runs)),
        ("time", _duration(sum(spent for spent in seconds.values() if math.isfinite(spent)))),
    ]


def _from_to(numbers: Any) -> str:
    different = sorted(set(numbers))
    ends = different[:: len(different) - 1] if len(different) > 1 else different
    return " to ".join(f"{number:,}" for number in ends)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _ends(runs: Sequence[Run], labels: Sequence[str]) -> list[Plain]:
    """The best run by each final measure, or why the runs cannot be ranked by it; of a single run, its final values.

    A run of which a trial diverged is not the best, whatever the other trials have.
    """
    ends = []
    for measure, sign in RANKED.items() if len(runs) > 1 else {**RANKED, "stationarity": 1}.items():
        means = [(sign * run.final(measure).mean, i) for i, run in enumerate(runs)]
        known = [(mean, i) for mean, i in means if math.isfinite(mean) and (len(runs) == 1 or not divergences(runs[i]))]
        rank = ("lowest " if sign > 0 else "highest ") if len(runs) > 1 else ""
        what = f"{rank}final {quantity_of(measure, runs).name}"
        if known and (why := hindrance(measure, runs)):
            ends.append({"what": what, "value": "not ranked", "run": why})
        elif known:
            i = min(known)[1]
            ends.append({"what": what, "value": text(runs[i].final(measure)).partition(" [")[0], "run": labels[i]})
    return ends
