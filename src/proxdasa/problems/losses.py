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
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of each example ``[N]``.

    Examples:
        >>> problems.squared_error(torch.tensor([[1.0], [4.0]]), torch.tensor([1.0, 2.0]))
        tensor([0., 4.])
    """
    return (outputs - targets.view_as(outputs)).square().reshape(len(outputs), -1).sum(-1)


LOSSES = (cross_entropy, squared_error)
