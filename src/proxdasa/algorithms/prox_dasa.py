"""Prox-DASA: decentralised proximal averaged stochastic approximation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxdasa.algorithms.proximal_step import ProximalStep
from proxdasa.algorithms.rows import descend
from proxdasa.contracts import Agents, Averaging, Facts
from proxdasa.schedules import HORIZON, Alpha, as_schedule


@dataclass(frozen=True, eq=False)
class ProxDASA(ProximalStep):
    """Prox-DASA (Algorithm 1 of Xiao, Chen, Balasubramanian and Ghadimi, 2023).

        y = prox_γ(x − γ z)
        x = mix[(1 − α) x + α y]
        z = mix[(1 − α) z + α g(x, ξ)]          the gradient is taken at the old x

    z averages the stochastic gradients over time and neighbours, so it approaches ∇F(x̄) without large batches.

    Examples:
        >>> problem = problems.PhaseRetrieval(agents=4, dim=5, sparsity=2, evaluation=200)
        >>> method = proxdasa.ProxDASA(gamma=0.05, alpha=0.3)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=50)
        >>> result.records[0]["loss"] > 10 * result.records[-1]["loss"]
        True
        >>> sorted(result.state)
        ['x', 'z']
    """

    facts: ClassVar[Facts] = Facts(
        "Prox-DASA", vectors=2, gradients=1, averaging=Averaging("z", "alpha"), step="gamma", coordinatewise=True
    )

    alpha: Alpha = HORIZON

    class State(NamedTuple):
        """Iterate x and averaged gradient z."""

        x: Tensor
        z: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "alpha", as_schedule(self.alpha, "alpha"))

    def init(self, agents: Agents, x: Tensor) -> State:  # noqa: ARG002
        """Start with z⁰ = 0."""
        return self.State(x, z=torch.zeros_like(x))

    def step(self, agents: Agents, k: int, state: State) -> State:
        """Take the proximal step and a sample gradient at the old x, average, mix."""
        x, z = state
        γ, α = self.gamma, self.alpha(k)
        y = agents.prox(descend(x, γ, z), γ)
        v = agents.grad(x, k)
        x, z = agents.mix(torch.lerp(x, y, α), torch.lerp(z, v, α))  # lerp(a, b, α) = (1 − α) a + α b
        return self.State(x, z)
