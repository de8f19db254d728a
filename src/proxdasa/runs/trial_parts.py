"""A run in parts, each with some of its trials: computed one by one or in several processes, and merged.

How numbers are rounded depends on how many trials are computed in one stack. So the parts of a run depend on its sizes
alone, and each is computed in one thread wherever it is computed: the results have the same bits for any number of
processes. Trials share nothing, so a part need not know about the others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from proxdasa.contracts import Algorithm, parameters_of
from proxdasa.engines.simulator import group_size
from proxdasa.problems.repeated import periods_of
from proxdasa.regularizers.penalty_weights import PerTrial, parts_within, weights_within
from proxdasa.runs.compiling import COMPILED, compiles
from proxdasa.runs.identity import is_ours
from proxdasa.runs.progress import Listeners, Progress
from proxdasa.runs.records import Row
from proxdasa.runs.results import Result
from proxdasa.runs.saving import part_name
from proxdasa.runs.setup import Setup

SIZE = 2**18
"""The fewest elements of a state variable in a part: with fewer, the fixed costs of a step outweigh its arithmetic."""


def divide(setup: Setup, begun: Collection[str] = ()) -> list[range]:
    """The trials of each part; a single range if the run stays whole.

    Some runs stay whole: a stopping rule waits for all trials, the costs of a run whose network fails are means over
    its trials, and exact steps have their own order of sums. A run that an earlier version has ``begun`` without
    compiling it, as the names of its folders say, goes on with the parts that it had.
    """
    parts = _divide(setup, compiles(setup))
    return parts if {*begun} <= {*map(part_name, parts)} else _divide(setup, compiled=False)


def _divide(setup: Setup, compiled: bool) -> list[range]:
    whole = [range(setup.trials)]
    if setup.device != "cpu":  # a device serves one process, and is fast with large stacks
        return whole
    together = setup.stop or setup.conditions or setup.exact or setup.network.rounds
    if together or any(weights_within([metric.parameters for metric in setup.metrics], "")):
        return whole
    # A user's own measure or regularizer may hold per-trial values that we do not know of.
    if not all(map(is_ours, [*(metric.of for metric in setup.metrics), setup.regularizer])):
        return whole
    width = setup.network.n * setup.problem.dim
    # The parts of a compiled run then have the same code: each of its calls takes that many trials.
    unit = math.lcm(next(iter(periods_of(setup.problem)), 1), group_size(setup.trials, width) if compiled else 1)
    if setup.trials % unit:
        return whole
    units = setup.trials // unit
    most = min(units, setup.trials * width // SIZE)
    # Prefer parts of equal size, even if they are slightly fewer: otherwise processes wait for the largest part.
    count = next((fewer for fewer in range(most, max(1, most // 2), -1) if units % fewer == 0), most)
    if count < 2:
        return whole
    bounds = [units * number // count * unit for number in range(count + 1)]
    return [range(*pair) for pair in itertools.pairwise(bounds)]


@dataclass(frozen=True, eq=False, kw_only=True)
class Part(Setup):
    """Some trials of a run: the same iterates as in a run of all of them, up to rounding."""

    whole: Setup
    chosen: range

    @staticmethod
    def of(whole: Setup, chosen: range) -> Part:
        """The part with these trials."""
        # The problem has its type already.
        changes = {"trials": len(chosen), "dtype": None, "regularizer": _cut_weights(whole.regularizer, chosen)}
        if compiles(whole):  # a part alone might be too small
            changes["compile"] = True
        return Part(**{**whole.settings(), **changes}, whole=whole, chosen=chosen)

    @property
    def first_trial(self) -> int:  # type: ignore[override]
        """The number of the first trial."""
        return self.chosen.start

    @property
    def first_named(self) -> int:  # type: ignore[override]
        """The trial by which the samples of the first trial are named."""
        return 0 if periods_of(self.problem) else self.chosen.start

    @property
    def place(self) -> dict[str, Any]:
        """The trials, which distinguish its checkpoints from those of other parts."""
        return super().place | {"part": [self.chosen.start, self.chosen.stop]}

    def config(self) -> dict[str, Any]:
        """The configuration of the whole run."""
        return self.whole.config()

    def bound(self) -> Algorithm:
        """The algorithm of the whole run, with the parameters of these trials."""
        bound = self.whole.bound()
        values = parameters_of(bound)
        cut = {name: _cut_number(value, self.chosen) for name, value in values.items()}
        changes = {name: value for name, value in cut.items() if value is not values[name]}
        chosen: Algorithm = dataclasses.replace(bound, **changes)  # type: ignore[type-var]
        return chosen

    def start(self, agents: range | None = None) -> Tensor:
        """x⁰ of these trials."""
        return self.whole.start(agents)[self.chosen.start : self.chosen.stop].clone()

    def random_iterates(self) -> dict[int, list[int]]:
        """The random iterates of these trials."""
        return {
            k: own
            for k, trials in self.whole.random_iterates().items()
            if (own := [trial - self.chosen.start for trial in trials if trial in self.chosen])
        }


def _cut_number(value: Any, trials: range) -> Any:
    """A parameter of a method for some of the trials."""
    if isinstance(value, Tensor):
        return value[trials.start : trials.stop]
    return _cut_schedule(value, trials) if callable(value) else value


def _cut_schedule(schedule: Callable[[int], Any], trials: range) -> Callable[[int], Any]:
    return lambda k: _cut_number(schedule(k), trials)


def _cut_weights(thing: Any, trials: range) -> Any:
    """A regularizer, or something within it, with the weights of some of the trials."""
    if isinstance(thing, PerTrial):
        return PerTrial(thing.values[trials.start : trials.stop])
    if not any(weights_within(thing, "")):
        return thing
    changed = [(name.rpartition(".")[2], _cut_weights(part, trials)) for name, part in parts_within(thing, "")]
    if isinstance(thing, Mapping):
        return dict(changed)
    if isinstance(thing, tuple | list):
        return type(thing)(part for _, part in changed)
    return dataclasses.replace(thing, **dict(changed))


class Together:
    """The progress of parts as that of the run: an observation is reported once all parts have made it."""

    def __init__(self, progress: Progress | Sequence[Progress] | None, parts: Sequence[range]) -> None:
        self._listeners, self._parts = Listeners(progress), parts
        self.note = self._listeners.note
        self._made = [-1] * len(parts)
        self._ended: set[int] = set()
        self._diverged: set[int] = set()
        self._waiting: dict[int, dict[int, list[Row]]] = {}
        self._seconds = [0.0] * len(parts)
        self._shown = -1
        self.incomplete = False
        """Whether some parts have to wait for a process; until they begin, the mean of all parts is reported."""

    def report(self, number: int, k: int, iterations: int, rows: Sequence[Row]) -> None:
        """Part ``number`` has made k iterations."""
        self._made[number], self._iterations = k, iterations
        if rows:
            self._waiting.setdefault(k, {})[number] = _renumber(rows, self._parts[number])
        self._show()

    def end(self, number: int, how: str | None) -> None:
        """Part ``number`` makes no further report; ``how`` is why it ended early, if it did (`Result.stopped`)."""
        self._ended.add(number)
        if how == "diverged":
            self._diverged.add(number)
        if how != "interrupted":
            self._show()

    def _show(self) -> None:
        if self.incomplete:
            if mean := sum(max(made, 0) for made in self._made) // len(self._made):
                self._listeners.report(mean, self._iterations, ())
            return
        running = [made for number, made in enumerate(self._made) if number not in self._ended]
        least = min(running, default=max(self._made))
        for k in sorted(k for k in self._waiting if k <= least):
            found = self._waiting[k]
            absent = set(range(len(self._parts))) - found.keys() - self._ended
            if any(self._made[number] == k for number in absent):
                break  # such a part has observed that all its trials diverged, and is about to end
            del self._waiting[k]
            for number, rows in found.items():
                self._seconds[number] = rows[0]["seconds"]
            # Parts of a resumed run may continue from different iterations; what only some observe again was reported
            # before.
            if len(found.keys() | self._diverged) == len(self._parts):
                self._shown = k
                rows = [row for _, part in sorted(found.items()) for row in part]
                self._listeners.report(k, self._iterations, _with_seconds(rows, {k: sum(self._seconds)}))
        if least > self._shown:
            self._shown = least
            self._listeners.report(least, self._iterations, ())


def merge(setup: Setup, parts: Sequence[range], results: Sequence[Result]) -> Result:
    """The result of the run from those of its parts.

    If it was interrupted, some parts may be further than others. Records are kept up to where all parts have them; each
    part continues from where it was.
    """
    ends = [result.stopped for result in results]
    interrupted = "interrupted" in ends
    made = (min if interrupted else max)(result.iterations for result in results)
    rows = [row for part, result in zip(parts, results, strict=True) for row in _renumber(result.records, part)]
    rows = _with_seconds(rows, _add_up_seconds([result.records for result in results]))
    # One part may have been interrupted before an observation that another has made.
    seen = [max((row["k"] for row in result.records), default=0) for result in results if result.stopped != "diverged"]
    known = min([made, *seen]) if interrupted else made
    names = results[0].state if all(result.state for result in results) else ()
    points = [result.proximal_point for result in results if result.proximal_point is not None]
    config, compiled = setup.config(), [result.config["facts"].get(COMPILED) for result in results]
    if None not in compiled:
        config["facts"] |= {COMPILED: all(compiled)}
    return Result(
        config=config,
        records=sorted((row for row in rows if row["k"] <= known), key=lambda row: (row["k"], row["trial"])),
        state={name: torch.cat([result.state[name] for result in results]) for name in names},
        iterations=made,
        stopped="interrupted" if interrupted else "diverged" if set(ends) == {"diverged"} else None,
        diverged={
            part.start + trial: where
            for part, result in zip(parts, results, strict=True)
            for trial, where in result.diverged.items()
        },
        proximal_point=torch.cat(points) if names else None,
    )


def _renumber(rows: Sequence[Row], part: range) -> list[Row]:
    """Rows of a part with the numbers of their trials in the run."""
    return [{**row, "trial": part.start + row["trial"]} for row in rows]


def _add_up_seconds(records: Sequence[Sequence[Row]]) -> dict[int, float]:
    """The seconds of all parts together, by iteration; a part that has diverged keeps its last ones."""
    spent = [{row["k"]: row["seconds"] for row in rows} for rows in records]
    latest, totals = [0.0] * len(spent), dict[int, float]()
    for k in sorted({k for part in spent for k in part}):
        latest = [part.get(k, before) for part, before in zip(spent, latest, strict=True)]
        totals[k] = sum(latest)
    return totals


def _with_seconds(rows: Sequence[Row], totals: Mapping[int, float]) -> list[Row]:
    """Rows with the seconds of all trials, as in a run that stays whole, in place of those of a part."""
    return [{**row, "seconds": totals[row["k"]]} for row in rows]
