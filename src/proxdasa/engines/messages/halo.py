"""The rows of other processes that a block of agents needs, and the messages they come in."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

HEADER = 2
"""Numbers at the head of each message, before the rows; `Neighbourhood` writes and reads them."""


def blocks(n: int, size: int) -> list[range]:
    """Which agents live in which process: consecutive ones, divided as evenly as possible."""
    if not 1 <= size <= n:
        raise ValueError(f"{n} agents can live in 1 to {n} processes; got {size}")
    cuts = [n * rank // size for rank in range(size + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(cuts)]


class Message(NamedTuple):
    """A buffer with two views of it: the rows ``[batch, agents, d]`` and the header."""

    buffer: Tensor
    rows: Tensor
    header: Tensor


@dataclass(frozen=True)
class Halo:
    """A table whose rows are the agents here and their neighbours elsewhere, in ascending order.

    Each process holds consecutive agents, so the rows of one peer are consecutive in the table.
    """

    own: slice
    """The rows of the table that live here."""
    columns: np.ndarray
    """Which agents the rows of the table belong to."""
    sends: dict[int, Tensor]
    """For each peer, which of the rows here it needs."""
    receives: dict[int, slice]
    """For each peer, its rows of the table."""
    _messages: dict[tuple[int, int, torch.dtype], tuple[dict[int, Message], dict[int, Message], Tensor]] = field(
        default_factory=dict
    )

    @classmethod
    def of(cls, W: csr_array, parts: list[range], rank: int, device: torch.device) -> Halo:
        """The halo of the process that holds the agents ``parts[rank]``."""
        here = parts[rank]
        needed = np.unique(np.append(W[here.start : here.stop].indices, here))
        sends, receives = {}, {}
        for peer, part in enumerate(parts):
            first, last = np.searchsorted(needed, (part.start, part.stop))
            if peer == rank or first == last:
                continue
            receives[peer] = slice(int(first), int(last))
            # W is symmetric: a peer needs those rows of ours that have a neighbour among its agents.
            theirs = W[part.start : part.stop].indices
            asked = np.unique(theirs[(theirs >= here.start) & (theirs < here.stop)]) - here.start
            sends[peer] = torch.from_numpy(asked.astype(np.int64)).to(device)
        start = int(np.searchsorted(needed, here.start))
        return cls(slice(start, start + len(here)), needed, sends, receives)

    def block(self, matrix: csr_array, here: range) -> csr_array:
        """The rows of a matrix that live here, on the columns of the table."""
        return csr_array(matrix[here.start : here.stop][:, self.columns])

    def buffers(self, x: Tensor) -> tuple[dict[int, Message], dict[int, Message], Tensor]:
        """Messages out, messages in, and the table, for rows like x ``[batch, here, d]``; allocated once per shape."""
        batch, _, d = x.shape
        key = (batch, d, x.dtype)
        if key not in self._messages:
            out = {peer: _message(x, len(rows)) for peer, rows in self.sends.items()}
            into = {peer: _message(x, rows.stop - rows.start) for peer, rows in self.receives.items()}
            self._messages[key] = (out, into, x.new_empty(batch, len(self.columns), d))
        return self._messages[key]


def _message(x: Tensor, rows: int) -> Message:
    batch, _, d = x.shape
    buffer = x.new_zeros(batch * rows * d + HEADER)
    return Message(buffer, buffer[HEADER:].view(batch, rows, d), buffer[:HEADER])
