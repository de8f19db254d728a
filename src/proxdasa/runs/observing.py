"""How often to observe with "auto": as often as possible while measuring takes at most a set share of the work.

The choice depends on sizes alone, never on the clock, so a run has the same records wherever it is made.
"""

from __future__ import annotations

import itertools
import math

from proxdasa.contracts import Problem

AUTO = "auto"
SHARE = 0.2
"""The share of a run that measuring may take."""
STEP = 500
"""The cost of an iteration besides the gradient, for each coordinate of an agent, in operations of large products.

Measured: about 1,000 for a9a's perceptron, 150 for MNIST's LeNet.
"""
SAMPLE = 6
"""Operations of a sample gradient for each coordinate, where the problem does not say."""


def choose_pace(problem: Problem, iterations: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... with which measuring takes at most a fifth of the operations.

    An evaluation may then cost as much as a quarter of the iterations between two of them.
    """
    sample, evaluation = _work(problem)
    least = evaluation * (1 - SHARE) / SHARE / (sample + STEP * problem.dim)
    paces = (int(digit * 10**power) for power in itertools.count() for digit in (1, 2, 5))
    return min(iterations, next(pace for pace in paces if pace >= min(least, iterations)))


def _work(problem: Problem) -> tuple[float, float]:
    """The operations of a sample gradient and of an evaluation, for one agent."""
    known: tuple[float, float] | None = getattr(problem, "work", None)
    if known is not None:
        return known
    if math.isinf(problem.epoch):
        raise ValueError(
            f'observe_every="auto" needs to know what an evaluation costs, but {type(problem).__name__} does not say; '
            "give a number of iterations, or give the problem an attribute work (contracts.Observed)"
        )
    return SAMPLE * problem.dim, SAMPLE * problem.dim * problem.epoch
