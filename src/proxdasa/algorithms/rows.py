"""Arithmetic on rows that would take several passes over memory if written out."""

from __future__ import annotations

import torch
from torch import Tensor

from proxdasa.schedules import Number


def descend(x: Tensor, γ: Number, z: Tensor) -> Tensor:
    """One pass over memory for x − γ z."""
    return advance(x, -γ, z)


def advance(x: Tensor, γ: Number, z: Tensor) -> Tensor:
    """One pass over memory for x + γ z."""
    return torch.addcmul(x, γ, z) if isinstance(γ, Tensor) else torch.add(x, z, alpha=γ)
