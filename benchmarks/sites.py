"""Compares a round between two sites with a bare exchange of the same bytes, over gRPC with the same mutual TLS.

Each of two processes has a site and one end of a bare stream, and they take turns: rounds of the sites, then as many
bare exchanges. A bare exchange is the least that two programs need to exchange bytes through gRPC's streams: the main
thread of each puts its message into the queue of the stream, and waits for the other's. A least round adds what no
round can do without: a row becomes a message, the received row is checked for numbers that are not finite, and both
are mixed; it has no notion of neighbours, round numbers or time limits. ``make bench`` starts the processes on this
machine and, if the kernel supports it, at the ends of a slow link. To run it by itself, on this machine alone::

    python -m benchmarks.sites
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.federation import HOST, Relay, credentials, free_ports, make_keys
from tests.namespaces import ADDRESSES, machines

from proxdasa.runs.denormals import flushed_denormals
from proxdasa.sites.connections import Connections
from proxdasa.sites.heap import share_one_heap
from proxdasa.sites.links import Links
from proxdasa.sites.rounds import Combination, Rounds
from proxdasa.sites.wire_format import SIZE

import grpc  # isort: skip - after proxdasa.sites.connections, which restricts TLS

NAMES = ("aachen", "berlin")
"""The first calls the second."""
WIDTHS = {"300 numbers, 1.2 kB": 300, "8,066 numbers, 32 kB": 8_066, "262,144 numbers, 1 MB": 262_144}
PATIENCE, LONG = 60.0, 2**30
LINKS: dict[str, dict[str, str]] = {
    "loopback": {},
    "50 Mbit/s": {"rate": "50mbit"},
    "50 Mbit/s, 20 ms": {"rate": "50mbit", "delay": "20ms"},
}
RELAYED = "20 ms, by a relay"
"""A link on this machine whose delay needs no support by the kernel: all exchanges go through relays that hold bytes
back."""
DELAY = 0.02
METHOD = "/bare.Stream/Exchange"
OPTIONS = [("grpc.max_receive_message_length", 2**23)]
Times = dict[str, dict[str, float]]


def measure(link: str) -> Times:
    """For each width, the seconds that a round, a bare exchange and a least round take.

    Raises OSError with the reason if there is no such link.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_keys(folder, NAMES)
        places: list[list[str]] = [[], []]
        hosts = (HOST, HOST)
        if LINKS.get(link):
            names = stack.enter_context(machines(**LINKS[link]))
            places, hosts = [["ip", "netns", "exec", name] for name in names], ADDRESSES
        ports = free_ports(2)
        called = [DelayingRelay(port).port for port in ports] if link == RELAYED else ports
        repeats = "3" if LINKS.get(link) or link == RELAYED else "60"
        both = [
            subprocess.Popen(
                [*place, sys.executable, "-m", "benchmarks.sites", name, folder, hosts[1], *map(str, ends), repeats],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for name, place, ends in zip(NAMES, places, (called, ports), strict=True)
        ]
        codes = [process.wait() for process in both]
        if any(codes):
            raise OSError("a process has failed")
        return json.loads((folder / "times.json").read_text(encoding="utf-8"))


class DelayingRelay(Relay):
    """Passes all bytes on after a delay, as a long line does: new bytes enter while others are still under way."""

    def __init__(self, target: int) -> None:
        super().__init__(target, remember=False)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, args=(line, sink), daemon=True).start()
        with suppress(OSError):
            while data := source.recv(2**16):
                line.put((time.monotonic() + DELAY, data))
        line.put((0.0, b""))

    def _deliver(self, line: queue.SimpleQueue[tuple[float, bytes]], sink: socket.socket) -> None:
        with suppress(OSError):
            while (item := line.get())[1]:
                time.sleep(max(0.0, item[0] - time.monotonic()))
                sink.sendall(item[1])
            sink.shutdown(socket.SHUT_WR)


def mixture() -> Combination:
    """Mixes two rows with equal weights."""
    return Combination({0: 0.5, 1: 0.5}, here=0)


class Rows:
    """Rounds as a site makes them: one in each iteration."""

    def __init__(self, connections: Connections, other: str) -> None:
        self.links = Links(connections, {other: 0.5}, 2, PATIENCE, LONG)
        self.rounds, self._k = Rounds(self.links, PATIENCE, PATIENCE), itertools.count()
        self._combine = mixture()
        self.rounds.assemble(everybody=True)

    def exchange(self, x: torch.Tensor) -> None:
        """Send a row, wait for the other one and mix both."""
        self.links.begin(next(self._k))
        own = x.numpy()
        rows = dict(enumerate(self.rounds.exchange(own, self._combine.begin).values(), 1))
        torch.from_numpy(self._combine.end(own, rows))
        assert rows, "the other site was lost"


