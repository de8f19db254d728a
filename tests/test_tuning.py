"""Tuning: a stack of settings is their single runs, ranked; what diverges is marked; the command and its files."""

import csv
import json
import tomllib
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, memory_budget, metrics, networks, regularizers, schedules, tuning
from proxdasa.conditions import Bursts, LinkLoss, MessageNoise, Outages, Participation, StaleMessages
from proxdasa.configs import read
from proxdasa.problems import PhaseRetrieval, Quadratic, Repeated
from proxdasa.regularizers import L1
from proxdasa.reports import quantity, tuning_results
from proxdasa.runs.checkpoints import fingerprint
from proxdasa.runs.loop import Saving
from proxdasa.runs.results import Result
from proxdasa.runs.setup import Setup
from tests.setups import RETRIEVAL
from tests.test_algorithms import ALGORITHMS, TRANSCRIBED, made

pytestmark = pytest.mark.usefixtures("drawn")
METHOD = proxdasa.ProxDASA(gamma=0.01)
FILE = f"""
iterations = 20
observe_every = 10
trials = 2
[algorithm]
name = "ProxDASA"
gamma = 0.01
{RETRIEVAL}"""


def retrieval(**settings):
    return PhaseRetrieval(agents=3, dim=4, sparsity=2, evaluation=20, **settings)


def setup(algorithm=METHOD, **changes):
    chosen = {"regularizer": L1(0.01), "iterations": 20, "observe_every": 10, "trials": 2, "dtype": torch.float64}
    return Setup(algorithm, retrieval(), networks.ring(3), **chosen | changes)


def quadratic(rows=2):
    """F = ½‖x − 1‖² for every agent; gradient steps of more than 2 diverge."""
    return Quadratic(torch.eye(3).expand(rows, 3, 3), torch.ones(rows, 3))


def tuned(grid, **settings):
    settings = {"iterations": 100, "observe_every": 50, "measure": "loss"} | settings
    return proxdasa.tune(proxdasa.DPSGD(gamma=1.0), quadratic(), networks.complete(2), grid=grid, **settings)


# the stack


@pytest.mark.parametrize("x0", [None, "own"])
def test_each_setting_is_the_run_that_it_would_be_alone(x0):
    given = torch.linspace(-0.3, 0.3, 24, dtype=torch.float64).view(2, 3, 4)
    base = setup(x0=given if x0 else None)
    search = tuning.Search(base, tuning.combinations({"gamma": [0.01, 0.03], "alpha": [0.3, 1.0, 2.0]}))
    result = search.setup.run()
    ranking = search.rank(result, "loss").ranking
    for s, setting in enumerate(search.settings):
        method = proxdasa.ProxDASA(setting["gamma"], schedules.horizon(setting["alpha"]))
        alone = replace(base, algorithm=method).run()
        torch.testing.assert_close(result.x[2 * s : 2 * s + 2], alone.x, rtol=1e-10, atol=1e-12)
        ends = [row["loss"] for row in alone.records[-2:]]
        assert next(o for o in ranking if o.parameters == setting).values == pytest.approx(ends, rel=1e-10)


def test_repeated_trials_see_the_same_and_the_first_see_what_they_did():
    problem = Repeated(retrieval(), trials=2)
    words = torch.randint(-(2**31), 2**31, (8, 5, 3, problem.words), dtype=torch.int32)
    drawn, first = problem.sample(words), retrieval().sample(words[:, :2])
    assert torch.equal(drawn, first[:, [0, 1, 0, 1, 0]])
    assert torch.equal(problem.start(7, 4), retrieval().start(7, 2)[[0, 1, 0, 1]])
    assert problem.restrict(range(1, 3)).agents == 2
    with pytest.raises(ValueError, match="trials must be a whole number"):
        Repeated(retrieval(), trials=0)


