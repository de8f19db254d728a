"""Processes of torch.distributed.

Messages go by Unix sockets on one machine, by gloo between machines, and by NCCL from one GPU to another.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor

from proxdasa.contracts import PeerError
from proxdasa.engines.launch import signals
from proxdasa.engines.launch.environment import LIFELINE, RENDEZVOUS, START, TIMEOUT
from proxdasa.engines.messages.transport import CPU, DOUBT, LostError, doubt, find_lost
from proxdasa.engines.messages.unix_sockets import MissedError, UnixSockets, connect_sockets

T = TypeVar("T")

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
FAILURE = "failure"
WATCH = 0.02
"""Seconds between two polls of the store."""


@final
class Torch:
    """Processes that torch.distributed connects: it also provides their sums, and the store for their notices."""

    def __init__(
        self,
        store: Any,
        timeout: float = TIMEOUT,
        restarted: bool = False,
        device: torch.device = CPU,
        sockets: UnixSockets | None = None,
    ) -> None:
        self.rank, self.size, self.restarted = dist.get_rank(), dist.get_world_size(), restarted
        self._store, self._timeout, self.device = store, timedelta(seconds=timeout), device
        self._sockets = sockets

    @property
    def way(self) -> str:
        """How messages travel, in words."""
        interface = os.environ["GLOO_SOCKET_IFNAME"]
        return f"Unix sockets, sums by gloo on {interface}" if self._sockets else f"gloo on {interface}"

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:
        """Exchange messages by Unix sockets if all processes are on one machine, and by gloo otherwise."""
        if self._sockets is None:
            return self._exchange_by_gloo(out, into)
        try:
            return self._sockets.exchange(out, into)
        except MissedError as error:
            raise LostError(error.peer, error.why) if error.why else self._lost(error.peer, error.silent) from error

    def _exchange_by_gloo(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:
        """Post all messages at once, receives first so that every send finds a buffer waiting."""
        messages = [dist.P2POp(dist.irecv, buffer, peer) for peer, buffer in into.items()]
        messages += [dist.P2POp(dist.isend, buffer, peer) for peer, buffer in out.items()]
        on_gpu = any(message.tensor.is_cuda for message in messages)
        pending = self._post_together(messages) if on_gpu else self._post(messages)
        began = time.perf_counter()
        for peer, work in pending:
            assert work is not None, "torch.distributed says that this process is not in the group"
            self._attempt(peer, partial(work.wait, self._timeout))
        return time.perf_counter() - began

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, by an all-reduce."""
        self._attempt(self.rank, partial(dist.all_reduce, x))
        return x

    def fail(self, reason: str) -> str:
        """Leave the reason in the store unless one exists already."""
        return self._ask_store(lambda: str(self._store.compare_set(FAILURE, "", reason), "utf-8"), reason)

    def close(self) -> None:
        """Leave the process group."""
        if self._sockets:
            self._sockets.close()
        dist.destroy_process_group()

    def _post(self, messages: Sequence[dist.P2POp]) -> list[tuple[int, Any]]:
        """Post each message on its own, so that a failure says which peer was lost."""
        return [
            (message.peer, self._attempt(message.peer, partial(message.op, message.tensor, message.peer)))
            for message in messages
        ]

    def _post_together(self, messages: Sequence[dist.P2POp]) -> list[tuple[int, Any]]:
        """Post all messages as one operation, because NCCL runs single ones in order and could deadlock.

        A failure then does not say which peer was lost; the first is a guess that `find_lost` checks.
        """
        peer = messages[0].peer
        return [(peer, work) for work in self._attempt(peer, partial(dist.batch_isend_irecv, list(messages)))]

    def _attempt(self, peer: int, act: Callable[[], T]) -> T:
        """Call ``act``, which fails if ``peer`` is lost."""
        began = time.perf_counter()
        try:
            return act()
        except RuntimeError as error:
            # gloo raises the same exception for a peer that has ended and for one that is silent, but only waits out
            # the timeout for the latter. (A wait may end some microseconds early by this clock.)
            silent = time.perf_counter() - began > 0.99 * self._timeout.total_seconds()
            raise self._lost(peer, silent) from error

    def _lost(self, missed: int, timed_out: bool) -> LostError:
        """Find out which process is lost.

        All processes notice one that has ended. Only those that wait for a silent one notice it; they then close their
        own connections, and note in the store that they were waiting.
        """

        def announce() -> None:
            if timed_out:
                self._store.set("timed-out", "")
            self._store.set(f"waiting-{self.rank}", "")

        def silent() -> list[int]:
            return [peer for peer in range(self.size) if not self._store.check([f"waiting-{peer}"])]

        others = [peer for peer in range(self.size) if peer != self.rank]
        self._ask_store(announce, None)
        patience = doubt(self._timeout.total_seconds()) if timed_out else DOUBT
        peer = find_lost(missed, lambda: self._ask_store(silent, others), patience)
        timed_out = timed_out or self._ask_store(lambda: bool(self._store.check(["timed-out"])), False)
        silence = f"silent for {self._timeout.total_seconds():g} s"
        return LostError(peer, silence if timed_out else "its process has ended")

    def _ask_store(self, question: Callable[[], T], otherwise: T) -> T:
        """The store's answer, or ``otherwise`` if the store is gone, or too slow behind the same broken link."""
        answers: list[T] = []

        def ask() -> None:
            with suppress(RuntimeError):
                answers.append(question())

        # Ask in a thread, which is abandoned if necessary: an unreachable store blocks for its own timeout, which is
        # long.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(4 * DOUBT)
        return answers[0] if answers else otherwise


