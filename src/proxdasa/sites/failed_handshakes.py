"""Reports callers who fail in the TLS handshake, such as strangers and plain TCP.

gRPC refuses them in its C++ core, which reports them only as lines on standard error, with a reason but without an
address. `report_failed_handshakes` makes standard error a pipe, from which a thread takes these lines. Whatever else is
written to it goes on to the real standard error. Python's own output goes there directly, so that none is lost if the
process is killed.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports grpc, which must see our setting
    from proxdasa.sites.connections import Connections

VERBOSITY = "GRPC_VERBOSITY"
CORE = re.compile(rb"[IWEF]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] ")
"""How the core's lines begin."""
FAILED = re.compile(rb"Handshake failed with error .*:([A-Z0-9_]+)(: |$)")
"""The core's line for a failed handshake, with the reason in capitals; a test fails if gRPC changes it."""
PAUSE = 60.0
"""Seconds between two reports, so that strangers cannot fill the log."""


@contextmanager
def report_failed_handshakes() -> Iterator[Callable[[Connections], None]]:
    """Yields a function that names the connections whose refusals the failed handshakes are.

    This must begin before grpc is imported, which reads its settings then. Nothing is reported if grpc was imported
    before, or if the user has set how much gRPC writes.
    """
    if "grpc" in sys.modules or VERBOSITY in os.environ:
        yield lambda _: None
        return
    os.environ[VERBOSITY] = "INFO"
    real, (pipe, written) = os.dup(2), os.pipe()
    reader, before = _Reader(pipe, real), sys.stderr
    before.flush()
    os.dup2(written, 2)
    os.close(written)
    sys.stderr = os.fdopen(real, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    reader.start()
    try:
        yield reader.report_to
    finally:
        os.dup2(real, 2)  # now nothing writes to the pipe, and the reader ends
        sys.stderr = before
        reader.join(timeout=5)


class _Reader(threading.Thread):
    """Reads the pipe until nobody can write to it any more."""

    def __init__(self, pipe: int, real: int) -> None:
        super().__init__(daemon=True, name="proxdasa-handshakes")
        self._pipe, self._real, self._due = pipe, real, 0.0
        self._connections: Connections | None = None
        self._failed: Counter[str] = Counter()
        self._uncounted = 0

    def report_to(self, connections: Connections) -> None:
        connections.counts_handshakes = True
        self._connections = connections

    def run(self) -> None:
        rest = b""
        while data := os.read(self._pipe, 2**16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._sort(line)
            self._report(time.monotonic() >= self._due)
        self._report(True)
        self._pass_on(rest)
        os.close(self._pipe)

    def _sort(self, line: bytes) -> None:
        if not CORE.match(line):
            self._pass_on(line + b"\n")
        elif found := FAILED.search(line):
            self._failed[found[1].decode().lower().replace("_", " ")] += 1
            self._uncounted += 1

    def _pass_on(self, data: bytes) -> None:
        with suppress(OSError):  # the terminal may be gone; if we stopped reading, gRPC would wait for room in the pipe
            os.write(self._real, data)

    def _report(self, log: bool) -> None:
        """Count the failures at once; log them now, or leave that to the next report."""
        if not self._connections or not self._failed:
            return
        self._connections.spent["refused"] += self._uncounted
        self._uncounted = 0
        if log:
            for reason, times in self._failed.items():
                calls = "a call" if times == 1 else f"{times} calls"
                self._connections.refuse(f"{calls} that failed in the TLS handshake ({reason})", times=0)
            self._failed.clear()
            self._due = time.monotonic() + PAUSE
