"""Conditions under which agents are out in some iterations. An agent that is out keeps its state and has no links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from proxdasa.checks import check_positive, check_probability, check_whole, invalid
from proxdasa.conditions.duration_checks import check_means
from proxdasa.conditions.events import Chain, Draws, Events


@dataclass(frozen=True)
class Outages:
    """Agents fail and come back: up for ``mean_up`` iterations on average, then out for ``mean_down``.

    Both lengths are geometric, the discrete form of exponential ones; all agents are up at the start.

    Examples:
        >>> weather = conditions.Weather([conditions.Outages(20, 5)], networks.ring(4), trials=1, seed=0)
        >>> for k in (0, 10, 20, 30):
        ...     weather.enter(k)
        ...     print(weather.active.int().tolist())
        [[1, 1, 1, 1]]
        [[1, 1, 0, 1]]
        [[1, 1, 1, 1]]
        [[1, 1, 1, 1]]
    """

    mean_up: float
    mean_down: float
    concerns: ClassVar[Literal["agents"]] = "agents"

    def __post_init__(self) -> None:
        check_means(self.mean_up, self.mean_down, "iterations")

    def begin(self, draws: Draws) -> Events:
        """Follow a chain of two states for each agent."""
        return Chain(draws, 1 / self.mean_up, 1 / self.mean_down)


@dataclass(frozen=True)
class Downtimes:
    """Given outages: (agent, first iteration, first iteration after it), the same in every trial.

    Examples:
        >>> weather = conditions.Weather([conditions.Downtimes([(2, 5, 9)])], networks.ring(4), trials=1, seed=0)
        >>> for k in (4, 5, 8, 9):
        ...     weather.enter(k)
        ...     print(k, weather.active.int().tolist())
        4 [[1, 1, 1, 1]]
        5 [[1, 1, 0, 1]]
        8 [[1, 1, 0, 1]]
        9 [[1, 1, 1, 1]]
    """

    intervals: Sequence[tuple[int, int, int]]
    concerns: ClassVar[Literal["agents"]] = "agents"

    def __post_init__(self) -> None:
        _check_entries(self.intervals, 3, "intervals", "(agent, first iteration, first iteration after it)")
        for agent, start, stop in self.intervals:
            check_whole(agent, "the agent of a downtime", least=0)
            check_whole(start, "the start of a downtime", least=0)
            check_whole(stop, "the end of a downtime", least=start + 1)

    def begin(self, draws: Draws) -> Events:
        """Look up the intervals."""
        for agent, *_ in self.intervals:
            check_agent(agent, draws.items)

        def active(block: int) -> torch.Tensor:
            times = draws.times(block)
            works = torch.ones(len(times), draws.trials, draws.items, dtype=torch.bool)
            for agent, start, stop in self.intervals:
                works[..., agent] &= ((times < start) | (times >= stop))[..., 0]
            return works

        return active


@dataclass(frozen=True)
class Participation:
    """Each agent takes part in an iteration with this probability, independently of all others.

    Examples:
        >>> weather = conditions.Weather([conditions.Participation(0.5)], networks.ring(4), trials=2, seed=0)
        >>> weather.enter(0)
        >>> weather.active.int().tolist()  # trials see different events
        [[1, 0, 1, 1], [0, 1, 0, 0]]
    """

    probability: float
    concerns: ClassVar[Literal["agents"]] = "agents"

    def __post_init__(self) -> None:
        check_probability(self.probability, "probability")
        check_positive(self.probability, "probability")

    def begin(self, draws: Draws) -> Events:
        """Draw independently for each iteration."""
        return lambda block: draws.below(block, self.probability)


@dataclass(frozen=True)
class Stragglers:
    """Slow agents: for each pair (agent, s), the agent takes part only in every s-th iteration, from the first on.

    Examples:
        >>> weather = conditions.Weather([conditions.Stragglers([(0, 3)])], networks.ring(4), trials=1, seed=0)
        >>> for k in range(4):
        ...     weather.enter(k)
        ...     print(k, weather.active.int().tolist())
        0 [[1, 1, 1, 1]]
        1 [[0, 1, 1, 1]]
        2 [[0, 1, 1, 1]]
        3 [[1, 1, 1, 1]]
    """

    periods: Sequence[tuple[int, int]]
    concerns: ClassVar[Literal["agents"]] = "agents"

    def __post_init__(self) -> None:
        _check_entries(self.periods, 2, "periods", "pairs (agent, s)")
        for agent, period in self.periods:
            check_whole(agent, "the agent of a straggler", least=0)
            check_whole(period, "the period of a straggler", least=1)
        if len({agent for agent, _ in self.periods}) < len(self.periods):
            raise invalid("periods", "a list of pairs (agent, s) that names no agent twice", self.periods)

    def begin(self, draws: Draws) -> Events:
        """Count iterations."""
        periods = torch.ones(draws.items, dtype=torch.int64)
        for agent, period in self.periods:
            check_agent(agent, draws.items)
            periods[agent] = period
        return lambda block: (draws.times(block) % periods == 0).expand(-1, draws.trials, -1)


def _check_entries(given: Any, length: int, name: str, entries: str) -> None:
    """Refuse anything but a list of entries of this length."""
    listed = isinstance(given, Sequence)
    if not listed or not all(isinstance(entry, Sequence) and len(entry) == length for entry in given):
        raise invalid(name, f"a list of {entries}", given)


def check_agent(agent: int, n: int) -> None:
    """Refuse the number of an agent that does not exist."""
    if agent >= n:
        raise ValueError(f"conditions: there is no agent {agent}: agents are numbered from 0 to {n - 1}")
