"""What a method is, and what it declares about itself."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from proxdasa.contracts.engine import Agents
from proxdasa.schedules import Number


class Averaging(NamedTuple):
    """Declares that a method averages gradients: z ← (1 − α_k) z + α_k g in step k, so that z̄ follows ∇F(x̄).

    This allows a dual gap, a certificate without a further gradient, and a stopping rule. The law "averaging"
    of `proxdasa.testing` checks the claim.

    Examples:
        >>> proxdasa.ProxDASA.facts.averaging
        Averaging(variable='z', step_size='alpha')
    """

    variable: str
    """The variable of the state that is z."""
    step_size: str
    """The parameter of the method that is the schedule α_k."""

    def z(self, state: Any) -> Tensor:
        """The averaged gradients in a state of the method."""
        z: Tensor = getattr(state, self.variable)
        return z

    def alpha(self, algorithm: Algorithm) -> Callable[[int], Number]:
        """The step sizes of a method whose schedules are bound."""
        alpha: Callable[[int], Number] = getattr(algorithm, self.step_size)
        return alpha


class Tracking(NamedTuple):
    """Declares that a method tracks: the mean over agents of one variable equals that of another after every step.

    So each agent follows the mean gradient rather than its own, even if agents differ, links fail or agents pause. The
    law "tracking" of `proxdasa.testing` checks the claim.

    Examples:
        >>> proxdasa.ProxDASAGT.facts.tracking
        Tracking(tracker='u', tracked='v')
    """

    tracker: str
    tracked: str


class Facts(NamedTuple):
    """What a method declares about itself.

    Examples:
        >>> proxdasa.ProxDASAGT.facts.title, proxdasa.ProxDASAGT.facts.vectors
        ('Prox-DASA-GT', 3)
        >>> proxdasa.D2.facts.composite
        False
    """

    title: str
    """The name in the literature, used in tables and figures."""
    vectors: int
    """Vectors sent to each neighbour in a step that sends, in each round of the mixing protocol."""
    gradients: int
    """Gradients that each agent evaluates in an ordinary step for each sample of its batch; batches at the start and
    from time to time are extra."""
    composite: bool = True
    """Whether it handles Ψ ≠ 0."""
    eigenvalues_above: float = -1.0
    """The eigenvalues of mixing must exceed this. Those of every network exceed −1, so −1 requires nothing."""
    mixes: bool = True
    """Whether it mixes. A method that does not, such as SPPDM, sends its vectors once per step, whatever the mixing."""
    averaging: Averaging | None = None
    """Which of its variables averages gradients, if one does."""
    step: str | None = None
    """The parameter that is the step along the gradient (times α_k if gradients are averaged), in units of 1/L, from
    which a quick search begins. None if no single parameter is."""
    sends_every: str | None = None
    """The parameter p of a method with local steps: it sends in iteration k if k + 1 is a multiple of p, as `Every`
    does, and not otherwise. None if it sends in every iteration."""
    tracking: Tracking | None = None
    """Its tracker, if it has one, and what the tracker follows."""
    keeps_errors: bool = False
    """Whether, without a tracker, it adds up differences between neighbours from the first iteration on: an error in
    the mean over agents of what they receive, such as late messages cause, then stays forever. The law "late" of
    `proxdasa.testing` checks the claim."""

    coordinatewise: bool = False
    """Whether a step computes each coordinate by itself, apart from gradients, proximal steps and mixing. Steps of a
    large state are then taken in slices, unless a class merely inherits this claim from another one. The law "slices"
    of `proxdasa.testing` checks it."""

    def interval(self, algorithm: Algorithm) -> int:
        """The number of iterations from one in which the method sends to the next."""
        interval: int = 1 if self.sends_every is None else getattr(algorithm, self.sends_every)
        return interval


@runtime_checkable
class Algorithm(Protocol):
    """A method: a state, how it starts, and one step. See `proxdasa.algorithms` for examples.

    It is a dataclass, whose fields are its parameters: `run` binds schedules and per-trial values in them.

    Examples:
        >>> from dataclasses import dataclass
        >>> from typing import ClassVar, NamedTuple
        >>> @dataclass(frozen=True, eq=False)
        ... class GradientDescent:
        ...     facts: ClassVar = contracts.Facts("gradient descent", vectors=1, gradients=1, composite=False)
        ...     gamma: schedules.Number
        ...
        ...     class State(NamedTuple):
        ...         x: torch.Tensor
        ...
        ...     @property
        ...     def mapping_gamma(self):
        ...         return self.gamma
        ...
        ...     def init(self, agents, x):
        ...         return self.State(x)
        ...
        ...     def step(self, agents, k, state):
        ...         return self.State(agents.mix(state.x - self.gamma * agents.grad(state.x, k)))
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> proxdasa.run(GradientDescent(gamma=0.5), problem, networks.ring(3), iterations=50).mean.round(decimals=3)
        tensor([[1., 1.]])
    """

    facts: ClassVar[Facts]
    """What the method declares about itself; the shared tests check it."""

    @property
    def mapping_gamma(self) -> Number:
        """The γ at which stationarity is measured: the method's own proximal step where that is constant, else 1."""

    @property
    def State(self) -> type[Any]:  # noqa: N802
        """The NamedTuple of its variables."""

    def init(self, agents: Agents, x: Tensor) -> Any:
        """The state, a NamedTuple of tensors whose first field is x, from the starting rows."""

    def step(self, agents: Agents, k: int, state: Any) -> Any:
        """The state after iteration k."""


def parameters_of(algorithm: Algorithm) -> dict[str, Any]:
    """The parameters of a method by name."""
    return {entry.name: getattr(algorithm, entry.name) for entry in dataclasses.fields(algorithm)}  # type: ignore[arg-type]


def replace_unchecked(algorithm: Algorithm, changes: Mapping[str, Any]) -> Algorithm:
    """A copy of a method with other parameters, which its `__post_init__` does not check.

    They may have no values yet, or may have been checked already.
    """
    changed = copy.copy(algorithm)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    return changed
