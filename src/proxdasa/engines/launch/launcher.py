"""Our own launcher: starts the processes of a run on this machine, watches them, and restarts them if one dies."""

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
"""Seconds between two polls of the processes."""
GRACE = 30.0
"""Seconds that processes have to write a checkpoint after they were asked to stop, before they are killed."""
LOSS = 5.0
"""Seconds that the others have to notice that one has died and to report it, before they are killed."""
REPORTED = "reported"
"""A file beside the rendezvous file; it exists once a process has told the user what an interrupted run has kept."""


def launch(
    command: Sequence[str],
    processes: int,
    restarts: int = 0,
    say: Callable[[str], None] = print,
    report: Callable[[], None] = lambda: None,
) -> int:
    """Run a command in several processes that find each other; returns the exit code that says how they ended.

    If one dies, all are started again, up to ``restarts`` times, unless its exit code is final. Signals that ask to
    stop are passed on to all of them. ``report`` tells the user what is kept; it is called if the processes were
    interrupted and none of them has done so (`mark_reported`).
    """
    for attempt in range(restarts + 1):
        asked: list[int] = []
        with tempfile.TemporaryDirectory(prefix="proxdasa-") as folder:
            shared = {RENDEZVOUS: str(Path(folder) / "rendezvous"), START: str(attempt + 1)}
            with signals.handle(asked.append), _start(command, processes, shared) as children:
                codes = _watch(children, asked)
            silent = not (Path(folder) / REPORTED).exists()
        code = foremost([code for code in codes if code is not None])
        # Processes that were asked to stop may end in several ways, some by our own kill; the user sees one outcome.
        if asked and code not in FINAL and codes.count(0) < processes:
            code = Code.INTERRUPTED
        if code == Code.INTERRUPTED and silent:
            report()
        if code in (Code.DONE, *FINAL):
            return code
        again = f"; starting again from the last checkpoint ({attempt + 1} of {restarts})" if attempt < restarts else ""
        if code < 0 or again:
            say(f"a process ended with {signals.describe_exit(code)}{again}")
    return Code.LOST if code < 0 else code


def mark_reported() -> None:
    """Let our launcher, if there is one, know that the user was told what an interrupted run has kept."""
    if RENDEZVOUS in os.environ:
        with suppress(OSError):  # the launcher was killed and its folder removed
            Path(os.environ[RENDEZVOUS]).with_name(REPORTED).touch()


def cores() -> int:
    """The number of cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_process(processes: int) -> int:
    """Threads for each of several processes, so that together they have as many as there are cores."""
    return max(1, cores() // processes)


@contextmanager
def _start(
    command: Sequence[str], processes: int, shared: Mapping[str, str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Context manager: start the processes; none of them outlives it.

    They hold one end of a pipe whose other end closes when this process ends, even by SIGKILL. Their number of threads
    is their share of the cores, whatever the environment says: that was meant for a single process.
    """
    lifeline, held = os.pipe()
    share = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads_per_process(processes)))
    shared = {**os.environ, **share, **shared, LIFELINE: str(lifeline), "WORLD_SIZE": str(processes)}
    children: list[subprocess.Popen[bytes]] = []
    try:
        for rank in map(str, range(processes)):
            # Each has its own process group, so that Ctrl-C reaches it once, through us.
            env = {**shared, "RANK": rank}
            children += [subprocess.Popen(command, env=env, process_group=0, pass_fds=[lifeline])]
        yield children
    finally:
        for child in children:
            child.kill()  # has no effect on those that have ended
            child.wait()
        for end in (lifeline, held):
            os.close(end)


def _watch(children: Sequence[subprocess.Popen[bytes]], asked: Sequence[int]) -> list[int | None]:
    """Wait until all have ended, or for a while after one has failed or all were asked to stop.

    Returns their exit codes, None for those still running. Signals in ``asked`` are passed on as they arrive.
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
