"""Tables and figures from records alone, checked against records written by hand."""

import csv
import json
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from proxdasa import reports
from proxdasa.reports import (
    Curve,
    Line,
    Panel,
    Run,
    Sheet,
    Spread,
    compare,
    draw,
    draw_comparison,
    draw_panels,
    finals,
    load_runs,
    panels,
    summarise,
    words,
    write_csv,
)
from proxdasa.reports.sheets import text
from proxdasa.reports.tables import EXPLANATION, slope

T = {1: 12.7062, 2: 4.30265, 9: 2.26216}
"""Student's t at 0.975 by degrees of freedom, as printed in tables."""


def rows(**measures):
    """Rows at k = 0, 10, 20, ...; each measure is a list over k of lists over trials."""
    return [
        {"trial": trial, "k": 10 * i, **{name: values[i][trial] for name, values in measures.items()}}
        for i, first in enumerate(next(iter(measures.values())))
        for trial in range(len(first))
    ]


def run(losses, agents=1, title="M", label="r", ending=None, **measures):
    config = {"ending": {"diverged": {}}}
    return Run(title, label, agents, config, rows(loss=losses, **measures), ending)


def power(n, exponent=-1.0, title="M"):
    """A run with n agents that reaches a loss of 1 at k = 10 and a stationarity of n^exponent."""
    return run([[8.0], [1.0]], n, title, f"n = {n}", stationarity=[[9.0], [n**exponent]], consensus=[[0.0], [0.1]])


def save(folder, config=None, records=None, **facts):
    """A results folder without the rest of the library."""
    folder.mkdir(parents=True)
    default = {
        "algorithm": {"name": "A", "gamma": 0.1},
        "problem": {"name": "P", "agents": 2},
        "network": {"name": "ring", "agents": 2},
        "trials": 2,
        "iterations": 20,
        "facts": {"title": "M", "agents": 2, **facts},
        "ending": {"iterations": 20, "stopped": None, "diverged": {}},
    }
    (folder / "config.json").write_text(json.dumps(default | (config or {})))
    lines = rows(loss=[[4.0, 6.0], [1.0, 3.0]]) if records is None else records
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


# curves


def test_the_curve_is_the_mean_over_trials_with_its_confidence_interval():
    curve = run([[4.0, 6.0, 11.0], [1.0, 1.0, 1.0]], label="three").curve("loss")
    assert curve.label == "three"
    assert curve.x.tolist() == [0, 10]
    assert curve.mean.tolist() == [7, 1]
    assert curve.half == pytest.approx([T[2] * math.sqrt((9 + 1 + 16) / 2) / math.sqrt(3), 0], rel=1e-4)
    assert curve.lowest.tolist() == [4, 1]


def test_one_trial_has_no_confidence_interval():
    curve = run([[4.0], [2.0]]).curve("loss")
    assert curve.mean.tolist() == [4, 2]
    assert np.isnan(curve.half).all()


def test_the_curve_goes_on_with_the_trials_that_are_left():
    ragged = Run("M", "r", 1, {}, rows(loss=[[4.0, 100.0], [2.0, 200.0]])[:3])
    assert ragged.curve("loss").mean.tolist() == [52, 2]
    assert ragged.final("loss") == pytest.approx((2, math.nan, 2, 2), nan_ok=True)
    assert ragged.trials == 1
    assert np.array_equal(ragged.first_below("loss", 3), [10, np.nan], equal_nan=True)


def test_the_end_is_the_last_observation():
    half = T[1] * math.sqrt(2) / math.sqrt(2)
    assert run([[4.0, 6.0], [1.0, 3.0]]).final("loss") == pytest.approx((2, half, 1, 3), rel=1e-4)


def test_the_first_iteration_at_or_below_a_target():
    three = run([[5.0, 0.5, 9.0], [2.0, 3.0, 9.0], [3.0, 3.0, 9.0], [1.0, 3.0, 9.0]])
    assert np.array_equal(three.first_below("loss", 2.0), [10, 0, np.nan], equal_nan=True)
    assert np.array_equal(three.first_below("loss", 1.9), [30, 0, np.nan], equal_nan=True)


def test_a_measure_that_was_not_recorded_is_nan():
    some = run([[4.0], [2.0]])
    assert math.isnan(some.final("stationarity").mean)
    assert np.isnan(some.curve("stationarity").mean).all()
    assert (some.has("loss"), some.has("stationarity")) == (True, False)
    assert np.isnan(some.first_below("stationarity", 1.0)).all()


def test_a_curve_against_what_it_cost():
    costs = {"seconds": [[0.0, 0.0], [3.0, 3.0]], "epochs": [[0.0, 0.0], [0.5, 0.75]], "rounds": [[0, 0], [20, 20]]}
    some = run([[4.0, 6.0], [1.0, 3.0]], full_gradients=[[1, 1], [2, 4]], **costs)
    x = {axis: some.curve("loss", axis).x.tolist() for axis in ("k", "seconds", "epochs", "passes", "rounds")}
    assert x == {"k": [0, 10], "seconds": [0, 3], "epochs": [0, 0.625], "passes": [1, 3.625], "rounds": [0, 20]}
    assert some.curve("loss", "epochs").mean.tolist() == [5, 2]


def test_passes_of_a_method_without_full_gradients_are_its_epochs():
    assert run([[2.0], [1.0]], epochs=[[0.0], [0.5]]).curve("loss", "passes").x.tolist() == [0, 0.5]


