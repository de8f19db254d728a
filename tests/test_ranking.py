"""Runs are ranked by measures that mean the same for all of them, and by nothing else."""

import json
import math

import pytest
import torch

import proxdasa
from proxdasa import networks, problems, regularizers, reports
from proxdasa.reports import draw, load_runs, quantity_of, summarise
from proxdasa.reports.axis_quantities import QUANTITIES
from proxdasa.schedules import cube_root, per_trial
from tests.results import data, save, write

OWN, UNIT = "stationarity at own γ", "stationarity at γ = 1"
ENDS = {"short": (0.001, 0.9), "long": (0.5, 0.2)}
"""Stationarity at the end: at the run's own γ, by which the first is better, and at γ = 1, by which the second is."""


def pair(tmp_path, gammas=(10.0, 0.1), measures=("stationarity", "table_stationarity"), **config):
    """Two methods of different γ, of which each is better by one of two measures of stationarity."""
    folders = []
    for (name, ends), gamma in zip(ENDS.items(), gammas, strict=True):
        values = dict(zip(("stationarity", "table_stationarity"), ends, strict=True))
        more = {measure: lambda _, value=values[measure]: value for measure in measures}
        folders.append(save(tmp_path / name, name, more=more, facts={"gamma": gamma}, **config))
    return folders


def ends(tmp_path, folders):
    return {end["what"]: end for end in data(write(tmp_path / "report.html", folders))["ends"]}


def test_the_best_run_is_found_by_the_stationarity_that_has_one_gamma_for_all(tmp_path):
    best = ends(tmp_path, pair(tmp_path))
    assert best[f"lowest final {UNIT}"]["run"] == "long"
    assert not any("own γ" in what for what in best)


def test_runs_are_not_ranked_by_their_own_gamma_even_if_nothing_else_was_measured(tmp_path):
    best = ends(tmp_path, pair(tmp_path, measures=["stationarity"]))
    assert list(best) == ["lowest final loss"]


def test_the_table_compares_runs_of_different_gamma_at_gamma_1(tmp_path):
    table = summarise(load_runs(pair(tmp_path)))
    sheet = table.sheet()
    assert f"{UNIT} ± 95%" in sheet.columns.values()
    assert not any("own γ" in heading for heading in sheet.columns.values())
    cells = [dict(zip(sheet.columns, row, strict=True)) for row in sheet.texts()]
    assert [(row["method"], row["table_stationarity"]) for row in cells] == [("long", "0.2"), ("short", "0.9")]
    assert [(line.method, line.gamma, line.stationarity) for line in table.lines] == [
        ("long", 0.1, 0.5), ("short", 10.0, 0.001),
    ]  # fmt: skip


def test_the_table_says_so_where_nothing_compares_runs_of_different_gamma(tmp_path):
    sheet = summarise(load_runs(pair(tmp_path, measures=["stationarity"]))).sheet()
    assert f"{OWN} ± 95%" in sheet.columns.values()
    assert any("cannot compare these runs" in note and "table_stationarity" in note for note in sheet.notes)


@pytest.mark.parametrize(("gammas", "shown"), [((10.0, 0.1), UNIT), ((0.5, 0.5), f"{OWN} = 0.5"), ((None, None), UNIT)])
def test_the_figure_shows_a_stationarity_that_compares_its_runs(tmp_path, drawn, gammas, shown):
    draw(load_runs(pair(tmp_path, gammas)), tmp_path / "f.png")
    axes = [ax for ax in drawn[0].axes if "stationarity" in ax.get_ylabel()]
    assert axes, "drawn"
    assert {ax.get_ylabel().partition("\n")[0] for ax in axes} == {shown}
    column = UNIT in shown
    expected = [[ends[column]] * 2 for ends in sorted(ENDS.values(), reverse=True)]
    assert [line.get_ydata().tolist() for ax in drawn[0].axes[1::3] for line in ax.lines] == expected


def test_runs_of_one_gamma_are_shown_at_it(tmp_path):
    runs = load_runs(pair(tmp_path, (0.5, 0.5)))
    table = summarise(runs)
    assert f"{OWN} = 0.5 ± 95%" in table.sheet().columns.values()
    assert table.sheet().notes == []
    assert quantity_of("certificate", runs).name == "certificate at own γ = 0.5"


def test_no_two_panels_have_the_same_name(tmp_path):
    assert len({each.name for each in QUANTITIES.values()}) == len(QUANTITIES)
    for i, gammas in enumerate(((10.0, 0.1), (1.0, 1.0))):
        measures = data(write(tmp_path / "report.html", pair(tmp_path / str(i), gammas)))["measures"]
        assert len({measure["name"] for measure in measures}) == len(measures) == 4


def test_the_page_does_not_sort_by_what_is_at_the_runs_own_gamma(tmp_path):
    def sorted_by(name, gammas):
        measures = data(write(tmp_path / "report.html", pair(tmp_path / name, gammas)))["measures"]
        return {measure["key"]: measure["alike"] for measure in measures}

    rest = {"loss": True, "consensus": True, "table_stationarity": True}
    assert sorted_by("unlike", (10.0, 0.1)) == rest | {"stationarity": False}
    assert sorted_by("alike", (1.0, 1.0)) == rest | {"stationarity": True}


