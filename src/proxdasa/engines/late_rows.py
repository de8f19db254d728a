"""The rows that agents sent in earlier iterations, for messages that are late."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor


class Aged(NamedTuple):
    """Rows of several ages."""

    table: Tensor
    """``[batch, span · agents, d]``: the present rows of all agents and as many older ones as messages may have."""
    newest: int
    """Where the present rows are; those of age a are at newest − a, modulo the span."""
    span: int
    """How many rows of each agent the table has."""

    def in_line(self) -> Tensor:
        """Each agent's rows behind each other, the newest first, ``[batch, agents, span · d]``."""
        places = self.table.chunk(self.span, dim=1)
        return torch.cat([places[self.newest - age] for age in range(self.span)], dim=-1)

    @staticmethod
    def of_lines(lines: Tensor, span: int) -> Aged:
        """The same rows again, from such lines."""
        newest, *older = lines.chunk(span, dim=-1)
        return Aged(torch.cat([newest, *reversed(older)], dim=1), 0, span)


class Ring:
    """Rows of several ages in one table, each of which takes the place of the oldest.

    ``names`` are those of all but the oldest among the extra rows, for each tensor from the newest on.
    """

    def __init__(self, table: Tensor, span: int, names: list[str], trials: int) -> None:
        self._places = table.chunk(span, dim=1)
        self._names, self._views = names, [part.chunk(span, dim=1) for part in torch.split(table, trials)]
        self._aged = [Aged(table, newest, span) for newest in range(span)]
        self._extra: dict[int, dict[str, Tensor]] = {}  # for each place of the newest, once it was there
        self._newest = 0

    def fits(self, x: Tensor, rows: dict[str, Tensor]) -> bool:
        """Whether it has rows like x, and the extra rows are still its own.

        If they are not, the run has gone back, or agents have been out. Then none of them is: one tells of all.
        """
        return rows.get(self._names[0]) is self._views[0][self._newest] and self._places[0].shape == x.shape

    def turn(self) -> None:
        """Let the oldest place be that of the newest rows."""
        self._newest = (self._newest + 1) % len(self._places)

    def put(self, x: Tensor, rows: dict[str, Tensor]) -> Aged:
        """Let x be the newest rows, and all but the oldest the extra rows."""
        newest = self._newest
        if newest not in self._extra:
            ages = range(len(self._places) - 1)
            views = [view[newest - age] for view in self._views for age in ages]
            self._extra[newest] = dict(zip(self._names, views, strict=True))
        self._places[newest].copy_(x)
        rows.update(self._extra[newest])
        return self._aged[newest]


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
        ring = self._rings.get((self._place, first))
        if ring and ring.fits(x, rows):
            ring.turn()
        else:
            ring = self._rings[self._place, first] = self._begin(x, self._place, rows, first)
        return ring.put(x, rows)

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
        return Ring(torch.cat([x, *reversed(by_age)], dim=1), self._count + 1, names, self._trials)
