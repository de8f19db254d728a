"""The simulator: all agents in this process, stacked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from proxdasa.contracts import Evaluation, Mixing, Network, Problem, Regularizer, Step
from proxdasa.engines.products import Product, SparseProduct, dense_pays
from proxdasa.samples import Samples
from proxdasa.schedules import Number

PARALLEL_FROM = 2**17
"""Elements of a state variable from which on a step is made by all threads (measured)."""


class Simulator:
    """All rows here: gradients stacked over trials and agents, mixing as one matrix product.

    Where it is faster, the m rounds of a mixing protocol are one product with the n × n matrix of its polynomial in W,
    made once. Rounds and vectors are counted as a network would see them.
    """

    def __init__(
        self,
        problem: Problem,
        network: Network,
        regularizer: Regularizer,
        mixing: Mixing,
        trials: int,
        seed: int,
    ) -> None:
        self.n = network.n
        self._trials, self._elements = trials, trials * network.n * problem.dim
        self._problem, self._network, self._regularizer = problem, network, regularizer
        self._samples = Samples(problem, seed, trials, range(network.n))
        self._draw: Callable[[int, int], Tensor] = self._samples
        self._rounds = mixing.rounds_for(network.rho)
        self._mix = self._mixer(mixing)
        self._last_named: dict[int, int] = {}
        self._counts = {"samples": 0, "gradients": 0, "full_gradients": 0, "rounds": 0, "vectors": 0}

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """Sample gradients of all trials and agents at once."""
        self._counts["gradients"] += 1
        if self._last_named.get(sample) != k:  # evaluating again at the same ξ takes no new sample
            self._last_named[sample] = k
            self._counts["samples"] += 1
        return self._problem.grad(x, self._draw(k, sample))

    def full_grad(self, x: Tensor) -> Tensor:
        """∇F_i at each row."""
        if math.isinf(self._problem.epoch):
            raise ValueError(
                f"{type(self._problem).__name__} streams its samples, so an agent has no full gradient; "
                "choose a method that uses sample gradients only"
            )
        self._counts["full_gradients"] += 1
        return self._problem.evaluate(x).grad

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step, row by row."""
        return self._regularizer.prox(x, gamma)

    def mix(self, *tensors: Tensor) -> Any:
        """The mixing polynomial applied to each tensor."""
        self._send(self._rounds, len(tensors))
        mixed = tuple(self._mix(x) for x in tensors)
        return mixed if len(mixed) > 1 else mixed[0]

    @cached_property
    def degrees(self) -> Tensor:
        """Neighbours of each agent, ``[n, 1]``."""
        return torch.from_numpy(np.asarray(self._network.degrees)).to(self._problem.dtype).unsqueeze(-1)

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j."""
        self._send(1, 1)
        return self._adjacency(x)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over agents, ``[trials, 1, d]``."""
        return x.mean(dim=-2, keepdim=True)

    def gather(self, x: Tensor) -> Tensor:
        """All rows are here already."""
        return x

    def evaluate(self, x: Tensor) -> Evaluation:
        """Exact losses and gradients."""
        return self._problem.evaluate(x)

    def scores(self, x: Tensor) -> Mapping[str, Tensor]:
        """The problem's own measures."""
        return self._problem.scores(x)

    def value(self, x: Tensor) -> Tensor:
        """Ψ of each row."""
        return self._regularizer.value(x)

    def observe_neighbours(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j, uncounted."""
        return self._adjacency(x)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Steps on small tensors take one thread: handing them to several costs more than it saves.

        On a busy machine it costs many times the step, because the threads wait for each other.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(1 if self._elements < PARALLEL_FROM else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def compiled(self, step: Step) -> Step:
        """The step with its passes over memory fused; it takes the compiler half a minute, and a C++ compiler."""
        self._draw = self._samples.opaque()
        # Rare, and a loop over all data, which would be unrolled.
        self.full_grad = torch.compiler.disable(self.full_grad)  # type: ignore[method-assign, no-untyped-call]
        for product in (self._mix, self._adjacency):  # make their matrices, which the compiler need not see
            product(torch.zeros(self._trials, self.n, 1, dtype=self._problem.dtype))
        translated = torch.compile(step)
        from torch._dynamo import config  # noqa: PLC0415 - takes seconds to import

        settings: dict[str, Any] = {"trace_autograd_ops": True} if hasattr(config, "trace_autograd_ops") else {}

        def compiled(agents: Any, k: int, state: Any) -> Any:
            with config.patch(settings):  # or gradients would not be fused with what uses them
                return translated(agents, k, state)

        return compiled

    def counts(self) -> dict[str, int]:
        """What one agent has spent: samples, gradients, full gradients, rounds, and vectors sent to each neighbour."""
        return dict(self._counts)

    def _send(self, rounds: int, vectors: int) -> None:
        self._counts["rounds"] += rounds
        self._counts["vectors"] += rounds * vectors

    def _mixer(self, mixing: Mixing) -> Product:
        W, rho, dtype = self._network.W, self._network.rho, self._problem.dtype
        if not dense_pays(W, self._rounds):
            apply = SparseProduct(W, dtype)
            return lambda x: mixing(apply, x, rho)
        # A polynomial of W is the polynomial of its eigenvalues, however many rounds it has.
        λ, Q = torch.linalg.eigh(torch.from_numpy(W.toarray()))
        p = mixing(lambda values: λ * values, torch.ones_like(λ), rho)
        polynomial = ((Q * p) @ Q.mT).to(dtype)
        stacked = polynomial.expand(self._trials, -1, -1)  # bmm spares the bookkeeping of a broadcasting matmul
        return lambda x: torch.bmm(stacked, x)

    @cached_property
    def _adjacency(self) -> Product:
        graph = csr_array(self._network.W, copy=True)
        graph.setdiag(0)
        graph.eliminate_zeros()
        graph.data[:] = 1.0
        return SparseProduct(graph, self._problem.dtype)
