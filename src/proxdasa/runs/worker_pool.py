"""Forked processes that make runs, or parts of runs, and the pool that hands these out and merges the results."""

from __future__ import annotations

import multiprocessing
import pickle
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from safetensors.torch import load, save

from proxdasa import caller_warnings
from proxdasa.contracts import PeerError
from proxdasa.engines.launch import signals
from proxdasa.engines.launch.launcher import GRACE
from proxdasa.runs.compiling import compiles
from proxdasa.runs.interleaved_runs import take_turns
from proxdasa.runs.pending_run import PendingRun
from proxdasa.runs.records import Row, separate
from proxdasa.runs.results import SOLUTION, Result
from proxdasa.runs.trial_parts import Together

SENT = ("config", "records", "iterations", "stopped", "diverged", "stationary")
"""The fields of a result that a process sends besides its tensors."""
LOOK = 0.2
"""Seconds between two checks for signals."""


class WorkerPool:
    """Makes runs in up to ``jobs`` processes at a time; a run gets one for each part, or each share of many parts.

    Runs that stay whole come first, so that the parts of others fill what is left of the time at the end. The other
    parts of a compiled run begin when the first is compiled, which saves compiling them, unless there is nothing else
    to do.
    """

    def __init__(self, jobs: int, works: Sequence[PendingRun]) -> None:
        self._jobs, self._works = jobs, works
        self._waiting = sorted(range(len(works)), key=lambda number: len(works[number].parts) > 1)
        self._begun: dict[int, _Run] = {}
        self._results: dict[int, Result] = {}
        self._lost: list[str] = []
        self._asked = False
        self._deadline: float | None = None

    def run(self) -> list[Result]:
        """The results, in order; without those of runs that had not begun when all were interrupted.

        If a process dies, the others go on, since the parts of a run are saved separately; at the end a PeerError says
        so.
        """
        try:
            with signals.heeding(self.stop):
                while self._start_workers() or self._workers():
                    if self._asked:
                        self._stop_workers()
                    channels = {worker.channel: worker for worker in self._workers()}
                    for channel in wait(list(channels), LOOK):
                        self._receive(channels[channel])  # type: ignore[index]
        finally:
            for worker in self._workers():
                worker.process.kill()
                worker.process.join()
        while self._begun:  # interrupted before all of their processes were started
            self._finish(*self._begun.popitem())
        if self._lost:
            raise PeerError("; ".join(self._lost), noticed_here=True)
        return [self._results[number] for number in sorted(self._results)]

    def stop(self) -> None:
        """Interrupt all runs."""
        self._asked = True  # nothing else, because a signal may arrive between any two lines

    def _workers(self) -> list[_Worker]:
        return [worker for run in self._begun.values() for worker in run.workers]

    def _stop_workers(self) -> None:
        """Ask all processes to save what they have and to stop; after a while, kill them."""
        if self._deadline is None:
            self._deadline = time.monotonic() + GRACE
            for worker in self._workers():
                worker.process.terminate()
        elif time.monotonic() > self._deadline:
            for worker in self._workers():
                worker.process.kill()

    def _start_workers(self) -> bool:
        """Start as many processes as there is room for; return whether any was started."""
        began = False
        while not self._asked and len(self._workers()) < self._jobs:
            begun = [run for run in self._begun.values() if run.waiting]
            ready = [run for run in begun if run.ready]
            if not ready and self._waiting:
                number = self._waiting.pop(0)
                ready = [_Run(self._works[number], self._jobs)]
                self._begun[number] = ready[0]
            if not (ready or begun):
                break
            (ready or begun)[0].start_worker()
            began = True
        return began

    def _receive(self, worker: _Worker) -> None:
        """Receive a message from a process, or notice that it has ended."""
        number, run = next((number, run) for number, run in self._begun.items() if worker in run.workers)
        try:
            kind, *content = worker.channel.recv()
        except (EOFError, OSError):
            worker.process.join()
            run.dismiss(worker)
            code = worker.process.exitcode or 0
            if missing := [part for part in worker.parts if part not in run.results]:
                if not self._asked and not run.lost:
                    self._lose(run, missing, code)
                for part in missing:
                    run.together.end(part, "interrupted" if self._asked else "lost")
        else:
            if kind == "warning":
                caller_warnings.warn(*content)
            elif kind == "error":
                raise content[0]
            elif kind == "progress":
                run.ready |= content[1] > 0
                run.together.report(*content)
            elif kind == "note":
                run.together.note(*content)
            elif kind == "diverged":
                run.together.end(content[0], kind)
            else:
                run.receive(*content)
        if not run.workers and not run.waiting:
            del self._begun[number]
            self._finish(number, run)

    def _lose(self, run: _Run, parts: Sequence[int], code: int) -> None:
        run.lost = True
        trials = sorted(trial for part in parts for trial in run.work.parts[part])
        what = f"trials {trials[0]} to {trials[-1]}" if len(trials) > 1 else f"trial {trials[0]}"
        hint = " (was there not enough memory?)" if code == -signals.KILL else ""
        self._lost.append(
            f"the process that computed {what} of {run.work.name} ended with {signals.describe_exit(code)}{hint}"
        )
        if run.work.saving is None:  # without checkpoints there is nothing to merge later
            run.waiting.clear()
            for worker in run.workers:
                worker.process.kill()

    def _finish(self, number: int, run: _Run) -> None:
        work = run.work
        if len(run.results) < len(work.parts):
            if run.lost:
                return
            nothing = Result(work.setup.config(), [], {}, 0, "interrupted")
            run.results = dict.fromkeys(range(len(work.parts)), nothing) | run.results
        self._results[number] = work.finish([run.results[part] for part in range(len(work.parts))])


