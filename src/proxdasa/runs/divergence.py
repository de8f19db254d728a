"""Finding where a run diverged.

Looking for non-finite values in every step would slow down every run. Instead the loop looks when it observes. If a run
has diverged, the loop replays it from the last observation and checks the result of every call. Samples are named, so
the replay is the same run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from proxdasa.contracts import Agents, Engine, Step
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


class CheckedAgents:
    """The methods of `Agents`; records for each agent the first call in which its row is not finite, in some trials.

    All processes make the same calls in the same order, so the number of a call says which agent was first, whichever
    process it is in: mixing spreads non-finite values to the neighbours, but only in later calls.
    """

    def __init__(self, engine: Engine, trials: Collection[int]) -> None:
        self._engine, self._trials, self.k = engine, sorted(trials), 0
        self.agents: Agents = engine
        """The agents that compute."""
        self.calls = 0
        """The number of checks so far; each further slice of the same rows starts from the count of the first."""
        # For each trial and agent here: the call, and the iteration it belongs to.
        self._first = torch.full((len(trials), len(engine.agents), 2), math.inf, dtype=torch.float64)

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """Sample gradients."""
        return self.check(self.agents.grad(self.check(x), k, sample))

    def full_grad(self, x: Tensor) -> Tensor:
        """Full gradients."""
        return self.check(self.agents.full_grad(self.check(x)))

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step."""
        return self.check(self.agents.prox(self.check(x), gamma))

    def mix(self, *tensors: Tensor) -> Any:
        """Mixed rows, which are checked where they are used."""
        return self.agents.mix(*(self.check(x) for x in tensors))

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Sums over neighbours."""
        return self.agents.neighbour_sum(self.check(x))

    @property
    def degrees(self) -> Tensor:
        """The numbers of neighbours."""
        return self.agents.degrees

    def check(self, x: Tensor) -> Tensor:
        """Return the rows, after noting which of them are not finite."""
        # Counted even if nothing is broken here, so that a number means the same call in all processes.
        self.calls += 1
        rows = _broken_rows(x).cpu()[self._trials]
        if bool(rows.any()):
            # A later slice may break in an earlier call of the same iteration.
            broken = rows & (self._first[..., 0] > self.calls)
            self._first[broken] = torch.tensor([self.calls, self.k], dtype=torch.float64)
        return x

    def forget(self) -> None:
        """Discard what was found."""
        self._first.fill_(math.inf)

    def fork(self, agents: range) -> CheckedAgents:
        """A checker that continues the count from here, for a slice of the coordinates of some agents."""
        other = CheckedAgents(self._engine, self._trials)
        other.k, other.calls, other._first = self.k, self.calls, other._first[:, agents.start : agents.stop]
        return other

    def join(self, other: CheckedAgents, agents: range) -> None:
        """Take over what a fork has found."""
        self.calls = max(self.calls, other.calls)
        own = self._first[:, agents.start : agents.stop]
        earlier = other._first[..., 0] < own[..., 0]
        own[earlier] = other._first[earlier]

    @property
    def complete(self) -> bool:
        """Whether an agent was found in every trial; all processes must ask together."""
        found = torch.isfinite(self._first[..., 0]).sum(dim=-1)
        return bool((self._engine.total(found) > 0).all())

    def found(self) -> dict[int, Divergence]:
        """The first agent in each trial that has any, the one with the smallest number if several broke in one call.

        All processes must ask together.
        """
        calls, iterations = self._engine.gather(self._first).numpy().transpose(2, 0, 1)
        agents = calls.argmin(axis=1)  # the first of equals
        return {
            trial: Divergence(int(agent), int(iterations[row, agent]))
            for row, (trial, agent) in enumerate(zip(self._trials, agents, strict=True))
            if math.isfinite(calls[row, agent])
        }


def broken_trials(engine: Engine, state: Any) -> list[int]:
    """The trials in which some agent's state is not finite; all processes must ask together."""
    # As in `_broken_rows`: a finite sum proves that all is well, and observing a small state is mostly such calls.
    if math.isfinite(torch.stack([tensor.sum() for tensor in state]).sum()):
        broken = torch.zeros(len(state.x), dtype=torch.int64, device=state.x.device)
    else:
        broken = torch.stack([_broken_rows(tensor) for tensor in state]).any(dim=0).sum(dim=-1)
    agents = engine.total(broken)
    return [int(trial) for trial in agents.nonzero()]


def _broken_rows(x: Tensor) -> Tensor:
    # If a sum is finite, so are all of its terms; if it is not, it may only have overflowed, so look at the terms.
    if bool(x.sum(dim=-1).isfinite().all()):
        return torch.zeros(x.shape[:-1], dtype=torch.bool, device=x.device)
    return ~torch.isfinite(x).all(dim=-1)


class Replay:
    """Finds where trials diverged by repeating the iterations since the last observation."""

    def __init__(self, engine: Engine, step: Step) -> None:
        self._engine, self._step = engine, step
        self.k = 0
        """The iteration of the last observation."""
        self._before: tuple[Mapping[str, float], dict[str, Tensor]] | None = None

    def remember(self, k: int, state: Any, costs: Mapping[str, float]) -> None:
        """Keep a state and the costs so far, by which rounds are numbered."""
        # The extra rows are copied: the engine writes into those of earlier iterations.
        self.k, self._state, self._costs = k, state, costs
        self._extra_rows = {name: rows.clone() for name, rows in self._engine.extra_rows.items()}

    def locate(self, trials: Collection[int], k: int, broken: Any) -> dict[int, Divergence]:
        """The first agent and iteration of each trial that diverged between the kept state and this broken one.

        If the replay of a trial stays finite, because a step depends on something that is not kept, the answer is the
        first agent that is broken in the second state.
        """
        engine, state, watched = self._engine, self._state, CheckedAgents(self._engine, trials)
        self._before = engine.counts(), engine.extra_rows
        try:
            with engine.stepping():
                engine.restore(self._costs)
                engine.extra_rows = dict(self._extra_rows)
                for watched.k in range(self.k, k):
                    if watched.complete:
                        break
                    state = self._step(watched, watched.k, state)
                    for tensor in state:
                        watched.check(tensor)
        finally:
            self.put_back()
        for tensor in broken:
            watched.check(tensor)
        return watched.found()

    def put_back(self) -> None:
        """Undo what a replay has done to the engine, unless that is done: an interruption may end a replay halfway."""
        if self._before:
            spent, self._engine.extra_rows = self._before
            self._engine.restore(spent)
            self._before = None
