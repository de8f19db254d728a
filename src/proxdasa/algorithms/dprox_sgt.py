"""DProxSGT: decentralised proximal stochastic gradient tracking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxdasa.algorithms.proximal_step import ProximalStep
from proxdasa.algorithms.rows import descend
from proxdasa.contracts import Agents, Facts, Tracking


@dataclass(frozen=True, eq=False)
class DProxSGT(ProximalStep):
    """DProxSGT: stochastic gradient tracking, known as DSGT and GNSD, with a proximal step.

        g' = g(x, ξ);   ỹ = y + g' − g          the tracker; g is last step's gradient
        y = mix[ỹ]
        x = prox_γ(mix[x] − γ y)

    This is y' = mix[y + g(x', ξ') − g(x, ξ)], x' = prox_γ(mix[x] − γ y) started with y = g = 0, so that the first
    tracker is the mixed first gradient, x and y are sent together, and a step needs one gradient. The mean of y equals
    the mean of g after every step.

    Examples:
        >>> A, b = torch.eye(2).expand(4, 2, 2), torch.tensor([[8.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
        >>> problem, method = problems.Quadratic(A, b), proxdasa.DProxSGT(gamma=0.3)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=40)
        >>> result.mean[0].round(decimals=3)
        tensor([2., 1.])
    """

    facts: ClassVar[Facts] = Facts(
        "DProxSGT", vectors=2, gradients=1, step="gamma", tracking=Tracking("y", "g"), coordinatewise=True
    )

    class State(NamedTuple):
        """Iterate x, tracker y and last sample gradient g."""

        x: Tensor
        y: Tensor
        g: Tensor

    def init(self, agents: Agents, x: Tensor) -> State:  # noqa: ARG002
        """Start with y = g = 0."""
        return self.State(x, y=torch.zeros_like(x), g=torch.zeros_like(x))

    def step(self, agents: Agents, k: int, state: State) -> State:
        """Take a sample gradient, track, mix, take the proximal step."""
        x, y, g = state
        γ, g_new = self.gamma, agents.grad(x, k)
        x, y = agents.mix(x, y + g_new - g)
        return self.State(agents.prox(descend(x, γ, y), γ), y, g_new)
