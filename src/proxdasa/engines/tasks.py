"""What the agents of an engine work on, and in which batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from proxdasa.conditions import Condition
from proxdasa.contracts import Mixing, Network, Problem, Regularizer
from proxdasa.devices import CPU
from proxdasa.samples import Samples


class Task(NamedTuple):
    """What the agents of an engine work on."""

    problem: Problem
    """The losses of the agents that live in this process."""
    network: Network
    regularizer: Regularizer
    mixing: Mixing
    trials: int
    seed: int
    conditions: Sequence[Condition] = ()
    first_trial: int = 0
    """The number of the first trial, if these are only some trials of a run; samples are named by it."""
    periods: Sequence[int] = ()
    """If samples and events repeat, after how many trials; each further period repeats within the one before."""
    device: torch.device = CPU
    """The device of the rows and of all computation with them; the problem is passed on the host."""


class Cell(NamedTuple):
    """Agents whose rows are computed in one batch."""

    rows: slice
    problem: Problem
    samples: Samples

    @staticmethod
    def of(problem: Problem, rows: slice, agents: range, task: Task) -> Cell:
        """The cell of these agents, whose rows in this process are ``rows``."""
        samples = Samples(problem, task.seed, task.trials, agents, task.first_trial, task.device)
        return Cell(rows, problem if task.device == CPU else problem.to_device(task.device), samples)


def cells_of(task: Task, agents: range, exact: bool) -> list[Cell]:
    """All agents in one cell or, in exact mode, each in its own."""
    if not exact:
        return [Cell.of(task.problem, slice(0, len(agents)), agents, task)]
    alone = [task.problem.restrict(range(i, i + 1)) for i in range(len(agents))]
    return [Cell.of(problem, slice(i, i + 1), agents[i : i + 1], task) for i, problem in enumerate(alone)]
