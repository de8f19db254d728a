"""A sparse matrix times the agents' rows, in process.

``make bench`` compares the alternatives: embedding_bag, a gather with weighted accumulation in one kernel, is the
fastest or close to it at every size; scipy's CSR product catches up at thousands of agents, where memory is the limit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from proxdasa.devices import CPU

Product = Callable[[Tensor], Tensor]

DENSE_LIMIT = 1024
"""Never form a dense agents × agents matrix above this many agents, unless W is nearly dense itself."""
DENSE_ADVANTAGE = 10
"""One multiplication of a sparse product takes as long as this many of a dense one (measured)."""


def dense_pays(matrix: csr_array, rounds: int) -> bool:
    """Whether one product with a dense polynomial of W is faster than ``rounds`` sparse ones."""
    (n, columns), entries = matrix.shape, matrix.nnz
    allowed = n <= DENSE_LIMIT or n * columns <= DENSE_ADVANTAGE * entries
    return allowed and n * columns <= DENSE_ADVANTAGE * rounds * entries


def product(matrix: csr_array, dtype: torch.dtype, device: torch.device = CPU) -> Product:
    """A dense or a sparse product, whichever is faster."""
    return (
        DenseProduct(torch.from_numpy(matrix.toarray()).to(dtype).to(device))
        if dense_pays(matrix, 1)
        else SparseProduct(matrix, dtype)
    )


def adjacency(weights: csr_array) -> csr_array:
    """The unweighted graph of a mixing matrix: ones where agents are neighbours."""
    graph = csr_array(weights, copy=True)
    graph.setdiag(0)
    graph.eliminate_zeros()
    graph.data[:] = 1.0
    return graph


class DenseProduct:
    """x ``[trials, columns, d]`` ↦ matrix · x ``[trials, rows, d]``."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix

    def __call__(self, x: Tensor) -> Tensor:
        """Each row becomes the weighted sum of all rows."""
        matrix = self._matrix.to(x.device)
        return torch.bmm(matrix.expand(x.shape[0], -1, -1), x)  # has less overhead than a broadcasting matmul


class SparseProduct:
    """The same product, for matrices with few weights in each row."""

    def __init__(self, matrix: csr_array, dtype: torch.dtype) -> None:
        self._matrix, self._dtype = matrix, dtype
        self._bags: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """Each row becomes the weighted sum of its neighbours' rows."""
        trials, n, d = x.shape
        if trials not in self._bags:
            self._bags[trials] = self._stack(trials, x.device)
        indices, offsets, weights = self._bags[trials]
        # One table for all trials, with indices moved on by n for each, so that one call of the kernel serves all.
        table = x.reshape(trials * n, d)
        product = torch.nn.functional.embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=weights)
        return product.view(trials, -1, d)

    def _stack(self, trials: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Column indices, row offsets and weights for all trials, whose tables are stacked into one."""
        matrix, n = self._matrix, self._matrix.shape[1]
        steps = np.arange(trials)[:, None]
        indices = (matrix.indices[None, :] + steps * n).reshape(-1)
        offsets = (matrix.indptr[None, :-1] + steps * matrix.nnz).reshape(-1)
        weights = np.tile(matrix.data, trials)
        return (
            torch.from_numpy(indices.astype(np.int64)).to(device),
            torch.from_numpy(offsets.astype(np.int64)).to(device),
            torch.from_numpy(weights).to(self._dtype).to(device),
        )


class ExactProduct:
    """The same product, with each row's sum in ascending order of columns and each term rounded before it is added.

    The result for a row then depends neither on how many rows there are nor on where they lie in memory, which the
    faster products do not promise.
    """

    def __init__(self, matrix: csr_array, dtype: torch.dtype) -> None:
        matrix = csr_array(matrix, copy=True)
        matrix.sort_indices()
        counts = np.diff(matrix.indptr)
        self._rows = matrix.shape[0]
        self._terms = []  # for each s, the s-th terms of all rows that have one
        # Term by term and not row by row: a ring takes three passes whatever its size, and each row still adds its own
        # terms in ascending order.
        for s in range(int(counts.max(initial=0))):
            rows = np.flatnonzero(counts > s)
            places = matrix.indptr[rows] + s
            weights = torch.from_numpy(matrix.data[places]).to(dtype).unsqueeze(-1)
            columns = torch.from_numpy(matrix.indices[places].astype(np.int64))
            self._terms.append((torch.from_numpy(rows), columns, weights))

    def __call__(self, x: Tensor) -> Tensor:
        """Each row becomes the weighted sum of its neighbours' rows."""
        total = x.new_zeros(x.shape[0], self._rows, x.shape[2])
        for rows, columns, weights in self._terms:
            # Two operations on purpose: a fused multiply-add would round once where others round twice.
            total[:, rows] += weights * x[:, columns]
        return total
