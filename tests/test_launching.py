"""How processes are started: what the launcher does with them, what they tell of bad beginnings, and who may listen."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from proxdasa import engines
from proxdasa.engines.launch import launcher
from proxdasa.engines.launch.signals import ASKING
from proxdasa.engines.messages.gloo import _count_starts
from proxdasa.exit_codes import Code
from proxdasa.runs.records import claim
from tests.processes import (
    LIMIT,
    LINUX,
    LOOPBACK,
    check_same,
    commands,
    here,
    listeners,
    newest,
    trouble,
    write_config,
)
from tests.test_faults import SLOW

pytestmark = LINUX
ALONE = {"RANK": "0", "WORLD_SIZE": "2", "PROXDASA_START": "1"}
"""The environment of a process that is waiting for another."""


DEAF = """
import os, signal, time
if "RANK" in os.environ:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    time.sleep(1000)
"""
"""What a process that is still importing is: ended by a signal, without a word."""


@pytest.fixture
def start(tmp_path):
    with commands(tmp_path) as start:
        yield start


@pytest.fixture
def file(tmp_path):
    return write_config(tmp_path / "run.toml", iterations=40)


# the launcher, with commands that take no time


@pytest.fixture
def launch(monkeypatch):
    """Launch lines of shell; the exit code and what was said."""
    monkeypatch.setattr(launcher, "LOSS", LIMIT)
    monkeypatch.setattr(launcher, "WATCH", 0.01)

    def launch(script, processes=2, restarts=0):
        said = []
        return launcher.launch(["sh", "-c", script], processes, restarts, said.append), said

    return launch


def test_processes_know_their_number_and_share_a_file(launch, tmp_path):
    assert launch(f'echo "$RANK $WORLD_SIZE $PROXDASA_START $PROXDASA_RENDEZVOUS" > {tmp_path}/$RANK', 3) == (0, [])
    told = [(tmp_path / rank).read_text().split() for rank in "012"]
    assert [words[:3] for words in told] == [[rank, "3", "1"] for rank in "012"]
    ((folder, name),) = {os.path.split(words[3]) for words in told}
    assert name == "rendezvous"
    assert not os.path.exists(folder), "it is gone with the run"


def test_each_process_has_its_share_of_the_cores_whatever_the_environment_says(launch, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))  # as of taskset, or of a container
    script = f"echo $OMP_NUM_THREADS $MKL_NUM_THREADS > {tmp_path}/threads"
    for given in (None, "1", "5", "64"):
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            monkeypatch.setenv(name, given) if given else monkeypatch.delenv(name, raising=False)
        launch(script, 3)
        assert (tmp_path / "threads").read_text() == "2 2\n"
    launch(script, 9)
    assert (tmp_path / "threads").read_text() == "1 1\n"


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((0, 0, 0), Code.DONE),
        ((3, 1, 3), Code.CRASHED),
        ((3, 5, 3), Code.UNWRITTEN),
        ((3, 3, 0), Code.LOST),
        ((4, 3, 4), Code.DIVERGED),
        ((3, 130, 1), Code.INTERRUPTED),
        ((1, 2, 3), Code.REFUSED),
    ],
)
def test_of_several_codes_the_launcher_ends_with_that_of_the_cause(launch, codes, code):
    assert launch(f"set -- {' '.join(map(str, codes))}; shift $RANK; exit $1", 3) == (code, [])


def test_a_process_that_is_killed_is_lost(launch):
    assert launch("test $RANK = 0 && exit 3; kill -9 $$") == (Code.LOST, ["a process ended with signal SIGKILL"])


def test_all_are_started_again_so_often(launch, tmp_path):
    code, said = launch(f"echo $RANK $PROXDASA_START >> {tmp_path}/starts; test $RANK = 0 || exit 3", restarts=2)
    assert code == 3
    again = "a process ended with exit code 3; starting again from the last checkpoint"
    assert said == [f"{again} (1 of 2)", f"{again} (2 of 2)"]
    starts = sorted((tmp_path / "starts").read_text().splitlines())
    assert starts == [f"{rank} {attempt}" for rank in (0, 1) for attempt in (1, 2, 3)]
    assert launch(f"test -e {tmp_path}/once || {{ touch {tmp_path}/once; exit 3; }}", restarts=9)[0] == 0


def test_a_decision_is_not_tried_again(launch):
    for code in (2, 4, 130):
        assert launch(f"test $RANK = 0 && exit 3; exit {code}", restarts=5) == (code, [])


def test_one_that_hangs_after_another_has_failed_is_ended(launch, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "LOSS", 0.2)
    meet = f"echo $$ > {tmp_path}/$RANK; until test -s {tmp_path}/1; do sleep 0.01; done"
    code, _ = launch(f"{meet}; test $RANK = 0 && exit 3; exec sleep 1000")
    assert code == 3
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "1").read_text()), 0)


def test_processes_that_do_not_stop_when_asked_are_ended(launch, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE", 0.5)
    script = "trap '' TERM; test $RANK = 0 && kill -TERM $PPID; while :; do sleep 0.1; done"
    assert launch(script, restarts=2) == (130, [])


@pytest.fixture
def terminal():
    """Signals as in a terminal, also if the tests were started by nohup or in the background of a script."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ASKING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("terminal")
