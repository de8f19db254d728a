"""Environment variables that describe the processes of a run; our own launcher, torchrun and mpiexec set them."""

from __future__ import annotations

import os

TIMEOUT = 60.0
"""Seconds after which a silent process counts as lost."""

RENDEZVOUS = "PROXDASA_RENDEZVOUS"
"""The file by which the processes find each other."""
START = "PROXDASA_START"
"""How often the launcher has started them, this time included."""
LIFELINE = "PROXDASA_LIFELINE"
"""A file descriptor that reads as closed once the launcher has ended."""
GLOO_TRANSPORT = "GLOO_DEVICE_TRANSPORT"
UNDER_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""Variables that hold the number of a process under Open MPI, MPICH and its relatives, and Slurm's srun."""


def several() -> bool:
    """Whether this process was started as one of several.

    Examples:
        >>> engines.several()
        False
    """
    return any(name in os.environ for name in ("RANK", *UNDER_MPI))


def first() -> bool:
    """Whether this process is the one that writes results.

    Examples:
        >>> if engines.first():  # in one process only
        ...     print("saved")
        saved
    """
    return next((os.environ[name] for name in ("RANK", *UNDER_MPI) if name in os.environ), "0") == "0"
