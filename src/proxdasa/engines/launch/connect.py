"""Connecting to the other processes, which torchrun, mpiexec or our own launcher describe in the environment."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

import torch

from proxdasa.engines.launch import signals
from proxdasa.engines.launch.environment import GLOO_TRANSPORT, TIMEOUT, several
from proxdasa.engines.messages.gloo import join_torch
from proxdasa.engines.messages.mpi import MPI
from proxdasa.engines.messages.transport import CPU, Transport

LONGEST = 1e9
"""The longest timeout in seconds, some thirty years; gloo and sockets cannot count much further."""
GRACE = 1.0
"""Seconds in which other processes that met the same error can report it before MPI ends them all."""
PATIENCE = 10.0
"""Seconds for which a process that only learned of an error waits for the process that met it to end them all."""


def connect(
    interface: str | None = None, timeout: float = TIMEOUT, device: str | torch.device = CPU
) -> Transport | None:
    """Connect to the processes that this one was started with; None if it was started alone.

    Args:
        interface: the network interface, such as eth0, for messages to other machines. Messages are neither encrypted
            nor authenticated and belong on a private network. By default nothing leaves this machine. (MPI chooses its
            interfaces itself.)
        timeout: seconds after which a silent process is an error. A run survives a network that is down for less than
            half of it; TCP retries at intervals that double.
        device: the GPU of this process, such as cuda:0, from which `optim` sends the rows of a model by NCCL; no two
            processes may share one. By default rows are copied to main memory. (We have not run NCCL ourselves.)

    Examples:
        >>> processes = engines.connect()
        >>> processes is None  # this process was started on its own, not by torchrun or mpiexec
        True
    """
    if not 0 < timeout <= LONGEST:
        raise ValueError(f"timeout must be a positive number of seconds, at most {LONGEST:g}; got {timeout}")
    device = torch.device(device)
    if "RANK" in os.environ:
        _refuse_tls()
        return join_torch(interface, timeout, device)
    if several() and device != CPU:
        raise ValueError(f"device: under MPI messages leave from main memory, not from {device}; leave it out")
    with signals.deadly():  # MPI must be started by the main thread, so it cannot wait in another
        return MPI(timeout) if several() else None


def _refuse_tls() -> None:
    """Refuse gloo's setting for TLS: PyTorch no longer has TLS, and 2.11 accepted the setting and sent plain text."""
    if os.environ.get(GLOO_TRANSPORT) == "TCP_TLS":
        raise ValueError(
            f"{GLOO_TRANSPORT}=TCP_TLS would not encrypt anything; unset it. Between organisations use proxdasa site, "
            "whose links are encrypted"
        )


def end(code: int, learned: bool = False) -> NoReturn:
    """End this process with an exit code and without waiting for the others; under MPI they all end with it.

    Under MPI, a process that only ``learned`` of an error lets the process that met it end all of them, with the right
    code. That process first waits a moment, so that others which met the same error can report it too.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if "RANK" not in os.environ and (library := sys.modules.get("mpi4py.MPI")):
        time.sleep(PATIENCE if learned else GRACE)
        library.COMM_WORLD.Abort(code)
    os._exit(code)
