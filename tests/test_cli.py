"""The command line: what it prints, what it leaves on disk, and with which exit code."""

import dataclasses
import io
import json
import os
import re
import shutil
import signal
import sys
import warnings
from importlib.metadata import version

import pytest
from rich.console import Console
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, configs, experiments, reports
from proxdasa.configs.objects import ROOMS, VALUES
from proxdasa.runs import records
from proxdasa.runs.saving import Saving
from proxdasa.runs.setup import Setup
from tests.processes import commands, newest

TOML = """
iterations = {iterations}
trials = {trials}
observe_every = {observe_every}
algorithm = {{ name = "ProxDASA", gamma = {gamma}, alpha = {alpha} }}
problem = {{ name = "PhaseRetrieval", agents = 3, dim = 10, evaluation = "population" }}
network = "ring"
{more}
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Room for whole tables, whatever terminal the tests run in."""
    monkeypatch.setattr(cli.out, "width", 160)


def call(*arguments):
    """The command's outcome; warnings are shown as `main` shows them."""
    with warnings.catch_warnings(action="default"):
        warnings.showwarning = cli.show_warning
        return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def configured(path, **values):
    """A configuration file with some values replaced."""
    defaults = {"iterations": 20, "trials": 2, "observe_every": 5, "gamma": 0.01, "alpha": 0.05, "more": ""}
    path.write_text(TOML.format(**defaults | values))
    return path


@pytest.fixture
def write(tmp_path):
    """Writes a configuration file with some values replaced."""

    return lambda name="run.toml", **values: configured(tmp_path / name, **values)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A results folder; it is copied for each test."""
    folder = tmp_path_factory.mktemp("finished")
    assert call("run", configured(folder / "run.toml"), "-o", folder / "results").exit_code == 0
    return folder / "results"


@pytest.fixture
def results(finished, tmp_path):
    """A results folder, named so that printing it as markup would lose something."""
    return shutil.copytree(finished, tmp_path / "[red]results")


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take longer than all else; most tests look at the rest."""
    monkeypatch.setattr(reports, "draw", lambda _, path, *_more: path)


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("records.jsonl")}


# help and list


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], ["run", "report", "list", "reproduce", "data"]),
        (["run"], ["FILE|file", "--output", "--overwrite"]),
        (["report"], ["FOLDER|folder", "--target", "--axis", "--html"]),
        (["plan"], ["--compare", "--agents", "--lipschitz", "--output", "a line i j or i j weight", "ring -n 16"]),
        (["list"], ["parameters and defaults"]),
        (["data"], ["fetch", "list"]),
        (["data", "fetch"], ["NAME|name", "a9a or mnist", "--folder"]),
        (["data", "list"], ["--folder", "missing"]),
        (["reproduce"], ["speedup"]),
        (["reproduce", "speedup"], ["--output", "--agents", "--iterations", "--trials", "--seed", "5,10,20,40"]),
    ],
)
def test_help_of_every_command(command, words):
    result = CliRunner().invoke(cli.app, [*command, "--help"], terminal_width=160, color=False)
    assert result.exit_code == 0
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", result.stdout).split())
    assert all(re.search(word, text) for word in words), text


def test_version():
    result = call("--version")
    assert result.exit_code == 0
    assert result.stdout == f"proxdasa {version('proxdasa')}\n"