class _Run:
    """A run that has begun."""

    def __init__(self, work: PendingRun, jobs: int) -> None:
        self.work, self.workers = work, list[_Worker]()
        count = min(jobs, len(work.parts))
        self.waiting = [range(len(work.parts))[place::count] for place in range(count)]  # parts for each process
        self.results: dict[int, Result] = {}
        self.lost = False  # whether a process of it has died
        self.ready = not compiles(work.setup)  # whether more processes may start; a compiled run is compiled first
        if len(work.parts) > 1:
            work.setup.check_memory()
        self.together = Together(work.begin(), work.parts)

    def start_worker(self) -> None:
        """Start the next process."""
        self.workers.append(_Worker(self.work, self.waiting.pop(0)))
        self.together.incomplete = bool(self.waiting)

    def dismiss(self, worker: _Worker) -> None:
        """Forget a process that has ended."""
        self.workers.remove(worker)
        worker.channel.close()

    def receive(self, part: int, sent: dict[str, Any], tensors: bytes) -> None:
        """Take the result of a part."""
        state = load(tensors)
        point = state.pop(SOLUTION, None)
        self.results[part] = Result(state=state, proximal_point=point, **sent)
        self.together.end(part, sent["stopped"])


class _Worker:
    """A forked process and our end of the channel to it."""

    def __init__(self, work: PendingRun, parts: Sequence[int]) -> None:
        self.parts = parts
        self.channel, theirs = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("fork")
        self.process: BaseProcess = context.Process(target=_work, args=(work, parts, theirs), daemon=True)
        # The child inherits that signals are ignored, until `_work` sets its handlers: ours are for this process.
        with signals.ignored(), warnings.catch_warnings():
            # Since Python 3.12, forking a process with threads warns; our forks use none that they inherit.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()  # so that the channel ends with the process


class _Channel:
    """The channel from a forked process to the pool. An interruption waits until a message is sent."""

    def __init__(self, channel: Connection) -> None:
        self._channel, self._sending, self._asked = channel, False, False

    def ask_to_stop(self) -> None:
        """Raise KeyboardInterrupt, now or after the message that is being sent."""
        if not self._sending:
            raise KeyboardInterrupt
        self._asked = True

    def send(self, *message: Any) -> None:
        """Send a message; if nobody is there to receive it, stop as if asked to."""
        self._sending = True
        try:
            self._channel.send(message)
        except BrokenPipeError:
            self._asked = True
        finally:
            self._sending = False
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt


class _Report:
    """The listener of a part in a forked process, which passes everything on to the pool."""

    def __init__(self, channel: _Channel, part: int) -> None:
        self._send, self._part = channel.send, part

    def __call__(self, k: int, iterations: int, rows: Sequence[Row]) -> None:
        self._send("progress", self._part, k, iterations, rows)

    def note(self, text: str) -> None:
        """Pass on a note, such as that the steps are being compiled."""
        self._send("note", text)


def _work(work: PendingRun, parts: Sequence[int], connection: Connection) -> None:
    """What a forked process does: make parts of a run in turn, and send the results."""
    channel = _Channel(connection)

    def tell(number: int, result: Result) -> None:
        if result.stopped == "diverged":  # the progress of the others need not wait for this part
            channel.send("diverged", parts[number])

    signals.obey(channel.ask_to_stop)
    torch.set_num_threads(1)  # torch's threads do not survive a fork, and waiting for them would never end
    try:
        with _forwarded_warnings(channel):
            courses = [work.course(part, _Report(channel, part)) for part in parts]
            results = take_turns(courses, tell)
    except KeyboardInterrupt:
        return
    except Exception as error:
        channel.send("error", _portable(error))
        return
    signals.obey(lambda: None)  # all that is left to do is to send
    for part, result in zip(parts, results, strict=True):
        sent = {name: getattr(result, name) for name in SENT}
        point = {} if result.proximal_point is None else {SOLUTION: result.proximal_point}
        with suppress(KeyboardInterrupt):  # the pool is gone
            channel.send("result", part, sent, save(separate({**result.state, **point})))


@contextmanager
def _forwarded_warnings(channel: _Channel) -> Iterator[None]:
    """Context manager: warnings are sent to the pool, which issues them where the run was called."""

    def forward(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        known = category if _pickles(category) else UserWarning
        channel.send("warning", str(message), known)

    before = warnings.showwarning
    warnings.showwarning = forward
    try:
        yield
    finally:
        warnings.showwarning = before


def _portable(error: Exception) -> Exception:
    """The error, with a note on where it was raised; a RuntimeError in its place if it cannot be sent."""
    sent = error if _pickles(error) else RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note("in a forked process:\n" + "".join(traceback.format_exception(error)))
    return sent


def _pickles(thing: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(thing))
    except Exception:
        return False
    return True
