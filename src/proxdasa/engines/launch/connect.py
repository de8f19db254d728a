"""Which other processes there are: read off the environment that torchrun, mpiexec or our own launcher set."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

import torch

from proxdasa.engines.launch import signals
from proxdasa.engines.messages.gloo import join_torch
from proxdasa.engines.messages.mpi import MPI
from proxdasa.engines.messages.transport import CPU, TIMEOUT, Transport

UNDER_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""The number of a process, as the launchers of Open MPI, MPICH and its relatives, and Slurm's srun set it."""
LAST_WORDS = 1.0
"""Seconds in which others that have met the same error can say so, before all are ended."""
HEARD = 10.0
"""Seconds in which whoever has met an error ends those that have only heard of it."""


def connect(
    interface: str | None = None, timeout: float = TIMEOUT, device: str | torch.device = CPU
) -> Transport | None:
    """The processes that this one was started with, or None if it was started alone.

    Args:
        interface: the network interface, such as eth0, for messages to other machines. They are neither encrypted nor
            authenticated and belong on a private network. By default nothing leaves this machine. (MPI goes its own
            ways.)
        timeout: seconds after which a silent process is an error. A network that is cut for less than half of it is
            survived: TCP tries again at intervals that double.
        device: the GPU of this process, such as cuda:0, for `optim` to send the rows of a model there by NCCL; no two
            processes may share one. By default rows are copied to main memory. (NCCL has not been tried by us.)
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds; got {timeout}")
    device = torch.device(device)
    if "RANK" in os.environ:
        return join_torch(interface, timeout, device)
    if several() and device != CPU:
        raise ValueError(f"device: under MPI messages leave from main memory, not from {device}; leave it out")
    with signals.deadly():  # MPI wants to be started by the main thread
        return MPI(timeout) if several() else None


def several() -> bool:
    """Whether this process was started as one of several."""
    return any(name in os.environ for name in ("RANK", *UNDER_MPI))


def first() -> bool:
    """Whether it is the one that writes results."""
    return next((os.environ[name] for name in ("RANK", *UNDER_MPI) if name in os.environ), "0") == "0"


def end(code: int, heard: bool = False) -> NoReturn:
    """End this process with an exit code and without waiting for the others; under MPI they all end with it.

    There, who has only heard of an error leaves it to whoever met it to end them, with the code of what it was, and
    that one waits until others that met the same have said so.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if "RANK" not in os.environ and (library := sys.modules.get("mpi4py.MPI")):
        time.sleep(HEARD if heard else LAST_WORDS)
        library.COMM_WORLD.Abort(code)
    os._exit(code)
