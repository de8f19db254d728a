"""Threads that stand in for processes: messages pass through queues in memory. For tests of engines and methods.

Only one of them works at a time; a thread that waits for a message gives its turn to another. Otherwise they would
compete for Python's lock after each operation of torch, which takes longer than the operations themselves.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor

from proxdasa.engines.messages.transport import CPU, LostError

PATIENCE = 2_000
"""Hundredths of a second that a thread waits for a message before the sender counts as lost."""

Queues = dict[tuple[int, int], "queue.SimpleQueue[Tensor | None]"]
"""By sender and receiver; None means that the sender has ended."""


@final
class Threads:
    """The transport of one such thread."""

    restarted, device = False, CPU

    def __init__(self, rank: int, size: int, queues: Queues, reasons: list[str], turn: threading.Lock) -> None:
        self.rank, self.size = rank, size
        self._queues, self._reasons, self._turn = queues, reasons, turn

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:
        """Put copies into the queues, then wait for those of the others."""
        for peer, buffer in out.items():
            # A copy, as on a wire: the sender fills the same buffer again in the next round.
            self._queues[self.rank, peer].put(buffer.clone())
        for peer, buffer in into.items():
            self._turn.release()
            try:
                message = self._take(peer)
            finally:
                self._turn.acquire()
            buffer.copy_(message)
        return 0.0

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all threads, added in their order so that all get the same bits."""
        own, others = x.clone(), [peer for peer in range(self.size) if peer != self.rank]
        theirs = {peer: torch.empty_like(x) for peer in others}
        self.exchange(dict.fromkeys(others, own), theirs)
        parts = [own if peer == self.rank else theirs[peer] for peer in range(self.size)]
        return x.copy_(sum(parts[1:], start=parts[0].clone()))

    def fail(self, reason: str) -> str:
        """Make the others stop waiting; returns the first reason that any thread gave."""
        self._reasons.append(reason)
        return self._reasons[0]

    def close(self) -> None:
        """Let the others know that nothing more will come."""
        for peer in range(self.size):
            self._queues[self.rank, peer].put(None)

    def _take(self, peer: int) -> Tensor:
        # Many short waits, so that a thread that misses a message soon sees that another one has failed.
        for _ in range(PATIENCE):
            try:
                message = self._queues[peer, self.rank].get(timeout=0.01)
            except queue.Empty:
                if self._reasons:
                    break
                continue
            if message is None:
                raise LostError(peer, "its process has ended")
            return message
        raise LostError(peer, "silent")


def in_threads(size: int, act: Callable[[Threads], Any]) -> list[Any]:
    """What ``act(transport)`` returns, or the exception that it raises, in each of ``size`` threads."""
    queues: Queues = {(a, b): queue.SimpleQueue() for a in range(size) for b in range(size)}
    reasons: list[str] = []
    turn = threading.Lock()
    answers: list[Any] = [None] * size

    def work(rank: int) -> None:
        transport = Threads(rank, size, queues, reasons, turn)
        with turn:
            try:
                answers[rank] = act(transport)
            except Exception as error:
                answers[rank] = error
            finally:
                transport.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
