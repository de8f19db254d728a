"""How rows travel between processes: one verb, "exchange messages with these processes", and a sum.

Messages are contiguous buffers that both sides have allocated; nothing is pickled. A process that is lost, or silent
for longer than the timeout, raises a `LostError` with its number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

CPU = torch.device("cpu")
DOUBT = 0.5
"""Seconds within which all processes notice that another one has ended."""


class LostError(Exception):
    """The process ``peer`` cannot be reached; ``why`` says what is known about it."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(why)
        self.peer, self.why = peer, why


class Transport(Protocol):
    """The other processes, as this one reaches them.

    Examples:
        >>> processes = engines.Alone()
        >>> processes.sum(torch.ones(2))  # over one process
        tensor([1., 1.])
    """

    @property
    def rank(self) -> int:
        """The number of this process; process 0 writes results."""

    @property
    def size(self) -> int:
        """The number of processes."""

    @property
    def restarted(self) -> bool:
        """Whether these processes were started again after earlier ones were lost."""

    @property
    def device(self) -> torch.device:
        """The device that messages leave from and arrive at."""

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:
        """Send each message of ``out`` to its process and fill ``into`` with theirs; returns the seconds of waiting."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, in place."""

    def fail(self, reason: str) -> str:
        """Let the others know why this process stops; returns the first reason that any process gave."""

    def close(self) -> None:
        """Release the connections; all processes are done."""


@final
class Alone:
    """One process with all agents.

    Examples:
        >>> processes = engines.connect() or engines.Alone()
        >>> processes.rank, processes.size
        (0, 1)
    """

    rank, size, restarted, device = 0, 1, False, CPU

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:  # noqa: ARG002
        """Do nothing: there is no other process."""
        return 0.0

    def sum(self, x: Tensor) -> Tensor:
        """The tensor itself."""
        return x

    def fail(self, reason: str) -> str:
        """The reason itself."""
        return reason

    def close(self) -> None:
        """Do nothing: there are no connections."""


def doubt(timeout: float) -> float:
    """Seconds within which all processes that wait for each other give up, even on a busy machine."""
    return max(DOUBT, timeout / 10)


def find_lost(peer: int, silent: Callable[[], Sequence[int]], patience: float) -> int:
    """The process that is really lost when ``peer`` is missed.

    A peer that is itself waiting for a third process announces this at about the same time; ``silent`` lists the
    processes that have announced nothing. If the peer has, a second pause leaves neighbours of the lost process time to
    report.
    """
    time.sleep(patience)
    if peer in silent():
        return peer
    time.sleep(patience)
    return next(iter(silent()), peer)
