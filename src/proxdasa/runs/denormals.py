"""Denormal numbers, which slow processors down, flushed to zero."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Context manager: numbers below 1e-38 (denormals) become zero.

    Coordinates that Ψ drives to zero shrink by 1 − α in every step and soon are denormal, with which processors compute
    tens of times slower. A thread inherits the setting of the one that starts it, so threads that torch has already
    started keep theirs.
    """
    tiny = torch.from_numpy(np.full(1, 1e-40, dtype=np.float32))
    # Torch can set the mode but not report it, so a product shows which one is set.
    before = not bool(tiny * 1.0 > 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
