"""The forward and the backward pass of one perceptron, over its examples chunk by chunk.

Layers of tanh are computed by the logistic function σ, with twice the weights in the linear layer before them:

    tanh(W h + b) = 2 σ(2W h + 2b) − 1

On some processors torch's tanh takes three times as long as its σ, and would be half of an observation. Outputs of tanh
then have an error of up to two units in the last place of 1, so small ones have fewer digits, but sums over examples
do not show it. A tanh of 0 is exactly 0, as it must be: where L1 has removed all weights that an example meets, all
classes have the same output, and the first of them is predicted, not one that rounding chooses.

The bias of a layer with sparse inputs is the weight of one more input, which is always 1: one more row of the table
that `SparseRows` adds up, instead of a pass over all outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from proxdasa.problems.sparse_rows import SparseRows

NARROW = 16
"""Outputs of a layer below which its product is computed as a wide matrix: W hᵀ rather than h Wᵀ."""


class Perceptron:
    """A perceptron with parameters x ``[d]``, whose gradient is added to ``grad`` ``[d]``, if given."""

    def __init__(self, layers: Sequence[nn.Module], x: Tensor, grad: Tensor | None = None) -> None:
        # Half precision has no digits to spare.
        fast = [x.itemsize >= 4 and _is_hidden_tanh(layers, place) for place in range(len(layers))]
        slopes = [()] * len(layers) if grad is None else _split(layers, grad)
        self._keeps, self._layers = grad is not None, list[_Linear | _FastTanh | nn.Module]()
        for place, (layer, parameters) in enumerate(zip(layers, _split(layers, x), strict=True)):
            if parameters:
                before_tanh = place + 1 < len(layers) and fast[place + 1]
                self._layers.append(_Linear(parameters, slopes[place], before_tanh))
            else:
                self._layers.append(_FastTanh(x.new_tensor(-1)) if fast[place] else layer)
        self._seen: list[tuple[Tensor | SparseRows, Tensor]] = []  # the inputs and outputs of each layer

    def forward(self, inputs: Tensor | SparseRows) -> Tensor:
        """The outputs ``[N, outputs]``; keeps what `backward` needs if there is a gradient to add to."""
        self._seen, x = [], inputs
        for layer in self._layers:
            before = x
            if isinstance(layer, _Linear):
                x = layer.forward(before)
            elif isinstance(layer, _FastTanh):
                assert isinstance(before, Tensor)
                x = layer.forward(before)
            elif self._keeps:  # autograd knows the derivative
                assert isinstance(before, Tensor)
                before = before.detach().requires_grad_()
                with torch.enable_grad():
                    x = layer(before.clone() if getattr(layer, "inplace", False) else before)
            else:
                x = layer(before)
            assert isinstance(x, Tensor)
            if self._keeps:
                self._seen.append((before, x))
        assert isinstance(x, Tensor)
        return x.detach()

    def backward(self, slope: Tensor) -> None:
        """Add the gradients of the parameters, given that of the outputs of the last `forward`."""
        for place in reversed(range(len(self._layers))):
            layer, (before, after) = self._layers[place], self._seen[place]
            if isinstance(layer, _Linear):
                layer.add_slopes(before, slope)
                if place:
                    slope = slope @ layer.weight
            elif isinstance(layer, _FastTanh):
                slope = layer.backward(after, slope)
            else:
                assert isinstance(before, Tensor)
                (slope,) = torch.autograd.grad(after, before, slope)
        self._seen = []

    def finish(self) -> None:
        """Add what is still missing in the gradient after the last `backward`."""
        for layer in self._layers:
            if isinstance(layer, _Linear):
                layer.finish()


class _FastTanh:
    """tanh behind a linear layer that computes twice its outputs.

    It overwrites its inputs and the slopes: memory that is in the cache already is faster than new memory, and nothing
    else needs the outputs of a linear layer.
    """

    def __init__(self, minus_one: Tensor) -> None:
        self._minus_one = minus_one

    def forward(self, doubled: Tensor) -> Tensor:
        """tanh a, given 2a."""
        σ = doubled.sigmoid_()
        return torch.add(self._minus_one, σ, alpha=2, out=σ)

    def backward(self, outputs: Tensor, slope: Tensor) -> Tensor:
        """The gradient in a, not in 2a."""
        return cast("Tensor", torch.ops.aten.tanh_backward.grad_input(slope, outputs, grad_input=slope))


class _Linear:
    """A linear layer W h + b, or 2 (W h + b) before a fast tanh, and its gradients in W and b."""

    def __init__(self, parameters: Sequence[Tensor], slopes: Sequence[Tensor], before_tanh: bool) -> None:
        W, *bias = parameters
        b = bias[0] if bias else W.new_zeros(len(W))
        self.weight = W
        # The parameters themselves if there is no tanh: a large layer has no memory to spare.
        self._forward_weight, self._forward_bias = (2 * W, 2 * b) if before_tanh else (W, b)
        self._slopes = slopes
        self._table: Tensor | None = None  # for sparse inputs: the columns of the weight, then the bias
        self._table_slope: Tensor | None = None

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        """The outputs."""
        weight, bias = self._forward_weight, self._forward_bias
        if isinstance(x, SparseRows):
            if self._table is None:
                self._table = torch.cat([weight.T, bias.unsqueeze(0)])
            return x.times(self._table)
        if len(weight) >= NARROW:
            return torch.addmm(bias, x, weight.T)
        return torch.addmm(bias.unsqueeze(1), weight, x.T).T

    def add_slopes(self, x: Tensor | SparseRows, slope: Tensor) -> None:
        """Add the gradients in W and b, given the inputs and the gradient in W h + b."""
        if isinstance(x, SparseRows):
            total = x.transposed_times(slope.contiguous())
            self._table_slope = total if self._table_slope is None else self._table_slope.add_(total)
            return
        W, *b = self._slopes
        W.addmm_(slope.T, x)
        if b:
            b[0].add_(slope.sum(0))

    def finish(self) -> None:
        """Add the gradients of sparse inputs."""
        if self._table_slope is None:
            return
        W, *b = self._slopes
        W.add_(self._table_slope[:-1].T)
        if b:
            b[0].add_(self._table_slope[-1])


def with_constant(inputs: Tensor) -> SparseRows:
    """Sparse inputs, followed by one that is always 1."""
    return SparseRows(torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1))


def _is_hidden_tanh(layers: Sequence[nn.Module], place: int) -> bool:
    """Whether a layer is a tanh between two linear layers."""
    return [type(each) for each in layers[max(place - 1, 0) : place + 2]] == [nn.Linear, nn.Tanh, nn.Linear]


def _split(layers: Sequence[nn.Module], x: Tensor) -> list[tuple[Tensor, ...]]:
    """Views of x ``[d]`` as the parameters of each layer."""
    parts = iter(torch.split(x, [each.numel() for layer in layers for each in layer.parameters()]))
    return [tuple(next(parts).view(each.shape) for each in layer.parameters()) for layer in layers]