def test_processes_that_stop_when_asked_are_not_started_again(launch, tmp_path):
    assert launch("test $RANK = 0 && kill -INT $PPID; exec sleep 1000", restarts=2) == (130, [])
    meet = f"touch {tmp_path}/$RANK; until test -e {tmp_path}/0 && test -e {tmp_path}/1; do sleep 0.01; done"
    for number, code in (("HUP", 130), ("INT", 0)):  # the latter were done by then
        script = f"trap 'exit {code}' TERM; {meet}; kill -{number} $PPID; while :; do sleep 0.01; done"
        assert launch(script, restarts=2) == (code, [])
        for name in "01":
            (tmp_path / name).unlink()


# beginnings that come to nothing


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (("--processes", 7), {}, "6 agents can live in 1 to 6 processes; got 7"),
        (("--max-restarts", 2), {}, "--max-restarts needs --processes; under torchrun give it to torchrun"),
        (("--processes", 2, "--interface", "lo"), {}, "--interface is for several machines under torchrun"),
        (("--interface", "lo"), {}, "--interface is for several machines under torchrun, and this run has one process"),
        (("--processes", 2), {"RANK": "0"}, "--processes is for one machine without torchrun; leave it out here"),
        ((), {"RANK": "0"}, "the environment has RANK, as under torchrun, but no WORLD_SIZE"),
        (("--timeout", 0), ALONE, "timeout must be a positive number of seconds, at most 1e+09; got 0.0"),
        (("--interface", "none0"), ALONE, "there is no network interface 'none0' here; there are lo"),
        ((), {**ALONE, "LOCAL_WORLD_SIZE": "1"}, "neither encrypted nor authenticated: --interface eth0"),
    ],
)
def test_what_cannot_work_is_refused(words, env, message, start, file, tmp_path):
    text = start("proxdasa", "run", file, "-o", tmp_path / "results", *words, env=env).ended(2)
    assert text.startswith("error: ")
    assert message in text


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, -1.0, float("nan")])
def test_timeouts_that_cannot_be_counted_are_refused(timeout):
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds, at most"):
        engines.connect(timeout=timeout)


def test_one_that_waits_in_vain_says_so(start, file, tmp_path):
    env = {**ALONE, "PROXDASA_RENDEZVOUS": str(tmp_path / "rendezvous")}
    text = start("proxdasa", "run", file, "-o", tmp_path / "results", "--timeout", 1, env=env).ended(3)
    assert text.startswith("error: 2 processes did not find each other within 1 s (")


@pytest.mark.parametrize("number", ASKING)
def test_one_that_is_asked_to_stop_while_it_waits_for_the_others_says_what_is_kept(number, start, file, tmp_path):
    env = {**ALONE, "PROXDASA_RENDEZVOUS": str(tmp_path / "rendezvous")}
    command = start("proxdasa", "run", file, "-o", tmp_path / "results", "--timeout", 1000, env=env)
    command.until((tmp_path / "rendezvous").exists)
    os.kill(command.pid, number)
    assert command.ended(130) == "interrupted before there was a checkpoint; nothing was kept\n"


def test_a_launcher_whose_processes_were_asked_to_stop_before_they_could_speak_says_what_is_kept(start, tmp_path):
    env = trouble(tmp_path / "trouble", DEAF)
    results, file = tmp_path / "results", write_config(tmp_path / "run.toml")
    for folder, said in (
        (results, "interrupted before there was a checkpoint; nothing was kept\n"),
        (
            tmp_path / "begun",
            "interrupted; the checkpoint after 7 iterations is kept\n"
            f"proxdasa resume {tmp_path}/begun continues the run\n",
        ),
    ):
        command = start("proxdasa", "run", file, "-o", folder, "--processes", 2, env=env)
        command.until(lambda command=command: len(command.workers()) == 2)
        (tmp_path / "begun" / "checkpoints" / "000000007").mkdir(parents=True, exist_ok=True)
        os.kill(command.pid, signal.SIGTERM)
        assert command.ended(130) == said


