"""Gossip: W applied m times."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from proxdasa.checks import invalid

Rounds = int | Literal["auto"]


@dataclass(frozen=True)
class Gossip:
    """Plain multi-round mixing (paper, Algorithms 1 and 2).

        mix(X) = W^m X

    ``rounds="auto"`` takes the paper's m = ⌈1/(1 − ρ)⌉, which makes the transient time independent of the graph.

    Examples:
        >>> network = networks.ring(20)
        >>> proxdasa.Gossip(rounds=3).rounds_for(network.rho), proxdasa.Gossip("auto").rounds_for(network.rho)
        (3, 31)
    """

    rounds: Rounds = 1
    varies: ClassVar[bool] = True
    """Whether W may differ from round to round; it may, because W^m is then a product of the matrices of m rounds."""

    def __post_init__(self) -> None:
        check_rounds(self.rounds)

    def rounds_for(self, rho: float) -> int:
        """The number m of rounds: the given one, or the paper's rule."""
        return ceil(1 / (1 - rho)) if self.rounds == "auto" else self.rounds

    def __call__(self, apply: Callable[[Tensor], Tensor], x: Tensor, rho: float) -> Tensor:
        """The mixed rows W^m x."""
        for _ in range(self.rounds_for(rho)):
            x = apply(x)
        return x


def check_rounds(rounds: Rounds) -> None:
    """Refuse anything but a whole number of at least 1 or "auto"."""
    if rounds != "auto" and (not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1):
        raise invalid("rounds", 'a whole number of at least 1, or "auto"', rounds)


def ceil(x: float) -> int:
    """Round up, but ignore rounding errors in ρ: 1.0000000000000002 gives 1."""
    return math.ceil(x - 1e-9 * x)
