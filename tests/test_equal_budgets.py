"""Methods compared at an equal budget: which values, which test, and what a paper gets."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, networks, problems
from proxdasa.reports.axis_quantities import spent, value
from proxdasa.reports.comparison import paired_p
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


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=12))
def test_the_paired_test_is_that_of_scipy(pairs):
    first, second = np.array(pairs).T
    difference = first - second
    if difference.std() > 1e-6:
        assert paired_p(first, second) == pytest.approx(ttest_rel(first, second).pvalue, rel=1e-6, abs=1e-12)


def test_identical_trials_are_tied():
    assert paired_p([1.0, 2.0], [1.0, 2.0]) == 1
    assert paired_p([1.0, 2.0], [2.0, 3.0]) == 0, "the same difference in every trial"


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
    with pytest.raises(ValueError, match=r"never observed within -1 gradients of an agent; choose a larger budget"):
        proxdasa.compare([run], ["loss"], budget=-1).sheet()
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
    assert b"CreationDate" not in pdf, "drawn again, it is the same file"
    latex = (tmp_path / "paper" / "comparison.tex").read_text()
    assert latex.isascii(), "so that every TeX takes it"
    assert r"\caption{After 10 gradients of an agent: means over 2 trials $\pm$ half" in latex
    assert r"A & 2 & \textbf{1.5 $\pm$ 6.4} & " in latex
    assert r"B\_2 & 2 & \textbf{" in latex, "two trials tell nothing apart"
    assert latex.count(r"\begin{") == latex.count(r"\end{") == 2
    assert not (tmp_path / "paper" / "comparison.png").exists()


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


def test_the_tables_compile(tmp_path):
    """Names that LaTeX dislikes, bold, ties, losses, notes, numbers of all sizes; in one document."""
    if not shutil.which("pdflatex"):
        pytest.skip(
            "pdflatex is not installed; on Debian: apt-get install texlive-latex-base texlive-latex-recommended"
        )
    ending = {"iterations": 10, "stopped": None, "diverged": {"1": {"agent": 0, "iteration": 3}}}
    runs = [
        folder(tmp_path / "a", "A_1 & 50% #2 {x} ~^\\", [[9.0, 8.0], [-1e-9, -3e-9]]),
        folder(tmp_path / "b", "D² – ‖x̄‖ ≤ β, é, 中", [[9.0, 8.0], [4.0, 4.0]], per_step=3),
        folder(tmp_path / "c", "$lost$", [[9.0, 8.0], [1.0, 2.0]], ending=ending),
    ]
    for i, chosen in enumerate((runs, runs[:2], runs[:1])):
        proxdasa.compare(chosen, ["loss", "consensus"]).sheet().write_latex(tmp_path / f"{i}.tex")
    inputs = "".join(rf"\input{{{i}}}" for i in range(3))
    document = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{inputs}\end{{document}}"
    (tmp_path / "paper.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2_000:]
    assert "Missing character" not in (tmp_path / "paper.log").read_text(errors="replace")


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
    assert spent(amount, axis) == words
