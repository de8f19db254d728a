"""Consoles that survive a closed pipe or terminal, and escape characters that the terminal lacks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from rich.console import Console

CLOSED = (errno.EPIPE, errno.EIO)
"""The errors when a pipe has no reader any more, or a terminal is gone."""


class Screen(Console):
    """A console whose reader or terminal may go away: the rest of the output is dropped, and the program continues.

    Rich's own console would end the program, and with it the run.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(emoji=False, **settings)  # a folder may be called :smile:

    @property
    def file(self) -> IO[str]:
        """The stream that it writes to."""
        return cast(IO[str], _LastingStream(super().file))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file


class _LastingStream:
    """A stream that drops its output once the other end is closed."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        # A terminal that knows ASCII only gets \u2016 for ‖, and not an error.
        shown = text.encode(encoding, "backslashreplace").decode(encoding)
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
            os.dup2(nowhere, self._stream.fileno())  # also for what Python has buffered and writes at exit
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
