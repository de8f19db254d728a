"""What happens when something dies: a run goes on with the same bits, or ends with words that name who is missed."""

import os
import pickle
import random
import re
import shutil
import signal
import time

import pytest
import torch

import proxdasa
from proxdasa.engines import Alone, connect
from proxdasa.engines.messages.neighbourhood import Neighbourhood
from proxdasa.engines.messages.transport import LostError
from proxdasa.mixing import Gossip
from proxdasa.networks import ring
from tests.processes import (
    FORKS,
    LIMIT,
    LINUX,
    LOOPBACK,
    check_same,
    commands,
    disturb,
    here,
    listeners,
    newest,
    program,
    trouble,
    write_config,
)

pytestmark = LINUX
ITERATIONS = 24
RUN = ("--exact", "--checkpoint-every", 1)
SLOW = """
import time
from proxdasa.runs.checkpoints import Checkpoints
write = Checkpoints.write
def write_slowly(*args):
    write(*args)
    time.sleep(0.05)
Checkpoints.write = write_slowly
"""
"""Makes runs so slow that they do not end before a signal reaches them, even on a busy machine."""
SILENCE = 10
"""Seconds of silence that are an error: no process that lives is silent for so long, however busy the machine is."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A configuration file, ``run.toml``, and the results of its run, ``results``."""
    folder = tmp_path_factory.mktemp("undisturbed")
    file = write_config(folder / "run.toml", iterations=ITERATIONS, observe_every=8)
    here("run", file, "-o", folder / "results", "--exact")
    return folder


@pytest.fixture
def start(tmp_path):
    with commands(tmp_path) as start:
        yield start


@pytest.fixture
def slow(tmp_path):
    """The environment of slow runs."""
    return trouble(tmp_path / "slow", SLOW)


# killed


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_a_run_whose_processes_are_killed_ends_with_the_same_bits(seed, start, undisturbed, tmp_path):
    rng, results = random.Random(seed), tmp_path / "results"
    options = ("--processes", 3, "--max-restarts", 4)
    command = start("proxdasa", "run", undisturbed / "run.toml", "-o", results, *RUN, *options)
    deeds = [disturb(command, results, rng, ITERATIONS) for _ in range(2) if command.poll() is None]
    text = command.ended()
    check_same(results, undisturbed / "results")
    # A process that was to be killed while ending may have ended before.
    sure = sum("while ending" not in deed for deed in deeds)
    assert sure <= text.count("signal SIGKILL; starting again from the last checkpoint") <= len(deeds), (deeds, text)


def test_a_killed_process_is_named_and_the_run_can_be_resumed(start, slow, undisturbed, tmp_path):
    results = tmp_path / "results"
    command = start("proxdasa", "run", undisturbed / "run.toml", "-o", results, *RUN, "--processes", 3, env=slow)
    command.until(lambda: newest(results) >= 3)
    os.kill(command.workers()[1], signal.SIGKILL)
    lines = command.ended(3).splitlines()
    # Process 1 holds the agents 2 and 3.
    assert re.fullmatch(
        r"error: agent \d has no message from agent [23] in iteration \d+: its process has ended", lines[0]
    )
    assert lines[1:] == [
        "a process ended with signal SIGKILL",
        f"proxdasa resume {results} continues from the last checkpoint",
    ]
    start("proxdasa", "resume", results, "--processes", 2).ended()
    check_same(results, undisturbed / "results")


def test_torchrun_restarts_a_run_whose_processes_are_killed(start, slow, undisturbed, tmp_path):
    results = tmp_path / "results"
    options = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 1)
    words = ("-m", "proxdasa", "run", undisturbed / "run.toml", "-o", results, *RUN)
    command = start("torchrun", *options, *words, env=slow)
    command.until(lambda: newest(results) >= 3)
    killed = command.workers()
    heard = [listeners(pid) for pid in killed]  # torchrun itself listens for other machines
    assert all(found and found <= LOOPBACK for found in heard), heard
    os.kill(killed[0], signal.SIGKILL)
    k = newest(results)
    command.until(lambda: newest(results) > k + 1)
    assert not set(command.workers()) & set(killed)
    os.kill(command.pid, signal.SIGTERM)
    assert "interrupted after" in command.ended(*range(256)), "with whatever code torchrun has for it"
    here("resume", results)
    check_same(results, undisturbed / "results")


def test_without_checkpoints_a_lost_run_says_what_would_have_helped(start, tmp_path):
    file = write_config(tmp_path / "run.toml", iterations=10**6)
    command = start("proxdasa", "run", file, "-o", tmp_path / "results", "--processes", 2)
    command.until(lambda: len(command.workers()) == 2)
    os.kill(command.workers()[1], signal.SIGKILL)
    assert "there is no checkpoint to continue from; --checkpoint-every writes some" in command.ended(3)


