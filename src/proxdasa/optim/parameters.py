"""Parameters of a model as one row ``[1, 1, d]``: one trial, one agent, d coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """A new row ``[1, 1, d]`` with the values of all tensors."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).view(1, 1, -1)


def shapes_of(entries: dict[str, Any]) -> dict[str, Any]:
    """The shape of each tensor in a parameter's saved state."""
    return {name: getattr(value, "shape", None) for name, value in entries.items()}


def name_of(number: int, parameter: Tensor) -> str:
    """What error messages call a parameter."""
    return f"parameter {number}, of shape {list(parameter.shape)},"


def check_trained(params: Mapping[int, Tensor]) -> None:
    """Raise unless the trained parameters fit into one row: at least one, of one type, on one device."""
    if not params:
        raise ValueError("there are no parameters to train: all that were given are frozen (requires_grad is False)")
    origin, first = next(iter(params.items()))
    for number, parameter in params.items():
        if parameter.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name_of(number, parameter)} is {parameter.dtype}; accepted: float32 or float64")
        if (parameter.dtype, parameter.device) != (first.dtype, first.device):
            raise TypeError(
                f"{name_of(number, parameter)} is {parameter.dtype} on {parameter.device}, but parameter {origin} is "
                f"{first.dtype} on {first.device}; all must have the same type and device"
            )
