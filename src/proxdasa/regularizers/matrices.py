"""Penalties on matrices, for models whose parameters are one: x is the matrix row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from proxdasa.checks import check_length, check_not_negative, check_step_size, check_whole, invalid
from proxdasa.schedules import Number


@final
@dataclass(frozen=True)
class NuclearNorm:
    """The nuclear norm Ψ(x) = w Σ_i σ_i(X), for matrices of low rank; X is x as ``shape`` = (rows, columns).

        prox_γ(x) = U diag(max(σ − γ w, 0)) Vᵀ   with X = U diag(σ) Vᵀ

    Reference: J.-F. Cai, E. Candès and Z. Shen, A singular value thresholding algorithm for matrix
    completion, SIAM J. Optim. 20, 2010.

    Examples:
        >>> x = torch.tensor([3.0, 0.0, 0.0, 1.0])  # a 2 × 2 matrix, row by row
        >>> regularizers.NuclearNorm(1.0, shape=(2, 2)).prox(x, gamma=1.0)  # of rank 1
        tensor([2., 0., 0., 0.])
    """

    weight: float
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_not_negative(self.weight, "NuclearNorm.weight"))
        if not isinstance(self.shape, tuple | list) or len(self.shape) != 2:
            raise invalid("NuclearNorm.shape", "a pair (rows, columns)", self.shape)
        rows, columns = (
            check_whole(size, f"NuclearNorm.shape[{axis}]", least=1) for axis, size in enumerate(self.shape)
        )
        object.__setattr__(self, "shape", (rows, columns))

    def _matrix(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The matrices X, and which are finite; the others are set to 0, because one of them fails the SVD of all."""
        check_length(x, math.prod(self.shape), f"NuclearNorm of a {self.shape[0]} × {self.shape[1]} matrix")
        finite = x.isfinite().all(-1, keepdim=True)
        return torch.where(finite, x, 0.0).reshape(*x.shape[:-1], *self.shape), finite

    def value(self, x: Tensor) -> Tensor:
        """The sum w Σ_i σ_i(X)."""
        matrix, finite = self._matrix(x)
        singular = self.weight * torch.linalg.svdvals(matrix).sum(-1)
        return torch.where(finite.squeeze(-1), singular, x.abs().sum(-1))

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """Soft-thresholding of the singular values at γ w; NaN for a row with NaN or infinity."""
        level = check_step_size(gamma, x) * self.weight
        matrix, finite = self._matrix(x)
        u, singular, vt = torch.linalg.svd(matrix, full_matrices=False)
        shrunk = (u * (singular - level).relu().unsqueeze(-2)) @ vt
        return torch.where(finite, shrunk.flatten(-2), math.nan)
