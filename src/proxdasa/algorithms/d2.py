"""D²: decentralised stochastic gradient descent over decentralised data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxdasa.algorithms.proximal_step import ProximalStep
from proxdasa.contracts import Agents, Facts


@dataclass(frozen=True, eq=False)
class D2(ProximalStep):
    """D² (Tang, Lian, Yan, Zhang and Liu, 2018), for Ψ = 0.

        x' = mix[2x − x₋ − γ (g(x, ξ) − g₋)]          x₋ and g₋ are those of the previous step

    It starts with x₋ = x⁰ and g₋ = 0, so that x¹ = mix[x⁰ − γ g⁰]. Like a tracker, the difference of gradients removes
    the effect of different data, but with only one vector per round. The eigenvalues of mixing must be above −1/3.

    Examples:
        >>> A, b = torch.eye(2).expand(4, 2, 2), torch.tensor([[8.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
        >>> problem, method = problems.Quadratic(A, b), proxdasa.D2(gamma=0.3)
        >>> proxdasa.run(method, problem, networks.complete(4), iterations=40).mean[0].round(decimals=3)
        tensor([2., 1.])
        >>> method.facts.composite  # it takes no regularizer
        False
    """

    facts: ClassVar[Facts] = Facts(
        "D²",
        vectors=1,
        gradients=1,
        composite=False,
        eigenvalues_above=-1 / 3,
        step="gamma",
        keeps_errors=True,
        coordinatewise=True,
    )

    class State(NamedTuple):
        """Iterate x, the previous iterate, and the gradient there."""

        x: Tensor
        x_prev: Tensor
        g_prev: Tensor

    def init(self, agents: Agents, x: Tensor) -> State:  # noqa: ARG002
        """Start with x₋ = x⁰ and g₋ = 0."""
        return self.State(x, x_prev=x, g_prev=torch.zeros_like(x))

    def step(self, agents: Agents, k: int, state: State) -> State:
        """Take a sample gradient, extrapolate, mix."""
        x, x_prev, g_prev = state
        g = agents.grad(x, k)
        return self.State(agents.mix(2 * x - x_prev - self.gamma * (g - g_prev)), x, g)
