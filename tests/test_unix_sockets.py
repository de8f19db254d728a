"""Messages by Unix sockets arrive whole, in order and of the length that is due, only between those who belong."""

import select
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore

from proxdasa.engines.messages import unix_sockets
from proxdasa.engines.messages.unix_sockets import MissedError, UnixSockets, connect_sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")


def together(size, act):
    """What ``act(rank)`` returns in each of so many threads."""
    with ThreadPoolExecutor(size) as pool:
        return [job.result(timeout=60) for job in [pool.submit(act, rank) for rank in range(size)]]


@pytest.fixture
def connected():
    """A function that connects so many; all are closed at the end."""
    made = []

    def connect(size):
        store = HashStore()
        made.extend(together(size, lambda rank: connect_sockets(store, rank, size, 30.0)))
        return made

    yield connect
    for each in made:
        each.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
def test_messages_arrive_whole_and_in_order_in_both_directions(dtype, connected):
    """The longest, of 3 MB, is more than the system holds, so each must send and receive at the same time."""
    ends, lengths = connected(3), (1, 3_000_000 // dtype.itemsize, 0, 7)

    def act(rank):
        others, found = [peer for peer in range(3) if peer != rank], []
        for length in lengths:
            into = {peer: torch.zeros(length, dtype=dtype) for peer in others}
            assert ends[rank].exchange({peer: message(rank, peer, length, dtype) for peer in others}, into) >= 0
            found.append(into)
        return found

    for rank, found in enumerate(together(3, act)):
        for length, into in zip(lengths, found, strict=True):
            for peer, rows in into.items():
                assert torch.equal(rows, message(peer, rank, length, dtype))


def message(sender, receiver, length, dtype):
    return (torch.arange(length) * (sender + 3) % 101 + receiver).to(dtype)


def test_a_message_of_another_length_is_not_read(connected):
    first, second = connected(2)
    first.exchange({1: torch.zeros(3)}, {})
    first.exchange({1: torch.zeros(3)}, {})
    with pytest.raises(MissedError, match="it sent 12 bytes where 16 were due") as missed:
        second.exchange({}, {0: torch.zeros(4)})
    assert missed.value.peer == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_received_into_a_copy(dtype, connected):
    first, second = connected(2)
    first.exchange({1: torch.ones(12, dtype=dtype)}, {})
    with pytest.raises(ValueError, match="a message must be contiguous; got strides"):
        second.exchange({}, {0: torch.zeros(4, 3, dtype=dtype).T})


def test_one_that_has_ended_is_told_from_one_that_is_silent(connected):
    first, second, _ = connected(3)
    first._timeout = 0.05  # after connecting, which takes longer on a busy machine
    with pytest.raises(MissedError) as missed:
        first.exchange({2: torch.zeros(1)}, {1: torch.zeros(1)})
    assert (missed.value.peer, missed.value.silent) == (1, True)
    with pytest.raises(MissedError) as missed:  # the third does not read
        first.exchange({2: torch.zeros(10**6)}, {})
    assert (missed.value.peer, missed.value.silent) == (2, True)
    second.exchange({0: torch.ones(1)}, {})
    second.close()
    last = torch.zeros(1)
    first.exchange({}, {1: last})
    assert last == 1, "what was sent before the end still arrives"
    for out, into in (({}, {1: torch.zeros(1)}), ({1: torch.zeros(1)}, {})):
        with pytest.raises(MissedError) as missed:
            first.exchange(out, into)
        assert (missed.value.peer, missed.value.silent) == (1, False)


def test_a_wait_may_last_longer_than_the_system_counts(connected):
    first, _ = connected(2)
    first._timeout = 3e6
    room = unix_sockets._Message(1, first._sockets[1], torch.zeros(1), select.POLLOUT)
    assert first._wait([room]) >= 0


def test_all_do_without_sockets_if_one_cannot_reach_another(monkeypatch):
    """As on two machines: a name that one of them has bound is not there for the other."""
    store = HashStore()
    monkeypatch.setattr(unix_sockets, "_address", lambda name: f"\0{name}-{torch.rand(1).item()}")
    assert together(3, lambda rank: connect_sockets(store, rank, 3, 30.0)) == [None] * 3


@pytest.mark.parametrize(("who", "forbidden"), [(0, "bind"), (1, "bind"), (2, "listen"), (1, "connect")])
def test_all_do_without_sockets_if_one_may_not_have_any(who, forbidden, monkeypatch):
    """As in a sandbox; nobody is left waiting for its name."""
    store, here, allowed = HashStore(), threading.local(), getattr(socket.socket, forbidden)
    store.set_timeout(timedelta(seconds=30))

    def refuse(connection, *args):
        if here.rank == who:
            raise PermissionError(1, "Operation not permitted")
        return allowed(connection, *args)

    def act(rank):
        here.rank = rank
        return connect_sockets(store, rank, 3, 30.0)

    monkeypatch.setattr(socket.socket, forbidden, refuse)
    assert together(3, act) == [None] * 3


def test_strangers_on_the_same_machine_are_turned_away():
    store = HashStore()

    def act(rank):
        name = str(store.get("socket-0"), "utf-8").split()[0] if rank else ""
        for hello in (b"", b"?" * unix_sockets.HELLO.size) if rank else ():
            stranger = socket.socket(socket.AF_UNIX)
            stranger.connect(unix_sockets._address(name))
            stranger.sendall(hello)
            strangers.append(stranger)
        return connect_sockets(store, rank, 2, 30.0)

    strangers = []
    first, second = together(2, act)
    assert isinstance(first, UnixSockets)
    into = torch.zeros(2)
    first.exchange({1: torch.ones(2)}, {})
    second.exchange({}, {0: into})
    assert into.tolist() == [1, 1]
    for each in (*strangers, first, second):
        assert each not in strangers or each.recv(1) == b"", "it was hung up on"
        each.close()