def test_results_are_replaced_if_asked(start, file, tmp_path):
    words = ("proxdasa", "run", file, "-o", tmp_path / "results", "--processes", 2)
    here(*words[1:-2])
    assert "holds results already" in start(*words).ended(2)
    start(*words, "--overwrite").ended()


# two runs into one folder


def test_a_folder_that_a_run_is_writing_to_is_left_to_it(start, tmp_path):
    results, file = tmp_path / "results", write_config(tmp_path / "long.toml", iterations=10**6)
    words = ("proxdasa", "run", file, "-o", results, "--overwrite")
    first = start(*words, "--checkpoint-every", 1)
    first.until(lambda: newest(results) >= 1)
    for other in (words, (*words, "--processes", 2), ("proxdasa", "resume", results)):
        refusal = start(*other).ended(2)
        assert refusal == (
            f"error: another run is writing to {results}; choose another folder, or wait until it has ended\n"
        )
    k = newest(results)
    first.until(lambda: newest(results) > k)
    os.kill(first.pid, signal.SIGKILL)
    first.ended(-signal.SIGKILL)
    again = start("proxdasa", "resume", results)
    again.until(lambda: newest(results) > k + 2)


def test_of_several_processes_the_one_that_writes_refuses_a_folder_and_tells_the_others(start, file, tmp_path):
    results = tmp_path / "results"
    with claim(results):
        env = {**ALONE, "PROXDASA_RENDEZVOUS": str(tmp_path / "rendezvous")}
        first, second = (start("proxdasa", "run", file, "-o", results, env={**env, "RANK": rank}) for rank in "01")
        assert first.ended(2).startswith(f"error: another run is writing to {results}; ")
        assert second.ended(3) == ""
    assert [path.name for path in results.iterdir()] == [".lock"], "nothing was computed"


# as a user has it


@pytest.mark.parametrize("how", [{"fresh": True}, pytest.param({"fork": False}, marks=pytest.mark.slow)])
def test_a_run_listens_on_this_machine_alone_and_stops_when_its_launcher_is_killed(how, start, tmp_path):
    """The process that writes is a fresh interpreter, and so are all with ``fork=False``.

    That processes are replaced is tested above and in `test_faults`.
    """
    file, results = write_config(tmp_path / "run.toml", iterations=30), tmp_path / "results"
    here("run", file, "-o", tmp_path / "undisturbed", "--exact")
    words = ("proxdasa", "run", file, "-o", results, "--exact", "--checkpoint-every", 1, "--processes", 2)
    command = start(*words, env=trouble(tmp_path / "slow", SLOW), **how)
    command.until(lambda: newest(results) >= 2)
    workers = command.workers()
    heard = {pid: listeners(pid) for pid in command.processes()}
    assert len(heard) == 3
    assert all(heard[pid] and heard[pid] <= LOOPBACK for pid in workers), heard
    assert heard[command.pid] == set(), heard
    os.kill(command.pid, signal.SIGKILL)
    assert "interrupted after" in command.ended(-signal.SIGKILL)
    here("resume", results)
    check_same(results, tmp_path / "undisturbed")


# torchrun's store


def test_processes_count_how_often_they_were_started():
    """Whatever earlier starts have left in the store, of which torchrun's own counts are not always the same."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=LIMIT))
    store.set("proxdasa-2", "one that died before the others came")
    for expected in (1, 2, 3):
        with ThreadPoolExecutor(4) as threads:
            counts = threads.map(lambda rank: _count_starts(store, rank, 4, LIMIT), [2, 0, 3, 1])
        assert set(counts) == {expected}
    with pytest.raises(RuntimeError, match="some did not arrive"):
        _count_starts(store, 0, 4, 0.1)
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda rank: _count_starts(store, rank, 4, LIMIT), range(4))) == {5}


def test_a_setting_that_would_not_encrypt_is_refused(monkeypatch):
    monkeypatch.setenv("GLOO_DEVICE_TRANSPORT", "TCP_TLS")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="GLOO_DEVICE_TRANSPORT=TCP_TLS would not encrypt anything; unset it"):
        engines.connect()
