"""Tables of runs: how fast and how far, methods beside each other, and the files they are written to."""

import csv
import math

import pytest

from proxdasa.reports import (
    Run,
    Sheet,
    Spread,
    compare,
    load_runs,
    summarise,
    write_csv,
)
from proxdasa.reports.latex_texts import latex
from proxdasa.reports.table_files import text
from proxdasa.reports.tables import EXPLANATION, slope
from tests.results import T, power, rows, run, save_rows

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
    (line,) = table.lines
    assert (line.method, line.run, line.agents, line.iterations_to_target) == ("M", "r", 4, 15.0)
    assert (line.stationarity, line.stationarity_half_width) == (3.0, pytest.approx(T[1], rel=1e-4))
    assert (line.consensus, line.loss, line.lost) == (1.0, 2.0, {})
    assert all(map(math.isnan, (line.gamma, line.table_stationarity, line.objective))), "nobody recorded them"
    assert table.slopes == []
    assert summarise([one], target=3.0).lines[0].iterations_to_target == 15
    assert math.isnan(summarise([one], target=2.0).lines[0].iterations_to_target), "one trial never got there"


@pytest.mark.parametrize(("second", "shown"), [("ring", False), ("star", True)])
def test_methods_on_different_networks_are_named_by_their_runs_too(tmp_path, second, shown):
    folders = [
        save_rows(tmp_path / name, {"network": {"name": name.partition("-")[2], "agents": 2}}, title=name[0])
        for name in ("A-ring", f"B-{second}")
    ]
    sheet = summarise(load_runs(folders)).sheet()
    assert ("run" in sheet.columns) == shown
    assert [row[:2] for row in sheet.texts()] == [["A", "A-ring"], ["B", "B-star"]] or not shown


def test_the_table_tells_what_diverged_from_what_was_not_recorded(tmp_path):
    ending = {"iterations": 20, "stopped": "diverged", "diverged": {"0": {"agent": 1, "iteration": 7}}}
    losses = rows(loss=[[4.0], [None]])
    broken = save_rows(tmp_path / "broken", {"trials": 1, "ending": ending}, losses)
    unknown = save_rows(tmp_path / "unknown", {"trials": 1}, losses)
    table = summarise(load_runs([broken, unknown]))
    assert [texts[3:] for texts in table.sheet().texts()] == [
        ["not recorded", "not recorded", "diverged"],
        ["not recorded", "not recorded", "not finite"],  # it was too large to be a number, and is null in the records
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
    assert summarise([lost]).title == "measures at the end; no run has a finite loss there"
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
        "method run agents gamma iterations_to_target stationarity stationarity_half_width "
        "table_stationarity table_stationarity_half_width consensus loss objective"
    )
    assert list(first.values()) == [
        "M", "n = 2", "2", "nan", "10.0", "0.5", "nan", "nan", "nan", "0.1", "1.0", "nan",
    ]  # fmt: skip
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
        "A\\_1 \\& B \\textbar{} C & --- & --- & 12345 \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\n"
        "\\smallskip\n"
        "\n"
        "{\\footnotesize 5\\% of \\{x\\}.\\par}\n"
    )


def test_what_latex_would_take_for_a_command_is_escaped(tmp_path):
    latex = Sheet({"a": "a"}, [["\\ ~ ^ # $ { }"]]).write_latex(tmp_path / "t.tex").read_text()
    assert latex.splitlines()[4] == r"\textbackslash{} \textasciitilde{} \textasciicircum{} \# \$ \{ \} \\"


def test_a_row_is_no_argument_of_the_line_break_before_it(tmp_path):
    sheet = Sheet({"[a": "[a", "b": "b"}, [["[0.1, 0.2]", "[1]"], ["*", "x"], ["[c]", ""]], bold=frozenset({(2, 0)}))
    lines = sheet.write_latex(tmp_path / "t.tex").read_text().splitlines()
    assert lines[2] == r"{}[a & b \\"
    assert lines[4:7] == [r"{}[0.1, 0.2] & [1] \\", r"{}* & x \\", r"\textbf{[c]} &  \\"]


def test_latex_is_ascii_whatever_the_text():
    assert latex("F(x̄) ≥ ‖∇F‖₁², 50 % → ∞") == (
        r"F(\={x}) $\ge$ $\|$$\nabla$F$\|$\textsubscript{1}\textsuperscript{2}, 50 \% $\rightarrow$ $\infty$"
    )
    assert latex("Müller’s β — “new”") == "M\\\"{u}ller's $\\beta$ --- ``new''"
    assert latex("中") == r"\texttt{U+4E2D}"


def test_numbers_in_latex_have_a_minus_sign_and_powers_of_ten(tmp_path):
    rows = [["a-1e-5", Spread(-2.5e-9, 3e-10, -3e-9, -2e-9), -5], ["b", Spread(-6.37164726, 2.6e-7, -7.0, -6.0), 1e-12]]
    sheet = Sheet({"method": "method", "loss": "loss", "n": "n"}, rows, short=True)
    lines = sheet.write_latex(tmp_path / "t.tex").read_text().splitlines()
    assert lines[4] == r"a-1e-5 & $-$2.50$\cdot 10^{-9}$ $\pm$ 3.0$\cdot 10^{-10}$ & $-$5 \\", "texts stay as they are"
    assert lines[5] == r"b & $-$6.37164726 $\pm$ 2.6$\cdot 10^{-7}$ & 1$\cdot 10^{-12}$ \\"


def test_a_short_table_keeps_brackets_in_names():
    sheet = Sheet({"run": "run", "loss": "loss"}, [["run [first]", Spread(1.0, 0.1, 0.9, 1.1)]], short=True)
    assert sheet.texts() == sheet.texts(brief=True) == [["run [first]", "1.00 ± 0.10"]]


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
    sheet = compare(load_runs([save_rows(tmp_path / "r", {"ending": ending}, records)]), {})
    assert sheet.texts()[0][:3] == ["M", "1", "1"], "the trial that is left"
    assert sheet.notes[1:] == ["M: 1 of 2 trials diverged; the means are over what was recorded."]
