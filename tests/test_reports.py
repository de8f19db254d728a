"""Runs read from records alone, their curves and labels, checked against records written by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from proxdasa.reports import (
    Run,
    finals,
    load_runs,
    summarise,
)
from tests.results import T, rows, run, save_rows

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
    (loaded,) = load_runs([save_rows(tmp_path / "one", title="Prox", agents=7)])
    assert (loaded.title, loaded.label, loaded.agents, loaded.ending) == ("Prox", "one", 7, None)
    assert loaded.final("loss")[0] == 2
    assert loaded.config["trials"] == 2


def test_the_folder_one_stands_in_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(save_rows(tmp_path / "here"))
    assert load_runs([Path()])[0].label == "here"


def labels(tmp_path, *configs, facts=()):
    facts = facts or [{}] * len(configs)
    folders = [save_rows(tmp_path / f"run{i}", c, **f) for i, (c, f) in enumerate(zip(configs, facts, strict=True))]
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
        save_rows(tmp_path / "all" / name, config)
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
    assert load_runs([save_rows(tmp_path / "r", {"ending": ending})])[0].ending == words


def test_a_run_without_records_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"records\.jsonl is empty: the run ended before its first observation"):
        load_runs([save_rows(tmp_path / "r", records=[])])


# sweeps

GAMMAS = {"algorithm": {"name": "A", "gamma": [0.1, 0.5, 0.1], "alpha": {"name": "constant", "value": 1}}, "trials": 3}


def test_a_sweep_is_one_run_for_each_combination_of_its_parameters(tmp_path):
    records = rows(loss=[[4.0, 9.0, 6.0], [1.0, 8.0, 3.0]])
    first, second = load_runs([save_rows(tmp_path / "sweep", GAMMAS, records)])
    assert (first.label, second.label) == ("gamma = 0.1", "gamma = 0.5")
    assert (first.final("loss").mean, second.final("loss").mean) == (2, 8)
    assert (first.trials, second.trials) == (2, 1)
    assert (first.config["algorithm"]["gamma"], second.config["algorithm"]["gamma"]) == (0.1, 0.5)
    assert [line.run for line in summarise([first, second]).lines] == ["gamma = 0.1", "gamma = 0.5"]


def test_a_sweep_over_schedules_beside_another_run(tmp_path):
    alpha = {"name": "diminishing", "alpha": [1.0, 2.0]}
    sweep = save_rows(tmp_path / "a", {"algorithm": {"name": "A", "gamma": [0.1, 0.5], "alpha": alpha}})
    other = save_rows(tmp_path / "b", {"algorithm": {"name": "A", "gamma": 0.3, "alpha": {**alpha, "alpha": 1.0}}})
    assert [loaded.label for loaded in load_runs([sweep, other])] == [
        "gamma = 0.1, alpha = 1.0", "gamma = 0.5, alpha = 2.0", "gamma = 0.3, alpha = 1.0",
    ]  # fmt: skip


def test_parts_of_a_sweep_are_told_apart_where_folders_name_the_runs(tmp_path):
    long = {"note": "a setting of so many words that a legend has no room for it"}
    sweep = save_rows(tmp_path / "a", GAMMAS | long, rows(loss=[[4.0, 9.0, 6.0]]))
    other = save_rows(tmp_path / "b")
    assert [loaded.label for loaded in load_runs([sweep, other])] == ["a, gamma = 0.1", "a, gamma = 0.5", "b"]


def test_equal_values_and_lists_that_are_not_per_trial_are_no_sweep(tmp_path):
    (loaded,) = load_runs(
        [save_rows(tmp_path / "r", {"algorithm": {"name": "A", "gamma": [0.1, 0.1], "sizes": [1, 2, 3]}})]
    )
    assert (loaded.label, len(loaded.rows)) == ("r", 4)
    assert loaded.config["algorithm"]["sizes"] == [1, 2, 3]


def test_each_part_of_a_sweep_has_its_own_ending(tmp_path):
    ending = {"iterations": 20, "stopped": None, "diverged": {"2": {"agent": 0, "iteration": 3}}}
    first, second = load_runs([save_rows(tmp_path / "r", GAMMAS | {"ending": ending}, rows(loss=[[4.0, 9.0, 6.0]]))])
    assert first.ending == "1 of 2 trials diverged; the means are over what was recorded"
    assert second.ending is None
