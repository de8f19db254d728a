"""D-PSGD: decentralised proximal stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxdasa.algorithms.rows import descend
from proxdasa.checks import check_positive
from proxdasa.contracts import Agents, Facts
from proxdasa.schedules import Number


@dataclass(frozen=True, eq=False)
class DPSGD:
    """D-PSGD (Lian, Zhang, Zhang, Hsieh, Zhang and Liu, 2017) with a proximal step.

        x = prox_γ(mix[x] − γ g(x, ξ))          the gradient is taken at the unmixed x

    With one agent this is proximal SGD. With several, agents that disagree pull each other away from the solution: at
    constant γ the error does not vanish even without noise.
    """

    facts: ClassVar[Facts] = Facts("D-PSGD", vectors=1, gradients=1)

    gamma: Number

    class State(NamedTuple):
        """Iterate x."""

        x: Tensor

    def __post_init__(self) -> None:
        check_positive(self.gamma, "gamma")

    @property
    def mapping_gamma(self) -> Number:
        """γ."""
        return self.gamma

    def init(self, agents: Agents, x: Tensor) -> State:  # noqa: ARG002
        """Nothing but x⁰."""
        return self.State(x)

    def step(self, agents: Agents, k: int, state: State) -> State:
        """Mixing, a gradient step, the proximal step."""
        γ, x = self.gamma, state.x
        g = agents.grad(x, k)
        return self.State(agents.prox(descend(agents.mix(x), γ, g), γ))
