"""Finding where a run diverged.

Looking for non-finite values in every step would slow down every run. Instead the loop looks when it observes, and
replays a run that has diverged from the last observation while checking every verb. Samples are named, so the replay is
the same run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from proxdasa.contracts import Engine, Step
from proxdasa.runs.results import Divergence
from proxdasa.schedules import Number


class DivergenceWarning(UserWarning):
    """A trial produced a non-finite value and was stopped.

    Examples:
        >>> import warnings
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     result = proxdasa.run(proxdasa.DPSGD(gamma=100.0), problem, networks.ring(3), iterations=100)
        >>> caught[0].category is proxdasa.DivergenceWarning
        True
        >>> result.stopped, result.diverged
        ('diverged', {0: Divergence(agent=0, iteration=19)})
    """


class _CheckedAgents:
    """The agents' verbs, recording the first call in which a row of each agent is not finite, in some of the trials.

    All processes call the same verbs in the same order, so the number of the call tells which agent was first wherever
    it lives: mixing spreads non-finite values to the neighbours, but only in later calls.
    """

    def __init__(self, engine: Engine, trials: Collection[int]) -> None:
        self._engine, self._trials, self.k, self._calls = engine, sorted(trials), 0, 0
        self.degrees = engine.degrees
        # For each trial and agent here: the call, and the iteration it belongs to.
        self._first = torch.full((len(trials), len(engine.agents), 2), math.inf, dtype=torch.float64)

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        return self.check(self._engine.grad(self.check(x), k, sample))

    def full_grad(self, x: Tensor) -> Tensor:
        return self.check(self._engine.full_grad(self.check(x)))

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        return self.check(self._engine.prox(self.check(x), gamma))

    def mix(self, *tensors: Tensor) -> Any:
        return self._engine.mix(*(self.check(x) for x in tensors))

    def neighbour_sum(self, x: Tensor) -> Tensor:
        return self._engine.neighbour_sum(self.check(x))

    def check(self, x: Tensor) -> Tensor:
        # Counted even if nothing is broken here, so that a number means the same call in all processes.
        self._calls += 1
        broken = ~torch.isfinite(x).all(dim=-1).cpu()[self._trials] & torch.isinf(self._first[..., 0])
        self._first[broken] = torch.tensor([self._calls, self.k], dtype=torch.float64)
        return x

    @property
    def complete(self) -> bool:
        """Whether an agent was found in every trial; all processes must ask together."""
        found = torch.isfinite(self._first[..., 0]).sum(dim=-1)
        return bool((self._engine.total(found) > 0).all())

    def found(self) -> dict[int, Divergence]:
        """The first agent in each trial, the one with the smallest number if several broke in the same call.

        All processes must ask together.
        """
        calls, iterations = self._engine.gather(self._first).numpy().transpose(2, 0, 1)
        agents = calls.argmin(axis=1)  # the first of equals
        return {
            trial: Divergence(int(agent), int(iterations[row, agent]))
            for row, (trial, agent) in enumerate(zip(self._trials, agents, strict=True))
        }


def broken_trials(engine: Engine, state: Any) -> list[int]:
    """The trials in which some agent's state is not finite; all processes must ask together."""
    broken = torch.stack([_broken_rows(tensor) for tensor in state]).any(dim=0)
    agents = engine.total(broken.sum(dim=-1))
    return [int(trial) for trial in agents.nonzero()]


def _broken_rows(x: Tensor) -> Tensor:
    # A sum is finite only if all of its terms are; it may overflow when they are, so it does not have the last word.
    if bool(x.sum(dim=-1).isfinite().all()):
        return torch.zeros(x.shape[:-1], dtype=torch.bool, device=x.device)
    return ~torch.isfinite(x).all(dim=-1)


def locate(
    step: Step,
    engine: Engine,
    trials: Collection[int],
    before: tuple[int, Any],
    after: tuple[int, Any],
    costs: Mapping[str, float],
    extra_rows: Mapping[str, Tensor],
) -> dict[int, Divergence]:
    """The first agent and iteration of each trial that diverged between a finite state and a broken one.

    Both states come with their iterations, and the first one with its extra rows and the costs so far, by which rounds
    are numbered. If the replay of a trial stays finite, because a step depends on something other than all these, the
    answer is the first agent that is broken in the second state.
    """
    watched, (start, state), (stop, broken) = _CheckedAgents(engine, trials), before, after
    spent, kept = engine.counts(), engine.extra_rows
    try:
        with engine.stepping():
            engine.restore(costs)
            engine.extra_rows = dict(extra_rows)
            for watched.k in range(start, stop):
                if watched.complete:
                    break
                state = step(watched, watched.k, state)
                for tensor in state:
                    watched.check(tensor)
    finally:
        engine.restore(spent)
        engine.extra_rows = kept
    for tensor in broken:
        watched.check(tensor)
    return watched.found()
