"""The tables and the figure of the study of rates: exponents of power laws, and the length of the transient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from proxdasa.reports.curves import Array, Curve, Run, spread
from proxdasa.reports.looks import dashes, method_looks
from proxdasa.reports.panels import Panel, draw_panels
from proxdasa.reports.table_files import Cell, Sheet
from proxdasa.reports.tables import slope

FACTOR = 2.0
"""The transient is over when the mean of ‖G‖² stays within this factor of the complete graph's."""
THEORY = "slope −1/2"
ONE = "one round"
"""The mixing on slow rings."""


class Estimate(NamedTuple):
    """A number with half the width of its 95% interval; NaN where there is none."""

    value: float
    half: float


class RingRun(NamedTuple):
    """A run on a slow ring, and what the theory needs to know about the ring."""

    run: Run
    gap: float
    """1 − ρ."""
    varrho: float
    """ϱ(m) of Theorem 1."""


class Rates(NamedTuple):
    """The runs of the study by question; a run's label says how it mixes."""

    along_k: Sequence[Run]
    along_n: Sequence[Run]
    rings: Sequence[RingRun]
    complete: Sequence[Run]
    """Runs on the complete graph, of each K of the rings."""


class Transient(NamedTuple):
    """How long the transient of one method is on one ring."""

    method: str
    gap: float
    varrho: float
    K: Estimate
    of: Callable[[Array], float]
    """K_T for given weights of the trials."""
    trials: int
    why: str
    """Why there is no length, if there is none."""


def mean_stationarity(run: Run) -> Array:
    """The mean of ‖G‖² over the iterations, by trial: the theorem's E‖G‖² at an R drawn uniformly from them.

    It is the integral over k by the trapezoidal rule, divided by K.
    """
    if run.trials < len(run.began):
        raise ValueError(f"{run.folder}: {len(run.began) - run.trials} trials diverged, so it has no mean over trials")
    paths: dict[int, list[tuple[int, float]]] = {}
    for row in run.rows:
        paths.setdefault(row["trial"], []).append((row["k"], row["stationarity"]))
    k, values = np.moveaxis(np.array([paths[trial] for trial in sorted(paths)], dtype=float), -1, 0)
    areas = np.diff(k) * (values[:, 1:] + values[:, :-1]) / 2
    means: Array = areas.sum(axis=1) / k[:, -1]
    return means


def jackknife(statistic: Callable[[Array], float], trials: int) -> Estimate:
    """A function of the trials' weights at equal weights, with its 95% interval.

    Each trial is left out once. With T trials and θ_t the value without trial t,

        θ ± t(0.975, T − 1) √((T − 1)/T Σ_t (θ_t − mean θ)²)

    Runs of different K and n see the same samples in the same trial, so that their errors are not independent; here a
    trial is left out of all of them at once.
    """
    whole = statistic(np.full(trials, 1 / trials))
    if trials < 2:
        return Estimate(whole, math.nan)
    others = np.array([statistic(weights) for weights in (1 - np.eye(trials)) / (trials - 1)])
    return Estimate(whole, float(stdtrit(trials - 1, 0.975) * math.sqrt((trials - 1) * others.var())))


def fit_power(x: Sequence[float], values: Array) -> Estimate:
    """The exponent p of means ∝ x^p, given values ``[points, trials]``, by least squares on log scales."""
    return jackknife(lambda weights: slope(x, (values @ weights).tolist()), values.shape[1])


def largest_departure(x: Sequence[float], means: Array) -> float:
    """The largest distance of a point from its fitted power law, in percent."""
    logs = np.log(means)
    line = np.polyval(np.polyfit(np.log(x), logs, 1), np.log(x))
    return float(100 * np.expm1(np.abs(logs - line).max()))


def transient_length(K: Sequence[float], ratio: Array) -> float:
    """The K from which the ratio to the complete graph stays at most 2; NaN if it always is, or is not at the last K.

    Between two numbers of iterations it is interpolated on log scales.
    """
    above = np.flatnonzero(ratio > FACTOR)
    if len(above) == 0 or above[-1] == len(ratio) - 1:
        return math.nan
    i = int(above[-1])
    way = math.log(ratio[i] / FACTOR) / math.log(ratio[i] / ratio[i + 1])
    return float(K[i] * (K[i + 1] / K[i]) ** way)


def transients(rates: Rates) -> list[Transient]:
    """The length of the transient for each method and ring."""
    whole = {_length(run): mean_stationarity(run) for run in rates.complete}
    groups: dict[tuple[str, float, float], dict[float, Array]] = {}
    for each in rates.rings:
        place = each.run.title, each.gap, each.varrho
        groups.setdefault(place, {})[_length(each.run)] = mean_stationarity(each.run)
    found = []
    for (method, gap, varrho), values in groups.items():
        K = sorted(values)
        own, reference = np.array([values[k] for k in K]), np.array([whole[k] for k in K])

        def of(weights: Array, K: list[float] = K, own: Array = own, reference: Array = reference) -> float:
            return transient_length(K, (own @ weights) / (reference @ weights))

        length = jackknife(of, own.shape[1])
        last = own[-1].mean() / reference[-1].mean()
        why = f"longer than {K[-1]:g}" if last > FACTOR else f"shorter than {K[0]:g}"
        found.append(Transient(method, gap, varrho, length, of, own.shape[1], why if math.isnan(length.value) else ""))
    return found


