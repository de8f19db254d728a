"""Finding where a run went wrong.

Looking for non-finite values in every step would cost every run; instead the runner looks when it observes, and a run
that diverged is replayed from the last observation with every verb watched. Samples are named, so the replay is the
same run.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from proxdasa.contracts import Agents, Algorithm, Engine
from proxdasa.results import Divergence
from proxdasa.schedules import Number


class DivergenceWarning(UserWarning):
    """A trial produced a non-finite value and was stopped."""


class _Watched:
    """The agents' verbs, noting the first non-finite row of each of some trials, before mixing spreads it."""

    def __init__(self, agents: Agents, trials: Collection[int]) -> None:
        self._agents, self.sought, self.k = agents, sorted(trials), 0
        self.found: dict[int, Divergence] = {}
        self.degrees = agents.degrees

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        return self.check(self._agents.grad(self.check(x), k, sample))

    def full_grad(self, x: Tensor) -> Tensor:
        return self.check(self._agents.full_grad(self.check(x)))

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        return self.check(self._agents.prox(self.check(x), gamma))

    def mix(self, *tensors: Tensor) -> Any:
        return self._agents.mix(*(self.check(x) for x in tensors))

    def neighbour_sum(self, x: Tensor) -> Tensor:
        return self._agents.neighbour_sum(self.check(x))

    def check(self, x: Tensor) -> Tensor:
        broken = ~torch.isfinite(x[self.sought]).all(dim=-1)
        for row, agent in reversed(broken.nonzero().tolist()):  # the first agent is noted last
            self.found[self.sought[row]] = Divergence(agent, self.k)
        self.sought = [trial for trial in self.sought if trial not in self.found]
        return x


def broken_agents(engine: Engine, state: Any) -> dict[int, list[int]]:
    """The trials in whose state some value is not finite, and the agents that have one."""
    broken = torch.stack([~torch.isfinite(tensor).all(dim=-1, keepdim=True) for tensor in state]).any(dim=0)
    found: dict[int, list[int]] = {}
    for trial, agent, _ in engine.gather(broken.to(torch.float32)).nonzero().tolist():
        found.setdefault(trial, []).append(agent)
    return found


def locate(
    algorithm: Algorithm, engine: Engine, trials: Collection[int], before: tuple[int, Any], after: tuple[int, Any]
) -> dict[int, Divergence]:
    """The first agent and iteration of each trial that broke between a finite state and a broken one.

    Both states come with their iterations. If the replay of a trial stays finite, because steps depend on something
    else than state and k, it is the first agent that is broken at the end.
    """
    watched, (start, state), (stop, broken) = _Watched(engine, trials), before, after
    with engine.stepping():
        for watched.k in range(start, stop):
            if not watched.sought:
                break
            state = algorithm.step(watched, watched.k, state)
            for tensor in state:
                watched.check(tensor)
    for tensor in broken:
        watched.check(tensor)
    return watched.found
