"""Arithmetic on rows that would take several passes over memory if written out."""

from __future__ import annotations

import torch
from torch import Tensor

from proxdasa.schedules import Number


def descend(x: Tensor, γ: Number, z: Tensor) -> Tensor:
    """X − γ z, in one pass."""
    if isinstance(γ, Tensor):
        return torch.addcmul(x, γ, z, value=-1)
    return torch.sub(x, z, alpha=γ)