def join_torch(interface: str | None = None, timeout: float = TIMEOUT, device: torch.device = CPU) -> Torch:
    """Join the processes that torchrun, or ``proxdasa run --processes``, started.

    Messages stay on this machine, by Unix sockets or the loopback interface, unless another interface is named.
    """
    if "WORLD_SIZE" not in os.environ:
        raise ValueError(
            "the environment has RANK, as under torchrun, but no WORLD_SIZE; set both, or unset RANK to run alone"
        )
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if interface is None and int(os.environ.get("LOCAL_WORLD_SIZE", size)) < size:
        raise ValueError(
            "these processes are on several machines; name the network interface of a private network that their "
            "messages may take, which are neither encrypted nor authenticated: --interface eth0"
        )
    if interface is not None and interface not in (names := [name for _, name in socket.if_nameindex()]):
        raise ValueError(f"there is no network interface {interface!r} here; there are {', '.join(names)}")
    os.environ["GLOO_SOCKET_IFNAME"] = interface or LOOPBACK
    backend = "gloo" if device == CPU else _prepare_nccl(device, interface or LOOPBACK)
    file = os.environ.get(RENDEZVOUS)
    limit = timedelta(seconds=timeout)

    def meet() -> tuple[Any, int, UnixSockets | None]:
        store: Any
        if file:
            store, start = dist.FileStore(file, size), int(os.environ[START])  # type: ignore[attr-defined]
        else:
            store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=limit))  # type: ignore[attr-defined]
            start = _count_starts(store, rank, size, timeout)
        # After a restart torchrun's store still has the addresses of the earlier processes.
        store = dist.PrefixStore(f"start-{start}", store)  # type: ignore[attr-defined]
        store.set_timeout(limit)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        if device != CPU:
            dist.all_reduce(torch.zeros(1, device=device))  # the first NCCL operation must involve every process
        local = interface is None and device == CPU
        return store, start, connect_sockets(store, rank, size, timeout) if local else None

    if LIFELINE in os.environ:
        signals.follow(int(os.environ[LIFELINE]))
    try:
        store, start, sockets = signals.call_in_thread(meet)
    except RuntimeError as error:
        raise PeerError(f"{size} processes did not find each other within {timeout:g} s ({error})", True) from error
    return Torch(store, timeout, restarted=start > 1, device=device, sockets=sockets)


def _prepare_nccl(device: torch.device, interface: str) -> str:
    """Set the environment variables that NCCL reads and the GPU of this process; returns the name of the backend.

    Tensors in main memory, such as digests, still go by gloo.
    """
    if device.type != "cuda" or not torch.cuda.is_available() or not dist.is_nccl_available():
        raise ValueError(
            f"device: messages from {device} need a GPU and a torch that has NCCL; without device they leave from main "
            "memory, wherever the model is"
        )
    os.environ["NCCL_SOCKET_IFNAME"] = f"={interface}"
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # otherwise a silent peer would kill this process instead of raising
    torch.cuda.set_device(device)
    return f"cpu:gloo,{device.type}:nccl"


def _count_starts(store: Any, rank: int, size: int, timeout: float) -> int:
    """How often these processes have been started with this store, which torchrun keeps across restarts.

    Torchrun's own count of restarts is not the same on all machines. Process 0 counts and publishes the count with the
    names of the others; a process takes it only if its own name is there, so never a count left by an earlier start.
    """
    name, deadline = uuid.uuid4().hex, time.monotonic() + timeout

    def pause() -> None:
        time.sleep(WATCH)
        if time.monotonic() > deadline:
            raise RuntimeError("some did not arrive")

    if rank:
        store.set(f"proxdasa-{rank}", name)
        while name not in (met := str(store.get("proxdasa-met"), "utf-8").split()):
            pause()
        store.add(f"proxdasa-met-{met[0]}", 1)
        return int(met[0])
    start = int(store.add("proxdasa-starts", 1))
    # Adding 0 reads the counter. Names are read and published again each time, because a name that is there now may be
    # one of an earlier start that its process has yet to replace.
    while store.add(f"proxdasa-met-{start}", 0) < size - 1:
        names = [str(store.get(f"proxdasa-{peer}"), "utf-8") for peer in range(1, size)]
        store.set("proxdasa-met", " ".join([str(start), *names]))
        pause()
    return start
