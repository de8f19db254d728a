"""The loop: step, observe, save, stop. It knows no mathematics and no transport."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from proxdasa import caller_warnings
from proxdasa.contracts import Agents, Algorithm, Engine
from proxdasa.disk import sweep
from proxdasa.engines.checked_answers import check_state
from proxdasa.metrics import Metric, View
from proxdasa.runs.checkpoint_contents import Expected
from proxdasa.runs.checkpoints import Checkpoint, Checkpoints, CheckpointWarning
from proxdasa.runs.compiling import COMPILED, Steps
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.divergence import DivergenceWarning, Replay, broken_trials
from proxdasa.runs.identity import Identity, Numbers, first_results
from proxdasa.runs.interleaved_runs import Course, take_turns
from proxdasa.runs.observed_columns import measure, unite
from proxdasa.runs.progress import Listeners, Progress
from proxdasa.runs.records import Row, part_folders, write_config
from proxdasa.runs.results import EXTRA, RANDOM_ITERATE, Divergence, Result
from proxdasa.runs.saving import Saving
from proxdasa.runs.steps_in_place import StepsInPlace
from proxdasa.runs.stopping import Watch


@dataclass(eq=False, kw_only=True)
class Loop:
    """The iterations of one run, with the records so far."""

    config: Mapping[str, Any]
    fingerprint: str
    identity: Identity
    algorithm: Algorithm
    engine: Engine
    start: Tensor
    """x⁰ of the agents here."""
    metrics: Sequence[Metric]
    iterations: int
    observe_every: int
    keep: Mapping[int, Sequence[int]]
    """For each iterate, the trials that keep it as x^R."""
    compile: bool
    watch: Watch | None
    first: int = 0
    """Iterations made before this loop: its k-th iteration has number first + k, by which events are named."""
    first_trial: int = 0
    """The number of the first trial in the whole run, for messages."""

    rows: list[Row] = field(default_factory=list, init=False)
    diverged: dict[int, Divergence] = field(default_factory=dict, init=False)
    stopped: str | None = field(default=None, init=False)
    seconds: float = field(default=0.0, init=False)
    _replay: Any = field(default=None, init=False)
    _steps: Steps | None = field(default=None, init=False)
    _seen: int = field(default=-1, init=False)
    """The iteration of the last observation."""
    _now: tuple[int, Any] = field(default=(0, None), init=False)
    """Iterations made, and the state after them: one tuple, because an interruption may come between any two lines."""

    def run(self, progress: Progress | Sequence[Progress] | None = None, saving: Saving | None = None) -> Result:
        """Start, or continue from the last checkpoint, and iterate to the end, a stop, or until all trials diverged."""
        (result,) = take_turns([self.course(progress, saving)])
        return result

    def course(self, progress: Progress | Sequence[Progress] | None = None, saving: Saving | None = None) -> Course:
        """The same run as a generator, which pauses at the start and after each observation, check or checkpoint."""
        self._listeners = Listeners(progress)
        self._kept = torch.full_like(self.start, torch.nan) if self.keep else None
        self._saving = saving
        self._checkpoints: Checkpoints | None = None
        with torch.no_grad(), flushed_denormals(), self.engine.interruptible():
            try:
                yield  # before anything else, so that any interruption from here on is handled in this block
                self._begin()
                yield from self._iterate()
            except KeyboardInterrupt:
                self.stopped = "interrupted"
                if self._replay:
                    self._replay.put_back()
                self.engine.rewind(self.k)
                # An observation appends its rows in one piece, perhaps just before the interruption.
                self._seen = max(self._seen, self.rows[-1]["k"] if self.rows else -1)
            except Exception as error:
                self.engine.fail(f"{type(error).__name__}: {error}")
                raise
            return self._result()

    @property
    def k(self) -> int:
        """The number of iterations made."""
        return self._now[0]

    def _begin(self) -> None:
        self._epoch = self.engine.epoch  # read once, here, where all processes take part: it is a sum over them
        earlier = self._restore() if self._saving else False
        if not earlier:
            with self.engine.stepping():
                self._now = (0, self._check(self.algorithm.init(self.engine, self.start), "init"))
        self.start = self.start.new_empty(1).expand_as(self.start)  # only its form is needed from here on
        sliced = None if self.compile else self.engine.sliced(self.algorithm)
        self._in_place = sliced and StepsInPlace(self.engine, self.algorithm, sliced, len(self.start), self.first)
        replay = self._in_place or Replay(self.engine, self._step)
        replay.remember(*self._now, self.engine.counts())
        self._replay = replay
        self._watch_if_due()
        self._observe_if_due()

    def _iterate(self) -> Generator[None, None, None]:
        save_every = self._saving.every if self._saving else None
        watched = self.watch.rule.every if self.watch else None
        paces = [pace for pace in (self.observe_every, watched) if pace]
        place = self._in_place
        steps = self._steps = Steps(self.engine, self.algorithm, self._step, self.keep, place.step if place else None)
        if self.compile and self.k < self.iterations:
            with self._listeners.waiting("compiling the steps"):
                steps.compile(self._now[1], paces, self.first, self.iterations)
        tick, first = max(1, self.iterations // 200), True
        while self.k < self.iterations and not self.stopped:
            # The next iteration after which the run is observed or the stopping rule applied; until then, only step.
            due = min(self.iterations, *(self.k - self.k % every + every for every in paces))
            # A block may end after a checkpoint is due, which then waits: how iterations are computed, and so the last
            # bits of a run, must not depend on how often it is saved.
            saved = self.k - self.k % save_every + save_every if save_every else due
            began = time.perf_counter()
            with self.engine.stepping(), place.uninterrupted() if place else nullcontext():
                while self.k < min(due, saved):
                    before = self.k
                    if not self.engine.proceed(before) or (place and place.asked_to_stop):
                        self.stopped = "interrupted"
                        break
                    k, state = steps.advance(*self._now, due)
                    # Only the first state is checked: later ones have the same form, and each check takes time.
                    if first:
                        first, state = False, self._check(state, "step")
                    for trial in self.keep.get(k, ()):
                        assert self._kept is not None
                        self._kept[trial] = state.x[trial]
                    self._now = (k, state)
                    if k // tick > before // tick and k < due:
                        self._listeners.report(k, self.iterations, ())
            self.seconds += time.perf_counter() - began
            self._watch_if_due()
            self._observe_if_due()
            done = self.k == self.iterations or self.stopped == "stationary"
            if save_every and (done or (not self.stopped and self.k >= saved)):
                self._save()
            yield

    def _step(self, agents: Agents, k: int, state: Any) -> Any:
        """One step. Agents that are out keep their whole state, whatever the method would have done to it."""
        # Extra rows, such as the copies of a compressed mixing, belong to an agent as its state does: while it is out,
        # it keeps both.
        active, before = self.engine.enter(self.first + k), dict(self.engine.extra_rows)
        new = self.algorithm.step(agents, k, state)
        if active is None:
            return new
        for name, rows in self.engine.extra_rows.items():
            kept = before[name] if name in before else torch.zeros_like(rows)  # zeros until it takes part
            self.engine.extra_rows[name] = torch.where(active, rows, kept)
        return type(new)(*(torch.where(active, moved, kept) for moved, kept in zip(new, state, strict=True)))

    def _check(self, state: Any, verb: str) -> Any:
        return check_state(self.algorithm, state, self.start, verb)

    def _watch_if_due(self) -> None:
        """Apply the stopping rule at its pace; an interruption may come before or after."""
        if self.watch and self.k and not self.stopped and self.k % self.watch.rule.every == 0:
            self._mark_diverged()  # the rule does not wait for these trials
            if self.watch.satisfied(self.engine, *self._now, self.diverged):
                self.stopped = "stationary"

    def _observe_if_due(self) -> None:
        """Observe at the set pace and at the end, but never twice: an interruption may come before or after."""
        due = self.k % self.observe_every == 0 or self.k == self.iterations or self.stopped == "stationary"
        if due and self._seen < self.k:
            self._observe()
        if due and len(self.diverged) == len(self.start):
            self.stopped = "diverged"

    def _observe(self) -> None:
        k, state = self._now
        self._mark_diverged()
        view = self._view(state)
        measured = measure(self._measures, view)
        scores = [(name, values.tolist()) for name, values in self.engine.scores(view.x_mean[:, 0]).items()]
        spent = self.engine.counts()
        costs: Row = {**spent, "seconds": self.seconds}
        if math.isfinite(self._epoch):
            costs["epochs"] = costs["samples"] / self._epoch
        columns = unite(measured + scores, ["trial", "k", *costs])
        latest = [
            {"trial": trial, "k": k, **{name: column[trial] for name, column in columns.items()}, **costs}
            for trial in range(len(state.x))
            if trial not in self.diverged
        ]
        self.rows += latest
        self._replay.remember(k, state, spent)
        self._seen = k
        self._listeners.report(k, self.iterations, latest)

    def _view(self, state: Any) -> View:
        averaging = self.algorithm.facts.averaging
        return View(self.engine, self.algorithm.mapping_gamma, state, averaging.z(state) if averaging else None)

    @property
    def _measures(self) -> list[Metric]:
        """The metrics for which the method has what they need."""
        return [metric for metric in self.metrics if self.algorithm.facts.averaging or not metric.needs_z]

    def _mark_diverged(self) -> None:
        k, state = self._now
        broken = [trial for trial in broken_trials(self.engine, state) if trial not in self.diverged]
        if not broken or not self._replay:  # without a replay, nothing was computed since the last checkpoint
            return
        if k == 0:
            raise ValueError(f"the starting point of trial {self.first_trial + broken[0]} is not finite")
        # Trials share nothing, so a trial that is not finite does no harm to the others and need not be removed.
        for trial, where in self._replay.locate(broken, k, state).items():
            self.diverged[trial] = where
            if self.engine.writes:  # one process warns for all
                caller_warnings.warn(
                    f"trial {self.first_trial + trial} diverged: agent {where.agent} met the first non-finite value in "
                    f"iteration {where.iteration}; its records up to iteration {self._replay.k} are kept "
                    "(a smaller gamma or alpha may help)",
                    DivergenceWarning,
                )

    def _save(self) -> None:
        """Write a checkpoint; all processes get here after the same iteration."""
        assert self._saving is not None
        assert self._checkpoints is not None
        self._mark_diverged()  # now: a saved state that is broken cannot show where that began
        counts = {name: count for name, count in self.engine.counts().items() if not math.isnan(count)}
        state = self._collect_state()
        if self.engine.writes:
            diverged = {str(trial): list(where) for trial, where in self.diverged.items()}
            notes = {"observed": self._seen, "seconds": self.seconds, "counts": counts, "diverged": diverged}
            notes["watch"] = self.watch.numbers() if self.watch else []
            notes |= {"watched": self.watch.seen} if self.watch else {}
            extra = {name: rows.shape[-1] for name, rows in self.engine.extra_rows.items()}
            notes |= {"extra_rows": extra} if extra else {}
            notes |= {"first": self._first} if self._first else {}
            whole = self._saving.whole or self._saving
            ending = {"checkpoint_every": whole.every}
            try:
                write_config(whole.folder, {**self.config, "ending": ending})  # for `proxdasa resume`
                self._checkpoints.write(Checkpoint(self.k, state, self.rows, notes))
            except (OSError, ValueError) as error:  # neither a full disk nor a foreign checkpoint may end the run
                caller_warnings.warn(f"{error}; the run continues", CheckpointWarning)

    def _restore(self) -> bool:
        """Continue from the last checkpoint, if there is one. The writing process reads it for all."""
        assert self._saving is not None
        engine, found = self.engine, None
        self._checkpoints = Checkpoints(self._saving.folder, self.fingerprint, self.identity.digests())
        self._first = self._compute_first() if self.identity.only_named else {}
        if engine.writes:
            sweep(self._saving.folder)
            found = self._checkpoints.latest(self._expected().check)
            if found is None and (parts := part_folders(self._saving.folder)):
                raise ValueError(
                    f"{parts[0]} holds checkpoints of a run whose trials were computed in parts, from which a whole "
                    "run cannot continue; continue as it began (without --processes), or choose another folder"
                )
        if found:
            self.identity.compare(found.notes.get("first"), self._first, self.start.dtype)
            self.rows = found.rows
        told = engine.broadcast({"k": found.k, **found.notes} if found else None)
        if told is None:
            return False
        engine.restore(told["counts"])
        if self.watch:
            self.watch.restore(told["watch"], told.get("watched", told["k"]))
        self.seconds, self._seen = told["seconds"], told["observed"]
        self.diverged = {int(trial): Divergence(*where) for trial, where in told["diverged"].items()}
        saved = found.state if found else {}
        state = {name: engine.distribute(saved.get(name), self.start) for name in self._variables}
        engine.extra_rows = {
            name: engine.distribute(saved.get(EXTRA + name), self.start.new_empty(*self.start.shape[:2], width))
            for name, width in told.get("extra_rows", {}).items()
        }
        self._kept = state.pop(RANDOM_ITERATE, self._kept)
        self._now = (told["k"], self.algorithm.State(**state))
        return True

    @property
    def _variables(self) -> list[str]:
        """The names of the tensors in a checkpoint."""
        return [*self.algorithm.State._fields, *([RANDOM_ITERATE] if self.keep else [])]

    def _expected(self) -> Expected:
        shape = (len(self.start), self.engine.n, self.start.shape[-1])
        watched = len(self.watch.numbers()) if self.watch else 0
        return Expected(self._variables, shape, self.start.dtype, self.iterations, watched)

    def _compute_first(self) -> Numbers:
        """What the run computes first, which distinguishes it from others of the same description; not counted."""
        counts, extra_rows = self.engine.counts(), dict(self.engine.extra_rows)
        with self.engine.stepping():
            state = self._check(self.algorithm.init(self.engine, self.start.clone()), "init")
            state = self._check(self._step(self.engine, 0, state), "step")
        seen = first_results(self.engine, self._view(state), self._measures, bool(self.identity.files))
        self.engine.restore(counts)
        self.engine.extra_rows = extra_rows
        return seen

    def _collect_state(self) -> dict[str, Tensor]:
        if not self._now[1]:  # interrupted at once
            return {}
        state = self._now[1]._asdict() | ({} if self._kept is None else {RANDOM_ITERATE: self._kept})
        state |= {EXTRA + name: rows for name, rows in self.engine.extra_rows.items()}
        return {name: self.engine.collect(rows) for name, rows in state.items()}

    def _result(self) -> Result:
        if self.stopped == "interrupted" and self._checkpoints and self._now[1]:
            self._save()
        done, state = self.watch.done if self.watch else {}, self._collect_state()
        if self._steps and self._steps.refused:
            self.config = {**self.config, "facts": {**self.config["facts"], COMPILED: False}}
        return Result(
            config=dict(self.config),
            records=self.rows,
            state=state,
            iterations=self.k,
            stopped=self.stopped,
            diverged=self.diverged,
            stationary=done,
            proximal_point=self._proximal_point(state) if state else None,
        )

    def _proximal_point(self, state: Mapping[str, Tensor]) -> Tensor:
        """`Result.solution`, from the collected state: means over its rows do not depend on where agents live."""
        γ, averaging = self.algorithm.mapping_gamma, self.algorithm.facts.averaging
        x, z = (state[name].to(self.start.device) for name in ("x", averaging.variable if averaging else "x"))
        point = x.mean(dim=1, keepdim=True)
        if averaging:
            point = point - γ * z.mean(dim=1, keepdim=True)
        y = torch.where(point.isfinite().all(dim=-1, keepdim=True), self.engine.prox(point, γ), torch.nan)[:, 0].cpu()
        y[list(self.diverged)] = torch.nan
        return y
