"""Rounds of compressed messages: what all engines have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from proxdasa.contracts import Compression
from proxdasa.devices import CPU, send
from proxdasa.engines.checked_answers import restored_rows
from proxdasa.samples import COMPRESSION, Words, repeat_names


class Round(NamedTuple):
    """What agents here send in a round, for tensors stacked as ``[tensors · trials, agents, ...]``."""

    place: int | None
    """Which mixing of the iteration it is; None before the first iteration."""
    number: int
    """The number of the round in the run, by which its random words are named."""
    before: list[Tensor | None]
    """The copies of each tensor before this round, if there are any yet."""
    old: Tensor
    """The same, stacked, with zeros where there are none."""
    after: tuple[Tensor, ...]
    """The copies of each tensor after it."""
    copies: Tensor
    """The same, stacked."""
    parts: tuple[Tensor, ...]
    """The messages."""


@final
class CompressedRounds:
    """Mixing by a `Compression`, wherever the agents live.

        q = C(x − x̂);   x̂ ← x̂ + q;   x ← x + γ (W x̂ − x̂)

    The copies x̂ are extra rows of the engine, named by the place of the tensor in the iteration. Tensors that are mixed
    before the first iteration are mixed once only, so no copies of them are kept.
    """

    def __init__(
        self,
        compression: Compression,
        seed: int,
        trials: int,
        agents: range,
        cells: Sequence[slice],
        first_trial: int = 0,
        periods: Sequence[int] = (),
        device: torch.device = CPU,
    ) -> None:
        self.compressor, self._compression = compression.compressor, compression
        self._seed, self._trials, self._agents, self._cells = seed, trials, agents, cells
        self._names = repeat_names(range(first_trial, first_trial + trials), periods)
        self._device, self._words = device, Words()
        self._place: int | None = None
        self._vector = 0

    weigh: Callable[[Round], Tensor]
    """W x̂ for the agents here after the messages of a round; the engine sets this."""

    def enter(self) -> None:
        """Begin an iteration."""
        self._place = self._vector = 0

    def leave(self) -> None:
        """Leave the iteration: tensors are then mixed as before the first one."""
        self._place = None

    def mix(self, tensors: tuple[Tensor, ...], rows: dict[str, Tensor], number: int) -> tuple[Tensor, ...]:
        """The mixed tensors; replaces their copies among the extra rows with the new ones."""
        place, d = self._place, tensors[0].shape[-1]
        names = [f"copy.{place}.{i}" for i in range(len(tensors))]
        before = [None if place is None else rows.get(name) for name in names]
        zero = torch.zeros_like(tensors[0])
        old = torch.cat([zero if copy is None else copy for copy in before])
        words = self.draw(number, len(tensors), np.asarray(self._agents), d)
        parts = self._reduce(torch.cat(tensors) - old, words)
        copies = old + restored_rows(self.compressor, parts, old, words)
        after = torch.split(copies, self._trials)
        pulls = self.weigh(Round(place, number, before, old, after, copies, parts)) - copies
        pairs = zip(tensors, torch.split(pulls, self._trials), strict=True)
        mixed = tuple(x + self._step(i) * pull for i, (x, pull) in enumerate(pairs))
        if place is not None:
            rows.update(zip(names, after, strict=True))
            self._place, self._vector = place + 1, self._vector + len(tensors)
        return mixed

    def draw(self, number: int, tensors: int, agents: np.ndarray, d: int) -> Tensor | None:
        """The random words of agents, in ascending order, for a round: ``[tensors · trials, agents, words]``."""
        count = self.compressor.words(d)
        if not count:
            return None
        drawn = np.empty((tensors * self._trials, len(agents), count), dtype=np.int32)
        padded, starts = count + -count % 8, [0, *(np.flatnonzero(np.diff(agents) != 1) + 1), len(agents)]
        for row in range(len(drawn)):
            tensor, trial = divmod(row, self._trials)
            name = self._names[trial]
            for start, stop in itertools.pairwise(starts):  # consecutive agents are drawn at once
                some = range(int(agents[start]), int(agents[stop - 1]) + 1)
                words = self._words(self._seed, COMPRESSION + tensor, name, number, some, padded)
                drawn[row, start:stop] = words[:, :count]
        return send(torch.from_numpy(drawn), self._device)

    def _step(self, i: int) -> float:
        return self._compression.step_of(None if self._place is None else self._vector + i)

    def _reduce(self, rows: Tensor, words: Tensor | None) -> tuple[Tensor, ...]:
        """The messages, computed cell by cell, because a norm may depend on how many rows are computed together."""
        reduce = self.compressor.reduce
        if len(self._cells) == 1:
            return reduce(rows, words)
        parts = [
            reduce(rows[:, cell].clone(), None if words is None else words[:, cell].clone()) for cell in self._cells
        ]
        return tuple(torch.cat(pieces, dim=1) for pieces in zip(*parts, strict=True))