def test_a_run_on_streaming_data_has_no_epochs():
    streaming = run([[2.0], [1.0]], full_gradients=[[0], [0]])
    assert np.isnan(streaming.curve("loss", "passes").x).all()
    assert not streaming.has("epochs")
    assert not streaming.has("passes")


def test_accuracy_is_in_percent_and_time_in_milliseconds_per_iteration():
    some = run([[2.0], [1.0]], accuracy=[[0.1], [0.845]], seconds=[[0.0], [0.02]])
    assert some.curve("accuracy").mean == pytest.approx([10, 84.5])
    assert some.final("milliseconds").mean == pytest.approx(2), "0.02 s for 10 iterations"
    assert math.isnan(some.curve("milliseconds").mean[0])


def test_finals_against_a_parameter_one_curve_per_method():
    def at(beta, title, losses):
        return Run(title, f"beta = {beta}", 2, {"beta": beta}, rows(loss=[[9.0, 9.0], losses]))

    runs = [at(10.0, "B", [1.0, 1.0]), at(0.1, "B", [2.0, 6.0]), at(0.1, "A", [8.0, 8.0])]
    second, first = finals(runs, lambda run: run.config["beta"], "loss")
    assert (second.label, first.label) == ("B", "A"), "in the order of the runs"
    assert second.x.tolist() == [0.1, 10]
    assert second.mean.tolist() == [4, 1]
    assert second.half == pytest.approx([2 * T[1], 0], rel=1e-4)
    assert second.lowest.tolist() == [2, 1]
    (one,) = finals(runs[:2], lambda run: run.config["beta"], "loss", lambda run: "all")
    assert one.label == "all"


# runs and their labels


def test_runs_are_loaded_with_what_a_report_needs(tmp_path):
    (loaded,) = load_runs([save(tmp_path / "one", title="Prox", agents=7)])
    assert (loaded.title, loaded.label, loaded.agents, loaded.ending) == ("Prox", "one", 7, None)
    assert loaded.final("loss")[0] == 2
    assert loaded.config["trials"] == 2


def test_the_folder_one_stands_in_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(save(tmp_path / "here"))
    assert load_runs([Path()])[0].label == "here"


def labels(tmp_path, *configs, facts=()):
    facts = facts or [{}] * len(configs)
    folders = [save(tmp_path / f"run{i}", c, **f) for i, (c, f) in enumerate(zip(configs, facts, strict=True))]
    return [loaded.label for loaded in load_runs(folders)]


def test_labels_say_what_differs_and_nothing_else(tmp_path):
    assert labels(
        tmp_path,
        {"seed": 1, "regularizer": {"name": "L1", "weight": 0.1}},
        {"seed": 2, "regularizer": {"name": "L1", "weight": 0.1}},
        {"seed": 2, "regularizer": {"name": "Zero"}},
    ) == [
        "seed = 1, regularizer = L1, weight = 0.1",
        "seed = 2, regularizer = L1, weight = 0.1",
        "seed = 2, regularizer = Zero",
    ]


def test_labels_name_a_key_in_full_where_its_last_word_is_not_enough(tmp_path):
    configs = [{"seed": seed, "problem": {"name": "P", "agents": 2, "seed": 3 * seed}} for seed in (1, 2)]
    assert labels(tmp_path, *configs) == ["problem.seed = 3, seed = 1", "problem.seed = 6, seed = 2"]


def test_labels_name_a_constant_step_size_by_its_parameter(tmp_path):
    def alpha(**schedule):
        return {"algorithm": {"name": "A", "gamma": 0.1, "alpha": schedule}}

    one, two = alpha(name="constant", value=0.1), alpha(name="constant", value=0.2)
    assert labels(tmp_path / "a", one, two) == ["alpha = 0.1", "alpha = 0.2"]
    assert labels(tmp_path / "b", one, alpha(name="nesterov")) == ["alpha = constant, value = 0.1", "alpha = nesterov"]


def test_runs_that_differ_in_much_are_named_by_their_folders(tmp_path):
    for name in ("a/long", "b"):
        config = {f"{name[0]}{i}": f"something rather long {i}" for i in range(3)}
        save(tmp_path / "all" / name, config)
    runs = load_runs([tmp_path / "all" / "a" / "long", tmp_path / "all" / "b"])
    assert [loaded.label for loaded in runs] == ["a/long", "b"]


def test_the_number_of_agents_is_named_once(tmp_path):
    sizes = [2, 4]
    configs = [{"problem": {"name": "P", "agents": n}, "network": {"name": "ring", "agents": n}} for n in sizes]
    assert labels(tmp_path, *configs, facts=[{"agents": n} for n in sizes]) == ["n = 2", "n = 4"]


def test_runs_that_differ_in_the_method_only_are_named_by_their_folders(tmp_path):
    configs = [{"algorithm": {"name": name, "gamma": 0.1}} for name in "AB"]
    assert labels(tmp_path, *configs, facts=[{"title": "A"}, {"title": "B"}]) == ["run0", "run1"]


def test_labels_compare_runs_of_one_method(tmp_path):
    """What one method has and another has not is no difference between the runs of either."""
    methods = ({"name": "A", "gamma": 0.1}, {"name": "B", "a_parameter_with_a_long_name": 0.25, "another_such": 0.5})
    betas = [{"algorithm": method, "partition": {"beta": beta}} for method in methods for beta in (0.1, 10)]
    facts = [{"title": config["algorithm"]["name"]} for config in betas]
    assert labels(tmp_path, *betas, facts=facts) == ["beta = 0.1", "beta = 10"] * 2


