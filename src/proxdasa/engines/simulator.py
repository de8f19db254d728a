"""The simulator: all agents in this process, stacked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from proxdasa.contracts import Step
from proxdasa.engines.agents import Local
from proxdasa.engines.products import DenseProduct, Product, SparseProduct, adjacency, dense_pays

PARALLEL_FROM = 2**17
"""Elements of a state variable from which on a step is made by all threads (measured)."""


@final
class Simulator(Local):
    """All rows here: gradients stacked over trials and agents, mixing as one matrix product.

    Where it is faster, the m rounds of a mixing protocol are one product with the n × n matrix of its polynomial in W,
    made once. Rounds and vectors are counted as a network would see them.
    """

    def _prepare(self) -> None:
        self._product = self._mixer()

    def _mix(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(self._product(x) for x in tensors)

    def observe_neighbours(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j, uncounted."""
        return self._adjacency(x)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over agents, ``[trials, 1, d]``."""
        return x.mean(dim=-2, keepdim=True)

    def gather(self, x: Tensor) -> Tensor:
        """All rows are here already."""
        return x

    def collect(self, x: Tensor) -> Tensor:
        """All rows are here already."""
        return x

    def distribute(self, x: Tensor | None, like: Tensor) -> Tensor:  # noqa: ARG002
        """All rows live here."""
        assert x is not None
        return x

    @property
    def writes(self) -> bool:
        """Here."""
        return True

    def tell(self, reason: str) -> None:
        """There are no others."""

    def interruptible(self) -> AbstractContextManager[None]:
        """An interruption is an exception here."""
        return nullcontext()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Steps on small tensors take one thread: handing them to several costs more than it saves.

        On a busy machine it costs many times the step, because the threads wait for each other.
        """
        before = torch.get_num_threads()
        small = self._trials * self.n * self._problem.dim < PARALLEL_FROM
        torch.set_num_threads(1 if small else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def compiled(self, step: Step) -> Step:
        """The step with its passes over memory fused; it takes the compiler half a minute, and a C++ compiler."""
        self._cells = [
            cell._replace(draw=drawn.opaque()) for cell, drawn in zip(self._cells, self._samples, strict=True)
        ]
        # Rare, and a loop over all data, which would be unrolled.
        self.full_grad = torch.compiler.disable(self.full_grad)  # type: ignore[method-assign, no-untyped-call]
        for product in (self._product, self._adjacency):  # make their matrices, which the compiler need not see
            product(torch.zeros(self._trials, self.n, 1, dtype=self._problem.dtype))
        translated = torch.compile(step)
        from torch._dynamo import config  # noqa: PLC0415 - takes seconds to import

        settings: dict[str, Any] = {"trace_autograd_ops": True} if hasattr(config, "trace_autograd_ops") else {}

        def compiled(agents: Any, k: int, state: Any) -> Any:
            with config.patch(settings):  # or gradients would not be fused with what uses them
                return translated(agents, k, state)

        return compiled

    def _mixer(self) -> Product:
        W, rho, dtype, mixing = self._network.W, self._network.rho, self._problem.dtype, self._mixing
        if not dense_pays(W, self._rounds):
            apply = SparseProduct(W, dtype)
            return lambda x: mixing(apply, x, rho)
        # A polynomial of W is the polynomial of its eigenvalues, however many rounds it has.
        λ, Q = torch.linalg.eigh(torch.from_numpy(W.toarray()))
        p = mixing(lambda values: λ * values, torch.ones_like(λ), rho)
        return DenseProduct(((Q * p) @ Q.mT).to(dtype))

    @cached_property
    def _adjacency(self) -> Product:
        return SparseProduct(adjacency(self._network.W), self._problem.dtype)
