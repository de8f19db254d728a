"""Methods compared at an equal budget: which values, which test, and what a paper gets."""

import itertools
import json
import re
import shutil
import subprocess
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import PermutationMethod, rankdata, ttest_rel, wilcoxon
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, networks, problems, reports
from proxdasa.reports.axis_quantities import cost_text, value
from proxdasa.reports.paired_tests import SIGNED_RANK, STUDENT, choose_test, holm, judge, signed_rank, student
from tests.results import save

PAPER = {"A": (1.0, 2.0), "B_2": (4.0, 8.0)}
"""Names as LaTeX dislikes them, and losses at the end of two trials."""


def folder(place, title, losses, per_step=1, seed=0, network="ring", **config):
    """Results of a method that evaluates so many gradients in each of ten steps between observations."""
    return save(
        place,
        title,
        losses,
        more={"gradients": lambda i: 10 * per_step * i},
        seed=seed,
        network={"name": network, "agents": 4},
        **config,
    )


def cells(comparison):
    sheet = comparison.sheet()
    rows = [dict(zip(sheet.columns, row, strict=True)) for row in sheet.texts()]
    names = list(sheet.columns)
    return rows, {(rows[i]["method"], names[j]) for i, j in sheet.bold}


def test_runs_are_compared_where_all_have_spent_the_same(tmp_path):
    slow = folder(tmp_path / "a", "slow", [[9.0, 9.0], [5.0, 5.5], [3.0, 3.5]])
    twice = folder(tmp_path / "b", "twice", [[9.0, 9.0], [4.0, 4.5], [1.0, 1.5]], per_step=2)
    rows, bold = cells(by_gradients := proxdasa.compare([slow, twice], ["loss"]))
    assert by_gradients.budget == 20, "what the cheaper of the two has spent in all"
    assert [row["loss"].partition(" ")[0] for row in rows] == ["3.2", "4.2"]
    assert bold == {("slow", "loss")}
    rows, bold = cells(proxdasa.compare([slow, twice], ["loss"], axis="rounds"))
    assert bold == {("twice", "loss")}, "at equal rounds the other is better"
    assert proxdasa.compare([slow, twice], ["loss"], budget=10).at_budget(
        proxdasa.compare([slow], ["loss"]).runs[0], "loss"
    ) == {0: 5.0, 1: 5.5}


def test_a_full_gradient_counts_as_one_for_each_sample_of_a_pass():
    row = {"k": 10, "gradients": 20, "full_gradients": 3, "samples": 10, "epochs": 0.1}
    assert value(row, "gradients") == 20 + 3 * 100
    assert np.isnan(value(row | {"samples": 0, "epochs": 0.0}, "gradients")), "how long a pass is, is not known yet"
    assert value({"k": 10, "gradients": 20, "full_gradients": 0}, "gradients") == 20


def test_what_a_paired_test_cannot_tell_apart_is_bold_too(tmp_path):
    best = folder(tmp_path / "a", "best", [[9.0] * 4, [1.0, 2.0, 3.0, 4.0]])
    tied = folder(tmp_path / "b", "tied", [[9.0] * 4, [1.3, 1.8, 3.4, 3.9]])
    # Worse by 0.1 in every trial: the trials differ by much more, but they see the same samples.
    worse = folder(tmp_path / "c", "worse", [[9.0] * 4, [1.1, 2.11, 3.09, 4.1]])
    _, bold = cells(proxdasa.compare([best, tied, worse], ["loss"]))
    assert bold == {("best", "loss"), ("tied", "loss")}
    other = folder(tmp_path / "d", "tied", [[9.0] * 4, [1.3, 1.8, 3.4, 3.9]], seed=1)
    _, bold = cells(proxdasa.compare([best, other], ["loss"]))
    assert bold == {("best", "loss")}, "trials of another seed are no pairs"
    assert proxdasa.compare([best, other], ["loss"]).statistics.endswith("runs of different seeds are not tested.")


