"""The settings to try if no range is given: step sizes over decades around what the problem's curvature allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from proxdasa.contracts import Algorithm
from proxdasa.plans.smoothness import estimate_lipschitz
from proxdasa.runs.setup import Setup
from proxdasa.schedules import Schedule
from proxdasa.tuning.method_parameters import tunable, with_parameters
from proxdasa.tuning.settings import Setting

STEPS = tuple(10.0 ** (half / 2) for half in range(-6, 5))
"""The step along the gradient, in units of 1/L, from 10⁻³ to 10². It is γ, or γα where gradients are averaged."""
SHARES = (0.1, 1.0, 10.0)
"""α in units of √(n/K), the theory's step size."""
LARGEST = 0.5
"""The largest α to try."""
TINY = 1e-6
"""A parameter of a schedule so small that no cap is reached, to find the slope of α in it."""
LOOKS = 200
"""The number of iterations at which a schedule is evaluated."""


def searched_parameters(algorithm: Algorithm, fixed: Sequence[str] = ()) -> list[str]:
    """The parameters that a quick search changes: the step, and the scale of α if that is a schedule and not fixed."""
    facts, names = algorithm.facts, tunable(algorithm)
    if facts.step is None or facts.step not in names:
        raise ValueError(
            f"quick: {facts.title} does not declare which of its parameters is the step along the gradient "
            "(contracts.Facts.step), so there is no default range; give a grid or random ranges"
        )
    scale = facts.averaging.step_size if facts.averaging else None
    return [facts.step, *([scale] if scale in names and scale not in fixed else [])]


def default_settings(setup: Setup, fixed: Sequence[str] = ()) -> list[Setting]:
    """Combinations of a step c/L and, where gradients are averaged, a mean step size ᾱ.

        γ ᾱ = c/L,  c = 10⁻³, ..., 10²;      ᾱ = min{s √(n/K), ½},  s = 0.1, 1, 10

    For small α the x of Prox-DASA moves along −z by γα, so it is the product that L bounds: on a quadratic with a
    single agent the method is stable exactly if γαL < 1. L is estimated at x⁰ (`plans.estimate_lipschitz`), and the
    curvature further on may be larger or smaller by orders of magnitude; hence the decades.
    """
    algorithm = setup.algorithm
    step, *scale = searched_parameters(algorithm, fixed)
    L = _estimate(setup)
    averaging, n, K = algorithm.facts.averaging, setup.network.n, setup.iterations
    if scale:
        slope = mean_size(setup, with_parameters(algorithm, {scale[0]: TINY}), scale[0]) / TINY
        sizes = list(dict.fromkeys(min(share * (n / K) ** 0.5, LARGEST) for share in SHARES))
        columns = [{scale[0]: _round(size / slope)} for size in sizes]
    else:
        sizes, columns = [mean_size(setup, algorithm, averaging.step_size) if averaging else 1.0], [{}]
    unit = mean_size(setup, with_parameters(algorithm, {step: TINY}), step) / TINY
    return [
        {step: _round(c / (L * size * unit)), **column}
        for size, column in zip(sizes, columns, strict=True)
        for c in STEPS
    ]


def _estimate(setup: Setup) -> float:
    try:
        return estimate_lipschitz(setup.problem, seed=setup.seed)
    except (AttributeError, ValueError) as error:  # a problem of the user's own may lack the method `to`
        raise ValueError(f"quick: no scale for the default range: {error}; give a grid or random ranges") from error


def mean_size(setup: Setup, algorithm: Algorithm, name: str) -> float:
    """The mean of a step size over the iterations of a run; a number is its own mean."""
    value = getattr(algorithm, name)
    if isinstance(value, Schedule):
        value = value.bind(setup.network.n, setup.iterations, torch.float64)
    if not callable(value):
        return float(value)
    k = np.unique(np.linspace(0, setup.iterations - 1, LOOKS).astype(int))
    sizes = [value(int(i)) for i in k]
    if all(isinstance(size, float) for size in sizes):
        return float(np.mean(torch.tensor(sizes).tolist()))  # in single precision, as one by one
    return float(np.mean([float(torch.as_tensor(size).mean()) for size in sizes]))


def _round(value: float) -> float:
    """Three digits, which are enough and easier to write down."""
    return float(f"{value:.3g}")