def test_progress_of_a_series_shows_loss_and_stationarity_in_80_columns(monkeypatch):
    """The longest name of the paper's figure, and numbers as long as they come."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(cli.progress_display, "err", screen)
    setups = experiments.speedup([5, 10, 20, 40], 10_000)
    name, setup = list(setups.items())[-1]
    with cli.progress_display.progress(list(setups)) as announce:
        update = announce(name, setup)
        measures = {"loss": 0.01234, "stationarity": 1.234e-05, "consensus": 3.123e-08}
        update(2_500, 10_000, [{"trial": 0, "k": 2_500, **measures}])
    last = screen.file.getvalue().rpartition("8/8 prox-dasa-gt-n040 ")[2]
    assert re.match(r"━\S* +2500/10000 -:--:-- loss 0.012 ‖G‖² 1.2e-05", last), last


@pytest.mark.parametrize(
    "arguments", [["ron"], ["run"], ["run", "file.toml"], ["report"], ["reproduce", "speedup", "-x"]]
)
def test_wrong_usage_is_bad_input(arguments):
    result = call(*arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr


PLANS = (["plan", "ring", "-n", 16, "-d", 8066], ["plan", "--compare", "ring,torus", "-n", 9])
MOST_AGENTS = "proxdasa.plans.side_by_side.MOST_AGENTS"
"""With more agents than this, a plan leaves out the fastest weights, which take a while and look like the others."""


@pytest.fixture(scope="module")
def planned():
    """What plans print in a wide terminal, for all widths that are compared with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.out, "width", 160)
        patch.setattr(MOST_AGENTS, 1)
        return [call(*words).stdout for words in PLANS]


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_narrow_terminals_cut_no_number_of_a_table(width, results, planned, monkeypatch, undrawn):
    tables = [*planned, call("report", results).stdout]
    monkeypatch.setattr(cli.out, "width", width)
    monkeypatch.setattr(MOST_AGENTS, 1)
    for words, table in zip((*PLANS, ["report", results]), tables, strict=True):
        numbers = set(re.findall(r"[0-9][0-9.,]+(?:e[+-][0-9]+)?", table))
        assert len(numbers) > 5
        narrow = call(*words).stdout
        assert "…" not in narrow
        assert {number for number in numbers if number not in narrow} == set()


def test_list_shows_everything_that_a_file_can_name():
    result = call("list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    for kind, room in ROOMS.items():
        assert kind in [line.strip() for line in lines]
        for thing in room:
            assert any(line.startswith(f"{thing.__name__} ") for line in lines), thing
    for kind, values in VALUES.items():
        shown = result.stdout.partition(f"\n{kind}\n")[2].partition("\n\n")[0]
        assert all(name in shown for name in values), kind
    for words in (
        "agents, dim=100, sparsity=5, noise=0.1, evaluation=10000, seed=0",
        "agents, probability, seed=0, weights=metropolis",
        "gamma, alpha=horizon",
        "rounds='auto'",
        "link=square",
        "merit(lipschitz, optimum=0.0)",
        "algorithm, problem, network; optional: regularizer, mixing, iterations=1000, trials=1, seed=0,",
    ):
        assert words in result.stdout


# run


def test_run_saves_what_the_library_computes(write, results):
    saved, computed = proxdasa.load(results), configs.read(write()).run()
    assert [row["loss"] for row in saved.records] == [row["loss"] for row in computed.records]
    assert saved.config == computed.config
    assert saved.stopped is None


def test_run_tells_what_it_did(write, tmp_path):
    folder = tmp_path / "deep" / "[red]results"
    result = call("run", write(), "--output", folder)
    assert result.exit_code == 0
    assert "after 20 iterations, 2 trials" in result.stdout
    last = proxdasa.load(folder).records[-2:]
    row = next(line for line in result.stdout.splitlines() if "stationarity" in line)
    mean, smallest, largest = map(float, re.findall(r"\d\S*", row))
    values = sorted(entry["stationarity"] for entry in last)
    assert (smallest, largest) == pytest.approx(values, rel=1e-3)
    assert mean == pytest.approx(sum(values) / 2, rel=1e-3)
    assert f"results: {folder}   (picture and table: proxdasa report {folder})" in result.stdout
    # Where there is no terminal, progress is one line per run.
    assert re.fullmatch(r"Prox-DASA: 20 of 20 iterations, loss \S+ ‖G‖² \S+ consensus \S+\n", result.stderr)


def test_run_with_other_metrics(write, tmp_path):
    for more in ('metrics = ["density"]', "metrics = []"):
        result = call("run", write(more=more), "-o", tmp_path / "r", "--overwrite")
        assert result.exit_code == 0, result.exception
        assert "samples" in result.stdout


def test_earlier_results_are_kept_unless_told(write, results):
    before = times(results)
    result = call("run", write(iterations=5), "-o", results)
    assert result.exit_code == 2
    assert result.stderr == f"error: {results} holds results already; choose another --output or add --overwrite\n"
    assert times(results) == before
    assert call("run", write(iterations=5), "-o", results, "--overwrite").exit_code == 0
    assert proxdasa.load(results).iterations == 5


@pytest.mark.parametrize("command", [["run"], ["tune", "--grid", "gamma=0.01"], ["reproduce", "speedup"]], ids=" ".join)
def test_a_folder_that_another_run_is_writing_to_is_refused(command, write, tmp_path, monkeypatch):
    monkeypatch.setattr(Setup, "loop", lambda *_: pytest.fail("it has begun"))
    file = [] if command[0] == "reproduce" else [write()]
    with records.claim(tmp_path / "results"):
        result = call(*command, *file, "-o", tmp_path / "results", "--overwrite")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(f"error: another run is writing to {tmp_path / 'results'}; ")


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["tune", "--grid", "gamma=0.01"],
        ["report"],
        ["plan"],
        ["reproduce", "speedup"],
        ["reproduce", "topology"],
    ],
    ids=" ".join,
)
def test_an_output_without_a_name_is_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Setup, "loop", lambda *_: pytest.fail("it has begun"))
    result = call(*command, *[] if command[0] == "reproduce" else ["run.toml"], "-o", "")
    assert result.exit_code == 2
    assert "a folder needs a name, such as ." in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_a_folder(write, tmp_path):
    file = write()
    result = call("run", file, "-o", file)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert str(file) in result.stderr


