"""Trials that see the same samples, for a fair comparison of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from proxdasa.checks import check_count
from proxdasa.contracts import (
    Evaluation,
    Observed,
    PartialGrad,
    Peers,
    Problem,
    Running,
    observed_of,
    partial_grad_of,
    running_of,
)


@dataclass(frozen=True, eq=False)
class Repeated:
    """A problem whose samples and starting points repeat after ``trials`` = T trials.

        ξ_i(trial, k) = ξ_i(trial mod T, k),      x⁰(trial) = x⁰(trial mod T)

    The events of conditions and the random numbers of compressed messages repeat too. So with parameters that differ by
    trial, each block of T trials is the run of T trials that has its parameters.

    Examples:
        >>> problem = problems.PhaseRetrieval(agents=4, dim=5, sparsity=2, evaluation=100)
        >>> method = proxdasa.ProxDASA(gamma=0.01)
        >>> same = proxdasa.run(method, problems.Repeated(problem, 1), networks.ring(4), iterations=20, trials=2)
        >>> torch.equal(same.x[0], same.x[1])
        True
    """

    problem: Problem
    trials: int

    def __post_init__(self) -> None:
        check_count(self.trials, "trials")

    @property
    def agents(self) -> int:
        """The number n of agents."""
        return self.problem.agents

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.problem.dim

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the problem."""
        return self.problem.dtype

    @property
    def epoch(self) -> float:
        """The number of samples in one pass over an agent's data."""
        return self.problem.epoch

    @property
    def words(self) -> int:
        """The number of random words per sample of the problem."""
        return self.problem.words

    @property
    def running(self) -> Running | None:
        """The running statistics of the problem, if it has any; its samples repeat, and so do they."""
        return running_of(self.problem)

    @property
    def observed(self) -> Observed | None:
        """The faster way to measure the problem, if it has one."""
        return observed_of(self.problem)

    @property
    def work(self) -> tuple[float, float] | None:
        """The operations of a sample gradient and of an evaluation, if the problem knows them."""
        return getattr(self.problem, "work", None)

    def to(self, dtype: torch.dtype) -> Repeated:
        """The same problem in another floating-point type."""
        return replace(self, problem=self.problem.to(dtype))

    def to_device(self, device: torch.device) -> Repeated:
        """The same problem, on another device."""
        return replace(self, problem=self.problem.to_device(device))

    def restrict(self, agents: range) -> Repeated:
        """The problem of some of the agents."""
        return replace(self, problem=self.problem.restrict(agents))

    def join(self, peers: Peers) -> Repeated:
        """This part of the problem, after it has joined the others, if it has a method for that."""
        join = getattr(self.problem, "join", None)
        joined = self.problem if join is None else join(peers)
        return self if joined is self.problem else replace(self, problem=joined)

    def start(self, seed: int, trials: int) -> Tensor:
        """The starting points of the first T trials, repeated."""
        return repeat_trials(self.problem.start(seed, self.trials), trials)

    def sample(self, words: Tensor) -> Tensor:
        """The samples of the first T trials, repeated."""
        # The words of later trials go unused; to save them, `Samples` would have to know about repetitions.
        first = self.problem.sample(words[..., : self.trials, :, :])
        return repeat_trials(first, words.shape[-3])

    def grad(self, x: Tensor, sample: Tensor) -> Tensor:
        """The gradients of the problem."""
        return self.problem.grad(x, sample)

    @property
    def grad_of(self) -> PartialGrad | None:
        """The gradients of some of the agents, if the problem computes them."""
        return partial_grad_of(self.problem)

    def evaluate(self, x: Tensor) -> Evaluation:
        """The losses and full gradients of the problem."""
        return self.problem.evaluate(x)

    def scores(self, x: Tensor) -> Mapping[str, Tensor]:
        """The scores of the problem."""
        return self.problem.scores(x)


def periods_of(problem: Problem) -> tuple[int, ...]:
    """If the samples of a problem repeat, after how many trials; each further period repeats within the one before.

    A search repeats the trials of a run, whose problem may be `Repeated` itself.
    """
    return (problem.trials, *periods_of(problem.problem)) if isinstance(problem, Repeated) else ()


def repeat_trials(rows: Tensor, trials: int) -> Tensor:
    """Repeat the rows ``[..., T, n, ?]`` of T trials for all trials; rows that all trials share stay as they are."""
    return rows if rows.ndim < 3 else rows.index_select(-3, torch.arange(trials) % rows.shape[-3])
