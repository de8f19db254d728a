"""Means of numbers over all sites, and unanimous votes, computed by rounds among neighbours.

No site collects the numbers. **Means** are mixed as x is: after ⌈ln ε / ln ρ⌉ rounds a share ε of the spread is left. A
row of weights, initially 1 for the site itself, is mixed along, so that a site sees whose numbers its mean contains.
In a **vote** each site that says yes sets its own mark, and sites pass on all marks that they have seen: n − 1 rounds
reach every site as long as the links connect the network. A site that has seen n marks knows that the vote was
unanimous, whatever messages were lost on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxdasa.sites.rounds import Row

TINY = 1e-9
"""Rounding adds less than this to a weight; the total weight of the sites that a site hears of is larger."""


class Mean(NamedTuple):
    """Means over sites of some numbers."""

    values: list[float]
    over: float
    """The number of sites in the means, 1 / Σ_j w_j²: n if all have the weight 1/n, and less if some are missing."""


def average(mix: Callable[[Tensor], Tensor], numbers: Sequence[float], here: int, n: int, rounds: int) -> Mean:
    """Compute the means of the sites' numbers by rounds of mixing.

    A site whose numbers are not all finite contributes none, and gets the means of the others.
    """
    row = torch.zeros(1, 1, len(numbers) + n, dtype=torch.float64)
    if all(map(math.isfinite, numbers)):
        row[..., : len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        row[..., len(numbers) + here] = 1.0
    for _ in range(rounds):
        row = mix(row)
    sums, weights = torch.split(row.flatten(), [len(numbers), n])
    total = float(weights.sum())
    # The total is zero if no site that we have heard of has finite numbers. Weights that mixing cannot give, or a total
    # whose square is zero in float64, come from a neighbour that lies.
    if not (total > TINY and bool(((weights >= 0) & (weights <= 1 + TINY)).all())):
        return Mean([math.nan] * len(numbers), 0.0)
    return Mean((sums / total).tolist(), total**2 / float(weights.square().sum()))


def unanimous(exchange: Callable[[Row], Mapping[str, Row]], yes: bool, here: int, n: int) -> bool:
    """Whether this site knows that all n sites say yes; false if it has not heard from all of them."""
    marks = np.zeros((1, 1, n), np.uint8)
    marks[..., here] = yes
    for _ in range(n - 1):
        for others in exchange(marks).values():
            marks |= others != 0
    return bool(marks.all())


def mixing_rounds(rho: float, left: float) -> int:
    """The number of rounds of mixing that leave at most the share ``left`` of the spread: ρ^rounds ≤ left."""
    return max(1, math.ceil(math.log(left) / math.log(rho))) if rho > 0 else 1