def test_results_that_cannot_be_written_are_an_error_with_what_to_do(write, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("proxdasa.disk.put", full)
    result = call("run", write(), "-o", tmp_path / "r")
    assert result.exit_code == 5
    *_, error, advice = result.stderr.splitlines()
    assert error.startswith(f"error: {tmp_path / 'r'}: the results could not be written: No space left on device; ")
    assert advice == "there is no checkpoint to continue from; --checkpoint-every writes some"


def test_a_saved_configuration_runs_again(results, tmp_path):
    assert call("run", results / "config.json", "-o", tmp_path / "again").exit_code == 0
    first, second = (proxdasa.load(folder) for folder in (results, tmp_path / "again"))
    assert first.config == second.config
    assert (first.x == second.x).all()


def test_when_every_trial_diverges_the_exit_code_says_so_and_the_records_are_kept(write, tmp_path):
    result = call("run", write(gamma=1e30), "-o", tmp_path / "r")
    assert result.exit_code == 4
    said = [line for line in result.stderr.splitlines() if line.startswith("warning: trial ")]
    saved = proxdasa.load(tmp_path / "r")
    assert saved.stopped == "diverged"
    assert sorted(saved.diverged) == [0, 1]
    for trial, where in saved.diverged.items():
        start = f"warning: trial {trial} diverged: agent {where.agent} met the first non-finite value in iteration "
        assert any(line.startswith(f"{start}{where.iteration};") for line in said), said
    assert saved.records
    assert "Traceback" not in result.stderr
    assert "DivergenceWarning" not in result.stderr


def test_when_one_trial_diverges_the_others_go_on(write, tmp_path, undrawn):
    result = call("run", write(gamma=[1e30, 0.01]), "-o", tmp_path / "r")
    assert result.exit_code == 0
    assert "warning: trial 0 diverged: agent " in result.stderr
    assert "after 20 iterations, 1 trial\n" in result.stdout
    saved = proxdasa.load(tmp_path / "r")
    assert (saved.stopped, list(saved.diverged)) == (None, [0])
    assert [row["k"] for row in saved.records if row["trial"] == 1] == [0, 5, 10, 15, 20]
    told = call("report", tmp_path / "r")
    assert told.exit_code == 0
    assert "Prox-DASA, gamma = 1e+30: 1 of 1 trials diverged; the means are over what was recorded" in told.stdout
    assert "gamma = 0.01:" not in told.stdout


def test_ctrl_c_in_a_terminal(write, tmp_path, undrawn):
    """A real signal to a real process: it saves what it has, says how far it came, and ends."""
    file, folder = write(iterations=10**8, observe_every=10, more="compile = false"), tmp_path / "results"
    with commands(tmp_path) as start:
        command = start("proxdasa", "run", file, "--output", folder, "--checkpoint-every", "100", "--quiet")
        command.until(lambda: newest(folder) > 0)
        os.kill(command.pid, signal.SIGINT)
        said = command.ended(130)
    saved = proxdasa.load(folder)
    assert saved.stopped == "interrupted"
    assert 0 < saved.iterations < 10**8
    assert said == (
        f"interrupted after {saved.iterations} iterations; the records so far are saved\n"
        f"proxdasa resume {folder} continues the run\n"
    )
    assert saved.iterations - 10 <= saved.records[-1]["k"] <= saved.iterations
    report = call("report", folder)
    assert report.exit_code == 0
    assert f"interrupted after {saved.iterations} of 100000000 iterations" in report.stdout


def test_main_shows_warnings_in_one_line(results, monkeypatch, capsys, undrawn):
    (results / "records.jsonl").write_text((results / "records.jsonl").read_text()[:-5])
    monkeypatch.setattr(sys, "argv", ["proxdasa", "report", str(results)])
    with warnings.catch_warnings(action="default"), pytest.raises(SystemExit) as ending:
        cli.main()
    assert ending.value.code == 0
    assert (
        capsys.readouterr().err
        == f"warning: {results / 'records.jsonl'}: the last line is cut short and was left out\n"
    )


# report


def test_report_prints_a_table_and_writes_figure_and_table(write, tmp_path):
    results = tmp_path / "[red]results"
    assert call("run", write(more='metrics = ["loss"]'), "-o", results).exit_code == 0  # one panel is drawn sooner
    result = call("report", results)
    assert result.exit_code == 0
    assert f"figure: {results / 'report.png'}\n" in result.stdout
    assert f"table:  {results / 'report.csv'}\n" in result.stdout
    assert (results / "report.png").read_bytes().startswith(b"\x89PNG")
    assert (results / "report.csv").read_text().count("\n") == 2
    assert re.search(r"Prox-DASA\s*│ \[red\]results\s*│", result.stdout)


@pytest.mark.usefixtures("drawn")
def test_report_of_several_runs_tells_them_apart(write, tmp_path):
    for gamma in (0.01, 0.02):
        call("run", write(gamma=gamma), "-o", tmp_path / "all" / f"[{gamma}]")
    result = call("report", tmp_path / "all")
    assert result.exit_code == 0
    assert re.search(r"│ gamma = 0.01 │.*\n.*│ gamma = 0.02 │", result.stdout)
    assert (tmp_path / "all" / "report.png").exists()


def test_a_page_has_all_axes(results):
    answer = call("report", results, "--html", "--axis", "bytes")
    assert answer.exit_code == 2
    assert "--axis is for the figure" in answer.output


def test_report_takes_the_target_it_is_given(results, undrawn):
    assert "iterations k to a loss of 1.5," in call("report", results, "--target", 1.5).stdout
    nowhere = call("report", results, "--target", "nan")
    assert (nowhere.exit_code, "--target is a loss to reach, a finite number; got nan" in nowhere.stderr) == (2, True)
    unreached = call("report", results, "--target", -1)
    assert unreached.exit_code == 0
    assert "not by all" in unreached.stdout


@pytest.mark.usefixtures("drawn")
def test_report_of_other_metrics(write, tmp_path):
    call("run", write(more='metrics = ["loss"]'), "-o", tmp_path / "a")
    call("run", write(more='metrics = ["density"]'), "-o", tmp_path / "b")
    result = call("report", tmp_path / "a")
    assert result.exit_code == 0
    assert "not recorded" in result.stdout
    nothing = call("report", tmp_path / "b")
    assert nothing.exit_code == 2
    assert nothing.stderr == "error: nothing to draw: the records hold none of loss, stationarity, consensus\n"
    assert not (tmp_path / "b" / "report.csv").exists()


def test_report_of_an_interrupted_run_without_records(results):
    (results / "records.jsonl").write_text("")
    result = call("report", results)
    assert result.exit_code == 2
    assert "records.jsonl is empty: the run ended before its first observation" in result.stderr


def test_report_where_nothing_is(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder, words in (("empty", "there are no results in"), ("nowhere", "there is no folder")):
        result = call("report", tmp_path / folder)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith(f"error: {words} {tmp_path / folder}")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.usefixtures("drawn")
def test_report_of_damaged_results(results):
    records = results / "records.jsonl"
    whole = records.read_text()
    records.write_text(whole[:-5])
    cut = call("report", results)
    assert cut.exit_code == 0
    assert cut.stderr == f"warning: {records}: the last line is cut short and was left out\n"
    records.write_text("{\n" + whole)
    broken = call("report", results)
    assert broken.exit_code == 2
    assert broken.stderr == f"error: {records}, line 1: not a JSON object: '{{'\n"
    (results / "config.json").write_text('{"facts": 1')
    assert re.match(r"error: .*config\.json: not valid JSON: ", call("report", results).stderr)
    (results / "config.json").unlink()
    assert call("report", results).stderr == f"error: {results} is not a results folder: it has no config.json\n"


# reproduce

SPEEDUP = ("reproduce", "speedup", "--agents", "1,2,3", "--iterations", 6, "--trials", 2)


@pytest.fixture
def quick(monkeypatch):
    """The experiment with few evaluation points and checkpoints, and how often it is run."""
    runs, run = [], Setup.run
    speedup = experiments.speedup

    def small(*arguments):
        setups = speedup(*arguments)
        assert all(setup.problem.evaluation == 10_000 for setup in setups.values())
        return {
            name: Setup(
                setup.algorithm,
                proxdasa.problems.PhaseRetrieval(setup.problem.agents, dim=10, evaluation=50),
                setup.network,
                **{key: getattr(setup, key) for key in ("regularizer", "mixing", "iterations", "trials", "seed")},
            )
            for name, setup in setups.items()
        }

    def counted(setup, progress=None, saving=None):
        runs.append(setup)
        return run(setup, progress, saving)

    monkeypatch.setattr(experiments, "speedup", small)
    monkeypatch.setattr(Setup, "run", counted)
    monkeypatch.setattr("proxdasa.experiments.series.Saving", lambda place, every: Saving(place, 10 * every))
    return runs


NAMES = [f"{method}-n00{n}" for method in ("prox-dasa", "prox-dasa-gt") for n in (1, 2, 3)]


def test_reproduce_speedup_as_it_is(tmp_path, undrawn):
    result = call("reproduce", "speedup", "--agents", "1,2", "--iterations", 2, "--trials", 1, "-o", tmp_path)
    assert result.exit_code == 0
    assert "sparse phase retrieval, d = 100, K = 2, 1 trials, rings of 1,2 agents" in result.stdout
    config = json.loads((tmp_path / "prox-dasa-gt-n002" / "config.json").read_text())
    assert config["facts"]["title"] == "Prox-DASA-GT"
    assert config["algorithm"] == {"name": "ProxDASAGT", "gamma": 0.01, "alpha": {"name": "horizon", "scale": 1.0}}
    assert config["problem"]["evaluation"] == 10_000
    assert config["regularizer"] == {"name": "L1", "weight": 0.01}
    assert config["mixing"] == {"name": "Gossip", "rounds": "auto"}


def test_reproduce_speedup_makes_table_slopes_and_figure_and_runs_nothing_twice(quick, tmp_path, monkeypatch, drawn):
    result = call(*SPEEDUP, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    measured = r": 6 of 6 iterations, loss \S+ ‖G‖² \S+ consensus \S+$"
    assert [re.sub(measured, "", line) for line in result.stderr.splitlines()] == [
        f"run {i} of 6: {name}" for i, name in enumerate(NAMES, start=1)
    ]
    assert len(quick) == 6
    for words in (
        "│ n = 1 │",
        "│ n = 3 │",
        "Prox-DASA-GT: iterations to target",
        "final ‖G‖² ∝ n^",
        "both ∝ n^-0.5; equivalently, n times the agents reach the same ‖G‖² with K/n iterations",
    ):
        assert words in result.stdout
    assert f"figure: {tmp_path / 'out' / 'figure.png'}" in result.stdout
    assert (tmp_path / "out" / "figure.png").exists()
    assert [len(ax.lines) for ax in drawn[0].axes] == [3] * 6, "sizes; methods and measures"
    before = times(tmp_path / "out")
    assert sorted(path.parent.name for path in before) == sorted(NAMES)

    monkeypatch.setattr(reports, "draw", lambda _, path, *_more: path)  # once is enough
    again = call(*SPEEDUP, "-o", tmp_path / "out")
    assert again.exit_code == 0
    assert again.stdout == result.stdout
    assert again.stderr == "6 finished runs reused; --overwrite runs them again\n"
    assert len(quick) == 6, "nothing was run"
    assert times(tmp_path / "out") == before, "and nothing was written"

    other = call(*SPEEDUP[:-1], 1, "-o", tmp_path / "out")
    assert other.exit_code == 2
    assert other.stderr == (
        f"error: {tmp_path / 'out' / 'prox-dasa-n001'} holds results of other settings; "
        "choose another --output or add --overwrite\n"
    )
    assert times(tmp_path / "out") == before, "an hour's results are not lost to a typing error"
    other = call(*SPEEDUP[:-1], 1, "-o", tmp_path / "out", "--overwrite")
    assert other.exit_code == 0
    assert len(quick) == 12, "other settings are another experiment"
    other = call(*SPEEDUP[:-1], 1, "-o", tmp_path / "out", "--overwrite")
    assert len(quick) == 18, "equal settings are run again too: the code may have changed"
    assert "reused" not in other.stderr


def test_another_version_of_torch_is_no_other_setting(quick, tmp_path):
    setups = experiments.speedup([1], 3, 1, 0)
    said = []

    def series():
        return experiments.run_series(setups, tmp_path, lambda _name, _setup: None, say=said.append)

    names = list(series())
    path = tmp_path / names[0] / "config.json"
    config = json.loads(path.read_text())
    config["facts"] |= {"torch": "1.0", "proxdasa": "0.0.1"}
    path.write_text(json.dumps(config))
    assert series()[names[0]].config["facts"]["torch"] == "1.0"
    assert len(quick) == 2
    assert said == ["2 finished runs reused; --overwrite runs them again"]
    (tmp_path / names[1] / "config.json").unlink()
    series()
    assert said[1:] == ["1 finished run reused; --overwrite runs it again"]


@pytest.fixture
def interrupt(monkeypatch):
    """Ctrl-C when progress is shown for the nth time: seven times for each run of the series."""

    def at(count):
        means, told = cli.progress_display.mean_row, []

        def shown(rows):
            told.append(rows)
            if len(told) == count:
                raise KeyboardInterrupt
            return means(rows)

        monkeypatch.setattr(cli.progress_display, "mean_row", shown)

    return at


def test_an_interrupted_run_says_so_beside_its_results(write, tmp_path, interrupt):
    interrupt(3)
    result = call("run", write(), "-o", tmp_path / "r", "--checkpoint-every", 5)
    assert result.exit_code == 130
    assert result.stderr == (
        "interrupted after 10 iterations; the records so far are saved\n"
        f"proxdasa resume {tmp_path / 'r'} continues the run\n"
    )
    assert result.stdout.startswith("after 10 iterations, 2 trials\n")


def test_an_interrupted_series_goes_on(quick, tmp_path, interrupt, undrawn):
    interrupt(18)
    result = call(*SPEEDUP, "-o", tmp_path)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == (
        "interrupted: prox-dasa-n003 at iteration 3 of 6 (its records are saved); 2 of 6 runs are finished; "
        "the same command continues"
    )
    before = times(tmp_path)
    assert sorted(path.parent.name for path in before) == NAMES[:3]
    assert len(quick) == 3
    partial = proxdasa.load(tmp_path / NAMES[2])
    assert (partial.stopped, partial.iterations, partial.records[-1]["k"]) == ("interrupted", 3, 3)
    assert call("report", tmp_path).exit_code == 0

    other = call("reproduce", "speedup", "--agents", 3, "--iterations", 6, "--trials", 1, "-o", tmp_path)
    assert other.exit_code == 2, "an interrupted run is not lost to a typing error either"
    assert f"{NAMES[2]} holds results of other settings" in other.stderr

    interrupt(-1)
    again = call(*SPEEDUP, "-o", tmp_path)
    assert again.exit_code == 0
    assert again.stderr.startswith("2 finished runs reused; --overwrite runs them again\nrun 3 of 6: prox-dasa-n003: ")
    assert len(quick) == 3 + 4, "the interrupted run and those after it"
    after = times(tmp_path)
    assert sorted(path.parent.name for path in after) == sorted(NAMES)
    assert [path.parent.name for path in sorted(before) if after[path] == before[path]] == NAMES[:2]
    assert proxdasa.load(tmp_path / NAMES[2]).stopped is None


def test_an_interrupted_overwriting_leaves_nothing_old(quick, tmp_path, interrupt, undrawn):
    assert call(*SPEEDUP, "-o", tmp_path).exit_code == 0
    interrupt(11)
    result = call(*SPEEDUP, "-o", tmp_path, "--overwrite")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == (
        "interrupted: prox-dasa-n002 at iteration 3 of 6 (its records are saved); 1 of 6 runs are finished; "
        "the same command without --overwrite continues"
    )
    assert sorted(path.parent.name for path in times(tmp_path)) == NAMES[:2]
    interrupt(-1)
    assert call(*SPEEDUP, "-o", tmp_path).exit_code == 0
    assert len(quick) == 6 + 2 + 5


def test_a_run_interrupted_before_its_first_record_is_not_saved(quick, tmp_path, monkeypatch):
    run = Setup.run

    def at_once(setup, progress=None, saving=None):
        result = run(setup, progress, saving)
        return dataclasses.replace(result, records=[], iterations=0, stopped="interrupted")

    monkeypatch.setattr(Setup, "run", at_once)
    result = call(*SPEEDUP, "-o", tmp_path)
    assert result.exit_code == 130
    assert "prox-dasa-n001 at iteration 0 of 6 (it has no records); 0 of 6 runs are finished;" in result.stderr
    assert not times(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "records.jsonl", "final.safetensors"])
def test_a_damaged_run_of_a_series_is_run_again(quick, tmp_path, file):
    def series():
        return experiments.run_series(experiments.speedup([1, 2], 3, 1, 0), tmp_path, lambda _name, _setup: None)

    names = list(series())
    path = tmp_path / names[1] / file
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert list(series()) == names
    assert len(quick) == 5
    assert quick[4].config() == quick[1].config()
    assert len(path.read_bytes()) == pytest.approx(len(whole), abs=100)
    proxdasa.load(tmp_path / names[1])


def test_a_series_that_diverges_says_so(quick, tmp_path, monkeypatch, undrawn):
    small = experiments.speedup

    def wild(*arguments):
        setups = small(*arguments)
        name, setup = next(iter(setups.items()))
        return setups | {name: Setup(proxdasa.ProxDASA(1e30), setup.problem, setup.network, iterations=6, trials=2)}

    monkeypatch.setattr(experiments, "speedup", wild)
    result = call(*SPEEDUP, "-o", tmp_path)
    assert result.exit_code == 4
    assert "warning: trial 0 diverged: agent 0 " in result.stderr
    assert "2 of 2 trials diverged" in result.stdout


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--agents", "5,", "--agents takes numbers separated by commas, such as 5,10,20; got '5,'"),
        ("--agents", "five", "got 'five'"),
        ("--agents", "-5", "agents must be a whole number of at least 1; got -5"),
        ("--agents", "0", "agents must be a whole number of at least 1; got 0"),
        ("--iterations", "0", "'--iterations'"),
        ("--trials", "0", "'--trials'"),
        ("--seed", "-1", "'--seed'"),
        ("--seed", str(2**64), "seed must be a whole number from 0 to 2^64 - 1"),
    ],
)
def test_bad_options_of_reproduce(tmp_path, option, value, words):
    result = call("reproduce", "speedup", "--agents", "2", "-o", tmp_path / "out", option, value)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
