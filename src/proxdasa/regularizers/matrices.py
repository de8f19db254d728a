"""Penalties on matrices, for models whose parameters are one: x is the matrix row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from proxdasa.checks import check_length, check_not_negative, check_step_size, check_whole, invalid
from proxdasa.regularizers.norms import shrink
from proxdasa.regularizers.penalty_weights import Weight, check_weight, scale, weight_like
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

    weight: Weight
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_weight(self.weight, "NuclearNorm.weight", check_not_negative))
        object.__setattr__(self, "shape", _shape(self.shape, "NuclearNorm.shape"))

    def _matrix(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The matrices X, and which are finite; the others are set to 0, because one of them fails the SVD of all."""
        check_length(x, math.prod(self.shape), f"NuclearNorm of a {self.shape[0]} × {self.shape[1]} matrix")
        finite = x.isfinite().all(-1, keepdim=True)
        return torch.where(finite, x, 0.0).reshape(*x.shape[:-1], *self.shape), finite

    def value(self, x: Tensor) -> Tensor:
        """The sum w Σ_i σ_i(X)."""
        matrix, finite = self._matrix(x)
        singular = scale(self.weight, torch.linalg.svdvals(matrix).sum(-1), x, "NuclearNorm")
        return torch.where(finite.squeeze(-1), singular, x.abs().sum(-1))

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """Soft-thresholding of the singular values at γ w; NaN for a row with NaN or infinity."""
        level = check_step_size(gamma, x) * weight_like(self.weight, x, "NuclearNorm")
        matrix, finite = self._matrix(x)
        u, singular, vt = torch.linalg.svd(matrix, full_matrices=False)
        shrunk = (u * (singular - level).relu().unsqueeze(-2)) @ vt
        return torch.where(finite, shrunk.flatten(-2), math.nan)


@final
@dataclass(frozen=True)
class RowL2:
    """The group lasso over the rows of a matrix, Ψ(x) = w Σ_r ‖(X_r, b_r)‖, which zeroes whole rows.

        prox_γ(x)_r = max(1 − γ w / ‖(X_r, b_r)‖, 0) (X_r, b_r)

    x is X with ``shape`` = (rows, columns), row by row, and then, with ``bias``, an entry b_r for each row: the weights
    and biases of a layer, whose neurons are the groups. Not scaled by the number of columns.

    Examples:
        >>> x = torch.tensor([3.0, 0.0, 0.1, 0.2, 4.0, 0.2])  # two neurons with two weights each, and their biases
        >>> regularizers.RowL2(1.0, shape=(2, 2), bias=True).prox(x, gamma=1.0)
        tensor([2.4000, 0.0000, 0.0000, 0.0000, 3.2000, 0.0000])
    """

    weight: Weight
    shape: tuple[int, int]
    bias: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_weight(self.weight, "RowL2.weight", check_not_negative))
        object.__setattr__(self, "shape", _shape(self.shape, "RowL2.shape"))
        if not isinstance(self.bias, bool):
            raise invalid("RowL2.bias", "True or False", self.bias)

    def _pieces(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The matrices X ``[..., rows, columns]``, and the biases ``[..., rows, 1]``, of which there may be none."""
        rows, columns = self.shape
        what = f"RowL2 of a {rows} × {columns} matrix{' with a bias' * self.bias}"
        check_length(x, rows * (columns + self.bias), what)
        matrix, bias = torch.split(x, [rows * columns, rows * self.bias], dim=-1)
        return matrix.reshape(*x.shape[:-1], rows, columns), bias.reshape(*x.shape[:-1], rows, int(self.bias))

    def _norms(self, x: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(torch.cat(self._pieces(x), dim=-1), dim=-1)
        return norms

    def value(self, x: Tensor) -> Tensor:
        """The sum w Σ_r ‖(X_r, b_r)‖."""
        return scale(self.weight, self._norms(x).sum(-1), x, "RowL2")

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """Shrinkage of every row's norm by γ w, stopping at zero."""
        keep = shrink(self._norms(x), check_step_size(gamma, x) * weight_like(self.weight, x, "RowL2")).unsqueeze(-1)
        return torch.cat([(piece * keep).flatten(-2) for piece in self._pieces(x)], dim=-1)


def _shape(value: object, name: str) -> tuple[int, int]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise invalid(name, "a pair (rows, columns)", value)
    rows, columns = (check_whole(size, f"{name}[{axis}]", least=1) for axis, size in enumerate(value))
    return rows, columns
