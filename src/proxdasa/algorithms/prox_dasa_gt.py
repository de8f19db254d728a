"""Prox-DASA-GT: Prox-DASA with gradient tracking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxdasa.algorithms.proximal_step import ProximalStep
from proxdasa.algorithms.rows import descend
from proxdasa.contracts import Agents, Averaging, Facts, Tracking
from proxdasa.schedules import HORIZON, Alpha, as_schedule


@dataclass(frozen=True, eq=False)
class ProxDASAGT(ProximalStep):
    """Prox-DASA-GT (Algorithm 2 of Xiao, Chen, Balasubramanian and Ghadimi, 2023).

        y = prox_γ(x − γ z)
        v' = g(x, ξ);   ũ = u + v' − v          the tracker; v is the previous gradient
        x = mix[(1 − α) x + α y]
        z = mix[(1 − α) z + α ũ];   u = mix[ũ]

    The mean of u equals the mean of v after every step, so z follows the gradient of the whole network, not the
    agent's own: the agents' data may differ without bound.

    Examples:
        >>> A, b = torch.eye(2).expand(4, 2, 2), torch.tensor([[8.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
        >>> method = proxdasa.ProxDASAGT(gamma=0.5, alpha=0.3)
        >>> result = proxdasa.run(method, problems.Quadratic(A, b), networks.ring(4), iterations=70)
        >>> result.x[0].round(decimals=3)  # agents whose data differ agree on one point
        tensor([[2., 1.],
                [2., 1.],
                [2., 1.],
                [2., 1.]])
    """

    facts: ClassVar[Facts] = Facts(
        "Prox-DASA-GT",
        vectors=3,
        gradients=1,
        averaging=Averaging("z", "alpha"),
        step="gamma",
        tracking=Tracking("u", "v"),
        coordinatewise=True,
    )

    alpha: Alpha = HORIZON

    class State(NamedTuple):
        """Iterate x, averaged gradient z, tracker u and last sample gradient v."""

        x: Tensor
        z: Tensor
        u: Tensor
        v: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "alpha", as_schedule(self.alpha, "alpha"))

    def init(self, agents: Agents, x: Tensor) -> State:  # noqa: ARG002
        """Start with z⁰ = u⁰ = v⁰ = 0."""
        return self.State(x, z=torch.zeros_like(x), u=torch.zeros_like(x), v=torch.zeros_like(x))

    def step(self, agents: Agents, k: int, state: State) -> State:
        """Take the proximal step and a sample gradient at the old x, track, average the tracker, mix."""
        x, z, u, v = state
        γ, α = self.gamma, self.alpha(k)
        y = agents.prox(descend(x, γ, z), γ)
        v_new = agents.grad(x, k)
        u = u + v_new - v
        x, z, u = agents.mix(torch.lerp(x, y, α), torch.lerp(z, u, α), u)
        return self.State(x, z, u, v_new)
