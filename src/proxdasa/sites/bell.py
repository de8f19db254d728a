"""How threads that read letters wake the one that waits for them."""

from __future__ import annotations

import threading


class Bell:
    """Wakes the one thread that waits for something to happen. Who rings never waits, whatever locks others hold."""

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """End the wait, or the next one if nobody waits now."""
        try:  # noqa: SIM105 - everybody waits for this, and a context takes longer than the rest
            self._silence.release()
        except RuntimeError:  # it rings already
            pass

    def wait(self, seconds: float) -> None:
        """Wait until somebody rings, but no longer than this."""
        self._silence.acquire(timeout=max(0.0, seconds))
