"""How rows travel between processes: one verb, "exchange messages with these processes", and a sum.

Messages are contiguous buffers that exist already; nothing is pickled. A process that is lost, or silent for longer
than the timeout, is an error that names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

CPU = torch.device("cpu")
TIMEOUT = 60.0
"""Seconds that a silent process is waited for."""
DOUBT = 0.5
"""Seconds by which processes may notice at different times that another one has ended."""


class LostError(Exception):
    """The process ``peer`` cannot be reached; ``why`` is what is known of it."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(why)
        self.peer, self.why = peer, why


class Transport(Protocol):
    """The other processes, as this one reaches them."""

    @property
    def rank(self) -> int:
        """The number of this process; process 0 writes results."""

    @property
    def size(self) -> int:
        """The number of processes."""

    @property
    def restarted(self) -> bool:
        """Whether they stand in for others that were lost."""

    @property
    def device(self) -> torch.device:
        """Where rows are sent from and arrive."""

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:
        """Send a message to each process of ``out`` and fill ``into`` with theirs; returns the seconds of waiting."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, in place."""

    def fail(self, reason: str) -> str:
        """Tell the others why this process stops; the first reason that any process gave."""

    def close(self) -> None:
        """Part from the others, all of which are done."""


@final
class Alone:
    """One process with all agents."""

    rank, size, restarted, device = 0, 1, False, CPU

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:  # noqa: ARG002
        """There is nobody."""
        return 0.0

    def sum(self, x: Tensor) -> Tensor:
        """Its own."""
        return x

    def fail(self, reason: str) -> str:
        """Its own."""
        return reason

    def close(self) -> None:
        """Nothing to part from."""


def doubt(timeout: float) -> float:
    """Seconds by which processes that wait for each other, perhaps on a busy machine, give up at different times."""
    return max(DOUBT, timeout / 10)


def blamed(peer: int, silent: Callable[[], Sequence[int]], patience: float) -> int:
    """Who is to blame, if ``peer`` is missed: it may be waiting for another itself, which it says at about this time.

    If so, time is left for a neighbour of that other to say it first.
    """
    time.sleep(patience)
    if peer in silent():
        return peer
    time.sleep(patience)
    return next(iter(silent()), peer)
