"""Chebyshev mixing: the polynomial in W that contracts disagreement fastest for its number of rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from proxdasa.mixing.gossip import Rounds, ceil, check_rounds


@dataclass(frozen=True)
class Chebyshev:
    """Accelerated mixing (paper, Algorithm 3).

        A₀ = X,  A₁ = W X,  μ₀ = 1,  μ₁ = 1/ρ,  μ_{t+1} = (2/ρ) μ_t − μ_{t−1}
        A_{t+1} = (2 μ_t / (ρ μ_{t+1})) W A_t − (μ_{t−1} / μ_{t+1}) A_{t−1};   mix(X) = A_m

    μ_t grows geometrically, so the recursion is kept in the ratios r_t = μ_{t−1}/μ_t:

        r₁ = ρ,   r_{t+1} = ρ / (2 − ρ r_t),   A_{t+1} = (2 / (2 − ρ r_t)) W A_t − r_t r_{t+1} A_{t−1}

    which never overflows, never divides by ρ, and for ρ = 0 is plain gossip (there one round is exact).
    ``rounds="auto"`` takes the paper's m = ⌈1/√(1 − ρ)⌉.

    Examples:
        >>> network = networks.ring(20)
        >>> proxdasa.Chebyshev().rounds_for(network.rho)  # gossip by the same rule takes 31
        6
        >>> W = torch.from_numpy(network.W.toarray())
        >>> x = torch.arange(20.0, dtype=torch.float64)
        >>> proxdasa.Chebyshev()(lambda rows: W @ rows, x, network.rho).std() < x.std() / 2
        tensor(True)
    """

    rounds: Rounds = "auto"

    def __post_init__(self) -> None:
        check_rounds(self.rounds)

    def rounds_for(self, rho: float) -> int:
        """The number m of rounds: the given one, or the paper's rule."""
        return ceil(1 / math.sqrt(1 - rho)) if self.rounds == "auto" else self.rounds

    def __call__(self, apply: Callable[[Tensor], Tensor], x: Tensor, rho: float) -> Tensor:
        """The mixed rows A_m."""
        previous, current, r = x, apply(x), rho
        for _ in range(self.rounds_for(rho) - 1):
            r_next = rho / (2 - rho * r)
            previous, current = current, 2 / (2 - rho * r) * apply(current) - r * r_next * previous
            r = r_next
        return current
