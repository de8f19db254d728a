"""What two neighbouring sites send each other: a fixed header, and for rows the numbers themselves."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

# 32 bytes, so that the numbers of the row that follows are aligned: unaligned ones take ten times as long to read.
_FORMAT = struct.Struct("<BxqiHiHiiH")
SIZE = _FORMAT.size
"""The size of a header, in bytes."""
GREETING = 4_096
"""The largest size of a greeting, in bytes."""
TURNS = 2**16
"""Rounds, counts of rounds and messages are numbered modulo this. Two ends of a link are never so far apart."""
MOST = 2**30
"""The most iterations of a study, with the rounds at its end: further numbers of iterations need room in a header."""
NEVER = -1
"""Stands for an iteration where there is none."""


class Kind(IntEnum):
    """What a message is for."""

    HELLO = 0
    """The first message of a stream each way: who the sender is, as JSON."""
    ROWS = 1
    """A row of a round."""
    WHERE = 2
    """The sender is alive, at this iteration and round, and waits for others."""
    DROP = 3
    """The sender no longer counts the link."""
    PROPOSE = 4
    """The sender proposes to count the link from an iteration on."""
    ACCEPT = 5
    """The sender agrees to a proposal."""
    DONE = 6
    """The sender has made its last round."""


_KINDS = dict(enumerate(Kind))  # calling the class takes longer than all the rest of reading a header


class Message(NamedTuple):
    """A message from one site to a neighbour."""

    kind: Kind
    epoch: int = 0
    """The number of times that trackers were reset, as far as the sender knows."""
    k: int = NEVER
    """The sender's iteration; with PROPOSE and ACCEPT the one from which the link counts."""
    round: int = 0
    """The round within the iteration, modulo `TURNS`."""
    since: int = NEVER
    """The iteration from which the link counts, or counted before it was dropped."""
    counted: int = 0
    """How many rounds the sender has counted over the link since then, modulo `TURNS`."""
    jump_at: int = NEVER
    """At this iteration the sender's part of the network goes on with iteration ``jump_to``."""
    jump_to: int = NEVER
    sequence: int = 0
    """The number of the message within its stream, from 0 on, modulo `TURNS`."""
    payload: bytes | memoryview = b""
    """In a received message, a view of the received bytes, because rows may be large."""

    def pack(self, sequence: int | None = None) -> bytes:
        """The message as bytes, with this number in place of its own."""
        head = _FORMAT.pack(*self[:-2], self.sequence if sequence is None else sequence)
        return head + self.payload if self.payload else head


def unpack(data: bytes) -> Message:
    """The message in these bytes; a ValueError says what is wrong with them."""
    if len(data) < SIZE:
        raise ValueError(f"a message has at least {SIZE} bytes; got {len(data)}")
    kind, *numbers = _FORMAT.unpack_from(data)
    if kind not in _KINDS:
        raise ValueError(f"there is no message of kind {kind}")
    return Message._make((_KINDS[kind], *numbers, memoryview(data)[SIZE:]))
