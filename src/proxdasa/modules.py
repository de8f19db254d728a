"""Networks as vectors: which of a module's parameters are trained, in the order in which they make up x."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Model = nn.Module | Callable[[], nn.Module]
"""A network, or a function that makes one."""


def make_module(model: Model, seed: int = 0) -> nn.Module:
    """The network itself, or that which the function makes after torch's generator is seeded.

    The state of the generator is restored.
    """
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        raise TypeError(f"model must be a network or a function that makes one; got {model!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = model()
    if not isinstance(module, nn.Module):
        raise TypeError(f"model must be a network or a function that makes one; it makes {module!r}")
    return module


def trained_shapes(module: nn.Module) -> dict[str, torch.Size]:
    """The shapes of the parameters that are trained, by name; x is their entries, one parameter after the other."""
    return {name: values.shape for name, values in module.named_parameters() if values.requires_grad}
