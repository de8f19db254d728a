"""What agents do alone, in whichever process they live: gradients, proximal steps, losses, and what they have spent."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxdasa.contracts import Evaluation, Mixing, Network, Problem, Regularizer, unpacked
from proxdasa.samples import Samples
from proxdasa.schedules import Number


class Cell(NamedTuple):
    """Agents that are computed together."""

    rows: slice
    problem: Problem
    draw: Callable[[int, int], Tensor]


class Local(ABC):
    """The agents of one process, all or some, on their own; the engines add how they reach each other.

    Agents are stacked and computed together, or in exact mode one by one: sums then have the same terms in the same
    order wherever an agent lives, and results the same bits.
    """

    def __init__(
        self,
        problem: Problem,
        network: Network,
        regularizer: Regularizer,
        mixing: Mixing,
        trials: int,
        seed: int,
        agents: range | None = None,
        exact: bool = False,
    ) -> None:
        agents = range(network.n) if agents is None else agents
        self.n, self.agents, self._trials = network.n, agents, trials
        self._problem, self._network, self._regularizer, self._mixing = problem, network, regularizer, mixing
        self._rounds = mixing.rounds_for(network.rho)
        each = [range(i, i + 1) for i in range(len(agents))] if exact else [range(len(agents))]
        parts = [problem.restrict(some) if exact else problem for some in each]
        self._samples = [
            Samples(part, seed, trials, agents[some.start : some.stop]) for some, part in zip(each, parts, strict=True)
        ]
        self._cells = [
            Cell(slice(some.start, some.stop), part, draw)
            for some, part, draw in zip(each, parts, self._samples, strict=True)
        ]
        self._last_named: dict[int, int] = {}
        self._before: tuple[int, dict[str, int], dict[int, int]] | None = None
        self._counts = {"samples": 0, "gradients": 0, "full_gradients": 0, "rounds": 0, "vectors": 0}
        self._prepare()

    def _prepare(self) -> None:  # noqa: B027 - there may be nothing
        """Make what is made once, and is no part of the first step's time."""

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """Sample gradients of all trials and agents at once."""
        self._counts["gradients"] += 1
        if self._last_named.get(sample) != k:  # evaluating again at the same ξ takes no new sample
            self._last_named[sample] = k
            self._counts["samples"] += 1
        return self._each(lambda cell, rows: cell.problem.grad(rows, cell.draw(k, sample)), x)

    def full_grad(self, x: Tensor) -> Tensor:
        """∇F_i at each row."""
        if math.isinf(self._problem.epoch):
            raise ValueError(
                f"{type(self._problem).__name__} streams its samples, so an agent has no full gradient; "
                "choose a method that uses sample gradients only"
            )
        self._counts["full_gradients"] += 1
        return self._each(lambda cell, rows: cell.problem.evaluate(rows).grad, x)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step, row by row."""
        by_agent = isinstance(gamma, Tensor) and gamma.ndim > 1 and gamma.shape[-2] > 1

        def step(cell: Cell, rows: Tensor) -> Tensor:
            return self._regularizer.prox(rows, gamma[..., cell.rows, :] if by_agent else gamma)  # type: ignore[index]

        return self._each(step, x)

    @cached_property
    def degrees(self) -> Tensor:
        """Neighbours of each agent here, ``[agents here, 1]``."""
        here = np.asarray(self._network.degrees)[self.agents.start : self.agents.stop]
        return torch.from_numpy(here).to(self._problem.dtype).unsqueeze(-1)

    def mix(self, *tensors: Tensor) -> Any:
        """The mixing polynomial applied to each tensor."""
        self._send(self._rounds, len(tensors))
        return unpacked(self._mix(tensors))

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j."""
        self._send(1, 1)
        return self.observe_neighbours(x)

    @abstractmethod
    def _mix(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """All rounds of mixing."""

    @abstractmethod
    def observe_neighbours(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j, uncounted."""

    def evaluate(self, x: Tensor) -> Evaluation:
        """Exact losses and gradients."""
        return self._problem.evaluate(x)

    def scores(self, x: Tensor) -> Mapping[str, Tensor]:
        """The problem's own measures."""
        return self._problem.scores(x)

    def value(self, x: Tensor) -> Tensor:
        """Ψ of each row."""
        return self._regularizer.value(x)

    @property
    def epoch(self) -> float:
        """Samples in one pass over the data of an agent here."""
        return self._problem.epoch

    def proceed(self, k: int) -> bool:
        """Always; what was spent before iteration k is noted, in case that one is interrupted."""
        self._before = (k, dict(self._counts), dict(self._last_named))
        return True

    def rewind(self, k: int) -> None:
        """Forget what iteration k has cost so far."""
        if self._before is not None and self._before[0] == k:
            _, self._counts, self._last_named = self._before

    def counts(self) -> dict[str, float]:
        """What one agent has spent: samples, gradients, full gradients, rounds, and vectors sent to each neighbour."""
        return dict(self._counts)

    def restore(self, counts: Mapping[str, float]) -> None:
        """Go on counting from here."""
        self._counts.update({name: int(counts[name]) for name in self._counts})
        self._last_named.clear()  # what was drawn for looking at a run is drawn again by the run

    def _send(self, rounds: int, vectors: int) -> None:
        self._counts["rounds"] += rounds
        self._counts["vectors"] += rounds * vectors

    def _each(self, act: Callable[[Cell, Tensor], Tensor], x: Tensor) -> Tensor:
        """Act on the rows of every cell."""
        if len(self._cells) == 1:
            return act(self._cells[0], x)
        # Copied, so that they lie in memory alike wherever the agent lives: products of matrices depend on it.
        return torch.cat([act(cell, x[..., cell.rows, :].clone()) for cell in self._cells], dim=-2)
