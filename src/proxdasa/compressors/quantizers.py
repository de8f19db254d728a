"""Compressors that send a few bits of each coordinate, and a norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from proxdasa.checks import check_whole
from proxdasa.contracts import Part
from proxdasa.devices import widest

MOST_BITS = 16


@dataclass(frozen=True)
class QSGD:
    """b bits of each coordinate (Alistarh et al., 2017): one of 2s + 1 levels, rounded up or down at random.

        C(x)_i = ‖x‖ sign(x_i) ⌊s |x_i| / ‖x‖ + u_i⌋ / (s (1 + ω)),    s = 2^{b−1} − 1,  u_i uniform in [0, 1)
        ω = min(d/s², √d/s);      E‖C(x) − x‖² ≤ (1 − δ) ‖x‖²,  δ = 1/(1 + ω)

    Without the factor 1/(1 + ω) it would be unbiased but, for few bits, not a contraction. A message has d levels of b
    bits and a norm; ``bits`` is b, from 2 to 16.

    Examples:
        >>> qsgd = compressors.QSGD(4)
        >>> words = torch.full((1, 3), 2**31 - 1, dtype=torch.int32)  # u = 1/2: the nearest level
        >>> qsgd.restore(qsgd.reduce(torch.tensor([[3.0, -4.0, 0.0]]), words), 3, None).round(decimals=3)
        tensor([[ 2.6920, -4.0380,  0.0000]])
        >>> round(qsgd.contraction(3), 3)
        0.942
    """

    bits: int
    receiver_draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole(self.bits, "bits", 2, MOST_BITS)

    def words(self, d: int) -> int:
        """One for each coordinate."""
        return d

    def contraction(self, d: int) -> float:
        """δ = 1/(1 + ω)."""
        return 1 / (1 + min(d / self._levels**2, math.sqrt(d) / self._levels))

    def parts(self, d: int, dtype: torch.dtype) -> tuple[Part, ...]:
        """Levels from 0 to 2s, and the norm."""
        return Part(d, torch.int32, self.bits), Part(1, dtype)

    def reduce(self, rows: Tensor, words: Tensor | None) -> tuple[Tensor, ...]:
        """Round the shares of the norm."""
        assert words is not None
        s = self._levels
        norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=widest(rows.device)).to(rows.dtype)
        # 0/0 is 0 here. A norm that is not finite makes every coordinate NaN, whatever the levels are.
        size = (rows.abs() / norm).mul_(s).nan_to_num_(nan=0.0, posinf=0.0)
        levels = size.floor()
        u = (words >> 8 & 2**24 - 1).to(rows.dtype).mul_(2.0**-24)
        levels.add_(u < size - levels).clamp_(max=s).copysign_(rows)
        return levels.add_(s).to(torch.int32), torch.where(norm.isfinite(), norm, torch.nan)

    def restore(self, parts: tuple[Tensor, ...], d: int, words: Tensor | None) -> Tensor:  # noqa: ARG002
        """Levels times what one level is worth."""
        levels, norm = parts
        return (levels - self._levels).to(norm.dtype) * (norm * (self.contraction(d) / self._levels))

    @property
    def _levels(self) -> int:
        return int(2 ** (self.bits - 1) - 1)


@dataclass(frozen=True)
class SignNorm:
    """One bit of each coordinate, its sign, and the mean magnitude.

        C(x)_i = (‖x‖₁/d) sign(x_i),  sign(0) = 1;      ‖C(x) − x‖² = ‖x‖² − ‖x‖₁²/d,  so δ ≥ 1/d

    The worst case is a row with a single nonzero coordinate. δ is 1 if all magnitudes are equal, and 2/π for normal
    ones.

    Examples:
        >>> sign = compressors.SignNorm()
        >>> sign.restore(sign.reduce(torch.tensor([[3.0, -4.0, 0.0, 1.0]]), None), 4, None)
        tensor([[ 2., -2.,  2.,  2.]])
    """

    receiver_draws: ClassVar[bool] = False

    def words(self, d: int) -> int:  # noqa: ARG002
        """Zero: nothing is random."""
        return 0

    def contraction(self, d: int) -> float:
        """δ = 1/d in the worst case."""
        return 1 / d

    def parts(self, d: int, dtype: torch.dtype) -> tuple[Part, ...]:
        """Which coordinates are negative, and the mean magnitude."""
        return Part(d, torch.bool, 1), Part(1, dtype)

    def reduce(self, rows: Tensor, words: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Take signs and the mean."""
        return rows < 0, rows.abs().mean(dim=-1, keepdim=True, dtype=widest(rows.device)).to(rows.dtype)

    def restore(self, parts: tuple[Tensor, ...], d: int, words: Tensor | None) -> Tensor:  # noqa: ARG002
        """The mean magnitude with each sign."""
        negative, mean = parts
        return torch.where(negative, -mean, mean)
