"""Losses of examples: outputs of a network against targets, one number for each example."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs ``[N, ...]`` and targets ``[N, ...]`` to one loss per example ``[N]``."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross entropy of each example ``[N]``, for outputs ``[N, classes]`` and class numbers ``[N]``.

    Examples:
        >>> problems.cross_entropy(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
        tensor([0.6931, 0.6931, 0.6931])
    """
    if targets.is_floating_point():  # torch would take them for probabilities of the classes, whatever they are
        raise ValueError(
            "class numbers are needed, but the targets are floating-point numbers; use squared_error for these, or "
            'torch\'s cross_entropy with reduction="none" for probabilities'
        )
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of each example ``[N]``; shapes may differ in axes of length 1.

    Examples:
        >>> problems.squared_error(torch.tensor([[1.0], [4.0]]), torch.tensor([1.0, 2.0]))
        tensor([0., 4.])
    """
    if _sizes(outputs) != _sizes(targets):  # as many numbers in another order would be no targets of these outputs
        raise ValueError(
            f"shapes {list(outputs.shape)} of outputs and {list(targets.shape)} of targets differ in more than axes of "
            "length 1"
        )
    return (outputs - targets.view_as(outputs)).square().reshape(len(outputs), -1).sum(-1)


def _sizes(x: Tensor) -> list[int]:
    return [len(x), *(size for size in x.shape[1:] if size > 1)]


LOSSES = (cross_entropy, squared_error)
