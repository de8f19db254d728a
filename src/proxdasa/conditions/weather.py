"""All conditions of a run together."""

from __future__ import annotations

import functools
import math
import operator
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxdasa.checks import invalid
from proxdasa.conditions.events import BLOCK, Condition, Draws, Events
from proxdasa.conditions.normal_sums import NormalSums
from proxdasa.conditions.round_prediction import RoundPrediction
from proxdasa.contracts import Network
from proxdasa.devices import CPU, form, send

FEW = 255
"""The most Booleans that can be counted in a byte."""


class Spell(NamedTuple):
    """The links at consecutive times, which are computed together because one at a time would take longer."""

    first: int
    """The first of the times."""
    up: Tensor
    """Which links are up, ``[trials, links, times]``."""
    length: int
    """The number of times."""
    iterations: Sequence[int] = ()
    """The iterations that these rounds are assumed to belong to, where that matters."""


class Weather:
    """All conditions of a run together: which links are up, and which agents take part.

    A link is up if the graph has it in this round, no condition takes it down, and both of its ends take part. Agents
    have events in each iteration, links in each round, whichever iteration the round belongs to. Each trial has its own
    events, unless ``periods`` are given: events then repeat after as many trials as the first period says, within these
    trials after as many as the second says, and so on (see `problems.Repeated`).

    Examples:
        >>> weather = conditions.Weather(
        ...     [conditions.LinkLoss(0.3), conditions.Downtimes([(0, 0, 10)])], networks.ring(4), trials=1, seed=0
        ... )
        >>> networks.ring(4).edges.tolist()
        [[0, 1], [0, 3], [1, 2], [2, 3]]
        >>> weather.links(0).int().tolist()  # agent 0 is out, so its links are down
        [[0, 0, 0, 1]]
    """

    def __init__(
        self, conditions: Sequence[Condition], network: Network, trials: int, seed: int, periods: Sequence[int] = ()
    ) -> None:
        self._ends = torch.from_numpy(network.edges).T.contiguous()
        items = {"links": len(network.edges), "agents": network.n, "messages": 2 * len(network.edges)}
        items["delays"] = items["messages"]
        began: dict[str, list[Events]] = {kind: [] for kind in items}
        for number, condition in enumerate(conditions):
            if condition.concerns not in items:
                raise invalid(
                    f"{type(condition).__name__}.concerns", "links, agents, messages or delays", condition.concerns
                )
            count = items[condition.concerns]
            events = condition.begin(Draws(seed, number, trials, count, periods))
            if condition.concerns != "messages":
                events = _check_form(events, condition, [BLOCK, trials, count])
            if condition.concerns == "delays":
                events = _check_ages(events, condition)
            began[condition.concerns].append(events)
        self._links, self._agents, messages, self._delays = began.values()
        sums = [events for events in messages if isinstance(events, NormalSums)]
        self._messages = [events for events in messages if not isinstance(events, NormalSums)]
        # Independent normals add up to one whose variance is the sum of theirs.
        self._sums = NormalSums(sums[0].draws, math.hypot(*(each.std for each in sums))) if sums else None
        self.n = network.n
        self.oldest = longest_delay(conditions)
        weights = [np.asarray(W[tuple(network.edges.T)]).ravel() for W in network.rounds]
        self._present = torch.from_numpy(np.stack(weights, axis=1) > 0) if weights else None
        self.trials, self._k, self._prediction = trials, 0, RoundPrediction()
        self._by_rounds = bool(self._links) or self._present is not None or not self._agents
        self._block, self._active = -1, torch.empty(0)  # which agents take part in its iterations, [BLOCK, trials, n]
        self._shares: Sequence[float] = ()
        self._parts: dict[range, Sequence[Tensor]] = {}
        self._held_links: tuple[int, Tensor] = (-1, torch.empty(0))
        self._held_ends: tuple[int, Tensor] = (-1, torch.empty(0))
        self._held_ages: tuple[int, Tensor] = (-1, torch.empty(0))
        # The tensors of a mixing step go through the same rounds one after the other, perhaps into the next spell.
        self._spells: deque[Spell] = deque(maxlen=2)
        self._counted: tuple[Spell | None, list[int]] = (None, [])  # a spell, and how many links are up at its times
        self._calm = None
        if not (self._links or self._agents or self._present is not None):
            self._calm = Spell(
                0, torch.ones(trials, len(network.edges), 1, dtype=torch.bool).expand(-1, -1, BLOCK), BLOCK
            )
        self.enter(0)

    @property
    def pauses(self) -> bool:
        """Whether agents may ever be out."""
        return bool(self._agents)

    def enter(self, k: int) -> None:
        """Begin iteration k."""
        self._k = k
        if self._agents and self._block != k // BLOCK:
            self._block = k // BLOCK
            self._active = _all(events(self._block) for events in self._agents)
            agents = self._active[0].numel()  # of all trials
            self._shares = [count / agents for count in _count(self._active.permute(1, 2, 0))]
            self._parts.clear()

    @property
    def disturbs_sums(self) -> bool:
        """Whether messages have Gaussian noise, which is added to the sums of their receivers."""
        return self._sums is not None

    def noise_of_sums(self, numbers: range, tensor: int, agents: range, d: int) -> Tensor:
        """The noise in the sums of consecutive agents, for one tensor of some rounds: ``[rounds, trials, agents, d]``.

        It is scaled for receivers whose weights have Σ_j W_ij² = 1. Several rounds can only be drawn for all agents.
        """
        assert self._sums is not None
        assert len(numbers) == 1 or len(agents) == self.n
        rows = self._sums(tensor, d, numbers.start * self.n + agents.start, len(numbers) * len(agents))
        return rows.view(self.trials, len(numbers), len(agents), d).transpose(0, 1)

    @property
    def calm(self) -> bool:
        """Whether all links are up in all rounds."""
        return self._calm is not None

    @property
    def disturbs_messages(self) -> bool:
        """Whether other noise is added to messages."""
        return bool(self._messages)

    def noise(self, number: int, links: range, width: int) -> Tensor:
        """What is added to the messages of a round over consecutive directed links, ``[trials, links, width]``.

        Directed links are numbered by receiver, then by sender, in ascending order.
        """
        added = functools.reduce(operator.add, (events(number, links, width) for events in self._messages))
        return added.expand(self.trials, len(links), width)  # a condition may return less, to be broadcast

    oldest: int
    """The largest age that a message may have."""

    def ages(self, block: int) -> Tensor:
        """How old messages are in a block of rounds, ``[BLOCK, trials, directed links]``; several delays add up."""
        if self._held_ages[0] != block:
            drawn = (events(block) for events in self._delays)
            small = self.oldest <= torch.iinfo(torch.uint8).max
            ages = (each if small and each.dtype == torch.uint8 else each.long() for each in drawn)
            self._held_ages = block, functools.reduce(operator.add, ages)
        return self._held_ages[1]

    @property
    def active(self) -> Tensor:
        """Which agents take part in the current iteration, ``[trials, n]``; only if some may be out."""
        return self._active[self._k % BLOCK]

    def active_rows(self, agents: range, device: torch.device = CPU) -> Tensor:
        """Which of some consecutive agents take part in the current iteration, ``[trials, agents, 1]``, on a device."""
        if agents not in self._parts:
            here = self._active[..., agents.start : agents.stop].unsqueeze(-1)
            self._parts[agents] = send(here, device).unbind()
        return self._parts[agents][self._k % BLOCK]

    @property
    def share(self) -> float:
        """The share of agents that take part in the current iteration, on average over trials."""
        return self._shares[self._k % BLOCK] if self._agents else 1.0

    def look(self, number: int) -> tuple[Spell, int]:
        """The spell that a round of the current iteration belongs to, and its place in it.

        Time goes by rounds if links fail or the graph changes, and by iterations if only agents are out. If both
        happen, the iterations of later rounds are predicted, and a round that falls into another iteration is computed
        again.
        """
        if self._calm:
            return self._calm, number % BLOCK
        time = number if self._by_rounds else self._k
        for spell in self._spells:
            place = time - spell.first
            if 0 <= place < spell.length and (not spell.iterations or spell.iterations[place] == self._k):
                return spell, place
        self._spells.appendleft(self._begin_spell(time))
        return self._spells[0], time - self._spells[0].first

    def links(self, number: int) -> Tensor:
        """Which links are up in a round of the current iteration, ``[trials, links]``."""
        spell, place = self.look(number)
        return spell.up[..., place]

    def _begin_spell(self, time: int) -> Spell:
        block, place = divmod(time, BLOCK)
        if not self._agents:
            return Spell(time - place, self._links_of(block), BLOCK)
        if not self._by_rounds:
            return Spell(time - place, self._ends_of_block(), BLOCK)
        start = self._k - self._k % BLOCK
        predicted = self._prediction.predict(time, self._k, most=BLOCK - place)
        iterations = [k for k in predicted if k < start + BLOCK]
        length, here = len(iterations), [k - start for k in iterations]
        in_turn = here[-1] - here[0] == length - 1 and len(set(here)) == length  # as usual; a slice is a view
        ends = self._ends_of_block()[..., slice(here[0], here[-1] + 1) if in_turn else here]
        return Spell(time, self._links_of(block)[..., place : place + length] & ends, length, iterations)

    def links_up(self, number: int) -> int:
        """How many links are up in a round of the current iteration, in all trials together."""
        spell, place = self.look(number)
        if self._counted[0] is not spell:
            self._counted = spell, _count(spell.up)
        return self._counted[1][place]

    def _links_of(self, block: int) -> Tensor:
        """Which links are up in the rounds of a block, before agents that are out are considered."""
        if self._held_links[0] != block:
            masks = [events(block).permute(1, 2, 0) for events in self._links]
            if self._present is not None:
                rounds = torch.arange(block * BLOCK, (block + 1) * BLOCK) % self._present.shape[1]
                masks.append(self._present[:, rounds].expand(self.trials, -1, -1))
            self._held_links = block, _all(masks)
        return self._held_links[1]

    def _ends_of_block(self) -> Tensor:
        """Whether both ends of each link take part, in the block of the current iteration."""
        if self._held_ends[0] != self._block:
            # The Booleans of eight times are read as one 64-bit word, so an eighth as many numbers are moved.
            # They are flattened first, because a single agent may have strides that torch does not read as words.
            words = self._active.permute(1, 2, 0).flatten().view(torch.int64).view(self.trials, self.n, -1)
            left, right = (words.index_select(1, ends) for ends in self._ends)
            self._held_ends = self._block, (left & right).view(torch.bool)
        return self._held_ends[1]


