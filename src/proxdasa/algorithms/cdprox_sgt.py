"""CDProxSGT: proximal stochastic gradient tracking with small messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxdasa.algorithms.proximal_step import ProximalStep
from proxdasa.algorithms.rows import descend
from proxdasa.contracts import Agents, Facts, Tracking


@dataclass(frozen=True, eq=False)
class CDProxSGT(ProximalStep):
    """CDProxSGT (Yan, Chen, Chen, Cui, Lu and Xu, 2023): gradient tracking designed for compressed messages.

        g' = g(x, ξ);   y = mix[y + g' − g]         the tracker; g is last step's gradient
        x = mix[prox_γ(x − γ y)]

    With ``mixing=CompressedGossip(Q, step=[γ_y, γ_x])``, both of its vectors are sent as compressed differences:

        ŷ = ŷ + Q(y − ŷ);   y = y + γ_y (W ŷ − ŷ)
        x̂ = x̂ + Q(x − x̂);   x = x + γ_x (W x̂ − x̂)

    It starts with y = g = 0 and the copies ŷ = x̂ = 0. The mean of y equals the mean of g after every step, however
    coarse Q is. With plain gossip it is ProxGT-SA with a batch of one.

    Examples:
        >>> A, b = torch.eye(2).expand(4, 2, 2), torch.tensor([[8.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
        >>> result = proxdasa.run(
        ...     proxdasa.CDProxSGT(gamma=0.1),
        ...     problems.Quadratic(A, b),
        ...     networks.ring(4),
        ...     mixing=proxdasa.CompressedGossip(compressors.TopK(0.5), step=[0.4, 0.4]),
        ...     iterations=100,
        ... )
        >>> result.x[0, 3].round(decimals=3)
        tensor([2., 1.])
    """

    facts: ClassVar[Facts] = Facts(
        "CDProxSGT", vectors=2, gradients=1, step="gamma", tracking=Tracking("y", "g"), coordinatewise=True
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
        """Take a sample gradient, track, mix the tracker, take the proximal step, mix the iterate."""
        x, y, g = state
        γ, g_new = self.gamma, agents.grad(x, k)
        y = agents.mix(y + g_new - g)
        x = agents.mix(agents.prox(descend(x, γ, y), γ))
        return self.State(x, y, g_new)