def test_a_sweep_can_be_run_again_from_its_configuration(tmp_path):
    search = tuning.Search(setup(trials=1), tuning.combinations({"gamma": [0.01, 0.03]}))
    result = search.setup.run()
    again = read(result.save(tmp_path) / "config.json").run()
    torch.testing.assert_close(again.x, result.x)


# what can be searched


def test_parameters_are_numbers_of_the_method_and_of_its_schedules():
    method = proxdasa.DeepStormV2(schedules.cube_root(0.5, k0=2.0), beta=1.0)
    assert list(tuning.tunable(method)) == ["alpha", "alpha.a", "alpha.k0", "beta"]
    changed = tuning.with_parameters(method, {"alpha": 0.7, "alpha.k0": 3.0, "beta": 2.0})
    assert (changed.alpha.parameters, changed.beta) == ({"a": 0.7, "k0": 3.0}, 2.0)
    momentum = proxdasa.SPPDM(1.0, 1.0, 1.0, 0.5, 1.0, schedules.nesterov())
    assert list(tuning.tunable(momentum)) == ["gamma", "c", "kappa", "beta", "alpha"]


@ALGORITHMS
def test_every_number_of_every_method_can_be_searched(method):
    numbers = {name for name, value in TRANSCRIBED[method][1].items() if isinstance(value, float)}
    steps = {"alpha"} if "alpha" in TRANSCRIBED[method][1] else set()
    assert {name for name in tuning.tunable(made(method)) if "." not in name} == numbers | steps


@pytest.mark.parametrize(
    ("method", "grid", "message"),
    [
        (
            proxdasa.ProxGTSA(0.1),
            {"batch": [1, 2]},
            "batch cannot be searched for ProxGT-SA: it must be the same",
        ),
        (METHOD, {"beta": [1.0]}, "it is not one of its parameters; accepted: gamma, alpha, alpha.scale"),
        (METHOD, {"alpha": [1.0], "alpha.scale": [2.0]}, "alpha and alpha.scale are the same parameter"),
        (METHOD, {"gamma": [0.1, -1.0]}, "gamma must be a positive number"),
        (METHOD, {"alpha": [0.0]}, "alpha must be a positive number"),
        (METHOD, {"gamma": []}, "gamma has no values to try"),
        (proxdasa.ProxDASA(0.1, lambda k: 0.5), {"alpha": [1.0]}, "alpha cannot be searched .* accepted: gamma$"),
    ],
)
def test_what_cannot_be_searched_is_refused(method, grid, message):
    with pytest.raises(ValueError, match=message):
        _ = tuning.Search(setup(method), tuning.combinations(grid)).setup


def test_a_parameter_that_differs_by_trial_already_is_refused_unless_it_is_searched():
    method = proxdasa.ProxDASA(proxdasa.per_trial([0.01, 0.02]))
    with pytest.raises(ValueError, match="gamma differs by trial already"):
        tuning.Search(setup(method), [{"alpha": 1.0}])
    assert tuning.Search(setup(method), [{"gamma": 0.1}]).setup.algorithm.gamma.flatten().tolist() == [0.1, 0.1]


def test_a_grid_has_all_combinations_once():
    grid = tuning.combinations({"gamma": [1, 2, 1], "alpha": [0.3]})
    assert grid == [{"gamma": 1.0, "alpha": 0.3}, {"gamma": 2.0, "alpha": 0.3}]


def test_draws_are_log_uniform_and_named_by_the_seed():
    drawn = [setting["gamma"] for setting in tuning.draws({"gamma": (1e-3, 10.0), "alpha": (1.0, 2.0)}, 400, seed=1)]
    assert 1e-3 <= min(drawn) < 2e-3
    assert 5 < max(drawn) <= 10
    assert sum(value < 0.1 for value in drawn) / 400 == pytest.approx(0.5, abs=0.08)
    assert tuning.draws({"gamma": (1, 2)}, 3, seed=1) == tuning.draws({"gamma": (1, 2)}, 3, seed=1)
    assert tuning.draws({"gamma": (1, 2)}, 3, seed=1) != tuning.draws({"gamma": (1, 2)}, 3, seed=2)
    for bad in ((0.0, 1.0), (2.0, 1.0), (1.0, float("inf"))):
        with pytest.raises(ValueError, match="from one positive number to a larger one"):
            tuning.draws({"gamma": bad}, 3, seed=0)
    with pytest.raises(ValueError, match="samples must be a whole number"):
        tuning.draws({"gamma": (1, 2)}, 0, seed=0)


