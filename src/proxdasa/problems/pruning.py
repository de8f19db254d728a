"""Cutting neurons without effect out of a chain of layers, so that the network is smaller and computes the same.

Between two layers with weights, a neuron r (of a convolution: an output channel) has no effect beyond a constant if

- all weights that lead out of it are zero, or
- all weights that lead into it are zero: its output is then the constant c_r = φ(b_r), whatever the input, and the next
  layer's bias takes over c_r times the sum of the weights that lead out of it.

Zero padding and dropout turn a constant into something else, unless it is zero; such neurons stay.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from proxdasa.problems.stacked import ELEMENTWISE, POOLS, is_changed

Affine = nn.Linear | nn.Conv2d
KEEP_ZERO = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)
"""Layers that map zero to zero, but no other constant to a constant."""


def prune(module: nn.Module) -> nn.Sequential:
    """A smaller network with the same outputs, up to rounding: hidden neurons without effect are cut out.

    A neuron, or a channel of a convolution, is cut if all weights that lead into it are zero, or all that lead out of
    it. If its output then is a constant other than zero, as with a sigmoid, the next layer's bias takes it over; it
    stays where that is not exact, before zero padding. Every layer keeps at least one neuron. The module is a chain, an
    ``nn.Sequential`` of linear layers, two-dimensional convolutions, elementwise activations, pooling, dropout and
    Flatten, for inputs with a batch axis; before the first and after the last layer with weights there may be others.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> with torch.no_grad():
        ...     model[0].weight[2:], model[0].bias[2:] = 0.0, 0.0  # six of eight neurons are zero
        >>> smaller = proxdasa.prune(model)
        >>> smaller
        Sequential(
          (0): Linear(in_features=3, out_features=2, bias=True)
          (1): Tanh()
          (2): Linear(in_features=2, out_features=2, bias=True)
        )
        >>> torch.allclose(smaller(torch.ones(5, 3)), model(torch.ones(5, 3)))
        True
    """
    hidden = _check_chain(module)
    pruned = copy.deepcopy(module)
    assert isinstance(pruned, nn.Sequential)
    layers = list(pruned)
    with torch.no_grad():
        # What is cut in one layer may leave neurons without effect in the layers before and after it.
        while any(_cut(layers[i], layers[i + 1 : j], layers[j]) for i, j in hidden):
            pass
    return pruned


def _cut(layer: nn.Module, between: Sequence[nn.Module], following: nn.Module) -> bool:
    """Cut the neurons of a layer that have no effect; return whether there were any."""
    assert isinstance(layer, Affine)
    assert isinstance(following, Affine)
    outgoing = _outgoing(layer, following)
    constant, exact = _constants(layer, between, following)
    silent = (outgoing == 0).all(dim=2).all(dim=0)
    folded = (layer.weight.flatten(1) == 0).all(dim=1) & exact & ~silent
    keep = ~(silent | folded)
    if not bool(keep.any()):
        keep[0] = True  # convolutions need a channel
    if bool(keep.all()):
        return False
    shift = outgoing.sum(dim=2) @ torch.where(folded & ~keep, constant, 0.0)
    if bool((shift != 0).any()):
        _set(following, "bias", shift if following.bias is None else following.bias + shift)
    kept = outgoing[:, keep]
    flat = kept if isinstance(layer, nn.Conv2d) else kept.transpose(1, 2)
    _set(following, "weight", flat.reshape(len(flat), -1, *following.weight.shape[2:]))
    _set(layer, "weight", layer.weight[keep])
    if layer.bias is not None:
        _set(layer, "bias", layer.bias[keep])
    for each in (layer, following):
        _note_sizes(each)
    return True


def _outgoing(layer: Affine, following: Affine) -> Tensor:
    """The weights that lead out of each neuron, ``[outputs, neurons, weights of a neuron for an output]``.

    Flatten puts the pixels of a channel side by side, but interleaves the positions of a linear layer's neurons.
    """
    neurons, weight = len(layer.weight), following.weight
    if isinstance(following, nn.Conv2d):
        return weight.flatten(2)
    if isinstance(layer, nn.Conv2d):
        return weight.reshape(len(weight), neurons, -1)
    return weight.reshape(len(weight), -1, neurons).transpose(1, 2)


def _constants(layer: Affine, between: Sequence[nn.Module], following: Affine) -> tuple[Tensor, Tensor]:
    """The output of each neuron if its weights are zero, and whether that is the same constant everywhere."""
    value = layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias.clone()
    exact = torch.ones_like(value, dtype=torch.bool)
    for each in between:
        if isinstance(each, KEEP_ZERO) or (isinstance(each, nn.AvgPool2d) and not _averages(each)):
            exact &= value == 0
        elif isinstance(each, ELEMENTWISE):
            value = each(value)
    if isinstance(following, nn.Conv2d) and following.padding_mode == "zeros" and _pads(following):
        exact &= value == 0
    return value, exact & value.isfinite()


def _averages(pool: nn.AvgPool2d) -> bool:
    """Whether pooling leaves a constant as it is."""
    return pool.divisor_override is None and (not pool.count_include_pad or pool.padding in (0, (0, 0)))


def _pads(layer: nn.Conv2d) -> bool:
    if isinstance(layer.padding, str):
        return layer.padding != "valid" and any(size > 1 for size in layer.kernel_size)
    return any(layer.padding)


def _set(layer: Affine, name: str, values: Tensor) -> None:
    trained = layer.weight.requires_grad if getattr(layer, name) is None else getattr(layer, name).requires_grad
    setattr(layer, name, nn.Parameter(values.clone(), requires_grad=trained))


def _note_sizes(layer: Affine) -> None:
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    else:
        layer.out_channels, layer.in_channels = layer.weight.shape[:2]


def _check_chain(module: nn.Module) -> list[tuple[int, int]]:
    """The places of each layer with hidden neurons and of the next layer with weights; refuses other modules."""
    if type(module) is not nn.Sequential:
        raise ValueError(f"prune takes a chain, an nn.Sequential of layers; got {type(module).__name__}")
    # An activation may occur several times as one object.
    named = [(name, layer) for name, layer in module.named_modules(remove_duplicate=False) if name and "." not in name]
    if len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters())):
        raise ValueError("prune takes a chain whose layers have weights of their own; here some are shared")
    for name, layer in named:
        if next(layer.children(), None) is not None:
            raise ValueError(f"{_where(name, layer)} has layers of its own; prune takes a chain of single layers")
        if isinstance(layer, Affine) and type(layer) not in (nn.Linear, nn.Conv2d):
            raise ValueError(f"{_where(name, layer)} is a kind of layer that prune does not know")
        if isinstance(layer, nn.Conv2d) and layer.groups != 1:
            raise ValueError(f"{_where(name, layer)} has {layer.groups} groups of channels; prune takes those with one")
    places = [place for place, layer in enumerate(module) if isinstance(layer, Affine)]
    for first, last in pairwise(places):
        _check_between(named[first : last + 1])
    return list(pairwise(places))


def _check_between(layers: Sequence[tuple[str, nn.Module]]) -> None:
    """Refuse layers, from one with weights to the next, through which neurons cannot be followed."""
    (first, source), *between, (last, following) = layers
    images, flat = isinstance(source, nn.Conv2d), False
    for name, layer in layers:
        if is_changed(layer):
            raise ValueError(f"{_where(name, layer)} has hooks, or another forward method; remove them before pruning")
    for name, layer in between:
        if type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1:
            images, flat = False, True
        elif type(layer) in POOLS and images and not getattr(layer, "return_indices", False):
            continue
        elif type(layer) not in (*ELEMENTWISE, *KEEP_ZERO):
            raise ValueError(f"{_where(name, layer)} lies between layers with weights, where prune does not know it")
    assert isinstance(source, Affine)
    assert isinstance(following, Affine)
    neurons, inputs = len(source.weight), following.weight.shape[1]
    fits = inputs % neurons == 0 if flat else inputs == neurons
    if images != isinstance(following, nn.Conv2d) or not fits:
        raise ValueError(
            f"{_where(last, following)} does not follow {_where(first, source)} as prune expects: images become "
            "vectors by a Flatten() and stay vectors, and the sizes match"
        )


def _where(name: str, layer: nn.Module) -> str:
    return f"{type(layer).__name__} (layer {name!r})"
