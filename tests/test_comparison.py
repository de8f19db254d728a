"""The comparison: rules that undo the scripts' division by n, presets, the choice of γ and α, the command."""

import csv
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, metrics, networks, reports, schedules
from proxdasa.data import Contiguous, Shuffled, from_tensors
from proxdasa.experiment_choices import CAUSES
from proxdasa.experiments import causes, real_data
from proxdasa.problems import Supervised, cross_entropy, models
from proxdasa.regularizers import L1
from proxdasa.reports import load_runs, plateau_sheet, quantity

N = 8
PAPER = {
    "a9a": {
        "batch": 4, "iterations": 10_000, "network": "ring(8)", "observe_every": 100,
        "prox-dasa": {"alpha": 0.3, "gamma": 10.0},
        "prox-dasa-gt": {"alpha": 0.3, "gamma": 10.0},
        "deepstorm-v2": {"a": 10.0, "b": 0.031, "k0": 5.0},
        "prox-gt-sr-e": {"step": 5e-3, "q": 1000},
        "sppdm": {"c": 1.0, "kappa": 0.1, "gamma": 3.0, "beta": 0.9, "alpha": 0.01},
    },
    "mnist": {
        "batch": 32, "iterations": 3_000, "network": "paper()", "observe_every": 500,  # 100 in the paper: see the docs
        "prox-dasa": {"alpha": 3.0, "gamma": 1.0},
        "prox-dasa-gt": {"alpha": 3.0, "gamma": 5.0},
        "deepstorm-v2": {"a": 5.0, "b": 0.0228, "k0": 3.0},
        "prox-gt-sr-e": {"step": 0.1, "q": 32},
        "sppdm": {"c": 1.0, "kappa": 0.1, "gamma": 3.0, "beta": 0.9, "alpha": 0.1},
    },
}  # fmt: skip
"""What the paper and its authors' scripts say, for losses divided by n = 8; not read from the code that is checked."""
TABLE = {
    "a9a": {
        "SPPDM": (84.64, 0.3340, 0.0174),
        "ProxGT-SR-E": (76.38, 0.6528, 0.0797),
        "DEEPSTORM v2": (84.90, 0.3274, 0.0029),
        "Prox-DASA": (84.71, 0.3338, 0.0017),
        "Prox-DASA-GT": (84.69, 0.3342, 0.0017),
    },
    "mnist": {
        "SPPDM": (76.54, 0.7854, 0.0436),
        "ProxGT-SR-E": (92.26, 0.3042, 0.0250),
        "DEEPSTORM v2": (94.52, 0.1759, 0.0016),
        "Prox-DASA": (96.74, 0.1469, 0.0081),
        "Prox-DASA-GT": (96.84, 0.1460, 0.0058),
    },
}
"""The paper's table: accuracy in per cent, training loss and stationarity."""


def examples(inputs=6, classes=2, rows=200):
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(rows, inputs)), dtype=torch.float32)
    y = (x[:, 0] > 0).long() * (classes - 1)
    return from_tensors(x[:150], y[:150], x[150:], y[150:])


@pytest.fixture
def tiny(monkeypatch):
    """Both experiments with a small network on a few made-up examples."""
    small = {"data": examples, "model": partial(models.mlp, 6, 3, 2), "batch": 2, "iterations": 12, "observe_every": 6}
    for name, experiment in real_data.EXPERIMENTS.items():
        monkeypatch.setitem(real_data.EXPERIMENTS, name, replace(experiment, **small))


def divided(outputs, targets):
    return cross_entropy(outputs, targets) / N