def longest_delay(conditions: Iterable[Any]) -> int:
    """The largest age that a message may have under these conditions together."""
    return sum(int(each.age) for each in conditions if each.concerns == "delays")


def _check_form(events: Events, condition: Any, shape: Sequence[int]) -> Events:
    """The events, with a check of their shape and type: others would broadcast, or be taken for weights."""

    def checked(block: int) -> Tensor:
        drawn, delays = events(block), condition.concerns == "delays"
        if list(drawn.shape) != shape or (drawn.dtype != torch.bool and not delays):
            wanted = f"{shape}{'' if delays else ' of torch.bool'} in a block of {BLOCK} times"
            raise ValueError(f"events of {type(condition).__name__} must be {wanted}; got {form(drawn)}")
        return drawn

    return checked


def _check_ages(events: Events, condition: Any) -> Events:
    """The events of a delay, with a check that rows are kept for all ages."""

    def ages(block: int) -> Tensor:
        drawn = events(block)
        in_memory = drawn.movedim(0, -1)  # the memory order of `Draws`, which is much faster to scan
        least, most = (each.item() for each in in_memory.aminmax()) if drawn.numel() else (0, 0)
        if drawn.is_floating_point() or least < 0 or most > condition.age:
            name, found = type(condition).__name__, f"{drawn.dtype} from {least} to {most}"
            raise ValueError(f"ages of {name} must be whole numbers from 0 to its age, {condition.age}; got {found}")
        return drawn

    return ages


def _count(works: Tensor) -> list[int]:
    """How many of ``[trials, items, times]`` are true at each time; several times as fast as torch's sum."""
    items = works.flatten(0, 1).numpy().view(np.uint8)
    # Add bytes in groups that cannot overflow, which takes half as long as widening each of them.
    few = [np.add.reduce(items[first : first + FEW], axis=0, dtype=np.uint8) for first in range(0, len(items), FEW)]
    counts: list[int] = np.add.reduce(few or items, axis=0, dtype=np.int64).tolist()
    return counts


def _all(masks: Iterable[Tensor]) -> Tensor:
    return functools.reduce(operator.and_, masks)
