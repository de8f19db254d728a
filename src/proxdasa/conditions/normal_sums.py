"""Gaussian noise of messages, drawn for the sum at each receiver instead of for each message."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from proxdasa.conditions.events import Draws

AT_ONCE = 2**17
"""How many numbers are made at once: as many as fit a processor's cache. Not part of the naming."""


class NormalSums:
    """Noise of standard deviation ``std`` in every coordinate of every message, as receivers see it.

    A receiver adds up Σ_j W_ij σ ε_ij. For independent standard normals ε_ij this is a normal of standard deviation
    σ √(Σ_j W_ij²), and the sums of two receivers have no message in common. So one normal for each receiver and
    coordinate has the same distribution as one for each message, and takes half the time on a ring.

    A normal takes 16 random bits, which choose one of 65,536 equally likely parts of the distribution; the number is
    the mean of that part. Numbers reach 4.4 standard deviations. The inverse distribution function of 32 bits would
    reach further and take more than twice the time.
    """

    def __init__(self, draws: Draws, std: float) -> None:
        self.draws, self.std = draws, std
        self._table = std * quantile_means()

    def __call__(self, tensor: int, d: int, first: int, count: int) -> Tensor:
        """Normals for consecutive rows of d numbers, ``[trials, count, d]``, of a tensor of a message.

        Row number · n + i is that of agent i in the round with this number. The dimension is part of the name, because
        the place of a row in a sequence depends on it: messages of two dimensions would otherwise share numbers.
        """
        made = np.empty((self.draws.trials, count * d), dtype=np.float32)
        for start in range(0, count * d, AT_ONCE):
            part = made[:, start : start + AT_ONCE]
            codes = self.draws.codes(tensor << 32 | d, first * d + start, part.shape[1])
            self._table.take(codes, out=part, mode="wrap")
        return torch.from_numpy(made).view(-1, count, d)


@functools.cache
def quantile_means() -> NDArray[np.float32]:
    """The means of 65,536 equally likely parts of the standard normal distribution, scaled to a variance of 1."""
    # Between a and b the mean is (φ(a) − φ(b)) / (Φ(b) − Φ(a)), where φ is the density.
    density = np.exp(-(ndtri(np.linspace(0, 1, 2**16 + 1)) ** 2) / 2) / np.sqrt(2 * np.pi)
    means = -np.diff(density) * 2**16
    means = (means - means[::-1]) / 2  # symmetric, whatever the rounding
    scaled: NDArray[np.float32] = (means / means.std()).astype(np.float32)
    return scaled