def test_runs_that_their_settings_do_not_tell_apart_are_named_by_their_folders(tmp_path):
    assert labels(tmp_path, {"seed": 1}, {"seed": 2}, {"seed": 2}) == ["run0", "run1", "run2"]


def test_how_a_run_ended_is_no_difference_between_settings(tmp_path):
    ending = {"iterations": 5, "stopped": "interrupted", "diverged": {}}
    assert labels(tmp_path, {}, {"ending": ending}, facts=[{}, {"torch": "1"}]) == ["run0", "run1"]


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ({"iterations": 20, "stopped": None, "diverged": {}}, None),
        ({"iterations": 5, "stopped": "interrupted", "diverged": {}}, "interrupted after 5 of 20 iterations"),
        (
            {"iterations": 20, "stopped": None, "diverged": {"1": {"agent": 0, "iteration": 3}}},
            "1 of 2 trials diverged; the means are over what was recorded",
        ),
    ],
)
def test_how_a_run_ended(tmp_path, ending, words):
    assert load_runs([save(tmp_path / "r", {"ending": ending})])[0].ending == words


def test_a_run_without_records_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"records\.jsonl is empty: the run ended before its first observation"):
        load_runs([save(tmp_path / "r", records=[])])


# sweeps

GAMMAS = {"algorithm": {"name": "A", "gamma": [0.1, 0.5, 0.1], "alpha": {"name": "constant", "value": 1}}, "trials": 3}


def test_a_sweep_is_one_run_for_each_combination_of_its_parameters(tmp_path):
    records = rows(loss=[[4.0, 9.0, 6.0], [1.0, 8.0, 3.0]])
    first, second = load_runs([save(tmp_path / "sweep", GAMMAS, records)])
    assert (first.label, second.label) == ("gamma = 0.1", "gamma = 0.5")
    assert (first.final("loss").mean, second.final("loss").mean) == (2, 8)
    assert (first.trials, second.trials) == (2, 1)
    assert (first.config["algorithm"]["gamma"], second.config["algorithm"]["gamma"]) == (0.1, 0.5)
    assert [line.run for line in summarise([first, second]).lines] == ["gamma = 0.1", "gamma = 0.5"]


def test_a_sweep_over_schedules_beside_another_run(tmp_path):
    alpha = {"name": "diminishing", "alpha": [1.0, 2.0]}
    sweep = save(tmp_path / "a", {"algorithm": {"name": "A", "gamma": [0.1, 0.5], "alpha": alpha}})
    other = save(tmp_path / "b", {"algorithm": {"name": "A", "gamma": 0.3, "alpha": {**alpha, "alpha": 1.0}}})
    assert [loaded.label for loaded in load_runs([sweep, other])] == [
        "gamma = 0.1, alpha = 1.0", "gamma = 0.5, alpha = 2.0", "gamma = 0.3, alpha = 1.0",
    ]  # fmt: skip


def test_parts_of_a_sweep_are_told_apart_where_folders_name_the_runs(tmp_path):
    long = {"note": "a setting of so many words that a legend has no room for it"}
    sweep = save(tmp_path / "a", GAMMAS | long, rows(loss=[[4.0, 9.0, 6.0]]))
    other = save(tmp_path / "b")
    assert [loaded.label for loaded in load_runs([sweep, other])] == ["a, gamma = 0.1", "a, gamma = 0.5", "b"]


def test_equal_values_and_lists_that_are_not_per_trial_are_no_sweep(tmp_path):
    (loaded,) = load_runs([save(tmp_path / "r", {"algorithm": {"name": "A", "gamma": [0.1, 0.1], "sizes": [1, 2, 3]}})])
    assert (loaded.label, len(loaded.rows)) == ("r", 4)
    assert loaded.config["algorithm"]["sizes"] == [1, 2, 3]


def test_each_part_of_a_sweep_has_its_own_ending(tmp_path):
    ending = {"iterations": 20, "stopped": None, "diverged": {"2": {"agent": 0, "iteration": 3}}}
    first, second = load_runs([save(tmp_path / "r", GAMMAS | {"ending": ending}, rows(loss=[[4.0, 9.0, 6.0]]))])
    assert first.ending == "1 of 2 trials diverged; the means are over what was recorded"
    assert second.ending is None


# tables


@pytest.mark.parametrize("p", [-1.0, -0.5, 0.0, 2.0])
def test_slope_recovers_the_exponent_of_a_power_law(p):
    n = [1, 5, 10, 40]
    assert slope(n, [3 * value**p for value in n]) == pytest.approx(p, abs=1e-12)


def test_slope_is_the_least_squares_fit():
    assert slope([1, math.e, math.e**2], [1, math.e, 1]) == pytest.approx(0)
    assert slope([1, math.e, math.e**2], [1, 1, math.e]) == pytest.approx(0.5)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_slope_is_unknown_where_a_value_is_missing(value):
    assert math.isnan(slope([1, 2, 3], [1.0, value, 3.0]))


