"""What each agent computes on its own, whichever process it lives in: gradients, proximal steps, losses, and costs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxdasa.compressors import packing
from proxdasa.conditions import Weather
from proxdasa.contracts import (
    Evaluation,
    Mixing,
    Observed,
    PartialGrad,
    Running,
    is_separable,
    observed_of,
    partial_grad_of,
    running_of,
    unpack,
)
from proxdasa.engines.checked_answers import evaluation, gradients, proximal_step, scores, value
from proxdasa.engines.compressed_rounds import CompressedRounds
from proxdasa.engines.late_rows import Aged, LateRows
from proxdasa.engines.tasks import Cell, Task, cells_of
from proxdasa.schedules import Number

BUFFERS = "buffers"
"""The name of the running statistics among the extra rows."""


class LocalAgents(ABC):
    """All or some of the agents, in one process. Subclasses add how agents reach each other.

    Agents are computed in one batch or, in exact mode, one by one: sums then have the same terms in the same order
    wherever an agent lives, so results have the same bits.
    """

    def __init__(self, task: Task, agents: range, exact: bool = False) -> None:
        self.n, self.agents, self._exact = task.network.n, agents, exact
        self._rounds = task.mixing.rounds_for(task.network.rho)
        self.extra_rows: dict[str, Tensor] = {}
        self._assign(task)
        self.rests = False  # whether this iteration sends nothing
        self._updates_due = self._mixing_due = False  # whether statistics are yet to be updated and mixed
        fair = not task.conditions and not task.network.rounds
        names = task.trials, task.seed, task.periods
        self._weather = weather = None if fair else Weather(task.conditions, task.network, *names)
        self._late = LateRows(weather.oldest, task.trials, weather.pauses) if weather and weather.oldest else None
        compression = getattr(task.mixing, "compression", None)
        self._compressed = compression and CompressedRounds(
            compression, task.seed, task.trials, agents, [cell.rows for cell in self._cells], task.first_trial,
            task.periods, task.device,
        )  # fmt: skip
        self._links = len(task.network.edges) * task.trials
        # For each stream, the k of the sample that was counted last; a second gradient at that sample draws no new one.
        self._last_named: dict[int, int] = {}
        self._before: tuple[int, dict[str, float], dict[int, int], dict[str, Tensor]] | None = None
        spent = ("samples", "gradients", "full_gradients", "rounds", "vectors", "bytes")
        self._counts: dict[str, float] = dict.fromkeys(spent, 0)

    def _assign(self, task: Task) -> None:
        self._cells = cells_of(task, self.agents, self._exact)
        task = task if self._exact else task._replace(problem=self._cells[0].problem)  # it may be on another device now
        self._task, self._running = task, running_of(task.problem)
        if not self._running:
            return
        first = self._running.first_buffers(task.trials)
        for cell in self._cells:
            own = running_of(cell.problem)
            if own is None or own.first_buffers(1).shape[-1] != first.shape[-1]:
                raise ValueError(
                    f"the network changes different buffers for examples of agent {self.agents[cell.rows][0]} than for "
                    "those of others; a running statistic must change in every forward pass"
                )
        self.extra_rows[BUFFERS] = first

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """Sample gradients of all trials and agents."""
        self.count_gradient(k, sample)
        if self._running is None:
            return self._each(lambda cell, rows: gradients(cell.problem, rows, cell.samples(k, sample)), x)
        return self._grad_and_update(x, k, sample)

    def grad_of(self, agents: range, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """Sample gradients of a group of agents; groups must ask in ascending order. Not in exact mode."""
        if agents.start == self.agents.start:  # counted and drawn once for all groups
            self.count_gradient(k, sample)
            self._drawn = self.draw(k, sample)
        drawn = self._drawn[:, agents.start : agents.stop]
        if agents.stop == self.agents.stop:
            del self._drawn
        return gradients(self._task.problem, x, drawn, agents)

    @property
    def partial_grad(self) -> PartialGrad | None:
        """The gradients of some of the agents, if the problem computes them."""
        return partial_grad_of(self._task.problem)

    def count_gradient(self, k: int, sample: int) -> None:
        """Count a gradient at a sample; a second one at the same ξ uses no new sample."""
        share = self._active_share()
        self._counts["gradients"] += share
        if self._last_named.get(sample) != k:
            self._last_named[sample] = k
            self._counts["samples"] += share

    def full_grad(self, x: Tensor) -> Tensor:
        """∇F_i at each row."""
        if math.isinf(self._task.problem.epoch):
            raise ValueError(
                f"{type(self._task.problem).__name__} has endless samples (its data are a stream, or its network has "
                "dropout or running statistics), so an agent has no full gradient; choose a method that uses sample "
                "gradients only"
            )
        self._counts["full_gradients"] += self._active_share()
        return self._each(lambda cell, rows: evaluation(cell.problem, rows).grad, x)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step, row by row."""
        by_agent = isinstance(gamma, Tensor) and gamma.ndim > 1 and gamma.shape[-2] > 1
        psi = self._task.regularizer

        def step(cell: Cell, rows: Tensor) -> Tensor:
            return proximal_step(psi, rows, gamma[..., cell.rows, :] if by_agent else gamma)  # type: ignore[index]

        return self._each(step, x)

    def mix(self, *tensors: Tensor) -> Any:
        """The mixing polynomial applied to each tensor; running statistics travel with an iteration's first mixing."""
        if self.rests:
            return unpack(tensors)
        if not self._mixing_due:
            return unpack(self._mix(tensors))
        self._mixing_due = False
        return unpack(self._mix_with_statistics(tensors))

    @abstractmethod
    def _mix(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The mixing polynomial applied to each tensor, all of the same shape."""

    @abstractmethod
    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j."""

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """The rows of all agents."""

    @cached_property
    def degrees(self) -> Tensor:
        """The number of neighbours of each agent here, ``[agents here, 1]``."""
        here = np.asarray(self._task.network.degrees)[self.agents.start : self.agents.stop]
        return torch.from_numpy(here).to(self._task.problem.dtype).to(self._task.device).unsqueeze(-1)

    def evaluate(self, x: Tensor, buffers: Tensor | None = None) -> Evaluation:
        """Exact losses and gradients."""
        if self._running is None:
            shared = x.shape[-2] == 1
            return self._observed.evaluate(x) if self._observed and shared else evaluation(self._task.problem, x)
        if buffers is None:
            buffers = self._mean_buffers(self._running).expand(-1, x.shape[-2], -1)
        return self._running.evaluate(x, buffers)

    def scores(self, x: Tensor, buffers: Tensor | None = None) -> Mapping[str, Tensor]:
        """The problem's own measures."""
        if self._running is None:
            return self._observed.scores(x) if self._observed else scores(self._task.problem, x)
        return self._running.scores(x, self._mean_buffers(self._running)[:, 0] if buffers is None else buffers)

    @property
    def _observed(self) -> Observed | None:
        """A faster way to measure the problem; None in exact mode, because it sums in another order."""
        return None if self._exact else observed_of(self._task.problem)

    @property
    def buffers(self) -> Tensor | None:
        """The running statistics of the agents here ``[trials, agents here, s]``, if the problem has any."""
        return self.extra_rows.get(BUFFERS)

    def value(self, x: Tensor) -> Tensor:
        """Ψ of each row."""
        return value(self._task.regularizer, x)

    @property
    def separable(self) -> bool:
        """Whether Ψ is a sum over coordinates."""
        return is_separable(self._task.regularizer)

    def enter(self, k: int) -> Tensor | None:
        """Begin iteration k; return which agents here take part, ``[trials, agents here, 1]``, or None if all do."""
        self.rests = getattr(self._task.mixing, "rests", _never)(k)
        if self._compressed:
            self._compressed.enter()
        if self._late:
            self._late.enter()
        self._updates_due = self._running is not None
        self._mixing_due = self._running is not None and self._running.mixed_buffers > 0
        if self._weather is None:
            return None
        self._weather.enter(k)
        return self._weather.active_rows(self.agents, self._task.device) if self._weather.pauses else None

    def proceed(self, k: int) -> bool:
        """Return True, after saving the costs and extra rows in case iteration k is interrupted and rewound."""
        self._before = (k, dict(self._counts), dict(self._last_named), dict(self.extra_rows))
        return True

    def rewind(self, k: int) -> None:
        """Undo the costs counted for iteration k, and what it did to the extra rows."""
        if self._before is not None and self._before[0] == k:
            _, self._counts, self._last_named, self.extra_rows = self._before

    def counts(self) -> dict[str, float]:
        """What one agent has spent: samples, gradients, full gradients, rounds, vectors to each neighbour, bytes."""
        return {**self._counts, "bytes": _whole_if_possible(self._counts["bytes"] / (self.n * self._task.trials))}

    def restore(self, counts: Mapping[str, float]) -> None:
        """Set the counts; one that is missing, because an earlier version did not count it, is unknown from then on."""
        self._counts.update({name: _whole_if_possible(counts.get(name, math.nan)) for name in self._counts})
        sent = self._counts["bytes"] * self.n * self._task.trials  # `counts` has divided it
        self._counts["bytes"] = sent if math.isnan(sent) else round(sent)
        # Samples drawn to inspect a run are drawn again by the run itself, and counted then.
        self._last_named.clear()
        self.leave()

    def leave(self) -> None:
        """Leave the iteration: rows may still be mixed, as a method does in its init, but statistics do not change."""
        if self._compressed:
            self._compressed.leave()
        if self._late:
            self._late.leave()
        self.rests = self._updates_due = self._mixing_due = False

    def _grad_and_update(self, x: Tensor, k: int, sample: int) -> Tensor:
        """Sample gradients, the first of which in an iteration updates the running statistics.

        The rows that cells act on hold the parameters, followed by the statistics.
        """
        held, width = self.extra_rows[BUFFERS], x.shape[-1]

        def act(cell: Cell, rows: Tensor) -> Tensor:
            running = running_of(cell.problem)
            assert running is not None
            return torch.cat(
                running.grad_and_buffers(rows[..., :width], rows[..., width:], cell.samples(k, sample)), dim=-1
            )

        both = self._each(act, torch.cat([x, held], dim=-1))
        if self._updates_due:
            self._updates_due = False
            self.extra_rows[BUFFERS] = both[..., width:].clone()
        return both[..., :width].contiguous()

    def _mix_with_statistics(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Mix tensors with a share of the running statistics appended to each: no more messages, but longer ones."""
        # Equal shares, padded with zeros, because all tensors of a message have the same shape.
        assert self._running is not None
        held, mixed, width = self.extra_rows[BUFFERS], self._running.mixed_buffers, tensors[0].shape[-1]
        share = -(-mixed // len(tensors))
        padded = torch.nn.functional.pad(held[..., :mixed], (0, share * len(tensors) - mixed))
        pairs = zip(tensors, torch.split(padded, share, dim=-1), strict=True)
        longer = self._mix(tuple(torch.cat(pair, dim=-1) for pair in pairs))
        averages = torch.cat([each[..., width:] for each in longer], dim=-1)[..., :mixed]
        self.extra_rows[BUFFERS] = torch.cat([averages, held[..., mixed:]], dim=-1)
        return tuple(each[..., :width].contiguous() for each in longer)

    def _mean_buffers(self, running: Running) -> Tensor:
        """r̄ ``[trials, 1, s]``, computed from the rows of all agents: the same bits wherever they live."""
        return running.combine_buffers(self.gather(self.extra_rows[BUFFERS]))

    def _active_share(self) -> float:
        """The share of agents, over all trials, that take part in this iteration and so spend what is counted."""
        return self._weather.share if self._weather and self._weather.pauses else 1

    def _age(self, x: Tensor) -> Aged | None:
        """The rows of a round, with the rows of earlier iterations that may arrive instead, if messages may be late."""
        return self._late.take_all(x, self.extra_rows) if self._late else None

    def _count_messages(self, rounds: int, *vectors: Tensor, compressed: bool = True) -> int:
        """Count rounds in which each agent sends these vectors to its neighbours; return the number of the first.

        Bytes are those of the vectors alone, over the links that are up; `counts` divides them by agents and trials.
        """
        first, links = int(self._counts["rounds"]), rounds * self._links
        if self._weather:
            up = self._weather.links_up
            links = up(first) if rounds == 1 else sum(map(up, range(first, first + rounds)))
        self._counts["rounds"] += rounds
        self._counts["vectors"] += rounds * len(vectors)
        self._counts["bytes"] += 2 * links * sum(self._bytes_of(vector, compressed) for vector in vectors)
        return first

    def count_mixing(self, *vectors: Tensor) -> None:
        """Count the rounds in which the mixing protocol sends these vectors."""
        self._count_messages(self._rounds, *vectors)

    def count_sum(self, x: Tensor) -> None:
        """Count the round of a sum over neighbours."""
        self._count_messages(1, x, compressed=False)

    def draw(self, k: int, sample: int) -> Tensor:
        """The sample of iteration k for all trials and agents. Exact mode has several cells and cannot use this."""
        (cell,) = self._cells
        return cell.samples(k, sample)

    @property
    def mixing(self) -> Mixing:
        """The mixing protocol."""
        return self._task.mixing

    def _bytes_of(self, vector: Tensor, compressed: bool) -> int:
        """The bytes of a vector in a message."""
        width, compression = vector.shape[-1], getattr(self._task.mixing, "compression", None)
        if compression is None or not compressed:
            return width * vector.element_size()
        return packing.size(compression.compressor.parts(width, vector.dtype))

    def _each(self, act: Callable[[Cell, Tensor], Tensor], x: Tensor) -> Tensor:
        """Act on the rows of every cell."""
        if len(self._cells) == 1:
            return act(self._cells[0], x)
        # Copy the rows so that their memory layout is the same wherever the agent lives: matrix products depend on it.
        return torch.cat([act(cell, x[..., cell.rows, :].clone()) for cell in self._cells], dim=-2)


def _never(_k: int) -> bool:
    return False


def _whole_if_possible(count: float) -> float:
    return int(count) if float(count).is_integer() else count
