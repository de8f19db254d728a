"""Figures from records alone: what is drawn, where, and how it is told apart."""

import itertools
import math
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from proxdasa import algorithms, networks, reports
from proxdasa.reports import (
    Curve,
    Panel,
    Run,
    draw,
    draw_comparison,
    draw_panels,
    draw_runs,
    quantity,
)
from proxdasa.reports.looks import METHODS, dashes, method_looks, run_looks
from proxdasa.reports.plan_figures import Drawing, draw_graphs
from tests.results import T, power, run

# figures


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
    return draw_comparison([costly("A", RISING)], path, axes=("epochs", "passes", "k"))


@pytest.mark.parametrize(
    ("drawing", "rows"),
    [(lambda path: draw([power(2)], path), 1), pytest.param(comparison, 2, marks=pytest.mark.slow)],
)
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
        "loss F(x̄)", "stationarity at own γ\n‖G(x̄, ∇F(x̄), γ)‖²", "consensus error ‖X − X̄‖²/n",
    ]  # fmt: skip
    assert all([line.get_label() for line in ax.lines] == ["n = 2", "n = 4", "n = 8"] for ax in axes.flat)
    assert axes[0, 1].lines[2].get_ydata().tolist() == [9, 1 / 8]
    assert len({line.get_color()[:3].tobytes() for line in axes[0, 0].lines}) == 3
    for a, b in zip(axes[0, 0].lines, axes[1, 0].lines, strict=True):
        assert np.array_equal(a.get_color(), b.get_color()), "the same size, the same colour"
    assert {ax.get_yscale() for ax in axes.flat} == {"log"}
    assert [ax.get_xlabel() for ax in axes.flat] == [""] * 3 + ["iteration k"] * 3
    assert named_by(drawn[0]) == ["n = 2", "n = 4", "n = 8"], "one legend for all"
    assert all(ax.get_legend() is None for ax in axes.flat)


def named_by(owner):
    legend = owner.legends[0] if hasattr(owner, "legends") else owner.get_legend()
    return [text.get_text() for text in legend.get_texts()]


def test_methods_share_panels_and_each_has_its_colour(tmp_path, drawn):
    draw([run([[2.0], [1.0]], title=title) for title in ("Prox-DASA", "D-PSGD")], tmp_path / "f.png")
    draw([run([[2.0], [1.0]], title=title) for title in ("SPPDM", "D-PSGD")], tmp_path / "f.png")
    first, second = ({line.get_label(): line.get_color() for line in one.axes[0].lines} for one in drawn)
    assert first["D-PSGD"] == second["D-PSGD"], "the same everywhere"
    assert len({*first.values(), *second.values()}) == 3
    assert named_by(drawn[0]) == ["Prox-DASA", "D-PSGD"]


def test_rows_of_a_sweep_have_legends_of_their_own(tmp_path, drawn):
    sweeps = {"A": ("a", "b", "c"), "B": ("d",)}
    draw([run([[2.0], [1.0]], title=m, label=label) for m in sweeps for label in sweeps[m]], tmp_path / "f.png")
    assert [named_by(ax) for ax in drawn[0].axes] == [["a", "b", "c"], ["d"]]
    assert not drawn[0].legends


def test_every_method_has_a_look_of_its_own():
    assert sorted(METHODS) == sorted(method.facts.title for method in algorithms.ALL)
    assert len({colour for colour, _ in METHODS.values()}) == len(METHODS)
    looks = method_looks(["D-PSGD", "mine", "Prox-DASA", "yours"])
    assert len({look["color"] for look in looks.values()}) == 4, "a method of a user takes a colour that is left"


VISION = {
    "usual": np.eye(3),
    "without red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "without green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
}
"""How linear red, green and blue are seen: the matrices of Machado, Oliveira and Fernandes (2009), severity 1."""