@pytest.mark.parametrize(("grid", "random"), [(None, None), ({"gamma": [1.0]}, {"gamma": (1.0, 2.0)})])
def test_a_search_is_one_kind_or_the_other(grid, random):
    with pytest.raises(ValueError, match="either a grid of values or random ranges"):
        tuning.choose(grid, random, 3, 0)


def test_what_a_search_would_ignore_or_take_for_something_else_is_refused():
    with pytest.raises(ValueError, match="samples = 3 is for random ranges"):
        tuning.choose({"gamma": [1.0]}, None, 3, 0)
    with pytest.raises(ValueError, match="leave out grid, random and samples"):
        proxdasa.tune(METHOD, retrieval(), networks.ring(3), quick=True, samples=3)
    with pytest.raises(TypeError, match="gamma must be a list of values to try; got '12'"):
        tuning.combinations({"gamma": "12"})
    for pair in ((1.0, 2.0, 3.0), 0.1, "12"):
        with pytest.raises(TypeError, match=r"the range of gamma must be a pair \(low, high\); got "):
            tuning.draws({"gamma": pair}, 3, seed=0)
    assert len(tuning.choose(None, {"gamma": (1.0, 2.0)}, None, 0)) == 20


# the ranking


def test_the_best_is_found_and_what_diverges_is_marked():
    found = tuned({"gamma": [0.01, 1.0, 0.1, 1e3, 2.2]})
    assert [outcome.parameters["gamma"] for outcome in found.ranking] == [1.0, 0.1, 0.01, 2.2, 1e3]
    assert [outcome.fault for outcome in found.ranking] == ["", "", "", "", "diverged"]
    assert found.best == {"gamma": 1.0}
    assert found.algorithm.gamma == 1.0
    assert found.notes == []


def test_if_everything_diverges_results_are_there_all_the_same(tmp_path, drawn):
    found = tuned({"gamma": [1e3, 1e4]})
    assert found.result.stopped == "diverged"
    with pytest.raises(ValueError, match="D-PSGD has no best setting by loss: every setting diverged"):
        _ = found.best
    found.save(tmp_path)
    (ax,) = drawn[0].axes
    assert drawn[0].get_suptitle() == "no setting has a value"
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == ("gamma", quantity("loss").label, "log")
    assert {line.get_label(): line.get_xdata().tolist() for line in ax.lines} == {"diverged": [1e3, 1e4]}


def fake(values):
    records = [{"trial": trial, "k": 5, "loss": value} for trial, value in enumerate(values) if value is not None]
    return Result({"trials": len(values)}, records, {}, 5, stopped=None)


def test_a_setting_counts_with_all_its_trials_or_not_at_all():
    settings = [{"gamma": float(gamma)} for gamma in range(4)]
    result = fake([1.0, 2.0, 0.1, None, 3.0, 0.2, 0.5, float("inf")])
    ranking = tuning.rank(result, settings, "loss")
    assert [(o.parameters["gamma"], o.fault) for o in ranking] == [
        (0.0, ""),
        (2.0, ""),
        (1.0, "diverged in 1 of 2 trials"),
        (3.0, "has no finite loss"),
    ]
    assert ranking[0].mean == 1.5
    assert tuning.rank(result, settings, "loss", largest=True)[0].parameters == {"gamma": 2.0}


