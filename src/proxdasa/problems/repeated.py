"""Trials that see the same: what a fair comparison of parameters needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from proxdasa.contracts import Evaluation, Problem


@dataclass(frozen=True, eq=False)
class Repeated:
    """A problem whose samples and starting points come again after so many trials.

        ξ_i(trial, k) = ξ_i(trial mod T, k),      x⁰(trial) = x⁰(trial mod T)

    With parameters that differ by trial, each block of T trials is the run of T trials that has its parameters.
    """

    problem: Problem
    trials: int

    def __post_init__(self) -> None:
        if not isinstance(self.trials, int) or self.trials < 1:
            raise ValueError(f"trials must be a whole number of at least 1; got {self.trials!r}")

    @property
    def agents(self) -> int:
        """N."""
        return self.problem.agents

    @property
    def dim(self) -> int:
        """D."""
        return self.problem.dim

    @property
    def dtype(self) -> torch.dtype:
        """That of the problem."""
        return self.problem.dtype

    @property
    def epoch(self) -> float:
        """That of the problem."""
        return self.problem.epoch

    @property
    def words(self) -> int:
        """As many as the problem needs."""
        return self.problem.words

    def to(self, dtype: torch.dtype) -> Repeated:
        """The same in another type."""
        return replace(self, problem=self.problem.to(dtype))

    def restrict(self, agents: range) -> Repeated:
        """The losses of some of the agents."""
        return replace(self, problem=self.problem.restrict(agents))

    def start(self, seed: int, trials: int) -> Tensor:
        """The starts of the first T trials, again and again."""
        return again(self.problem.start(seed, self.trials), trials)

    def sample(self, words: Tensor) -> Tensor:
        """The samples of the first T trials, again and again."""
        first = self.problem.sample(words[..., : self.trials, :, :])
        return again(first, words.shape[-3])

    def grad(self, x: Tensor, sample: Tensor) -> Tensor:
        """That of the problem."""
        return self.problem.grad(x, sample)

    def evaluate(self, x: Tensor) -> Evaluation:
        """That of the problem."""
        return self.problem.evaluate(x)

    def scores(self, x: Tensor) -> Mapping[str, Tensor]:
        """Those of the problem."""
        return self.problem.scores(x)


def again(rows: Tensor, trials: int) -> Tensor:
    """Rows ``[..., T, n, ?]`` of the first T trials as those of all; what all trials share stays as it is."""
    return rows if rows.ndim < 3 else rows.index_select(-3, torch.arange(trials) % rows.shape[-3])
