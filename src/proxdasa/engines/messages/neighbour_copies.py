"""Copies of the rows of neighbours in other processes, kept up to date by compressed messages."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import final

import numpy as np
from torch import Tensor

from proxdasa.compressors import packing
from proxdasa.contracts import Compressor
from proxdasa.engines.compressed_rounds import Round
from proxdasa.engines.messages.neighbourhood import Neighbourhood

Draw = Callable[[int, int, np.ndarray, int], Tensor | None]
"""Draws random words, given the number of a round, how many tensors there are, the agents, and the rows' dimension."""


@final
class NeighbourCopies:
    """A table of copies x̂ for each place of an iteration: of the agents here, and of their neighbours elsewhere.

    The engine keeps, saves and restores the copies of the agents here. If those of a round are not the same tensor
    objects that this table last stored, the run was rewound, in all processes: they then send each other their copies
    once.
    """

    def __init__(self, neighbourhood: Neighbourhood, compressor: Compressor, draw: Draw) -> None:
        self._neighbourhood, self._compressor, self._draw = neighbourhood, compressor, draw
        self._held: dict[int, tuple[tuple[Tensor, ...], Tensor]] = {}

    def weigh(self, sent: Round) -> Tensor:
        """W x̂ for the agents here, after the messages of a round."""
        halo, d = self._neighbourhood.halo, sent.copies.shape[-1]
        if not halo.sends:
            return self._neighbourhood.weigh(sent.copies)
        table, parts = self._table(sent), self._compressor.parts(d, sent.copies.dtype)
        messages = self._neighbourhood.table(packing.pack(sent.parts, parts))
        for rows in halo.receives.values():
            agents = halo.columns[rows]
            words = self._draw(sent.number, len(sent.after), agents, d) if self._compressor.receiver_draws else None
            table[:, rows] += self._compressor.restore(packing.unpack(messages[:, rows], parts), d, words)
        # Writing into the stored table is safe: if this round is undone, `_table` no longer recognises its copies.
        table[:, halo.own] = sent.copies
        if sent.place is not None:
            self._held[sent.place] = sent.after, table
        return self._neighbourhood.weigh(table)

    def _table(self, sent: Round) -> Tensor:
        """The copies before the round. All processes have the same history, so all take the same branch here."""
        halo, old = self._neighbourhood.halo, sent.old
        if all(copy is None for copy in sent.before):
            return old.new_zeros(len(old), len(halo.columns), old.shape[-1])
        held = None if sent.place is None else self._held.get(sent.place)
        if held and len(held[0]) == len(sent.before) and all(map(operator.is_, held[0], sent.before)):
            return held[1]
        return self._neighbourhood.table(old).clone()  # a copy, because the next exchange reuses the buffer
