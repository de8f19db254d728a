"""Agents in many processes: each holds the rows of a block of agents and exchanges messages with neighbours only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import final

import torch
from torch import Tensor

from proxdasa.contracts import Mixing, Network, Problem, Regularizer, Step
from proxdasa.engines.agents import Local
from proxdasa.engines.launch import signals
from proxdasa.engines.messages.neighbourhood import Neighbourhood
from proxdasa.engines.messages.transport import Transport


@final
class Processes(Local):
    """The agents of one process among several."""

    def __init__(
        self,
        problem: Problem,
        network: Network,
        regularizer: Regularizer,
        mixing: Mixing,
        trials: int,
        seed: int,
        transport: Transport,
        exact: bool = False,
    ) -> None:
        if transport.device.type != "cpu":
            raise ValueError(
                f"run computes in main memory, but these processes were connected with device = {transport.device}; "
                "that is for models on GPUs, in proxdasa.optim"
            )
        self._transport, self._exact = transport, exact
        self._neighbourhood = Neighbourhood(network, mixing, transport, problem.dtype, exact)
        here = self._neighbourhood.agents
        super().__init__(problem, network, regularizer, mixing, trials, seed, here, exact)

    def _mix(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return self._neighbourhood.mix(tensors)

    def observe_neighbours(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j, uncounted."""
        return self._neighbourhood.neighbour_sum(x)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over agents, ``[trials, 1, d]``; a single row is the mean over the agents here already."""
        return self._neighbourhood.sum(x.mean(dim=-2, keepdim=True) * len(self.agents)) / self.n

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all agents, everywhere."""
        rows = x.new_zeros(x.shape[0], self.n, x.shape[2])
        rows[:, self.agents.start : self.agents.stop] = x
        return self._neighbourhood.sum(rows)

    def collect(self, x: Tensor) -> Tensor:
        """The rows of all agents, in process 0."""
        if self._transport.rank:
            self._neighbourhood.exchange({0: x.contiguous()}, {})
            return x
        others = {peer: part for peer, part in enumerate(self._neighbourhood.parts) if peer}
        parts = {peer: x.new_empty(x.shape[0], len(part), x.shape[2]) for peer, part in others.items()}
        self._neighbourhood.exchange({}, parts)
        return torch.cat([x, *parts.values()], dim=1)

    def distribute(self, x: Tensor | None, like: Tensor) -> Tensor:
        """The rows that live here, of those of all agents in process 0."""
        here = torch.empty_like(like)
        if self._transport.rank:
            self._neighbourhood.exchange({}, {0: here})
            return here
        assert x is not None
        others = {peer: part for peer, part in enumerate(self._neighbourhood.parts) if peer}
        sent = {peer: x[:, part.start : part.stop].contiguous() for peer, part in others.items()}
        self._neighbourhood.exchange(sent, {})
        return x[:, : len(self.agents)].clone()

    @property
    def writes(self) -> bool:
        """In process 0."""
        return self._transport.rank == 0

    def proceed(self, k: int) -> bool:
        """Whether iteration k is to be made: false from the iteration on that the processes have agreed to stop at."""
        return super().proceed(k) and self._neighbourhood.proceed(k)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Timed; in exact mode with one thread: the order of a sum may depend on how many there are."""
        before, began, spent = torch.get_num_threads(), time.perf_counter(), self._neighbourhood.spent
        elsewhere = spent["communication"] + spent["waiting"]
        torch.set_num_threads(1 if self._exact else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)
            elsewhere = spent["communication"] + spent["waiting"] - elsewhere
            spent["computation"] += time.perf_counter() - began - elsewhere

    def tell(self, reason: str) -> None:
        """Tell the other processes why this one stops."""
        self._transport.fail(reason)

    def interruptible(self) -> AbstractContextManager[None]:
        """Signals ask everybody to stop; a second one of the same kind ends this process at once."""
        return signals.handled(lambda _: self.ask_to_stop(), once=True)

    def ask_to_stop(self) -> None:
        """Stop, all before the same iteration."""
        self._neighbourhood.ask_to_stop()

    def compiled(self, step: Step) -> Step:  # noqa: ARG002
        """Not here."""
        raise ValueError("compile is for runs in one process without exact mode; leave one of them out")

    def counts(self) -> dict[str, float]:
        """What an agent has spent; bytes and seconds are means over the processes, bytes for each of its agents."""
        spent, size = self._neighbourhood.spent, self._transport.size
        means = self._neighbourhood.sum(torch.tensor([*spent.values()], dtype=torch.float64)) / size
        shares = dict(zip(spent, means.tolist(), strict=True))
        shares["bytes"] *= size / self.n
        return {**self._counts, **shares}

    def restore(self, counts: Mapping[str, float]) -> None:
        """Go on counting from here."""
        super().restore(counts)
        shares = {name: float(counts.get(name, 0.0)) for name in self._neighbourhood.spent}
        shares["bytes"] *= self.n / self._transport.size
        self._neighbourhood.spent.update(shares)

    def agree(self, what: Mapping[str, str]) -> None:
        """Compare with the others what all must have alike."""
        self._neighbourhood.agree(what)
