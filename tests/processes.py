"""Commands in processes of their own, for tests: quick to start, bounded in time, and none outlives its test.

Importing torch takes seconds, so ``proxdasa`` itself is forked off a process that has it already (`Forked`), together
with the processes that it launches, and so is ``torchrun`` (`ForkedTorchrun`); everything else is started as usual
(`Started`), but under torchrun and mpiexec ``proxdasa`` is forked too unless a test wants every interpreter as a user
has it (``fork=False``).
"""

import contextlib
import gc
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import traceback
import uuid
import warnings
from hashlib import sha256
from pathlib import Path

import pytest
import torch
import typer
from torch.distributed import run as torchrun
from typer.testing import CliRunner

from proxdasa.cli import app, main, show_warning
from proxdasa.engines.launch import launcher
from proxdasa.engines.launch.signals import ASKING
from proxdasa.runs.records import FINAL, read_rows
from tests import forks, namespaces, setups
from tests.forks import FORKS, TOKEN

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
LIMIT = 120.0
"""Seconds that anything may take before a test fails; on an idle machine all takes a few."""
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the tests of processes watch them in /proc")
COMPILER = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")),
    reason="left out: torch's compiler needs a C++ compiler, and there is none",
)
TROUBLE = "PROXDASA_TEST_TROUBLE"
"""The file of Python that a process runs before anything else (`trouble`)."""
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
"""127.0.0.1 and ::1, as the kernel writes them."""

CONFIG = """
iterations = {iterations}
compile = false
observe_every = {observe_every}
trials = 2
{more}
[algorithm]
name = "ProxDASAGT"
gamma = {gamma}
alpha = 0.05 # so small that the theory has nothing to say
[problem]
name = "PhaseRetrieval"
agents = {agents}
dim = {dim}
evaluation = 50
[network]
name = "{network}"
[regularizer]
name = "L1"
weight = 0.01
"""


def write_config(path, *, iterations=60, observe_every=20, gamma=0.01, agents=6, dim=8, network="ring", more=""):
    """Write the configuration file of a run whose iterations take almost no time."""
    path.write_text(CONFIG.format(**{name: value for name, value in locals().items() if name != "path"}))
    return path


def bits(folder):
    """The SHA-256 of the final state."""
    return sha256((folder / FINAL).read_bytes()).hexdigest()


def check_same(folder, other):
    """The final bits of two runs are the same; so are their records, but for rounding in how they were measured."""
    assert bits(folder) == bits(other)
    ours, theirs = read_rows(folder), read_rows(other)
    assert [(row["trial"], row["k"], row["samples"]) for row in ours] == [
        (row["trial"], row["k"], row["samples"]) for row in theirs
    ]
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], rel=1e-4)


