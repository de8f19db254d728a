"""Studies: the same settings and gradients for every method, and the same tables however often they are interrupted."""

import csv
import dataclasses
import json
import os
import re
import shutil
import signal
import tomllib
from typing import ClassVar, NamedTuple

import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, disk, networks, problems, regularizers, reports, schedules
from proxdasa.configs import read_study
from proxdasa.contracts import Facts
from proxdasa.experiments import affordable, plan_searches
from proxdasa.reports import tuning_results
from proxdasa.reports.axis_quantities import value
from proxdasa.runs.saving import Saving
from proxdasa.runs.setup import Setup
from tests.forks import FORKS

STUDY = """
gradients = 60
trials = 3
seed = 4
networks = ["ring", "complete"]
methods = ["ProxDASA", { name = "DeepStormV2", beta = 0.5 }, "DProxSGT"]

[problem]
name = "PhaseRetrieval"
agents = 4
dim = 5
evaluation = 50

[regularizer]
name = "L1"
weight = 0.01

[tuning]
trials = 2
gamma = [0.001, 0.03, 100.0]
[tuning.DeepStormV2]
alpha = [0.0003, 0.001, 0.003]
[tuning.DProxSGT]
gamma = [100.0, 200.0, 300.0]
"""
SMALL = STUDY.replace('"ring", "complete"', '"ring"').replace(', "DProxSGT"]', "]").partition("[tuning.DProxSGT]")[0]
SMALL = SMALL.replace("gradients = 60", "gradients = 20")
"""One network, short runs, and no method that is lost."""
METHODS = [
    proxdasa.ProxDASA(0.1),
    proxdasa.ProxDASAGT(0.1),
    proxdasa.DPSGD(0.1),
    proxdasa.ProxGTSA(0.1, batch=3),
    proxdasa.ProxGTSRO(0.1, period=4, restart_batch=9, batch=2),
    proxdasa.ProxGTSRE(0.1, period=5, batch=2),
    proxdasa.DeepStormV2(alpha=0.1, beta=0.5, initial_batch=4),
    proxdasa.DeepStormV1SVRG(alpha=schedules.cube_root(0.1), beta=0.5, snapshot=6),
    proxdasa.SPPDM(gamma=2.0, c=1.0, kappa=0.1, beta=0.9, alpha=0.01),
]


