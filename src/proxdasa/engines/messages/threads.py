"""Processes that are threads: messages pass through queues in memory. For tests, of engines and of methods."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor

from proxdasa.engines.messages.transport import CPU, LostError

PATIENCE = 2_000
"""How often a thread looks for a message, a hundredth of a second each, before it misses the sender."""

Queues = dict[tuple[int, int], "queue.SimpleQueue[Tensor | None]"]
"""By sender and receiver; None says that the sender has ended."""


@final
class Threads:
    """A process that is a thread."""

    restarted, device = False, CPU

    def __init__(self, rank: int, size: int, queues: Queues, reasons: list[str]) -> None:
        self.rank, self.size = rank, size
        self._queues, self._reasons = queues, reasons

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:
        """Copies go into the queues at once."""
        for peer, buffer in out.items():
            self._queues[self.rank, peer].put(buffer.clone())
        for peer, buffer in into.items():
            buffer.copy_(self._take(peer))
        return 0.0

    def sum(self, x: Tensor) -> Tensor:
        """In the order of processes, so that all have the same bits."""
        own, others = x.clone(), [peer for peer in range(self.size) if peer != self.rank]
        theirs = {peer: torch.empty_like(x) for peer in others}
        self.exchange(dict.fromkeys(others, own), theirs)
        parts = [own if peer == self.rank else theirs[peer] for peer in range(self.size)]
        return x.copy_(sum(parts[1:], start=parts[0].clone()))

    def fail(self, reason: str) -> str:
        """The others stop waiting."""
        self._reasons.append(reason)
        return self._reasons[0]

    def close(self) -> None:
        """Nothing more will come."""
        for peer in range(self.size):
            self._queues[self.rank, peer].put(None)

    def _take(self, peer: int) -> Tensor:
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
    """What ``act(transport)`` returns, or the exception it raises, in each of so many threads."""
    queues: Queues = {(a, b): queue.SimpleQueue() for a in range(size) for b in range(size)}
    reasons: list[str] = []
    answers: list[Any] = [None] * size

    def work(rank: int) -> None:
        transport = Threads(rank, size, queues, reasons)
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
