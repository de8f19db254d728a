"""Our own launcher: the processes of a run on this machine, watched, and started anew from the last checkpoint."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from proxdasa.engines.launch import signals
from proxdasa.engines.launch.environment import LIFELINE, RENDEZVOUS, START
from proxdasa.exit_codes import FINAL, Code, foremost

WATCH = 0.05
"""Seconds from one look at the processes to the next."""
GRACE = 30.0
"""Seconds that processes have for leaving a checkpoint once they were asked to stop, before they are ended."""
LOSS = 5.0
"""Seconds that the others have for ending by themselves once one has died: they notice, and say what they miss."""
SPOKEN = "spoken"
"""The file, beside that by which they find each other, which says that one has told what is left."""


def launch(
    command: Sequence[str],
    processes: int,
    restarts: int = 0,
    say: Callable[[str], None] = print,
    speak: Callable[[], None] = lambda: None,
) -> int:
    """Run a command in so many processes that find each other; the exit code that tells how they ended.

    If one dies, all are started again, up to ``restarts`` times, unless its exit code is that of a decision. Signals
    that ask to stop ask all of them; ``speak`` is called if they then end before one of them has `spoken`.
    """
    for attempt in range(restarts + 1):
        asked: list[int] = []
        with tempfile.TemporaryDirectory(prefix="proxdasa-") as folder:
            shared = {RENDEZVOUS: str(Path(folder) / "rendezvous"), START: str(attempt + 1)}
            with signals.handled(asked.append), _started(command, processes, shared) as children:
                codes = _watch(children, asked)
            silent = not (Path(folder) / SPOKEN).exists()
        code = foremost([code for code in codes if code is not None])
        if asked and code not in FINAL and codes.count(0) < processes:
            code = Code.INTERRUPTED
        if code == Code.INTERRUPTED and silent:
            speak()
        if code in (Code.DONE, *FINAL):
            return code
        again = f"; starting again from the last checkpoint ({attempt + 1} of {restarts})" if attempt < restarts else ""
        if code < 0 or again:
            say(f"a process ended with {signals.described(code)}{again}")
    return Code.LOST if code < 0 else code


def spoken() -> None:
    """Tell our launcher, if there is one, that it is said what is left of a run that was interrupted."""
    if RENDEZVOUS in os.environ:
        with suppress(OSError):  # it was killed, and its folder removed
            Path(os.environ[RENDEZVOUS]).with_name(SPOKEN).touch()


def cores() -> int:
    """The cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads(processes: int) -> int:
    """The threads for each of so many processes: together they have as many as there are cores."""
    return max(1, cores() // processes)


@contextmanager
def _started(
    command: Sequence[str], processes: int, shared: Mapping[str, str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes, none of which outlives this.

    They have one end of a pipe whose other end closes with us, even if we are killed. The environment may have a number
    of threads that was meant for one process; theirs is their share of the cores.
    """
    lifeline, held = os.pipe()
    share = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads(processes)))
    shared = {**os.environ, **share, **shared, LIFELINE: str(lifeline), "WORLD_SIZE": str(processes)}
    children: list[subprocess.Popen[bytes]] = []
    try:
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


def _watch(children: Sequence[subprocess.Popen[bytes]], asked: Sequence[int]) -> list[int | None]:
    """Wait until all have ended, or some time after one has failed or all were asked to stop; their codes, or None.

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
    return [child.poll() for child in children]
