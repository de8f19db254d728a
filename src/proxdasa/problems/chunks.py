"""Copies of a network on many examples: computed in chunks that fit the cache, and summed or concatenated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from proxdasa.contracts import Evaluation
from proxdasa.data import Dataset
from proxdasa.problems.copies import Copies, Pass, share

CHUNK = 2**21
"""Values that the widest layer of all networks holds at a time: few enough for the cache, enough for fast products."""


PARAMETERS = 2**22
"""Parameters whose gradients are computed at a time: they are held once more before they are put into rows."""


def chunk_size(copies: Copies, others: int) -> int:
    """How many examples for each of ``others`` networks fit into a chunk, or networks for ``others`` examples."""
    return max(1, CHUNK // (others * copies.fit.width))


def sample_pass(
    copies: Copies,
    x: Tensor,
    r: Tensor | None,
    samples: Tensor,
    seeds: Tensor | None,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor | None,
) -> Pass:
    """The copies x ``[trials, n, d]`` and r ``[trials, n, s]`` on samples ``[trials, n, batch]`` of the examples.

    As many copies are computed at a time as fit into a chunk, and fewer if they are large. ``weights`` ``[n, batch]``
    are those of the examples, if not equal.
    """
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]  # len() of a tensor takes longer
    size = min(chunk_size(copies, samples.shape[-1]), max(1, PARAMETERS // x.shape[-1]))
    shares = None if weights is None else weights.repeat(count // len(weights), 1)

    def some(stack: Tensor | None, first: int) -> Tensor | None:
        return None if stack is None else stack.reshape(count, -1)[first : first + size]

    grads = torch.empty_like(rows) if count > size else None
    passes = []
    for first in range(0, count, size):
        own, share = some(samples, first), some(shares, first)
        passes.append(
            copies.losses_and_grads(
                rows[first : first + size],
                inputs[own],
                targets[own],
                samples.shape[-1] if share is None else share,
                some(seeds, first),
                some(r, first),
                some(grads, first),
            )
        )
    if grads is None:
        return passes[0]
    statistics = [each.statistics for each in passes if each.statistics is not None]
    losses = torch.cat([each.losses for each in passes])
    return Pass(losses, grads, torch.cat(statistics) if statistics else None)


def evaluate_parts(
    copies: Copies,
    x: Tensor,
    r: Tensor | None,
    inputs: Tensor,
    targets: Tensor,
    parts: Sequence[tuple[Tensor, Tensor]],
) -> Evaluation:
    """Σ_j w_j ℓ_j over the rows and weights of part i of the examples, and its gradient, at x_i and r_i."""
    own = [
        _weighted_loss(copies, x[..., i, :], None if r is None else r[..., i, :], inputs, targets, *part)
        for i, part in enumerate(parts)
    ]
    return Evaluation(torch.stack([loss for loss, _ in own], -1), torch.stack([grad for _, grad in own], -2))


def _weighted_loss(
    copies: Copies, x: Tensor, r: Tensor | None, inputs: Tensor, targets: Tensor, rows: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum and its gradient at each of the points x ``[trials, d]`` and r ``[trials, s]``."""
    loss, grad = x.new_zeros(len(x)), torch.zeros_like(x)
    size = chunk_size(copies, len(x))
    for chunk, weight in zip(torch.split(rows, size), torch.split(weights, size), strict=True):
        some = copies.losses_and_grads(x, *share(len(x), inputs[chunk], targets[chunk]), weight, r=r)
        loss += some.losses
        grad += some.grads
    return loss, grad


def outputs_of(copies: Copies, x: Tensor, inputs: Tensor, r: Tensor | None = None) -> Tensor:
    """The outputs ``[rows, N, ...]`` of the networks x ``[rows, d]``, r ``[rows, s]`` for inputs ``[N, ...]``."""
    if not copies.fit.tensor:
        name = type(copies.module).__name__
        raise ValueError(f"{name} does not return a tensor, so its outputs are not stacked; call problem.module(x)")
    chunks = torch.split(inputs, chunk_size(copies, len(x)))
    return torch.cat([copies.outputs(x, chunk.expand(len(x), *chunk.shape), r) for chunk in chunks], dim=1)


def scores_of(
    copies: Copies, x: Tensor, data: Dataset, cast: Callable[[Tensor], Tensor], r: Tensor | None = None
) -> dict[str, Tensor]:
    """Loss on the test examples, if there are any, and for classes the share that is predicted correctly.

    The prediction is the largest of the outputs; with fewer outputs than classes there is no accuracy.
    """
    if data.test_x is None or data.test_y is None:
        return {}
    inputs, targets = cast(data.test_x), cast(data.test_y)
    if not copies.fit.tensor:
        size = chunk_size(copies, len(x))
        pairs = zip(torch.split(inputs, size), torch.split(targets, size), strict=True)
        return {"test_loss": torch.cat([copies.losses(x, *share(len(x), *pair), r) for pair in pairs], dim=1).mean(1)}
    outputs = outputs_of(copies, x, inputs, r)
    each = copies.loss(outputs.flatten(0, 1), targets.repeat(len(x), *[1] * (targets.ndim - 1)))
    scores = {"test_loss": each.view(len(x), -1).mean(1)}
    if data.classes is not None and outputs.ndim == 3 and outputs.shape[-1] >= data.classes:
        scores["accuracy"] = (outputs.argmax(-1) == targets).to(x.dtype).mean(1)
    return scores
