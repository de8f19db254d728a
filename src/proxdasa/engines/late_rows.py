"""The rows that agents sent in earlier iterations, for messages that are late."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor


class Aged(NamedTuple):
    """Rows of several ages."""

    table: Tensor
    """``[batch, span, agents, d]``: the present rows and as many older ones as messages may have."""
    newest: int
    """Where the present rows are; those of age a are at newest − a, modulo the span."""

    def in_line(self) -> Tensor:
        """Each agent's rows behind each other, the newest first, ``[batch, agents, span · d]``."""
        order = [self.newest - age for age in range(self.table.shape[1])]
        return torch.cat([self.table[:, place] for place in order], dim=-1)

    @staticmethod
    def of_lines(lines: Tensor, span: int) -> Aged:
        """The same rows again, from such lines."""
        newest, *older = lines.chunk(span, dim=-1)
        return Aged(torch.stack([newest, *reversed(older)], dim=1), 0)


class Ring(NamedTuple):
    """Rows of several ages in one table, each of which takes the place of the oldest."""

    names: list[str]
    """Names of the older rows among the extra rows."""
    slots: list[Tensor]
    """The table at each of its places."""
    older: list[list[Tensor]]
    """The rows with these names, views of the table, for each place of the newest."""
    aged: Aged

    @staticmethod
    def of(table: Tensor, names: list[str], trials: int) -> Ring:
        """A ring in this table, whose newest rows are at 0."""
        span = table.shape[1]
        views = [part.unbind(1) for part in torch.split(table, trials)]
        older = [[view[(at - age) % span] for view in views for age in range(span - 1)] for at in range(span)]
        return Ring(names, list(table.unbind(1)), older, Aged(table, 0))

    def fits(self, x: Tensor, rows: dict[str, Tensor]) -> bool:
        """Whether it has rows like x, and the extra rows are still its own.

        If they are not, the run has gone back, or agents have been out.
        """
        own = zip(self.names, self.older[self.aged.newest], strict=True)
        return self.slots[0].shape == x.shape and all(rows.get(name) is view for name, view in own)


@final
class LateRows:
    """What each agent sent in its last ``count`` iterations, among the extra rows of the engine.

    They are named by the place of the round in an iteration, the tensor and the age. If agents pause, there is also 1
    for those that have sent something, and 0 for those that have been out since the start.

    The extra rows are views of a table that has one age more. So they are valid until the end of the next iteration,
    which can be undone; who needs them for longer makes a copy.
    """

    def __init__(self, count: int, trials: int, pauses: bool) -> None:
        self._count, self._trials, self._pauses = count, trials, pauses
        self._place: int | None = None
        self._rings: dict[tuple[int, int], Ring] = {}

    def enter(self) -> None:
        """Begin an iteration."""
        self._place = 0

    def leave(self) -> None:
        """Be where no iteration has begun."""
        self._place = None

    def go_on(self, x: Tensor, rows: dict[str, Tensor]) -> None:
        """Go on to the next round of the iteration, after one with tensors like x."""
        if self._place is None:
            return
        if self._pauses:
            rows[f"late.{self._place}"] = torch.ones_like(x[: self._trials, :, :1])
        self._place += 1

    def take_all(self, x: Tensor, rows: dict[str, Tensor]) -> Aged | None:
        """The same as `take` for all tensors of a round, stacked; then goes on to the next round."""
        aged = self.take(x, rows)
        self.go_on(x, rows)
        return aged

    def take(self, x: Tensor, rows: dict[str, Tensor], first: int = 0) -> Aged | None:
        """Rows ``[tensors · trials, agents, d]`` with the older ones of their place, after which they are the latest.

        ``first`` is the number of the first of the tensors in this round. None before the first iteration, where
        nothing is older.
        """
        if self._place is None:
            return None
        place, span = self._place, self._count + 1
        ring = self._rings.get((place, first))
        if ring is None or not ring.fits(x, rows):
            ring = self._begin(x, place, rows, first)
        else:
            ring = ring._replace(aged=Aged(ring.aged.table, (ring.aged.newest + 1) % span))
        ring.slots[ring.aged.newest].copy_(x)
        rows.update(zip(ring.names, ring.older[ring.aged.newest], strict=True))
        self._rings[place, first] = ring
        return ring.aged

    def _begin(self, x: Tensor, place: int, rows: dict[str, Tensor], first: int) -> Ring:
        """A ring with what was sent before x; where nothing was, x itself."""
        tensors, ages = range(first, first + len(x) // self._trials), range(1, self._count + 1)
        names = [f"late.{place}.{i}.{age}" for i in tensors for age in ages]
        parts = [part for part in torch.split(x, self._trials) for _ in ages]
        older = [rows.get(name, part) for name, part in zip(names, parts, strict=True)]
        if self._pauses and f"late.{place}" in rows:
            sent = rows[f"late.{place}"] > 0
            older = [torch.where(sent, *pair) for pair in zip(older, parts, strict=True)]
        by_age = [torch.cat(older[age :: self._count]) for age in range(self._count)]
        return Ring.of(torch.stack([x, *reversed(by_age)], dim=1), names, self._trials)
