"""Signals that ask to stop: Ctrl-C, SIGTERM, and SIGHUP, which comes when a terminal is closed. All mean the same.

Whatever has to do with them is here. Who ignores one of them, as nohup does SIGHUP, goes on ignoring it. Python
handles signals in its main thread, and nothing here changes anything in another one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

ASKING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
PAUSE = 0.02
"""Seconds after which a thread that waits looks for signals."""


@contextmanager
def handled(act: Callable[[int], None], once: bool = False) -> Iterator[None]:
    """Act on the signals in here, or on the first of each kind: a second one then does what it did outside."""

    def handle(number: int, _: FrameType | None) -> None:
        if once:
            signal.signal(number, before[number])
        act(number)

    with _replaced(handle) as before:
        yield


@contextmanager
def interrupting() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt in here; whoever then saves what there is hears no second one."""

    def interrupt(_number: int) -> None:
        for number in ASKING:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    with handled(interrupt):
        yield


@contextmanager
def deadly() -> Iterator[None]:
    """A signal ends this process in here, without a word: where it waits outside of Python no handler is called."""
    with _replaced(signal.SIG_DFL):
        yield


@contextmanager
def unheard() -> Iterator[None]:
    """No signal disturbs what is done in here, such as writing what all the work was for."""
    with _replaced(signal.SIG_IGN):
        yield


def heard(act: Callable[[], T]) -> T:
    """Do something that waits outside of Python, where no handler is called, while this thread waits and calls them.

    If a handler raises, what was begun is left to itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return act()
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(PAUSE)  # not for ever: a signal may come just before it waits, and would not wake it
    if errors:
        raise errors[0]
    return results[0]


def follow(lifeline: int) -> None:
    """Stop as if asked to, with a checkpoint, when our launcher has ended before us: it was killed.

    Then nobody holds the other end of this pipe.
    """

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def described(code: int) -> str:
    """The exit code of a process in words; that of one which a signal has ended is negative."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


@contextmanager
def _replaced(handler: Any) -> Iterator[dict[int, Any]]:
    """Another handler of all signals that are not ignored; what they had before."""
    main = threading.current_thread() is threading.main_thread()
    found = {number: signal.getsignal(number) for number in ASKING if main}
    # None stands for a handler that is not Python's, and that Python cannot put back.
    before = {number: old for number, old in found.items() if old not in (None, signal.SIG_IGN)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)