def trouble(folder, code):
    """An environment in which commands run this faulty code before anything else, however they are started."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {TROUBLE: str(folder / "sitecustomize.py"), "PYTHONPATH": os.pathsep.join(path)}


def here(*words):
    """What ``proxdasa`` says in this process, where it must succeed: for runs that nobody disturbs."""
    with warnings.catch_warnings(action="default"):
        warnings.showwarning = show_warning
        done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def until(happened, limit=LIMIT, pause=0.01):
    """Wait until a function returns something true, and return that; what takes longer is asked for less often."""
    began = time.monotonic()
    while not (result := happened()):
        waited = time.monotonic() - began
        assert waited < limit, f"nothing within {limit:g} s"
        time.sleep(min(max(pause, waited / 100), 5 * pause))
    return result


def newest(folder):
    """The iteration of the last checkpoint of a run, -1 if there is none."""
    names = os.listdir(folder / "checkpoints") if (folder / "checkpoints").exists() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def disturb(command, folder, rng, iterations, number=signal.SIGKILL):
    """Kill a process of a run that leaves a checkpoint in every iteration, or ask it to stop, at a random moment.

    Returns what was done, for whoever reads of a failure.
    """
    kind = rng.choice(["starting", "iterating", "iterating", "writing", "writing", "ending"])
    command.until(lambda: len(command.workers()) == command.size)
    everybody, victim = command.workers(), rng.randrange(command.size)
    moments = range(newest(folder) + 2, iterations)  # not before it has written something since it was killed last
    moment = rng.choice(moments) if moments else iterations
    if kind == "starting":
        time.sleep(rng.uniform(0, 0.5))
    elif kind == "ending" or not moments:
        command.until(lambda: newest(folder) == iterations, pause=0.001)
        time.sleep(rng.uniform(0, 0.02))
    else:
        command.until(lambda: newest(folder) >= moment)
        if kind == "writing":
            victim = 0
            until(lambda: command.poll() is not None or _writing(folder), pause=0.0005)
        else:
            time.sleep(rng.uniform(0, 0.05))
    with contextlib.suppress(ProcessLookupError):
        os.kill(everybody[victim], number)
    until(lambda: not _stat(everybody[victim]))
    return f"{signal.Signals(number).name} to process {victim} while {kind}, after iteration {newest(folder)}"


def _writing(folder):
    """Whether a checkpoint is being written."""
    return any(name.endswith(".partial") for name in os.listdir(folder / "checkpoints"))


class Command:
    """A command that was started."""

    def __init__(self, words, folder, token):
        self.words, self.output, self.token = words, folder / f"output-{token}", token
        sizes = [int(words[i + 1]) for i, word in enumerate(words) if word in ("--processes", "--nproc-per-node", "-n")]
        self.size = sum(sizes)
        self._older = set(_pids())  # which are not ours, for as long as they live

    def text(self):
        """What the command and its processes have written so far, without notes on the settings."""
        lines = self.output.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("note: "))

    def wait(self):
        """Its exit code."""
        return until(lambda: None if (code := self.poll()) is None else (code,))[0]

    def until(self, happened, pause=0.01):
        """Wait until something has happened, or it has ended by itself."""
        until(lambda: happened() or self.poll() is not None, pause=pause)
        assert not self.poll(), f"{self} ended with {self.poll()}:\n{self.text()}"

    def ended(self, *codes):
        """Its text, once it has ended with one of these codes, by default 0, and none of its processes is left."""
        found = self.wait()
        assert found in (codes or (0,)), f"{self} ended with {found}:\n{self.text()}"
        until(lambda: not self.processes(), limit=30)
        return self.text()

    def processes(self):
        """The ids of its processes that are alive, the oldest first."""
        living = set(_pids())
        self._older &= living
        return [pid for pid in sorted(living - self._older) if self._owns(pid) or self._stood_for(pid)]

    def workers(self):
        """The ids of the processes that hold agents, by their number."""
        living = self.processes()
        found = [pid for pid in living if self._stood_for(pid)] or [pid for pid in living if _rank(pid) is not None]
        return sorted(found, key=lambda pid: self._stood_for(pid) or (_rank(pid) or 0, pid))

    def _stood_for(self, pid):
        """The rank and id of a forked process that has a stand-in (`tests.forks`); empty for other processes."""
        name = _name(pid)
        return (int(name.partition("-")[2] or 0), pid) if name.startswith(forks.label(self.token)) else ()

    def __repr__(self):
        return " ".join(map(str, self.words))


class Started(Command):
    """A program of this environment, with everything as a user has it, but for what is forked by `tests.forks`."""

    def __init__(self, words, folder, env):
        super().__init__(words, folder, uuid.uuid4().hex)
        program = [BIN / words[0] if (BIN / words[0]).exists() else words[0], *map(str, words[1:])]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                program,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_environment(), **env, TOKEN: self.token},
                start_new_session=True,
            )
        self.pid = self.process.pid

    def poll(self):
        return self.process.poll()

    def _owns(self, pid):
        return f"{TOKEN}={self.token}" in _environ(pid)


class Forked(Command):
    """``proxdasa`` without its start-up time, in a network namespace if one is named."""

    def __init__(self, words, folder, env, network=None, fresh=False):
        super().__init__(words, folder, uuid.uuid4().hex)
        self.output.touch()
        args = (list(map(str, words)), {**_environment(), **env, TOKEN: self.token}, self.output, network, fresh)
        self.process = FORKS.Process(target=_become_command, args=args)
        self.process.start()
        self.pid = self.process.pid
        until(lambda: self.poll() is not None or _session(self.pid) == self.pid)

    def poll(self):
        return self.process.exitcode

    def _owns(self, pid):
        return _session(pid) == self.pid

    def workers(self):
        """As the launcher started them, one after the other."""
        return [pid for pid in self.processes() if pid != self.pid]


class ForkedTorchrun(Forked):
    """``torchrun`` without its start-up time; what it starts are stand-ins (`tests.forks`)."""

    workers = Command.workers

    def _owns(self, pid):
        return super()._owns(pid) or f"{TOKEN}={self.token}" in _environ(pid)


@contextlib.contextmanager
def commands(folder):
    """A function that starts commands; at the end none of their processes is left."""
    started = []

    def start(*words, env=None, fork=True, **where):
        """Start a command; with ``fork=False`` nothing of it is forked from a process that has torch already.

        What is forked can be told where it is to run: ``network`` is the name of a namespace. With ``fresh=True`` the
        first process that our launcher starts is a fresh interpreter, started as usual.
        """
        env = env or {}
        if fork and words[0] in ("torchrun", "mpiexec"):
            words, env = _with_stand_ins(words, env)
        kind = {"proxdasa": Forked, "torchrun": ForkedTorchrun}.get(words[0], Started) if fork else Started
        started.append(kind(words, folder, env, **where))
        return started[-1]

    try:
        yield start
    finally:
        for command in started:
            while pids := command.processes():
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                command.poll()
                time.sleep(0.01)
            command.wait()


def _with_stand_ins(words, env):
    """The words of a launcher, and the environment, with what stands in for the interpreters that it would start."""
    forks.share()
    launcher, *rest = words
    stand_in = forks.STAND_IN[2:] if launcher == "torchrun" else forks.STAND_IN  # torchrun is given -m
    changed = [launcher, *(each for word in rest for each in ((*stand_in, word) if word in PROGRAMS else (word,)))]
    # Without the folder of `trouble`, which is for the forked process alone.
    return changed, {**env, "PYTHONPATH": with_tests()}


def with_tests():
    """PYTHONPATH for programs that import `tests`, as stand-ins do."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def fork_together(folder, size, target, *args):
    """The exit codes and the output of ``size`` forked processes, each of which calls the function.

    They find each other as if the launcher had started them.
    """
    shared = {"WORLD_SIZE": str(size), "PROXDASA_RENDEZVOUS": str(folder / "rendezvous"), "PROXDASA_START": "1"}
    output = folder / "output"
    environments = [{**_environment(), **shared, "RANK": str(rank)} for rank in range(size)]
    parts = [FORKS.Process(target=_become_part, args=(env, output, target, args)) for env in environments]
    try:
        for part in parts:
            part.start()
        for part in parts:
            part.join(LIMIT)
        return [part.exitcode for part in parts], output.read_text()
    finally:
        for part in parts:
            part.kill()
            part.join()


