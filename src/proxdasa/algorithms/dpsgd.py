"""D-PSGD: decentralised proximal stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxdasa.algorithms.proximal_step import ProximalStep
from proxdasa.algorithms.rows import descend
from proxdasa.contracts import Agents, Facts


@dataclass(frozen=True, eq=False)
class DPSGD(ProximalStep):
    """D-PSGD (Lian, Zhang, Zhang, Hsieh, Zhang and Liu, 2017) with a proximal step.

        x = prox_γ(mix[x] − γ g(x, ξ))          the gradient is taken at the unmixed x

    With one agent this is proximal SGD. With several agents whose losses differ, the error does not vanish at constant
    γ, even without noise.

    Examples:
        >>> A, b = torch.eye(2).expand(4, 2, 2), torch.tensor([[8.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
        >>> problem, method = problems.Quadratic(A, b), proxdasa.DPSGD(gamma=0.1)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=60)
        >>> result.records[-1]["consensus"] > 0.1  # at constant γ, agents whose data differ stay apart
        True
    """

    facts: ClassVar[Facts] = Facts("D-PSGD", vectors=1, gradients=1, step="gamma", coordinatewise=True)

    class State(NamedTuple):
        """Iterate x."""

        x: Tensor

    def init(self, agents: Agents, x: Tensor) -> State:  # noqa: ARG002
        """Start with x⁰; there are no other variables."""
        return self.State(x)

    def step(self, agents: Agents, k: int, state: State) -> State:
        """Mix, take a gradient step and the proximal step."""
        γ, x = self.gamma, state.x
        g = agents.grad(x, k)
        return self.State(agents.prox(descend(agents.mix(x), γ, g), γ))