def test_the_table_of_a_run():
    one = run(
        [[8.0, 8.0], [3.0, 5.0], [1.0, 3.0]],
        agents=4,
        stationarity=[[9.0, 9.0], [9.0, 9.0], [2.0, 4.0]],
        consensus=[[0.0, 0.0], [0.0, 0.0], [0.5, 1.5]],
    )
    table = summarise([one])
    assert table.target == 4, "twice the final loss"
    assert table.lines == [Line("M", "r", 4, 15.0, 3.0, pytest.approx(T[1], rel=1e-4), 1.0, 2.0, [])]
    assert table.slopes == []
    assert summarise([one], target=3.0).lines[0].iterations_to_target == 15
    assert math.isnan(summarise([one], target=2.0).lines[0].iterations_to_target), "one trial never got there"


def test_the_table_tells_what_diverged_from_what_was_not_recorded(tmp_path):
    ending = {"iterations": 20, "stopped": "diverged", "diverged": {"0": {"agent": 1, "iteration": 7}}}
    losses = rows(loss=[[4.0], [None]])
    broken = save(tmp_path / "broken", {"trials": 1, "ending": ending}, losses)
    unknown = save(tmp_path / "unknown", {"trials": 1}, losses)
    table = summarise(load_runs([broken, unknown]))
    assert [texts[3:] for texts in table.sheet().texts()] == [
        ["not recorded", "not recorded", "diverged"],
        ["not recorded", "not recorded", "not recorded"],
    ]
    assert "lost" not in write_csv(table, tmp_path / "table.csv").read_text()


def test_the_default_target_is_met_by_every_run_that_came_to_its_end():
    good, worse = run([[8.0], [0.5]]), run([[8.0], [2.0]])
    assert summarise([good, worse]).target == 4
    interrupted = run([[8.0], [7.0]], ending="interrupted")
    assert summarise([good, worse, interrupted]).target == 4
    assert summarise([interrupted]).target == pytest.approx(math.sqrt(56)), "14 is above the start"
    lost = run([[8.0], [math.nan]])
    assert summarise([lost, good]).target == 1
    assert math.isnan(summarise([lost]).target)
    negative = run([[0.0], [-2.0]])
    assert summarise([negative]).target == -1
    assert summarise([negative]).lines[0].iterations_to_target == 10


def test_the_default_target_of_a_short_run_is_below_every_start():
    short = [run([[4.0, 3.9], [3.7, 3.5], [3.5, 3.3]]), run([[5.0], [3.6], [3.0]])]
    table = summarise(short)
    assert table.target == pytest.approx(math.sqrt(3.9 * 3.4))
    assert [line.iterations_to_target for line in table.lines] == [15, 10]
    risen = run([[1.0], [2.0]])
    assert summarise([risen]).target == 2, "nothing between start and end"


def test_slopes_are_fitted_per_method_from_three_sizes_on():
    mine, other = [power(n, -0.5) for n in (2, 4, 8)], [power(n, -2.0, "B") for n in (2, 4, 8)]
    first, second = summarise([*mine, *other]).slopes
    assert (first.method, second.method) == ("M", "B")
    assert first.stationarity == pytest.approx(-0.5)
    assert second.stationarity == pytest.approx(-2.0)
    assert first.iterations_to_target == pytest.approx(0.0)
    assert summarise(mine[:2]).slopes == []
    assert summarise([*mine, mine[0]]).slopes == [], "two runs of one size: something else differs"


def test_slopes_are_unknown_if_a_run_did_not_get_there():
    late = Run("M", "n = 16", 16, {}, rows(loss=[[8.0], [7.0]], stationarity=[[1.0], [0.1]]), ending="interrupted")
    (fit,) = summarise([power(2), power(4), late]).slopes
    assert math.isnan(fit.iterations_to_target)
    assert math.isfinite(fit.stationarity)


def test_the_table_as_a_file(tmp_path):
    runs = [power(2), run([[8.0], [7.0]], label='with, comma and "quotes"')]
    path = write_csv(summarise(runs, target=1.0), tmp_path / "table.csv")
    with path.open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert " ".join(first) == (
        "method run agents iterations_to_target stationarity stationarity_half_width consensus loss"
    )
    assert list(first.values()) == ["M", "n = 2", "2", "10.0", "0.5", "nan", "0.1", "1.0"]
    assert second["run"] == 'with, comma and "quotes"'
    assert (second["iterations_to_target"], second["stationarity"], second["loss"]) == ("nan", "nan", "7.0")


# sheets

SHEET = Sheet(
    {"method": "method", "accuracy": "accuracy (%)", "published": "published", "agents": "n"},
    [["D²", Spread(84.7123, 0.1234, 84.4, 85.0), 84.71, 8], ["A_1 & B | C", Spread(*[math.nan] * 4), math.nan, 12345]],
    ["5% of {x}."],
)


def test_a_sheet_in_markdown(tmp_path):
    assert SHEET.write_markdown(tmp_path / "new" / "t.md").read_text(encoding="utf-8") == (
        "| method | accuracy (%) | published | n |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| D² | 84.71 ± 0.12 [84.40, 85.00] | 84.71 | 8 |\n"
        "| A_1 & B \\| C | — | — | 12345 |\n"
        "\n"
        "5% of {x}.\n"
    )


def test_a_sheet_in_latex(tmp_path):
    assert SHEET.write_latex(tmp_path / "t.tex").read_text(encoding="utf-8") == (
        "\\begin{tabular}{lrrr}\n"
        "\\toprule\n"
        "method & accuracy (\\%) & published & n \\\\\n"
        "\\midrule\n"
        "D\\textsuperscript{2} & 84.71 $\\pm$ 0.12 [84.40, 85.00] & 84.71 & 8 \\\\\n"
        "A\\_1 \\& B | C & --- & --- & 12345 \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\n"
        "{\\footnotesize 5\\% of \\{x\\}.\\par}\n"
    )


