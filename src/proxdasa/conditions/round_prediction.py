"""Predicts which iterations the next rounds belong to, from earlier rounds."""

from __future__ import annotations

from collections.abc import Sequence

from proxdasa.conditions.events import BLOCK


class RoundPrediction:
    """Predicts the iterations of the next rounds: all steps of a method usually have equally many rounds.

    The prediction is that m rounds belong to one iteration and the next m to the g-th iteration after it. It covers
    one round after it was wrong, and twice as many rounds each time that it was right.
    """

    def __init__(self) -> None:
        self._number, self._k = 0, 0  # where the current prediction began
        self._rounds, self._iterations = 1, 1
        self._ahead = 1

    def predict(self, number: int, k: int, most: int) -> Sequence[int]:
        """The iterations of at most ``most`` rounds from ``number`` on, which itself belongs to iteration k."""
        if self._of(number) == k:
            self._ahead = min(2 * self._ahead, BLOCK)
        else:
            self._learn(number, k)
            self._ahead = 1
        return [self._of(later) for later in range(number, number + min(self._ahead, most))]

    def _of(self, number: int) -> int:
        return self._k + (number - self._number) // self._rounds * self._iterations

    def _learn(self, number: int, k: int) -> None:
        passed, gone = number - self._number, k - self._k
        if passed > 0 and gone == 0:  # this iteration has more rounds than it seemed
            self._rounds = passed + 1
        else:
            forward = passed > 0 and gone > 0
            self._rounds, self._iterations = (passed, gone) if forward else (1, 1)
            self._number, self._k = number, k
