"""A sparse matrix times the agents' rows as a sum that torch's compiler fuses with what comes before and after."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from proxdasa.engines.products import Product

FEW = 8
"""The most weights in a row for which a sum of rows is faster than a product that is not fused."""


def fused_product(matrix: csr_array, dtype: torch.dtype) -> Product | None:
    """x ``[trials, n, d]`` ↦ matrix · x as Σ_s w_s ∘ (rows moved by s), or None if a row has more than a few weights.

    On a ring, and on any graph that looks the same from every agent, term s moves all rows by the same number of places
    and has one weight. On other graphs it takes a row's s-th neighbour, by index, and a weight for each row.
    """
    matrix = csr_array(matrix, copy=True)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    counts = np.diff(matrix.indptr)
    if counts.max(initial=0) > FEW:
        return None
    shifts = _shifts(matrix)
    return _sum_of_shifts(shifts) if shifts is not None else _sum_of_neighbours(matrix, counts, dtype)


def _shifts(matrix: csr_array) -> dict[int, float] | None:
    """The weight of each shift if the matrix is circulant: entry (i, i + s) is the same for all i."""
    n = matrix.shape[0]
    first = {int(j): float(w) for j, w in zip(matrix.indices[: matrix.indptr[1]], matrix.data, strict=False)}
    if matrix.nnz != n * len(first):
        return None
    rows = np.repeat(np.arange(n), len(first))
    if not np.array_equal(np.diff(matrix.indptr), np.full(n, len(first))):
        return None
    expected = np.array([first.get(int(s), np.nan) for s in (matrix.indices - rows) % n])
    # Weights of a ring may differ between rows by rounding.
    return first if np.allclose(expected, matrix.data, rtol=1e-12, atol=0) else None


def _sum_of_shifts(shifts: dict[int, float]) -> Product:
    def apply(x: Tensor) -> Tensor:
        total = torch.zeros_like(x) if not shifts else None
        for shift, weight in shifts.items():
            moved = torch.roll(x, -shift, dims=-2) if shift else x
            term = moved if weight == 1 else weight * moved
            total = term if total is None else total + term
        assert total is not None
        return total

    return apply


def _sum_of_neighbours(matrix: csr_array, counts: np.ndarray, dtype: torch.dtype) -> Product:
    n, most = matrix.shape[0], int(counts.max(initial=0))
    slots, weights = np.tile(np.arange(n)[:, None], (1, most)), np.zeros((n, most))
    filled = np.arange(most) < counts[:, None]  # rows with fewer neighbours add their own row with weight 0
    slots[filled], weights[filled] = matrix.indices, matrix.data
    terms = [
        (torch.from_numpy(np.ascontiguousarray(slots[:, s])), torch.from_numpy(weights[:, s, None]).to(dtype))
        for s in range(most)
    ]

    def apply(x: Tensor) -> Tensor:
        total = torch.zeros_like(x) if not terms else None
        for columns, weight in terms:
            term = weight * x[..., columns, :]
            total = term if total is None else total + term
        assert total is not None
        return total

    return apply