def test_of_an_interrupted_run_the_last_observation_counts():
    result = replace(fake([2.0, 1.0]), iterations=7, stopped="interrupted")
    assert tuning.rank(result, [{"gamma": 1.0}, {"gamma": 2.0}], "loss")[0].parameters == {"gamma": 2.0}
    assert tuning.rank(replace(result, stopped=None), [{"gamma": 1.0}, {"gamma": 2.0}], "loss")[0].fault
    (outcome,) = tuning.rank(replace(result, records=[]), [{"gamma": 1.0}], "loss")
    assert outcome.fault == "was interrupted before it was measured"


def test_more_accuracy_is_better_and_less_of_the_rest():
    assert tuning.larger_is_better("accuracy")
    assert tuning.larger_is_better("lowest_accuracy")
    assert not any(map(tuning.larger_is_better, ("loss", "objective", "stationarity", "test_loss", "merit")))
    with pytest.raises(ValueError, match="are larger or smaller values of f1 better"):
        tuning.larger_is_better("f1")
    found = tuned({"gamma": [0.01, 1.0]}, largest=True)
    assert found.best == {"gamma": 0.01}


def test_what_is_not_recorded_or_does_not_fit_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"records no 'accuracy'; accepted: loss, objective"):
        tuned({"gamma": [1.0]}, measure="accuracy")
    with pytest.raises(ValueError, match="records no 'dual_gap'"):  # D-PSGD has no z
        tuned({"gamma": [1.0]}, measure="dual_gap")
    monkeypatch.setenv(memory_budget.VARIABLE, "30KB")
    with pytest.raises(ValueError, match=r"6 settings × 2 trials = 12 stacked trials .* would take about .* of memory"):
        tuned({"gamma": [1.0, 2, 3, 4, 5, 6]}, trials=2)


def test_notes_on_trusting_the_ranking():
    search = tuning.Search(setup(), tuning.combinations({"gamma": [0.001, 0.01]}))
    result = search.setup.run()
    assert search.rank(result, "loss").notes == [
        "the best gamma is the largest that was tried; beyond it may be better"
    ]


# files and pictures


def outcomes(*, three=False):
    settings = tuning.combinations(
        {"gamma": [0.1, 1.0], "alpha": [0.3, 1.0, 3.0]} | ({"c": [1.0, 2.0]} if three else {})
    )
    listed = [tuning.Outcome(s, (s["gamma"] + s["alpha"],) * 2, "diverged" * (s["alpha"] == 3)) for s in settings]
    return sorted(listed, key=lambda o: (bool(o.fault), sum(o.values)))