def rates_sheet(rates: Rates) -> Sheet:
    """The fitted exponents: a row for each power law."""
    rows: list[list[Cell]] = []
    for what, runs, x in (("‖G‖² against K", rates.along_k, _length), ("‖G‖² against n", rates.along_n, _agents)):
        for (title, label), mine in _group(runs).items():
            at, values = _points(mine, x)
            if len(at) > 1:
                fit = fit_power(at, values)
                rows.append([what, title, label, *fit, "-0.5", largest_departure(at, values.mean(axis=1))])
    lengths = [each for each in transients(rates) if not each.why]
    for method in dict.fromkeys(each.method for each in lengths):
        rings = [each for each in lengths if each.method == method]
        if len(rings) > 1:
            rows.append(_fit_lengths("K_T against 1 − ρ", rings, [each.gap for each in rings], "-4"))
            rows.append(_fit_lengths("K_T against ϱ", rings, [each.varrho for each in rings], "2"))
    columns = {"measure": "power law", "method": "method", "mixing": "mixing", "exponent": "exponent", "half": "± 95%"}
    columns |= {"theory": "theory", "departure": "largest departure (%)"}
    notes = [
        "Exponents are least-squares fits on log scales to means over trials; intervals are Student's, by leaving out "
        "one trial at a time.",
        "Theory: after the transient for ‖G‖²; for K_T an upper bound, where the theorem's two terms are equal.",
    ]
    return Sheet(columns, rows, notes)


def _fit_lengths(what: str, rings: Sequence[Transient], x: Sequence[float], theory: str) -> list[Cell]:
    fit = jackknife(lambda weights: slope(x, [each.of(weights) for each in rings]), rings[0].trials)
    worst = largest_departure(x, np.array([each.K.value for each in rings]))
    return [what, rings[0].method, ONE, *fit, theory, worst]


def transients_sheet(rates: Rates) -> Sheet:
    """The length of the transient: a row for each method and ring."""
    rows: list[list[Cell]] = [
        [each.method, each.gap, each.varrho, each.why or each.K.value, each.K.half] for each in transients(rates)
    ]
    columns = {"method": "method", "gap": "1 − ρ", "varrho": "ϱ(1)", "length": "K_T", "half": "± 95%"}
    note = f"K_T: from this K on the mean of ‖G‖² is within a factor {FACTOR:g} of the complete graph's at the same K."
    return Sheet(columns, rows, [note])


def draw_rates(rates: Rates, path: Path) -> Path:
    """Draw the mean of ‖G‖² against K and against n, and the transient's length against 1 − ρ.

    The colour shows the method, and the dash the mixing. The dotted line has the theory's slope −1/2.
    """
    mean = "mean of ‖G‖² over k ≤ K"
    n, K = rates.along_k[0].agents, _length(rates.along_n[0])
    panels = [
        Panel(f"n = {n}", "iterations K", mean, _curves(rates.along_k, _length), log_x=True),
        Panel(f"K = {K:g}", "agents n", mean, _curves(rates.along_n, _agents), log_x=True),
    ]
    lengths = [each for each in transients(rates) if not each.why]
    curves = []
    for method in dict.fromkeys(each.method for each in lengths):
        mine = sorted((each for each in lengths if each.method == method), key=lambda each: each.gap)
        K_T, half = np.array([each.K for each in mine]).T
        x = np.array([each.gap for each in mine])
        curves.append(Curve(f"{method}, {ONE}", x, K_T, half, np.zeros(len(x))))
    if curves:
        panels.append(
            Panel(
                f"n = {rates.complete[0].agents}, slow rings",
                "1 − ρ",
                "length K_T of the transient",
                curves,
                log_x=True,
            )
        )
    looks, legend = _looks([*rates.along_k, *rates.along_n, *(each.run for each in rates.rings)])
    return draw_panels([panels], path, looks=looks, legend=legend)


def _looks(runs: Sequence[Run]) -> tuple[dict[str, dict[str, object]], dict[str, dict[str, object]]]:
    colours, styles = method_looks([run.title for run in runs]), dashes([run.label for run in runs])
    looks = {f"{run.title}, {run.label}": {**colours[run.title], "linestyle": styles[run.label]} for run in runs}
    theory = {THEORY: {"color": "0.6", "linestyle": ":", "marker": ""}}
    legend = colours | {text: {"color": "0.4", "linestyle": style} for text, style in styles.items()} | theory
    return looks | theory, legend


def _curves(runs: Sequence[Run], x: Callable[[Run], float]) -> list[Curve]:
    """A curve for each method and mixing, and the theory's slope through the last point of the best of them."""
    curves = []
    for (title, label), mine in _group(runs).items():
        at, values = _points(mine, x)
        mean, half, lowest, _ = np.array([spread(list(row)) for row in values]).T
        curves.append(Curve(f"{title}, {label}", np.array(at), mean, half, lowest))
    best = min(curves, key=lambda curve: curve.mean[-1])
    line = best.mean[-1] * (best.x / best.x[-1]) ** -0.5
    return [Curve(THEORY, best.x, line, np.zeros(len(line)), line), *curves]


def _points(runs: Sequence[Run], x: Callable[[Run], float]) -> tuple[list[float], Array]:
    """The x of some runs, ascending, and the values ``[points, trials]`` there."""
    ordered = sorted(runs, key=x)
    return [x(run) for run in ordered], np.array([mean_stationarity(run) for run in ordered])


def _group(runs: Sequence[Run]) -> Mapping[tuple[str, str], list[Run]]:
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.title, run.label), []).append(run)
    return groups


def _length(run: Run) -> float:
    return float(run.config["iterations"])


def _agents(run: Run) -> float:
    return float(run.agents)
