"""Named random events: whether a link or an agent works, as a function of seed, trial, its number and the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from proxdasa import samples
from proxdasa.samples import Words

STREAM = 2**33
"""The first of the generator's streams for conditions; samples use smaller numbers."""
BLOCK = 64
"""Times whose numbers are drawn together; part of the naming, so changing it changes every event."""

Events = Callable[[int], Tensor]
"""From the number of a block of times (rounds, or iterations) to whether items work, ``[BLOCK, trials, items]``."""


class Condition(Protocol):
    """Something that happens to links (in each round) or to agents (in each iteration).

    Examples:
        >>> from dataclasses import dataclass
        >>> from typing import ClassVar
        >>> @dataclass(frozen=True)
        ... class Nights:
        ...     length: int
        ...     concerns: ClassVar[str] = "agents"
        ...
        ...     def begin(self, draws):  # draws(block) are numbers between 0 and 1 for each time, trial and agent
        ...         return lambda block: (draws(block) < 1) & (draws.times(block) // self.length % 2 == 0)
        >>> weather = conditions.Weather([Nights(10)], networks.ring(3), trials=1, seed=0)
        >>> weather.enter(12)
        >>> weather.active.tolist()
        [[False, False, False]]
    """

    concerns: ClassVar[Literal["links", "agents"]]

    def begin(self, draws: Draws) -> Events:
        """The events of one run, from its named random numbers."""


class Draws:
    """Uniform numbers in (0, 1), named by seed, stream, trial, item and time."""

    def __init__(self, seed: int, stream: int, trials: int, items: int) -> None:
        self._seed, self._stream, self.trials, self.items = seed, STREAM + stream, trials, items
        self._words = Words()

    def __call__(self, block: int) -> Tensor:
        """The numbers of the times of a block, ``[BLOCK, trials, items]``."""
        # Of all links or agents, wherever they live: so a process knows what happens elsewhere without being told.
        everybody = range(self.items)
        drawn = [
            torch.from_numpy(self._words(self._seed, self._stream, trial, block, everybody, BLOCK))
            for trial in range(self.trials)
        ]
        return samples.uniforms(torch.stack(drawn)).permute(2, 0, 1)

    def times(self, block: int) -> Tensor:
        """The times of a block, ``[BLOCK, 1, 1]``."""
        return torch.arange(block * BLOCK, (block + 1) * BLOCK).view(-1, 1, 1)


class Chain:
    """Items that fail and recover: a Markov chain with two states for each, all of them working before time 0.

    A working item fails with probability ``fail`` at each time, a failed one recovers with probability ``recover``, by
    one number u: below ``fail`` it has failed, above 1 − ``recover`` it works, in between it stays as it is. So the
    state at any time follows from the last number that was decisive, and a run can begin anywhere.
    """

    def __init__(self, draws: Draws, fail: float, recover: float) -> None:
        self._draws, self._fail, self._recover = draws, fail, recover
        self._last: tuple[int, Tensor] | None = None

    def __call__(self, block: int) -> Tensor:
        """Whether each item works at the times of a block."""
        follows = self._last is not None and self._last[0] == block - 1
        works = self._last[1] if follows and self._last is not None else self._before(block)
        states = []
        for u in self._draws(block):
            works = torch.where(u < self._fail, False, torch.where(u > 1 - self._recover, True, works))
            states.append(works)
        self._last = block, works
        return torch.stack(states)

    def _before(self, block: int) -> Tensor:
        """The state before a block, from the last decisive number of each item."""
        works = torch.ones(self._draws.trials, self._draws.items, dtype=torch.bool)
        open_ = torch.ones_like(works)
        # Backwards, because most items are decided by a recent number; the search ends once all are.
        for earlier in range(block - 1, -1, -1):
            for u in self._draws(earlier).flip(0):
                failed, recovered = u < self._fail, u > 1 - self._recover
                works = torch.where(open_ & failed, False, works)  # those that recovered, or began so, work
                open_ &= ~(failed | recovered)
            if not bool(open_.any()):
                break
        return works
