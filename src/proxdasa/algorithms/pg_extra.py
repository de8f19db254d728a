"""PG-EXTRA: exact proximal gradient steps by two consecutive mixings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxdasa.algorithms.proximal_step import ProximalStep
from proxdasa.contracts import Agents, Facts


@dataclass(frozen=True, eq=False)
class PGExtra(ProximalStep):
    """PG-EXTRA (Shi, Ling, Wu and Yin, 2015) with sample gradients.

        h = mix[x] + h₋ − ½ (x₋ + mix[x₋]) − γ (g(x, ξ) − g₋)
        x' = prox_γ(h)

    A minus marks last step's values. It starts with h = x₋ = mix[x₋] = g₋ = 0, so that the first step is
    h = mix[x] − γ g. Without noise in the gradients every agent finds the common solution, at a constant γ and without
    a tracker.

    Examples:
        >>> A, b = torch.eye(2).expand(4, 2, 2), torch.tensor([[8.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
        >>> problem, method = problems.Quadratic(A, b), proxdasa.PGExtra(gamma=0.3)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=60)
        >>> result.x[0, 3].round(decimals=3)
        tensor([2., 1.])
    """

    facts: ClassVar[Facts] = Facts(
        "PG-EXTRA", vectors=1, gradients=1, step="gamma", keeps_errors=True, coordinatewise=True
    )

    class State(NamedTuple):
        """Iterate x and point h before the proximal step; last step's iterate, its mix, and gradient."""

        x: Tensor
        h: Tensor
        x_prev: Tensor
        mixed_prev: Tensor
        g_prev: Tensor

    def init(self, agents: Agents, x: Tensor) -> State:  # noqa: ARG002
        """Start with zeros, which make the first step h = mix[x] − γ g."""
        return self.State(x, *(torch.zeros_like(x) for _ in range(4)))

    def step(self, agents: Agents, k: int, state: State) -> State:
        """Take a sample gradient, mix, correct by the previous step, take the proximal step."""
        x, h, x_prev, mixed_prev, g_prev = state
        g, mixed = agents.grad(x, k), agents.mix(x)
        h = mixed + h - (x_prev + mixed_prev) / 2 - self.gamma * (g - g_prev)
        return self.State(agents.prox(h, self.gamma), h, x, mixed, g)
