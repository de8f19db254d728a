"""The fork server: a process that has imported what tests need, from which tests fork other processes.

It takes seconds to start, so the pytest process that starts the workers of pytest-xdist starts one for all of them
(`share`), and the workers are forked from it too (`WORKER`). A run without such workers starts its own when a test
first needs it.

In tests, torchrun, mpiexec and others start `stand_in` instead of ``python -m proxdasa``, and pytest-xdist starts it
instead of ``python``. It has a forked process run the command, passes signals on to that process, and ends the way it
ends. This module imports nothing that takes time.
"""

import contextlib
import ctypes
import functools
import gc
import multiprocessing
import os
import shlex
import signal
import sys
import threading
from multiprocessing import connection, forkserver, process
from pathlib import Path

__all__ = ["FORKS", "STAND_IN", "TOKEN", "WORKER", "enter", "keep_command_line", "label", "share"]

TOKEN = "PROXDASA_TEST"
"""The environment variable by which tests find the processes of a command."""

PRELOADED = [
    "proxdasa.cli", "proxdasa.experiments", "proxdasa.configs.reading", "proxdasa.engines.launch.connect",
    "proxdasa.engines.messages.gloo", "proxdasa.engines.messages.unix_sockets", "proxdasa.plans.run_plans",
    "proxdasa.reports.page", "proxdasa.reports.tables", "proxdasa.sites.site", "proxdasa.tuning.tune_function",
    "sklearn.datasets", "torch._dynamo", "torch.distributed.run", "typer._adapters", "tests.setups", "tests.processes",
    "cryptography.hazmat.backends.openssl", "encodings.idna", "grpc._channel", "grpc._server", "grpc.experimental",
]  # fmt: skip
"""What forked processes use, imported before they are forked; `tests.processes` imports pytest, and builds the command
line that parses their arguments."""
PRELOADED_FOR_WORKERS = [
    "matplotlib.pyplot", "pandas", "pyarrow.parquet", "pyproximal", "scipy.stats",
    "selenium.webdriver.support.ui", "sklearn.utils.estimator_checks", "torch.distributed.tensor", "typer.testing",
]  # fmt: skip
"""What test modules import, except polars, whose threads do not survive a fork, and plugins of pytest."""
WORKER = f"popen//python={shlex.join([sys.executable, str(Path(__file__).with_name('stand_in.py'))])}"
"""How pytest-xdist starts a worker that is forked; it adds ``-u -c`` and a line of Python."""
STAND_IN = (sys.executable, "-m", "tests.stand_in")
"""The command that stands in for a program of `tests.processes.PROGRAMS`; the program and its arguments follow."""
SPACES = {"user": 1 << 28, "mnt": 1 << 17, "net": 1 << 30}
"""The kinds of namespaces that a forked process enters, in this order, if its stand-in is in them, with kernel flags.

Tests of several machines have separate network namespaces (`tests.namespaces`).
"""
SHARED = "PROXDASA_TEST_FORKS"
"""The environment variable with the socket's address and, since Python 3.14, the key of the shared server."""

WORKERS = "PROXDASA_TEST_WORKERS"
"""The environment variable that is set if the fork server also serves pytest-xdist."""

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.preloaded"])


def share(workers=False):
    """Start the fork server here, for every process that inherits the environment, unless one is shared already."""
    if SHARED in os.environ:
        return
    if workers:
        os.environ[WORKERS] = "1"
    forkserver.ensure_running()
    server = forkserver._forkserver
    key = getattr(server, "_forkserver_authkey", None) or b""
    os.environ[SHARED] = f"{key.hex()} {server._forkserver_address}"


def keep_command_line():
    """Build the command line of a typer app once; typer would do it again, a tenth of a second, for every command."""
    import typer.testing  # noqa: PLC0415

    if not hasattr(typer.main.get_command, "cache_info"):
        typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)


def _use(shared):
    """Connect to the fork server of another process instead of starting one."""
    key, _, address = shared.partition(" ")
    server = forkserver._forkserver
    server._forkserver_address, server._forkserver_authkey = address, bytes.fromhex(key)
    # The server ends with the process that started it. Others only need something to send in place of its pipe.
    server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)
    server.ensure_running = lambda: None


if SHARED in os.environ:
    _use(os.environ[SHARED])


# standing in for a fresh interpreter


def label(token, rank=""):
    """The name that the kernel lists for the forked process of this rank; it cannot list a fork's new environment."""
    return f"{token[:8]}-{rank}"


def stand_in(words):
    """The exit code of a program with its arguments, in a forked process with our environment, streams and signals."""
    inherited = {name: int(os.environ[name]) for name in ("PMI_FD",) if name in os.environ}
    with contextlib.ExitStack() as stack:
        spaces = {name: stack.enter_context(_own_space(name).open()).fileno() for name in SPACES}
        own = {"0": 0, "1": 1, "2": 2, **spaces, **inherited}
        handles = {name: FORKS.reducer.DupFd(fd) for name, fd in own.items()}
    # Signals wait until there is a process to pass them on to.
    passed_on = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    forked = FORKS.Process(target=_become, args=(words, dict(os.environ), handles))
    forked.start()
    for number in passed_on:
        signal.signal(number, lambda number, _: os.kill(forked.pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    forked.join()
    if forked.exitcode < 0:
        if -forked.exitcode in passed_on:
            signal.signal(-forked.exitcode, signal.SIG_DFL)
        os.kill(os.getpid(), -forked.exitcode)
    return forked.exitcode


def _become(words, env, handles):
    """Run the program in the forked process."""
    for name in SPACES:
        enter(name, handles.pop(name).detach())
    for name, handle in handles.items():
        if name.isdecimal():
            os.dup2(handle.detach(), int(name))
        else:
            env[name] = str(handle.detach())
    if words[0] == "-u":
        _work(words[-1], env)
        return
    from tests.processes import run_command  # noqa: PLC0415 - the fork server has it

    rank = env.get("RANK", env.get("PMI_RANK", ""))
    Path("/proc/self/comm").write_text(label(env.get(TOKEN, ""), rank))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    libc = ctypes.CDLL(None)
    if "PMI_RANK" in env:
        libc.on_exit(libc._exit, None)  # last of all that was not inherited
    code = run_command(words, env)
    if library := sys.modules.get("mpi4py.MPI"):
        # As at the end of an interpreter: mpiexec kills all processes if one ends without a word.
        library.Finalize()
        libc.exit(code)
    os._exit(code)


def _work(code, env):
    """Become a worker of pytest-xdist, which sends the rest of its program to our standard input."""
    os.environ.clear()
    os.environ.update(env)
    gc.freeze()
    multiprocessing.set_start_method(None, force=True)  # the fork server has set its own
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # pytest must import the test helpers again, to rewrite their assertions.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    exec(code, {"__name__": "__main__"})


def _own_space(name):
    """The file that names a namespace of this process."""
    return Path(f"/proc/self/ns/{name}")


def enter(name, handle):
    """Move this process into a namespace of `SPACES`, unless it is there; the handle is an open file that names it."""
    if os.fstat(handle).st_ino != _own_space(name).stat().st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, SPACES[name]):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.close(handle)


def _end_with_parent():
    """Kill this process when its stand-in is gone: launchers kill the stand-ins that they have started."""
    connection.wait([process.parent_process().sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
