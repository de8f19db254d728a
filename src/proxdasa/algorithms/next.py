"""NEXT, and SONATA on undirected graphs: successive convex approximation with gradient tracking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxdasa.algorithms.proximal_step import ProximalStep
from proxdasa.contracts import Agents, Facts, Tracking
from proxdasa.schedules import Alpha, as_schedule


@dataclass(frozen=True, eq=False)
class NEXT(ProximalStep):
    """NEXT (Di Lorenzo and Scutari, 2016), which is SONATA on undirected graphs, with linearised losses.

        g' = g(x, ξ);   y = y + g' − g          the tracker; g is last step's gradient
        v = prox_γ(x − γ y)                     each agent's own linearised problem
        x = mix[x + α (v − x)];   y = mix[y]

    It starts with y = g = 0, so that the first tracker is the first gradient. A constant ``alpha`` is enough.

    Examples:
        >>> A, b = torch.eye(2).expand(4, 2, 2), torch.tensor([[8.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
        >>> problem, method = problems.Quadratic(A, b), proxdasa.NEXT(gamma=0.3, alpha=0.5)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=80)
        >>> result.x[0, 3].round(decimals=3)
        tensor([2., 1.])
    """

    facts: ClassVar[Facts] = Facts(
        "NEXT", vectors=2, gradients=1, step="gamma", tracking=Tracking("y", "g"), coordinatewise=True
    )

    alpha: Alpha

    class State(NamedTuple):
        """Iterate x, tracker y and last sample gradient g."""

        x: Tensor
        y: Tensor
        g: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "alpha", as_schedule(self.alpha, "alpha"))

    def init(self, agents: Agents, x: Tensor) -> State:  # noqa: ARG002
        """Start with y = g = 0."""
        return self.State(x, y=torch.zeros_like(x), g=torch.zeros_like(x))

    def step(self, agents: Agents, k: int, state: State) -> State:
        """Take a sample gradient, track, solve the local problem, move towards it, mix."""
        x, y, g = state
        γ, α, g_new = self.gamma, self.alpha(k), agents.grad(x, k)
        y = y + g_new - g
        v = agents.prox(x - γ * y, γ)
        x, y = agents.mix(torch.lerp(x, v, α), y)  # lerp(a, b, α) = (1 − α) a + α b
        return self.State(x, y, g_new)
