"""Compressors that send some coordinates as they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from proxdasa.checks import check_probability, invalid
from proxdasa.contracts import Part


@dataclass(frozen=True)
class TopK:
    """The k = ⌈share · d⌉ coordinates of largest magnitude (the first ones among equals), with their indices.

        C(x)_i = x_i if |x_i| is among the k largest, else 0;      ‖C(x) − x‖² ≤ (1 − k/d) ‖x‖²,  δ = k/d

    A message has k values, and k indices of ⌈log₂ d⌉ bits.

    Examples:
        >>> top = compressors.TopK(0.4)
        >>> x = torch.tensor([[1.0, -5.0, 0.0, 4.0, 2.0]])
        >>> top.restore(top.reduce(x, None), 5, None)
        tensor([[ 0., -5.,  0.,  4.,  0.]])
        >>> top.contraction(5)
        0.4
    """

    share: float
    receiver_draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_share(self.share)

    def words(self, d: int) -> int:  # noqa: ARG002
        """Zero: nothing is random."""
        return 0

    def contraction(self, d: int) -> float:
        """δ = k/d."""
        return _count(self.share, d) / d

    def parts(self, d: int, dtype: torch.dtype) -> tuple[Part, ...]:
        """Indices and values."""
        k = _count(self.share, d)
        return Part(k, torch.int64, max(1, (d - 1).bit_length())), Part(k, dtype)

    def reduce(self, rows: Tensor, words: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """The indices in ascending order, and the values."""
        # Values that are not finite come first.
        indices = _smallest(rows.abs().nan_to_num_(nan=math.inf, posinf=math.inf).neg_(), self.share)
        return indices, rows.gather(-1, indices)

    def restore(self, parts: tuple[Tensor, ...], d: int, words: Tensor | None) -> Tensor:  # noqa: ARG002
        """The values in their places, and zeros."""
        indices, values = parts
        return _place(indices, values, d)


@dataclass(frozen=True)
class RandK:
    """k = ⌈share · d⌉ random coordinates, every set of k equally likely.

        C(x)_i = x_i if i was drawn, else 0;      E‖C(x) − x‖² = (1 − k/d) ‖x‖²,  δ = k/d

    The values are not scaled by d/k: that would make C unbiased but not a contraction, which differences need. A
    message has k values; the receiver draws the sender's random words by their name, and so knows the indices.

    Examples:
        >>> rand = compressors.RandK(0.4)
        >>> words = torch.tensor([[7, -3, 0, 9, -8]], dtype=torch.int32)  # the smallest are drawn
        >>> x = torch.tensor([[1.0, -5.0, 0.0, 4.0, 2.0]])
        >>> rand.restore(rand.reduce(x, words), 5, words)
        tensor([[ 0., -5.,  0.,  0.,  2.]])
    """

    share: float
    receiver_draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_share(self.share)

    def words(self, d: int) -> int:
        """One for each coordinate."""
        return d

    def contraction(self, d: int) -> float:
        """δ = k/d."""
        return _count(self.share, d) / d

    def parts(self, d: int, dtype: torch.dtype) -> tuple[Part, ...]:
        """Values."""
        return (Part(_count(self.share, d), dtype),)

    def reduce(self, rows: Tensor, words: Tensor | None) -> tuple[Tensor, ...]:
        """The values."""
        return (rows.gather(-1, self._draw(words)),)

    def restore(self, parts: tuple[Tensor, ...], d: int, words: Tensor | None) -> Tensor:
        """The values in their places, and zeros."""
        return _place(self._draw(words), parts[0], d)

    def _draw(self, words: Tensor | None) -> Tensor:
        """The indices of the k smallest words, the first ones among equals."""
        assert words is not None
        return _smallest(words, self.share)


def _check_share(share: float) -> None:
    if check_probability(share, "share") == 0:
        raise invalid("share", "a number above 0, at most 1", share)


def _count(share: float, d: int) -> int:
    """k; rounding errors in the share do not add a coordinate."""
    return max(1, math.ceil(share * d * (1 - 1e-9)))


def _smallest(rows: Tensor, share: float) -> Tensor:
    """The indices of the k smallest numbers of each row, the first ones among equals, in ascending order."""
    d = rows.shape[-1]
    k = _count(share, d)
    if rows.device.type != "cpu":
        return rows.sort(dim=-1, stable=True).indices[..., :k].sort(dim=-1).values
    # NumPy finds the k-th several times faster than torch, and torch's topk does not say which of equal ones it takes.
    last = torch.from_numpy(np.partition(rows.numpy(), k - 1, axis=-1)[..., k - 1 : k])
    chosen, equal = rows < last, rows == last
    left = k - chosen.sum(dim=-1, keepdim=True)
    if bool((equal.sum(dim=-1, keepdim=True) > left).any()):
        equal &= equal.cumsum(dim=-1) <= left
    places = np.flatnonzero((chosen | equal).numpy())
    return torch.from_numpy(places % d).view(*rows.shape[:-1], k)


def _place(indices: Tensor, values: Tensor, d: int) -> Tensor:
    return values.new_zeros(*values.shape[:-1], d).scatter_(-1, indices, values)
