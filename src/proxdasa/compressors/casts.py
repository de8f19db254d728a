"""Compressors that send numbers of half the size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from proxdasa.contracts import Part


@dataclass(frozen=True)
class Float16:
    """Each coordinate as a 16-bit float, in units of the largest magnitude m, so that none is too large or too small.

        C(x) = m · float16(x/m),  m = max_i |x_i|;      ‖C(x) − x‖² ≤ (1 − δ) ‖x‖²,  δ = 1 − 2⁻²¹ − d 2⁻⁴⁹

    A message has d numbers of 2 bytes, and m.

    Examples:
        >>> half = compressors.Float16()
        >>> half.restore(half.reduce(torch.tensor([[4.0, 3.14159, 0.0]]), None), 3, None)
        tensor([[4.0000, 3.1406, 0.0000]])
    """

    receiver_draws: ClassVar[bool] = False

    def words(self, d: int) -> int:  # noqa: ARG002
        """Zero: nothing is random."""
        return 0

    def contraction(self, d: int) -> float:
        """δ; each number is off by 2⁻¹¹ of itself, or by 2⁻²⁵ of m."""
        return max(0.0, 1 - 2.0**-21 - d * 2.0**-49)

    def parts(self, d: int, dtype: torch.dtype) -> tuple[Part, ...]:
        """The short numbers and their unit."""
        return Part(d, torch.float16), Part(1, dtype)

    def reduce(self, rows: Tensor, words: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Round in units of m."""
        return _shorten(rows, torch.float16)

    def restore(self, parts: tuple[Tensor, ...], d: int, words: Tensor | None) -> Tensor:  # noqa: ARG002
        """The numbers times their unit."""
        return _lengthen(*parts)


@dataclass(frozen=True)
class BFloat16:
    """Each coordinate as a bfloat16, which has fewer digits than float16, in units of the largest magnitude m.

        C(x) = m · bfloat16(x/m),  m = max_i |x_i|;      ‖C(x) − x‖² ≤ (1 − δ) ‖x‖²,  δ = 1 − 2⁻¹⁷

    Examples:
        >>> half = compressors.BFloat16()
        >>> half.restore(half.reduce(torch.tensor([[4.0, 3.14159, 0.0]]), None), 3, None)
        tensor([[4.0000, 3.1406, 0.0000]])
    """

    receiver_draws: ClassVar[bool] = False

    def words(self, d: int) -> int:  # noqa: ARG002
        """Zero: nothing is random."""
        return 0

    def contraction(self, d: int) -> float:  # noqa: ARG002
        """δ; each number is off by 2⁻⁹ of itself."""
        return 1 - 2.0**-17

    def parts(self, d: int, dtype: torch.dtype) -> tuple[Part, ...]:
        """The short numbers and their unit."""
        return Part(d, torch.bfloat16), Part(1, dtype)

    def reduce(self, rows: Tensor, words: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Round in units of m."""
        return _shorten(rows, torch.bfloat16)

    def restore(self, parts: tuple[Tensor, ...], d: int, words: Tensor | None) -> Tensor:  # noqa: ARG002
        """The numbers times their unit."""
        return _lengthen(*parts)


def _shorten(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x/m in another type, and m; all NaN if x is not finite."""
    unit = rows.abs().amax(dim=-1, keepdim=True)
    return torch.where(unit == 0, 0.0, rows / unit).to(dtype), unit


def _lengthen(short: Tensor, unit: Tensor) -> Tensor:
    return short.to(unit.dtype) * unit
