"""Means over batches of samples, for methods that need more than one sample at a time."""

from __future__ import annotations

from torch import Tensor

from proxdasa.contracts import Agents


def batch_grad(agents: Agents, x: Tensor, k: int, size: int, sample: int = 0) -> Tensor:
    """(1/b) Σ_j ∇G(x, ξ_j) over the b samples of iteration k, those with numbers kb, …, kb + b − 1.

    The numbers are consecutive because samples are generated in blocks of consecutive numbers, so that none are wasted.
    """
    total = agents.grad(x, k * size, sample)
    for j in range(1, size):
        total = total + agents.grad(x, k * size + j, sample)
    return total / size


def batch_change(agents: Agents, x_new: Tensor, x: Tensor, k: int, size: int) -> Tensor:
    """(1/b) Σ_j [∇G(x', ξ_j) − ∇G(x, ξ_j)] over the same b samples."""
    total = agents.grad(x_new, k * size) - agents.grad(x, k * size)
    for j in range(1, size):
        total = total + agents.grad(x_new, k * size + j) - agents.grad(x, k * size + j)
    return total / size
