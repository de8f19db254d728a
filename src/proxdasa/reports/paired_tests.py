"""Which runs are worse than the best: a paired test over the trials that share their seed, corrected for many tests.

Trials of one seed see the same samples, so the test is on the T differences d of pairs. Wilcoxon's signed-rank test
uses only their signs and the order of their sizes: an outlier weighs no more than the largest rank, whereas it would
hide every difference from a t-test. Its p-value is at least 2/2^T. So if T trials are too few to distinguish m runs
from the best, 2 m/2^T ≥ 0.05, Student's paired t-test takes its place, which assumes that d is normal. Both are
two-sided, and Holm's correction keeps the risk of wrongly finding any of the m worse at 0.05.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

LEVEL = 0.05
"""Runs whose p-value is at least this are ties."""


class Finding(NamedTuple):
    """What the test finds about differences."""

    lean: float
    """Its statistic: positive if the differences tend to be positive."""
    p: float


class PairedTest(NamedTuple):
    """A test by name."""

    name: str
    find: Callable[[ArrayLike], Finding]


class Verdict(NamedTuple):
    """A run against the best one of its group."""

    trials: int
    """Pairs of trials that share their seed."""
    worse_in: int
    p: float
    corrected: float
    worse: bool


def signed_rank(differences: ArrayLike) -> Finding:
    """Wilcoxon's signed-rank test: the sum of the ranks of |d|, each with the sign of its d.

    Equal |d| share the mean of their ranks, and zeros are ranked and then left out (Pratt). The p-value is exact for
    these ranks: each of them has either sign with probability 1/2.
    """
    d = np.asarray(differences, dtype=float)
    _, place, equal = np.unique(np.abs(d), return_inverse=True, return_counts=True)
    ranks = (2 * equal.cumsum() - equal + 1)[place]  # twice the ranks, so that they are integers
    positive, total = int(ranks[d > 0].sum()), int(ranks[d != 0].sum())
    chances = np.ones(1)  # of each sum of positive ranks
    for rank in ranks[d != 0]:
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    tail = chances[: min(positive, total - positive) + 1].sum()
    return Finding(positive - total / 2, min(1.0, 2 * float(tail)))


def student(differences: ArrayLike) -> Finding:
    """Student's paired t-test: t = √T mean(d)/s(d)."""
    d = np.asarray(differences, dtype=float)
    mean, error = float(d.mean()), float(d.std(ddof=1)) / len(d) ** 0.5
    if error == 0:
        return Finding(mean, 1.0 if mean == 0 else 0.0)
    return Finding(mean, float(2 * stdtr(len(d) - 1, -abs(mean / error))))


SIGNED_RANK = PairedTest("Wilcoxon's signed-rank test", signed_rank)
STUDENT = PairedTest("a paired t-test", student)


def choose_test(trials: int, tests: int) -> PairedTest:
    """The signed-rank test, if the trials are enough for this many tests, otherwise Student's."""
    return SIGNED_RANK if tests * 2 / 2**trials < LEVEL else STUDENT


def judge(test: PairedTest, differences: Sequence[Sequence[float]]) -> list[Verdict]:
    """The verdicts on runs, by their differences from the best; a difference above 0 is a trial that is worse."""
    found = [test.find(d) for d in differences]
    corrected = holm([finding.p for finding in found])
    return [
        Verdict(len(d), int((np.asarray(d) > 0).sum()), finding.p, p, p < LEVEL and finding.lean > 0)
        for d, finding, p in zip(differences, found, corrected, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number m: the i-th smallest times m − i + 1, and no less than a smaller one's."""
    p, m = np.asarray(p_values, dtype=float), len(p_values)
    order = p.argsort(kind="stable")
    corrected = np.empty(m)
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(m, 0, -1)))
    return [float(each) for each in corrected]
