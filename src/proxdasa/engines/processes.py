"""Agents in many processes: each holds the rows of a block of agents and exchanges messages with neighbours only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch
from torch import Tensor

from proxdasa.contracts import Block, NotCompilableError
from proxdasa.engines.agents import LocalAgents
from proxdasa.engines.launch import signals
from proxdasa.engines.messages.halo import blocks
from proxdasa.engines.messages.neighbour_copies import NeighbourCopies
from proxdasa.engines.messages.neighbourhood import Neighbourhood
from proxdasa.engines.messages.transport import Transport
from proxdasa.engines.tasks import Task
from proxdasa.thread_counts import threads


@final
class Processes(LocalAgents):
    """The agents of one process among several; each process has an engine like this."""

    def __init__(self, task: Task, transport: Transport, exact: bool = False) -> None:
        if transport.device.type != "cpu":
            raise ValueError(
                f"run computes in main memory, but these processes were connected with device = {transport.device}; "
                "that is for models on GPUs, in proxdasa.optim"
            )
        self._transport = transport
        super().__init__(task, blocks(task.network.n, transport.size)[transport.rank], exact)
        self._neighbourhood = Neighbourhood(
            task.network, task.mixing, transport, task.problem.dtype, exact, weather=self._weather
        )
        if self._compressed:
            compressor = self._compressed.compressor
            self._compressed.weigh = NeighbourCopies(self._neighbourhood, compressor, self._compressed.draw).weigh
        # These use no state of the engine.
        self.broadcast, self.total = self._neighbourhood.broadcast, self._neighbourhood.sum
        self.ask_to_stop = self._neighbourhood.ask_to_stop

    def _mix(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The mixing polynomial applied to each tensor, by messages."""
        first = self._count_messages(self._rounds, *tensors)
        if self._compressed:
            return self._compressed.mix(tensors, self.extra_rows, first)
        return self._neighbourhood.mix(tensors, first, self._age if self._late else None)

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j; an agent's own row stands in for one that is missing."""
        if self.rests:
            return self.degrees * x
        first = self._count_messages(1, x, compressed=False)
        return self._neighbourhood.neighbour_sum(x, first, self._age if self._late else None)

    def observe_neighbours(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j, uncounted."""
        return self._neighbourhood.neighbour_sum(x)

    def mean(self, x: Tensor) -> Tensor:
        """The mean over agents, ``[trials, 1, d]``; a single row is the mean over the agents here already."""
        return self._neighbourhood.sum(x.mean(dim=-2, keepdim=True) * len(self.agents)) / self.n

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all agents, in every process."""
        # The rows of others are zero here, so a sum puts all rows together without rounding any.
        rows = x.new_zeros(x.shape[0], self.n, x.shape[2])
        rows[:, self.agents.start : self.agents.stop] = x
        return self._neighbourhood.sum(rows)

    def collect(self, x: Tensor) -> Tensor:
        """The rows of all agents, in process 0."""
        if self._transport.rank:
            self._neighbourhood.exchange({0: x.contiguous()}, {})
            return x
        parts = {peer: x.new_empty(x.shape[0], len(part), x.shape[2]) for peer, part in self._neighbourhood.others()}
        self._neighbourhood.exchange({}, parts)
        return torch.cat([x, *parts.values()], dim=1)

    def distribute(self, x: Tensor | None, like: Tensor) -> Tensor:
        """The rows of the agents here; process 0 has those of all agents and sends each process its own."""
        here = torch.empty_like(like, memory_format=torch.contiguous_format)
        if self._transport.rank:
            self._neighbourhood.exchange({}, {0: here})
            return here
        assert x is not None
        rows = {peer: x[:, part.start : part.stop].contiguous() for peer, part in self._neighbourhood.others()}
        self._neighbourhood.exchange(rows, {})
        return x[:, : len(self.agents)].clone()

    @property
    def writes(self) -> bool:
        """True in process 0."""
        return self._transport.rank == 0

    @property
    def epoch(self) -> float:
        """Samples in one pass over an agent's data, on average over all agents; all processes must ask together."""
        here = torch.tensor([self._task.problem.epoch * len(self.agents)], dtype=torch.float64)
        return float(self._neighbourhood.sum(here)) / self.n

    def agree(self, claims: Callable[[], Mapping[str, str]]) -> None:
        """Compare with the other processes what all must have in common, then join the parts of the problem.

        The comparison comes first, because processes with different problems would not send the same messages.
        """
        self._neighbourhood.agree(claims())
        here = self._task.problem
        join = getattr(here, "join", None)
        if join is not None and (joined := join(self._neighbourhood)) is not here:
            self._assign(self._task._replace(problem=joined))

    def proceed(self, k: int) -> bool:
        """Whether to run iteration k; false once the processes have agreed to stop before it."""
        return super().proceed(k) and self._neighbourhood.proceed(k)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Time the steps; in exact mode use one thread: the order of a sum may depend on the number of threads."""
        began, spent = time.perf_counter(), self._neighbourhood.spent
        elsewhere = spent["communication"] + spent["waiting"]
        try:
            with threads(1) if self._exact else nullcontext():
                yield
        finally:
            elsewhere = spent["communication"] + spent["waiting"] - elsewhere
            spent["computation"] += time.perf_counter() - began - elsewhere

    def fail(self, reason: str) -> None:
        """Let the other processes know why this one stops."""
        self._transport.fail(reason)

    def interruptible(self) -> AbstractContextManager[None]:
        """Signals ask all processes to stop; a second one of the same kind ends this process at once."""
        return signals.handle(lambda _: self.ask_to_stop(), once=True)

    def compile(self, algorithm: Any, state: Any, size: int, first: int) -> Block:  # noqa: ARG002
        """Refuse: compiled code sums in another order, and messages would interrupt a compiled step anyway."""
        raise NotCompilableError("steps between processes and in exact mode are not compiled")

    def sliced(self, algorithm: Any) -> None:
        """None: messages and exact sums need whole rows."""

    def counts(self) -> dict[str, float]:
        """What an agent has spent; seconds are means over processes, bytes on the wire means over agents."""
        spent, size = self._neighbourhood.spent, self._transport.size
        means = self._neighbourhood.sum(torch.tensor([*spent.values()], dtype=torch.float64)) / size
        shares = dict(zip(spent, means.tolist(), strict=True))
        # The mean over processes times their number is the total, which is then divided among the agents.
        shares["wire_bytes"] *= size / self.n
        return {**super().counts(), **shares}

    def restore(self, counts: Mapping[str, float]) -> None:
        """Set the counts."""
        super().restore(counts)
        shares = {name: float(counts.get(name, 0.0)) for name in self._neighbourhood.spent}
        shares["wire_bytes"] *= self.n / self._transport.size
        self._neighbourhood.spent.update(shares)
