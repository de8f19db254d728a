"""Arithmetic on rows in one pass over memory; plain expressions would take several passes."""

from __future__ import annotations

import torch
from torch import Tensor

from proxdasa.schedules import Number


def descend(x: Tensor, γ: Number, z: Tensor) -> Tensor:
    """x − γ z in one pass over memory."""
    return advance(x, -γ, z)


def advance(x: Tensor, γ: Number, z: Tensor) -> Tensor:
    """x + γ z in one pass over memory."""
    return torch.addcmul(x, γ, z) if isinstance(γ, Tensor) else torch.add(x, z, alpha=γ)