def test_what_a_run_did_not_record_ranks_nobody(tmp_path):
    first, second = pair(tmp_path)
    rows = [json.loads(line) for line in (first / "records.jsonl").read_text().splitlines()]
    without = [{name: value for name, value in row.items() if name != "table_stationarity"} for row in rows]
    (first / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in without))
    end = ends(tmp_path, [first, second])[f"lowest final {UNIT}"]
    assert (end["value"], end["run"]) == ("not ranked", "not recorded by short")


@pytest.mark.parametrize(
    ("setting", "value", "unranked"),
    [
        ("regularizer", {"name": "L1", "weight": 2}, {"objective": "regularizer", "table_stationarity": "regularizer"}),
        ("problem", {"name": "Other"}, dict.fromkeys(["loss", "objective", "table_stationarity"], "problem")),
        ("seed", 2, {}),
    ],
)
def test_runs_of_different_objectives_are_not_ranked_by_them(tmp_path, setting, value, unranked):
    common = {"problem": {"name": "P"}, "regularizer": {"name": "L1", "weight": 1}, "seed": 1}
    more = {"objective": lambda _: 1.0, "table_stationarity": lambda _: 1.0}
    folders = [
        save(tmp_path / "a", "A", more=more, **common),
        save(tmp_path / "b", "B", more=more, **common | {setting: value}),
    ]
    told = {what.rpartition("final ")[2]: end for what, end in ends(tmp_path, folders).items()}
    assert set(told) == {"loss", "objective", UNIT}
    for measure in ("loss", "objective", "table_stationarity"):
        end = told[QUANTITIES[measure].name]
        why = f"the runs differ in their {unranked[measure]}" if measure in unranked else end["run"]
        assert (end["value"] == "not ranked", end["run"]) == (measure in unranked, why)


def test_a_run_notes_the_gamma_of_its_stationarity(tmp_path):
    problem, network = problems.PhaseRetrieval(3, 6, evaluation=10), networks.ring(3)
    for name, gamma in {"one": 0.01, "each": per_trial([0.01, 0.02])}.items():
        method = proxdasa.ProxDASA(gamma=gamma)
        proxdasa.run(method, problem, network, iterations=2, trials=2).save(tmp_path / name)
    storm = proxdasa.DeepStormV2(alpha=cube_root(0.1, 1.0), beta=1.0)
    proxdasa.run(storm, problem, network, iterations=2).save(tmp_path / "unit")
    runs = load_runs([tmp_path / name for name in ("one", "each", "unit")])
    gammas = {(run.title, run.folder.name, line.gamma) for run, line in zip(runs, summarise(runs).lines, strict=True)}
    assert gammas == {
        ("Prox-DASA", "one", 0.01), ("Prox-DASA", "each", 0.01), ("Prox-DASA", "each", 0.02),
        ("DEEPSTORM v2", "unit", 1.0),
    }  # fmt: skip


def test_exponents_are_of_a_stationarity_that_has_one_gamma_for_all(tmp_path):
    def slopes(gammas):
        folders = [
            save(
                tmp_path / str(gammas) / str(n),
                more={"stationarity": lambda _, n=n: n**2.0, "table_stationarity": lambda _, n=n: n**-1.0},
                facts={"agents": n, "gamma": gamma},
            )
            for n, gamma in zip((2, 4, 8), gammas, strict=True)
        ]
        (slope,) = summarise(load_runs(folders)).slopes
        return slope

    assert (slopes((1.0, 1.0, 1.0)).stationarity, slopes((1.0, 1.0, 1.0 + 1)).measured) == (pytest.approx(2), UNIT)
    assert slopes((1.0, 2.0, 3.0)).stationarity == pytest.approx(-1)


def test_one_run_is_shown_with_its_own_stationarity(tmp_path):
    shown = ends(tmp_path, pair(tmp_path)[:1])
    assert set(shown) == {"final loss", f"final {UNIT}", f"final {OWN} = 10"}
    assert math.isclose(float(shown[f"final {OWN} = 10"]["value"].partition(" ")[0]), ENDS["short"][0])


def test_the_room_exports_the_quantity_of_a_measure():
    assert {"quantity_of", "drawable", "visible"} <= set(reports.__all__)


def test_own_stationarity_of_different_objectives_is_not_compared():
    """Even at one γ: the proximal mapping is that of each run's Ψ."""
    problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    results = {
        str(weight): proxdasa.run(
            proxdasa.ProxDASA(0.1, 0.3), problem, networks.ring(3), regularizer=regularizers.L1(weight), iterations=4
        )
        for weight in (0.1, 0.2)
    }
    notes = proxdasa.compare(results, measures=["stationarity", "certificate", "loss"]).sheet().notes
    told = [
        f"{name} at own γ is not ranked: the runs differ in their regularizer."
        for name in ("stationarity", "certificate")
    ]
    assert notes == told


def test_the_table_says_that_losses_of_different_problems_may_not_compare(tmp_path):
    folders = [save(tmp_path / name, name, problem={"name": name}) for name in "ab"]
    notes = summarise(load_runs(folders)).sheet().notes
    assert notes == ["the runs differ in their problem, so their losses, and iterations to a loss, may not compare"]
    assert not summarise(load_runs(folders[:1])).sheet().notes


def test_the_table_says_that_stationarities_with_different_regularizers_may_not_compare(tmp_path):
    folders = [
        save(tmp_path / name, name, more={"stationarity": float}, regularizer={"name": name}, facts={"gamma": 0.1})
        for name in "ab"
    ]
    notes = summarise(load_runs(folders)).sheet().notes
    assert notes == [f"the runs differ in their regularizer, so their {OWN} = 0.1 may not compare"]
