"""Which other processes there are: read off the environment that torchrun, mpiexec or our own launcher set."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from proxdasa.engines.mpi import MPI
from proxdasa.engines.transports import CPU, TIMEOUT, Transport, join_torch

UNDER_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""The number of a process, as the launchers of Open MPI, MPICH and its relatives, and Slurm's srun set it."""


def connect(
    interface: str | None = None, timeout: float = TIMEOUT, device: str | torch.device = CPU
) -> Transport | None:
    """The processes that this one was started with, or None if it was started alone.

    Args:
        interface: the network interface, such as eth0, for messages to other machines. They are neither encrypted nor
            authenticated and belong on a private network. By default nothing leaves this machine. (MPI goes its own
            ways.)
        timeout: seconds after which a silent process is an error.
        device: the GPU of this process, such as cuda:0, for `optim` to send the rows of a model there by NCCL; no two
            processes may share one. By default rows are copied to main memory. (NCCL has not been tried by us.)
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds; got {timeout}")
    device = torch.device(device)
    with _mortal():
        if "RANK" in os.environ:
            return join_torch(interface, timeout, device)
        if several() and device != CPU:
            raise ValueError(f"device: under MPI messages leave from main memory, not from {device}; leave it out")
        return MPI(timeout) if several() else None


def several() -> bool:
    """Whether this process was started as one of several."""
    return any(name in os.environ for name in ("RANK", *UNDER_MPI))


def first() -> bool:
    """Whether it is the one that writes results."""
    return next((os.environ[name] for name in ("RANK", *UNDER_MPI) if name in os.environ), "0") == "0"


@contextmanager
def _mortal() -> Iterator[None]:
    """Ctrl-C and SIGTERM end this process at once in here, where it may wait and handlers of Python's would too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