def test_the_caption_names_a_test_only_if_there_was_one(tmp_path, monkeypatch):
    """Otherwise a reader takes a run that is not bold for one that was found worse."""
    monkeypatch.setattr(reports.Comparison, "draw", lambda _comparison, path, _width: path)
    losses = [[9.0] * 4, [1.0, 2.0, 3.0, 4.0]]
    best = folder(tmp_path / "a", "best", losses)
    paired = folder(tmp_path / "b", "paired", [[9.0] * 4, [1.3, 1.8, 3.4, 3.9]])
    alone, too = (folder(tmp_path / name, name, losses, seed=1, problem={"name": "P"}) for name in ("alone", "too"))
    both = proxdasa.compare([best, paired, folder(tmp_path / "c", "other", [[9.0] * 4, [5.0] * 4], seed=1)], ["loss"])
    assert "a paired t-test over the shared seeds" in both.statistics
    assert both.statistics.endswith("Runs that do not share the seeds of the best are not tested, and not bold.")
    first = folder(tmp_path / "d", "first", [[9.0] * 4, [0.1] * 4], seed=2)
    none = proxdasa.compare([best, paired, first], ["loss"])
    assert none.statistics.endswith("Bold: the best; runs of different seeds are not tested.")
    assert len(none.write(tmp_path / "paper")) == 3
    assert proxdasa.compare([best, alone], ["loss"]).statistics.endswith("95% intervals."), "another problem: no ranks"
    assert proxdasa.compare([best, paired], ["loss"]).write(tmp_path / "paper")[-1].name == "comparison-tests.csv"
    none.write(tmp_path / "paper")
    assert not (tmp_path / "paper" / "comparison-tests.csv").exists(), "of another comparison"
    lost = reports.Comparison([*proxdasa.compare([alone]).runs], ["loss"], "k", None, 10, lost=[("D", "")])
    assert lost.statistics.endswith("Bold: the best."), "against a method without a run there is no test"
    sweep = folder(tmp_path / "e", "S", losses, algorithm={"name": "S", "gamma": [0.1, 0.1, 0.2, 0.2]})
    assert proxdasa.compare([sweep], ["loss"]).statistics.endswith("runs of different seeds are not tested.")
    assert proxdasa.compare([alone, too], ["loss"]).statistics.endswith("after Holm's correction).")


def test_runs_are_ranked_on_the_same_evaluation_points(tmp_path):
    """F is a mean over the points of all agents, so with other agents it is another function."""

    def sized(title, n, evaluation):
        more = dict.fromkeys(["objective", "consensus", "gradients"], float)
        problem = {"name": "PhaseRetrieval", "agents": n, "evaluation": evaluation}
        return save(
            tmp_path / f"{title}{n}{evaluation}", title, more=more, problem=problem, facts={"agents": n, "title": title}
        )

    measures = ["loss", "objective", "consensus"]
    sheet = proxdasa.compare([sized("A", 4, 20), sized("A", 8, 20)], measures).sheet()
    why = "is not ranked: the runs differ in their evaluation points, of which each agent has its own."
    assert sheet.notes == [f"loss {why}", f"objective {why}"]
    population = [sized("A", n, "population") for n in (4, 8)]
    assert not proxdasa.compare(population, measures).sheet().notes
    groups = [tmp_path / "A420", tmp_path / "A820", sized("B", 4, 20), sized("B", 8, 20)]
    assert not proxdasa.compare(groups, measures, by="problem").sheet().notes, "each group has its own points"


def test_a_trial_that_went_astray_does_not_make_a_tie(tmp_path):
    """Ten trials, all of them worse, and one of them so much that a t-test sees nothing but its variance."""
    ends = [1.0 + i / 100 for i in range(10)]
    best = folder(tmp_path / "a", "best", [[9.0] * 10, ends])
    astray = folder(tmp_path / "b", "astray", [[9.0] * 10, [end + 0.1 + 50 * (end == 1.03) for end in ends]])
    comparison = proxdasa.compare([best, astray], ["loss"])
    _, bold = cells(comparison)
    assert bold == {("best", "loss")}
    assert "what Wilcoxon's signed-rank test over the shared seeds does not find worse" in comparison.sheet().caption
    assert ttest_rel(ends, [end + 0.1 + 50 * (end == 1.03) for end in ends]).pvalue > 0.3


