"""Products with sparse matrices, computed as sums of rows of the other factor.

In one-hot data the same columns meet again and again: in a9a, fourteen attributes give 123 columns, and a few hundred
different pairs of columns make up all examples. So a matrix M of zeros and ones is split as M = R Q: each row of Q is
the sum of two columns that follow each other in some row of M, and R says which pairs a row of M consists of. R has
half as many ones as M, and if there are few different pairs, the sums Q T of M T = R (Q T) cost next to nothing. R is
split in the same way, as long as that saves additions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

WORTHWHILE = 0.75
"""A matrix is split if its parts need at most this share of its additions."""


class Bags(NamedTuple):
    """The rows of a sparse matrix: the columns that are not 0 and, unless all are 1, their values."""

    columns: Tensor
    starts: Tensor
    """Where the columns of each row begin."""
    values: Tensor | None
    width: int
    """The number of columns of the matrix."""

    @staticmethod
    def of(matrix: Tensor) -> Bags:
        """The rows of a matrix."""
        rows, columns = matrix.nonzero(as_tuple=True)
        values = matrix[rows, columns]
        starts = _starts(torch.bincount(rows, minlength=len(matrix)))
        return Bags(columns.int(), starts, None if bool((values == 1).all()) else values, matrix.shape[1])

    def lengths(self) -> Tensor:
        """The number of columns of each row."""
        return torch.diff(self.starts, append=self.starts.new_tensor([len(self.columns)]))

    def times(self, table: Tensor) -> Tensor:
        """The product of the sparse matrix with ``table``."""
        return functional.embedding_bag(self.columns, table, self.starts, mode="sum", per_sample_weights=self.values)

    def transpose(self) -> Bags:
        """The rows of the transposed matrix."""
        rows = torch.repeat_interleave(self.lengths())
        order = torch.argsort(self.columns, stable=True)
        starts = _starts(torch.bincount(self.columns, minlength=self.width))
        return Bags(rows[order].int(), starts, None if self.values is None else self.values[order], len(self.starts))

    def split(self) -> tuple[Bags, Bags] | None:
        """R and Q whose product is this matrix; None if it has other numbers than 0 and 1, or if that saves little."""
        if self.values is not None or not len(self.columns):
            return None
        lengths, starts, columns = self.lengths().long(), self.starts.long(), self.columns.long()
        ends = torch.repeat_interleave(starts + lengths, lengths)
        firsts = ((torch.arange(len(columns)) - torch.repeat_interleave(starts, lengths)) % 2 == 0).nonzero().flatten()
        seconds = torch.minimum(firsts + 1, ends[firsts] - 1)  # the last column of a row may have no partner
        keys, names = torch.unique(columns[firsts] * self.width + columns[seconds], return_inverse=True)
        pairs = torch.stack([keys // self.width, keys % self.width], dim=1)
        both = torch.stack([torch.ones(len(keys), dtype=torch.bool), pairs[:, 0] != pairs[:, 1]], dim=1)
        if len(names) + int(both.sum()) > WORTHWHILE * len(columns):
            return None
        first = Bags(names.int(), _starts((lengths + 1) // 2), None, len(keys))
        return first, Bags(pairs[both].int(), _starts(both.sum(dim=1)), None, self.width)


class SparseRows:
    """A sparse matrix as a product of sparse matrices."""

    def __init__(self, matrix: Tensor) -> None:
        factors = [Bags.of(matrix)]
        while parts := factors[0].split():
            factors[:1] = parts
        self.factors = [(factor, factor.transpose()) for factor in factors]

    def times(self, table: Tensor) -> Tensor:
        """The product of the matrix with ``table``."""
        for rows, _ in reversed(self.factors):
            table = rows.times(table)
        return table

    def transposed_times(self, table: Tensor) -> Tensor:
        """The product of the transposed matrix with ``table``."""
        for _, columns in self.factors:
            table = columns.times(table)
        return table


def _starts(lengths: Tensor) -> Tensor:
    return (lengths.cumsum(0) - lengths).int()
