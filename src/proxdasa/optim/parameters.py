"""Parameters of a model as one row ``[1, 1, d]``: one trial, one agent, d coordinates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

AGENT = "agent"
"""The entry of a group of parameters that says which agent's state it is."""


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """A new row ``[1, 1, d]`` with the values of all tensors."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).view(1, 1, -1)


def forms_of(entries: dict[str, Any]) -> dict[str, Any]:
    """The shape and the type of each tensor in a parameter's saved state."""
    return {name: (getattr(value, "shape", None), getattr(value, "dtype", None)) for name, value in entries.items()}


def check_owner(state: Mapping[str, Any], owner: str, fail: Callable[[str], None]) -> None:
    """Raise, and tell the others, if a state is another agent's: the mean of trackers would be wrong from then on."""
    for saved in (group.get(AGENT, owner) for group in state["param_groups"]):
        if saved != owner:
            reason = f"{owner} loads the state that {saved} saved; every agent saves and loads a file of its own"
            fail(reason)
            raise ValueError(reason)


def name_of(number: int, parameter: Tensor) -> str:
    """What error messages call a parameter."""
    return f"parameter {number}, of shape {list(parameter.shape)},"


def check_trained(params: Mapping[int, Tensor]) -> None:
    """Raise unless the trained parameters fit into one row: at least one, of one type, on one device."""
    if not params:
        raise ValueError("there are no parameters to train: all that were given are frozen (requires_grad is False)")
    if len({id(parameter) for parameter in params.values()}) < len(params):
        raise ValueError("a parameter was given twice; it would be regularised twice")
    origin, first = next(iter(params.items()))
    for number, parameter in params.items():
        if parameter.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name_of(number, parameter)} is {parameter.dtype}; accepted: float32 or float64")
        if (parameter.dtype, parameter.device) != (first.dtype, first.device):
            raise TypeError(
                f"{name_of(number, parameter)} is {parameter.dtype} on {parameter.device}, but parameter {origin} is "
                f"{first.dtype} on {first.device}; all must have the same type and device"
            )
