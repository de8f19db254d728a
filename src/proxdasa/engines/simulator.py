"""The simulator: all agents in this process, stacked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from proxdasa.conditions import Weather
from proxdasa.contracts import Block, NotCompilableError
from proxdasa.devices import CPU, wait
from proxdasa.engines.agents import LocalAgents
from proxdasa.engines.compiled import compile_block
from proxdasa.engines.fused_products import fused_product
from proxdasa.engines.products import DenseProduct, Product, SparseProduct, adjacency, dense_pays, product
from proxdasa.engines.recorded_steps import Verbs
from proxdasa.engines.sliced_agents import SlicedAgents, in_slices
from proxdasa.engines.tasks import Task
from proxdasa.engines.varying_products import VaryingProduct
from proxdasa.thread_counts import threads

PARALLEL_FROM = 2**17
"""The number of elements of a state variable from which several threads pay off (measured)."""
CACHED = 2**17
"""The number of elements of a state variable up to which the rows of a compiled block fit the cache (measured)."""
FUSED_ROUNDS = 2
"""The most rounds of mixing for which fused sums are faster than one product with a dense matrix."""


@final
class Simulator(LocalAgents):
    """All rows here: gradients stacked over trials and agents, mixing as one matrix product.

    Where it is faster, the m rounds of a mixing protocol are one product with the n × n matrix of its polynomial in W,
    computed once. Rounds and vectors are counted as a network would see them.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task, range(task.network.n))
        self._together = task.trials  # trials that are computed in one call
        self._product = _mixer(task)  # built now, so that the first step's time does not include it
        if self._compressed:
            weights = product(task.network.W, task.problem.dtype, task.device)
            self._compressed.weigh = lambda sent: weights(sent.copies)
        if self._weather is not None:
            self._varying = self._varying_product(task.network.W, task.network.rounds)

    def _varying_product(self, matrix: csr_array, rounds: Sequence[csr_array] = ()) -> VaryingProduct:
        task, everyone = self._task, np.arange(self.n)
        edges, dtype = task.network.edges, task.problem.dtype
        return VaryingProduct(matrix, self.agents, everyone, edges, dtype, False, rounds, task.device)

    @cached_property
    def _varying_graph(self) -> VaryingProduct:  # few methods need it
        return self._varying_product(adjacency(self._task.network.W))

    def _mix(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The mixing polynomial applied to each tensor."""
        # Rounds are numbered by their count so far, which checkpoints keep: a resumed run meets the same events.
        first, weather = self._count_messages(self._rounds, *tensors), self._weather
        if self._compressed:
            return self._compressed.mix(tensors, self.extra_rows, first)
        if weather is None:
            return tuple(self._product(x) for x in tensors)
        # All tensors travel in the same messages, so they meet the same events.
        if self._rounds == 1 and not weather.disturbs_messages:
            return self._mix_once(tensors, weather, first)
        rounds = itertools.count(first)
        stacked = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        mixed = self._task.mixing(
            lambda rows: self._varying.in_weather(self._age(rows) or rows, weather, next(rounds)),
            stacked,
            self._task.network.rho,
        )
        return torch.split(mixed, len(tensors[0]))

    def _mix_once(self, tensors: tuple[Tensor, ...], weather: Weather, number: int) -> tuple[Tensor, ...]:
        """Mix in one round, without stacking the tensors, which would copy them."""
        mixing, rho, late, varying = self._task.mixing, self._task.network.rho, self._late, self._varying
        disturbs = weather.disturbs_sums
        if not (late or disturbs):
            on_time = varying.at(weather, number)
            return tuple([mixing(on_time, x, rho) for x in tensors])
        made: dict[int, Product] = {}

        def apply(rows: Tensor) -> Tensor:
            aged = late.take(rows, self.extra_rows, len(mixed)) if late else None
            newest = aged.newest if aged else -1
            if newest not in made:  # usually once for all tensors
                made[newest] = varying.at_ages(weather, number, aged) if aged else varying.at(weather, number)
            product = made[newest](aged.table if aged else rows)
            return varying.sum_noise.add(product, weather, number, len(mixed)) if disturbs else product

        mixed: list[Tensor] = []
        for x in tensors:
            mixed.append(mixing(apply, x, rho))  # noqa: PERF401 - apply counts them
        if late:
            late.go_on(tensors[0], self.extra_rows)
        return tuple(mixed)

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j; an agent's own row stands in for one that is missing."""
        if self.rests:
            return self.degrees * x
        first = self._count_messages(1, x, compressed=False)
        if self._weather is None:
            return self._adjacency(x)
        return self._varying_graph.in_weather(self._age(x) or x, self._weather, first)

    def observe_neighbours(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j, uncounted."""
        return self._adjacency(x)

    def mean(self, x: Tensor) -> Tensor:
        """The mean over agents, ``[trials, 1, d]``."""
        return x.mean(dim=-2, keepdim=True)

    def gather(self, x: Tensor) -> Tensor:
        """All rows are here already."""
        return x

    def collect(self, x: Tensor) -> Tensor:
        """All rows, on the host."""
        return x.cpu()

    def distribute(self, x: Tensor | None, like: Tensor) -> Tensor:
        """All rows, on the device where they live."""
        assert x is not None
        return x.to(like.device)

    @property
    def writes(self) -> bool:
        """True: there is no other process."""
        return True

    @property
    def epoch(self) -> float:
        """Samples in one pass over an agent's data."""
        return self._task.problem.epoch

    def agree(self, claims: Callable[[], Mapping[str, str]]) -> None:
        """Do nothing: there is no other process."""

    def broadcast(self, value: Any) -> Any:
        """The value itself: there is no other process."""
        return value

    def total(self, x: Tensor) -> Tensor:
        """The tensor itself: there is no other process."""
        return x

    def fail(self, reason: str) -> None:
        """Do nothing: there is no other process."""

    def interruptible(self) -> AbstractContextManager[None]:
        """Do nothing: in a single process an interruption is an exception."""
        return nullcontext()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Run steps on small tensors in one thread: handing them to several costs more than it saves.

        On a busy machine it costs many times as much as the step, because the threads wait for each other.
        """
        small = self._together * self.n * self._task.problem.dim < PARALLEL_FROM
        with threads(1) if small else nullcontext():
            yield
            wait(self._task.device)  # so that measured times cover all of the steps' work

    def compile(self, algorithm: Any, state: Any, size: int, first: int) -> Block:
        """A block of iterations through torch's compiler, which fuses their passes over memory.

        Compiling needs a C++ compiler and takes some ten seconds, or less if the code of an earlier run is cached on
        disk.
        """
        if self._weather is not None or self._compressed or self._running is not None:
            raise NotCompilableError("conditions, compressed messages and running statistics change from step to step")
        trials, width = self._task.trials, self.n * self._task.problem.dim
        self._together = group_size(trials, width)
        with self.stepping():
            try:
                block = compile_block(self, self._verbs, algorithm, state, size, self._together, first)
            except NotCompilableError:
                self._together = trials
                raise
        self._together = block.group
        return block

    def sliced(self, algorithm: Any) -> SlicedAgents | None:
        """The agents for steps in slices, unless the state is small or something needs all coordinates."""
        task = self._task
        varies = self._weather is not None or self._compressed or self._running is not None
        sizes = task.trials * self.n, task.problem.dim
        if varies or task.device != CPU or not in_slices(algorithm, task.regularizer, *sizes):
            return None
        verbs = Verbs(task.problem.grad, task.regularizer.prox, self._product, self._adjacency, self.degrees)
        return SlicedAgents(self, verbs, task.trials)

    def _verbs(self, trials: int) -> Verbs:
        """The methods of the agents for this many trials, as functions that torch's compiler can trace."""
        task, rounds = self._task, self._rounds
        W, rho, dtype, mixing = task.network.W, task.network.rho, task.problem.dtype, task.mixing
        mix, total = self._product, self._adjacency
        fused = fused_product(W, dtype)
        if fused and (rounds <= FUSED_ROUNDS or not dense_pays(W, rounds)):
            mix = lambda x: mixing(fused, x, rho)  # noqa: E731
        neighbours = fused_product(adjacency(W), dtype) or total
        for product_ in (mix, neighbours):  # build their matrices before anything is recorded
            product_(torch.zeros(trials, self.n, 1, dtype=dtype))
        return Verbs(task.problem.grad, task.regularizer.prox, mix, neighbours, self.degrees)

    @cached_property
    def _adjacency(self) -> Product:
        return SparseProduct(adjacency(self._task.network.W), self._task.problem.dtype)


def group_size(trials: int, width: int) -> int:
    """How many trials a call of compiled code computes: as many as fit the cache, and the same number in every call."""
    return max(g for g in range(1, trials + 1) if trials % g == 0 and (g == 1 or g * width <= CACHED))


def _mixer(task: Task) -> Product:
    W, rho, dtype, mixing = task.network.W, task.network.rho, task.problem.dtype, task.mixing
    if not dense_pays(W, mixing.rounds_for(rho)):
        apply = SparseProduct(W, dtype)
        return lambda x: mixing(apply, x, rho)
    # A polynomial of W is the polynomial of its eigenvalues, however many rounds it has.
    λ, Q = torch.linalg.eigh(torch.from_numpy(W.toarray()))
    p = mixing(lambda values: λ * values, torch.ones_like(λ), rho)
    return DenseProduct(((Q * p) @ Q.mT).to(dtype).to(task.device))