def lab(colour, vision):
    """A colour in CIELAB, in which distances are those that people see."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(np.array(vision) @ linear, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
def test_colours_differ_from_each_other_and_from_paper_for_the_colour_blind_too(vision):
    colours = ["#FFFFFF", *(colour for colour, _ in METHODS.values())]
    seen = {colour: lab(colour, VISION[vision]) for colour in colours}
    least = min(float(np.linalg.norm(seen[a] - seen[b])) for a, b in itertools.combinations(colours, 2))
    assert least > (25 if vision == "usual" else 14)


def test_the_colour_is_the_method_also_where_no_two_runs_have_the_same_setting():
    """Three methods with four values each: twelve values, but four dashes are enough."""
    runs = [run([[1.0]], title=title, label=f"{title}{i}") for title in ("A", "B", "C") for i in range(4)]
    names, looks, legend = run_looks(runs)
    assert legend == looks
    assert [looks[name]["linestyle"] for name in names] == 3 * ["-", "--", ":", "-."]
    assert [len({looks[name]["color"] for name in names[i : i + 4]}) for i in (0, 4, 8)] == [1, 1, 1]
    assert len({looks[name]["color"] for name in names}) == 3
    more = run_looks([*runs, run([[1.0]], title="A", label="A5")])
    assert len({repr(look) for look in more.looks.values()}) == 13, "a fifth of one method: each has its own look"


def test_dashes_tell_the_second_setting_of_runs(tmp_path, drawn):
    runs = [run([[2.0], [1.0]], title=title, label=net) for title in ("A", "B") for net in ("ring", "grid")]
    draw(runs, tmp_path / "f.png")
    lines = drawn[0].axes[0].lines
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-", "--"]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert named_by(drawn[0]) == ["A", "B", "ring", "grid"]
    with pytest.raises(ValueError, match="a figure can distinguish 4 dashes, but the runs have 5 different values"):
        dashes([str(i) for i in range(5)])


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


@pytest.mark.parametrize("titles", [("$x_1$", "$y^2$"), ("$x_1$",)])
def test_labels_with_dollar_signs_are_no_formulas(tmp_path, drawn, titles):
    """As labels of runs, in one legend or one for each row, titles of panels and labels of axes."""
    curves = [Curve(f"$a_{i}$ $", *(np.array([1.0, 2.0]) for _ in range(4))) for i in range(len(titles))]
    grid = [[Panel(title, "$k$", "$f$", [curve])] for title, curve in zip(titles, curves, strict=True)]
    draw_panels(grid, tmp_path / "figure.png")
    (figure,) = drawn
    legends = [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]
    texts = [text for legend in legends for text in legend.get_texts()]
    assert [text.get_text() for text in texts] == [curve.label for curve in curves]
    for ax in figure.axes:
        texts += [ax.title, ax.xaxis.label, ax.yaxis.label]
    assert not any(text.get_parse_math() for text in texts if text.get_text())


@pytest.mark.parametrize(("values", "shown"), [([0.3, 0.7], "0.4"), ([1e-9, 1.0], r"$\mathdefault{10^{-4}}$")])
def test_numbers_along_a_log_scale_are_plain_if_they_are_of_ordinary_size(tmp_path, drawn, values, shown):
    draw_panels([[Panel("", "x", "y", [line("m", values)])]], tmp_path / "f.png")
    axis = drawn[0].axes[0].yaxis
    labels = [tick.get_text() for tick in axis.get_ticklabels(which="both")]
    assert shown in labels


def test_any_cost_can_be_the_axis(tmp_path, drawn):
    sent = run([[4.0], [2.0], [1.0]], title="A", bytes=[[0.0], [500.0], [1000.0]])
    draw([sent, run([[4.0], [2.0], [1.0]], title="B")], tmp_path / "f.png", axis="bytes")
    (ax,) = drawn[0].axes
    assert ax.get_xlabel() == "bytes that an agent sends"
    assert ax.lines[0].get_xdata().tolist() == [0, 500, 1000]
    assert not np.isfinite(ax.lines[1].get_xdata()).any(), "the second recorded none"
    with pytest.raises(ValueError, match=r"axis must be one of k, samples, .*; got 'bites'"):
        draw([sent], tmp_path / "f.png", axis="bites")
    with pytest.raises(ValueError, match="the records hold none of rounds"):
        draw([sent], tmp_path / "f.png", axis="rounds")


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
        quantity(axis).label for axis in ("seconds", "epochs", "passes", "rounds")
    ]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["test accuracy (%)", "loss F(x̄)"], "no stationarity recorded"
    assert [[ax.get_yscale() for ax in row] for row in axes] == [["linear"] * 4, ["log"] * 4]
    first, second = axes[0, 2].lines
    assert (first.get_xdata().tolist(), second.get_xdata().tolist()) == ([0, 1, 2], [1, 3, 5])
    assert first.get_ydata() == pytest.approx([10, 80, 90])
    assert [line.get_xdata().tolist() for line in axes[1, 0].lines] == [[0, 5, 9], []], "B has no seconds"
    assert named_by(drawn[0]) == ["A", "B"]
    width, height = drawn[0].get_size_inches()
    assert (8 < width < 14, 4 < height < 8) == (True, True)


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


def fallen(*means, title="A"):
    return run([[value] for value in means], 8, title, gradients=[[10 * i] for i in range(len(means))])


def y_range(drawn, runs, path):
    draw_runs(runs, path, ["loss"], "gradients")
    return drawn[-1].axes[0].get_ylim()


def test_a_scale_shows_where_negative_losses_end_rather_than_where_they_start(tmp_path, drawn):
    low, high = y_range(
        drawn, [fallen(0.0, -9.0, -10.0, -9.9), fallen(0.0, -8.0, -9.5, -9.4, title="B")], tmp_path / "f"
    )
    assert (low, high) == pytest.approx((-10.06, -9.34)), "the last halves of both, and a tenth more"
    flat = y_range(drawn, [fallen(0.0, -10.0, -10.0, -10.0)], tmp_path / "f")
    assert flat == pytest.approx((-10.05, -9.45)), "noise is not magnified beyond a twentieth of the fall"


def test_with_a_start_and_an_end_all_is_shown(tmp_path, drawn):
    low, high = y_range(drawn, [fallen(1_000.0, 1.0)], tmp_path / "f")
    assert low < 1 < 1_000 < high
    low, high = y_range(drawn, [fallen(0.0, -1.0)], tmp_path / "f")
    assert low < -1 < 0 < high
    low, high = y_range(drawn, [fallen(1_000.0, 1.0), fallen(0.5, 0.4, 0.3, title="B")], tmp_path / "f")
    assert high > 1_000, "also of the shorter of two"
    low, high = y_range(drawn, [fallen(0.0, -1.0), fallen(-5.0, -6.0, -7.0, -8.0, title="B")], tmp_path / "f")
    assert high > 0


def test_what_diverges_leaves_the_panel_and_is_named(tmp_path, drawn):
    lasting = fallen(8.0, 4.0, 2.0)
    wild = replace(fallen(8.0, 1e30, title="W"), began=(0,), config={"ending": {"diverged": {"0": {}}}})
    assert y_range(drawn, [lasting, wild], tmp_path / "f")[1] == 16
    assert drawn[-1].axes[0].get_title() == "diverged: W"
    assert y_range(drawn, [wild], tmp_path / "f")[1] > 1e30, "if nothing else is there, it is shown"
    down = replace(fallen(8.0, 1e-9, -1e30, title="W"), began=(0,), config=wild.config)
    assert y_range(drawn, [lasting, down], tmp_path / "f") == (1, 16)
    assert drawn[-1].axes[0].get_yscale() == "log"
    many = [replace(wild, title=f"a method with a name of its own, {i}") for i in range(3)]
    y_range(drawn, [lasting, *many], tmp_path / "f")
    assert drawn[-1].axes[0].get_title() == "3 of 4 runs diverged"


@pytest.mark.parametrize("width", reports.figures.WIDTHS)
@pytest.mark.parametrize("number", [1, 5, 12])
def test_a_legend_fits_the_width_and_takes_few_lines(tmp_path, drawn, width, number):
    runs = [fallen(3.0, 2.0, 1.0, title=title) for title in list(METHODS)[:number]]
    draw_runs(runs, tmp_path / "f", ["loss"], "gradients", width=width)
    (figure,) = drawn
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        axis.set_visible(False)  # numbers take long to place, and none is above the curves
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    rows = -(-number // legend._ncols)
    assert rows <= {"column": {1: 1, 5: 3, 12: 6}, "page": {1: 1, 5: 1, 12: 3}}[width][number]
    assert box.y0 > figure.axes[0].get_window_extent().y1, "above the curves"


def test_four_measures_are_two_by_two(tmp_path, drawn):
    measured = run([[2.0], [1.0]], gradients=[[0], [1]], **{name: [[2.0], [1.0]] for name in ("a", "b", "c")})
    draw_runs([measured], tmp_path / "f", ["loss", "a", "b", "c"], "gradients")
    places = [tuple(ax.get_subplotspec().get_geometry()[:2]) for ax in drawn[0].axes]
    assert places == [(2, 2)] * 4


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


@pytest.mark.parametrize("span", [(140.0, 7_200.0), (2.0, 120.0), (90.0, 1_100.0), (1.0, 1e5)])
def test_numbers_along_a_log_scale_do_not_touch(tmp_path, drawn, span):
    x = np.geomspace(*span, 6)
    panel = Panel("", "seconds", "loss", [Curve("A", x, x, x * 0, x)], log_x=True)
    draw_panels([[panel] * 4], tmp_path / "figure.png")
    (figure,) = drawn
    for ax in (figure.axes[0], figure.axes[-1]):  # as wide as the others
        shown = ax.xaxis.get_ticklabels(which="both")
        low, high = ax.get_xlim()
        inside = [text for text in shown if text.get_text() and low <= text.get_position()[0] <= high]
        assert len(inside) >= 2
        boxes = sorted((box.x0, box.x1) for box in (text.get_window_extent() for text in inside))
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(boxes))


# graphs


@pytest.mark.parametrize("network", [networks.ring(6), networks.star(5), networks.grid(2, 3), networks.complete(4)])
def test_a_graph_is_drawn_with_a_dot_for_each_agent_and_a_line_for_each_edge(tmp_path, drawn, network):
    drawing = Drawing("the title", "the note", network.n, network.edges, network.recipe)
    draw_graphs([drawing, drawing], tmp_path / "f.png")
    assert [ax.get_title() for ax in drawn[0].axes] == ["the title"] * 2
    for ax in drawn[0].axes:
        lines, dots = ax.collections
        places = dots.get_offsets()
        assert [text.get_text() for text in ax.texts] == ["the note"]
        assert len({(round(x, 6), round(y, 6)) for x, y in places.tolist()}) == network.n, "each at its own place"
        assert np.array(lines.get_segments()) == pytest.approx(places[network.edges])


def test_a_graph_that_is_too_large_is_named_and_not_drawn(tmp_path, drawn):
    network = networks.ring(501)
    draw_graphs([Drawing("ring", "", network.n, network.edges, network.recipe)], tmp_path / "f.png")
    (ax,) = drawn[0].axes
    assert [text.get_text() for text in ax.texts] == ["", "too large to draw"]
    assert not ax.collections