def test_what_latex_would_take_for_a_command_is_escaped(tmp_path):
    latex = Sheet({"a": "a"}, [["\\ ~ ^ # $ { }"]]).write_latex(tmp_path / "t.tex").read_text()
    assert latex.splitlines()[4] == r"\textbackslash{} \textasciitilde{} \textasciicircum{} \# \$ \{ \} \\"


def test_a_sheet_as_comma_separated_values(tmp_path):
    assert SHEET.write_csv(tmp_path / "t.csv").read_text(encoding="utf-8") == (
        "method,accuracy,accuracy_half_width,accuracy_lowest,accuracy_highest,published,agents\n"
        "D²,84.7123,0.1234,84.4,85.0,84.71,8\n"
        "A_1 & B | C,nan,nan,nan,nan,nan,12345\n"
    )


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        pytest.param((0.33381, 0.00118, 0.332, 0.336), "0.3338 ± 0.0012 [0.3320, 0.3360]", id="loss"),
        pytest.param((84.7, 0.0996, 84.6, 84.8), "84.70 ± 0.10 [84.60, 84.80]", id="half rounds up"),
        pytest.param((68.2, 14.3, 11.35, 77.4), "68 ± 14 [11, 77]", id="plateau"),
        pytest.param((0.012, 0.015, 0.00012, 0.09), "0.012 ± 0.015 [0.00012, 0.090]", id="smallest keeps digits"),
        pytest.param((12345.0, 678.0, 11000.0, 13000.0), "12340 ± 680 [11000, 13000]", id="large"),
        pytest.param((1.234e-11, 3.14e-12, 9e-12, 1.6e-11), "1.23e-11 ± 3.1e-12 [9.0e-12, 1.60e-11]", id="tiny"),
        pytest.param((76.37737, 0.0, 76.37737, 76.37737), "76.38 ± 0", id="trials agree"),
        pytest.param((0.33381, math.nan, 0.33381, 0.33381), "0.3338", id="one trial"),
        pytest.param([math.nan] * 4, "—", id="not recorded"),
    ],
)
def test_two_digits_of_the_half_width_decide(cell, shown):
    assert text(Spread(*cell)) == shown


# comparisons


def trained(title, accuracy, label="r", ending=None, **measures):
    """A run of 10 iterations in 0.02 s that ends with these accuracies, one per trial."""
    trials = len(accuracy)
    costs = {"seconds": [[0.0] * trials, [0.02] * trials]} | measures
    return run([[2.0] * trials, [1.0] * trials], 8, title, label, ending, accuracy=[[0.1] * trials, accuracy], **costs)


PUBLISHED = {"Prox": {"accuracy": 84.71, "loss": 0.3338}, "Other": {"accuracy": 1.0}}


