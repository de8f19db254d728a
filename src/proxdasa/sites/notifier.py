"""Wakes the thread that waits for messages from the threads that read them."""

from __future__ import annotations

import threading


class Notifier:
    """Wakes the one thread that waits. `notify` never blocks, whatever locks other threads hold."""

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def notify(self) -> None:
        """End the current wait, or the next one if no thread is waiting."""
        try:  # noqa: SIM105 - the round waits for this, and a context manager takes longer than the rest
            self._silence.release()
        except RuntimeError:  # already notified
            pass

    def wait(self, seconds: float) -> None:
        """Wait until `notify` is called, but no longer than this."""
        self._silence.acquire(timeout=max(0.0, seconds))
