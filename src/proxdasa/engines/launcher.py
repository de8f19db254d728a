"""Our own launcher: the processes of a run on this machine, watched, and started anew from the last checkpoint."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from proxdasa.engines.transports import LIFELINE, RENDEZVOUS, START

WATCH = 0.05
"""Seconds from one look at the processes to the next."""
GRACE = 30.0
"""Seconds that processes have for leaving a checkpoint once they were asked to stop, before they are ended."""
LOSS = 5.0
"""Seconds that the others have for ending by themselves once one has died: they notice, and say what they miss."""


def launch(
    command: Sequence[str],
    processes: int,
    restarts: int = 0,
    final: Collection[int] = (),
    say: Callable[[str], None] = print,
) -> int:
    """Run a command in so many processes that find each other; the exit code, that of the first to fail if one does.

    If one dies, all are started again, up to ``restarts`` times, unless its exit code is one of ``final``, which
    another try would not change. Ctrl-C, SIGTERM and the end of the terminal ask all of them to stop.
    """
    for attempt in range(restarts + 1):
        asked: list[int] = []
        with tempfile.TemporaryDirectory(prefix="proxdasa-") as folder:
            shared = {RENDEZVOUS: str(Path(folder) / "rendezvous"), START: str(attempt + 1)}
            with _started(command, processes, shared, asked) as children:
                codes = _watch(children, asked)
        if codes.count(0) == processes:
            return 0
        # That of a decision or, before those of processes that missed it, of one that was killed.
        code = next((code for code in codes if code in final), min(filter(None, codes), default=0))
        if code in final:
            return code
        if asked:
            return 128 + signal.SIGINT
        again = f"; starting again from the last checkpoint ({attempt + 1} of {restarts})" if attempt < restarts else ""
        if code < 0 or again:
            say(f"a process ended with {_described(code)}{again}")
    return code


@contextmanager
def _started(
    command: Sequence[str], processes: int, shared: Mapping[str, str], asked: list[int]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes, none of which outlives this; signals that ask to stop are noted.

    They have one end of a pipe whose other end closes with us, even if we are killed.
    """
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    lifeline, held = os.pipe()
    shared = {"OMP_NUM_THREADS": threads, **os.environ, **shared, LIFELINE: str(lifeline), "WORLD_SIZE": str(processes)}
    children: list[subprocess.Popen[bytes]] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last if the terminal is closed, but for nohup
    handlers = {number: handler for number in numbers if (handler := signal.getsignal(number)) != signal.SIG_IGN}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: asked.append(number))
        for rank in map(str, range(processes)):
            # A group of its own: Ctrl-C reaches it through us, once.
            env = {**shared, "RANK": rank}
            children += [subprocess.Popen(command, env=env, process_group=0, pass_fds=[lifeline])]
        yield children
    finally:
        for child in children:
            child.kill()  # does nothing to those that have ended
            child.wait()
        for end in (lifeline, held):
            os.close(end)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _watch(children: Sequence[subprocess.Popen[bytes]], asked: Sequence[int]) -> list[int]:
    """Wait until all have ended, or some time after one has failed or all were asked to stop; the codes of the ended.

    Each signal that asks to stop is passed on.
    """
    deadline, passed_on = math.inf, 0
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        for _ in asked[passed_on:]:
            passed_on += 1
            for child in children:
                child.terminate()
        if asked or any(child.poll() for child in children):
            deadline = min(deadline, time.monotonic() + (GRACE if asked else LOSS))
        time.sleep(WATCH)
    return [code for child in children if (code := child.poll()) is not None]


def _described(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