# silent


def waiting(rank, rendezvous, deed, interface, said):
    """Each of three processes waits for the next; the last one never sends."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3", "PROXDASA_RENDEZVOUS": rendezvous, "PROXDASA_START": "1"}
    transport = connect(interface, timeout=SILENCE)
    if rank == 2:
        time.sleep(LIMIT if deed == "sleeps" else 0)
        return
    try:
        transport.exchange({}, {rank + 1: torch.zeros(1)})
    except LostError as error:
        said.put((rank, error.peer, error.why))


@pytest.mark.parametrize("interface", [None, "lo"])  # by Unix sockets, and by gloo
@pytest.mark.parametrize(("deed", "why"), [("sleeps", f"silent for {SILENCE} s"), ("ends", "its process has ended")])
def test_everybody_knows_who_is_lost_and_whether_it_has_ended(deed, why, interface, tmp_path):
    said = FORKS.Queue()
    parts = [
        FORKS.Process(target=waiting, args=(rank, str(tmp_path / "r"), deed, interface, said)) for rank in range(3)
    ]
    try:
        for part in parts:
            part.start()
        assert sorted(said.get(timeout=LIMIT) for _ in range(2)) == [(0, 2, why), (1, 2, why)]
    finally:
        for part in parts:
            part.kill()
            part.join()


def test_a_silent_process_is_named_and_replaced(start, slow, undisturbed, tmp_path):
    results = tmp_path / "results"
    options = ("--processes", 4, "--timeout", SILENCE, "--max-restarts", 1)
    command = start("proxdasa", "run", undisturbed / "run.toml", "-o", results, *RUN, *options, env=slow)
    command.until(lambda: newest(results) >= 3)
    os.kill(command.workers()[2], signal.SIGSTOP)
    command.until(lambda: "starting again" in command.text())
    silent, again = command.text().splitlines()
    # Process 2 holds agent 3. Others wait for processes that wait for it, and are not to blame those.
    told = rf"error: agent \d has no message from agent 3 in iteration \d+: silent for {SILENCE} s"
    assert re.fullmatch(told, silent)
    assert again == "a process ended with exit code 3; starting again from the last checkpoint (1 of 1)"

    command.until(lambda: len(command.workers()) == 4)
    k = newest(results)
    command.until(lambda: newest(results) > k)
    os.kill(command.workers()[0], signal.SIGSTOP)  # the restarts are used up
    advice = command.ended(3).splitlines()[-2:]
    assert re.fullmatch(
        rf"error: agent \d has no message from agent 0 in iteration \d+: silent for {SILENCE} s", advice[0]
    )
    assert advice[1] == f"proxdasa resume {results} continues from the last checkpoint"
    here("resume", results)
    check_same(results, undisturbed / "results")


def test_a_silent_process_under_mpi(start, undisturbed, tmp_path):
    pytest.importorskip("mpi4py", reason="there is no mpi4py here (pip install proxdasa[mpi])")
    program("mpiexec")
    results, options = tmp_path / "results", ("--timeout", SILENCE)
    words = ("proxdasa", "run", undisturbed / "run.toml", "-o", results, *RUN, *options)
    # Not stopped, because a forked process ends with the one that mpiexec knows of and kills.
    deaf = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: time.sleep(1e6))"
    command = start("mpiexec", "-n", 2, *words, env=trouble(tmp_path / "trouble", SLOW + deaf))
    command.until(lambda: newest(results) >= 3)
    os.kill(command.workers()[1], signal.SIGUSR1)
    text = command.ended(3, signal.SIGKILL)  # mpiexec may tell how it ended the silent one
    assert re.search(
        rf"^error: agent [0-2] has no message from agent [3-5] in iteration \d+: silent for {SILENCE} s$", text, re.M
    ), text
    here("resume", results)
    check_same(results, undisturbed / "results")


# asked to stop


def interrupt(command, results, number, whom=None):
    """Send a signal to a process of this number, or to the launcher, when there is a new checkpoint.

    All processes stop after the same iteration.
    """
    k = max(newest(results), 1)
    command.until(lambda: newest(results) > k)
    os.kill(command.pid if whom is None else command.workers()[whom], number)
    text = command.ended(130)
    assert f"interrupted after {newest(results)} iterations; the records so far are saved\n" in text
    assert text.endswith(f"proxdasa resume {results} continues the run\n")
    assert "has no message" not in text


def test_an_interrupted_run_goes_on_in_any_number_of_processes(start, slow, undisturbed, tmp_path):
    """Whoever is sent whichever signal; in the next test the launcher is sent SIGTERM."""
    results, options = tmp_path / "results", ("--processes", 4, "--max-restarts", 3)
    command = start("proxdasa", "run", undisturbed / "run.toml", "-o", results, *RUN, *options, env=slow)
    interrupt(command, results, signal.SIGINT)
    for size, number, whom in ((2, signal.SIGINT, 1), (3, signal.SIGTERM, 2), (3, signal.SIGHUP, 1)):
        command = start("proxdasa", "resume", results, "--processes", size, "--max-restarts", 3, env=slow)
        interrupt(command, results, number, whom)
    here("resume", results)
    check_same(results, undisturbed / "results")


def test_a_resumed_run_can_be_stopped_before_its_first_iteration(start, slow, undisturbed, tmp_path):
    results = tmp_path / "results"
    command = start("proxdasa", "run", undisturbed / "run.toml", "-o", results, *RUN, "--processes", 2, env=slow)
    interrupt(command, results, signal.SIGTERM)
    for _ in range(2):  # comes before the processes have found each other, while they read, or at their first step
        command = start("proxdasa", "resume", results, "--processes", 2, "--timeout", 1000, env=slow)
        command.until(lambda command=command: len(command.workers()) == 2)
        os.kill(command.pid, signal.SIGTERM)
        last = command.ended(130).splitlines()[-2:]
        kept = (
            rf"interrupted(; the checkpoint after {newest(results)} iterations is kept| after {newest(results)} iter.*)"
        )
        assert re.fullmatch(kept, last[0]), last
        assert last[1] == f"proxdasa resume {results} continues the run"
    here("resume", results)
    check_same(results, undisturbed / "results")


@pytest.fixture(scope="module")
def undisturbed_by_default(undisturbed):
    """The results of the same run as people have it, not in exact mode."""
    here("run", undisturbed / "run.toml", "-o", undisturbed / "default")
    return undisturbed / "default"


@pytest.mark.parametrize(("number", "exact"), [(signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGHUP, False)])
def test_an_interrupted_run_in_one_process_goes_on(
    number, exact, start, slow, undisturbed, undisturbed_by_default, tmp_path
):
    results, how = tmp_path / "results", RUN if exact else RUN[1:]
    command = start("proxdasa", "run", undisturbed / "run.toml", "-o", results, *how, env=slow)
    interrupt(command, results, number)
    here("resume", results)
    check_same(results, undisturbed / "results" if exact else undisturbed_by_default)


def test_several_interruptions_are_one(start, tmp_path):
    file = write_config(tmp_path / "run.toml", iterations=10**8, observe_every=1_000)
    command = start("proxdasa", "run", file, "-o", tmp_path / "results", "--checkpoint-every", 1_000)
    command.until(lambda: newest(tmp_path / "results") > 0)
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        os.kill(command.pid, number)
    assert "the records so far are saved" in command.ended(130)
    assert len(proxdasa.load(tmp_path / "results").records) >= 4


def test_a_process_without_others_stops_at_once():
    """It may be asked before it knows its first iteration."""
    neighbourhood = Neighbourhood(ring(4), Gossip(), Alone(), torch.float64)
    neighbourhood.ask_to_stop()
    assert not neighbourhood.proceed(1000)


# not finite


def test_values_that_are_not_finite_end_a_run_for_good(start, tmp_path):
    results = tmp_path / "results"
    file = write_config(tmp_path / "run.toml", iterations=1000, observe_every=5, gamma=100)
    text = start("proxdasa", "run", file, "-o", results, "--processes", 3, "--max-restarts", 3).ended(4)
    told = r"warning: trial \d diverged: agent \d met the first non-finite value in iteration (\d+); its records up to "
    found = [int(iteration) for iteration in re.findall(told, text)]
    assert "starting again" not in text
    assert "error" not in text
    rows = (results / "records.jsonl").read_text().splitlines()
    assert len(rows) == sum(iteration // 5 + 1 for iteration in found), "observed every 5 iterations until then"
    assert len(found) == proxdasa.load(results).mean.shape[0] == 2


def test_a_diverging_trial_costs_the_others_nothing_in_several_processes(start, tmp_path):
    results, alone = tmp_path / "results", tmp_path / "alone"
    file = write_config(tmp_path / "run.toml", iterations=40, gamma="[0.01, 50.0]", observe_every=20)
    one = here("run", file, "-o", alone, "--exact")
    text = start("proxdasa", "run", file, "-o", results, "--exact", "--processes", 2).ended()
    told = r"trial 1 diverged: agent \d met the first non-finite value in iteration \d+; its records up to iteration"
    assert re.findall(told, text) == re.findall(told, one) != []
    saved, expected = proxdasa.load(results), proxdasa.load(alone)
    assert (saved.stopped, saved.iterations, saved.diverged) == (None, 40, expected.diverged)
    assert torch.equal(saved.mean[0], expected.mean[0])
    assert not (results / "checkpoints").exists()


# processes that do not belong together


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": 0.02}, "configuration"),
        ({"agents": 7}, "number of agents"),
        ({"dim": 9}, "dimension"),
        # `test_processes` has these in threads.
        pytest.param({"more": 'dtype = "float64"'}, "floating-point type", marks=pytest.mark.slow),
        pytest.param({"network": "complete"}, "network", marks=pytest.mark.slow),
    ],
)
def test_processes_that_disagree_stop_at_once(changes, words, start, tmp_path):
    files = [write_config(tmp_path / "ours.toml"), write_config(tmp_path / "theirs.toml", **changes)]
    shared = {"WORLD_SIZE": "2", "PROXDASA_RENDEZVOUS": str(tmp_path / "rendezvous"), "PROXDASA_START": "1"}
    options = ("-o", tmp_path / "results", "--timeout", 1000)
    both = [
        start("proxdasa", "run", file, *options, env={"RANK": rank, **shared})
        for rank, file in zip("01", files, strict=True)
    ]
    for command in both:
        told = r"error: agents \d to \d and agents \d to \d do not have the same {}; start all processes with the same"
        assert re.match(told.format(words), command.ended(2))
    assert not (tmp_path / "results" / "checkpoints").exists()


def test_processes_that_disagree_under_mpi(start, tmp_path):
    pytest.importorskip("mpi4py", reason="there is no mpi4py here (pip install proxdasa[mpi])")
    program("mpiexec")
    ours, theirs = write_config(tmp_path / "ours.toml"), write_config(tmp_path / "theirs.toml", gamma=0.02)
    words, options = ("-n", 1, "proxdasa", "run"), ("-o", tmp_path / "results", "--timeout", 1000)
    text = start("mpiexec", *words, ours, *options, ":", *words, theirs, *options).ended(2)
    assert text.count("agents 3 to 5 and agents 0 to 2 do not have the same configuration") == 2


# damaged checkpoints


@pytest.fixture(scope="module")
def interrupted(undisturbed, tmp_path_factory):
    """The results folder of a run that was stopped, with two checkpoints, and that of another run."""
    folder = tmp_path_factory.mktemp("interrupted")
    other = write_config(folder / "other.toml", iterations=ITERATIONS, observe_every=8, gamma=0.02)
    with commands(folder) as start:
        env = trouble(folder / "slow", SLOW)
        for name, file in (("results", undisturbed / "run.toml"), ("other", other)):
            interrupt(start("proxdasa", "run", file, "-o", folder / name, *RUN, env=env), folder / name, signal.SIGTERM)
    return folder


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


HARM = {
    "flipped": flip,
    "pickle": lambda path: path.write_bytes(pickle.dumps(Evil())),
}
"""Two of those that `test_checkpoint_damage` knows; here commands meet them."""


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_checkpoint_is_passed_over(harm, start, interrupted, undisturbed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = shutil.copytree(interrupted / "results", tmp_path / "results")
    damaged = results / "checkpoints" / f"{newest(results):09d}"
    HARM[harm](damaged / "state.safetensors")
    found = (damaged / "state.safetensors").read_bytes()
    if harm == "flipped":
        text = start("proxdasa", "resume", results, "--processes", 2).ended()
    else:
        text = here("resume", results)
    assert re.match(rf"warning: {damaged}/state.safetensors .*; the run continues from \d+\n", text)
    check_same(results, undisturbed / "results")
    assert (damaged.with_name(f"{damaged.name}.damaged") / "state.safetensors").read_bytes() == found
    assert not (tmp_path / "executed").exists()


def test_a_checkpoint_of_another_run_is_passed_over(interrupted, undisturbed, tmp_path):
    results = shutil.copytree(interrupted / "results", tmp_path / "results")
    foreign = results / "checkpoints" / f"{ITERATIONS - 1:09d}"
    shutil.copytree(interrupted / "other" / "checkpoints" / f"{newest(interrupted / 'other'):09d}", foreign)
    text = here("resume", results)
    assert re.match(rf"warning: {foreign} belongs to a run with other settings; the run continues from \d+\n", text)
    assert "another folder; the run continues" in text, "where it wants to leave its own"
    check_same(results, undisturbed / "results")
    assert foreign.exists()


def test_a_run_of_which_all_checkpoints_are_damaged_stays_as_it_is(start, interrupted, tmp_path):
    results = shutil.copytree(interrupted / "results", tmp_path / "results")
    for path in results.glob("checkpoints/*/manifest.json"):
        path.write_bytes(b"")
    before = sorted(results.rglob("*"))
    text = start("proxdasa", "resume", results, "--processes", 2, "--max-restarts", 2, "--timeout", 1000).ended(2)
    assert text.count("holds no checkpoint from which this run can continue") == 1
    assert "starting again" not in text
    assert sorted(results.rglob("*")) == before
