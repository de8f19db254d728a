"""Signals that ask to stop: Ctrl-C, SIGTERM, and SIGHUP, which a terminal sends when it is closed. All mean the same.

All handling of signals is in this file. A signal that is ignored, as nohup makes SIGHUP, stays ignored. Python handles
signals in its main thread; called from another thread, nothing here has any effect.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

ASKING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
KILL = getattr(signal, "SIGKILL", 0)
"""The signal that ends a process at once; a system that is short of memory sends it."""
PAUSE = 0.02
"""Seconds after which a waiting thread looks for signals."""


@contextmanager
def handle(act: Callable[[int], None], once: bool = False) -> Iterator[None]:
    """Context manager: call ``act`` on each signal or, with ``once``, on the first of each kind.

    A second signal of the same kind then has the effect that it had before.
    """

    def on_signal(number: int, _: FrameType | None) -> None:
        if once:
            signal.signal(number, before[number])
        act(number)

    with _replace_handlers(on_signal) as before:
        yield


@contextmanager
def interrupting() -> Iterator[None]:
    """Context manager: the first signal raises KeyboardInterrupt; later ones are ignored, so that results get saved.

    Python reports and drops an exception that is raised in a finalizer or a callback of the garbage collector. If it
    drops the interruption, the signal is sent again a moment later.
    """
    heard: list[int] = []
    timers: list[threading.Timer] = []
    hook = sys.unraisablehook

    def interrupt(number: int) -> None:
        heard.append(number)
        for each in ASKING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    def repeat(dropped: sys.UnraisableHookArgs) -> None:
        if not (heard and isinstance(dropped.exc_value, KeyboardInterrupt)):
            hook(dropped)
            return
        signal.signal(heard[-1], lambda number, _: interrupt(number))
        # From a thread and not at once: this hook may be called in the finalizer itself.
        timers.append(threading.Timer(PAUSE, os.kill, (os.getpid(), heard[-1])))
        timers[-1].start()

    sys.unraisablehook = repeat
    try:
        with handle(interrupt):
            yield
    finally:
        sys.unraisablehook = hook
        for timer in timers:
            timer.cancel()


@contextmanager
def heeding(act: Callable[[], None], once: bool = True) -> Iterator[None]:
    """Context manager: signals that would raise an exception call ``act`` instead; with ``once``, a second one raises.

    A signal that ends the process at once, as SIGTERM does unless it is handled, still does.
    """

    def on_signal(number: int, _: FrameType | None) -> None:
        if once:
            signal.signal(number, before[number])
        act()

    with _replace_handlers(on_signal, deadly=False) as before:
        yield


def obey(act: Callable[[], None]) -> None:
    """In a forked process: call ``act`` on the first SIGTERM, and ignore Ctrl-C, which reaches the parent too."""

    def on_signal(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        act()

    for number in ASKING:
        signal.signal(number, on_signal if number == signal.SIGTERM else signal.SIG_IGN)


@contextmanager
def deadly() -> Iterator[None]:
    """Context manager: a signal ends this process at once. For waits outside of Python, where no handler is called."""
    with _replace_handlers(signal.SIG_DFL):
        yield


@contextmanager
def ignored() -> Iterator[None]:
    """Context manager: signals are ignored, for example while results are written."""
    with _replace_handlers(signal.SIG_IGN):
        yield


def call_in_thread(act: Callable[[], T]) -> T:
    """Call something that waits outside of Python in a thread, so that this thread can handle signals meanwhile.

    If a handler raises, the thread is abandoned.
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
        thread.join(PAUSE)  # not indefinitely: a signal that arrives just before the wait would not wake it
    if errors:
        raise errors[0]
    return results[0]


def follow(lifeline: int) -> None:
    """Stop as if asked to, with a checkpoint, if our launcher is killed.

    The launcher holds the other end of this pipe, so reading from it returns when the launcher ends.
    """

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def describe_exit(code: int) -> str:
    """An exit code as text; it is negative if a signal has ended the process."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


@contextmanager
def _replace_handlers(handler: Any, deadly: bool = True) -> Iterator[dict[int, Any]]:
    """Context manager: set the handler of all signals that are not ignored; yields the previous handlers.

    Without ``deadly``, signals that end the process at once are left alone.
    """
    main = threading.current_thread() is threading.main_thread()
    found = {number: signal.getsignal(number) for number in ASKING if main}
    # None stands for a handler that is not Python's, and that Python cannot put back.
    kept = (None, signal.SIG_IGN) if deadly else (None, signal.SIG_IGN, signal.SIG_DFL)
    before = {number: old for number, old in found.items() if old not in kept}
    try:
        for number in before:
            signal.signal(number, handler)
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)
