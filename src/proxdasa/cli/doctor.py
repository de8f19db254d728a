"""The command doctor: checks that this machine has what runs need, and suggests a cure where it does not."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from proxdasa import data
from proxdasa.cli.display import say
from proxdasa.engines.launch.environment import GLOO_TRANSPORT
from proxdasa.engines.launch.launcher import cores, launch, threads_per_process
from proxdasa.exit_codes import Code

ROOM = 2**30
"""Bytes that should be free on the disk, or else results might not fit."""
THREADS = "OMP_NUM_THREADS"
MESSAGE = (
    "import sys, torch; from pathlib import Path; from proxdasa import engines; t = engines.connect(timeout=30); "
    "other = torch.zeros(1); t.exchange({1 - t.rank: torch.ones(1)}, {1 - t.rank: other}); "
    "assert other == 1 and t.sum(torch.ones(1)) == 2; t.rank or Path(sys.argv[1]).write_text(t.way); t.close()"
)
"""A program that two processes run to test whether messages arrive; one of them writes into a file how they travel."""


class Finding(NamedTuple):
    """The result of a check; if there is no cure, nothing is wrong."""

    text: str
    cure: str = ""
    needed: bool = True
    """Whether every run needs it; otherwise the text says what does."""


def _python() -> Finding:
    try:
        return Finding(f"Python {platform.python_version()}, PyTorch {version('torch')}")
    except PackageNotFoundError:
        return Finding(f"Python {platform.python_version()}, but no PyTorch", "pip install torch")


def _threads() -> Finding:
    """PyTorch takes as many threads as there are cores, unless the environment says otherwise."""
    given, right = os.environ.get(THREADS, ""), threads_per_process(1)
    here = int(given) if given.isdecimal() and int(given) else right
    found = f"{here} threads of PyTorch on {cores()} cores; --processes divides the cores among its processes"
    cure = f"set {THREADS}={right}: with more threads than cores, threads wait for each other"
    return Finding(found, cure if here > right else "")


def _gloo() -> Finding:
    import torch  # noqa: PLC0415 - takes more than a second

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return Finding("this PyTorch has no gloo, so no --processes", "install another build of PyTorch")
    if os.environ.get(GLOO_TRANSPORT) == "TCP_TLS":
        return Finding(
            f"{GLOO_TRANSPORT}=TCP_TLS would not encrypt anything, and is refused", f"unset {GLOO_TRANSPORT}"
        )
    with tempfile.TemporaryDirectory() as folder:
        way = Path(folder) / "way"
        if launch([sys.executable, "-c", MESSAGE, str(way)], 2):
            cure = "bring up the loopback interface: ip link set lo up"
            return Finding("two processes cannot exchange messages", cure)
        return Finding(f"two processes exchange messages by {way.read_text(encoding='utf-8')}")


def _devices() -> Finding:
    from proxdasa import devices  # noqa: PLC0415 - imports PyTorch

    there = devices.available()
    missing = [name for name in devices.CHOICES if name not in there]
    lacking = f"; this PyTorch has no {' and no '.join(missing)}" if missing else ""
    return Finding(f"devices for --device: {', '.join(there)}{lacking}")


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
        return Finding(
            "no C++ compiler, without which long runs are not compiled", "install g++ or clang", needed=False
        )
    return Finding(f"C++ compiler for compiled steps: {compiler}")


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


CHECKS: tuple[Callable[[], Finding], ...] = (_python, _threads, _compiler, _disk, _data, _sklearn)
MESSAGES: tuple[Callable[[], Finding], ...] = (_devices, _gloo, _mpi)
"""Checks that import PyTorch or start processes, which takes seconds."""


def doctor(
    messages: Annotated[
        bool,
        typer.Option(
            "--messages",
            help="Also import PyTorch, look for its devices, and start processes that send each other messages by "
            "sockets and MPI; takes some seconds.",
        ),
    ] = False,
) -> None:
    """Check that this machine has what runs need; every problem comes with a cure."""
    show_findings(check() for check in (*CHECKS, *(MESSAGES if messages else ())))
    if not messages:
        say("        not checked: PyTorch itself, its devices, messages between processes (proxdasa doctor --messages)")


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
