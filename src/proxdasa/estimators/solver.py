"""The pooled risk of examples at sites, minimised to a tolerance with a step size that is found automatically."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from proxdasa import metrics
from proxdasa.algorithms import ProxDASAGT
from proxdasa.contracts import Problem, Regularizer
from proxdasa.data import Sizes, from_tensors
from proxdasa.mixing import Chebyshev
from proxdasa.networks import Network
from proxdasa.problems import Loss, Supervised, squared_error
from proxdasa.runs.divergence import DivergenceWarning
from proxdasa.runs.results import Result
from proxdasa.runs.setup import Setup
from proxdasa.runs.stopping import Stationary
from proxdasa.schedules import constant
from proxdasa.tuning import default_settings, halve

ALPHA = constant(0.3)
"""α. Gradients are exact, so there is no noise to average, and only the product γα matters."""
SEARCHED, SHARE = 200, 0.1
"""K of the quick search for γ: the least, and the share of the most iterations. Long searches prefer larger steps."""
SMALLER = math.sqrt(10)
"""γ is divided by this if a run with it does not converge."""
ATTEMPTS = 5
"""The most values of γ that are tried."""
EVERY, PATIENCE = 20, 2
"""Iterations between checks of the stopping rule, and how often in a row it must be satisfied."""


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """log(1 + exp(t)) − y t of each example, for outputs t ``[N, 1]`` and classes y = 0 or 1."""
    return nn.functional.softplus(outputs[:, 0]) - targets * outputs[:, 0]


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """½ (t − y)² of each example, for outputs t ``[N, 1]``."""
    return 0.5 * squared_error(outputs, targets)


def pooled_risk(module: nn.Module, x: Tensor, y: Tensor, sites: Sequence[Tensor], loss: Loss) -> Supervised:
    """The risk (1/N) Σ_j ℓ(f(a_j), b_j) of a network, at its own starting point, for the row numbers of each site.

    A batch is all examples of a site, so gradients are exact and take no random words.
    """
    rows, sizes = torch.cat([*sites]), [len(site) for site in sites]
    examples = from_tensors(x[rows], y[rows], name="the examples")
    return Supervised(module, examples, len(sites), max(sizes), Sizes(sizes), loss, weights="examples")


class Solution(NamedTuple):
    """What was found, and how."""

    x: Tensor
    """y = prox_γ(x̄ − γ z̄) ``[d]``, which is exactly sparse where Ψ makes it so."""
    objective: float
    """F + Ψ at this point."""
    gamma: float
    iterations: int
    """The iterations of the run, without those of the search."""
    converged: bool
    """Whether ‖G(x_i, z_i, γ)‖ is at most the tolerance at every agent."""


def solve(problem: Problem, network: Network, regularizer: Regularizer, iterations: int, tolerance: float) -> Solution:
    """Minimise F + Ψ by Prox-DASA-GT until every agent has ‖G(x_i, z_i, γ)‖ ≤ tolerance.

    A quick search finds γ. It sees the first iterations only; if the run then does not end below what the search has
    seen, γ was too large for later iterations, and a smaller one is tried.
    """
    base = Setup(
        ProxDASAGT(1.0, ALPHA),
        problem,
        network,
        regularizer=regularizer,
        mixing=Chebyshev("auto"),
        iterations=max(SEARCHED, int(SHARE * iterations)),
        metrics=[metrics.objective],
    )
    found = halve(base, default_settings(base, fixed=["alpha"]))
    rule, seen, best = Stationary(tolerance**2, PATIENCE, EVERY), found.ranking[0].mean, None
    for attempt in range(ATTEMPTS):
        γ = found.best["gamma"] / SMALLER**attempt
        run = dataclasses.replace(
            base, algorithm=ProxDASAGT(γ, ALPHA), iterations=iterations, observe_every=iterations, stop=rule
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)
            result = run.run()
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        if result.stopped != "diverged":
            solution = _solution(run, result, γ)
            best = solution if best is None or solution.objective < best.objective else best
            if solution.converged or solution.objective <= seen + abs(seen) * 1e-9:
                return solution
    if best is None:
        raise ArithmeticError(f"the run diverges even with γ = {γ:.3g}; are there very large numbers in X or y?")
    return best


def _solution(setup: Setup, result: Result, γ: float) -> Solution:
    y = result.solution
    loss = setup.problem.evaluate(y.unsqueeze(1)).loss.mean()
    objective = float(loss + setup.regularizer.value(y))
    return Solution(y[0], objective, γ, result.iterations, converged=result.stopped == "stationary")
