"""Which measures can compare runs: only those that were measured in the same way for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxdasa.reports.axis_quantities import OWN_GAMMA, Quantity, quantity
from proxdasa.reports.curves import Run, names

RANKED = {"loss": 1, "objective": 1, "table_stationarity": 1, "accuracy": -1}
"""Measures by which runs are ranked; 1 if less is better, -1 if more is. None depends on a run's own γ."""


def alike(runs: Sequence[Run]) -> bool:
    """Whether all runs are known to have the same γ, because γ itself or the whole method is the same."""
    gammas = {own_gamma(run) for run in runs}
    if None not in gammas:
        return len(gammas) == 1
    return len({repr((run.title, run.config.get("algorithm"))) for run in runs}) == 1


def stationarity_of(runs: Sequence[Run]) -> str:
    """The stationarity to show of runs: that of Definition 1 if γ is the same for all, otherwise that at γ = 1.

    If only one of them was recorded, it is that one.
    """
    preferred = ("stationarity", "table_stationarity") if alike(runs) else ("table_stationarity", "stationarity")
    return next((measure for measure in preferred if any(run.has(measure) for run in runs)), "stationarity")


def quantity_of(measure: str, runs: Sequence[Run]) -> Quantity:
    """How reports name a measure of some runs, with their γ if it matters and is known to be the same."""
    own, gammas = quantity(measure), {own_gamma(run) for run in runs}
    if all("site" in run.config for run in runs):  # a site measures its own loss at its own point
        own = own._replace(name=_own(own.name), formula=_own(own.formula))
    if measure not in OWN_GAMMA or len(gammas) > 1 or None in gammas:
        return own
    return own._replace(name=own.name.replace("own γ", f"own γ = {gammas.pop():g}"))


def _own(text: str) -> str:
    return text.replace("x̄", "x_i").replace("z̄", "z_i").replace("F(", "F_i(")


def hindrance(measure: str, runs: Sequence[Run]) -> str:
    """Why a measure cannot rank the runs; empty if it can."""
    lacking = [name for name, run in zip(names(runs), runs, strict=True) if not run.has(measure)]
    if lacking:
        return f"not recorded by {lacking[0]}" + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else "")
    if (why := difference(measure, runs)) or measure in _WITHOUT_F or len({_points(run) for run in runs}) == 1:
        return why
    return "the runs differ in their evaluation points, of which each agent has its own"


def difference(measure: str, runs: Sequence[Run]) -> str:
    """What the runs differ in that makes a measure mean something else for each; empty if there is nothing."""
    for what, of in {"site": _site, "problem": _problem, **_BESIDES.get(measure, {})}.items():
        if len({repr(of(run)) for run in runs}) > 1:
            return f"the runs differ in their {what}"
    return ""


def own_gamma(run: Run) -> float | None:
    """The γ at which a run measures its own stationarity, if the records have it."""
    noted = run.config.get("facts", {}).get("gamma")
    return noted if isinstance(noted, int | float) else None


def _problem(run: Run) -> Any:
    """The problem without the number of agents that share it."""
    problem = run.config.get("problem")
    return {**problem, "agents": None} if isinstance(problem, Mapping) else problem


def _points(run: Run) -> int | None:
    """How many agents have evaluation points, of which F is a mean; None if F does not depend on that."""
    problem = run.config.get("problem")
    return run.agents if isinstance(problem, Mapping) and type(problem.get("evaluation")) is int else None


def _site(run: Run) -> Any:
    return run.config.get("site")


def _penalty(run: Run) -> Any:
    return run.config.get("regularizer")


def _measured_penalty(run: Run) -> Any:
    """The Ψ of the stationarity at γ = 1, which may differ from the run's."""
    metrics = run.config.get("metrics")
    for metric in metrics if isinstance(metrics, list) else ():
        if isinstance(metric, Mapping) and metric.get("name") == "table_stationarity" and "regularizer" in metric:
            return metric["regularizer"]
    return _penalty(run)


_WITHOUT_F = ("consensus",)
"""Measures that rank runs and do not contain F."""

_BESIDES = {
    "objective": {"regularizer": _penalty},
    "table_stationarity": {"regularizer": _measured_penalty, "number of agents": lambda run: run.agents},
    **{measure: {"regularizer": _penalty} for measure in OWN_GAMMA},
}
"""What must be the same besides the problem; ‖X − X̄‖² is a sum over agents, so their number must be."""
