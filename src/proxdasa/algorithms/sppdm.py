"""SPPDM: the stochastic proximal primal-dual method with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxdasa.algorithms.rows import advance
from proxdasa.checks import check_positive
from proxdasa.contracts import Agents, Facts
from proxdasa.schedules import Alpha, Number, as_schedule


@dataclass(frozen=True, eq=False)
class SPPDM:
    """SPPDM (Wang, Zhang, Chang, Li and Luo, 2021), on the unweighted graph: no mixing matrix, one round per step.

        p = p + α (deg x − Σ_{j~i} x_j)                       the dual of the constraint that neighbours agree
        s = x + η_k (x − x₋)                                  momentum
        x' = prox_{1/φ}([γ s + c (deg x + Σ_{j~i} x_j) + κ w − g(s, ξ) − p] / φ),      φ_i = γ + 2 c deg_i + κ
        w = w + β (x' − w)                                    the centre of the proximal term, z in the paper

    It starts with x₋ = w = x⁰ and p = 0. γ is a weight: the step is 1/φ, shorter for larger γ. ``momentum`` is η_k:
    none, a number such as 0.8, `schedules.nesterov()`, or any schedule.

    Examples:
        >>> method = proxdasa.SPPDM(gamma=2.0, c=0.2, kappa=0.5, beta=0.9, alpha=0.1, momentum=0.5)
        >>> problem = problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.ones(4, 2))
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=60)
        >>> result.mean.round(decimals=3)
        tensor([[1., 1.]])
    """

    facts: ClassVar[Facts] = Facts("SPPDM", vectors=1, gradients=1, mixes=False, keeps_errors=True, coordinatewise=True)

    gamma: Number
    c: Number
    kappa: Number
    beta: Number
    alpha: Number
    momentum: Alpha | None = None

    class State(NamedTuple):
        """Iterate x, the previous iterate, aggregated dual p and proximal centre w."""

        x: Tensor
        x_prev: Tensor
        p: Tensor
        w: Tensor

    def __post_init__(self) -> None:
        for name in ("gamma", "c", "kappa", "beta", "alpha"):
            check_positive(getattr(self, name), name)
        if self.momentum is not None:
            object.__setattr__(self, "momentum", as_schedule(self.momentum, "momentum"))

    @property
    def mapping_gamma(self) -> Number:
        """1, because the proximal steps 1/φ_i differ by agent."""
        return 1.0

    def init(self, agents: Agents, x: Tensor) -> State:  # noqa: ARG002
        """Start with x₋ = w = x⁰ and p = 0."""
        return self.State(x, x_prev=x, p=torch.zeros_like(x), w=x)

    def step(self, agents: Agents, k: int, state: State) -> State:
        """Take the dual step, extrapolate, take the proximal step, move the centre."""
        x, x_prev, p, w = state
        γ, c, κ, α = self.gamma, self.c, self.kappa, self.alpha
        own, others = agents.degrees * x, agents.neighbour_sum(x)
        φ = γ + 2 * c * agents.degrees + κ
        p = advance(p, α, own - others)
        s = x if self.momentum is None else torch.lerp(x_prev, x, 1 + self.momentum(k))
        pull = advance(advance(γ * s, c, own + others), κ, w)
        x_new = agents.prox((pull - agents.grad(s, k) - p) / φ, 1 / φ)
        return self.State(x_new, x, p, torch.lerp(w, x_new, self.beta))
