"""Processes under mpiexec. MPI waits forever; here every wait has a deadline and watches for failures of others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from proxdasa.engines.launch.environment import TIMEOUT
from proxdasa.engines.messages.transport import CPU, LostError, doubt, find_lost
from proxdasa.exit_codes import Code

ROWS, FAILURE, WAITING = 1, 2, 3  # tags of messages
SPIN = 200e-6
"""Seconds of polling without a pause; on one machine most messages arrive by then, and a nap would take longer."""
NAP, LONGEST_NAP = 50e-6, 2e-3
"""Seconds between two later polls: the fiftieth part of the time waited so far, within these limits."""


@final
class MPI:
    """The processes of MPI.COMM_WORLD."""

    device = CPU

    def __init__(self, timeout: float = TIMEOUT) -> None:
        try:
            from mpi4py import MPI as library  # noqa: N811, PLC0415 - an extra, which starts MPI when it is imported
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "this process was started under MPI, for which mpi4py is missing: pip install proxdasa[mpi]"
            ) from error
        self._mpi, self._comm, self._timeout = library, library.COMM_WORLD, timeout
        self.rank, self.size, self.restarted = self._comm.rank, self._comm.size, False
        self._reason: str | None = None

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:
        """Post all messages at once, receives first so that every send finds a buffer waiting."""
        pending = [(peer, self._comm.Irecv(self._bytes(buffer), peer, ROWS)) for peer, buffer in into.items()]
        pending += [(peer, self._comm.Isend(self._bytes(buffer), peer, ROWS)) for peer, buffer in out.items()]
        return self._wait(pending)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, by an all-reduce."""
        array = x.contiguous().numpy()
        self._wait([(self.rank, self._comm.Iallreduce(self._mpi.IN_PLACE, array))])
        return x.copy_(torch.from_numpy(array))

    def fail(self, reason: str) -> str:
        """Send everyone the reason, unless one has arrived already."""
        if self._received_reason() is None:
            self._reason, text = reason, bytearray(reason.encode())
            others = (peer for peer in range(self.size) if peer != self.rank)
            # Kept as an attribute: MPI reads the buffer of a request until it is done.
            self._farewells = [self._comm.Isend([text, self._mpi.BYTE], peer, FAILURE) for peer in others]
        assert self._reason is not None
        return self._reason

    def close(self) -> None:
        """Abort all processes if one has failed, because MPI would wait for it; otherwise do nothing."""
        if self._reason is not None:
            self._comm.Abort(Code.LOST)

    def _wait(self, pending: list[tuple[int, Any]]) -> float:
        """Wait until all requests are done; returns the seconds it took."""
        began = time.perf_counter()
        while not self._mpi.Request.Testall([request for _, request in pending]):
            waited = time.perf_counter() - began
            # Failures of others are looked for later: asking MPI now would slow down messages that are on time.
            if waited < SPIN:
                continue
            if (reason := self._received_reason()) is not None:
                raise LostError(self._first_open(pending), reason)
            if waited > self._timeout:
                raise LostError(self._find_lost(self._first_open(pending)), f"silent for {self._timeout:g} s")
            time.sleep(min(max(NAP, waited / 50), LONGEST_NAP))
        return time.perf_counter() - began

    def _first_open(self, pending: list[tuple[int, Any]]) -> int:
        return next((peer for peer, request in pending if not request.Test()), self.rank)

    def _find_lost(self, peer: int) -> int:
        """The process that is really lost when ``peer`` is missing: not one that announces that it is waiting too."""
        others = [other for other in range(self.size) if other != self.rank]
        self._waiting = [self._comm.Isend([bytearray(), self._mpi.BYTE], other, WAITING) for other in others]
        return find_lost(
            peer, lambda: [other for other in others if not self._comm.Iprobe(other, WAITING)], doubt(self._timeout)
        )

    def _received_reason(self) -> str | None:
        """Why a process has failed, if one has."""
        status = self._mpi.Status()
        if self._reason is None and self._comm.Iprobe(self._mpi.ANY_SOURCE, FAILURE, status):
            text = bytearray(status.Get_count(self._mpi.BYTE))
            self._comm.Recv([text, self._mpi.BYTE], status.Get_source(), FAILURE)
            self._reason = text.decode()
        return self._reason

    def _bytes(self, buffer: Tensor) -> list[Any]:
        # As bytes, because neither NumPy nor MPI knows all of torch's types, such as bfloat16.
        return [buffer.view(torch.uint8).numpy(), self._mpi.BYTE]
