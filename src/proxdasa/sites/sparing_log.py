"""Limits the log of a site, because a neighbour can cause log lines and could fill the disk with them."""

from __future__ import annotations

import logging
import time

BURST = 1_000
"""The most lines at once."""
PACE = 1.0
"""Lines in a second after that."""


class Sparing(logging.Filter):
    """Leaves out lines beyond the limit; the next line says how many."""

    def __init__(self) -> None:
        super().__init__()
        self._left, self._at, self._omitted = float(BURST), time.monotonic(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        now = time.monotonic()
        self._left, self._at = min(BURST, self._left + PACE * (now - self._at)), now
        if self._left < 1:
            self._omitted += 1
            return False
        self._left -= 1
        if self._omitted:
            record.msg, self._omitted = f"({self._omitted} lines were left out) {record.msg}", 0
        return True
