"""Norms of vectors: penalties that shrink coordinates, or groups of them, towards zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import softshrink

from proxdasa.checks import check_entries, check_length, check_not_negative, check_step_size, check_whole, is_number
from proxdasa.devices import Movable
from proxdasa.regularizers.penalty_weights import PerTrial, Weight, check_weight, scale, weight_like
from proxdasa.schedules import Number


def soft_threshold(x: Tensor, level: Number) -> Tensor:
    """Shrink every coordinate by the level, stopping at zero: x − clip(x, −level, level)."""
    if isinstance(level, Tensor):
        # Half the time of sign(x)·max(|x| − level, 0), and equal to softshrink without rounding between them.
        return x - torch.maximum(torch.minimum(x, level), -level)
    # One kernel. Whether its zeros are +0 or −0 depends on their place in memory; the numbers do not.
    return softshrink(x, level)


def shrink(norms: Tensor, level: Number) -> Tensor:
    """The factors max(1 − level/‖x_g‖, 0) that shrink the norm of every group by the level, stopping at zero."""
    # The floor keeps a zero group with a zero level from becoming 0/0, and lets NaN pass.
    return (1 - level / norms.clamp_min(torch.finfo(norms.dtype).tiny)).relu()


@final
@dataclass(frozen=True)
class Zero:
    """No regulariser: Ψ = 0, prox_γ(x) = x.

    Examples:
        >>> x = torch.tensor([3.0, -1.0])
        >>> regularizers.Zero().prox(x, gamma=0.5)
        tensor([ 3., -1.])
    """

    separable = True

    def value(self, x: Tensor) -> Tensor:
        """Zero, but NaN for a row with NaN or infinity."""
        return (x.abs() * 0).sum(-1)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The tensor x itself, not a copy."""
        check_step_size(gamma, x)
        return x


@final
@dataclass(frozen=True)
class L1:
    """The lasso penalty Ψ(x) = Σ_j w_j |x_j|, with one weight for all coordinates, one for each, or one per trial.

        prox_γ(x)_j = sign(x_j) max(|x_j| − γ w_j, 0)

    A list or tensor of weights is kept as a tuple, so that equal penalties compare equal.
    Reference: R. Tibshirani, Regression shrinkage and selection via the lasso, J. R. Stat. Soc. B 58, 1996.

    Examples:
        >>> x = torch.tensor([3.0, -1.5, 0.5])
        >>> regularizers.L1(2.0).value(x), regularizers.L1(2.0).prox(x, gamma=0.5)
        (tensor(10.), tensor([ 2.0000, -0.5000,  0.0000]))
        >>> regularizers.L1([1.0, 0.0, 1.0]).prox(x, gamma=0.5)  # a weight for each coordinate
        tensor([ 2.5000, -1.5000,  0.0000])
        >>> path = regularizers.L1(proxdasa.per_trial([0.5, 2.0]))  # a weight for each trial of a stacked run
        >>> path.value(x.expand(2, 1, 3))
        tensor([[ 2.5000],
                [10.0000]])
    """

    weight: Weight | Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _weights(self.weight, "L1.weight"))

    @property
    def separable(self) -> bool:
        """Whether all coordinates have the same weight."""
        return isinstance(self.weight, float | PerTrial)

    @cached_property
    def _tensor(self) -> Movable:
        return Movable(torch.as_tensor(self.weight, dtype=torch.float64))

    def _weights_like(self, x: Tensor) -> Number:
        if isinstance(self.weight, float | PerTrial):
            return weight_like(self.weight, x, "L1")
        check_length(x, len(self._tensor), "L1")
        return self._tensor.like(x)

    def value(self, x: Tensor) -> Tensor:
        """The penalty Σ_j w_j |x_j|."""
        return (x.abs() * self._weights_like(x)).sum(-1)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """Soft-thresholding at γ w."""
        return soft_threshold(x, check_step_size(gamma, x) * self._weights_like(x))


@final
@dataclass(frozen=True)
class SquaredL2:
    """The ridge penalty Ψ(x) = (w/2) ‖x‖², with prox_γ(x) = x / (1 + γ w).

    Examples:
        >>> regularizers.SquaredL2(2.0).prox(torch.tensor([3.0, -1.0]), gamma=0.5)
        tensor([ 1.5000, -0.5000])
    """

    separable = True

    weight: Weight

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_weight(self.weight, "SquaredL2.weight", check_not_negative))

    def value(self, x: Tensor) -> Tensor:
        """The penalty (w/2) ‖x‖²."""
        return scale(self.weight, x.square().sum(-1) / 2, x, "SquaredL2")

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """Division by 1 + γ w."""
        return x / (1 + check_step_size(gamma, x) * weight_like(self.weight, x, "SquaredL2"))


