"""Measuring perceptrons on many examples that all of them share, faster than with stacked copies.

One network at a time, so that every product is one of two plain matrices and all values of a chunk stay in the cache.
If most inputs are 0, as in one-hot data, the first layer adds up the columns of its weights that belong to the other
inputs, and so does its gradient (`SparseRows`): the zeros cost nothing. Such data often contain the same example many
times, which is computed once and weighted by its count (a fifth of a9a's repeat others). Sums are taken in another
order, so results agree with those of `Supervised.evaluate` and `Supervised.scores` up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxdasa.contracts import Evaluation
from proxdasa.problems.copies import Copies
from proxdasa.problems.losses import Loss, cross_entropy
from proxdasa.problems.sparse_rows import SparseRows
from proxdasa.problems.stacked import ELEMENTWISE

CHUNK = 2**19
"""Values that the widest layer of one network computes at a time (measured: with fewer, the calls cost more than
what they compute; with more, the values do not stay in the cache)."""
MANY = 2**18
"""The values of the widest layer, for all examples, from which this pays off; with fewer, stacked copies are faster."""
SPARSE = 0.25
"""The share of inputs that are not 0 up to which sums of columns are faster than a product (measured)."""
PIECE = 2**22
"""Bytes of examples that are compared at a time to find those that repeat others."""
NARROW = 16
"""Outputs of a layer below which its product is computed as a wide matrix: W hᵀ rather than h Wᵀ."""


class Examples(NamedTuple):
    """Inputs ``[N, inputs]`` and targets."""

    inputs: Tensor
    targets: Tensor
    rows: Tensor | None = None
    """The examples that count, by default all."""
    weights: Tensor | None = None
    """The weights of those, by default 1."""

    def merge(self) -> Examples:
        """The examples without repetitions, whose weights are added up, if the inputs are sparse."""
        inputs, targets = self.inputs, self.targets
        rows = torch.arange(len(inputs), device=inputs.device) if self.rows is None else self.rows
        weights = inputs.new_ones(len(rows)) if self.weights is None else self.weights
        if not _is_sparse(inputs):
            return Examples(inputs, targets, rows, weights)
        step = max(1, PIECE * len(inputs) // (inputs.nbytes + targets.nbytes))
        digests = np.concatenate([_digests(inputs[some], targets[some]) for some in torch.split(rows, step)])
        _, first, names = np.unique(digests, return_index=True, return_inverse=True)
        order = np.argsort(first)  # in order of appearance, so that results do not depend on how bytes sort
        total = torch.from_numpy(np.bincount(names, weights=weights.cpu().double().numpy())[order])
        kept = torch.from_numpy(first[order]).to(rows.device)
        return Examples(inputs, targets, rows[kept], total.to(weights))


class Chunk(NamedTuple):
    """Some of the examples."""

    rows: Tensor
    sparse: SparseRows | None
    """The inputs, if they are sparse."""
    targets: Tensor
    weights: Tensor
    wanted: Tensor | None
    """For the cross entropy of a few classes, the weights at the classes of the examples ``[classes, N]``: sums over
    classes are then sums of long vectors, and need no autograd."""


@dataclass(frozen=True, eq=False)
class Perceptrons:
    """Evaluation and scores of perceptrons at points that all agents share."""

    layers: Sequence[nn.Module]
    loss: Loss
    training: Examples
    testing: Examples | None
    classes: int | None

    @staticmethod
    def of(copies: Copies, training: Examples, testing: Examples | None, classes: int | None) -> Perceptrons | None:
        """For these examples; None unless the copies are perceptrons and the examples many."""
        inputs = training.inputs
        if inputs.ndim != 2 or not inputs.is_floating_point() or not _is_perceptron(copies):
            return None
        found = Perceptrons(list(cast("nn.Sequential", copies.module)), copies.loss, training, testing, classes)
        if len(inputs) * found._widest < MANY:
            return None
        _ = found._training_chunks, found._testing_chunks  # now, so that processes forked later share them
        return found

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Evaluation:
        """The weighted loss ``[trials, 1]`` and its gradient ``[trials, 1, d]`` at the points x ``[trials, 1, d]``."""
        losses, grads = x.new_zeros(len(x)), torch.zeros_like(x[:, 0])
        networks = [_Network(self.layers, row, grad) for row, grad in zip(x[:, 0], grads, strict=True)]
        for chunk in self._training_chunks:
            inputs = chunk.sparse or self.training.inputs[chunk.rows]
            for row, network in enumerate(networks):
                loss, slope = self._loss_and_slope(network.forward(inputs), chunk)
                network.backward(slope)
                losses[row] += loss
        for network in networks:
            network.finish()
        return Evaluation(losses.unsqueeze(-1), grads.unsqueeze(-2))

    @torch.no_grad()
    def scores(self, x: Tensor) -> dict[str, Tensor]:
        """The loss on the test examples, and for classes the share predicted correctly, at x ``[trials, d]``."""
        if self.testing is None:
            return {}
        losses, right, total = x.new_zeros(len(x)), x.new_zeros(len(x)), len(self.testing.targets)
        networks, classified = [_Network(self.layers, row) for row in x], False
        for chunk in self._testing_chunks:
            inputs = chunk.sparse or self.testing.inputs[chunk.rows]
            for row, network in enumerate(networks):
                outputs = network.forward(inputs)
                losses[row] += self._loss(outputs, chunk)
                classified = self.classes is not None and outputs.shape[-1] >= self.classes
                if classified:
                    right[row] += (outputs.contiguous().argmax(-1) == chunk.targets).to(x.dtype) @ chunk.weights
        return {"test_loss": losses / total} | ({"accuracy": right / total} if classified else {})

    def _loss_and_slope(self, outputs: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """The weighted loss of a chunk and its gradient in the outputs, which is w (softmax − wanted) for classes."""
        if chunk.wanted is None:
            outputs.requires_grad_()
            with torch.enable_grad():
                loss = self._loss(outputs, chunk)
                (slope,) = torch.autograd.grad(loss, outputs)
            return loss.detach(), slope
        logs = outputs.mT.log_softmax(0)
        loss = -torch.dot(logs.view(-1), chunk.wanted.view(-1))
        return loss, logs.exp_().mul_(chunk.weights).sub_(chunk.wanted).mT

    def _loss(self, outputs: Tensor, chunk: Chunk) -> Tensor:
        """The weighted loss of a chunk."""
        if chunk.wanted is None:
            inputs = outputs.clone(memory_format=torch.contiguous_format)
            return self.loss(inputs, chunk.targets).flatten() @ chunk.weights
        return -torch.dot(outputs.mT.log_softmax(0).view(-1), chunk.wanted.view(-1))

    def _chunks(self, examples: Examples) -> list[Chunk]:
        """The examples in chunks, each sparse or not."""
        inputs, targets, rows, weights = examples.merge()
        assert rows is not None
        assert weights is not None
        classes = cast("nn.Linear", self.layers[-1]).out_features
        few = self.loss is cross_entropy and targets.ndim == 1 and classes < NARROW
        made, size = [], max(1, CHUNK // self._widest)
        for some, own in zip(torch.split(rows, size), torch.split(weights, size), strict=True):
            wanted = _wanted(targets[some], own, classes) if few else None
            made.append(Chunk(some, _sparse_rows(inputs[some]), targets[some], own, wanted))
        return made

    @property
    def _widest(self) -> int:
        return max(layer.out_features for layer in self.layers if isinstance(layer, nn.Linear))

    @cached_property
    def _training_chunks(self) -> list[Chunk]:
        return self._chunks(self.training)

    @cached_property
    def _testing_chunks(self) -> list[Chunk]:
        return [] if self.testing is None else self._chunks(self.testing)


class _Network:
    """One perceptron with parameters x ``[d]``, whose gradients are added to ``grad`` ``[d]``."""

    def __init__(self, layers: Sequence[nn.Module], x: Tensor, grad: Tensor | None = None) -> None:
        self._layers, self._weights, self._slopes = layers, _split(layers, x), list[tuple[Tensor, ...]]()
        if grad is not None:
            self._slopes = _split(layers, grad)
        self._table: Tensor | None = None  # the first layer's weights, columns as rows
        self._table_slope: Tensor | None = None
        self._seen: list[tuple[Tensor | SparseRows, Tensor]] = []  # the inputs and outputs of each layer

    def forward(self, inputs: Tensor | SparseRows) -> Tensor:
        """The outputs ``[N, outputs]``; keeps what `backward` needs."""
        self._seen, x = [], inputs
        for place, (layer, parameters) in enumerate(zip(self._layers, self._weights, strict=True)):
            before = x
            if not isinstance(layer, nn.Linear):
                assert isinstance(before, Tensor)
                if isinstance(layer, nn.Tanh):
                    # The backward pass needs the outputs of all layers but linear ones.
                    x = _tanh(before if isinstance(self._layers[place - 1], nn.Linear) else before.clone())
                elif self._slopes:  # autograd knows the derivative
                    before = before.detach().requires_grad_()
                    with torch.enable_grad():
                        x = layer(before.clone() if getattr(layer, "inplace", False) else before)
                else:
                    x = layer(before)
            elif isinstance(x, Tensor):
                x = _affine(x, *parameters)
            else:
                if self._table is None:
                    self._table = parameters[0].T.contiguous()
                x = x.times(self._table)
                if len(parameters) > 1:
                    x += parameters[1]
            assert isinstance(x, Tensor)
            self._seen.append((before, x))
        assert isinstance(x, Tensor)
        return x.detach()

    def backward(self, slope: Tensor) -> None:
        """Add the gradients, given that of the outputs."""
        for place in reversed(range(len(self._layers))):
            layer, (before, after) = self._layers[place], self._seen[place]
            if isinstance(layer, nn.Linear):
                weight, *bias = self._slopes[place]
                if bias:
                    bias[0] += slope.sum(0)
                if isinstance(before, Tensor):
                    weight.addmm_(slope.T, before)
                else:
                    if self._table_slope is None:
                        self._table_slope = weight.new_zeros(weight.T.shape)
                    self._table_slope += before.transposed_times(slope.contiguous())
                if place:
                    slope = slope @ self._weights[place][0]
            elif isinstance(layer, nn.Tanh):
                torch.ops.aten.tanh_backward.grad_input(slope, after, grad_input=slope)  # in place: no memory to fetch
            else:
                assert isinstance(before, Tensor)
                (slope,) = torch.autograd.grad(after, before, slope)
        self._seen = []

    def finish(self) -> None:
        """Put the gradient of a sparse first layer into its place."""
        if self._table_slope is not None:
            self._slopes[0][0].add_(self._table_slope.T)  # chunks that are not sparse have added theirs


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if len(weight) >= NARROW:
        return x @ weight.T if bias is None else torch.addmm(bias, x, weight.T)
    return (weight @ x.T if bias is None else torch.addmm(bias.unsqueeze(1), weight, x.T)).T


def _tanh(x: Tensor) -> Tensor:
    """Compute tanh x = 2 σ(2x) − 1 in the memory of x.

    This takes about a third of the time of torch.tanh, which would be half of an observation. It differs from it by up
    to two units in the last place of 1, so small values have fewer digits, but the sums over examples do not show it.
    """
    if x.itemsize < 4:
        return x.tanh_()  # half precision has no digits to spare
    return torch.add(x.new_full((), -1.0), x.mul_(2).sigmoid_(), alpha=2, out=x)


def _split(layers: Sequence[nn.Module], x: Tensor) -> list[tuple[Tensor, ...]]:
    """Views of x ``[d]`` as the parameters of each layer."""
    parts = iter(torch.split(x, [each.numel() for layer in layers for each in layer.parameters()]))
    return [tuple(next(parts).view(each.shape) for each in layer.parameters()) for layer in layers]


def _is_perceptron(copies: Copies) -> bool:
    """Whether the copies are chains from a linear layer to a linear layer, all of whose parameters are trained."""
    if copies.path != "chain" or not all(each.requires_grad for each in copies.module.parameters()):
        return False
    layers = list(cast("nn.Sequential", copies.module))
    ends = all(isinstance(layers[end], nn.Linear) for end in (0, -1))
    return ends and all(isinstance(layer, (nn.Linear, *ELEMENTWISE)) for layer in layers)


def _wanted(targets: Tensor, weights: Tensor, classes: int) -> Tensor:
    """The weights of the examples at their classes ``[classes, N]``, 0 elsewhere."""
    return weights.new_zeros(classes, len(targets)).scatter_(0, targets.long().unsqueeze(0), weights.unsqueeze(0))


def _digests(inputs: Tensor, targets: Tensor) -> NDArray[np.void]:
    """A digest of each example's bytes, input and target together: equal ones are the same example."""
    parts = [each.contiguous().cpu().view(torch.uint8).numpy().reshape(len(each), -1) for each in (inputs, targets)]
    both = np.concatenate(parts, axis=1)
    return np.frombuffer(b"".join(blake2b(row, digest_size=16).digest() for row in both), dtype="V16")


def _sparse_rows(inputs: Tensor) -> SparseRows | None:
    """The inputs if they are sparse enough for sums of columns to pay."""
    return SparseRows(inputs) if _is_sparse(inputs) else None


def _is_sparse(inputs: Tensor) -> bool:
    return 0 < int(inputs.count_nonzero()) <= SPARSE * inputs.numel()
