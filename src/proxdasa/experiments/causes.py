"""Why Prox-DASA ends where it does on MNIST: what the scripts and the paper do differently, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from proxdasa.experiment_choices import CAUSES
from proxdasa.experiments import real_data
from proxdasa.problems import Supervised
from proxdasa.runs.setup import Setup

METHOD = "prox-dasa"
TUNED = (3.0, 0.3)
"""The (γ, α) that `proxdasa reproduce mnist --preset paper` chooses."""
OBSERVE_EVERY = 500

CHANGES: dict[str, Callable[[Setup, Setup], Setup]] = {
    "start": lambda run, other: _change_problem(run, initial=_problem(other).initial),
    "penalty": lambda run, other: replace(run, regularizer=other.regularizer),
    "data": lambda run, other: _change_problem(run, partition=_problem(other).partition),
    "steps": lambda run, other: replace(run, algorithm=other.algorithm),
}
"""Each function makes a run like the other run in one respect."""


def causes(iterations: int = 500, trials: int = 10, seed: int = 0) -> dict[str, Setup]:
    """Prox-DASA on MNIST by both presets, each of them unchanged first and then with one choice of the other preset.

    The names of the runs are keys of `CAUSES`. α_k does not depend on the number of iterations, so these are the first
    iterations of the runs of `real_data`.
    """

    def run(**preset: Any) -> Setup:
        runs = real_data.comparison(
            "mnist", **preset, algorithms=[METHOD], iterations=iterations, trials=trials, seed=seed
        )
        return replace(runs[METHOD], observe_every=OBSERVE_EVERY)

    scripts, paper = run(preset="as-published", tuned={}), run(preset="paper", tuned={METHOD: TUNED})
    runs = {"as-published": scripts}
    runs |= {f"as-published-{name}": change(scripts, paper) for name, change in CHANGES.items()}
    runs["paper"] = paper
    runs |= {f"paper-{name}": change(paper, scripts) for name, change in CHANGES.items()}
    return {name: runs[name] for name in CAUSES}


def _change_problem(run: Setup, **choice: Any) -> Setup:
    return replace(run, problem=replace(_problem(run), **choice))


def _problem(run: Setup) -> Supervised:
    if not isinstance(run.problem, Supervised):
        raise TypeError(f"there is no choice of start and data in {run.problem}")
    return run.problem
