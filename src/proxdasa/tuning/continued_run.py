"""A method that starts in the middle of a run, for a search whose rungs continue where the last one ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from proxdasa.contracts import Agents, Algorithm, Engine, Facts
from proxdasa.runs.results import EXTRA
from proxdasa.schedules import Alpha, Number


@dataclass(frozen=True, eq=False)
class Continued:
    """A method after its first k₀ iterations: iteration k is its iteration k₀ + k, with the same α and samples.

    ``algorithm`` is bound to n and to the K of the whole run, so that a step size such as √(n/K) does not change from
    rung to rung; `runs.binding.bind` leaves it as it is, because it is not a schedule.
    """

    algorithm: Algorithm
    first: int = 0
    """k₀."""
    state: Any = field(default=None, repr=False)
    """The state after k₀ iterations; None to begin."""
    extra_rows: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """What the agents kept beside it."""
    rounds: int = 0
    """The rounds of communication so far, which determine the weights of a graph that changes."""
    step_sizes: Alpha | None = field(default=None, repr=False)
    """α_{k₀ + k}, if the method averages gradients."""

    @classmethod
    def after(cls, first: int, algorithm: Algorithm, variables: Mapping[str, Tensor], rounds: int) -> Algorithm:
        """A bound method after ``first`` = k₀ iterations, which ended with these variables (`Result.state`) or none."""
        own = {name: rows for name, rows in variables.items() if not name.startswith(EXTRA)}
        beside = {name.removeprefix(EXTRA): rows for name, rows in variables.items() if name not in own}
        state = algorithm.State(**own) if own else None
        averaging = algorithm.facts.averaging
        alpha = averaging.alpha(algorithm) if averaging else None
        made: Any = cls(algorithm, first, state, beside, rounds, (lambda k: alpha(first + k)) if alpha else None)
        return made  # type: ignore[no-any-return]  # its facts are those of an object, not of a class

    @property
    def facts(self) -> Facts:
        """The facts of the method."""
        facts = self.algorithm.facts
        return facts._replace(averaging=facts.averaging and facts.averaging._replace(step_size="step_sizes"))

    @property
    def mapping_gamma(self) -> Number:
        """The γ of the method."""
        return self.algorithm.mapping_gamma

    @property
    def State(self) -> type[Any]:  # noqa: N802
        """The state of the method."""
        return self.algorithm.State

    def init(self, agents: Agents, x: Tensor) -> Any:
        """The state after k₀ iterations."""
        if self.state is None:
            return self.algorithm.init(agents, x)
        engine = cast(Engine, agents)
        engine.extra_rows = {name: rows.to(x.device) for name, rows in self.extra_rows.items()}
        engine.restore({**engine.counts(), "rounds": self.rounds})
        return self.State(*(rows.to(x.device) for rows in self.state))

    def step(self, agents: Agents, k: int, state: Any) -> Any:
        """Iteration k₀ + k."""
        return self.algorithm.step(agents, self.first + k, state)
