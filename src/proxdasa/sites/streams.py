"""One stream of messages between two sites: what has arrived and was not read, and what waits to be sent.

A neighbour decides how much it sends and how much it takes, so both are limited.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from proxdasa.sites.notifier import Notifier
from proxdasa.sites.wire_format import TURNS, Kind, Message, unpack

BOX = 16
"""The most unread messages kept for a neighbour; beyond that, the oldest are lost. Rows may be large, and an honest
neighbour is at most one round ahead."""
QUEUE = 64
"""The most messages queued for a neighbour; one that lets its queue fill up is cut off."""


@dataclass(eq=False)
class Stream:
    """One stream, opened by either end."""

    news: Notifier
    box: deque[Message] = field(default_factory=lambda: deque(maxlen=BOX))
    outgoing: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    cancel: Any = None
    sent: int = 0
    received: int = 0
    attached: bool = False
    """Whether greetings were exchanged and no newer stream has replaced this one."""

    def take(self, data: bytes) -> bytes | ValueError:
        """Put a message into the box; returns an error if something is wrong with it, otherwise the bytes themselves.

        gRPC calls this in its reading thread while it holds locks of its own, so this must not wait for anything.
        """
        if not self.attached:
            return data
        try:
            message = unpack(data)
            if message.sequence != self.received:
                raise ValueError(f"message {message.sequence} came where {self.received} was due")
        except ValueError as error:
            return error
        self.received = (self.received + 1) % TURNS
        self._put(message)
        self.news.notify()
        return data

    def _put(self, message: Message) -> None:
        """Append a message to the box. One that only says where the sender is replaces an unread one before it.

        A site that computes for minutes gets one in every second, and they must not push out the row that came before.
        """
        try:
            # Another thread may read the last message meanwhile, but then the box is empty.
            if message.kind is Kind.WHERE is self.box[-1].kind:
                self.box[-1] = message
                return
        except IndexError:
            pass
        self.box.append(message)

    def send(self, message: Message) -> int:
        """Queue a message; returns its size.

        One that only says where we are is left out if others wait: it would wait too, and be followed by the next one.
        """
        if message.kind is Kind.WHERE and self.outgoing.qsize():
            return 0
        data = message.pack(self.sent)
        self.outgoing.put(data)
        self.sent = (self.sent + 1) % TURNS
        return len(data)

    def messages(self) -> Iterator[bytes]:
        """The messages to send, until the stream is closed."""
        return iter(self.outgoing.get, None)

    def full(self) -> bool:
        """Whether too many messages wait to be sent."""
        return self.outgoing.qsize() >= QUEUE

    def close(self, at_once: bool = False) -> None:
        """End the stream; queued messages are still sent unless it ends at once or the queue is full."""
        if at_once or self.full():
            self.cancel()
        self.outgoing.put(None)
