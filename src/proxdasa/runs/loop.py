"""The loop: step, observe, save, stop. It knows no mathematics and no transport."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxdasa import caller_warnings
from proxdasa.contracts import Algorithm, Engine
from proxdasa.disk import sweep
from proxdasa.metrics import Metric, View
from proxdasa.runs.checkpoint_contents import Expected
from proxdasa.runs.checkpoints import Checkpoint, Checkpoints, CheckpointWarning
from proxdasa.runs.divergence import DivergenceWarning, broken_trials, locate
from proxdasa.runs.identity import Identity, Numbers, numbers
from proxdasa.runs.records import Row, write_config
from proxdasa.runs.results import RANDOM_ITERATE, Divergence, Result
from proxdasa.runs.stopping import Watch
from proxdasa.schedules import check_count

Progress = Callable[[int, int, Sequence[Row]], None]
"""Told (iterations made, iterations in all, rows of the last observation) from time to time."""


class ProgressWarning(UserWarning):
    """Whoever was told of progress has failed."""


CHECKPOINTS = "checkpoints"
"""The folder within a results folder."""


@dataclass(frozen=True)
class Saving:
    """Where a run leaves checkpoints, and after how many iterations each; if some are there, it goes on from them.

    An interrupted run leaves one in any case.
    """

    folder: Path
    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            check_count(self.every, "checkpoint_every")


@dataclass(eq=False)
class Loop:
    """The iterations of one run, with what they have left so far."""

    config: Mapping[str, Any]
    fingerprint: str
    identity: Identity
    algorithm: Algorithm
    engine: Engine
    start: Tensor
    """x⁰ of the agents here."""
    metrics: Sequence[Metric]
    epoch: float
    """Samples in one pass over an agent's data."""
    iterations: int
    observe_every: int
    keep: Mapping[int, Sequence[int]]
    """For each iterate the trials that keep it as x^R."""
    compile: bool
    watch: Watch | None

    rows: list[Row] = field(default_factory=list, init=False)
    diverged: dict[int, Divergence] = field(default_factory=dict, init=False)
    stopped: str | None = field(default=None, init=False)
    seconds: float = field(default=0.0, init=False)
    _seen: int = field(default=-1, init=False)
    """The iterations after which it was observed last."""
    _now: tuple[int, Any] = field(default=(0, None), init=False)
    """Iterations made and the state after them, together: an interruption may come between any two lines."""

    def run(self, progress: Progress | Sequence[Progress] | None = None, saving: Saving | None = None) -> Result:
        """Start, or go on from the last checkpoint, and iterate until the end, a stop, or until all trials diverged."""
        self._listeners = [progress] if callable(progress) else list(progress or ())
        self._kept = torch.full_like(self.start, torch.nan)
        self._saving = saving
        self._checkpoints: Checkpoints | None = None
        with torch.no_grad(), flushed_denormals(), self.engine.interruptible():
            try:
                self._begin()
                self._iterate()
            except KeyboardInterrupt:
                self.stopped = "interrupted"
                self.engine.rewind(self.k)
            except Exception as error:
                self.engine.tell(f"{type(error).__name__}: {error}")
                raise
            return self._result()

    @property
    def k(self) -> int:
        """The iterations made."""
        return self._now[0]

    def _begin(self) -> None:
        earlier = self._restore() if self._saving else False
        if not earlier:
            with self.engine.stepping():
                self._now = (0, self._checked(self.algorithm.init(self.engine, self.start), "init"))
        elif self.watch and self.watch.finished(self.diverged):
            self.stopped = "stationary"
        self._observed = self._now
        self._observe_if_due()

    def _iterate(self) -> None:
        save_every = self._saving.every if self._saving else None
        step = self.engine.compiled(self.algorithm.step) if self.compile else self.algorithm.step
        tick = max(1, self.iterations // 200)
        watched = self.watch.rule.every if self.watch else None
        first = True
        paces = [pace for pace in (self.observe_every, save_every, watched) if pace]
        while self.k < self.iterations and not self.stopped:
            due = min(self.iterations, *(self.k - self.k % every + every for every in paces))
            began = time.perf_counter()
            with self.engine.stepping():
                for k in range(self.k, due):
                    if not self.engine.proceed(k):
                        self.stopped = "interrupted"
                        break
                    state = step(self.engine, k, self._now[1])
                    if first:
                        first, state = False, self._checked(state, "step")
                    for trial in self.keep.get(k + 1, ()):
                        self._kept[trial] = state.x[trial]
                    self._now = (k + 1, state)
                    if self.k % tick == 0 and self.k < due:
                        self._tell(())
            self.seconds += time.perf_counter() - began
            if watched and not self.stopped and self.k % watched == 0:
                self._look()
            self._observe_if_due()
            done = self.k == self.iterations or self.stopped == "stationary"
            if save_every and (done or (not self.stopped and self.k % save_every == 0)):
                self._save()

    def _checked(self, state: Any, verb: str) -> Any:
        """The state, if it is one: mistakes in a method of one's own would surface far from here."""
        what, x = f"{verb} of {type(self.algorithm).__name__}", self.start
        if not isinstance(state, self.algorithm.State):
            raise TypeError(f"{what} must return its State; got {type(state).__name__}")
        for name, given in state._asdict().items():
            if not isinstance(given, Tensor) or (given.shape, given.dtype) != (x.shape, x.dtype):
                found = f"{list(given.shape)} of {given.dtype}" if isinstance(given, Tensor) else type(given).__name__
                raise TypeError(f"{what}: {name} must be {list(x.shape)} of {x.dtype}, as x is; got {found}")
        return state

    def _look(self) -> None:
        """Whether the agents are satisfied."""
        assert self.watch is not None
        if self.watch.satisfied(self.engine, *self._now, self.diverged):
            self.stopped = "stationary"

    def _observe_if_due(self) -> None:
        """Observe now and then, and at the end; once, though an interruption may come before or after."""
        due = self.k % self.observe_every == 0 or self.k == self.iterations or self.stopped == "stationary"
        if due and self._seen < self.k:
            self._observe()

    def _observe(self) -> None:
        k, state = self._now
        self._mark_diverged()
        view = self._view(state)
        columns = {metric.name: metric.of(view).tolist() for metric in self._measures}
        columns |= {name: values.tolist() for name, values in self.engine.scores(view.x_mean[:, 0]).items()}
        costs: Row = {**self.engine.counts(), "seconds": self.seconds}
        if math.isfinite(self.epoch):
            costs["epochs"] = costs["samples"] / self.epoch
        latest = [
            {"trial": trial, "k": k, **{name: column[trial] for name, column in columns.items()}, **costs}
            for trial in range(len(state.x))
            if trial not in self.diverged
        ]
        self.rows += latest
        self._observed, self._seen = self._now, k
        if not latest:
            self.stopped = "diverged"
        self._tell(latest)

    def _view(self, state: Any) -> View:
        averaging = self.algorithm.facts.averaging
        return View(self.engine, self.algorithm.mapping_gamma, state, averaging.z(state) if averaging else None)

    @property
    def _measures(self) -> list[Metric]:
        """Those for which the method has what they need."""
        return [metric for metric in self.metrics if self.algorithm.facts.averaging or not metric.needs_z]

    def _tell(self, rows: Sequence[Row]) -> None:
        """Report progress. Whoever is told and fails is not told again, and does not cost the run."""
        for listener in tuple(self._listeners):
            try:
                listener(self.k, self.iterations, rows)
            except Exception as error:
                self._listeners.remove(listener)
                place = traceback.extract_tb(error.__traceback__)[-1]
                caller_warnings.warn(
                    f"progress after {self.k} iterations could not be told: {type(error).__name__}: {error} "
                    f"({place.filename}, line {place.lineno}); the run goes on without telling",
                    ProgressWarning,
                )

    def _mark_diverged(self) -> None:
        k, state = self._now
        broken = [trial for trial in broken_trials(self.engine, state) if trial not in self.diverged]
        if not broken:
            return
        if k == 0:
            raise ValueError(f"the starting point of trial {broken[0]} is not finite")
        # Trials share nothing, so what is not finite in one does no harm to the others.
        for trial, where in locate(self.algorithm, self.engine, broken, self._observed, self._now).items():
            self.diverged[trial] = where
            if self.engine.writes:  # one process says it for all
                caller_warnings.warn(
                    f"trial {trial} diverged: agent {where.agent} met the first non-finite value in iteration "
                    f"{where.iteration}; its records up to iteration {self._observed[0]} are kept "
                    "(a smaller gamma or alpha may help)",
                    DivergenceWarning,
                )

    def _save(self) -> None:
        """Leave a checkpoint; all processes come here after the same iteration."""
        assert self._saving is not None
        assert self._checkpoints is not None
        counts = self.engine.counts()
        state = self._collected()
        if self.engine.writes:
            diverged = {str(trial): list(where) for trial, where in self.diverged.items()}
            notes = {"observed": self._seen, "seconds": self.seconds, "counts": counts, "diverged": diverged}
            notes["watch"] = self.watch.numbers() if self.watch else []
            notes |= {"first": self._first} if self._first else {}
            ending = {"checkpoint_every": self._saving.every}
            try:
                write_config(self._saving.folder, {**self.config, "ending": ending})  # for whoever resumes it
                self._checkpoints.write(Checkpoint(self.k, state, self.rows, notes))
            except (OSError, ValueError) as error:  # a full disk, or another run's in its place, need not cost the run
                caller_warnings.warn(f"{error}; the run goes on", CheckpointWarning)

    def _restore(self) -> bool:
        """Go on from the last checkpoint, if there is one."""
        assert self._saving is not None
        self._checkpoints = Checkpoints(self._saving.folder, self.fingerprint, self.identity.digests())
        self._first = self._try() if self.identity.strangers else {}
        engine, counts, trials = self.engine, self.engine.counts(), len(self.start)
        if engine.writes:
            sweep(self._saving.folder)
        looked = self.watch.numbers() if self.watch else []
        names = [*self.algorithm.State._fields, *([RANDOM_ITERATE] if self.keep else [])]
        shape = (trials, engine.n, self.start.shape[-1])
        expected = Expected(names, shape, self.start.dtype, self.iterations, len(looked))
        found = self._checkpoints.latest(expected.check) if engine.writes else None
        size = 3 + 2 * trials + len(counts) + len(looked)
        figures = torch.full((1, engine.n, size), -1.0, dtype=torch.float64)
        if found:
            self.identity.compare(found.notes.get("first"), self._first, self.start.dtype)
            notes = found.notes
            spent = [notes["counts"].get(name, 0) for name in counts]
            lost = [number for trial in range(trials) for number in notes["diverged"].get(str(trial), (-1, -1))]
            known = [found.k, notes["observed"], notes["seconds"], *lost, *spent, *notes["watch"]]
            figures[:] = torch.tensor(known, dtype=torch.float64)
        like = figures[:, : len(engine.agents)]
        k, seen, seconds, *rest = engine.distribute(figures if engine.writes else None, like)[0, 0].tolist()
        lost, rest = rest[: 2 * trials], rest[2 * trials :]
        if k < 0:
            return False
        engine.restore(dict(zip(counts, rest, strict=False)))
        if self.watch:
            self.watch.restore(rest[len(counts) :])
        self.seconds, self._seen = seconds, int(seen)
        places = enumerate(zip(lost[::2], lost[1::2], strict=True))
        self.diverged = {trial: Divergence(int(agent), int(when)) for trial, (agent, when) in places if agent >= 0}
        state = found.state if found else {}
        names = self.algorithm.State._fields
        self._now = (int(k), self.algorithm.State(*(engine.distribute(state.get(name), self.start) for name in names)))
        if self.keep:
            self._kept = engine.distribute(state.get(RANDOM_ITERATE), self.start)
        if found:
            self.rows = found.rows
        return True

    def _try(self) -> Numbers:
        """What is computed first, by which a run is told from others of the same description; it costs nothing."""
        counts = self.engine.counts()
        with self.engine.stepping():
            state = self._checked(self.algorithm.init(self.engine, self.start.clone()), "init")
            state = self._checked(self.algorithm.step(self.engine, 0, state), "step")
        seen = numbers(self._view(state), self._measures)
        self.engine.restore(counts)
        return seen

    def _collected(self) -> dict[str, Tensor]:
        state = self._now[1]._asdict() if self._now[1] else {}  # none if it was interrupted at once
        state |= {RANDOM_ITERATE: self._kept} if self.keep else {}
        return {name: self.engine.collect(rows) for name, rows in state.items()}

    def _result(self) -> Result:
        if self.stopped == "interrupted" and self._checkpoints and self._now[1]:
            self._save()
        done = self.watch.done if self.watch else {}
        return Result(dict(self.config), self.rows, self._collected(), self.k, self.stopped, self.diverged, done)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Numbers below 1e-38 are zero in here.

    Coordinates that Ψ drives to zero shrink by 1 − α in every step and soon are such numbers, with which processors
    compute tens of times slower. A thread has the setting of the one that started it: if torch has started its own
    already, this one alone gets it.
    """
    tiny = torch.from_numpy(np.full(1, 1e-40, dtype=np.float32))
    before = not bool(tiny * 1.0 > 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
