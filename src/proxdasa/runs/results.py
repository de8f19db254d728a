"""The result of a run: final state, records, configuration, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxdasa.runs import records as files
from proxdasa.runs.records import Row

RANDOM_ITERATE = "random_iterate"
EXTRA = "beside."
"""Begins the names of rows that agents keep beside the variables of the method; no variable's name has a dot."""
SOLUTION = "solution"
"""The name of the solution in the file of the final state, which no variable of a method may have."""


class Divergence(NamedTuple):
    """Where a non-finite value first appeared."""

    agent: int
    iteration: int


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of a run. Trials that diverged have records up to then and a non-finite final state.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(
        ...     proxdasa.ProxDASA(gamma=0.5, alpha=0.3), problem, networks.ring(3), iterations=200, trials=2
        ... )
        >>> result.x.shape, result.mean.shape
        (torch.Size([2, 3, 2]), torch.Size([2, 2]))
        >>> result.solution.round(decimals=3)
        tensor([[1., 1.],
                [1., 1.]])
        >>> [row["trial"] for row in result.last], f"{result.last[0]['loss']:.3f}"
        ([0, 1], '-1.000')
        >>> result.save("results/first").name
        'first'
    """

    config: dict[str, Any]
    """What was run, as plain values, with the facts of the network under "facts"."""
    records: list[Row]
    """One row per trial and observation; ``pandas.DataFrame(result.records)`` makes a table of it."""
    state: dict[str, Tensor]
    """The final state by the method's own names (x, z, ...), each ``[trials, agents, d]``, and what agents keep beside
    it (``beside.…``), of any width."""
    iterations: int
    """The number of iterations made."""
    stopped: str | None = None
    """Why the run ended early: "stationary", "interrupted", "diverged", or None if it did not."""
    diverged: dict[int, Divergence] = field(default_factory=dict)
    """The trials that diverged, and where."""
    stationary: dict[int, int] = field(default_factory=dict)
    """The trials that satisfied the stopping rule, and after how many iterations."""
    proximal_point: Tensor | None = None
    """What `solution` returns, if it is there."""

    @property
    def x(self) -> Tensor:
        """The last iterates ``[trials, agents, d]``."""
        if "x" not in self.state:
            raise ValueError("this run was stopped before its first iteration, so it has no iterates")
        return self.state["x"]

    @property
    def mean(self) -> Tensor:
        """x̄ over agents ``[trials, d]``."""
        return self.x.mean(dim=1)

    @property
    def solution(self) -> Tensor:
        """The answer of the run ``[trials, d]``: a proximal point, with the exact zeros that Ψ asks for.

            y = prox_γ(x̄ − γ z̄)   for methods that average gradients in z
            y = prox_γ(x̄)         for all others

        x̄, an average over agents and iterations, has small values where y has zeros. γ is the method's own proximal
        step, or 1 for methods whose step varies, DEEPSTORM and SPPDM. As the method converges, the first y and x̄ have
        the same limit; the second shrinks that limit once more, with L1(λ) by γλ. Without Ψ it is x̄. NaN for trials
        that diverged.
        """
        if self.proximal_point is None:
            why = "its files were written by a version that did not save it" if self.state else "it has no iterates"
            raise ValueError(f"this run has no solution: {why}; result.mean, if there is one, is x̄")
        return self.proximal_point

    @property
    def buffers(self) -> Tensor | None:
        """The running statistics of the agents' networks ``[trials, agents, s]``, if they have any (`Supervised`)."""
        return self.state.get(EXTRA + "buffers")

    @property
    def density(self) -> Tensor:
        """The share of nonzeros in the solution of each trial ``[trials]``; NaN for trials that diverged."""
        share = (self.solution != 0).to(self.solution.dtype).mean(dim=1)
        return torch.where(self.solution.isnan().any(dim=1), torch.nan, share)

    @property
    def last(self) -> list[Row]:
        """The records of the last observation, a row for each trial that has not diverged."""
        return [row for row in self.records if row["k"] == self.records[-1]["k"]]

    @property
    def random_iterate(self) -> Tensor:
        """The theory's x^R, P(R = k) ∝ α_k, ``[trials, agents, d]``; only with ``run(..., random_iterate=True)``.

        NaN for a trial whose run ended before its R.
        """
        if RANDOM_ITERATE not in self.state:
            raise ValueError("this run did not keep x^R; ask for it with run(..., random_iterate=True)")
        return self.state[RANDOM_ITERATE]

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Write config.json, records.jsonl and final.safetensors; refuses to replace results unless ``overwrite``.

        If the disk has no room for the final state, the records are kept without it, and an OSError says so.
        """
        folder = Path(folder)
        if not overwrite and (folder / files.RECORDS).exists():
            raise FileExistsError(f"{folder} holds results already; choose another folder or overwrite=True")
        ending = {
            "iterations": self.iterations,
            "stopped": self.stopped,
            "diverged": {str(trial): where._asdict() for trial, where in self.diverged.items()},
            "stationary": {str(trial): k for trial, k in self.stationary.items()},
        }
        solution = {} if self.proximal_point is None else {SOLUTION: self.proximal_point}
        files.write_folder(folder, {**self.config, "ending": ending}, self.records, {**self.state, **solution})
        return folder


def load(folder: str | Path) -> Result:
    """Load a result that `Result.save` wrote.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(proxdasa.ProxDASA(gamma=0.5), problem, networks.ring(3), iterations=50)
        >>> folder = result.save("results/second")
        >>> loaded = proxdasa.load(folder)
        >>> torch.equal(loaded.x, result.x), torch.equal(loaded.solution, result.solution)
        (True, True)
    """
    folder = Path(folder)
    config = files.read_config(folder)
    ending = config.pop("ending")
    state = files.read_tensors(folder)
    solution = state.pop(SOLUTION, None)
    return Result(
        config=config,
        records=files.read_rows(folder),
        state=state,
        iterations=ending["iterations"],
        stopped=ending["stopped"],
        diverged={int(trial): Divergence(**where) for trial, where in ending["diverged"].items()},
        stationary={int(trial): k for trial, k in ending.get("stationary", {}).items()},
        proximal_point=solution,
    )
