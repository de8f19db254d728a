"""Exit codes: each way to end has its own, the same in one process and in several; docs and help say which."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxdasa import cli, load
from proxdasa.engines.launch import signals
from proxdasa.exit_codes import FINAL, MEANINGS, Code
from tests.processes import LINUX, bits, commands, here, newest, program, trouble, write_config

ROOT = Path(__file__).parents[1]

MISTAKE = """
import os
if os.environ.get("RANK", os.environ.get("PMI_RANK", "0")) == "{rank}":
    from proxdasa.algorithms import ProxDASAGT
    right = ProxDASAGT.step
    def step(self, agents, k, state):
        if k == 5:
            raise RuntimeError("a mistake in the code")
        return right(self, agents, k, state)
    ProxDASAGT.step = step
"""
"""An exception that nobody expects, in a process of this number."""

FULL = """
from proxdasa.runs.results import Result
def save(*_, **__):
    raise OSError(28, "No space left on device")
Result.save = save
"""
"""A disk on which there is no room for results."""


FRESH = """
import sys
from pathlib import Path
import proxdasa.runs.jobs
Path(sys.argv.pop(1)).touch()
from proxdasa.cli import main
main()
"""
LATER = """
import time
from pathlib import Path
while not Path({ready!r}).exists():
    time.sleep(0.05)
