"""Forked processes that make runs, or parts of runs, and the one that hands them out and puts the results together."""

from __future__ import annotations

import multiprocessing
import pickle
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from safetensors.torch import load, save

from proxdasa import caller_warnings
from proxdasa.contracts import PeerError
from proxdasa.engines.launch import signals
from proxdasa.engines.launch.launcher import GRACE
from proxdasa.runs.records import separate
from proxdasa.runs.results import SOLUTION, Result
from proxdasa.runs.trial_parts import Together
from proxdasa.runs.turns import take_turns
from proxdasa.runs.work import Work

TOLD = ("config", "records", "iterations", "stopped", "diverged", "stationary")
"""What a process tells of a result besides its tensors."""
LOOK = 0.2
"""Seconds from one look for signals to the next."""


class Crew:
    """Makes runs in up to ``jobs`` processes at a time: as many for each as it has parts and there are left."""

    def __init__(self, jobs: int, works: Sequence[Work]) -> None:
        self._jobs, self._works = jobs, works
        self._waiting = list(range(len(works)))
        self._begun: dict[int, _Run] = {}
        self._results: dict[int, Result] = {}
        self._lost: list[str] = []
        self._asked = False
        self._deadline: float | None = None

    def run(self) -> list[Result]:
        """The results, in order; without those of runs that had not begun when all were interrupted.

        If a process dies, the others go on, since the parts of a run are saved on their own; then a PeerError says so.
        """
        try:
            with signals.heeding(self.stop):
                while self._hire() or self._helpers():
                    if self._asked:
                        self._press()
                    lines = {helper.line: helper for helper in self._helpers()}
                    for line in wait(list(lines), LOOK):
                        self._hear(lines[line])  # type: ignore[index]
        finally:
            for helper in self._helpers():
                helper.process.kill()
                helper.process.join()
        if self._lost:
            raise PeerError("; ".join(self._lost), noticed_here=True)
        return [self._results[number] for number in sorted(self._results)]

    def stop(self) -> None:
        """Interrupt all runs."""
        self._asked = True  # and no more, because signals arrive between any two lines

    def _helpers(self) -> list[_Helper]:
        return [helper for run in self._begun.values() for helper in run.helpers]

    def _press(self) -> None:
        """Ask all processes to save what they have and to stop; after a while, kill them."""
        if self._deadline is None:
            self._deadline = time.monotonic() + GRACE
            for helper in self._helpers():
                helper.process.terminate()
        elif time.monotonic() > self._deadline:
            for helper in self._helpers():
                helper.process.kill()

    def _hire(self) -> bool:
        """Begin as many runs as there is room for; whether there was one."""
        began = False
        while self._waiting and not self._asked and (free := self._jobs - len(self._helpers())):
            number = self._waiting.pop(0)
            self._begun[number] = run = _Run(self._works[number])
            run.start(free)
            began = True
        return began

    def _hear(self, helper: _Helper) -> None:
        """Receive what a process has to say, or notice that it has ended."""
        number, run = next((number, run) for number, run in self._begun.items() if helper in run.helpers)
        try:
            kind, *content = helper.line.recv()
        except (EOFError, OSError):
            helper.process.join()
            run.dismiss(helper)
            code = helper.process.exitcode or 0
            if missing := [part for part in helper.parts if part not in run.results]:
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
                run.together.report(*content)
            else:
                run.receive(*content)
        if not run.helpers:
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
        if run.work.saving is None:  # without checkpoints there is nothing to put together later
            for helper in run.helpers:
                helper.process.kill()

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

    def __init__(self, work: Work) -> None:
        self.work, self.helpers = work, list[_Helper]()
        self.results: dict[int, Result] = {}
        self.lost = False  # whether a process of it has died
        self.together = Together(work.begin(), work.parts)

    def start(self, most: int) -> None:
        """Start up to so many processes, and divide the parts among them."""
        count = min(most, len(self.work.parts))
        if len(self.work.parts) > 1:
            self.work.setup.check_memory()
        for place in range(count):
            self.helpers.append(_Helper(self.work, range(len(self.work.parts))[place::count]))

    def dismiss(self, helper: _Helper) -> None:
        """Forget a process that has ended."""
        self.helpers.remove(helper)
        helper.line.close()

    def receive(self, part: int, told: dict[str, Any], tensors: bytes) -> None:
        """Take the result of a part."""
        state = load(tensors)
        point = state.pop(SOLUTION, None)
        self.results[part] = Result(state=state, proximal_point=point, **told)
        self.together.end(part, told["stopped"])


class _Helper:
    """A forked process and our end of the line to it."""

    def __init__(self, work: Work, parts: Sequence[int]) -> None:
        self.parts = parts
        self.line, theirs = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("fork")
        self.process: BaseProcess = context.Process(target=_work, args=(work, parts, theirs), daemon=True)
        with signals.ignored(), warnings.catch_warnings():
            # From Python 3.12 on a fork of a process with threads warns; ours use none that they inherit.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()  # so that the line ends with the process


class _Line:
    """The line of a forked process to the one that hands out work. An interruption waits until a message is sent."""

    def __init__(self, line: Connection) -> None:
        self._line, self._sending, self._asked = line, False, False

    def ask_to_stop(self) -> None:
        """Raise KeyboardInterrupt, now or after the message that is being sent."""
        if not self._sending:
            raise KeyboardInterrupt
        self._asked = True

    def send(self, *message: Any) -> None:
        """Send a message; if nobody is there to receive it, stop as if asked to."""
        self._sending = True
        try:
            self._line.send(message)
        except BrokenPipeError:
            self._asked = True
        finally:
            self._sending = False
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt


def _work(work: Work, parts: Sequence[int], connection: Connection) -> None:
    """What a forked process does: make parts of a run in turn, and send the results."""
    line = _Line(connection)
    signals.obey(line.ask_to_stop)
    torch.set_num_threads(1)
    try:
        with _forwarded_warnings(line):
            courses = [work.course(part, partial(line.send, "progress", part)) for part in parts]
            results = take_turns(courses)
    except KeyboardInterrupt:
        return
    except Exception as error:
        line.send("error", _portable(error))
        return
    signals.obey(lambda: None)  # what is left is to send
    for part, result in zip(parts, results, strict=True):
        told = {name: getattr(result, name) for name in TOLD}
        point = {} if result.proximal_point is None else {SOLUTION: result.proximal_point}
        with suppress(KeyboardInterrupt):  # nobody is there
            line.send("result", part, told, save(separate({**result.state, **point})))


@contextmanager
def _forwarded_warnings(line: _Line) -> Iterator[None]:
    """Context manager: warnings are sent, and given where the run was called."""

    def forward(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        known = category if _pickles(category) else UserWarning
        line.send("warning", str(message), known)

    before = warnings.showwarning
    warnings.showwarning = forward
    try:
        yield
    finally:
        warnings.showwarning = before


def _portable(error: Exception) -> Exception:
    """The error, with a note on where it was raised; a plain one in its place if it cannot be sent."""
    sent = error if _pickles(error) else RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note("in a forked process:\n" + "".join(traceback.format_exception(error)))
    return sent


def _pickles(thing: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(thing))
    except Exception:
        return False
    return True