@final
@dataclass(frozen=True)
class ElasticNet:
    """The elastic net Ψ(x) = l1 ‖x‖₁ + (l2/2) ‖x‖²: the lasso's proximal step, then the ridge's.

        prox_γ(x)_j = sign(x_j) max(|x_j| − γ l1, 0) / (1 + γ l2)

    Reference: H. Zou and T. Hastie, Regularization and variable selection via the elastic net, J. R. Stat.
    Soc. B 67, 2005.

    Examples:
        >>> regularizers.ElasticNet(l1=1.0, l2=2.0).prox(torch.tensor([3.0, 0.2]), gamma=0.5)
        tensor([1.2500, 0.0000])
    """

    separable = True

    l1: Weight
    l2: Weight

    def __post_init__(self) -> None:
        object.__setattr__(self, "l1", check_weight(self.l1, "ElasticNet.l1", check_not_negative))
        object.__setattr__(self, "l2", check_weight(self.l2, "ElasticNet.l2", check_not_negative))

    @cached_property
    def _parts(self) -> tuple[L1, SquaredL2]:
        return L1(self.l1), SquaredL2(self.l2)

    def value(self, x: Tensor) -> Tensor:
        """The penalty l1 ‖x‖₁ + (l2/2) ‖x‖²."""
        lasso, ridge = self._parts
        return lasso.value(x) + ridge.value(x)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """Soft-thresholding at γ l1, then division by 1 + γ l2."""
        lasso, ridge = self._parts
        return ridge.prox(lasso.prox(x, gamma), gamma)


@final
@dataclass(frozen=True)
class GroupL2:
    """The group lasso Ψ(x) = w Σ_g ‖x_g‖, which zeroes whole groups; not scaled by the groups' sizes.

        prox_γ(x)_g = max(1 − γ w / ‖x_g‖, 0) x_g

    ``groups`` is the size of consecutive groups, or a list with an integer label for every coordinate.
    Reference: M. Yuan and Y. Lin, Model selection and estimation in regression with grouped variables, J. R.
    Stat. Soc. B 68, 2006.

    Examples:
        >>> x = torch.tensor([3.0, 4.0, 0.1, 0.1])
        >>> regularizers.GroupL2(1.0, groups=2).prox(x, gamma=1.0)  # the second pair is zeroed as a whole
        tensor([2.4000, 3.2000, 0.0000, 0.0000])
        >>> regularizers.GroupL2(1.0, groups=[0, 1, 1, 1]).value(x)
        tensor(7.0025)
    """

    weight: Weight
    groups: int | Sequence[int] | Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_weight(self.weight, "GroupL2.weight", check_not_negative))
        object.__setattr__(self, "groups", _labels(self.groups, "GroupL2.groups"))

    @cached_property
    def _index(self) -> tuple[Movable, int]:
        """The group of each coordinate, numbered from zero, and how many groups there are."""
        labels, index = torch.unique(torch.as_tensor(self.groups), return_inverse=True)
        return Movable(index), len(labels)

    def _norms(self, x: Tensor) -> Tensor:
        """The norm ‖x_g‖ of every group, ``[..., groups]``."""
        if isinstance(self.groups, int):
            if x.shape[-1] % self.groups:
                raise ValueError(
                    f"GroupL2: {x.shape[-1]} coordinates of x do not divide into groups of {self.groups}; "
                    "give a label for each coordinate instead"
                )
            blocks = x.reshape(*x.shape[:-1], x.shape[-1] // self.groups, self.groups)
            norms: Tensor = torch.linalg.vector_norm(blocks, dim=-1)
            return norms
        index, count = self._index
        check_length(x, len(index), "GroupL2")
        return x.new_zeros(*x.shape[:-1], count).index_add_(-1, index.beside(x), x.square()).sqrt_()

    def value(self, x: Tensor) -> Tensor:
        """The sum w Σ_g ‖x_g‖."""
        return scale(self.weight, self._norms(x).sum(-1), x, "GroupL2")

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """Shrinkage of every group's norm by γ w, stopping at zero."""
        keep = shrink(self._norms(x), check_step_size(gamma, x) * weight_like(self.weight, x, "GroupL2"))
        if isinstance(self.groups, int):
            return x * keep.repeat_interleave(self.groups, dim=-1)
        index, _ = self._index
        return x * keep.index_select(-1, index.beside(x))


def _weights(value: object, name: str) -> float | PerTrial | tuple[float, ...]:
    """One weight, one per trial or one for each coordinate; with negative ones Ψ would not be convex."""
    if is_number(value) or isinstance(value, PerTrial) or (isinstance(value, Tensor) and value.ndim == 3):
        return check_weight(value, name, check_not_negative)
    return tuple(check_not_negative(w, f"{name}[{j}]") for j, w in enumerate(check_entries(value, name)))


def _labels(value: object, name: str) -> int | tuple[int, ...]:
    """The size of all groups, or the label of each coordinate's group."""
    if is_number(value):
        return check_whole(value, name, least=1)
    return tuple(check_whole(label, f"{name}[{j}]") for j, label in enumerate(check_entries(value, name)))
