"""What is told of a run while it runs: to people, to machines, to TensorBoard; and what if nobody listens."""

import errno
import io
import itertools
import json
import os
import re
import signal
import sys
import time
import warnings

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, experiments, networks, problems, schedules
from proxdasa.cli import progress_display
from proxdasa.cli.process_advice import ProcessAdvice
from proxdasa.engines.launch import launcher
from proxdasa.runs.progress import ProgressWarning
from proxdasa.runs.records import mean_row
from proxdasa.runs.setup import Setup
from proxdasa.runs.tensorboard_curves import TensorBoard
from tests.processes import (
    FORKS,
    LINUX,
    _environment,
    _Forking,
    commands,
    newest,
    run_command,
    trouble,
    until,
    write_config,
)

NOTE = "note: the theory"


def call(*arguments):
    """The command's outcome; warnings are shown as `main` shows them."""
    with warnings.catch_warnings(action="default"):
        warnings.showwarning = cli.show_warning
        return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def parsed(text):
    """Lines of JSON as strict readers take them: NaN and Infinity are no numbers."""

    def refuse(word):
        raise AssertionError(word)

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


@pytest.fixture
def file(tmp_path):
    return write_config(tmp_path / "run.toml", iterations=40, observe_every=10)


@pytest.fixture
def start(tmp_path):
    with commands(tmp_path) as start:
        yield start


def quadratic(**settings):
    problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    return Setup(proxdasa.ProxDASA(gamma=0.1, alpha=schedules.constant(0.1)), problem, networks.ring(3), **settings)


def row(trial=0, k=0, **measures):
    return {"trial": trial, "k": k, **measures}


