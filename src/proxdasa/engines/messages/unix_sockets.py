"""Messages between processes of one machine, by Unix sockets: no thread of a library stands between the two ends.

The sockets have names in Linux's abstract namespace. These are not files, so nothing is left behind, however a process
ends; and they exist on one machine only, so a process that can connect to them is on the same one.
"""

from __future__ import annotations

import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

LENGTH = struct.Struct("<q")
"""The length of a message, sent ahead of it: a reader that takes too little or too much would read garbage from then
on."""
HELLO = struct.Struct("<32sq")
"""What the end that connects sends first: the secret of the other end, and its own number."""
BUFFER = 2**20
"""Bytes that the system is asked to buffer on their way to one process."""

LONGEST = 2**31 - 1
"""Milliseconds that the system can wait for at a time, almost 25 days."""


class MissedError(Exception):
    """A message from or to ``peer`` was not exchanged; ``why`` is empty if its process has ended or is silent."""

    def __init__(self, peer: int, silent: bool = False, why: str = "") -> None:
        super().__init__(why)
        self.peer, self.silent, self.why = peer, silent, why


@final
class UnixSockets:
    """A socket to each of the other processes."""

    def __init__(self, sockets: Mapping[int, socket.socket], timeout: float) -> None:
        self._sockets, self._timeout = sockets, timeout
        for each in sockets.values():
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:
        """Move all messages concurrently, so that processes cannot deadlock; returns the seconds of waiting."""
        pending = [_Message(peer, self._sockets[peer], buffer, select.POLLOUT) for peer, buffer in out.items()]
        pending += [_Message(peer, self._sockets[peer], buffer, select.POLLIN) for peer, buffer in into.items()]
        waited = 0.0
        while pending:
            moved = False
            for message in pending:
                moved |= message.move()
            if moved:
                pending = [message for message in pending if message.parts]
            else:
                waited += self._wait(pending)
        return waited

    def close(self) -> None:
        """Close the sockets; what was sent still arrives."""
        for each in self._sockets.values():
            each.close()

    def _wait(self, pending: Sequence[_Message]) -> float:
        """Sleep until some message can move; returns the seconds it took."""
        began, poll = time.perf_counter(), select.poll()
        for message in pending:
            # All events of a socket at once: registering it again would replace what it is watched for.
            poll.register(message.socket, sum({each.event for each in pending if each.peer == message.peer}))
        if not poll.poll(min(1e3 * self._timeout, LONGEST)):
            raise MissedError(pending[-1].peer, silent=True)  # a peer that should have sent, if there is any
        return time.perf_counter() - began


@final
class _Message:
    """A message on its way to a peer or from it; ``parts`` is what has yet to move."""

    def __init__(self, peer: int, connection: socket.socket, buffer: Tensor, event: int) -> None:
        self.peer, self.socket, self.event = peer, connection, event
        body = _bytes(buffer)
        self._due = LENGTH.pack(len(body))
        self._head = bytearray(self._due)
        self.parts = [memoryview(self._head), body]

    def move(self) -> bool:
        """Send or receive what is possible now; returns whether anything moved."""
        try:
            if self.event == select.POLLOUT:
                count = self.socket.sendmsg(self.parts)
            else:
                count = self.socket.recvmsg_into(self.parts)[0]
        except BlockingIOError:
            return False
        except OSError as error:
            raise MissedError(self.peer) from error
        if not count:
            raise MissedError(self.peer)
        while self.parts and count >= len(self.parts[0]):
            count -= len(self.parts.pop(0))
        if count:
            self.parts[0] = self.parts[0][count:]
        if self._head != self._due and len(self.parts) < 2:
            sent, due = (LENGTH.unpack(each)[0] for each in (self._head, self._due))
            raise MissedError(self.peer, why=f"it sent {sent} bytes where {due} were due")
        return True


def connect_sockets(store: Any, rank: int, size: int, timeout: float) -> UnixSockets | None:
    """Connect to all processes that share this store; None, in all of them, if some cannot connect."""
    if sys.platform != "linux":
        return None
    name, secret = secrets.token_hex(16), secrets.token_hex(16)
    sockets: dict[int, socket.socket] = {}
    with _listen(name, 2 * size) or nullcontext() as listener:
        store.set(f"socket-{rank}", f"{name} {secret}")  # in any case, because the others wait for it
        try:
            for peer in range(rank) if listener else ():
                sockets[peer] = socket.socket(socket.AF_UNIX)
                sockets[peer].settimeout(timeout)
                other, word = str(store.get(f"socket-{peer}"), "utf-8").split()
                sockets[peer].connect(_address(other))
                sockets[peer].sendall(HELLO.pack(word.encode(), rank))
        except OSError:  # it is on another machine, in another container, or has no socket of this name
            store.set(f"reached-{rank}", "no")
        else:
            store.set(f"reached-{rank}", "yes" if listener else "no")
        if listener and all(store.get(f"reached-{peer}") == b"yes" for peer in range(size)):
            # Every peer that connected has also sent its hello, so none of this waits.
            sockets |= _accept(listener, secret, size - 1 - rank)
            return UnixSockets(sockets, timeout)
    for each in sockets.values():
        each.close()
    return None


def _listen(name: str, most: int) -> socket.socket | None:
    """A socket of this name, to which ``most`` peers may connect; None if this process may not create it."""
    listener = None
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(_address(name))
        listener.listen(most)
    except OSError:  # a sandbox may forbid it
        if listener:
            listener.close()
        return None
    return listener


def _accept(listener: socket.socket, secret: str, count: int) -> dict[int, socket.socket]:
    """The connections, by process, of ``count`` peers that know the secret; others here may have connected too."""
    found: dict[int, socket.socket] = {}
    listener.setblocking(False)
    while len(found) < count:
        connection, _ = listener.accept()
        connection.setblocking(False)
        try:
            word, peer = HELLO.unpack(connection.recv(HELLO.size))
        except (OSError, struct.error):
            word, peer = b"", -1
        if secrets.compare_digest(word, secret.encode()):
            found[peer] = connection
        else:
            connection.close()
    return found


def _bytes(buffer: Tensor) -> memoryview:
    """The memory of a contiguous tensor; any other would be copied, and what the copy receives would be lost."""
    if not buffer.is_contiguous():
        raise ValueError(f"a message must be contiguous; got strides {buffer.stride()} of shape {tuple(buffer.shape)}")
    try:
        array: np.ndarray = buffer.numpy()
    except TypeError:  # NumPy does not know all of torch's types, such as bfloat16
        array = buffer.view(torch.uint8).numpy()
    return array.reshape(-1).view(np.uint8).data


def _address(name: str) -> str:
    return f"\0proxdasa-{name}"  # begins with a zero byte, which makes it abstract
