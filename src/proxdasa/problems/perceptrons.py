"""Measuring perceptrons on many examples that all of them share, faster than with stacked copies.

One network at a time, so that every product is one of two plain matrices and all values of a chunk stay in the cache
(`perceptron_passes`). If most inputs are 0, as in one-hot data, the first layer adds up the columns of its weights that
belong to the other inputs, and so does its gradient (`SparseRows`): the zeros cost nothing. Such data often contain the
same inputs many times, which are computed once and weighted by their count (a quarter of a9a's repeat others). Sums are
taken in another order, so results agree with those of `Supervised.evaluate` and `Supervised.scores` up to rounding.
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
from proxdasa.problems.perceptron_passes import NARROW, Perceptron, with_constant
from proxdasa.problems.sparse_rows import SparseRows
from proxdasa.problems.stacked import ELEMENTWISE

CHUNK = 2**18
"""Values that the widest layer of one network computes at a time (measured: with fewer, the calls cost more than
what they compute; with more, the values do not stay in the cache)."""
MANY = 2**18
"""The values of the widest layer, for all examples, from which this pays off; with fewer, stacked copies are faster."""
SPARSE = 0.25
"""The share of inputs that are not 0 up to which sums of columns are faster than a product (measured)."""
PIECE = 2**22
"""Bytes of examples that are compared at a time to find those that repeat others."""


class Examples(NamedTuple):
    """Inputs ``[N, inputs]`` and targets."""

    inputs: Tensor
    targets: Tensor
    rows: Tensor | None = None
    """The examples that count, by default all."""
    weights: Tensor | None = None
    """The weights of those, by default 1."""

    def distinct(self, inputs_only: bool) -> tuple[Tensor, NDArray[np.intp]]:
        """The first of all examples that are equal, and for each example that counts, which of these it equals.

        Equal examples have the same inputs and, unless ``inputs_only``, the same targets. Those found are ordered by
        which inputs are not 0: neighbours then have many in common, so that a chunk consists of fewer different pairs
        of columns (`SparseRows`). Examples whose inputs are not sparse are not compared.
        """
        inputs, rows = self.inputs, self._rows()
        if not _is_sparse(inputs):
            return rows, np.arange(len(rows))
        compared = (inputs,) if inputs_only else (inputs, self.targets)
        step = max(1, PIECE * len(inputs) // sum(each.nbytes for each in compared))
        pieces = torch.split(rows, step)
        digests = np.concatenate([_digests([each[some] for each in compared]) for some in pieces])
        patterns = np.concatenate([_patterns(inputs[some]) for some in pieces])
        _, first, names = np.unique(digests, return_index=True, return_inverse=True)
        order = np.argsort(first)  # examples with the same pattern stay in order of appearance
        order = order[np.argsort(patterns[first[order]], kind="stable")]
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return rows[torch.from_numpy(first[order]).to(rows.device)], places[names]

    def total_weights(self, names: NDArray[np.intp], size: int) -> Tensor:
        """The weights of the examples that have the same name, added up, for ``size`` names."""
        weights = None if self.weights is None else self.weights.cpu().double().numpy()
        total = torch.from_numpy(np.bincount(names, weights=weights, minlength=size))
        return total.to(self.inputs if self.weights is None else self.weights)

    def classes(self) -> NDArray[np.intp]:
        """The classes of the examples that count."""
        return self.targets[self._rows()].cpu().numpy().astype(np.intp)

    def _rows(self) -> Tensor:
        return torch.arange(len(self.inputs), device=self.inputs.device) if self.rows is None else self.rows


class Chunk(NamedTuple):
    """Some of the examples."""

    rows: Tensor
    sparse: SparseRows | None
    """The inputs, if they are sparse."""
    weights: Tensor
    wanted: Tensor | None
    """For the cross entropy of a few classes, the weights of the examples of each class ``[classes, N]``: sums over
    classes are then sums of long vectors and need no autograd, and equal inputs need not be of the same class."""
    targets: Tensor | None
    """The targets otherwise."""


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
        networks = [Perceptron(self.layers, row, grad) for row, grad in zip(x[:, 0], grads, strict=True)]
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
        networks, classified = [Perceptron(self.layers, row) for row in x], False
        for chunk in self._testing_chunks:
            inputs = chunk.sparse or self.testing.inputs[chunk.rows]
            for row, network in enumerate(networks):
                outputs = network.forward(inputs)
                losses[row] += self._loss(outputs, chunk)
                classified = self.classes is not None and outputs.shape[-1] >= self.classes
                if classified:
                    right[row] += _right(outputs, chunk)
        return {"test_loss": losses / total} | ({"accuracy": right / total} if classified else {})

    def _loss_and_slope(self, outputs: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """The weighted loss of a chunk and its gradient in the outputs, which is w softmax − wanted for classes."""
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
            assert chunk.targets is not None
            inputs = outputs.clone(memory_format=torch.contiguous_format)
            return self.loss(inputs, chunk.targets).flatten() @ chunk.weights
        return -torch.dot(outputs.mT.log_softmax(0).view(-1), chunk.wanted.view(-1))

    def _chunks(self, examples: Examples) -> list[Chunk]:
        """The examples in chunks, each sparse or not."""
        classes = cast("nn.Linear", self.layers[-1]).out_features
        few = self.loss is cross_entropy and examples.targets.ndim == 1 and classes < NARROW
        rows, names = examples.distinct(inputs_only=few)
        wanted = None
        if few:
            every = examples.total_weights(examples.classes() * len(rows) + names, classes * len(rows))
            wanted = every.view(classes, len(rows))
        weights, made = examples.total_weights(names, len(rows)), list[Chunk]()
        for some in torch.split(torch.arange(len(rows)), max(1, CHUNK // self._widest)):
            own, targets = rows[some], None if few else examples.targets[rows[some]]
            part = None if wanted is None else wanted[:, some].contiguous()
            made.append(Chunk(own, _sparse_rows(examples.inputs[own]), weights[some], part, targets))
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


def _is_perceptron(copies: Copies) -> bool:
    """Whether the copies are chains from a linear layer to a linear layer, all of whose parameters are trained."""
    if copies.path != "chain" or not all(each.requires_grad for each in copies.module.parameters()):
        return False
    layers = list(cast("nn.Sequential", copies.module))
    ends = all(isinstance(layers[end], nn.Linear) for end in (0, -1))
    return ends and all(isinstance(layer, (nn.Linear, *ELEMENTWISE)) for layer in layers)


def _right(outputs: Tensor, chunk: Chunk) -> Tensor:
    """The weight of the examples of a chunk whose class has the largest output, the first of several."""
    if chunk.wanted is None:
        assert chunk.targets is not None
        return (outputs.contiguous().argmax(-1) == chunk.targets).to(outputs.dtype) @ chunk.weights
    best = outputs.mT.max(0).indices  # argmax takes twice as long or more
    return chunk.wanted.gather(0, best.unsqueeze(0)).sum()


def _digests(parts: Sequence[Tensor]) -> NDArray[np.void]:
    """A digest of each example's bytes in all parts: equal ones are the same example."""
    own = [each.contiguous().cpu().view(torch.uint8).numpy().reshape(len(each), -1) for each in parts]
    both = np.concatenate(own, axis=1)
    return np.frombuffer(b"".join(blake2b(row, digest_size=16).digest() for row in both), dtype="V16")


def _patterns(inputs: Tensor) -> NDArray[np.void]:
    """Which inputs of each example are not 0, as bits that sort."""
    bits = np.packbits((inputs != 0).cpu().numpy(), axis=1)
    return bits.view(f"V{bits.shape[1]}").ravel()


def _sparse_rows(inputs: Tensor) -> SparseRows | None:
    """The inputs if they are sparse enough for sums of columns to pay."""
    return with_constant(inputs) if _is_sparse(inputs) else None


def _is_sparse(inputs: Tensor) -> bool:
    return 0 < int(inputs.count_nonzero()) <= SPARSE * inputs.numel()