# for people


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when told."""
    now = [100.0]
    monkeypatch.setattr(progress_display.time, "monotonic", lambda: now[0])
    return now


def test_time_left_is_judged_from_where_a_run_went_on(clock):
    pace = progress_display.Pace()
    assert pace.left is None
    pace.update(500, 1_000)  # resumed
    assert pace.left is None
    clock[0] += 10
    pace.update(510, 1_000)
    assert pace.left == 490.0
    clock[0] += 40  # and nothing is heard
    assert pace.left == 450.0
    clock[0] += 4_000
    assert pace.left == 0.0
    pace.update(1_000, 1_000)
    assert pace.left == 0.0


MEASURES = {"loss": 0.01234, "stationarity": 1.234e-05, "consensus": 3.123e-08}


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (100, "2/2 prox-dasa-gt ━━╸         2500/10000 -:--:-- loss 0.012 ‖G‖² 1.2e-05 consensus 3.1e-08"),
        (80, "2/2 prox-dasa-gt ━━╸         2500/10000 -:--:-- loss 0.012 ‖G‖² 1.2e-05 consens…"),
        (60, "2/2 prox-dasa-gt ━━╸         2500/10000 -:--:-- loss 0.012 …"),
    ],
)
def test_a_line_is_no_wider_than_the_terminal(width, shown, monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(progress_display, "err", screen)
    with progress_display.progress(["prox-dasa", "prox-dasa-gt"]) as announce:
        update = announce("prox-dasa-gt", quadratic(iterations=10_000))
        update(0, 10_000, [row(**MEASURES)])
        update(2_500, 10_000, ())
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.file.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, drawn)) <= width
    assert shown in drawn


def test_without_a_terminal_a_line_now_and_then(monkeypatch, capsys, clock):
    with progress_display.progress() as announce:
        update = announce("Prox-DASA", quadratic(iterations=100))
        for k in range(0, 101, 5):
            update(k, 100, [row(k=k, **MEASURES)])
            clock[0] += 5
    told = capsys.readouterr().err.splitlines()
    measures = "loss 0.012 ‖G‖² 1.2e-05 consensus 3.1e-08"
    assert told == [
        f"Prox-DASA: 35 of 100 iterations, {measures}, 0:01:05 left",
        f"Prox-DASA: 70 of 100 iterations, {measures}, 0:00:30 left",
        f"Prox-DASA: 100 of 100 iterations, {measures}",
    ]


def test_quiet_says_nothing_but_warnings_and_errors(tmp_path):
    file = write_config(tmp_path / "run.toml", iterations=10, more="", gamma=0.01)
    file.write_text(file.read_text().replace("alpha = 0.05", "alpha = 0.5"))
    assert NOTE in call("run", file, "-o", tmp_path / "loud").stderr
    result = call("run", file, "-o", tmp_path / "r", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert proxdasa.load(tmp_path / "r").iterations == 10
    again = call("run", file, "-o", tmp_path / "r", "-q")
    assert (again.exit_code, again.stdout) == (2, "")
    assert again.stderr.startswith("error: ")
    wild = write_config(tmp_path / "wild.toml", gamma=1e30)
    diverged = call("run", wild, "-o", tmp_path / "wild", "--quiet")
    assert (diverged.exit_code, diverged.stdout) == (4, "")
    lines = diverged.stderr.splitlines()
    assert lines
    assert all(line.startswith("warning: trial ") for line in lines)
    assert "results: " in call("run", file, "-o", tmp_path / "r2").stdout, "the next command speaks again"


# for machines


def test_json_tells_what_the_records_hold(file, tmp_path):
    result = call("run", file, "-o", tmp_path / "r", "--json")
    assert result.exit_code == 0
    begin, *seen, end = parsed(result.stdout)
    saved = proxdasa.load(tmp_path / "r")
    assert begin == {
        "event": "begin", "run": "Prox-DASA-GT", "output": str(tmp_path / "r"), "config": saved.config,
    }  # fmt: skip
    assert [line["k"] for line in seen] == [0, 10, 20, 30, 40]
    for line in seen:
        rows = [row for row in saved.records if row["k"] == line["k"]]
        assert {"event": "observation", "run": "Prox-DASA-GT", "iterations": 40, "trials": 2}.items() <= line.items()
        assert mean_row(rows).items() <= line.items()
    assert seen[0]["seconds_left"] is None
    assert seen[1]["seconds_left"] is not None
    assert seen[-1]["seconds_left"] == 0
    told = {"event": "end", "run": "Prox-DASA-GT", "output": str(tmp_path / "r"), "stopped": None, "diverged": []}
    assert end == {**told, "iterations": 40, "made": 40, **mean_row(saved.last)}
    assert not [line for line in result.stderr.splitlines() if not line.startswith(NOTE)]


def test_json_of_a_run_that_diverges(tmp_path):
    file = write_config(tmp_path / "run.toml", gamma=1e30)
    result = call("run", file, "-o", tmp_path / "r", "--json", "--quiet")
    assert result.exit_code == 4
    begin, *_, end = parsed(result.stdout)
    assert (begin["event"], end["event"], end["stopped"], end["diverged"]) == ("begin", "end", "diverged", [0, 1])
    assert result.stderr.startswith("warning: trial 0 diverged")


def test_json_has_null_for_what_is_no_number(monkeypatch, capsys):
    monkeypatch.setattr(progress_display, "audience", progress_display.Audience(json=True))
    with progress_display.progress() as announce:
        announce("run", quadratic())(5, 10, [row(k=5, loss=float("nan"), merit=float("inf"))])
    line = parsed(capsys.readouterr().out)[1]
    assert (line["loss"], line["merit"]) == (None, None)


def test_an_error_is_no_line_of_json(file, tmp_path):
    result = call("run", file, "-o", file, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")


def test_json_of_a_series(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "speedup", lambda *_: {name: quadratic(iterations=3) for name in ("a", "b")})
    monkeypatch.setattr(cli.reproduce_commands.reports, "draw", lambda _, path: path)
    words = ("reproduce", "speedup", "-o", tmp_path, "--json")
    lines = parsed(call(*words).stdout)
    runs = [(line["run"], line["event"]) for line in lines]
    one = ["begin", *["observation"] * 4, "end"]
    assert runs == [("a", event) for event in one] + [("b", event) for event in one]
    assert {line["output"] for line in lines if line["event"] != "observation"} == {
        str(tmp_path / name) for name in "ab"
    }
    assert [line["event"] for line in parsed(call(*words).stdout)] == ["end", "end"], "those that are reused"
    quiet = call(*words[:-1], "--overwrite", "--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")


@LINUX
def test_json_of_several_processes_and_of_a_run_that_goes_on(start, tmp_path):
    file, folder = write_config(tmp_path / "run.toml", iterations=10**6, observe_every=5), tmp_path / "r"
    options = ("--json", "--tensorboard", "--processes", 2)
    command = start("proxdasa", "run", file, "-o", folder, "--checkpoint-every", 5, *options)
    command.until(lambda: newest(folder) >= 10)
    os.kill(command.pid, signal.SIGTERM)
    text = command.ended(130)
    begin, *seen, end = parsed("\n".join(line for line in text.splitlines() if line.startswith("{")))
    assert (begin["event"], begin["output"], end["event"], end["stopped"]) == (
        "begin", str(folder), "end", "interrupted",
    )  # fmt: skip
    assert [line["k"] for line in seen] == list(range(0, end["k"] + 1, 5)), "one process tells it"
    assert end["k"] <= end["made"] < end["iterations"] == 10**6

    again = start("proxdasa", "resume", folder, *options)
    more = end["k"] + 10
    again.until(lambda: newest(folder) >= more)
    os.kill(again.pid, signal.SIGTERM)
    _, *seen, _ = parsed("\n".join(line for line in again.ended(130).splitlines() if line.startswith("{")))
    assert seen[0]["k"] == end["k"] + 5
    ks = steps(folder / "tensorboard")["loss"]
    assert ks == list(range(0, seen[-1]["k"] + 1, 5)), "and curves have each observation once"


# TensorBoard


def steps(folder):
    """The iterations of each curve in a folder."""
    events = _events(folder)
    return {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def curve(folder, tag):
    return {event.step: event.value for event in _events(folder).Scalars(tag)}


def _events(folder):
    # Not above, since processes that are forked off import this file too.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


@pytest.fixture
def seconds(monkeypatch):
    """Files are read in the order of their names, which begin with the second; here no two are of the same."""
    monkeypatch.setattr(time, "time", itertools.count(2e9).__next__)


def test_tensorboard_has_the_means_and_each_trial(file, tmp_path):
    assert call("run", file, "-o", tmp_path / "r", "--tensorboard").exit_code == 0
    board, saved = tmp_path / "r" / "tensorboard", proxdasa.load(tmp_path / "r")
    assert set(steps(board)) == set(saved.records[0]) - {"trial", "k"}
    for folder, chosen in (
        (board, mean_row),
        (board / "trial-0", lambda rows: rows[0]),
        (board / "trial-1", lambda rows: rows[1]),
    ):
        expected = {k: chosen(list(rows))["loss"] for k, rows in itertools.groupby(saved.records, lambda row: row["k"])}
        assert curve(folder, "loss") == pytest.approx(expected)
    assert call("run", file, "-o", tmp_path / "r", "--overwrite").exit_code == 0
    assert not board.exists(), "the curves of results that are gone"


def test_tensorboard_in_python_goes_on_without_doubles(tmp_path, seconds):
    setup = quadratic(iterations=40, observe_every=10, trials=1)

    with TensorBoard(tmp_path) as board:  # killed behind its last checkpoint
        for k in (0, 10, 20, 30):
            board(k, 40, [row(k=k, loss=-1.0)])
            assert steps(tmp_path)["loss"][-1] == k, "on disk at once"
    with TensorBoard(tmp_path) as board:
        setup.run(lambda k, *rest: board(k, *rest) if k >= 20 else None)
    assert not list(tmp_path.glob("trial-*")), "one trial is its own mean"
    losses = curve(tmp_path, "loss")
    assert steps(tmp_path)["loss"] == [0, 10, 20, 30, 40]
    assert losses[10] == -1.0
    assert -1.0 not in (losses[20], losses[30])


def test_tensorboard_of_many_trials(tmp_path, seconds):
    with TensorBoard(tmp_path) as board:
        board(0, 1, [row(trial, loss=1.0) for trial in range(30)])
        board(1, 1, ())
    assert len(list(tmp_path.glob("trial-*"))) == 10
    with TensorBoard(tmp_path) as board:
        board(1, 1, [row(3, 1, loss=1.0)])
    assert steps(tmp_path / "trial-3") == {"loss": [0, 1]}, "the others have diverged"


def test_tensorboard_that_is_not_installed_is_an_error_before_anything_runs(file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    for more in ((), ("--processes", 2)):
        result = call("run", file, "-o", tmp_path / "r", "--tensorboard", *more)
        assert result.exit_code == 2
        assert result.stderr.endswith(": pip install 'proxdasa[tensorboard]'\n")
        assert not (tmp_path / "r").exists()


# nobody listens


@pytest.fixture
def forked():
    """Starts commands in processes whose output goes to a file of ours, which is then theirs alone."""
    started = []

    def forked(words, stream):
        started.append(FORKS.Process(target=_become, args=(words, FORKS.reducer.DupFd(stream))))
        started[-1].start()
        os.close(stream)
        return started[-1]

    yield forked
    for process in started:
        process.kill()
        process.join()


def test_a_listener_that_fails_does_not_silence_another():
    told = []

    def fail(k, iterations, rows):
        raise OSError("No space left on device")

    with pytest.warns(ProgressWarning, match="No space left"):
        quadratic(iterations=30, observe_every=10).loop().run([fail, lambda k, _iterations, rows: told.append(k)])
    assert {0, 10, 20, 30} <= set(told)


def test_a_callback_that_fails_does_not_cost_the_run():
    told = []

    def progress(k, iterations, rows):
        told.append(k)
        if k == 20:
            raise KeyError("loss")

    words = (
        r"the progress callback failed after 20 iterations: KeyError: 'loss' \(.*test_watching.py, line \d+\); the run"
    )
    with pytest.warns(ProgressWarning, match=words):
        result = quadratic(iterations=50, observe_every=10).run(progress)
    assert (result.iterations, result.stopped, result.records[-1]["k"]) == (50, None, 50)
    assert told[-1] == 20


def test_a_callback_that_changes_its_rows_does_not_change_the_records():
    told = []

    def change(k, iterations, rows):
        for row in rows:
            row["loss"] = row.pop("trial")

    def listen(k, iterations, rows):
        told.extend(rows)

    result = quadratic(iterations=20, observe_every=10).run([change, listen])
    assert result.records == told
    assert all("trial" in row for row in told)


@pytest.mark.parametrize("progress", [3, "x", [print, 3]])
def test_what_is_no_callback_is_refused(progress):
    with pytest.raises(TypeError, match="progress must be a function of k, iterations and rows"):
        quadratic(iterations=20).run(progress)


def test_a_callback_can_still_interrupt():
    def progress(k, iterations, rows):
        if k == 20:
            raise KeyboardInterrupt

    result = quadratic(iterations=50, observe_every=10).run(progress)
    assert (result.iterations, result.stopped) == (20, "interrupted")


@LINUX
@pytest.mark.parametrize("words", [("--json",), ("--json", "--processes", "2"), ()])
def test_a_pipe_that_nobody_reads_does_not_cost_the_run(words, forked, file, tmp_path):
    here, there = os.pipe()
    os.close(here)
    child = forked(["run", str(file), "-o", str(tmp_path / "r"), *words], there)
    assert until(lambda: (child.exitcode,) if child.exitcode is not None else ()) == (0,)
    assert proxdasa.load(tmp_path / "r").iterations == 40


@LINUX
def test_a_terminal_that_is_closed_leaves_a_checkpoint(forked, tmp_path):
    file = write_config(tmp_path / "run.toml", iterations=10**8, observe_every=1_000)
    here, there = os.openpty()
    child = forked(["run", str(file), "-o", str(tmp_path / "r")], there)
    drawn = []
    until(lambda: drawn.append(os.read(here, 65_536)) or b"loss " in b"".join(drawn))
    os.close(here)  # every write fails from now on, and the run is told to end
    os.kill(child.pid, signal.SIGHUP)
    assert until(lambda: (child.exitcode,) if child.exitcode is not None else ()) == (130,)
    assert proxdasa.load(tmp_path / "r").stopped == "interrupted"
    assert newest(tmp_path / "r") > 0


def test_signs_that_a_terminal_does_not_have():
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    cli.terminal.Screen(file=plain).print("‖G‖²")
    assert plain.buffer.getvalue() == b"\\u2016G\\u2016\\xb2\n"


def test_other_errors_of_writing_are_errors():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        cli.terminal.Screen(file=Full()).print("something")


def _become(words, stream):
    handle = stream.detach()
    for number in (1, 2):
        os.dup2(handle, number)
    os.close(handle)
    cli.err.is_interactive = os.isatty(2)  # it was made before the fork
    launcher.subprocess = _Forking
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may have been started by nohup
    os._exit(run_command(["proxdasa", *words], {**_environment(), "TERM": "xterm"}))


# whether processes are worth it


def spent(seconds, computation):
    return [{"trial": 0, "seconds": seconds, "computation": computation}]


@pytest.mark.parametrize(
    ("computation", "told"),
    [
        (1.0, "these 4 processes compute for 10% of the time and spend the rest on messages; one process"),
        (2.4, "compute for 24% of the time"),
        (2.6, ""),
        (9.0, ""),
    ],
)
def test_a_run_says_once_if_one_process_would_be_faster(computation, told, capsys):
    worth = ProcessAdvice(4)
    worth(0, 100, spent(7.0, 6.5))  # of an earlier start
    worth(1, 100, ())
    worth(10, 100, spent(8.0, 6.5))
    assert capsys.readouterr().err == "", "too early to judge"
    worth(50, 100, spent(17.0, 6.5 + computation))
    said = capsys.readouterr().err
    assert told in said
    assert bool(said) == bool(told)
    worth(100, 100, spent(1000.0, 7.0))
    assert capsys.readouterr().err == ""


@LINUX
def test_processes_that_hardly_compute_are_told_of_while_they_run(tmp_path):
    rounds = '[mixing]\nname = "Gossip"\nrounds = 50'  # so many that messages take the time on a busy machine too
    file = write_config(tmp_path / "run.toml", iterations=10**8, observe_every=10, more=rounds)
    soon = trouble(tmp_path / "soon", "from proxdasa.cli import process_advice\nprocess_advice.ENOUGH = 0.6")
    with commands(tmp_path) as start:
        command = start("proxdasa", "run", file, "-o", tmp_path / "results", "--processes", 3, env=soon)
        note = re.compile(r"^note: these 3 processes .* one process \(without --processes\) would probably be", re.M)
        command.until(lambda: note.search(command.output.read_text()))
