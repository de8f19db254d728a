"""Reporting the progress of a run to its callbacks."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from proxdasa import caller_warnings
from proxdasa.runs.records import Row

Progress = Callable[[int, int, Sequence[Row]], None]
"""Called now and then with (iterations made, iterations in all, rows of the latest observation)."""


class ProgressWarning(UserWarning):
    """A progress callback has failed."""


class Listeners:
    """The progress callbacks of a run. One that fails is not called again; the run continues."""

    def __init__(self, progress: Progress | Sequence[Progress] | None) -> None:
        given = [progress] if callable(progress) or not isinstance(progress, Sequence) else progress
        self._callbacks = [each for each in given if each is not None]
        if not all(map(callable, self._callbacks)):
            from proxdasa.checks import invalid  # noqa: PLC0415 - imports PyTorch

            raise invalid("progress", "a function of k, iterations and rows, or a list of such functions", progress)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Context manager around work before the iterations: reports what it is and how long it took.

        Callbacks with a method ``note`` receive the text.
        """
        self.note(f"{what}, which may take a minute")
        began = time.perf_counter()
        yield
        self.note(f"{what} took {time.perf_counter() - began:.0f} s")

    def note(self, text: str) -> None:
        """Pass a text on to the callbacks that take one."""
        for callback in self._callbacks:
            getattr(callback, "note", _ignore)(text)

    def report(self, k: int, iterations: int, rows: Sequence[Row]) -> None:
        """Call all callbacks."""
        for callback in tuple(self._callbacks):
            try:
                callback(k, iterations, [dict(row) for row in rows])  # the rows themselves are the run's records
            except Exception as error:
                self._callbacks.remove(callback)
                place = traceback.extract_tb(error.__traceback__)[-1]
                caller_warnings.warn(
                    f"the progress callback failed after {k} iterations: {type(error).__name__}: {error} "
                    f"({place.filename}, line {place.lineno}); the run continues without it",
                    ProgressWarning,
                )


def _ignore(_text: str) -> None:
    """Do nothing."""