def program(name):
    """The path of a program of this environment or the system; the test is skipped where there is none."""
    path = BIN / name if (BIN / name).exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name} here")
    return path


def listeners(pid):
    """The addresses on which a process waits for connections, as the kernel writes them."""
    folder, inodes, found = Path(f"/proc/{pid}"), set(), set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for handle in (folder / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(handle)))
        for table in ("tcp", "tcp6"):
            for line in (folder / "net" / table).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == "0A" and inode in inodes:
                    found.add(local.partition(":")[0])
    return found


def _environment():
    """This process's, without what launchers or terminals may have set."""
    own = {name: value for name, value in os.environ.items() if not re.match("RANK|WORLD_SIZE|PMI|TORCHELASTIC", name)}
    path = os.pathsep.join([str(BIN), own.get("PATH", os.defpath)])
    return {**own, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}


def _pids():
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stat(pid):
    """The name of a process and the fields behind it; none if it has ended."""
    name, _, rest = _read(pid, "stat").partition("(")[2].rpartition(")")
    fields = rest.split()
    return [] if not fields or fields[0] in "ZX" else [name, *fields]


def _read(pid, name):
    """A file about a process, empty if it has ended; not by a `Path`, since some tests read those of all processes."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def _session(pid):
    return int(fields[4]) if (fields := _stat(pid)) else None


def _name(pid):
    return fields[0] if (fields := _stat(pid)) else ""


def _environ(pid):
    return _read(pid, "environ").split("\0") if _stat(pid) else []


def _rank(pid):
    numbers = (text.partition("=")[2] for text in _environ(pid) if re.match("(PMI_)?RANK=", text))
    return next(map(int, numbers), None)


def _become_part(env, output, target, args):
    """What each of several forked processes does."""
    _write_to(output)
    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(env)
    target(*args)


def _write_to(output):
    with output.open("ab") as file:
        for handle in (1, 2):
            os.dup2(file.fileno(), handle)


def _become_command(words, env, output, network, fresh):
    """What a forked process does."""
    os.setsid()
    _write_to(output)
    if network:
        forks.enter("net", namespaces.handle(network))
    launcher.subprocess = _FirstFresh if fresh else _Forking
    os._exit(run_command(words, env))


PROGRAMS = {"proxdasa": main, "torchrun": torchrun.main, "tests.setups": setups.make_runs}
"""What a forked process can do."""
forks.keep_command_line()
typer.main.get_command(app)  # now, and not in every process that is forked from one that has imported this


def run_command(words, env):
    """The exit code of a program with its arguments in this process, as if it were fresh."""
    gc.freeze()  # a collection would write to everything that the fork shares, and have it copied
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork, and whoever waits for them hangs
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
    sys.argv, code = words, 0
    try:
        if TROUBLE in env and words[0] == "proxdasa":
            runpy.run_path(env[TROUBLE])
        PROGRAMS[words[0]]()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return (code or 0) & 0xFF


def _close_all_but(*kept):
    for handle in map(int, os.listdir("/proc/self/fd")):
        if handle not in kept:
            with contextlib.suppress(OSError):  # the handle of the listing
                os.close(handle)


class _Forking:
    """What the launcher needs of the module subprocess."""

    class Popen:
        def __init__(self, command, env, process_group, pass_fds):
            self.returncode = None
            signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)  # until the child has no handlers of the launcher's
            self.pid = os.fork()
            if not self.pid:
                os.setpgid(0, process_group)
                _close_all_but(0, 1, 2, *pass_fds)
                os._exit(run_command(command[2:], env))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)

        def __class_getitem__(cls, _):
            return cls

        def poll(self):
            return self.wait(os.WNOHANG)

        def wait(self, how=0):
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, how)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

        def terminate(self):
            self.send_signal(signal.SIGTERM)

        def send_signal(self, number):
            if self.poll() is None:
                os.kill(self.pid, number)

        def kill(self):
            self.send_signal(signal.SIGKILL)


class _FirstFresh:
    """The same, but the first process is a fresh interpreter."""

    class Popen(_Forking.Popen):
        def __new__(cls, command, env, **how):
            return subprocess.Popen(command, env=env, **how) if env["RANK"] == "0" else super().__new__(cls)
