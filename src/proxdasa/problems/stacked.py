"""Many copies of one network at once: row r of every parameter belongs to copy r.

A forward pass takes parameters ``[rows, *shape]`` and inputs ``[rows, batch, ...]`` to outputs ``[rows, batch, ...]``;
autograd then gives the gradients of all copies in one backward pass. A chain of known layers becomes batched matrix
products and grouped convolutions. Other modules go through ``torch.func.vmap``, which has a rule for most operations,
though not for those of recurrent layers, at about three times the cost for a small perceptron.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from proxdasa.torch_internals import has_hooks, parameter_names, warn_of_slow_vmap

Parameters = Mapping[str, Tensor]
Forward = Callable[[Parameters, Tensor], Tensor]

ELEMENTWISE = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity)
POOLS = (nn.MaxPool2d, nn.AvgPool2d)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
IMAGES = 4
"""The axes of a batch of images, ``[N, C, H, W]``."""

_SWITCH, _INSIDE = threading.Lock(), list[None]()


def is_chain(module: nn.Module, axes: int = IMAGES) -> bool:
    """Whether a module is a chain of layers that can be stacked, for inputs with so many axes."""
    if type(module) is not nn.Sequential or not _is_plain(module):
        return False
    # Of inputs [N, H, W] a layer for images takes the N examples for channels.
    return axes == IMAGES or not any(isinstance(layer, (nn.Conv2d, *POOLS)) for layer in module)


def chain_forward(chain: nn.Sequential, frozen: Parameters) -> Forward:
    """The forward pass of stacked copies of a chain; ``frozen`` parameters ``[*shape]`` are shared by all of them."""
    return lambda parameters, x: _run_chain(chain, {**_expand(frozen, x.shape[0]), **parameters}, x)


def batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.func.vmap`` without its warning that it calls some operation row by row.

    Only attention does so among the common layers, and the whole is still faster than a loop over the rows.
    """
    each = vmap(function)

    def call(*args: Any) -> Any:
        with _quiet():
            return each(*args)

    return call


def vmap_forward(module: nn.Module) -> Forward:
    """The forward pass of stacked copies of any module that vmap can batch."""
    single = batch(lambda parameters, x: functional_call(module, parameters, (x,)))
    return lambda parameters, x: single(dict(parameters), x)


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager in which vmap does not warn.

    All threads share the switch, so the last one that leaves turns the warning on again.
    """
    with _SWITCH:
        _INSIDE.append(None)
        warn_of_slow_vmap(False)
    try:
        yield
    finally:
        with _SWITCH:
            _INSIDE.pop()
            warn_of_slow_vmap(not _INSIDE)


def _is_plain(chain: nn.Sequential) -> bool:
    """Whether all layers of a chain are of known types, have weights of their own and are not modified."""
    names = [name for name, _ in chain.named_parameters(remove_duplicate=False)]
    # A tensor under two names is listed twice by name but once as a parameter; the second test finds a layer that is in
    # the chain twice. Stacked parameters would come apart in either case.
    tied = len(names) > len(list(chain.parameters())) or len({*map(id, chain)}) < len(chain)
    return not any(map(is_changed, chain.modules())) and not tied and all(map(_is_known, chain))


def is_changed(layer: nn.Module) -> bool:
    """Whether a layer does more than the forward method of its type, because of hooks or a forward of its own."""
    return has_hooks(layer) or "forward" in vars(layer)


def _is_known(layer: nn.Module) -> bool:
    """Whether a layer is of a known type; subclasses are not, because they may override forward."""
    if isinstance(layer, (nn.Linear, nn.Conv2d)) and not {"weight", "bias"} <= parameter_names(layer):
        return False  # one of them is no parameter, but a buffer, say, and would be missing in stacked copies
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros"
    if type(layer) is nn.Flatten:
        return layer.start_dim == 1 and layer.end_dim == -1
    if type(layer) in DROPOUTS:
        return not layer.training  # then it returns its input
    return type(layer) in (nn.Linear, *POOLS, *ELEMENTWISE)


def _expand(parameters: Parameters, rows: int) -> dict[str, Tensor]:
    # Views: frozen weights are not copied for each row.
    return {name: values.expand(rows, *values.shape) for name, values in parameters.items()}


def _run_chain(chain: nn.Sequential, parameters: Parameters, x: Tensor) -> Tensor:
    rows, folded = x.shape[0], False
    for name, layer in chain.named_children():  # a name need not be the layer's place
        weight, bias = parameters.get(f"{name}.weight"), parameters.get(f"{name}.bias")
        # Each change of layout copies all activations, so copies stay folded from the first convolution to the next
        # layer that needs them apart; layers that act on each number by itself work either way.
        if isinstance(layer, (nn.Conv2d, *POOLS)) and not folded:
            x, folded = _fold(x), True
        elif isinstance(layer, (nn.Linear, nn.Flatten)) and folded:
            x, folded = _unfold(x, rows), False
        if isinstance(layer, nn.Linear):
            assert weight is not None
            x = _linear(x, weight, bias)
        elif isinstance(layer, nn.Conv2d):
            assert weight is not None
            x = _convolution(layer, x, weight, bias)
        else:
            x = x.flatten(2) if isinstance(layer, nn.Flatten) else layer(x)
    return _unfold(x, rows) if folded else x


class _Affine(torch.autograd.Function):
    """x Wᵀ + b for each copy, with the gradient of W laid out as W is; that of ``torch.bmm`` is its transpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if needs_x else None,
            torch.bmm(grad.mT, x) if needs_weight else None,
            grad.sum(1) if needs_bias else None,
        )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = _Affine.apply(x.flatten(1, -2), weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], y.shape[-1])


def _convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One convolution with as many groups as there are copies."""
    return torch.nn.functional.conv2d(
        x,
        weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        layer.stride,
        layer.padding,
        layer.dilation,
        groups=len(weight),
    )


def _fold(x: Tensor) -> Tensor:
    """Copies become channels, ``[rows, batch, C, H, W]`` to ``[batch, rows · C, H, W]``.

    Channels are innermost in memory: pooling and grouped convolutions then take a fraction of the time.
    """
    return x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)


def _unfold(y: Tensor, rows: int) -> Tensor:
    unfolded: Tensor = y.unflatten(1, (rows, -1))  # type: ignore[no-untyped-call]
    return unfolded.transpose(0, 1)