def test_the_table_marks_what_diverged(tmp_path):
    sheet = tuning_results.ranking(outcomes(), "accuracy")
    assert list(sheet.columns) == ["rank", "gamma", "alpha", "accuracy", "fault"]
    with sheet.write_csv(tmp_path / "ranking.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "nan", "nan"]
    assert float(rows[0]["accuracy"]) == pytest.approx(40)  # in per cent, as in other tables
    assert [row["fault"] for row in rows[3:]] == ["", "diverged", "diverged"]
    assert "| — | 0.1 | 3 | — | diverged |" in sheet.write_markdown(tmp_path / "r.md").read_text(encoding="utf-8")


def texts(figure):
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_a_heat_map_has_a_cell_for_each_setting_the_best_outlined_what_diverged_hatched():
    figure = tuning_results._heat_map(outcomes(), "loss", {"gamma": [0.1, 1.0], "alpha": [0.3, 1.0, 3.0]})
    ax = figure.axes[0]
    assert sorted(texts(figure)) == ["0.4", "1.1", "1.3", "2", "diverged", "diverged"]
    assert [patch.get_xy() for patch in ax.patches if patch.get_hatch()] == [(1.5, -0.5), (1.5, 0.5)]
    assert [patch.get_xy() for patch in ax.patches if not patch.get_hatch()] == [(-0.5, -0.5)]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.3", "1", "3"]
    light, dark = (ax.images[0].cmap(ax.images[0].norm(value))[:3] for value in (0.4, 2.0))
    assert sum(light) > sum(dark)  # good is light


def test_a_large_heat_map_has_few_labels_and_colours_that_still_tell():
    columns = {"gamma": [1.0 + i for i in range(40)], "alpha": [1.0 + i for i in range(30)]}
    settings = tuning.combinations(columns)
    listed = [tuning.Outcome(s, (s["gamma"] * s["alpha"] * (1e20 if s["alpha"] > 29 else 1),)) for s in settings]
    figure = tuning_results._heat_map(sorted(listed, key=lambda o: o.mean), "loss", columns)
    assert texts(figure) == []
    assert len(figure.axes[0].get_xticks()) <= tuning_results.ACROSS
    assert figure.axes[0].images[0].norm.vmax == 1000


@pytest.mark.parametrize(("three", "panels"), [(False, 1), (True, 3)])
def test_pictures_of_one_and_three_parameters(tmp_path, three, panels, drawn):
    some = outcomes(three=True) if three else [o for o in outcomes() if o.parameters["gamma"] == 1]
    tuning_results.draw_search(some, "loss", tmp_path / "figure.png")
    assert [ax.get_xlabel() for ax in drawn[0].axes] == (["gamma", "alpha", "c"] if three else ["alpha"])
    marks = {line.get_label(): line.get_xdata().tolist() for line in drawn[0].axes[-2 if three else 0].lines}
    assert marks["diverged"] == [3.0] * (4 if three else 1)
    assert marks["best"] == [0.3]


# the command


def call(*words):
    return CliRunner().invoke(cli.app, ["tune", *map(str, words)])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_the_command(file, tmp_path, monkeypatch):
    words = (file, "-o", tmp_path / "out", "--grid", "gamma=0.01,0.03,1e6", "--grid", "alpha=0.3,1")
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "6 settings × 2 trials = 12 stacked trials of 3 agents, d = 4" in result.stderr
    assert "warning" not in result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".lock",
        "figure.png",
        "ranking.csv",
        "ranking.md",
        "sweep",
    ]
    with (tmp_path / "out" / "ranking.csv").open(encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    assert [row["fault"] for row in rows] == [""] * 4 + ["diverged"] * 2
    pasted = tomllib.loads(result.stdout[result.stdout.index("[algorithm]") :])["algorithm"]
    best = {
        "name": "ProxDASA",
        "gamma": float(rows[0]["gamma"]),
        "alpha": {"name": "horizon", "scale": float(rows[0]["alpha"])},
    }
    assert pasted == best
    monkeypatch.setattr(tuning_results, "draw_search", lambda _tried, _measure, path: path)  # once is enough
    again = call(*words, "--measure", "table_stationarity")
    assert "1 finished run reused" in again.stderr
    assert "stationarity at γ = 1" in again.stdout
    unlike = call(*words, "--measure", "stationarity")
    assert (unlike.exit_code, unlike.stderr.count("\n")) == (2, 1)
    assert "stationarity is measured with each setting's own γ" in unlike.stderr
    other = call(*words[:-1], "alpha=0.3,2")
    assert other.exit_code == 2
    assert "results of other settings" in other.stderr
    report = CliRunner().invoke(cli.app, ["report", str(tmp_path / "out")])
    assert report.exit_code == 0, report.output


def test_the_command_reuses_a_run_whose_file_leaves_numbers_to_their_defaults(tmp_path):
    file = tmp_path / "defaults.toml"
    file.write_text(FILE.replace("iterations = 20\n", "").replace("trials = 2\n", ""), encoding="utf-8")
    words = (file, "-o", tmp_path / "out", "--grid", "gamma=0.01,0.03")
    assert call(*words).exit_code == 0
    again = call(*words)
    assert again.exit_code == 0, again.output
    assert "1 finished run reused" in again.stderr


def test_the_command_draws_at_random_by_the_seed(file, tmp_path):
    drawn = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        words = ("--random", "gamma=0.001..0.05", "--samples", 3, "--trials", 1, "--iterations", 5, "--seed", seed)
        assert call(file, "-o", tmp_path / name, *words).exit_code == 0
        config = json.loads((tmp_path / name / "sweep" / "config.json").read_text(encoding="utf-8"))
        drawn[name] = config["algorithm"]["gamma"]
    assert drawn["a"] == drawn["b"] != drawn["c"]
    assert len(drawn["a"]) == 3
    for other in (("--grid", "gamma=0.01"), ("--quick",)):
        ignored = call(file, "-o", tmp_path / "out", *other, "--samples", 3)
        assert (ignored.exit_code, "--samples is the number of settings" in ignored.stderr) == (2, True)


def test_the_command_tells_machines_the_ranking(file, tmp_path):
    result = call(file, "-o", tmp_path / "out", "--grid", "gamma=0.01,1e6", "--json")
    *_, end, ranking = map(json.loads, result.stdout.splitlines())
    assert (end["event"], ranking["event"], ranking["measure"]) == ("end", "ranking", "objective")
    best, diverged = ranking["settings"]
    assert best["parameters"] == {"gamma": 0.01}
    assert best["mean"] == pytest.approx(sum(best["values"]) / len(best["values"]))
    assert (diverged["mean"], diverged["fault"]) == (None, "diverged")


def test_what_a_search_has_no_place_for():
    with pytest.raises(ValueError, match="random_iterate cannot be used in a search"):
        tuned({"gamma": [0.1]}, random_iterate=True)
    with pytest.raises(TypeError, match=r"gamma must be a list of values to try; got 0\.1"):
        tuned({"gamma": 0.1})


@pytest.mark.parametrize("measure", ["stationarity", "certificate", "per_agent", "merit"])
def test_settings_of_different_gamma_are_not_ranked_by_a_measure_at_their_own(measure):
    everything = (*metrics.STANDARD, metrics.per_agent(1.0), metrics.merit(1.0))
    base = replace(setup(), metrics=everything)
    unlike, alike = (
        tuning.Search(base, tuning.combinations(grid)) for grid in ({"gamma": [0.001, 0.01]}, {"alpha": [0.1, 0.2]})
    )
    told = rf"measure: {measure} is measured with each setting's own γ, so it cannot rank settings with 2 different"
    with pytest.raises(ValueError, match=told):
        unlike.check(measure)
    with pytest.raises(ValueError, match=told):
        unlike.rank(unlike.setup.run(), measure)
    assert alike.check(measure) is False
    smooth = replace(unlike, base=replace(base, regularizer=regularizers.Zero()))
    if measure == "merit":
        with pytest.raises(ValueError, match=told):
            smooth.check(measure)
    else:
        assert smooth.check(measure) is False, "without a regularizer G is the gradient, whatever γ is"


def test_the_command_if_everything_diverges(file, tmp_path):
    result = call(file, "-o", tmp_path / "out", "--grid", "gamma=1e6,1e7")
    assert result.exit_code == 4
    assert "no setting is left: every one diverged" in result.stderr
    assert (tmp_path / "out" / "ranking.csv").exists()
    assert (tmp_path / "out" / "sweep" / "records.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give either --grid, such as"),
        (("--grid", "gamma"), "--grid takes a parameter and its values, such as gamma=0.01,0.1; got 'gamma'"),
        (("--grid", "gamma=1,x"), "--grid takes numbers separated by commas"),
        (("--grid", "gamma=1", "--grid", "gamma=2"), "gamma is given twice"),
        (("--random", "gamma=1,2"), "such as gamma=0.001..1; got '1,2'; a list of values is for --grid"),
        (("--grid", "gamma=1", "--random", "alpha=1..2"), "give either --grid, such as"),
        (("--grid", "weight=1"), "weight cannot be searched for Prox-DASA"),
        (("--grid", "gamma=1", "--measure", "accuracy"), "records no 'accuracy'"),
    ],
)
def test_bad_input_is_one_line(file, tmp_path, words, message):
    result = call(file, "-o", tmp_path / "out", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_help_tells_how():
    shown = " ".join(call("--help").stdout.split())
    for word in ("--grid", "--random", "--measure", "alpha.scale"):
        assert word in shown


# ---------- the weights of the regularizer


def test_a_search_over_the_weight_is_its_single_runs():
    grid = {"regularizer.weight": [0.0, 0.01, 0.5], "gamma": [0.01, 0.02]}
    search = tuning.Search(setup(), tuning.combinations(grid))
    result = search.setup.run()
    for s, setting in enumerate(search.settings):
        alone = setup(proxdasa.ProxDASA(setting["gamma"]), regularizer=L1(setting["regularizer.weight"])).run()
        torch.testing.assert_close(result.x[2 * s : 2 * s + 2], alone.x, rtol=1e-10, atol=1e-12)
        assert result.records[-12 + 2 * s]["objective"] == pytest.approx(alone.last[0]["objective"], rel=1e-9)


def test_the_best_weight_is_in_the_best_regularizer():
    base = {"regularizer": regularizers.Scaled(regularizers.Blocks([(0, 2, L1(1.0))]), 1.0)}
    found = tuned({"regularizer.factor": [0.01, 0.3]}, **base)
    assert found.best == {"regularizer.factor": 0.01}
    assert found.regularizer == regularizers.Scaled(base["regularizer"].regularizer, 0.01)
    assert found.algorithm.gamma == 1.0
    inner = tuned({"regularizer.regularizer.parts[0][2].weight": [0.02, 0.3]}, **base)
    assert inner.regularizer.regularizer == regularizers.Blocks([(0, 2, L1(0.02))])


@pytest.mark.parametrize(
    ("grid", "settings", "message"),
    [
        ({"regularizer.weight": [0.1, 1]}, {"measure": "objective", "regularizer": L1(1)}, "objective contains Ψ"),
        ({"regularizer.weight": [0.1, 1]}, {"measure": "table_stationarity", "regularizer": L1(1)}, "contains Ψ"),
        ({"regularizer.weight": [0.1]}, {}, "regularizer.weight cannot be searched: it is not a weight of Zero.* none"),
        ({"regularizer.l1": [0.1]}, {"regularizer": L1(1)}, "not a weight of L1; accepted: regularizer.weight"),
        ({"regularizer.weight": [0.1]}, {"regularizer": L1([1, 1, 1])}, "not a weight of L1; accepted: none"),
        ({"regularizer.weight": [-0.1]}, {"regularizer": L1(1)}, "L1.weight of trial 0 must be"),
        (
            {"gamma": [0.1]},
            {"regularizer": L1(schedules.per_trial([1]))},
            "weight differs by trial already",
        ),
    ],
)
def test_searches_over_weights_that_do_not_work_are_refused(grid, settings, message):
    with pytest.raises(ValueError, match=message):
        tuned(grid, **settings)


def test_a_measure_with_its_own_regularizer_compares_weights():
    own = metrics.table_stationarity(L1(0.1))
    found = tuned({"regularizer.weight": [0.1, 0.5]}, measure="table_stationarity", regularizer=L1(1), metrics=[own])
    assert found.best == {"regularizer.weight": 0.1}


def test_the_command_searches_weights_and_prints_the_regularizer(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    options = ["--grid", "regularizer.weight=0.01,0.02", "--measure", "loss", "--output", str(tmp_path / "out")]
    said = CliRunner().invoke(cli.app, ["tune", str(file), *options])
    assert said.exit_code == 0, said.output
    best = tomllib.loads(said.stdout.partition("the best setting")[2].partition("\n")[2])
    assert best["regularizer"]["name"] == "L1"
    assert best["regularizer"]["weight"] in (0.01, 0.02)
    assert best["algorithm"]["name"] == "ProxDASA"


EVENTS = {
    "outages": {"conditions": [LinkLoss(0.3), Outages(6, 3)]},
    "noise": {"conditions": [Bursts(5, 3), MessageNoise(0.1), Participation(0.8)]},
    "late": {"conditions": [StaleMessages(2)]},
    "RandK": {"mixing": proxdasa.CompressedGossip(proxdasa.compressors.RandK(0.5), step=0.5)},
    "QSGD": {"mixing": proxdasa.CompressedGossip(proxdasa.compressors.QSGD(3), step=0.3)},
}


@pytest.mark.filterwarnings("ignore::proxdasa.conditions.TrackerWarning")
@pytest.mark.parametrize(
    ("events", "exact"),
    [*((events, False) for events in EVENTS), ("outages", True), ("QSGD", True)]
    + [pytest.param(events, True, marks=pytest.mark.slow) for events in ("noise", "late", "RandK")],
)
def test_all_settings_meet_the_same_events(events, exact):
    """Settings with equal parameters end with equal bits, and each is the run with its setting."""
    base = Setup(
        proxdasa.ProxDASAGT(0.1), retrieval(), networks.ring(3), iterations=12, trials=2, exact=exact,
        observe_every=12, metrics=(), **EVENTS[events],
    )  # fmt: skip
    search = tuning.Search(base, [{"gamma": γ} for γ in (0.02, 0.01, 0.02)])
    found = search.setup.run()
    for rows in found.state.values():
        assert torch.equal(rows[:2], rows[4:])
        assert rows.shape[-1] == 1 or not torch.equal(rows[0], rows[1]), "a counter is the same in all trials"
    for number, setting in enumerate(search.settings[:2]):  # the third has the bits of the first
        alone = replace(base, algorithm=tuning.with_parameters(base.algorithm, setting)).run()
        torch.testing.assert_close(found.x[2 * number : 2 * number + 2], alone.x)
        for count in ("bytes", "samples"):
            assert found.records[-1][count] == pytest.approx(alone.records[-1][count], rel=1e-12)


@pytest.mark.parametrize("trials", [4, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {"conditions": [LinkLoss(0.3)]},
        {"mixing": proxdasa.CompressedGossip(proxdasa.compressors.RandK(0.5), step=0.5)},
    ],
    ids=["links", "RandK"],
)
def test_trials_that_repeat_already_meet_the_events_of_their_run(changes, trials):
    base = replace(setup(iterations=12, trials=trials, **changes), problem=Repeated(retrieval(), 2))
    alone, found = base.run().x, tuning.Search(base, [{"gamma": 0.01}] * 2).setup.run().x
    torch.testing.assert_close(alone[2], alone[0])
    assert not torch.allclose(alone[1], alone[0])
    torch.testing.assert_close(found, alone.repeat(2, 1, 1))


@pytest.mark.parametrize(
    ("changes", "count", "refused"),
    [
        ({"conditions": [LinkLoss(0.3)]}, 2, True),
        ({"mixing": proxdasa.CompressedGossip(proxdasa.compressors.RandK(0.5), step=0.5)}, 2, True),
        ({"conditions": [LinkLoss(0.3)]}, 1, False),
        ({"mixing": proxdasa.CompressedGossip(proxdasa.compressors.TopK(0.5), step=0.5)}, 2, False),
        ({}, 2, False),
    ],
    ids=["links", "RandK", "one setting", "TopK", "nothing random"],
)
def test_a_search_of_before_events_repeated_does_not_go_on(changes, count, refused, tmp_path):
    """Its checkpoints have the fingerprint of the configuration; where nothing repeats they are as good as before."""
    made = tuning.Search(setup(**changes), [{"gamma": 0.01}] * count).setup
    before = made.loop()
    before.fingerprint = fingerprint(made.config())
    before.run(saving=Saving(tmp_path, 10))
    if refused:
        with pytest.raises(ValueError, match="belongs to a run with other settings"):
            made.run(saving=Saving(tmp_path, 10))
    else:
        assert made.run(saving=Saving(tmp_path, 10)).iterations == 20
