"""The rows that agents sent in earlier iterations, for messages that are late."""

from __future__ import annotations

import operator
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


class Held(NamedTuple):
    """What the last iteration has left in a place, so that usually only the present rows have to be copied."""

    names: list[str]
    rows: list[Tensor]
    """The extra rows of the place. If the engine has others now, the run has gone back, or agents have been out."""
    aged: Aged


@final
class LateRows:
    """What each agent sent in its last ``count`` iterations, among the extra rows of the engine.

    They are named by the place of the round in an iteration, the tensor and the age. If agents pause, there is also 1
    for those that have sent something, and 0 for those that have been out since the start.
    """

    def __init__(self, count: int, trials: int, pauses: bool) -> None:
        self._count, self._trials, self._pauses = count, trials, pauses
        self._place: int | None = None
        self._held: dict[int, Held] = {}

    def enter(self) -> None:
        """Begin an iteration."""
        self._place = 0

    def leave(self) -> None:
        """Be where no iteration has begun."""
        self._place = None

    def take(self, x: Tensor, rows: dict[str, Tensor]) -> Aged | None:
        """Rows ``[tensors · trials, agents, d]`` with the older ones of their place, after which they are the latest.

        None before the first iteration, where nothing is older. Nobody may change x later.
        """
        if self._place is None:
            return None
        place, held, count = self._place, self._held.get(self._place), self._count
        self._place += 1
        if (
            held
            and held.aged.table[:, 0].shape == x.shape
            and all(map(operator.is_, map(rows.get, held.names), held.rows))
        ):
            names, older, newest = held.names, held.rows, (held.aged.newest + 1) % (count + 1)
            aged = Aged(held.aged.table, newest)
            aged.table[:, newest] = x
        else:
            names = [f"late.{place}.{i}.{age}" for i in range(len(x) // self._trials) for age in range(1, count + 1)]
            older = self._look_up(x, f"late.{place}", names, rows)
            by_age = [torch.cat(older[age::count]) for age in range(count)]
            aged = Aged(torch.stack([x, *reversed(by_age)], dim=1), 0)
        left: list[Tensor] = []
        for i, part in enumerate(torch.split(x, self._trials)):
            left += [part, *older[i * count : (i + 1) * count - 1]]
        rows.update(zip(names, left, strict=True))
        if self._pauses:
            rows[f"late.{place}"] = torch.ones_like(x[: self._trials, :, :1])
        self._held[place] = Held(names, left, aged)
        return aged

    def _look_up(self, x: Tensor, place: str, names: list[str], rows: dict[str, Tensor]) -> list[Tensor]:
        """What was sent before x; where nothing was, x itself."""
        parts = [part for part in torch.split(x, self._trials) for _ in range(self._count)]
        if not self._pauses or place not in rows:
            return [rows.get(name, part) for name, part in zip(names, parts, strict=True)]
        return [
            torch.where(rows[place] > 0, rows.get(name, part), part) for name, part in zip(names, parts, strict=True)
        ]