"""
"""MPI would have a process that is there earlier than the others use a core until they have imported all they need."""


@pytest.fixture
def start(tmp_path):
    with commands(tmp_path) as start:
        yield start


# told


def test_the_docs_have_every_exit_code_in_one_table():
    text = (ROOT / "docs" / "processes.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE)
    assert [int(code) for code, _ in rows] == [*Code]
    assert [meaning.strip() for _, meaning in rows] == [*MEANINGS.values()]


@pytest.mark.parametrize("command", ["run", "resume"])
def test_help_has_every_exit_code(command):
    done = CliRunner().invoke(cli.app, [command, "--help"], terminal_width=160, color=False)
    text = " ".join(done.stdout.split())
    assert all(f"{code:d} {meaning}" in text for code, meaning in MEANINGS.items()), text
    assert "docs/processes.md" in text


def test_codes_are_written_down_once():
    """Nowhere else in the package does a number stand for an exit code."""
    for path in (ROOT / "src").rglob("*.py"):
        found = re.findall(r"(?:Exit|_exit|SystemExit|Abort|sys\.exit)\(\d+\)", path.read_text(encoding="utf-8"))
        assert not found, f"{path}: {found}"


# the same in one process, in several, and under MPI


def launched(start, how, file, results, *options, env=None, fresh=False):
    """A run of two processes that was started in this way, or of one.

    Under mpiexec the first can be a ``fresh`` interpreter.
    """
    words = ("proxdasa", "run", file, "-o", results, *options)
    if how == "mpiexec":
        pytest.importorskip("mpi4py", reason="there is no mpi4py here (pip install proxdasa[mpi])")
        program("mpiexec")
        if not fresh:
            return start("mpiexec", "-n", 2, *words, env=env)
        ready = str(results.with_name("ready"))
        first = (sys.executable, "-c", FRESH, ready, *words[1:])
        env = trouble(results.with_name("later"), LATER.format(ready=ready))
        return start("mpiexec", "-n", 1, *first, ":", "-n", 1, *words, env=env)
    if how == "torchrun":
        return start("torchrun", "--standalone", "--nproc-per-node", 2, "-m", *words, env=env)
    return start(*words, *(("--processes", 2) if how == "--processes" else ()), env=env)


@LINUX
@pytest.mark.parametrize("how", ["alone", "--processes", "torchrun", "mpiexec"])
def test_a_crash_is_told_from_divergence(how, start, tmp_path):
    env = trouble(tmp_path / "trouble", MISTAKE.format(rank=0 if how == "alone" else 1))
    command = launched(start, how, write_config(tmp_path / "run.toml"), tmp_path / "results", env=env)
    text = command.ended(1)
    assert "RuntimeError: a mistake in the code" in text
    assert "has no message" not in text, "who misses the one that crashed is not told as if it were the cause"


@LINUX
@pytest.mark.parametrize("how", ["alone", "--processes"])
def test_a_full_disk_has_a_code_of_its_own(how, start, tmp_path):
    """But for torchrun, which has no other code than 1; under MPI any code takes the way that those of others take."""
    env = trouble(tmp_path / "trouble", FULL)
    text = launched(start, how, write_config(tmp_path / "run.toml"), tmp_path / "results", env=env).ended(5)
    assert "error: [Errno 28] No space left on device\n" in text
    assert "Traceback" not in text


@LINUX
def test_the_launcher_tries_again_after_a_crash_or_a_full_disk_but_not_after_a_decision(start, tmp_path):
    file, options = write_config(tmp_path / "run.toml"), ("--processes", 2, "--max-restarts", 1)
    mistake = MISTAKE.format(rank=1)
    for name, code, expected in (("crash", mistake, Code.CRASHED), ("full", FULL, Code.UNWRITTEN)):
        env = trouble(tmp_path / name, code)
        text = start("proxdasa", "run", file, "-o", tmp_path / f"{name}-results", *options, env=env).ended(expected)
        assert text.count(f"a process ended with exit code {expected:d}; starting again") == 1
    assert Code.CRASHED not in FINAL
    assert Code.UNWRITTEN not in FINAL


@LINUX
@pytest.mark.parametrize("how", ["--processes", pytest.param("mpiexec", marks=pytest.mark.slow)])
def test_divergence_of_every_trial_has_a_code_of_its_own(how, start, tmp_path):
    file = write_config(tmp_path / "run.toml", iterations=1000, observe_every=5, gamma=100)
    assert "diverged" in launched(start, how, file, tmp_path / "results", fresh=True).ended(4)


@LINUX
@pytest.mark.parametrize(
    ("how", "fresh"),
    [("--processes", False), ("mpiexec", False), pytest.param("mpiexec", True, marks=pytest.mark.slow)],
)
def test_an_interruption_has_a_code_of_its_own(how, fresh, start, tmp_path):
    """What was done until then has the bits of a run in one process, under MPI too, also with a fresh interpreter."""
    results, file = tmp_path / "results", write_config(tmp_path / "run.toml", iterations=10**7)
    command = launched(start, how, file, results, "--exact", "--checkpoint-every", 1, fresh=fresh)
    command.until(lambda: newest(results) >= 2)
    os.kill(command.workers()[-1], signal.SIGTERM)
    assert "interrupted after" in command.ended(130)
    done = load(results).iterations
    whole, alone = write_config(tmp_path / "whole.toml", iterations=done), tmp_path / "alone"
    here("run", whole, "-o", alone, "--exact")
    assert bits(results) == bits(alone)


# signals that ask to stop


def test_one_module_owns_the_handling_of_signals():
    users = [path.name for path in (ROOT / "src").rglob("*.py") if re.search(r"^import signal", path.read_text(), re.M)]
    assert users == ["signals.py"]


@pytest.fixture
def terminal():
    """Python's own handlers, also if the tests were started by nohup or in the background of a script."""
    own = {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, own.get(number, signal.SIG_DFL)) for number in signals.ASKING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", signals.ASKING)
def test_every_signal_that_asks_to_stop_is_handled_alike(number):
    before, told = [signal.getsignal(each) for each in signals.ASKING], []
    with signals.handle(told.append):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    assert told == [number, number]
    with pytest.raises(KeyboardInterrupt), signals.interrupting():
        os.kill(os.getpid(), number)
    with signals.interrupting(), signals.handle(told.append, once=True):
        os.kill(os.getpid(), number)
        assert told == [number] * 3
        with pytest.raises(KeyboardInterrupt):  # as outside
            os.kill(os.getpid(), number)
    with signals.ignored():
        os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in signals.ASKING] == before


class Signalling:
    """Is interrupted while it is destroyed, where Python drops every exception."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.001)  # the handler is called


@pytest.mark.usefixtures("terminal")
def test_an_interruption_that_python_drops_comes_again(capsys):
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), signals.interrupting():
        time.sleep(30 if Signalling() else 0)  # destroyed before the sleep
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_what_is_ignored_stays_so():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.handle(lambda _: pytest.fail("it was not ignored")):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_that_waits_outside_of_python_hands_on_its_result_or_its_error():
    assert signals.call_in_thread(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        signals.call_in_thread(lambda: 1 / 0)