def test_a_comparison_with_published_values(tmp_path):
    """Accuracies 84, 85, 86: mean 85, s = 1, half width 4.30265/√3 = 2.484."""
    sheet = compare([trained("Prox", [0.84, 0.85, 0.86]), trained("Plain", [0.7])], PUBLISHED)
    assert sheet.write_markdown(tmp_path / "t.md").read_text(encoding="utf-8") == (
        "| method | trials | test accuracy (%) | published | loss | published | ms per iteration |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| Prox | 3 | 85.0 ± 2.5 [84.0, 86.0] | 84.71 | 1 ± 0 | 0.3338 | 2 |\n"
        "| Plain | 1 | 70 | — | 1 | — | 2 |\n"
        f"\n{EXPLANATION}\n"
    )
    with sheet.write_csv(tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert " ".join(first) == (
        "method trials accuracy accuracy_half_width accuracy_lowest accuracy_highest accuracy_published "
        "loss loss_half_width loss_lowest loss_highest loss_published milliseconds"
    )
    assert float(first["accuracy_half_width"]) == pytest.approx(T[2] / 3**0.5, rel=1e-5)
    assert (first["accuracy_published"], second["accuracy_published"]) == ("84.71", "nan")
    assert (second["accuracy"], second["accuracy_half_width"]) == ("70.0", "nan")


def test_a_comparison_leaves_out_what_nobody_has():
    sheet = compare([run([[2.0], [1.0]])], {"M": {"accuracy": 80.0}})
    assert list(sheet.columns) == ["method", "trials", "loss", "milliseconds"]
    assert sheet.texts() == [["M", "1", "1", "—"]]
    assert "table_stationarity" in compare([run([[1.0]], table_stationarity=[[0.1]])], {}).columns


def test_a_comparison_names_parameters_where_a_method_ran_more_than_once():
    runs = [trained("Prox", [0.8], label="gamma = 1"), trained("Prox", [0.9], label="gamma = 2"), trained("B", [0.7])]
    assert [row[:2] for row in compare(runs, {}).texts()] == [["Prox", "gamma = 1"], ["Prox", "gamma = 2"], ["B", ""]]


def test_a_comparison_says_which_runs_did_not_end_as_planned(tmp_path):
    ending = {"iterations": 20, "stopped": None, "diverged": {"1": {"agent": 0, "iteration": 13}}}
    records = rows(loss=[[4.0, 6.0], [1.0, 3.0]])[:-1]
    sheet = compare(load_runs([save(tmp_path / "r", {"ending": ending}, records)]), {})
    assert sheet.texts()[0][:3] == ["M", "1", "1"], "the trial that is left"
    assert sheet.notes[1:] == ["M: 1 of 2 trials diverged; the means are over what was recorded."]


# figures


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn, as matplotlib knows them."""
    made = []

    class Kept(panels.Figure):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

        def savefig(self, *args, **kwargs):
            """Drawing pixels takes most of the time, and one test looks at them."""

    monkeypatch.setattr(panels, "Figure", Kept)
    return made


def png(path):
    """Width, height and the share of pixels that are not white, read without matplotlib."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, colours = struct.unpack(">IIBB", data[16:26])
    assert (depth, colours) == (8, 6), "eight bits, red green blue alpha"
    chunks, position = b"", 8
    while position < len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        if data[position + 4 : position + 8] == b"IDAT":
            chunks += data[position + 8 : position + 8 + length]
        position += 12 + length
    lines = np.frombuffer(zlib.decompress(chunks), np.uint8).reshape(height, 1 + 4 * width)
    return width, height, float((lines[:, 1:] != 0).mean())


def comparison(path):
    return draw_comparison([costly("A", RISING, table_stationarity=[[1.0]] * 3)], path, axes=("epochs", "passes", "k"))


@pytest.mark.parametrize(("drawing", "rows"), [(lambda path: draw([power(2)], path), 1), (comparison, 3)])
def test_a_figure_is_a_png_of_sensible_size(tmp_path, drawing, rows):
    path = drawing(tmp_path / "new" / "figure.png")
    assert path == tmp_path / "new" / "figure.png"
    width, height, filled = png(path)
    assert 1200 < width < 2000
    assert 300 * rows < height < 600 * rows
    assert filled > 0.001, "something is drawn"


def test_one_row_per_method_one_column_per_measure_one_curve_per_run(tmp_path, drawn):
    runs = [power(n, title=title) for title in ("A", "B") for n in (2, 4, 8)]
    draw(runs, tmp_path / "figure.png")
    axes = np.array(drawn[0].axes).reshape(2, 3)
    assert [ax.get_title() for ax in axes[1]] == ["B"] * 3
    assert [ax.get_ylabel() for ax in axes[1]] == [
        "loss F(x̄)", "stationarity ‖G(x̄, ∇F(x̄), γ)‖²", "consensus error ‖X − X̄‖²/n",
    ]  # fmt: skip
    assert all([line.get_label() for line in ax.lines] == ["n = 2", "n = 4", "n = 8"] for ax in axes.flat)
    assert axes[0, 1].lines[2].get_ydata().tolist() == [9, 1 / 8]
    assert len({line.get_color()[:3].tobytes() for line in axes[0, 0].lines}) == 3
    assert all(a.get_color() is not None for a in axes[0, 0].lines)
    for a, b in zip(axes[0, 0].lines, axes[1, 0].lines, strict=True):
        assert np.array_equal(a.get_color(), b.get_color()), "the same size, the same colour"
    assert {ax.get_yscale() for ax in axes.flat} == {"log"}
    assert [ax.get_xlabel() for ax in axes.flat] == [""] * 3 + ["iteration k"] * 3
    assert named_by(drawn[0]) == ["n = 2", "n = 4", "n = 8"], "one legend for all"
    assert all(ax.get_legend() is None for ax in axes.flat)


def named_by(owner):
    legend = owner.legends[0] if hasattr(owner, "legends") else owner.get_legend()
    return [text.get_text() for text in legend.get_texts()]


def test_every_curve_is_named_in_the_legend_of_its_row(tmp_path, drawn):
    draw(
        [run([[2.0], [1.0]], title="A", label="first"), run([[2.0], [1.0]], title="B", label="second")],
        tmp_path / "f.png",
    )
    assert [named_by(ax) for ax in drawn[0].axes] == [["first"], ["second"]]
    assert not drawn[0].legends


def test_the_band_is_the_confidence_interval_cut_off_at_the_lowest_trial(tmp_path, drawn):
    draw([run([[4.0, *[5.0] * 8, 6.0], [1.0, *[1.0] * 8, 9.0]])], tmp_path / "f.png")
    (band,) = drawn[0].axes[0].collections
    edges = band.get_paths()[0].vertices
    at_start, at_end = (sorted(set(edges[edges[:, 0] == k, 1])) for k in (0, 10))
    half = T[9] * (2 / 9) ** 0.5 / 10**0.5
    assert at_start == pytest.approx([5 - half, 5 + half], rel=1e-4)
    half = T[9] * (57.6 / 9) ** 0.5 / 10**0.5
    assert at_end == pytest.approx([1.0, 1.8 + half], rel=1e-4), "1.8 - half is below every trial"


@pytest.mark.parametrize(
    "later",
    [
        pytest.param([1e-6, 1e-8], id="falling"),
        pytest.param([1e-11, 6e-14], id="near rounding"),
        pytest.param([1e-6, 1e-15], id="down to rounding"),
    ],
)
@pytest.mark.parametrize("start", [0.0, 6e-16])
def test_agents_that_start_together_do_not_stretch_the_scale_of_their_disagreement(tmp_path, drawn, start, later):
    draw([run([[1.0]] * 3, consensus=[[start], *([value] for value in later)])], tmp_path / "f.png")
    assert drawn[0].axes[1].lines[0].get_ydata().tolist() == later


def test_a_start_that_is_more_than_rounding_is_drawn(tmp_path, drawn):
    measured = [[1e-5], [1e-3], [1e-4]]
    draw([run([[1e-9], [1.0], [1.0]], stationarity=[[1e-9], [1.0], [1.0]], consensus=measured)], tmp_path / "f.png")
    loss, stationarity, consensus = (ax.lines[0].get_ydata().tolist() for ax in drawn[0].axes)
    assert consensus == [1e-5, 1e-3, 1e-4]
    assert loss == stationarity == [1e-9, 1, 1], "a start at the minimum is a fact, not rounding"


def test_one_agent_alone_never_disagrees(tmp_path, drawn):
    draw([run([[2.0], [1.0]], consensus=[[0.0], [0.0]])], tmp_path / "f.png")
    assert drawn[0].axes[1].get_yscale() == "linear"
    assert drawn[0].axes[1].lines[0].get_ydata().tolist() == [0, 0]


def test_a_measure_that_falls_far_is_drawn_to_its_end(tmp_path, drawn):
    draw([run([[1.0], [1e-9], [1e-30]])], tmp_path / "f.png")
    assert drawn[0].axes[0].lines[0].get_ydata().tolist() == [1, 1e-9, 1e-30]


def test_negative_losses_are_drawn_on_a_linear_scale(tmp_path, drawn):
    draw([run([[1.0, 2.0], [-1.0, -3.0]], stationarity=[[1.0, 1.0], [0.1, 0.1]])], tmp_path / "f.png")
    loss, stationarity = drawn[0].axes
    assert loss.get_yscale() == "linear"
    assert loss.lines[0].get_ydata().tolist() == [1.5, -2]
    assert stationarity.get_yscale() == "log"


def test_measures_that_no_run_recorded_have_no_column(tmp_path, drawn):
    draw([run([[2.0], [1.0]], label="a"), power(2)], tmp_path / "some.png")
    draw([run([[2.0], [1.0]])], tmp_path / "one.png")
    assert [len(figure.axes) for figure in drawn] == [3, 1]
    with pytest.raises(ValueError, match="nothing to draw: the records hold none of loss, stationarity, consensus"):
        draw([Run("M", "r", 1, {}, [{"trial": 0, "k": 0, "density": 1.0}])], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_missing_values_leave_a_gap(tmp_path, drawn):
    draw([run([[2.0], [math.nan], [1.0]], stationarity=[[2.0], [1.0], [0.0]])], tmp_path / "f.png")
    loss, stationarity = (ax.lines[0].get_xdata().tolist() for ax in drawn[0].axes)
    assert loss == [0, 20]
    assert stationarity == [0, 10], "0 has no place on a log scale"


# panels


def line(label, mean, x=None):
    mean = np.array(mean, dtype=float)
    x = np.arange(1.0, 1 + len(mean)) if x is None else np.array(x, dtype=float)
    return Curve(label, x, mean, np.zeros_like(mean), mean)


def test_a_label_has_the_same_colour_and_style_in_every_panel(tmp_path, drawn):
    labels = [f"method {i}" for i in range(9)]
    first = Panel("", "x", "y", [line(label, [1, 2]) for label in labels])
    second = Panel("", "x", "z", [line(label, [1, 2]) for label in reversed(labels[1:])])
    draw_panels([[first], [second]], tmp_path / "f.png")
    looks = [
        {drawn.get_label(): (drawn.get_color(), drawn.get_marker(), drawn.get_linestyle()) for drawn in ax.lines}
        for ax in drawn[0].axes
    ]
    assert {label: looks[0][label] for label in looks[1]} == looks[1]
    assert len(set(looks[0].values())) == 9, "no two alike"
    assert len({colour for colour, _, _ in list(looks[0].values())[:7]}) == 7
    assert [named_by(ax) for ax in drawn[0].axes] == [labels, labels[:0:-1]], "rows with different labels"


def test_ordered_labels_take_their_place_in_a_range_of_colours(tmp_path, drawn):
    draw_panels([[Panel("", "x", "y", [line(f"n = {n}", [1, 2]) for n in (5, 10, 20)])]], tmp_path / "f.png", True)
    green = [drawn.get_color()[1] for drawn in drawn[0].axes[0].lines]
    assert green == sorted(green)


def test_panels_with_the_same_label_share_its_range_and_name_it_once(tmp_path, drawn):
    grid = [
        [Panel("a", "k", "loss", [line("m", [1, 100])]), Panel("b", "k", "loss", [line("m", [1, 2, 3])])],
        [Panel("c", "k", "gap", [line("m", [1, 1])])],
    ]
    draw_panels(grid, tmp_path / "f.png")
    a, b, c = drawn[0].axes
    assert len(drawn[0].axes) == 3, "nothing where the grid has no panel"
    assert a.get_ylim() == b.get_ylim() != c.get_ylim()
    assert a.get_ylim()[1] > 100
    assert a.get_xlim() == b.get_xlim() == c.get_xlim()
    assert [ax.get_ylabel() for ax in (a, b, c)] == ["loss", "", "gap"]
    assert [ax.get_xlabel() for ax in (a, b, c)] == ["", "k", "k"]
    assert [ax.get_title() for ax in (a, b, c)] == ["a", "b", "c"]


def test_scales_are_logarithmic_only_for_positive_numbers(tmp_path, drawn):
    curves = {"good": line("m", [1, 2, 3], [0.0, 0.1, 10.0]), "bad": line("m", [1, -2], [-1.0, 1.0])}
    for curve in curves.values():
        draw_panels([[Panel("", "x", "y", [curve], log_x=True)]], tmp_path / "f.png")
    good, bad = (figure.axes[0] for figure in drawn)
    assert (good.get_xscale(), good.get_yscale()) == ("log", "log")
    assert good.lines[0].get_xdata().tolist() == [0.1, 10], "0 has no place on a log scale"
    assert (bad.get_xscale(), bad.get_yscale()) == ("linear", "linear")
    assert bad.lines[0].get_xdata().tolist() == [-1, 1]


@pytest.mark.parametrize(("values", "shown"), [([0.3, 0.7], "0.4"), ([1e-9, 1.0], r"$\mathdefault{10^{-4}}$")])
def test_numbers_along_a_log_scale_are_plain_if_they_are_of_ordinary_size(tmp_path, drawn, values, shown):
    draw_panels([[Panel("", "x", "y", [line("m", values)])]], tmp_path / "f.png")
    axis = drawn[0].axes[0].yaxis
    labels = [tick.get_text() for tick in axis.get_ticklabels(which="both")]
    assert shown in labels


# comparisons of methods


def costly(title, accuracy, label="r", passes=(0.0, 1.0, 2.0), **measures):
    epochs = [[value] for value in passes]
    return run([[4.0], [2.0], [1.0]], 8, title, label, accuracy=[[a] for a in accuracy], epochs=epochs, **measures)


RISING = (0.1, 0.8, 0.9)


def test_methods_beside_each_other(tmp_path, drawn):
    times = {"seconds": [[0.0], [5.0], [9.0]], "rounds": [[0], [10], [20]]}
    draw_comparison(
        [costly("A", RISING, **times), costly("B", RISING, full_gradients=[[1], [2], [3]])], tmp_path / "f.png"
    )
    axes = np.array(drawn[0].axes).reshape(2, 4)
    assert [ax.get_xlabel() for ax in axes[1]] == [
        words(axis).label for axis in ("seconds", "epochs", "passes", "rounds")
    ]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["test accuracy (%)", "loss F(x̄)"], "no stationarity recorded"
    assert [[ax.get_yscale() for ax in row] for row in axes] == [["linear"] * 4, ["log"] * 4]
    first, second = axes[0, 2].lines
    assert (first.get_xdata().tolist(), second.get_xdata().tolist()) == ([0, 1, 2], [1, 3, 5])
    assert first.get_ydata() == pytest.approx([10, 80, 90])
    assert [line.get_xdata().tolist() for line in axes[1, 0].lines] == [[0, 5, 9], []], "B has no seconds"
    assert named_by(drawn[0]) == ["A", "B"]


def test_a_method_that_ran_more_than_once_is_named_with_its_label(tmp_path, drawn):
    runs = [costly("A", RISING, "gamma = 1"), costly("A", RISING, "gamma = 2"), costly("B", RISING, "folder")]
    draw_comparison(runs, tmp_path / "f.png")
    assert named_by(drawn[0]) == ["A, gamma = 1", "A, gamma = 2", "B"]


def test_a_comparison_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing to draw: the records hold none of seconds, rounds"):
        draw_comparison([costly("A", RISING)], tmp_path / "f.png", axes=("seconds", "rounds"))
    with pytest.raises(ValueError, match="nothing to draw: the records hold none of density"):
        draw_comparison([costly("A", RISING)], tmp_path / "f.png", measures=("density",))


def test_a_poor_start_leaves_room_for_the_rest_of_accuracies(tmp_path, drawn):
    draw_comparison([costly("A", (0.1, 0.8, 0.9)), costly("B", (0.1, 0.7, 0.92))], tmp_path / "f.png", ["accuracy"])
    assert drawn[0].axes[0].get_ylim() == pytest.approx((70 - 2.2, 92 + 2.2))


def test_a_start_of_agents_far_apart_leaves_room_for_the_rest(tmp_path, drawn):
    for start in (9.0, 99.0):
        far = costly("A", RISING, table_stationarity=[[start], [1.0], [0.1]])
        draw_comparison([far], tmp_path / "f.png", ["table_stationarity"], ["k"])
    near, far = (figure.axes[0] for figure in drawn)
    assert near.get_ylim()[1] > 9
    assert far.get_ylim()[1] == pytest.approx(2)
    assert far.lines[0].get_ydata().tolist() == [99, 1, 0.1], "out of sight, not left out"


def test_a_method_that_goes_far_leaves_room_for_the_others(tmp_path, drawn):
    runs = [costly(title, RISING) for title in "ABC"]
    draw_comparison([*runs, costly("D", RISING, passes=(1.0, 10.0, 10.0))], tmp_path / "f.png", ["loss"], ["epochs"])
    draw_comparison([*runs, costly("D", RISING, passes=(1.0, 10.0, 11.0))], tmp_path / "f.png", ["loss"], ["epochs"])
    near, far = (figure.axes[0] for figure in drawn)
    assert (near.get_xscale(), far.get_xscale()) == ("linear", "log")
    assert [line.get_xdata().tolist() for line in far.lines] == [[1, 2]] * 3 + [[10, 11]], "the start is left out"


def test_the_room_exports_what_it_is_used_for():
    assert {"Run", "draw", "load_runs", "summarise", "write_csv"} <= set(reports.__all__)
    assert all(hasattr(reports, name) for name in reports.__all__)
