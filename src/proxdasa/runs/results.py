"""The result of a run: final state, records, configuration, and how it ended."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from proxdasa.runs import records as files
from proxdasa.runs.records import Row

RANDOM_ITERATE = "random_iterate"
EXTRA = "beside."
"""The prefix of rows that agents keep beside the variables of the method; no variable's name has a dot."""
SOLUTION = "solution"
"""The name of the solution in the file of the final state, which no variable of a method may have."""


MEASURES = ("loss", "objective", "stationarity", "consensus", "accuracy")
"""The measures that ``repr(result)`` shows."""


class Divergence(NamedTuple):
    """Where a non-finite value first appeared."""

    agent: int
    iteration: int


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The outcome of a run. Trials that diverged have records up to then and a non-finite final state.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(
        ...     proxdasa.ProxDASA(gamma=0.5, alpha=0.3), problem, networks.ring(3), iterations=80, trials=2
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
    """One row per trial and observation; `to_frame` makes a table of them."""
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

    def to_frame(self, backend: Literal["pandas", "polars", "pyarrow"] = "pandas") -> Any:
        """The records as a data frame of pandas or polars, or a table of pyarrow.

        Records are plain rows, so a value that a row lacks is missing in the frame.

        Examples:
            >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
            >>> result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=20, observe_every=10)
            >>> result.to_frame("pyarrow").num_rows
            3
        """
        try:
            import narwhals  # noqa: PLC0415 - few runs need it
        except ImportError:
            raise ImportError("to_frame needs narwhals: pip install 'proxdasa[frames]'") from None
        names = dict.fromkeys(name for row in self.records for name in row)
        columns = {name: [row.get(name) for row in self.records] for name in names}
        return narwhals.from_dict(columns, backend=backend).to_native()

    def __repr__(self) -> str:
        """Five lines: what was run, on which graph, how it ended, what it cost, and the last measures."""
        facts, last = self.config.get("facts", {}), self.last if self.records else []
        trials = "1 trial" if self.config.get("trials", 1) == 1 else f"{self.config['trials']} trials"
        ended = f"stopped early ({self.stopped})" if self.stopped else "finished"
        diverged = f", {len(self.diverged)} of {trials} diverged" if self.diverged else ""
        costs = {name: last[0][name] for name in ("gradients", "rounds", "seconds") if last and name in last[0]}
        means = {name: sum(row[name] for row in last) / len(last) for name in MEASURES if last and name in last[0]}
        return "\n".join(
            [
                f"Result of {facts.get('title', '?')} on {_name(self.config.get('problem'))}, {trials}",
                f"  network: {_name(self.config.get('network'))} of {facts.get('agents', '?')} agents",
                f"  ending: {ended} after {self.iterations:,} iterations{diverged}",
                f"  costs: {_values(costs) or 'none recorded'}",
                f"  last: {_values(means) or 'nothing recorded'}",
            ]
        )

    def full_config(self) -> dict[str, Any]:
        """What was run and how it ended, as in config.json."""
        ending = {
            "iterations": self.iterations,
            "stopped": self.stopped,
            "diverged": {str(trial): where._asdict() for trial, where in self.diverged.items()},
            "stationary": {str(trial): k for trial, k in self.stationary.items()},
        }
        return {**self.config, "ending": ending}

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Write config.json, records.jsonl and final.safetensors; refuses to replace results unless ``overwrite``.

        If the disk has no room for the final state, the records are kept without it, and an OSError says so.
        """
        folder = Path(folder)
        if not overwrite and (folder / files.RECORDS).exists():
            raise FileExistsError(f"{folder} holds results already; choose another folder or overwrite=True")
        solution = {} if self.proximal_point is None else {SOLUTION: self.proximal_point}
        files.write_folder(folder, self.full_config(), self.records, {**self.state, **solution})
        return folder


def _name(described: Any) -> str:
    return str(described.get("name", "?")) if isinstance(described, dict) else str(described)


def _values(numbers: Mapping[Any, float]) -> str:
    return ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())


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
    try:
        iterations, stopped = operator.index(ending["iterations"]), ending["stopped"]
        diverged = {int(trial): Divergence(**where) for trial, where in ending["diverged"].items()}
        stationary = {int(trial): operator.index(k) for trial, k in ending.get("stationary", {}).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder / files.CONFIG}: how the run ended cannot be read from {ending!r:.200}") from error
    state = files.read_tensors(folder)
    solution = state.pop(SOLUTION, None)
    return Result(
        config=config,
        records=files.read_rows(folder),
        state=state,
        iterations=iterations,
        stopped=stopped,
        diverged=diverged,
        stationary=stationary,
        proximal_point=solution,
    )