def test_one_trial_has_no_test_in_a_summary_either(tmp_path):
    runs = [folder(tmp_path / title, title, [[9.0], [end]]) for title, end in (("A", 1.0), ("B", 2.0))]
    summary = reports.BudgetSummary(
        [proxdasa.compare(runs, ["loss"], axis) for axis in ("gradients", "rounds")], "loss"
    )
    assert summary.sheet().notes == ["loss: one trial, so there is no interval and no test."]


def test_what_is_better_in_most_trials_stays_bold(tmp_path):
    """The ranks may prefer another run than the means do: it is then not worse."""
    best = folder(tmp_path / "a", "best", [[9.0] * 20, [1.0] * 20])
    other = folder(tmp_path / "b", "other", [[9.0] * 20, [0.5 + i / 100 for i in range(19)] + [90.0]])
    comparison = proxdasa.compare([best, other], ["loss"])
    _, bold = cells(comparison)
    assert bold == {("best", "loss"), ("other", "loss")}
    ((*_, trials, worse_in, p, corrected, _),) = comparison.tests().rows
    assert (trials, worse_in) == (20, 1)
    assert p == corrected < 0.05, "they are told apart, but the other is not the worse one"


TIED = [0.0, 0.5, -0.5, 1.0, 1.0, -2.0, 0.0, 3.0]
"""Differences of which some have the same size, or none."""


@given(st.lists(st.one_of(st.sampled_from(TIED), st.floats(-5, 5)), min_size=2, max_size=8))
def test_the_paired_tests_are_those_of_scipy(d):
    if np.std(d) > 1e-6:
        assert student(d).p == pytest.approx(ttest_rel(d, np.zeros(len(d))).pvalue, rel=1e-6, abs=1e-12)
    sizes = np.abs(d)
    if len(set(sizes)) == len(d) and all(d):  # as scipy's exact distribution has it
        assert signed_rank(d).p == pytest.approx(wilcoxon(d, method="exact").pvalue, rel=1e-9)
    ranks = rankdata(sizes) * (sizes > 0)
    lean = np.sum(np.sign(d) * ranks)
    signs = np.array(list(itertools.product([-1, 1], repeat=len(d))))
    assert signed_rank(d) == pytest.approx((lean, np.mean(np.abs(signs @ ranks) >= abs(lean))), rel=1e-9)


def test_the_signed_rank_test_is_that_of_scipy_with_ties_and_zeros_too():
    every_sign = PermutationMethod(n_resamples=np.inf)
    for d in (TIED, TIED[2:], TIED[:3]):
        expected = wilcoxon(d, zero_method="pratt", method=every_sign).pvalue
        assert signed_rank(d).p == pytest.approx(expected, rel=1e-9)


def test_identical_trials_are_tied():
    for test in (student, signed_rank):
        assert test([0.0] * 8).p == 1
    assert student([1.0, 1.0]).p == 0, "the same difference in every trial"
    assert signed_rank([1.0] * 8).p == 2 / 2**8


def test_the_signed_rank_test_is_used_where_it_can_find_something():
    fewest = {1: 6, 2: 7, 3: 7, 6: 8, 12: 9, 13: 10, 25: 10}
    for tests, trials in fewest.items():
        assert choose_test(trials, tests) is SIGNED_RANK
        assert choose_test(trials - 1, tests) is STUDENT
        verdicts = judge(SIGNED_RANK, [[1.0 + i for i in range(trials)]] * tests)
        assert all(verdict.worse and verdict.worse_in == trials for verdict in verdicts)


