"""The rows of other processes that a block of agents needs, and the messages they come in."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

HEADER = 2
"""Numbers at the head of each message, before the rows; `Neighbourhood` writes and reads them.

They have the type of the rows or, if the rows are bytes, single precision.
"""


def blocks(n: int, size: int) -> list[range]:
    """Which agents live in which process: consecutive ones, divided as evenly as possible."""
    if not 1 <= size <= n:
        raise ValueError(f"{n} agents can live in 1 to {n} processes; got {size}")
    # Consecutive agents, so that the rows of a peer are one slice of the table; and a formula, so that all processes
    # know the whole division without a message.
    cuts = [n * rank // size for rank in range(size + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(cuts)]


class Message(NamedTuple):
    """A buffer with two views of it: the header, and the rows ``[batch, agents, d]``, or some of them ``[some, d]``."""

    buffer: Tensor
    rows: Tensor
    header: Tensor | np.ndarray
    travelling: Tensor | None = None
    """Which of the rows ``[batch, agents]`` travel, if not all do."""


class Buffers(NamedTuple):
    """What is allocated once for all rounds with rows of one shape, views included: making a view takes time too."""

    out: dict[int, Message]
    into: dict[int, Message]
    table: Tensor
    own: Tensor
    """The rows of the table that live here."""
    theirs: dict[int, Tensor]
    """The rows of the table that belong to each peer."""


class Late(NamedTuple):
    """How late the messages of a round are."""

    ages: Tensor
    """The age of what travels over each directed link, ``[trials, directed links]``; see `Weather.noise`."""
    span: int
    """How many rows of an agent are joined end to end: the current one, followed by older ones."""


class Crossing(NamedTuple):
    """Links from this process to another: their numbers, and the rows at their ends in the messages out and in."""

    links: Tensor
    own: Tensor
    theirs: Tensor
    out: Tensor
    """The numbers of the links in the outgoing direction, among directed links (see `Weather.noise`)."""
    into: Tensor
    """The numbers of the links in the incoming direction."""


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
    _buffers: dict[tuple[int, int, torch.dtype], Buffers] = field(default_factory=dict)

    @classmethod
    def of(cls, W: csr_array, parts: list[range], rank: int, device: torch.device) -> Halo:
        """The halo of the process that holds the agents ``parts[rank]``."""
        here = parts[rank]
        # The agents here are added because the diagonal of W may be zero.
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
        return matrix[here.start : here.stop][:, self.columns]

    def crossings(self, edges: np.ndarray, parts: list[range], here: range) -> dict[int, Crossing]:
        """For each peer, the links between its agents and those here, and the rows that travel over each of them."""
        found: dict[int, Crossing] = {}
        # A directed link as one number, receiver · n + sender.
        n = int(edges.max(initial=0)) + 1
        directed = np.sort(np.concatenate([edges @ (n, 1), edges @ (1, n)]))
        for peer, rows in self.receives.items():
            part, agents = parts[peer], self.columns[rows]
            for left, right in ((0, 1), (1, 0)):
                ends = edges[:, left], edges[:, right]
                inside = (ends[0] >= here.start) & (ends[0] < here.stop)
                links = np.flatnonzero(inside & (ends[1] >= part.start) & (ends[1] < part.stop))
                own = np.searchsorted(self.sends[peer].cpu().numpy(), ends[0][links] - here.start)
                theirs = np.searchsorted(agents, ends[1][links])
                left_ends, right_ends = ends[0][links], ends[1][links]
                out, into = (
                    np.searchsorted(directed, key) for key in (right_ends * n + left_ends, left_ends * n + right_ends)
                )
                numbers = (links, own, theirs, out, into)
                some = Crossing(*(torch.from_numpy(each.astype(np.int64)) for each in numbers))
                found[peer] = Crossing(*map(torch.cat, zip(found[peer], some, strict=True))) if peer in found else some
        return found

    def some_buffers(
        self, x: Tensor, crossings: Mapping[int, Crossing], up: Tensor, late: Late | None = None
    ) -> Buffers:
        """Messages out, with their rows, messages in, and a table of zeros, if only some links are up.

        Events are named, so the receiver knows without being told which rows arrive and, if messages are late, their
        ages.
        """
        (batch, _, width), span = x.shape, late.span if late else 1
        out: dict[int, Message] = {}
        into: dict[int, Message] = {}
        # Tensors that are mixed together are stacked along the batch, and meet the same events.
        copies = batch // len(up)
        for peer, crossing in crossings.items():
            carried = up[:, crossing.links].to(torch.int32)
            rows, count = self.sends[peer], _length(self.receives[peer])
            for message, ends, links, agents in (
                (out, crossing.own, crossing.out, len(rows)),
                (into, crossing.theirs, crossing.into, count),
            ):
                chosen = (ends * span + late.ages[:, links]) if late else ends.expand(len(up), -1)
                # A row travels if any link needs it; links are counted, because torch cannot add Booleans.
                used = torch.zeros(len(up), agents * span, dtype=torch.int32).scatter_add_(1, chosen, carried) > 0
                message[peer] = _message_of_some(x, width // span, used.repeat(copies, 1))
            out[peer].rows.copy_(x[:, rows].view(batch, -1, width // span)[out[peer].travelling])
        # Zeros, not uninitialised memory: rows that do not arrive have weight zero, and 0 · NaN would be NaN.
        return self._with_views(out, into, x.new_zeros(batch, len(self.columns), width))

    def buffers(self, x: Tensor) -> Buffers:
        """Messages out, messages in, and the table, for rows like x ``[batch, here, d]``; allocated once per shape."""
        batch, _, d = x.shape
        # Buffers can be used again, since an exchange does not return before all of its messages have left and arrived.
        key = (batch, d, x.dtype)
        if key not in self._buffers:
            out = {peer: _message(x, len(rows)) for peer, rows in self.sends.items()}
            into = {peer: _message(x, rows.stop - rows.start) for peer, rows in self.receives.items()}
            self._buffers[key] = self._with_views(out, into, x.new_empty(batch, len(self.columns), d))
        return self._buffers[key]

    def _with_views(self, out: dict[int, Message], into: dict[int, Message], table: Tensor) -> Buffers:
        theirs = {peer: table[:, rows] for peer, rows in self.receives.items()}
        return Buffers(out, into, table, table[:, self.own], theirs)


def _length(rows: slice) -> int:
    return int(rows.stop - rows.start)


def _message_of_some(x: Tensor, d: int, travelling: Tensor) -> Message:
    buffer, header, rows = _allocate(x, int(travelling.sum()) * d)
    return Message(buffer, rows.view(-1, d), header, travelling)


def _message(x: Tensor, rows: int) -> Message:
    batch, _, d = x.shape
    buffer, header, content = _allocate(x, batch * rows * d)
    return Message(buffer, content.view(batch, rows, d), header)


def _allocate(x: Tensor, count: int) -> tuple[Tensor, Tensor | np.ndarray, Tensor]:
    """A buffer for ``count`` entries of the type of x, its header, and what follows the header."""
    kind = x.dtype if x.dtype.is_floating_point else torch.float32
    head = HEADER * kind.itemsize // x.dtype.itemsize
    buffer = x.new_zeros(head + count)
    header = buffer[:head].view(kind)
    # Single numbers are read and written many times faster in a NumPy array, but NumPy has no bfloat16.
    return buffer, header.numpy() if x.device.type == "cpu" and kind != torch.bfloat16 else header, buffer[head:]