def as_listed(paper):
    """The methods with the paper's own parameters, which belong to the divided loss."""
    storm, prox_gt, dasa, script = (
        paper[name] for name in ("deepstorm-v2", "prox-gt-sr-e", "prox-dasa", "prox-dasa-gt")
    )
    return {
        "sppdm": proxdasa.SPPDM(**paper["sppdm"], momentum=schedules.nesterov()),
        "prox-gt-sr-e": proxdasa.ProxGTSRE(gamma=prox_gt["step"], period=prox_gt["q"]),
        "deepstorm-v2": proxdasa.DeepStormV2(schedules.cube_root(storm["a"], storm["k0"]), beta=storm["b"]),
        "prox-dasa": proxdasa.ProxDASA(dasa["gamma"], schedules.diminishing(dasa["alpha"])),
        "prox-dasa-gt-script": proxdasa.ProxDASA(script["gamma"], schedules.uncapped(script["alpha"])),
    }


@pytest.mark.parametrize("name", real_data.EXPERIMENTS)
@pytest.mark.parametrize("method", real_data.algorithms("as-published"))
def test_the_undivided_loss_with_scaled_steps_visits_the_same_points(tiny, name, method):
    iterations = PAPER[name]["prox-gt-sr-e"]["q"] + 2 if (name, method) == ("mnist", "prox-gt-sr-e") else 8  # restarts
    ours = real_data.comparison(name, "as-published", {}, [method], iterations=iterations, trials=2)[method]
    ours = replace(ours, dtype=torch.float64, metrics=())
    theirs = replace(
        ours,
        algorithm=as_listed(PAPER[name])[method],
        problem=replace(ours.problem, loss=divided),
        regularizer=L1(1e-4),
    )
    torch.testing.assert_close(ours.run().x, theirs.run().x, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", PAPER)
def test_parameters_are_the_papers_scaled_by_n(tiny, name):
    """γ and steps are divided by n; β of DEEPSTORM belongs to α², so n² undoes it; SPPDM's are weights of the loss."""
    paper, setups = PAPER[name], real_data.comparison(name, "as-published", {})
    found = {method: setup.config()["algorithm"] for method, setup in setups.items()}
    storm, sppdm = paper["deepstorm-v2"], paper["sppdm"]
    assert found["prox-dasa"]["gamma"] == paper["prox-dasa"]["gamma"] / 8
    assert found["prox-dasa"]["alpha"] == {"name": "diminishing", "alpha": paper["prox-dasa"]["alpha"]}
    assert found["prox-dasa-gt-script"]["gamma"] == paper["prox-dasa-gt"]["gamma"] / 8
    assert found["prox-dasa-gt-script"]["alpha"] == {"name": "uncapped", "alpha": paper["prox-dasa-gt"]["alpha"]}
    assert found["deepstorm-v2"]["alpha"] == {"name": "cube_root", "a": storm["a"] / 8, "k0": storm["k0"]}
    assert found["deepstorm-v2"]["beta"] == pytest.approx(storm["b"] * 64)
    assert found["prox-gt-sr-e"]["gamma"] == paper["prox-gt-sr-e"]["step"] / 8
    assert found["prox-gt-sr-e"]["period"] == paper["prox-gt-sr-e"]["q"]
    for parameter, value in sppdm.items():
        assert found["sppdm"][parameter] == pytest.approx(value if parameter == "beta" else 8 * value), parameter
    assert found["sppdm"]["momentum"]["name"] == "nesterov"


def test_presets(tiny):
    tuned = {"prox-dasa": (3.0, 0.3), "prox-dasa-gt": (1.0, 1.0)}
    paper = real_data.comparison("a9a", "paper", tuned)
    scripts = real_data.comparison("a9a", "as-published", {})
    assert list(paper) == real_data.algorithms("paper")
    assert list(scripts) == real_data.algorithms("as-published")
    assert {setup.algorithm.facts.title for setup in paper.values()} == {real_data.NAMES[name] for name in paper}
    assert type(scripts["prox-dasa-gt-script"].algorithm) is proxdasa.ProxDASA
    assert (paper["prox-dasa-gt"].algorithm.gamma, paper["prox-dasa"].algorithm.gamma) == (1.0, 3.0)
    assert paper["prox-dasa-gt"].algorithm.alpha.parameters == {"alpha": 1.0}
    for method in ("sppdm", "prox-gt-sr-e", "deepstorm-v2"):
        assert paper[method].config()["algorithm"] == scripts[method].config()["algorithm"]
    for setups, weight, partition, initial in ((paper, 1e-4, Shuffled, "shared"), (scripts, 8e-4, Contiguous, "each")):
        for setup in setups.values():
            assert setup.regularizer == L1(weight)
            assert (type(setup.problem.partition), setup.problem.initial) == (partition, initial)


def test_stationarity_is_that_of_the_papers_penalty(tiny):
    setup = real_data.comparison("a9a", "as-published", {}, ["prox-dasa"], iterations=3, trials=1)["prox-dasa"]
    row = setup.run().records[-1]
    same = replace(setup, metrics=(metrics.table_stationarity(L1(1e-4)),)).run().records[-1]
    other = replace(setup, metrics=(metrics.table_stationarity(),)).run().records[-1]
    assert row["table_stationarity"] == same["table_stationarity"] != other["table_stationarity"]


def test_the_papers_set_ups():
    a9a, mnist = real_data.EXPERIMENTS["a9a"], real_data.EXPERIMENTS["mnist"]
    assert a9a.network().rho == pytest.approx(0.8047, abs=1e-4)
    assert mnist.network().rho == pytest.approx(0.375)
    assert sum(p.numel() for p in a9a.model().parameters()) == 8_066
    assert sum(p.numel() for p in mnist.model().parameters()) == 25_010
    assert real_data.AGENTS == N
    assert [(setting["gamma"], setting["alpha"]) for setting in real_data.GRID] == [
        (gamma, alpha) for gamma in (1, 3, 10) for alpha in (0.3, 1, 3)
    ]
    assert set(real_data.EXPERIMENTS) == set(PAPER)
    for name, experiment in real_data.EXPERIMENTS.items():
        settings = ("batch", "iterations", "observe_every")
        assert {key: getattr(experiment, key) for key in settings} == {key: PAPER[name][key] for key in settings}
        assert experiment.network().label == PAPER[name]["network"]


@pytest.mark.parametrize("name", TABLE)
def test_published_values_are_those_of_the_papers_table(name):
    rows = {method: tuple(row.values()) for method, row in real_data.published_values(name).items()}
    assert rows == TABLE[name] | {"Prox-DASA-GT's script": TABLE[name]["Prox-DASA-GT"]}
    assert [*real_data.published_values(name)["SPPDM"]] == ["accuracy", "loss", "table_stationarity"]


def quick_sweep(tiny, method="prox-dasa"):
    return real_data.sweep("a9a", [method], iterations=2)[f"sweep/{method}"].run()


def test_a_sweep_is_the_grid_and_its_best_has_the_lowest_objective(tiny):
    result = quick_sweep(tiny)
    algorithm = result.config["algorithm"]
    settings = zip(algorithm["gamma"], algorithm["alpha"]["alpha"], strict=True)
    assert [{"gamma": gamma, "alpha": alpha} for gamma, alpha in settings] == real_data.GRID
    assert real_data.GRID[4] == {"gamma": 3.0, "alpha": 1.0}
    for row in result.records:
        row["objective"] = 5.0 if row["trial"] != 4 or row["k"] < 2 else 4.0  # the fifth at the end alone
        if row["trial"] == 2 and row["k"] == 2:
            row["objective"] = float("nan")
    assert real_data.best(result) == (3.0, 1.0)


def test_a_sweep_in_which_everything_diverged(tiny):
    result = quick_sweep(tiny, "prox-dasa-gt")
    result.records[:] = [row for row in result.records if row["k"] < 2]
    with pytest.raises(ValueError, match="Prox-DASA-GT diverged for every γ and α"):
        real_data.best(result)


def call(*arguments):
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)])


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setattr(cli.out, "width", 200)


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr(reports, "draw_comparison", lambda _runs, path: path)


