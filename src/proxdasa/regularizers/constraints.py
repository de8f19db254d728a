"""Constraints: Ψ = 0 on a convex set C and +∞ outside, so that prox is projection on C, whatever γ.

A point counts as inside if its distance from its projection is at most √ε times the size of C, ε being the
machine precision; otherwise rounding alone would make Ψ = +∞ at the mean of feasible points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from proxdasa.checks import check_number, check_positive_number, check_step_size
from proxdasa.schedules import Number


def indicator(x: Tensor, projection: Tensor, norm: float, size: float) -> Tensor:
    """0 where the ℓ_norm distance from x to its projection is at most √ε · size, else +∞; NaN stays NaN."""
    distance: Tensor = torch.linalg.vector_norm(x - projection, norm, dim=-1)
    inside = distance <= math.sqrt(torch.finfo(x.dtype).eps) * size
    return torch.where(inside, 0.0, distance * math.inf)


def onto_simplex(x: Tensor, total: float) -> Tensor:
    """The nearest point with y ≥ 0 and Σ y = total.

        y = max(x − τ, 0),   τ = max_k (x₍₁₎ + ⋯ + x₍ₖ₎ − total) / k   with x₍₁₎ ≥ x₍₂₎ ≥ ⋯

    Over any k coordinates Σ (x_j − τ) ≤ Σ y_j ≤ total, with equality on those that stay positive.
    """
    # Moving x along (1, …, 1) changes nothing, and what lies more than total below the largest becomes 0
    # wherever it is. So large coordinates neither overflow nor cost the result its digits.
    x = (x - x.amax(-1, keepdim=True)).clamp_min(-total)
    sums = x.sort(-1, descending=True).values.cumsum(-1)
    counts = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    return (x - ((sums - total) / counts).amax(-1, keepdim=True)).relu()


@final
@dataclass(frozen=True)
class NonNegative:
    """The indicator of {x ≥ 0}, with prox(x) = max(x, 0); its tolerance is √ε, because a cone has no size.

    Examples:
        >>> regularizers.NonNegative().prox(torch.tensor([3.0, -1.0]), gamma=0.5)
        tensor([3., 0.])
        >>> regularizers.NonNegative().value(torch.tensor([3.0, -1.0]))
        tensor(inf)
    """

    separable = True

    def value(self, x: Tensor) -> Tensor:
        """0 where x ≥ 0, else +∞."""
        return indicator(x, x.relu(), math.inf, size=1.0)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The nearest point with no negative coordinate, max(x, 0)."""
        check_step_size(gamma, x)
        return x.relu()


@final
@dataclass(frozen=True)
class Box:
    """The indicator of {lower ≤ x ≤ upper}, where either bound may be infinite.

        prox(x) = min(max(x, lower), upper)

    Its size is the larger finite |bound|, or 1 if there is none but 0.

    Examples:
        >>> regularizers.Box(0.0, 1.0).prox(torch.tensor([3.0, -1.0, 0.5]), gamma=0.5)
        tensor([1.0000, 0.0000, 0.5000])
    """

    separable = True

    lower: float
    upper: float

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, check_number(getattr(self, name), f"Box.{name}"))
        if self.lower > self.upper or self.lower == math.inf or self.upper == -math.inf:
            raise ValueError(f"Box: no number lies between lower = {self.lower} and upper = {self.upper}")

    def value(self, x: Tensor) -> Tensor:
        """0 where lower ≤ x ≤ upper, else +∞."""
        size = max(abs(bound) for bound in (self.lower, self.upper, 0.0) if math.isfinite(bound))
        return indicator(x, x.clamp(self.lower, self.upper), math.inf, size or 1.0)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The nearest point of the box."""
        check_step_size(gamma, x)
        return x.clamp(self.lower, self.upper)


@final
@dataclass(frozen=True)
class L1Ball:
    """The indicator of {‖x‖₁ ≤ r}.

        prox(x) = x inside;  sign(x) · (projection of |x| on the simplex of total r) outside

    Reference: J. Duchi et al., Efficient projections onto the ℓ₁-ball for learning in high dimensions, ICML
    2008.

    Examples:
        >>> regularizers.L1Ball(1.0).prox(torch.tensor([3.0, -2.5, 0.5]), gamma=0.5)
        tensor([ 0.7500, -0.2500,  0.0000])
    """

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", check_positive_number(self.radius, "L1Ball.radius"))

    def _project(self, x: Tensor) -> Tensor:
        size = x.abs()
        inside = size.sum(-1, keepdim=True) <= self.radius
        return torch.where(inside, x, onto_simplex(size, self.radius).copysign(x))

    def value(self, x: Tensor) -> Tensor:
        """0 where ‖x‖₁ ≤ r, else +∞."""
        return indicator(x, self._project(x), 1, self.radius)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The nearest point of the ball; NaN for a row with infinity, which has none."""
        check_step_size(gamma, x)
        return self._project(x)


@final
@dataclass(frozen=True)
class L2Ball:
    """The indicator of {‖x‖ ≤ r}, with prox(x) = min(1, r/‖x‖) x.

    Examples:
        >>> regularizers.L2Ball(1.0).prox(torch.tensor([3.0, 4.0]), gamma=0.5)
        tensor([0.6000, 0.8000])
    """

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", check_positive_number(self.radius, "L2Ball.radius"))

    def _project(self, x: Tensor) -> Tensor:
        # Relative to the largest coordinate (or the radius) no square overflows, and a diverging row lands on
        # the sphere rather than at 0.
        peak = x.abs().amax(-1, keepdim=True).clamp_min(self.radius)
        norm: Tensor = torch.linalg.vector_norm(x / peak, dim=-1, keepdim=True)
        return x * (self.radius / peak / norm).clamp_max(1.0)

    def value(self, x: Tensor) -> Tensor:
        """0 where ‖x‖ ≤ r, else +∞."""
        return indicator(x, self._project(x), 2, self.radius)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The nearest point of the ball; NaN for a row with infinity, which has none."""
        check_step_size(gamma, x)
        return self._project(x)


@final
@dataclass(frozen=True)
class Simplex:
    """The indicator of {x ≥ 0, Σ x = total}, the probability simplex if the total is 1.

    For the projection see `onto_simplex`.

    Examples:
        >>> regularizers.Simplex().prox(torch.tensor([1.0, 0.5, -2.0]), gamma=0.5)
        tensor([0.7500, 0.2500, 0.0000])
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", check_positive_number(self.total, "Simplex.total"))

    def value(self, x: Tensor) -> Tensor:
        """0 where x ≥ 0 and Σ x = total, else +∞."""
        return indicator(x, onto_simplex(x, self.total), 1, self.total)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The nearest point of the simplex; NaN for a row with +∞, which has none."""
        check_step_size(gamma, x)
        return onto_simplex(x, self.total)
