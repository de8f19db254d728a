"""The rows that agents sent in earlier iterations, for messages that are late."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor


class Aged(NamedTuple):
    """Rows of several ages."""

    table: Tensor
    """``[batch, span · agents, d]``: the current rows of all agents, and those of all ages that messages may have."""
    newest: int
    """The place of the current rows; those of age a are at newest − a, modulo the span."""
    span: int
    """How many rows of each agent the table has."""

    def in_line(self) -> Tensor:
        """Each agent's rows joined end to end, the newest first, ``[batch, agents, span · d]``."""
        places = self.table.chunk(self.span, dim=1)
        return torch.cat([places[self.newest - age] for age in range(self.span)], dim=-1)

    @staticmethod
    def of_lines(lines: Tensor, span: int) -> Aged:
        """The rows from which `in_line` made these lines."""
        newest, *older = lines.chunk(span, dim=-1)
        return Aged(torch.cat([newest, *reversed(older)], dim=1), 0, span)


class Ring:
    """Rows of several ages in one table, in which new rows take the place of the oldest.

    All but the oldest are also extra rows of the engine. ``names`` are their names there, for each tensor from the
    newest on. ``counter`` is the name of another extra row, with the place of the newest: a product adds its terms in
    the order of the table, and a run that continues from a checkpoint must add them in the same order.
    """

    def __init__(self, table: Tensor, span: int, names: list[str], trials: int, newest: int, counter: str) -> None:
        places = table.chunk(span, dim=1)
        views = [part.chunk(span, dim=1) for part in torch.split(table, trials)]
        self._name, self._shape, self._newest = names[0], places[0].shape, newest
        # For each place of the newest rows: the place, the rows of all ages, and the extra rows.
        self._turns: list[tuple[Tensor, Aged, dict[str, Tensor]]] = []
        for at, place in enumerate(places):
            older = [view[at - age] for view in views for age in range(span - 1)]
            extra = dict(zip(names, older, strict=True))
            if counter:
                extra[counter] = torch.full_like(older[0][..., :1], at)
            self._turns.append((place, Aged(table, at, span), extra))

    def turn(self, x: Tensor, rows: dict[str, Tensor]) -> Aged | None:
        """Store x in the place of the oldest rows, if it has their shape and the extra rows are views of this table.

        They are not if the run was rewound or agents were out. Both replace all extra rows, so it is enough to look at
        one of them.
        """
        if rows.get(self._name) is not self._turns[self._newest][2][self._name] or x.shape != self._shape:
            return None
        self._newest = (self._newest + 1) % len(self._turns)
        return self.put(x, rows)

    def put(self, x: Tensor, rows: dict[str, Tensor]) -> Aged:
        """Store x as the newest rows, and make all but the oldest rows the extra rows."""
        place, aged, extra = self._turns[self._newest]
        place.copy_(x)
        rows.update(extra)
        return aged


@final
class LateRows:
    """What each agent sent in its last ``count`` iterations, among the extra rows of the engine.

    Each of these rows is named by the place of the round in an iteration, the tensor and the age. If agents may be out,
    there is also a row that is 1 for agents that have sent something, and 0 for those that were out from the start;
    otherwise there is a row with the place of the newest rows in their ring.

    The extra rows are views of a table that has one age more, so they are overwritten only after the next iteration,
    which can therefore be undone. Code that needs them for longer must copy them.
    """

    def __init__(self, count: int, trials: int, pauses: bool) -> None:
        self._count, self._trials, self._pauses = count, trials, pauses
        self._place: int | None = None
        self._rings: dict[tuple[int, int], Ring] = {}

    def enter(self) -> None:
        """Begin an iteration."""
        self._place = 0

    def leave(self) -> None:
        """Leave the iteration: nothing is late before the next one begins."""
        self._place = None

    def go_on(self, x: Tensor, rows: dict[str, Tensor]) -> None:
        """Continue with the next round of the iteration, after one with tensors like x."""
        if self._place is None:
            return
        if self._pauses:
            rows[f"late.{self._place}"] = torch.ones_like(x[: self._trials, :, :1])
        self._place += 1

    def take_all(self, x: Tensor, rows: dict[str, Tensor]) -> Aged | None:
        """The same as `take` for all tensors of a round, stacked; then continues with the next round."""
        aged = self.take(x, rows)
        self.go_on(x, rows)
        return aged

    def take(self, x: Tensor, rows: dict[str, Tensor], first: int = 0) -> Aged | None:
        """Rows ``[tensors · trials, agents, d]`` and the older ones sent in their place; stores these as the newest.

        ``first`` is the number of the first of these tensors in the round. Returns None before the first iteration,
        when there are no older rows.
        """
        if self._place is None:
            return None
        ring = self._rings.get((self._place, first))
        if ring and (aged := ring.turn(x, rows)):
            return aged
        ring = self._rings[self._place, first] = self._begin(x, self._place, rows, first)
        return ring.put(x, rows)

    def _begin(self, x: Tensor, place: int, rows: dict[str, Tensor], first: int) -> Ring:
        """A ring with what was sent before x, or with x itself in its place where nothing was sent."""
        tensors, ages = range(first, first + len(x) // self._trials), range(1, self._count + 1)
        names = [f"late.{place}.{i}.{age}" for i in tensors for age in ages]
        parts = [part for part in torch.split(x, self._trials) for _ in ages]
        older = [rows.get(name, part) for name, part in zip(names, parts, strict=True)]
        if self._pauses and f"late.{place}" in rows:
            sent = rows[f"late.{place}"] > 0
            older = [torch.where(sent, *pair) for pair in zip(older, parts, strict=True)]
        span, counter = self._count + 1, "" if self._pauses else f"late.{place}.{first}"
        newest = (int(rows[counter].flatten()[0]) + 1) % span if counter in rows else 0
        by_age = [x, *(torch.cat(older[age :: self._count]) for age in range(self._count))]
        table = torch.cat([by_age[(newest - slot) % span] for slot in range(span)], dim=1)
        return Ring(table, span, names, self._trials, newest, counter)
