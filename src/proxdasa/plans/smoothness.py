"""An estimate of L, the Lipschitz constant of the gradients, which the theory's step sizes need."""

from __future__ import annotations

import torch
from torch import Tensor

from proxdasa import memory_budget
from proxdasa.contracts import Problem, running_of

STEP = 1e-4
"""How far apart the two points of a difference are, relative to the norm of x or 1."""
STEPS = 20
"""Steps of the power iteration."""
ROWS = 8
"""Vectors per agent that are in memory at the same time."""


def estimate_lipschitz(problem: Problem, steps: int = STEPS, seed: int = 0) -> float:
    """A lower bound on L = max_i L_i, where ‖∇F_i(x) − ∇F_i(y)‖ ≤ L_i ‖x − y‖ (Assumption 2).

        v ← ∇F_i(x + h v) − ∇F_i(x),  normalised;   L_i ≥ ‖∇F_i(x + h v) − ∇F_i(x)‖ / h for ‖v‖ = 1

    This is power iteration on the Hessians at the problem's x⁰, by differences and for all agents at once. The quotient
    never exceeds L_i, and converges to the largest curvature near x⁰. Elsewhere the curvature may be larger, or
    unbounded, as in phase retrieval. The estimate takes ``steps`` + 1 full gradients, in double precision.

    Examples:
        >>> A = torch.diag(torch.tensor([1.0, 5.0])).expand(3, 2, 2)
        >>> f"{plans.estimate_lipschitz(problems.Quadratic(A, torch.zeros(3, 2))):.3f}"
        '5.000'
    """
    size = 8 * ROWS * problem.agents * problem.dim
    memory_budget.check(size, f"an estimate of L for {problem.agents:,} agents, d = {problem.dim:,},", "give L instead")
    # A difference over 1e-4 loses about four digits, so only three of float32's seven would be left.
    problem = problem.to(torch.float64)
    x = problem.start(seed, 1).to(torch.float64).expand(1, problem.agents, problem.dim)
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(x.shape, dtype=x.dtype, generator=generator)
    h = STEP * x.norm(dim=-1, keepdim=True).clamp(min=1.0)
    running = running_of(problem)
    at = running.first_buffers(1) if running else None

    def gradient(x: Tensor) -> Tensor:
        return running.evaluate(x, at).grad if running and at is not None else problem.evaluate(x).grad

    here, largest = gradient(x), 0.0
    for _ in range(steps):
        v = torch.nn.functional.normalize(v, dim=-1)
        v = (gradient(x + h * v) - here) / h
        largest = max(largest, float(v.norm(dim=-1).max()))
    if not 0 < largest < float("inf"):
        raise ValueError(f"L cannot be estimated: gradients near the starting point differ by {largest:g} times h")
    return largest
