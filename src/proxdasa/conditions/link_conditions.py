"""Conditions under which links lose messages in some rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from proxdasa.checks import check_probability
from proxdasa.conditions.duration_checks import check_means
from proxdasa.conditions.events import Chain, Draws, Events


@dataclass(frozen=True)
class LinkLoss:
    """Each link is down with this probability, in each round and independently of all others.

    Examples:
        >>> weather = conditions.Weather([conditions.LinkLoss(0.5)], networks.ring(4), trials=1, seed=0)
        >>> weather.links(0).int().tolist(), weather.links(1).int().tolist()  # the four links in two rounds
        ([[0, 1, 0, 0]], [[0, 0, 1, 1]])
    """

    probability: float
    concerns: ClassVar[Literal["links"]] = "links"

    def __post_init__(self) -> None:
        check_probability(self.probability, "probability")

    def begin(self, draws: Draws) -> Events:
        """Draw each round independently."""
        return lambda block: ~draws.below(block, self.probability)


@dataclass(frozen=True)
class Bursts:
    """Links fail for several rounds in a row (the Gilbert–Elliott model).

    Each link works for ``mean_up`` rounds on average, then is down for ``mean_down`` rounds on average; both lengths
    are geometric. In the long run it is down for a share mean_down / (mean_up + mean_down) of the rounds.

    Examples:
        >>> weather = conditions.Weather([conditions.Bursts(9, 3)], networks.ring(4), trials=1, seed=0)
        >>> [int(weather.links(number)[0, 0]) for number in range(12)]  # the first link
        [1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """

    mean_up: float
    mean_down: float
    concerns: ClassVar[Literal["links"]] = "links"

    def __post_init__(self) -> None:
        check_means(self.mean_up, self.mean_down, "rounds")

    def begin(self, draws: Draws) -> Events:
        """Follow a chain of two states for each link."""
        return Chain(draws, 1 / self.mean_up, 1 / self.mean_down)
