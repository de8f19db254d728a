"""The pooled risk of examples that lie at sites of different sizes, with exact gradients in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from proxdasa.contracts import Evaluation
from proxdasa.problems import Loss
from proxdasa.problems.stacked import Forward, chain_forward

VALUES = 2**22
"""Inputs, in numbers, of the trials that are computed in one batch."""


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """log(1 + exp(t)) − y t of each example, for outputs t ``[N, 1]`` and classes y = 0 or 1."""
    return nn.functional.softplus(outputs[:, 0]) - targets * outputs[:, 0]


def softmax(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross entropy of each example, for outputs ``[N, classes]`` and class numbers."""
    return nn.functional.cross_entropy(outputs, targets.long(), reduction="none")


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """½ (t − y)² of each example, for outputs t ``[N, 1]``."""
    return 0.5 * (outputs[:, 0] - targets).square()


@dataclass(frozen=True, eq=False)
class PooledRisk:
    """The loss of all examples, as the mean over agents of their shares.

        F_i(x) = (n/N) Σ_{j at site i} ℓ(f(a_j; x), b_j),      (1/n) Σ_i F_i(x) = (1/N) Σ_j ℓ(f(a_j; x), b_j)

    A gradient uses all examples of a site, so there is no noise. Sites are padded to one size, with weight 0.
    """

    module: nn.Sequential
    """The network at its starting point."""
    inputs: Tensor
    """``[n, m, features]``."""
    targets: Tensor
    """``[n, m]``."""
    weights: Tensor
    """``[n, m]``: n/N for an example, 0 for padding."""
    loss: Loss

    @staticmethod
    def of(module: nn.Sequential, x: Tensor, y: Tensor, sites: Sequence[Tensor], loss: Loss) -> PooledRisk:
        """The risk of a network on examples x ``[N, features]``, y ``[N]``, for the row numbers of each site."""
        n, m, N = len(sites), max(map(len, sites)), len(x)
        inputs, targets, weights = x.new_zeros(n, m, x.shape[1]), x.new_zeros(n, m), x.new_zeros(n, m)
        for site, rows in enumerate(sites):
            inputs[site, : len(rows)], targets[site, : len(rows)] = x[rows], y[rows]
            weights[site, : len(rows)] = n / N
        return PooledRisk(module, inputs, targets, weights, loss)

    @property
    def agents(self) -> int:
        """The number n of sites."""
        return len(self.inputs)

    @property
    def dim(self) -> int:
        """The number d of parameters."""
        return sum(shape.numel() for shape in self._shapes.values())

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the examples."""
        return self.inputs.dtype

    @property
    def epoch(self) -> float:
        """A gradient is a pass over the data."""
        return 1.0

    @property
    def words(self) -> int:
        """Gradients are exact and take no random words."""
        return 0

    def to(self, dtype: torch.dtype) -> PooledRisk:
        """The same risk in another floating-point type."""
        inputs, targets, weights = (part.to(dtype) for part in (self.inputs, self.targets, self.weights))
        return replace(self, inputs=inputs, targets=targets, weights=weights)

    def restrict(self, agents: range) -> PooledRisk:
        """The shares of some of the sites."""
        own = slice(agents.start, agents.stop)
        return replace(self, inputs=self.inputs[own], targets=self.targets[own], weights=self.weights[own])

    def start(self, seed: int, trials: int) -> Tensor:  # noqa: ARG002
        """The parameters of the module."""
        return nn.utils.parameters_to_vector(self.module.parameters()).detach().to(self.dtype)

    def sample(self, words: Tensor) -> Tensor:
        """Nothing."""
        return words

    def grad(self, x: Tensor, sample: Tensor) -> Tensor:  # noqa: ARG002
        """The exact gradients."""
        return self.evaluate(x).grad

    def evaluate(self, x: Tensor) -> Evaluation:
        """The sites' shares of the risk and their gradients."""
        x, most = x.expand(len(x), self.agents, self.dim), max(1, VALUES // self.inputs.numel())
        if len(x) <= most:
            return self._evaluate_batch(x)
        losses, grads = zip(*map(self._evaluate_batch, torch.split(x, most)), strict=True)
        return Evaluation(torch.cat(losses), torch.cat(grads))

    def scores(self, x: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """No scores besides the loss."""
        return {}

    def parameters(self, x: Tensor) -> dict[str, Tensor]:
        """Views of the rows x ``[rows, d]`` as parameters ``[rows, *shape]``."""
        parts = torch.split(x, [shape.numel() for shape in self._shapes.values()], dim=1)
        return {name: part.unflatten(1, shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}  # type: ignore[no-untyped-call]

    def _evaluate_batch(self, x: Tensor) -> Evaluation:
        trials, n = x.shape[:2]
        inputs, targets, weights = (
            part.expand(trials, *part.shape).flatten(0, 1) for part in (self.inputs, self.targets, self.weights)
        )
        with torch.enable_grad():
            leaves = {name: view.detach().requires_grad_() for name, view in self.parameters(x.flatten(0, 1)).items()}
            outputs = self._forward(leaves, inputs)
            each = self.loss(outputs.flatten(0, 1), targets.flatten(0, 1)).view_as(weights)
            losses = (each * weights).sum(1)
            grads = torch.autograd.grad(losses.sum(), list(leaves.values()))
        grad = torch.cat([part.flatten(1) for part in grads], dim=1)
        return Evaluation(losses.detach().view(trials, n), grad.view(x.shape))

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        return {name: values.shape for name, values in self.module.named_parameters()}

    @cached_property
    def _forward(self) -> Forward:
        return chain_forward(self.module, {})
