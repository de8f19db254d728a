"""The command doctor: checks that this machine has what runs need, and suggests a cure where it does not."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
import typer

from proxdasa import data
from proxdasa.cli.display import say
from proxdasa.engines.launch.connect import GLOO_TRANSPORT
from proxdasa.engines.launch.launcher import cores, launch, threads
from proxdasa.exit_codes import Code

ROOM = 2**30
"""Bytes that should be free on the disk, or else results might not fit."""
MESSAGE = (
    "import torch; from proxdasa import engines; t = engines.connect(timeout=30); "
    "assert t.sum(torch.ones(1)).item() == 2; t.close()"
)
"""The program of two processes that test whether messages arrive."""


class Finding(NamedTuple):
    """What a check found; all is well if there is no cure."""

    text: str
    cure: str = ""
    needed: bool = True
    """Whether every run needs it; otherwise the text says what does."""


def _python() -> Finding:
    found = f"Python {platform.python_version()}, PyTorch {torch.__version__}"
    return Finding(found, "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer")


def _threads() -> Finding:
    here, right = torch.get_num_threads(), threads(1)
    found = f"{here} threads of PyTorch on {cores()} cores; --processes divides the cores among its processes"
    cure = f"set OMP_NUM_THREADS={right}: with more threads than cores, threads wait for each other"
    return Finding(found, cure if here > right else "")


def _gloo() -> Finding:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return Finding("this PyTorch has no gloo, so no --processes", "install another build of PyTorch")
    if os.environ.get(GLOO_TRANSPORT) == "TCP_TLS":
        return Finding(
            f"{GLOO_TRANSPORT}=TCP_TLS would not encrypt anything, and is refused", f"unset {GLOO_TRANSPORT}"
        )
    if launch([sys.executable, "-c", MESSAGE], 2):
        return Finding("two processes cannot exchange messages", "bring up the loopback interface: ip link set lo up")
    return Finding("two processes exchange messages by gloo on the loopback interface")


def _mpi() -> Finding:
    if importlib.util.find_spec("mpi4py") is None:
        return Finding("no mpi4py, which only mpiexec needs", "pip install proxdasa[mpi] mpich", needed=False)
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = shutil.which("mpiexec") or (str(beside) if beside.exists() else None)
    if mpiexec is None:
        return Finding(
            "mpi4py is there, but no mpiexec", "install an MPI library, for example: pip install mpich", False
        )
    command = [mpiexec, "-n", "2", sys.executable, "-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(f"{mpiexec} does not run: {error}", "reinstall the MPI library that mpi4py was built for", False)
    if done.stdout.split() != ["2", "2"]:
        return Finding(
            f"{mpiexec} starts processes that do not find each other",
            "use the mpiexec of the library that mpi4py uses",
            False,
        )
    return Finding(f"two processes exchange messages by MPI ({mpiexec})")


def _compiler() -> Finding:
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        return Finding("no C++ compiler, which only compile=True needs", "install g++ or clang", needed=False)
    return Finding(f"C++ compiler for compile=True: {compiler}")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{free / 2**30:.1f} GB free in {Path.cwd()}"
    return Finding(found, "make room, or choose another --output" if free < ROOM else "")


def _data() -> Finding:
    there = {name: all(here for other, _, here in data.listing(None) if other == name) for name in data.SOURCES}
    missing = [name for name, here in there.items() if not here]
    found = f"data folder {data.folder()}: {', '.join(name for name in there if there[name]) or 'nothing yet'}"
    return Finding(found, "; ".join(f"proxdasa data fetch {name}" for name in missing), needed=False)


def _sklearn() -> Finding:
    if importlib.util.find_spec("sklearn") is None:
        return Finding("no scikit-learn, which only digits and breast_cancer need", "pip install proxdasa[data]", False)
    return Finding("scikit-learn for digits and breast_cancer")


CHECKS: tuple[Callable[[], Finding], ...] = (_python, _threads, _gloo, _mpi, _compiler, _disk, _data, _sklearn)


def doctor() -> None:
    """Check that this machine has what runs need; every problem comes with a cure."""
    show_findings(check() for check in CHECKS)


def show_findings(findings: Iterable[Finding]) -> None:
    """Show what checks found, and end with an exit code if something is missing that is needed."""
    well = True
    for found in findings:
        mark = "ok     " if not found.cure else "missing" if not found.needed else "FAILED "
        say(f"{mark} {found.text}")
        if found.cure:
            say(f"        cure: {found.cure}")
        well = well and not (found.cure and found.needed)
    if not well:
        raise typer.Exit(Code.UNWELL)
