"""Settings to try: the combinations of a grid, or random draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from proxdasa import memory_budget
from proxdasa.checks import check_count
from proxdasa.schedules import per_trial

Setting = Mapping[str, float]
"""Values of parameters, by the names that `tunable` and `searchable_weights` give them."""

SETTING = 500
"""Bytes of memory for a setting."""
SAMPLES = 20
"""How many settings are drawn by default."""
MOST_SAMPLES = 100_000
"""The most settings that one call may draw."""


def choose(
    grid: Mapping[str, Sequence[float]] | None,
    random: Mapping[str, tuple[float, float]] | None,
    samples: int | None,
    seed: int,
) -> list[Setting]:
    """The settings to try: all of a grid, or random draws; exactly one of the two must be given."""
    if bool(grid) == bool(random):
        raise ValueError("a search needs either a grid of values or random ranges, and not both")
    if grid and samples is not None:
        raise ValueError(f"samples = {samples} is for random ranges, and a grid is tried as a whole; leave it out")
    return combinations(grid) if grid else draws(random or {}, SAMPLES if samples is None else samples, seed)


def combinations(grid: Mapping[str, Sequence[float]]) -> list[Setting]:
    """All combinations of values, the last parameter changing fastest; repeated values count once."""
    for name, values in grid.items():
        if not _is_list(values):
            raise TypeError(f"{name} must be a list of values to try; got {values!r}")
        if not len(values):
            raise ValueError(f"{name} has no values to try")
    columns = [list(dict.fromkeys(map(float, values))) for values in grid.values()]
    count = math.prod(map(len, columns))
    memory_budget.check(SETTING * count, f"a grid of {count:,} settings", "random draws need less")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*columns)]


def draws(ranges: Mapping[str, tuple[float, float]], samples: int, seed: int) -> list[Setting]:
    """Settings with log-uniform values, rounded to four digits, which are enough and easier to write down."""
    check_count(samples, "samples")
    if samples > MOST_SAMPLES:
        raise ValueError(f"samples must be at most {MOST_SAMPLES:,}; got {samples:,}")
    for name, pair in ranges.items():
        if not _is_list(pair) or len(pair) != 2:
            raise TypeError(f"the range of {name} must be a pair (low, high); got {pair!r}")
        low, high = pair
        if not 0 < low < high < math.inf:
            raise ValueError(f"the range of {name} must be from one positive number to a larger one; got {low}..{high}")
    bounds = np.log(np.array(list(ranges.values()), dtype=float))
    drawn = np.exp(np.random.default_rng(seed).uniform(bounds[:, 0], bounds[:, 1], (samples, len(ranges))))
    return [{name: float(f"{v:.4g}") for name, v in zip(ranges, row, strict=True)} for row in drawn]


def _is_list(values: object) -> bool:
    """Whether this is a list of some kind; a text, whose characters may be digits, is none."""
    return isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)


def stack(settings: Sequence[Setting], repetitions: int = 1) -> dict[str, Tensor]:
    """The values of all settings at once, by name: trial s · R + r has those of setting s, for R repetitions."""
    return {name: per_trial([each[name] for each in settings for _ in range(repetitions)]) for name in settings[0]}
