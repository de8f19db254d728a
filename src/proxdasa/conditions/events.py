"""Named random events: whether a link or an agent works, as a function of seed, trial, its number and the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxdasa import samples
from proxdasa.samples import Words

BLOCK = 64
"""Random numbers are drawn for this many times (rounds or iterations) together. This is part of the naming, so changing
it changes every event. `Chain` must fit a time within a block and a state into eight bits."""

FEW = 32
"""If a count is at most this, whole numbers below it are drawn by comparisons."""

Events = Callable[..., Tensor]
"""Maps the number of a block of times (rounds, or iterations) to whether links or agents work, or to how late messages
over directed links are, ``[BLOCK, trials, items]``; or maps the number of a round, a range of directed links and a
number of coordinates to what is added to messages, ``[trials, links, coordinates]``."""


class Condition(Protocol):
    """Something that happens to links (in each round), to agents (in each iteration) or to messages.

    A condition that concerns delays also has ``age``, the longest delay.

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

    @property
    def concerns(self) -> Literal["links", "agents", "messages", "delays"]:
        """What the condition affects; usually a constant of the class."""

    def begin(self, draws: Draws) -> Events:
        """Make the events of one run from its named random numbers."""


class Draws:
    """Uniform numbers in (0, 1), named by seed, stream, trial, item and time.

    The numbers of a block have the shape ``[BLOCK, trials, items]``, with the times of an item side by side in memory,
    as the generator yields them.
    """

    def __init__(self, seed: int, stream: int, trials: int, items: int, periods: Sequence[int] = ()) -> None:
        self._seed, self._stream, self.trials, self.items = seed, samples.EVENTS + stream, trials, items
        self._names = samples.repeat_names(range(trials), periods)
        self._words = Words()
        self._held: tuple[int, Tensor] | None = None

    def __call__(self, block: int) -> Tensor:
        """The numbers for the times of a block."""
        return samples.uniforms(self._fetch(block))

    def below(self, block: int, probability: float) -> Tensor:
        """Whether the numbers of a block are below a probability; cheaper than comparing the numbers themselves."""
        words = self._fetch(block)
        # (word + 2³¹ + ½) / 2³² < p, solved for the word. The bound may lie just outside of the words' range.
        bound = math.ceil(probability * 2.0**32 - 0.5) - 2**31
        if not -(2**31) <= bound < 2**31:
            return torch.full_like(words, bound >= 2**31, dtype=torch.bool)
        return torch.from_numpy(words.numpy() < np.int32(bound))

    def normals(self, number: int, links: range, width: int) -> Tensor:
        """Standard normals for the messages of a round over consecutive directed links, ``[trials, links, width]``."""
        padded = width + -width % 8
        return samples.normals(torch.from_numpy(self._draw(number, links, padded))[..., :width])

    def codes(self, name: int, first: int, count: int) -> NDArray[np.uint16]:
        """Words of 16 bits ``[trials, count]``, from the place ``first`` on in the endless sequence with this name."""
        # Philox yields sixteen of them at each position of its counter.
        positions = range(first // 16, -(-(first + count) // 16))
        drawn = self._draw(name, positions, 8).reshape(self.trials, -1).view(np.uint16)
        return drawn[:, first % 16 : first % 16 + count]

    def whole(self, block: int, count: int) -> Tensor:
        """Whole numbers below ``count``, each equally likely, for the times of a block: ⌊count · u⌋."""
        return self.whole_bytes(block, count).long()  # arithmetic on bytes would wrap around

    def whole_bytes(self, block: int, count: int) -> Tensor:
        """The numbers of `whole`, as bytes if ``count`` is at most `FEW`: smaller, but arithmetic on them wraps."""
        words = self._fetch(block)
        if count > FEW:
            return words.to(torch.int64).add_(2**31).mul_(count).bitwise_right_shift_(32)
        # Count how many of the bounds c/count a number reaches; comparing small numbers takes a ninth of the time.
        reached = np.zeros(words.permute(1, 2, 0).shape, dtype=np.uint8)
        for c in range(1, count):
            reached += (words.permute(1, 2, 0).numpy() >= np.int32(-(-c * 2**32 // count) - 2**31)).view(np.uint8)
        return torch.from_numpy(reached).permute(2, 0, 1)

    def times(self, block: int) -> Tensor:
        """The times of a block, ``[BLOCK, 1, 1]``."""
        return torch.arange(block * BLOCK, (block + 1) * BLOCK).view(-1, 1, 1)

    def _fetch(self, block: int) -> Tensor:
        if self._held is None or self._held[0] != block:
            self._held = block, torch.from_numpy(self._draw(block, range(self.items), BLOCK)).permute(2, 0, 1)
        return self._held[1]

    def _draw(self, block: int, items: range, count: int) -> NDArray[np.int32]:
        """Words ``[trials, items, count]``; those of a single trial need no copy."""
        drawn = (self._words(self._seed, self._stream, name, block, items, count) for name in self._names)
        return next(drawn)[None] if self.trials == 1 else np.stack(list(drawn))


class Chain:
    """Items that fail and recover: a Markov chain with two states for each, all of them working before time 0.

    At each time a working item fails with probability ``fail``, and a failed one recovers with probability ``recover``.
    One number u decides: below ``fail`` the item fails, above 1 − ``recover`` it works, in between it stays as it is.
    So the state at any time follows from the last decisive number, and a run can begin anywhere.
    """

    def __init__(self, draws: Draws, fail: float, recover: float) -> None:
        self._draws, self._fail, self._recover = draws, fail, recover
        self._last: tuple[int, NDArray[np.bool_]] | None = None

    def __call__(self, block: int) -> Tensor:
        """Whether each item works at the times of a block."""
        follows = self._last is not None and self._last[0] == block - 1
        before = self._last[1] if follows and self._last is not None else self._before(block)
        latest = np.maximum.accumulate(np.maximum(self._decisions(block), before[..., None]), axis=-1)
        works = (latest & 1).view(bool)
        self._last = block, works[..., -1]
        return torch.from_numpy(works).permute(2, 0, 1)

    def _decisions(self, block: int) -> NDArray[np.uint8]:
        """``[trials, items, BLOCK]``: 2t + 2 or 2t + 3 where the number of time t makes the item fail or work.

        Elsewhere 0. The state before a block is 0 or 1, so the largest code so far is the latest, and odd if it works.
        """
        failed = self._draws.below(block, self._fail).permute(1, 2, 0).numpy().view(np.uint8)
        stays = self._draws.below(block, math.nextafter(1 - self._recover, 2)).permute(1, 2, 0).numpy()
        works, codes = (~stays).view(np.uint8), np.arange(2, 2 * BLOCK + 2, 2, dtype=np.uint8)
        decisions: NDArray[np.uint8] = (failed | works) * codes + works
        return decisions

    def _before(self, block: int) -> NDArray[np.bool_]:
        """The state before a block, from the last decisive number of each item."""
        works = np.ones((self._draws.trials, self._draws.items), dtype=bool)
        undecided = np.ones_like(works)
        # Search backwards, because a recent number decides most items; the search ends once all are decided.
        for earlier in range(block - 1, -1, -1):
            last = self._decisions(earlier).max(axis=-1)
            works = np.where(undecided & (last > 0), last & 1 > 0, works)
            undecided &= last == 0
            if not undecided.any():
                break
        return works
