"""All conditions of a run together."""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from proxdasa.conditions.events import BLOCK, Condition, Draws, Events
from proxdasa.contracts import Network


class Weather:
    """Which links are up and which agents take part; the conditions of a run compose.

    A link is up if the graph has it in this round, all conditions of links say so and both of its ends take part.
    Agents have events in each iteration, links in each round, whatever the iteration it belongs to.

    Examples:
        >>> weather = conditions.Weather(
        ...     [conditions.LinkLoss(0.3), conditions.Downtimes([(0, 0, 10)])], networks.ring(4), trials=1, seed=0
        ... )
        >>> networks.ring(4).edges.tolist()
        [[0, 1], [0, 3], [1, 2], [2, 3]]
        >>> weather.links(0).int().tolist()  # agent 0 is out, so its links are down
        [[0, 0, 0, 1]]
    """

    def __init__(self, conditions: Sequence[Condition], network: Network, trials: int, seed: int) -> None:
        self._ends = torch.from_numpy(network.edges)
        self._links: list[Events] = []
        self._agents: list[Events] = []
        items = {"links": len(self._ends), "agents": network.n}
        for number, condition in enumerate(conditions):
            events = condition.begin(Draws(seed, number, trials, items[condition.concerns]))
            (self._links if condition.concerns == "links" else self._agents).append(events)
        weights = [np.asarray(W[tuple(network.edges.T)]).ravel() for W in network.rounds]
        self._present = torch.from_numpy(np.stack(weights) > 0) if weights else None
        self.trials, self._k = trials, 0
        # What was computed last, by number of its block; no block has the number −1.
        self._active: tuple[int, Tensor, list[float]] = (-1, torch.empty(0), [])
        self._up: dict[int, Tensor] = {}  # the last two blocks: the rounds of a mixing step may lie in both
        self._met: tuple[Hashable, Tensor] = (None, torch.empty(0))
        self._numbers: tuple[Hashable, list[int]] = (None, [])
        self.enter(0)

    active: Tensor
    """Which agents take part in the current iteration, ``[trials, n]``; only if some may be out."""
    share: float
    """The share of agents that take part in it, on average over trials."""

    @property
    def pauses(self) -> bool:
        """Whether agents may be out at all."""
        return bool(self._agents)

    def enter(self, k: int) -> None:
        """Begin iteration k."""
        self._k, self.share = k, 1.0
        if self._agents:
            block, place = divmod(k, BLOCK)
            if self._active[0] != block:
                active = _all(events(block) for events in self._agents)
                self._active = block, active, active.double().mean(dim=(1, 2)).tolist()
            self.active, self.share = self._active[1][place], self._active[2][place]

    def look(self, number: int) -> tuple[int, Hashable, Tensor]:
        """The links of a round of the current iteration, among those of a block: its place, the block, and their links.

        Time goes by rounds if links fail or the graph changes, and by iterations if only agents are out. Where both
        happen, a round cannot be looked at before its iteration is known, and is a block by itself.
        """
        by_rounds = bool(self._links) or self._present is not None
        block, place = divmod(number if by_rounds else self._k, BLOCK)
        if block not in self._up:
            made = self._links_of(block) if by_rounds else self._with_ends(self._active[1])
            self._up = {**dict([*self._up.items()][-1:]), block: made}
        if by_rounds and self._agents:
            # Named by both: a round that was looked at in passing may come again in another iteration.
            if self._met[0] != (number, self._k):
                self._met = (number, self._k), self._with_ends(self.active, self._up[block][place]).unsqueeze(0)
            return 0, *self._met
        return place, block, self._up[block]

    def links(self, number: int) -> Tensor:
        """Which links are up in a round of the current iteration, ``[trials, links]``."""
        place, _, up = self.look(number)
        return up[place]

    def links_up(self, number: int) -> int:
        """How many links are up in a round of the current iteration, in all trials together."""
        place, block, up = self.look(number)
        if self._numbers[0] != block:
            self._numbers = block, up.sum(dim=(1, 2)).tolist()
        return self._numbers[1][place]

    def _links_of(self, block: int) -> Tensor:
        up = torch.ones(BLOCK, self.trials, len(self._ends), dtype=torch.bool)
        if self._present is not None:
            # A graph that changes lacks links by plan: they count as down, and have no weight to give back.
            up &= self._present[torch.arange(block * BLOCK, (block + 1) * BLOCK) % len(self._present)].unsqueeze(1)
        return _all((up, *(events(block) for events in self._links)))

    def _with_ends(self, active: Tensor, up: Tensor | None = None) -> Tensor:
        both = active[..., self._ends[:, 0]] & active[..., self._ends[:, 1]]
        return both if up is None else both & up


def _all(masks: Iterable[Tensor]) -> Tensor:
    return functools.reduce(operator.and_, masks)
