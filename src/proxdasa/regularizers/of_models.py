"""Regularisers of networks: by the names of their parameters, and with neurons as groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate

from torch import nn

from proxdasa.checks import check_regularizer, invalid
from proxdasa.contracts import Regularizer
from proxdasa.modules import Model, make_module, trained_shapes
from proxdasa.regularizers.combinations import Blocks
from proxdasa.regularizers.matrices import RowL2
from proxdasa.regularizers.norms import Zero
from proxdasa.regularizers.penalty_weights import Weight

Part = tuple[int, int | None, Regularizer]


def by_parameter(model: Model, patterns: Mapping[str, Regularizer]) -> Regularizer:
    """A regulariser for each parameter of a network, chosen by the parameter's name.

        Ψ(x) = Σ_p Ψ_p(x_p)   over the parameters p that are trained

    A pattern is a name such as ``0.weight``, or has wildcards: ``*`` is any text, ``?`` a character, ``[ab]`` one of
    some. A parameter takes the first pattern that matches it, so put ``*`` last. Frozen parameters are not part of x
    and need no pattern; every other one does, and every pattern must be the first for some parameter.

    Args:
        model: the network of `problems.Supervised`, or the function that makes it.
        patterns: regularisers by pattern. Each is applied to one parameter at a time.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Tanh(), torch.nn.Linear(1, 2))
        >>> psi = regularizers.by_parameter(model, {"*.weight": regularizers.L1(1.0), "*.bias": regularizers.Zero()})
        >>> psi.parts
        ((0, 2, L1(weight=1.0)), (3, 5, L1(weight=1.0)))
        >>> psi.prox(torch.full((7,), 0.5), gamma=1.0)
        tensor([0.0000, 0.0000, 0.5000, 0.0000, 0.0000, 0.5000, 0.5000])
    """
    if not isinstance(patterns, Mapping):
        raise invalid("patterns", 'regularizers by name, such as {"*.weight": L1(1e-3), "*": Zero()}', patterns)
    for pattern, regularizer in patterns.items():
        check_regularizer(regularizer, f"the regularizer of {pattern!r}")
    ranges = _ranges(make_module(model))
    chosen = {name: next((p for p in patterns if fnmatchcase(name, p)), None) for name in ranges}
    if unmatched := [name for name, pattern in chosen.items() if pattern is None]:
        raise ValueError(
            f"no pattern matches {', '.join(unmatched)}; to leave parameters without a regularizer, end with "
            '"*": Zero()'
        )
    if unused := [pattern for pattern in patterns if pattern not in chosen.values()]:
        raise ValueError(
            f"the pattern {unused[0]!r} matches no trained parameter that an earlier pattern does not match; they are "
            f"{', '.join(ranges)}"
        )
    picked = {name: patterns[pattern] for name, pattern in chosen.items() if pattern is not None}
    return _blocks([(*ranges[name], regularizer) for name, regularizer in picked.items()])


def group_neurons(model: Model, weight: Weight, layers: Sequence[str] | None = None) -> Regularizer:
    """The group lasso over the neurons of a network's hidden layers, which prunes neurons as a whole.

        Ψ(x) = w Σ_ℓ Σ_r ‖(W_ℓ,r, b_ℓ,r)‖

    A group is a neuron of a linear layer or an output channel of a two-dimensional convolution: its incoming weights
    and its bias. In a chain (``nn.Sequential`` of layers) these are all such layers but the last, whose neurons are the
    outputs of the network. The order of layers in any other module is in its code, so it needs ``layers``: the names
    of the layers whose neurons may be pruned. `proxdasa.prune` cuts pruned neurons out of a chain.

    Args:
        model: the network of `problems.Supervised`, or the function that makes it.
        weight: w, one number or `per_trial`. Groups are not scaled by their sizes.
        layers: names of linear and convolutional layers; by default the hidden ones of a chain.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> regularizers.group_neurons(model, 0.1).parts  # the second layer is the output
        ((0, 32, RowL2(weight=0.1, shape=(8, 3), bias=True)),)
    """
    module = make_module(model)
    found = _affine_layers(module)
    ranges = _ranges(module)
    parts: list[Part] = []
    for name in _hidden_layers(module, list(found)) if layers is None else layers:
        if name not in found:
            raise ValueError(
                f"layers: {name!r} is not a Linear or Conv2d layer of the network; accepted: {', '.join(found)}"
            )
        parts += _neurons(name, found[name], ranges, weight, named=layers is not None)
    if not parts:
        raise ValueError("the network has no hidden Linear or Conv2d layer whose weights are trained")
    return _blocks(parts)


def _neurons(
    name: str, layer: nn.Linear | nn.Conv2d, ranges: Mapping[str, tuple[int, int]], weight: Weight, named: bool
) -> list[Part]:
    """The groups of one layer; none if its weights are frozen, which is an error if the user named it."""
    own = {key: f"{name}.{key}" if name else key for key in ("weight", "bias")}
    if own["weight"] not in ranges:
        if not named:
            return []
        raise ValueError(f"layers: the weights of {name!r} are frozen, or shared with an earlier layer")
    start, stop = ranges[own["weight"]]
    rows = layer.weight.shape[0]
    after = ranges.get(own["bias"])
    if after and after[0] != stop:
        raise ValueError(f"the bias of {name!r} does not follow its weights in named_parameters()")
    shape = rows, layer.weight[0].numel()
    return [(start, after[1] if after else stop, RowL2(weight, shape, bias=after is not None))]


def _affine_layers(module: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}


def _hidden_layers(module: nn.Module, names: list[str]) -> list[str]:
    """The names of all layers of a chain but the last."""
    if type(module) is not nn.Sequential or any(next(layer.children(), None) is not None for layer in module):
        raise ValueError(
            f"which layer of {type(module).__name__} is its output is known only for a chain, an nn.Sequential of "
            f"layers; give layers=[...] with those whose neurons may be pruned, out of {', '.join(names) or 'none'}"
        )
    return names[:-1]


def _ranges(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Where each trained parameter is in x: (start, stop)."""
    sizes = {name: shape.numel() for name, shape in trained_shapes(module).items()}
    if not sizes:
        raise ValueError(f"{type(module).__name__} has no parameters to train")
    stops = zip(sizes.items(), accumulate(sizes.values()), strict=True)
    return {name: (stop - size, stop) for (name, size), stop in stops}


def _blocks(parts: Sequence[Part]) -> Regularizer:
    """The parts side by side, without those of `Zero`: `Blocks` leaves coordinates outside its parts unchanged."""
    kept = [part for part in parts if not isinstance(part[2], Zero)]
    return Blocks(kept) if kept else Zero()