def test_the_command_with_tuning(tiny, wide, tmp_path, drawn, monkeypatch):
    chosen = ("a9a", "--preset", "paper", "--algorithms", "prox-dasa,deepstorm-v2", "--trials", 2, "-o", tmp_path)
    result = call(*chosen)
    assert result.exit_code == 0, result.output
    assert "have the lowest objective" in result.stdout
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["DEEPSTORM v2", "Prox-DASA"]
    assert [row["accuracy_published"] for row in rows] == ["84.9", "84.71"]
    assert all(0 <= float(row["accuracy_lowest"]) <= float(row["accuracy"]) <= 100 for row in rows)
    assert "84.71" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert r"\toprule" in (tmp_path / "table.tex").read_text(encoding="utf-8")
    (figure,) = drawn
    measures = ("accuracy", "loss", "table_stationarity")
    axes = np.array(figure.axes).reshape(len(measures), -1)
    assert [ax.get_ylabel() for ax in axes[:, 0]] == [quantity(measure).label for measure in measures]
    assert axes[2, 0].get_ylabel().startswith("stationarity at γ = 1")
    for ax, measure in zip(axes[:, -1], measures, strict=True):
        assert [line.get_label() for line in ax.lines] == ["DEEPSTORM v2", "Prox-DASA"]
        assert [line.get_ydata()[-1] for line in ax.lines] == pytest.approx([float(row[measure]) for row in rows])
        assert ax.get_yscale() == ("linear" if measure == "accuracy" else "log")
    monkeypatch.setattr(reports, "draw_comparison", lambda _runs, path: path)  # once is enough
    again = call(*chosen)
    assert "1 finished run reused" in again.stderr
    assert "2 finished runs reused" in again.stderr
    assert "iterations" not in again.stderr


