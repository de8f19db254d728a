"""Products with W_r, the matrix of the links that are up in a round: the weight of a missing link stays at its ends."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor

from proxdasa.conditions import Weather
from proxdasa.engines.products import dense_pays


class VaryingProduct:
    """x ``[batch, columns, d]`` ↦ W_r x ``[batch, rows, d]``, for rows of a symmetric matrix that live here.

    ``matrix`` has the rows of the agents here on the columns of a table of agents (see `Halo`); ``edges`` are the links
    of the network, in ascending order. If the graph changes, ``rounds`` has the same rows of each round's matrix, and
    ``matrix`` those of a matrix with all links. In exact mode each row's sum has its terms in ascending order of
    columns, as in `ExactProduct`, and equals its result bit by bit while all links are up.
    """

    def __init__(
        self,
        matrix: csr_array,
        here: range,
        columns: np.ndarray,
        edges: np.ndarray,
        dtype: torch.dtype,
        exact: bool,
        rounds: Sequence[csr_array] = (),
    ) -> None:
        # With a diagonal, stored even where it is zero: that is where the weight of missing links goes.
        own = csr_array(eye_array(len(columns)).tocsr()[np.searchsorted(columns, np.arange(here.start, here.stop))])
        places = csr_array(abs(matrix) + own)
        places.sort_indices()
        rows = np.repeat(np.arange(len(here)), np.diff(places.indptr))
        left, right = rows + here.start, columns[places.indices]
        self._shape, self._dtype, self._exact = (len(here), len(columns)), dtype, exact
        self._indptr, self._dense = places.indptr, not exact and dense_pays(places, 1)
        self._rows, self._columns = torch.from_numpy(rows), torch.from_numpy(places.indices.astype(np.int64))
        weights = [np.asarray(each[rows, places.indices]).ravel() for each in rounds or (matrix,)]
        # In float64 to the end of `values`, so that rows sum to one even if many weights go back to the diagonal.
        self._weights = torch.from_numpy(np.stack(weights)).to(torch.float64)
        self._diagonal = torch.from_numpy(np.flatnonzero(left == right))
        self._links = torch.from_numpy(np.flatnonzero(left != right))
        # A link as one number, low · n + high: edges ascend, so a binary search finds it, with no n × n table.
        n = int(edges.max(initial=0)) + 1
        low, high = np.minimum(left, right), np.maximum(left, right)
        numbers = np.searchsorted(edges[:, 0] * n + edges[:, 1], (low * n + high)[self._links.numpy()])
        self._numbers = torch.from_numpy(numbers)
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}
        self._terms = self._order() if exact else []
        self._held: tuple[Hashable, Tensor] | None = None

    def in_weather(self, x: Tensor, weather: Weather, number: int) -> Tensor:
        """The product of a round with this number."""
        place, block, up = weather.look(number)
        if self._held is None or self._held[0] != block:
            # Only a graph that changes needs to know which rounds these are.
            first = number - place if len(self._weights) > 1 else 0
            # The matrices of a whole block of rounds at once, in a few operations instead of a few for each round.
            self._held = block, self._matrices(self.values(up, range(first, first + len(up))))
        matrix = self._held[1][place]
        # The tensors of one mixing step may be stacked; they travel in the same messages and meet the same events.
        copies = len(x) // len(matrix)
        return self(x, matrix.repeat(copies, *[1] * (matrix.ndim - 1)) if copies > 1 else matrix)

    def values(self, up: Tensor, times: range) -> Tensor:
        """The entries of W_r ``[times, trials, entries]`` for links that are up, ``[times, trials, links]``."""
        weights = self._weights[[time % len(self._weights) for time in times]].unsqueeze(1)
        kept = torch.where(up[..., self._numbers], 0.0, weights[..., self._links])
        values = weights.expand(*up.shape[:2], -1).clone()
        values[..., self._links] -= kept
        # Adding zero changes no bit, so that W_r is W itself while all links are up.
        back = torch.zeros(*up.shape[:2], self._shape[0], dtype=torch.float64)
        back.index_add_(-1, self._rows[self._links], kept)
        values[..., self._diagonal] += back
        return values.to(self._dtype)

    def _matrices(self, values: Tensor) -> Tensor:
        """The entries in the form that products take: dense matrices, or the entries as they are."""
        if not self._dense:
            return values
        matrices = values.new_zeros(*values.shape[:2], *self._shape)
        matrices[..., self._rows, self._columns] = values
        return matrices

    def __call__(self, x: Tensor, values: Tensor) -> Tensor:
        """Each row becomes the weighted sum of its neighbours' rows; ``values`` are a round's, from `_matrices`."""
        batch, columns, d = x.shape
        if self._dense:
            return torch.bmm(values, x)
        if self._exact:
            total = x.new_zeros(batch, self._shape[0], d)
            for rows, places in self._terms:
                total[:, rows] += values[:, places].unsqueeze(-1) * x[:, self._columns[places]]
            return total
        if batch not in self._tables:
            steps = torch.arange(batch).unsqueeze(-1)
            starts = torch.from_numpy(self._indptr[:-1].astype(np.int64))
            indices, offsets = self._columns + steps * columns, starts + steps * len(self._columns)
            self._tables[batch] = indices.flatten(), offsets.flatten()
        indices, offsets = self._tables[batch]
        table = x.reshape(batch * columns, d)
        product = torch.nn.functional.embedding_bag(
            indices, table, offsets, mode="sum", per_sample_weights=values.flatten()
        )
        return product.view(batch, -1, d)

    def _order(self) -> list[tuple[Tensor, Tensor]]:
        """For each s, the rows with an s-th term, and where that term's entry is."""
        counts = np.diff(self._indptr)
        rows = [np.flatnonzero(counts > s) for s in range(int(counts.max(initial=0)))]
        return [(torch.from_numpy(some), torch.from_numpy(self._indptr[some] + s)) for s, some in enumerate(rows)]
