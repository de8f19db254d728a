"""Copies of a network on many examples: computed in chunks that fit the cache, and added up or put together."""

from __future__ import annotations

import torch
from torch import Tensor

from proxdasa.data import Dataset
from proxdasa.problems.copies import Copies, share

CHUNK = 2**21
"""Values that the widest layer of all networks holds at a time: few enough for the cache, enough for fast products."""


def chunk_size(copies: Copies, others: int) -> int:
    """How many examples fit into a chunk for each of ``others`` networks, or the other way round."""
    return max(1, CHUNK // (others * copies.fit.width))


def weighted_loss(
    copies: Copies, x: Tensor, inputs: Tensor, targets: Tensor, rows: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ_j w_j ℓ_j over these rows of the examples, and its gradient, at each of the points x ``[trials, d]``."""
    loss, grad = x.new_zeros(len(x)), torch.zeros_like(x)
    size = chunk_size(copies, len(x))
    for chunk, weight in zip(torch.split(rows, size), torch.split(weights, size), strict=True):
        some, part = copies.losses_and_grads(x, *share(len(x), inputs[chunk], targets[chunk]), weight)
        loss += some
        grad += part
    return loss, grad


def outputs_of(copies: Copies, x: Tensor, inputs: Tensor) -> Tensor:
    """The outputs ``[rows, N, ...]`` of the networks x ``[rows, d]`` for inputs ``[N, ...]``."""
    if not copies.fit.tensor:
        name = type(copies.module).__name__
        raise ValueError(f"{name} does not return a tensor, so its outputs are not stacked; call problem.module(x)")
    chunks = torch.split(inputs, chunk_size(copies, len(x)))
    return torch.cat([copies.outputs(x, chunk.expand(len(x), *chunk.shape)) for chunk in chunks], dim=1)


def scores_of(copies: Copies, x: Tensor, data: Dataset, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Loss on the test examples, and for classes the share that is predicted correctly.

    The prediction is the largest of the outputs; with fewer outputs than classes there is no accuracy.
    """
    if not copies.fit.tensor:
        size = chunk_size(copies, len(x))
        pairs = zip(torch.split(inputs, size), torch.split(targets, size), strict=True)
        return {"test_loss": torch.cat([copies.losses(x, *share(len(x), *pair)) for pair in pairs], dim=1).mean(1)}
    outputs = outputs_of(copies, x, inputs)
    each = copies.loss(outputs.flatten(0, 1), targets.repeat(len(x), *[1] * (targets.ndim - 1)))
    scores = {"test_loss": each.view(len(x), -1).mean(1)}
    if data.classes is not None and outputs.ndim == 3 and outputs.shape[-1] >= data.classes:
        scores["accuracy"] = (outputs.argmax(-1) == targets).to(x.dtype).mean(1)
    return scores
