"""What sites find out together, by rounds among neighbours: means of numbers, and whether all of them say yes.

Nobody collects anything. **Means** are mixed as x is: after ⌈ln ε / ln ρ⌉ rounds the share ε of the spread is left. A
row of weights, which begins as 1 for the site itself, is mixed along, so that a site sees whose numbers its mean is of.
**Yes** is said by one mark for each site, and all marks seen are passed on: n − 1 rounds reach everybody over any links
that hold the network together, and a site that has seen n marks knows, whatever was lost on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxdasa.sites.rounds import Row


class Mean(NamedTuple):
    """Means over sites of some numbers."""

    values: list[float]
    over: float
    """Of how many sites: 1 / Σ_j w_j², which is n if all have the weight 1/n, and less if some are missing."""


def average(mix: Callable[[Tensor], Tensor], numbers: Sequence[float], here: int, n: int, rounds: int) -> Mean:
    """The means of the sites' numbers, by rounds of mixing.

    A site whose numbers are not all finite gives none, and gets the means of the others.
    """
    row = torch.zeros(1, 1, len(numbers) + n, dtype=torch.float64)
    if all(map(math.isfinite, numbers)):
        row[..., : len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        row[..., len(numbers) + here] = 1.0
    for _ in range(rounds):
        row = mix(row)
    sums, weights = torch.split(row.flatten(), [len(numbers), n])
    total = float(weights.sum())
    if total <= 0:  # nobody whom we have heard of has finite numbers
        return Mean([math.nan] * len(numbers), 0.0)
    return Mean((sums / total).tolist(), total**2 / float(weights.square().sum()))


def unanimous(exchange: Callable[[Row], Mapping[str, Row]], yes: bool, here: int, n: int) -> bool:
    """Whether all n sites say yes, as far as this site can know: false if it has not heard of all."""
    marks = np.zeros((1, 1, n), np.uint8)
    marks[..., here] = yes
    for _ in range(n - 1):
        for others in exchange(marks).values():
            marks |= others != 0
    return bool(marks.all())


def mixing_rounds(rho: float, left: float) -> int:
    """How many rounds of mixing leave at most this share of the spread: ρ^rounds ≤ left."""
    return max(1, math.ceil(math.log(left) / math.log(rho))) if rho > 0 else 1