class Answerer:
    """The bare end that is called. The main thread provides the messages that it sends, and gets those that arrive."""

    def __init__(self, address: str, files: list[bytes]) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        service, method = METHOD.strip("/").split("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(self._answer)}
        self._server = grpc.server(
            ThreadPoolExecutor(2), [grpc.method_handlers_generic_handler(service, handlers)], options=OPTIONS
        )
        key, certificate, roots = files
        credentials = grpc.ssl_server_credentials([(key, certificate)], roots, require_client_auth=True)
        self._server.add_secure_port(address, credentials)
        self._server.start()

    def _answer(self, messages: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        threading.Thread(target=self._read, args=(messages,), daemon=True).start()
        yield from iter(self._outgoing.get, None)

    def _read(self, messages: Iterator[bytes]) -> None:
        with suppress(grpc.RpcError):  # the other process has ended
            for data in messages:
                self._incoming.put(data)

    def exchange(self, payload: bytes) -> bytes:
        """Send, then read."""
        self._outgoing.put(payload)
        return self._incoming.get()

    def close(self) -> None:
        """End the stream."""
        self._outgoing.put(None)


class Caller:
    """The bare end that calls."""

    def __init__(self, address: str, files: list[bytes]) -> None:
        key, certificate, roots = files
        options = [*OPTIONS, ("grpc.ssl_target_name_override", NAMES[1])]
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(roots, key, certificate), options)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(METHOD)(iter(self._outgoing.get, None), wait_for_ready=True)

    def exchange(self, payload: bytes) -> bytes:
        """Send, then read."""
        self._outgoing.put(payload)
        return next(self._call)

    def close(self) -> None:
        """End the stream."""
        self._outgoing.put(None)


def least_round(bare: Answerer | Caller, combine: Combination, x: torch.Tensor) -> None:
    """A bare exchange of rows that are checked and mixed."""
    own = x.numpy()
    data = bare.exchange(bytes(SIZE) + own.data.cast("B"))
    row = np.frombuffer(data, own.dtype, offset=SIZE).reshape(own.shape)
    assert np.isfinite(row).all()
    combine.begin(own)
    torch.from_numpy(combine.end(own, {1: row}))


def timed(act: Callable[[], object], count: int) -> float:
    """Seconds per call, over ``count`` calls."""
    began = time.perf_counter()
    for _ in range(count):
        act()
    return (time.perf_counter() - began) / count


def main(name: str, folder: Path, host: str, port: str, bare_port: str, repeats: int) -> None:
    """Run one of the two processes; the one that calls writes the times."""
    share_one_heap()  # as the program of a site does
    calls = name == NAMES[0]
    other, own = NAMES[calls], credentials(folder, name)
    address, bare_address = f"{host}:{port}", f"{host}:{bare_port}"
    files = [file.read_bytes() for file in (own.key, own.certificate, own.authorities)]
    bare = (Caller if calls else Answerer)(bare_address, files)
    widest = 4 * max(WIDTHS.values())
    connections = Connections(name, {other: address if calls else ""}, None if calls else address, own, {}, widest)
    found: Times = {}
    try:
        with torch.no_grad(), flushed_denormals():
            rows = Rows(connections, other)
            for what, width in WIDTHS.items():
                row, payload = torch.rand(1, 1, width), bytes(SIZE + 4 * width)
                candidates: dict[str, Callable[[], object]] = {
                    "round": partial(rows.exchange, row),
                    "bare": partial(bare.exchange, payload),
                    "least round": partial(least_round, bare, mixture(), row),
                }
                count = 10 if repeats < 10 or width > 10_000 else 25
                times = dict.fromkeys(candidates, float("inf"))
                for _ in range(repeats + 1):  # the first turn warms up
                    for each, act in candidates.items():
                        times[each] = min(times[each], timed(act, count))
                found[what] = times
            rows.rounds.finish(row)
        if calls:
            (folder / "times.json").write_text(json.dumps(found), encoding="utf-8")
    finally:
        bare.close()
        connections.close()


if __name__ == "__main__":
    if sys.argv[1:]:
        main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:6], int(sys.argv[6]))
    else:
        for link in ("loopback", RELAYED):
            for what, times in measure(link).items():
                shown = ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in times.items())
                ratio, least = (times[name] / times["bare"] for name in ("round", "least round"))
                print(f"{link}: {what}: {shown}; round ÷ bare {ratio:.2f}, least ÷ bare {least:.2f}")