def test_holms_correction():
    """The example of Holm's procedure: 0.01 × 4, 0.013 × 3, 0.04 × 2, 0.5 × 1, never falling."""
    assert holm([0.04, 0.01, 0.5, 0.013]) == pytest.approx([0.08, 0.04, 0.5, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.usefixtures("drawn")
def test_with_many_runs_a_small_difference_is_a_tie(tmp_path):
    """p = 0.03 of one test is found by chance among several: after Holm's correction it is no difference."""
    best = folder(tmp_path / "best", "best", [[9.0] * 4, [1.0, 2.0, 3.0, 4.0]])
    close = [folder(tmp_path / str(i), f"close {i}", [[9.0] * 4, [1.1, 2.14, 3.04, 4.1]]) for i in range(3)]
    _, bold = cells(proxdasa.compare([best, close[0]], ["loss"]))
    assert bold == {("best", "loss")}
    comparison = proxdasa.compare([best, *close], ["loss"])
    _, bold = cells(comparison)
    assert len(bold) == 4
    assert "what a paired t-test over the shared seeds does not find worse" in comparison.sheet().caption
    tests = comparison.write(tmp_path / "paper")[-1]
    assert tests.name == "comparison-tests.csv"
    heading, first, *_ = tests.read_text().splitlines()
    assert heading == "measure,method,run,best,trials,worse_in,p,corrected,test"
    assert re.match(r"loss,close 0,,best,4,4,0\.0\d+,0\.\d+,a paired t-test$", first)


def test_a_diverged_trial_is_a_loss(tmp_path):
    ending = {"iterations": 10, "stopped": None, "diverged": {"1": {"agent": 0, "iteration": 3}}}
    lost = folder(tmp_path / "a", "lost", [[9.0, 9.0], [0.1, 0.1]], ending=ending)
    kept = folder(tmp_path / "b", "kept", [[9.0, 9.0], [8.0, 8.0]])
    rows, bold = cells(proxdasa.compare([lost, kept], ["loss"]))
    assert {row["method"]: row["loss"] for row in rows} == {"kept": "8 ± 0", "lost": "1 of 2 diverged"}
    assert bold == {("kept", "loss")}


def test_a_run_that_stopped_because_it_was_done_sets_no_limit(tmp_path):
    ending = {"iterations": 10, "stopped": "stationary", "diverged": {}}
    done = folder(tmp_path / "a", "done", [[9.0], [1.0]], ending=ending)
    longer = folder(tmp_path / "b", "longer", [[9.0], [4.0], [2.0]])
    assert proxdasa.compare([done, longer], ["loss"]).budget == 20


def test_each_value_of_by_has_a_best(tmp_path):
    runs = [
        folder(tmp_path / f"{title}-{net}", title, [[9.0], [end]], network=net)
        for title, ends in {"A": (1.0, 8.0), "B": (2.0, 7.0)}.items()
        for net, end in zip(("ring", "grid"), ends, strict=True)
    ]
    sheet = proxdasa.compare(runs, ["loss"], by="network").sheet()
    best = {(sheet.rows[i][0], sheet.rows[i][1]) for i, _ in sheet.bold}
    assert best == {("A", "ring"), ("B", "grid")}
    with pytest.raises(ValueError, match=r"two runs of A have iterations = 10: network = ring; and network = grid"):
        proxdasa.compare(runs, ["loss"], by="iterations").sheet()
    with pytest.raises(ValueError, match="no run has a setting 'graph'; there are algorithm, "):
        proxdasa.compare(runs, ["loss"], by="graph").sheet()


def test_what_cannot_be_compared_is_said(tmp_path):
    run = folder(tmp_path / "a", "A", [[9.0], [1.0]])
    with pytest.raises(ValueError, match="axis must be one of k, samples, gradients"):
        proxdasa.compare([run], axis="hours")
    with pytest.raises(ValueError, match="have no bytes; choose another axis"):
        proxdasa.compare([run], axis="bytes")
    with pytest.raises(ValueError, match="no run recorded 'accuracy'; the records have loss, consensus"):
        proxdasa.compare([run], ["accuracy"])
    for budget in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"budget must be a positive, finite number; got {budget}"):
            proxdasa.compare([run], ["loss"], budget=budget)
    begun = save(tmp_path / "begun", "C", [[9.0], [1.0]], more={"gradients": lambda i: 5 + i})
    with pytest.raises(ValueError, match=r"never observed within 2 gradients of an agent; choose a larger budget"):
        proxdasa.compare([begun], ["loss"], budget=2).sheet()
    with pytest.raises(ValueError, match="no run has a setting ''; there are algorithm, "):
        proxdasa.compare([run], ["loss"], by="").sheet()
    with pytest.raises(ValueError, match="there are no results to compare"):
        proxdasa.compare([])
    with pytest.raises(ValueError, match="width must be column or page; got 'poster'"):
        proxdasa.compare([run]).draw(tmp_path / "f.png", width="poster")
    other = folder(tmp_path / "b", "B", [[9.0], [1.0]], problem={"name": "other"})
    sheet = proxdasa.compare([run, other], ["loss"]).sheet()
    assert not sheet.bold
    assert sheet.notes == ["loss is not ranked: the runs differ in their problem."]


def test_a_paper_gets_a_pdf_whose_fonts_are_embedded_and_a_table_in_plain_latex(tmp_path):
    runs = [folder(tmp_path / title, title, [[9.0, 8.0], list(ends)]) for title, ends in PAPER.items()]
    done = CliRunner().invoke(
        cli.app,
        ["compare", *map(str, runs), "--measures", "loss,consensus", "--pdf", "--latex", "--width", "column",
         "--output", str(tmp_path / "paper")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert re.search(r"A .*1\.5 ± 6\.4 \*", done.stdout)
    pdf = (tmp_path / "paper" / "comparison.pdf").read_bytes()
    assert b"/FontFile2" in pdf, "embedded"
    assert b"/Type3" not in pdf, "as text, not as drawings of letters"
    assert pdf.count(b"/FontFile2") == pdf.count(b"/Type /FontDescriptor"), "all of them"
    assert pdf.count(b"/ToUnicode") == pdf.count(b"/Subtype /Type0"), "all of them say which characters they show"
    assert {"B_2", "gradients of an agent"} <= set(_texts(pdf))
    assert b"CreationDate" not in pdf, "drawn again, it is the same file"
    latex = (tmp_path / "paper" / "comparison.tex").read_text()
    assert latex.isascii(), "so that every TeX takes it"
    assert r"\caption{After 10 gradients of an agent: means over 2 trials $\pm$ half" in latex
    assert r"A & 2 & \textbf{1.5 $\pm$ 6.4} & " in latex
    assert r"B\_2 & 2 & \textbf{" in latex, "two trials tell nothing apart"
    assert latex.count(r"\begin{") == latex.count(r"\end{") == 2
    assert not (tmp_path / "paper" / "comparison.png").exists()


def _texts(pdf):
    """The texts in a PDF of matplotlib's, whose codes of two bytes are those of characters."""
    packed = re.findall(rb"stream\n(.*?)\nendstream", pdf, re.DOTALL)
    shown = [array for stream in packed for array in re.findall(rb"\[([^]]*)\]\s+TJ", zlib.decompress(stream))]
    return [
        b"".join(re.findall(rb"\((.*?[^\\])\)", array, re.DOTALL)).decode("utf-16-be", "replace") for array in shown
    ]


def test_the_text_of_a_pdf_can_be_read(tmp_path):
    if not (shutil.which("pdffonts") and shutil.which("pdftotext")):
        pytest.skip("pdffonts is not installed; on Debian: apt-get install poppler-utils")
    runs = [folder(tmp_path / title, title, [[9.0, 8.0], list(ends)]) for title, ends in PAPER.items()]
    pdf = proxdasa.compare(runs, ["loss"]).draw(tmp_path / "f.pdf")

    def told(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    _, _, *fonts = told("pdffonts", pdf).splitlines()
    assert fonts
    assert all(re.search(r"TrueType +\S+ +yes +yes +yes ", font) for font in fonts), (
        "embedded, and mapped to characters"
    )
    text = told("pdftotext", pdf, "-")
    assert all(words in text for words in ("B_2", "gradients of an agent", "loss F("))


@pytest.fixture
def document(tmp_path):
    """Tables with names that LaTeX dislikes, bold, ties, losses, notes, numbers of all sizes; in one document."""
    ending = {"iterations": 10, "stopped": None, "diverged": {"1": {"agent": 0, "iteration": 3}}}
    runs = [
        folder(tmp_path / "a", "A_1 & 50% #2 {x} ~^\\", [[9.0, 8.0], [-1e-9, -3e-9]]),
        folder(tmp_path / "b", "D² – ‖x̄‖ ≤ β, é, 中", [[9.0, 8.0], [4.0, 4.0]], per_step=3),
        folder(tmp_path / "c", "$lost$", [[9.0, 8.0], [1.0, 2.0]], ending=ending),
    ]
    for i, chosen in enumerate((runs, runs[:2], runs[:1])):
        proxdasa.compare(chosen, ["loss", "consensus"]).sheet().write_latex(tmp_path / f"{i}.tex")
    inputs = "".join(rf"\input{{{i}}}" for i in range(3))
    path = tmp_path / "paper.tex"
    path.write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{inputs}\end{{document}}", encoding="ascii"
    )
    return path


KNOWN = (
    "begin|end|centering|caption|toprule|midrule|bottomrule|smallskip|footnotesize|par|textbf|texttt|textsuperscript"
    r"|text(?:backslash|asciitilde|asciicircum|bar|less|greater)|pm|ge|le|beta|cdot"
)


def parse_latex(text):
    """The numbers of cells in the rows of each tabular; fails where TeX would."""
    open_groups, math, tables = [], False, []
    for token in re.findall(r"\\[A-Za-z]+|\\.|[^\\]", text, re.DOTALL):
        if token.startswith("\\") and token[1:].isalpha():
            assert re.fullmatch(KNOWN, token[1:]), token
            assert math == (token[1:] in ("pm", "ge", "le", "beta", "cdot")), f"{token}: in math {math}"
        if token == "$":
            math = not math
        elif token == "{":
            open_groups.append(math)
        elif token == "}":
            assert open_groups.pop() == math, "a group ends in the mode it began in"
        else:
            assert token not in ("%", "#", "~"), f"{token} is a command here"
            assert math or token not in ("_", "^"), f"{token} is for math"
    assert not open_groups
    assert not math
    environments = []
    for verb, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if verb == "begin":
            environments.append(name)
        else:
            assert environments.pop() == name
    assert not environments
    for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        *rows, end = body.split(r" \\")
        assert end.strip() == r"\bottomrule"
        tables.append([len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows])
        assert set(tables[-1]) == {len(columns)}
    return tables


def test_the_tables_are_well_formed(document):
    """What a TeX would complain of; where one is installed, the next test asks it."""
    parsed = [parse_latex((document.parent / f"{i}.tex").read_text(encoding="ascii")) for i in range(3)]
    assert parsed == [[[4] * 4], [[4] * 3], [[4] * 2]], "method, trials and two measures"
    good = (document.parent / "0.tex").read_text()
    for place, fault in ((r"\_", "_"), (r"\&", "&"), ("$", ""), ("}", ""), (r"\end{tabular}", ""), (r"\pm", r"\mp")):
        with pytest.raises((AssertionError, IndexError)):
            parse_latex(good.replace(place, fault, 1))


def test_the_tables_compile(document):
    if not shutil.which("pdflatex"):
        pytest.skip(
            "pdflatex is not installed; on Debian: apt-get install texlive-latex-base texlive-latex-recommended"
        )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", document.name]
    done = subprocess.run(command, cwd=document.parent, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2_000:]
    assert "Missing character" not in document.with_suffix(".log").read_text(errors="replace")


@pytest.mark.usefixtures("drawn")
def test_one_run_is_not_the_best_of_anything(tmp_path):
    alone = folder(tmp_path / "a", "A", [[9.0, 8.0], [1.0, 2.0]])
    sheet = proxdasa.compare([alone], ["loss"]).sheet()
    assert not sheet.bold
    assert "Bold" not in sheet.caption
    done = CliRunner().invoke(cli.app, ["compare", str(alone), "--output", str(tmp_path / "paper")])
    assert done.stdout.startswith("one run, and nothing to compare it with")
    assert "bold" not in done.stdout
    lost = folder(tmp_path / "b", "B", [[9.0, 8.0], [3.0, 4.0]], ending={
        "iterations": 10, "stopped": None, "diverged": {"1": {"agent": 0, "iteration": 3}},
    })  # fmt: skip
    assert len(proxdasa.compare([alone, lost], ["loss"]).sheet().bold) == 1, "the other has lost"


def test_networks_are_named_by_what_tells_them_apart(tmp_path):
    networks = {"ring": {"agents": 4}, "grid": {"rows": 2, "columns": 2, "weights": "metropolis"}}
    runs = []
    for title, per_step in (("A", 1), ("B", 3)):
        for name, size in networks.items():
            place = folder(tmp_path / f"{title}-{name}", title, [[9.0], [1.0]], per_step)
            config = json.loads((place / "config.json").read_text())
            (place / "config.json").write_text(json.dumps(config | {"network": {"name": name, **size}}))
            runs.append(place)
    plain, grouped = proxdasa.compare(runs, ["loss"]).sheet(), proxdasa.compare(runs, ["loss"], by="network").sheet()
    assert [row[1] for row in plain.rows] == ["network = ring", "network = grid"] * 2
    assert [row[1] for row in grouped.rows] == ["ring", "grid"] * 2
    assert grouped.notes[0].startswith("B, ring: its last observation within the budget was after 0 gradients")


@pytest.mark.usefixtures("drawn")
def test_a_result_shows_itself_in_five_lines_and_as_a_frame(tmp_path):
    problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    result = proxdasa.run(proxdasa.DPSGD(0.5), problem, networks.ring(3), iterations=20, observe_every=10, trials=2)
    lines = repr(result).splitlines()
    assert len(lines) == 5
    assert lines[0] == "Result of D-PSGD on Quadratic, 2 trials"
    assert lines[2] == "  ending: finished after 20 iterations"
    for backend in ("pandas", "polars"):
        frame = result.to_frame(backend)
        assert frame.shape == (6, len(result.records[0]))
        assert list(frame["k"]) == [row["k"] for row in result.records]
    comparison = proxdasa.compare({"first": result})
    assert [run.title for run in comparison.runs] == ["D-PSGD"]
    assert comparison.write(tmp_path)[0].name == "comparison.png"


def test_a_value_from_well_before_the_budget_has_a_note(tmp_path):
    often = folder(tmp_path / "a", "often", [[9.0], [5.0], [4.0]])
    seldom = folder(tmp_path / "b", "seldom", [[8.0], [1.0]], per_step=3)
    sheet = proxdasa.compare([often, seldom], ["loss"]).sheet()
    assert sheet.notes == ["seldom: its last observation within the budget was after 0 gradients of an agent."]
    beyond = proxdasa.compare([often], ["loss"], budget=1_000).sheet()
    assert beyond.notes == ["often: its last observation within the budget was after 20 gradients of an agent."]


@pytest.mark.parametrize("measures", ["", ",", " , "])
def test_an_empty_list_of_measures_is_refused(tmp_path, measures):
    alone = folder(tmp_path / "a", "A", [[9.0, 8.0], [1.0, 2.0]])
    command = ["compare", str(alone), "--measures", measures, "--output", str(tmp_path / "paper")]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 2
    assert "--measures names no measure; give some, such as objective,accuracy" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("amount", "axis", "words"),
    [
        (1, "k", "1 iteration"), (1_000, "k", "1,000 iterations"), (1, "rounds", "1 communication round"),
        (100_000 / 3, "bytes", "33,333 bytes that an agent sends"), (2.5, "epochs", "2.5 epochs of samples"),
        (12_345.6, "seconds", "12,346 seconds of the simulation of all trials"), (0, "k", "0 iterations"),
        (0.01234, "seconds", "0.01234 seconds of the simulation of all trials"),
    ],
)  # fmt: skip
def test_amounts_are_in_plain_words(amount, axis, words):
    assert cost_text(amount, axis) == words
