"""Consoles that outlive their other end, and show what they can where there are no signs but ASCII."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from rich.console import Console

CLOSED = (errno.EPIPE, errno.EIO)
"""What writing to a pipe that nobody reads, and to a terminal that is gone, meets."""


class Screen(Console):
    """A console whose reader or terminal may go away: the rest is not shown, and what was running goes on.

    Rich's own console ends the program then, and with it a run and its results.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(emoji=False, **settings)  # a folder may be called :smile:

    @property
    def file(self) -> IO[str]:
        """Where it writes to."""
        return cast(IO[str], _Lasting(super().file))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file


class _Lasting:
    """A stream that forgets what it is given once it is closed at the other end."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        shown = text.encode(encoding, "backslashreplace").decode(encoding)  # no sign costs what was asked for
        with self._unless_closed():
            self._stream.write(shown)
        return len(text)

    def flush(self) -> None:
        with self._unless_closed():
            self._stream.flush()

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in CLOSED:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # also for what Python has kept back and writes as it ends
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
