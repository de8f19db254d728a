"""Finding where a run went wrong.

Looking for non-finite values in every step would cost every run; instead the runner looks when it observes, and a run
that diverged is replayed from the last observation with every verb watched. Samples are named, so the replay is the
same run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxdasa.contracts import Agents, Algorithm, Engine, NonFiniteError
from proxdasa.results import Divergence
from proxdasa.schedules import Number


class DivergenceWarning(UserWarning):
    """A trial produced a non-finite value and was stopped."""


class _Watched:
    """The agents' verbs, stopping at the first non-finite row of one trial, before mixing spreads it."""

    def __init__(self, agents: Agents, trial: int) -> None:
        self._agents, self._trial = agents, trial
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
        broken = ~torch.isfinite(x[self._trial]).all(dim=-1)
        if bool(broken.any()):
            raise NonFiniteError(self._trial, int(broken.nonzero()[0]))
        return x


def broken_agents(engine: Engine, state: Any) -> dict[int, list[int]]:
    """The trials in whose state some value is not finite, and the agents that have one."""
    broken = torch.stack([~torch.isfinite(tensor).all(dim=-1, keepdim=True) for tensor in state]).any(dim=0)
    found: dict[int, list[int]] = {}
    for trial, agent, _ in engine.gather(broken.to(torch.float32)).nonzero().tolist():
        found.setdefault(trial, []).append(agent)
    return found


def locate(
    algorithm: Algorithm, engine: Engine, trial: int, before: tuple[int, Any], after: tuple[int, Any]
) -> Divergence:
    """The first agent and iteration that broke between a finite state and a broken one, each with its iteration.

    If the replay stays finite, because steps depend on something else than state and k, it is the first agent that is
    broken at the end.
    """
    watched, (start, state), (stop, broken) = _Watched(engine, trial), before, after
    try:
        with engine.stepping():
            for k in range(start, stop):
                state = algorithm.step(watched, k, state)
                for tensor in state:
                    watched.check(tensor)
        k = stop - 1
        for tensor in broken:
            watched.check(tensor)
    except NonFiniteError as error:
        return Divergence(error.agent, k)
    raise AssertionError(f"trial {trial} did not diverge")
