"""Gossip: W applied m times."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Rounds = int | Literal["auto"]


@dataclass(frozen=True)
class Gossip:
    """Plain multi-round mixing (paper, Algorithms 1 and 2).

        mix(X) = W^m X

    ``rounds="auto"`` takes the paper's m = ⌈1/(1 − ρ)⌉, which makes the transient time independent of the graph.
    """

    rounds: Rounds = 1

    def __post_init__(self) -> None:
        check_rounds(self.rounds)

    def rounds_for(self, rho: float) -> int:
        """The given m, or the paper's rule for it."""
        return ceil(1 / (1 - rho)) if self.rounds == "auto" else self.rounds

    def __call__(self, apply: Callable[[Tensor], Tensor], x: Tensor, rho: float) -> Tensor:
        """W^m x."""
        for _ in range(self.rounds_for(rho)):
            x = apply(x)
        return x


def check_rounds(rounds: Rounds) -> None:
    """Refuse anything but a positive whole number or "auto"."""
    if rounds != "auto" and (not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1):
        raise ValueError(f'rounds must be a whole number of at least 1, or "auto"; got {rounds!r}')


def ceil(x: float) -> int:
    """Round up, forgiving rounding errors in ρ: 1.0000000000000002 is 1."""
    return math.ceil(x - 1e-9 * x)
