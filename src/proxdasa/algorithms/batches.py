"""Means over batches of named samples, for the methods that need more than one sample at a time."""

from __future__ import annotations

from torch import Tensor

from proxdasa.contracts import Agents


def batch_grad(agents: Agents, x: Tensor, k: int, size: int, sample: int = 0) -> Tensor:
    """(1/b) Σ_j ∇G(x, ξ_j) over the b samples of iteration k, named kb, …, kb + b − 1.

    Consecutive names of one stream: samples are made in blocks of these, so that large batches waste none.
    """
    total = agents.grad(x, k * size, sample)
    for name in range(k * size + 1, (k + 1) * size):
        total = total + agents.grad(x, name, sample)
    return total / size


def batch_change(agents: Agents, x_new: Tensor, x: Tensor, k: int, size: int) -> Tensor:
    """(1/b) Σ_j [∇G(x', ξ_j) − ∇G(x, ξ_j)] over the same b samples."""
    total = agents.grad(x_new, k * size) - agents.grad(x, k * size)
    for name in range(k * size + 1, (k + 1) * size):
        total = total + agents.grad(x_new, name) - agents.grad(x, name)
    return total / size