def test_a_method_for_which_everything_diverges_is_left_out(tiny, wide, undrawn, tmp_path, monkeypatch):
    monkeypatch.setattr(real_data, "GRID", [{"gamma": 2e38, "alpha": 1.0}, {"gamma": 3e38, "alpha": 1.0}])
    result = call("a9a", "--preset", "paper", "--algorithms", "prox-dasa,sppdm", "--trials", 1, "-o", tmp_path)
    assert result.exit_code == 4, result.output
    assert "Prox-DASA diverged for every γ and α of the grid; it is left out" in result.stderr
    assert "SPPDM" in (tmp_path / "table.csv").read_text(encoding="utf-8")
    alone = call("a9a", "--preset", "paper", "--algorithms", "prox-dasa", "--trials", 1, "-o", tmp_path)
    assert alone.exit_code == 4
    assert "is left out" in alone.stderr


def test_the_command_as_published(tiny, wide, drawn, tmp_path):
    result = call("mnist", "--trials", 1, "--iterations", 6, "-o", tmp_path)
    assert result.exit_code == 0, result.output
    assert "Prox-DASA-GT's script" in result.stdout
    assert "96.84" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == sorted(
        real_data.algorithms("as-published")
    )


def test_the_table_fits_into_80_columns(tiny, undrawn, tmp_path, monkeypatch):
    monkeypatch.setattr(cli.out, "width", 80)
    result = call("a9a", "--trials", 2, "--algorithms", "prox-dasa, sppdm", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout
    for published in ("(84.71)", "(0.3338)", "(0.0017)"):
        assert published in result.stdout


def test_results_from_before_a_setting_was_there_are_reused(tiny, wide, undrawn, tmp_path):
    chosen = ("a9a", "--trials", 1, "--algorithms", "prox-dasa", "-o", tmp_path)
    call(*chosen)
    path = tmp_path / "prox-dasa" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["compile"]
    path.write_text(json.dumps(config), encoding="utf-8")
    assert "1 finished run reused" in call(*chosen).stderr
    path.write_text(json.dumps(config | {"compile": True}), encoding="utf-8")
    assert "results of other settings" in call(*chosen).stderr


def test_causes_change_one_thing_at_a_time(tiny):
    setups = causes.causes(iterations=12, trials=2)
    assert list(setups) == list(CAUSES)

    def choices(name):
        config = setups[name].config()
        problem, algorithm = config["problem"], config["algorithm"]
        steps = algorithm["gamma"], algorithm["alpha"]["alpha"]
        return {
            "start": problem["initial"],
            "penalty": config["regularizer"]["weight"],
            "data": problem["partition"]["name"],
            "steps": steps,
        }

    published = {"start": "each", "penalty": pytest.approx(8e-4), "data": "Contiguous", "steps": (1 / 8, 3.0)}
    described = {"start": "shared", "penalty": 1e-4, "data": "Shuffled", "steps": (3.0, 0.3)}
    assert choices("as-published") == published
    assert choices("paper") == described
    for cause, scripts in published.items():
        assert choices(f"as-published-{cause}") == published | {cause: described[cause]}
        assert choices(f"paper-{cause}") == described | {cause: scripts}
    longer = real_data.comparison("mnist", "as-published", {}, ["prox-dasa"], iterations=30, trials=2)["prox-dasa"]
    short, long = (replace(setup, observe_every=12).run() for setup in (setups["as-published"], longer))
    assert [row["loss"] for row in short.records] == [row["loss"] for row in long.records if row["k"] <= 12]


def test_the_command_causes(tiny, wide, tmp_path):
    chosen = ("causes", "--trials", 2, "--iterations", 2, "-o", tmp_path)
    result = call(*chosen)
    assert result.exit_code == 0, result.output
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert list(rows) == list(CAUSES.values())
    assert all(row["left"] == "2 of 2" for row in rows.values())  # half of these examples are of either class
    last = [row for row in proxdasa.load(tmp_path / "paper-steps").records if row["k"] == 2]
    assert float(rows[CAUSES["paper-steps"]]["loss_left"]) == pytest.approx(np.mean([row["loss"] for row in last]))
    assert "10 finished runs reused" in call(*chosen).stderr


def test_trials_that_stay_on_a_plateau_are_counted(tiny, tmp_path):
    setup = causes.causes(iterations=12, trials=3)["paper"]
    (run,) = load_runs([setup.run().save(tmp_path)])
    ends = {row["trial"]: row for row in run.rows}
    for trial, accuracy in enumerate((0.1135, 0.95, 0.97)):
        ends[trial]["accuracy"] = accuracy
    stuck = replace(run, rows=[row for row in run.rows if row["trial"] == 0])
    diverged = replace(run, rows=[row for row in run.rows if row["trial"] != 2 or row["k"] < 12])
    sheet = plateau_sheet({"two left": run, "one stayed": stuck, "one diverged": diverged}, 20.0)
    cells = [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]
    assert [row["left"] for row in cells] == ["2 of 3", "0 of 3", "1 of 3"]
    assert cells[0]["accuracy_left"].mean == pytest.approx(96)
    assert cells[0]["accuracy"].lowest == pytest.approx(11.35)
    assert cells[1]["accuracy_left"] == "none"
    (shuffled,) = plateau_sheet({"two left": replace(run, rows=run.rows[::-1])}, 20.0).rows
    assert shuffled[1] == "2 of 3", "whatever the order of rows"


def test_bad_input(tiny, tmp_path):
    result = call("a9a", "--algorithms", "sppdm,adam", "-o", tmp_path)
    assert result.exit_code == 2
    assert "there is no 'adam' in this preset; accepted: sppdm, prox-gt-sr-e" in result.stderr
    assert call("a9a", "--preset", "mine").exit_code == 2


def test_missing_data_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PROXDASA_DATA", str(tmp_path))
    result = call("a9a", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "proxdasa data fetch a9a" in result.stderr


def test_the_network_of_supervised_examples_needs_no_ring():
    """The comparison's parts in a user's hands: other data, other graph."""
    problem = Supervised(partial(models.mlp, 6, 3, 2), examples(), agents=4, batch_size=2)
    settings = {"regularizer": L1(1e-3), "iterations": 300, "observe_every": 300}
    result = proxdasa.run(proxdasa.ProxDASAGT(1.0), problem, networks.complete(4), **settings)
    assert result.records[-1]["accuracy"] > 0.85