def caller(folder, monkeypatch):
    """A function that calls the study of a text in a folder, and returns the outcome.

    Figures are not drawn, and runs of a moment write one checkpoint in place of ten.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setattr("proxdasa.experiments.series.Saving", lambda place, every: Saving(place, 10 * every))
    monkeypatch.setattr(tuning_results, "draw_search", lambda _tried, _measure, path: path)
    monkeypatch.setattr(reports.Comparison, "draw", lambda _comparison, path, _width: path)

    def study(text=STUDY, output="out", *more):
        (folder / "study.toml").write_text(text, encoding="utf-8")
        return CliRunner().invoke(cli.app, ["study", "study.toml", "-o", output, *more], terminal_width=200)

    return study


@pytest.fixture
def call(tmp_path, monkeypatch):
    return caller(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of the small study that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        assert caller(folder, patch)(SMALL, "whole").exit_code == 0
    return folder / "whole"


def tables(folder):
    """The tables that no time is in."""
    return {path.name: path.read_bytes() for path in folder.glob("*.csv") if path.stem in TIMELESS}


def contents_of(text):
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(data)


def page(folder):
    """The contents of the page without times, and without its title, which is the name of the folder."""
    contents = contents_of((folder / "report.html").read_text(encoding="utf-8"))
    table = contents["table"]
    last = len(table["columns"]) - 1  # of seconds
    table["columns"].pop()
    table["rows"] = [row[:last] for row in table["rows"]]
    table["bold"] = [place for place in table["bold"] if place[1] < last]
    contents["notes"] = [note for note in contents["notes"] if "seconds" not in note]
    contents["tiles"] = [tile for tile in contents["tiles"] if tile[0] != "time"]
    for run in contents["runs"]:
        del run["x"]["seconds"]
        del run["times"]
    del contents["title"]
    return contents


TIMELESS = ("settings", "comparison-gradients", "comparison-rounds", "comparison-bytes")


# ---------------------------------------------------------------------------------------- budgets


class Passes(problems.Quadratic):
    """A full gradient costs as much as three and a half samples, as with 14 examples in batches of four."""

    epoch = 3.5


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_run_ends_when_the_next_step_would_exceed_its_budget(method):
    problem = Passes(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    for axis, budget, mixing in (
        ("gradients", 50, proxdasa.Gossip()),
        ("rounds", 30, proxdasa.Gossip(2)),
        ("vectors", 20, proxdasa.Every(3)),
    ):
        setup = Setup(method, problem, networks.complete(3), mixing=mixing, observe_every=1, metrics=())
        K = affordable(setup, budget, axis)
        rows = dataclasses.replace(setup, iterations=K + 1).run().records
        spent = [value(row, axis) for row in rows]
        assert spent[K] <= budget < spent[K + 1]


@dataclasses.dataclass(frozen=True, eq=False)
class Idle:
    facts: ClassVar = Facts("idle", vectors=1, gradients=0)
    gamma: float = 1.0
    mapping_gamma = 1.0

    class State(NamedTuple):
        x: torch.Tensor

    def init(self, agents, x):
        return self.State(x)

    def step(self, agents, k, state):
        return self.State(agents.mix(state.x))


def test_budgets_that_mean_nothing_are_refused():
    problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    with pytest.raises(ValueError, match="idle takes no gradients, so a budget of gradients does not limit it"):
        affordable(Setup(Idle(), problem, networks.ring(3)), 10)
    large = proxdasa.ProxGTSA(0.1, batch=8)
    with pytest.raises(ValueError, match=r"10 are too few for one iteration of ProxGT-SA, after which .* spent 16"):
        affordable(Setup(large, problem, networks.ring(3)), 10)


def test_ranges_are_drawn_alike_for_all_methods():
    problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    setups = {
        (type(method).__name__, "ring"): Setup(method, problem, networks.ring(3))
        for method in (proxdasa.DPSGD(0.1), proxdasa.DProxSGT(0.1))
    }
    ranges = {method: {"gamma": (0.01, 1.0)} for method, _ in setups}
    first, second = plan_searches(setups, ranges, "objective", 5, 30, 7, 2).values()
    assert first.settings == second.settings
    assert len(first.settings) == 5
    assert (first.base.seed, first.base.trials) == (7, 2)
    with pytest.raises(ValueError, match=r"tuning\.settings is missing; it says how many settings are drawn"):
        plan_searches(setups, ranges, "objective", None, 30, 7, 2)


# ---------------------------------------------------------------------------------------- the command


def test_a_study_is_what_its_parts_would_be_by_hand(call, tmp_path):
    done = call(STUDY.replace("gradients = 60", "gradients = 10"))
    assert done.exit_code == 0, done.output
    problem = problems.PhaseRetrieval(agents=4, dim=5, evaluation=50)
    for_all = {"problem": problem, "network": networks.ring(4), "regularizer": regularizers.L1(0.01)}
    tuned = proxdasa.tune(
        proxdasa.DeepStormV2(alpha=1.0, beta=0.5), **for_all, grid={"alpha": [0.0003, 0.001, 0.003]},
        iterations=4, trials=2, seed=5,
    )  # fmt: skip
    assert tuned.ranking[0].parameters != tuned.ranking[-1].parameters
    run = proxdasa.run(tuned.algorithm, **for_all, iterations=4, trials=3, seed=4)
    with (tmp_path / "out" / "comparison-gradients.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {(row["method"], row["run"]): row for row in rows}
    mean = sum(row["objective"] for row in run.last) / 3
    assert float(found["DEEPSTORM v2", "ring"]["objective"]) == pytest.approx(mean, rel=1e-5)
    assert [value(row, "gradients") for row in run.last] == [9] * 3, "one at the start, and two in each step"
    config = json.loads((tmp_path / "out" / "runs" / "ProxDASA-ring-4" / "config.json").read_text())
    assert (config["iterations"], config["seed"]) == (10, 4)
    lost = found["DProxSGT", "complete"]
    assert (lost["objective"], lost["trials"]) == ("every setting diverged", "0")
    assert None not in lost, "its row has as many cells as the others"
    assert not (tmp_path / "out" / "runs" / "DProxSGT-ring-4").exists()
    with (tmp_path / "out" / "settings.csv").open() as file:
        settings = list(csv.DictReader(file))
    assert {row["settings"] for row in settings} == {"3"}
    assert settings[-1]["rule"] == "none: every setting diverged"
    assert "objective at equal budgets" in done.stdout
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert text.count("every setting diverged") >= 2
    names = [run["name"] for run in contents_of(text)["runs"]]
    assert names == [f"{title}, {net}" for title in ("DEEPSTORM v2", "Prox-DASA") for net in ("ring", "complete")]


def test_an_interrupted_study_ends_with_the_same_tables(call, whole, tmp_path, monkeypatch):
    runs = tmp_path / "out" / "runs"
    assert len(tables(whole)) == len(TIMELESS)
    means = cli.progress_display.mean_row

    def interrupted(at):
        """Ctrl-C when progress is shown for the nth time; returns the runs that have records then."""
        told = []

        def shown(rows):
            told.append(rows)
            if len(told) == at:
                raise KeyboardInterrupt
            return means(rows)

        with monkeypatch.context() as patch:
            patch.setattr(cli.progress_display, "mean_row", shown)
            done = call(SMALL)
        assert done.exit_code == 130, done.output
        return {path.parent.name: proxdasa.load(path.parent).stopped for path in runs.glob("*/records.jsonl")}

    assert interrupted(7) == {}, "in the second search"
    assert interrupted(15) == {"ProxDASA-ring-4": "interrupted"}
    assert interrupted(15) == {"ProxDASA-ring-4": None, "DeepStormV2-ring-4": "interrupted"}
    done = call(SMALL)
    assert done.exit_code == 0, done.output
    assert "1 finished run reused" in done.stderr
    assert tables(tmp_path / "out") == tables(whole)
    assert page(tmp_path / "out") == page(whole)
    for path in runs.glob("*/*"):  # as if it had been killed after the searches
        path.unlink()
    assert call(SMALL).exit_code == 0
    assert tables(tmp_path / "out") == tables(whole)


def _study_until_killed(folder, at):
    """The study of a process that is killed while it writes such a file; for another process."""
    os.chdir(folder)
    tuning_results.draw_search = lambda _tried, _measure, path: path
    reports.Comparison.draw = lambda _comparison, path, _width: path
    beside = disk.beside

    def beside_or_die(path, data):
        if path.match(at):
            beside(path, data[: len(data) // 2]).__enter__()
            os.kill(os.getpid(), signal.SIGKILL)
        return beside(path, data)

    disk.beside = beside_or_die
    os._exit(CliRunner().invoke(cli.app, ["study", "study.toml", "-o", "out", "--jobs", "1"]).exit_code)


def test_a_study_that_is_killed_while_it_writes_ends_with_the_same_page(whole, tmp_path):
    (tmp_path / "study.toml").write_text(SMALL, encoding="utf-8")
    for at in ("tuning/DeepStormV2-*/*/records.jsonl", "runs/DeepStormV2-*/config.json", "comparison-rounds.csv", "-"):
        process = FORKS.Process(target=_study_until_killed, args=(tmp_path, at))
        process.start()
        process.join(120)
        assert process.exitcode == (0 if at == "-" else -signal.SIGKILL), at
    assert tables(tmp_path / "out") == tables(whole)
    assert page(tmp_path / "out") == page(whole)


def test_another_study_does_not_mix_with_an_earlier_one(call, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    other = SMALL.replace("gradients = 20", "gradients = 10")
    refused = call(other)
    assert refused.exit_code == 2
    assert "holds results of other settings; choose another --output or add --overwrite" in refused.stderr
    assert call(other, "out", "--overwrite").exit_code == 0
    config = json.loads((tmp_path / "out" / "runs" / "ProxDASA-ring-4" / "config.json").read_text())
    assert config["iterations"] == 10


def test_a_budget_of_rounds_is_spent_by_all(call, tmp_path):
    """At equal rounds no run is cut short: DEEPSTORM makes as many steps as the others, with twice the gradients."""
    done = call(SMALL.replace("gradients = 20", "rounds = 12").replace("[tuning]\n", "[tuning]\nrounds = 8\n"))
    assert done.exit_code == 0, done.output
    ends = [proxdasa.load(path).last[0] for path in sorted((tmp_path / "out" / "runs").iterdir())]
    assert [(row["k"], row["rounds"], row["gradients"]) for row in ends] == [(12, 12, 25), (12, 12, 12)]
    assert "objective after 8 communication rounds, seed 5" in (tmp_path / "out" / "settings.md").read_text()
    heading = (tmp_path / "out" / "summary.md").read_text().partition("\n")[0]
    assert "after 12 communication rounds" in heading
    assert "after 12 gradients of an agent" in heading, "the most that both have evaluated"


def test_if_all_diverge_nobody_wins(call):
    lost = STUDY.replace(
        'methods = ["ProxDASA", { name = "DeepStormV2", beta = 0.5 }, "DProxSGT"]', 'methods = ["DProxSGT"]'
    )
    done = call(lost.replace("[tuning.DeepStormV2]\nalpha = [0.0003, 0.001, 0.003]\n", ""))
    assert done.exit_code == 4, done.output
    assert "no method is left: all settings of every method diverged" in done.stderr


# ---------------------------------------------------------------------------------------- files

REFUSED = {
    "seed = 4\n": ("seed = 4\niterations = 9\n", "iterations: a study has gradients, rounds or vectors in its place"),
    "gradients = 60\n": ("", "gradients is missing; a study needs a budget"),
    "gradients = 60": (
        "gradients = 60\nrounds = 60",
        "rounds: a study has one budget",
    ),
    "[tuning]\ntrials": (
        "[tuning]\nrounds = 9\ntrials",
        r"tuning\.rounds: the budget of this study is in gradients",
    ),
    '["ring", "complete"]': ('["ring", "ring(4)"]', r"networks\[1\]: ring\(4\) is listed twice"),
    '"complete"]': ('"wheel"]', r"networks\[1\]: there is no graph 'wheel'; accepted: ring"),
    '"DProxSGT"]': ('"DProxSGT", "DProxSGT"]', r"methods\[3\]: DProxSGT is listed twice"),
    "beta = 0.5": ("bata = 0.5", r"methods\[1\]\.bata: unknown key; accepted: alpha, beta"),
    "trials = 2\n": ("trials = 2\nseed = 4\n", r"tuning\.seed: the runs have the seed 4 too"),
    "gamma = [0.001, 0.03, 100.0]": ("gamma = [0.001, 0.03]", "DeepStormV2 has 3 settings to try, and ProxDASA has 2"),
    "[tuning]\n": ("[tuning]\nsettings = 9\n", "ProxDASA has 3 settings to try, and settings = 9; every method gets"),
    "alpha = [0.0003, 0.001, 0.003]": ('alpha = "low"', r"tuning\.DeepStormV2\.alpha: a range is written as"),
    "[tuning.DeepStormV2]\nalpha": ("[tuning.DeepStormV2]\ngamma", "alpha is missing; DeepStormV2 needs it"),
    "[tuning.DProxSGT]\ngamma": ("[tuning.DProxSGT]\nregularizer.weight", "so Ψ has one weight"),
    "[tuning.DProxSGT]\ngamma = [": ("[tuning.DProxSGT]\nlambda = [", "gamma is missing; DProxSGT needs it"),
    'name = "PhaseRetrieval"\nagents = 4': ('name = "PhaseRetrieval"\nagents = 0', "agents"),
}


@pytest.mark.parametrize("place", REFUSED, ids=lambda place: place.strip())
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(place, call):
    change, message = REFUSED[place]
    assert place in STUDY
    done = call(STUDY.replace(place, change, 1))
    assert done.exit_code == 2, done.output
    with pytest.raises(ValueError, match=message):
        raise ValueError(done.stderr)
    assert done.stderr.startswith("error: ")


def test_measures_that_cannot_rank_are_refused(call):
    done = call(STUDY.replace("[tuning]\n", '[tuning]\nmeasure = "stationarity"\n'))
    assert "tuning: measure: stationarity is measured with each setting's own γ" in done.stderr


def test_what_a_file_may_leave_out(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(STUDY, encoding="utf-8")
    study = read_study(path)
    assert (study.tuning.seed, study.search_budget, study.tuning.measure) == (5, 60, "objective")
    assert study.setups["ProxDASA", "ring-4"].algorithm.gamma == 0.001, "the first that is tried"
    text = STUDY.replace("gamma = [0.001, 0.03, 100.0]", "gamma = [0.1]\nalpha.scale = [0.1, 0.3, 1.0]")
    assert tomllib.loads(text)["tuning"]["alpha"]
    path.write_text(text, encoding="utf-8")
    assert read_study(path).ranges["ProxDASA"] == {"gamma": [0.1], "alpha.scale": [0.1, 0.3, 1.0]}
