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
from proxdasa.reports import Line, Run, draw, figures, load_runs, summarise, write_csv
from proxdasa.reports.tables import slope

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
    return Run(title, label, agents, {}, rows(loss=losses, **measures), ending)


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
    k, mean, half = run([[4.0, 6.0, 11.0], [1.0, 1.0, 1.0]]).curve("loss")
    assert k.tolist() == [0, 10]
    assert mean.tolist() == [7, 1]
    assert half == pytest.approx([T[2] * math.sqrt((9 + 1 + 16) / 2) / math.sqrt(3), 0], rel=1e-4)


def test_one_trial_has_no_confidence_interval():
    _, mean, half = run([[4.0], [2.0]]).curve("loss")
    assert mean.tolist() == [4, 2]
    assert half.tolist() == [0, 0]


def test_the_curve_goes_on_with_the_trials_that_are_left():
    ragged = Run("M", "r", 1, {}, rows(loss=[[4.0, 100.0], [2.0, 200.0]])[:3])
    assert ragged.curve("loss")[1].tolist() == [52, 2]
    assert ragged.final("loss") == (2, 0)
    assert np.array_equal(ragged.first_below("loss", 3), [10, np.nan], equal_nan=True)


def test_the_end_is_the_last_observation():
    assert run([[4.0, 6.0], [1.0, 3.0]]).final("loss") == (
        2,
        pytest.approx(T[1] * math.sqrt(2) / math.sqrt(2), rel=1e-4),
    )


def test_the_first_iteration_at_or_below_a_target():
    three = run([[5.0, 0.5, 9.0], [2.0, 3.0, 9.0], [3.0, 3.0, 9.0], [1.0, 3.0, 9.0]])
    assert np.array_equal(three.first_below("loss", 2.0), [10, 0, np.nan], equal_nan=True)
    assert np.array_equal(three.first_below("loss", 1.9), [30, 0, np.nan], equal_nan=True)


def test_a_measure_that_was_not_recorded_is_nan():
    some = run([[4.0], [2.0]])
    assert math.isnan(some.final("stationarity")[0])
    assert np.isnan(some.curve("stationarity")[1]).all()
    assert np.isnan(some.first_below("stationarity", 1.0)).all()


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
    assert (first.final("loss")[0], second.final("loss")) == (2, (8, 0))
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
    assert table.lines == [Line("M", "r", 4, 15.0, 3.0, pytest.approx(T[1], rel=1e-4), 1.0, 2.0)]
    assert table.slopes == []
    assert summarise([one], target=3.0).lines[0].iterations_to_target == 15
    assert math.isnan(summarise([one], target=2.0).lines[0].iterations_to_target), "one trial never got there"


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
    assert list(first.values()) == ["M", "n = 2", "2", "10.0", "0.5", "0.0", "0.1", "1.0"]
    assert second["run"] == 'with, comma and "quotes"'
    assert (second["iterations_to_target"], second["stationarity"], second["loss"]) == ("nan", "nan", "7.0")


# figures


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn, as matplotlib knows them."""
    made = []

    class Kept(figures.Figure):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(figures, "Figure", Kept)
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


def test_a_figure_is_a_png_of_sensible_size(tmp_path):
    path = draw([power(2)], tmp_path / "new" / "figure.png")
    assert path == tmp_path / "new" / "figure.png"
    width, height, filled = png(path)
    assert 1200 < width < 2000
    assert 300 < height < 600
    assert filled > 0.001, "something is drawn"


def test_one_row_per_method_one_column_per_measure_one_curve_per_run(tmp_path, drawn):
    runs = [power(n, title=title) for title in ("A", "B") for n in (2, 4, 8)]
    draw(runs, tmp_path / "figure.png")
    axes = np.array(drawn[0].axes).reshape(2, 3)
    assert [ax.get_title() for ax in axes[1]] == [
        "B: loss F(x̄)", "B: stationarity ‖G(x̄, ∇F(x̄), γ)‖²", "B: consensus error ‖X − X̄‖²/n",
    ]  # fmt: skip
    assert all([line.get_label() for line in ax.lines] == ["n = 2", "n = 4", "n = 8"] for ax in axes.flat)
    assert axes[0, 1].lines[2].get_ydata().tolist() == [9, 1 / 8]
    assert len({line.get_color()[:3].tobytes() for line in axes[0, 0].lines}) == 3
    assert all(a.get_color() is not None for a in axes[0, 0].lines)
    for a, b in zip(axes[0, 0].lines, axes[1, 0].lines, strict=True):
        assert np.array_equal(a.get_color(), b.get_color()), "the same size, the same colour"
    assert {ax.get_yscale() for ax in axes.flat} == {"log"}
    assert [ax.get_xlabel() for ax in axes[1]] == ["iteration k"] * 3


def test_every_curve_is_named_in_the_legend_of_its_row(tmp_path, drawn):
    draw(
        [run([[2.0], [1.0]], title="A", label="first"), run([[2.0], [1.0]], title="B", label="second")],
        tmp_path / "f.png",
    )
    legends = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in drawn[0].axes]
    assert legends == [["first"], ["second"]]


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


def test_the_room_exports_what_it_is_used_for():
    assert {"Run", "draw", "load_runs", "summarise", "write_csv"} <= set(reports.__all__)
