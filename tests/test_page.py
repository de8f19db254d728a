"""The report page without a browser: one file, and in it what the records say."""

import base64
import hashlib
import json
import re
import warnings

import networkx as nx
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, networks, problems, reports
from proxdasa.reports import page as pages
from proxdasa.reports.network_drawings import MOST_AGENTS, MOST_EDGES, disagreement, drawing, layout
from tests.results import RING, data, save, write

EVIL = "</script><script>alert(1)</script><!-- & \u2028 '\""


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture
def two(tmp_path):
    """The data of a page on two methods."""
    folders = [save(tmp_path / "a", "A"), save(tmp_path / "b", "B", losses=[[8.0, 8.0], [0.5, 0.5]])]
    return data(write(tmp_path / "report.html", folders))


# the file


def test_the_page_is_one_file_that_fetches_nothing(tmp_path):
    page = write(tmp_path / "out" / "report.html", [save(tmp_path / "a")])
    text = page.read_text(encoding="utf-8")
    assert list(page.parent.iterdir()) == [page]
    assert set(re.findall(r"\w+://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<(img|iframe|object|embed|base)\b|\bsrc=|@import|url\((?!#)|fetch\(|XMLHttp|import\(", text)
    assert re.findall(r'href="([^"]*)"', text) == ["data:,"]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    hashes = {
        tag: base64.b64encode(hashlib.sha256(re.search(rf"<{tag}>(.*?)</{tag}>", text, re.S)[1].encode()).digest())
        for tag in ("style", "script")
    }
    assert policy.split("; ") == [
        "default-src 'none'",
        *(f"{tag}-src 'sha256-{digest.decode()}'" for tag, digest in hashes.items()),
        "img-src data:",
    ], "no script and no style but the page's own"
    assert not re.search(r"\son\w+=|\sstyle=", re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S))
    assert len(text) < 60_000


def test_no_text_can_break_out_of_the_data(tmp_path):
    page = write(tmp_path / "report.html", [save(tmp_path / "a", EVIL), save(tmp_path / "b", "B", note=EVIL)], EVIL)
    text = page.read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "alert(1)<" not in text
    shown = data(page)
    assert shown["title"] == shown["runs"][0]["name"] == shown["table"]["rows"][0][0] == EVIL
    assert shown["runs"][1]["settings"]["note"] == EVIL


# the curves


def test_curves_are_those_of_the_figures(two):
    a, b = two["runs"]
    assert (a["name"], b["name"]) == ("A", "B")
    assert a["x"] == {"k": [0, 10], "rounds": [0, 20], "seconds": [0, 0.25]}
    loss = a["curves"]["loss"]
    assert (loss["mean"], loss["lowest"]) == ([5, 2], [4, 1])
    assert loss["half"] == pytest.approx([12.7062, 12.7062], rel=1e-4)  # t(0.975, 1) s/√2 with s = √2
    assert b["curves"]["loss"]["half"] == [0, 0]
    assert [axis["key"] for axis in two["axes"]] == ["k", "rounds", "seconds"]
    assert [measure["key"] for measure in two["measures"]] == ["loss", "consensus"]
    assert two["measures"][1]["formula"] == "‖X − X̄‖²/n"
    assert a["colour"] != b["colour"]
    assert not two["thinned"]


def test_what_to_look_at_is_decided_as_in_the_figures(tmp_path):
    far = save(tmp_path / "far", losses=[[500.0], [4.0], [2.0]], more={"accuracy": [0.1, 0.6, 0.8].__getitem__})
    curves = data(write(tmp_path / "report.html", [far]))["runs"][0]["curves"]
    assert curves["loss"]["log"] == [2, 8]  # the start is more than ten times all the rest
    assert curves["accuracy"]["linear"] == pytest.approx([60 - 2, 80 + 2])  # what comes from far below is cut off
    negative = save(tmp_path / "negative", losses=[[3.0], [-1.0]])
    assert data(write(tmp_path / "report.html", [negative]))["runs"][0]["curves"]["loss"]["log"] is None


def test_one_trial_has_no_interval_and_what_is_missing_is_null(tmp_path):
    gaps = [0.5, None, 0.25]
    folder = save(tmp_path / "a", losses=[[3.0], [2.0], [1.0]], more={"density": gaps.__getitem__})
    run = data(write(tmp_path / "report.html", [folder]))["runs"][0]
    assert run["curves"]["density"]["mean"] == gaps
    assert "half" not in run["curves"]["loss"]


def test_agents_that_began_together_have_no_first_disagreement(tmp_path):
    folder = save(tmp_path / "a", losses=[[1e-9], [2.0], [1.0]])
    assert data(write(tmp_path / "report.html", [folder]))["runs"][0]["curves"]["consensus"]["mean"] == [
        None,
        0.25,
        0.125,
    ]


def test_long_records_are_thinned(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "MOST_POINTS", 50)
    long = save(tmp_path / "long", losses=[[1.0 + i] for i in range(pages.MOST_POINTS * 2 + 1)])
    thin = data(write(tmp_path / "report.html", [long]))
    curve, x = thin["runs"][0]["curves"]["loss"]["mean"], thin["runs"][0]["x"]["k"]
    assert len(curve) == len(x) == pages.MOST_POINTS
    assert (x[0], x[-1], curve[-1]) == (0, 1000, 101)
    assert max(np.diff(x)) <= 30
    assert thin["thinned"]
    monkeypatch.setattr(pages, "MOST_NUMBERS", 180)  # of two measures with three numbers, and three axes
    assert len(data(write(tmp_path / "report.html", [long]))["runs"][0]["x"]["k"]) == 20


# summary, table and settings


def test_the_summary_and_the_table_are_those_of_the_command(two):
    assert dict(two["tiles"]) == {
        "runs": "2", "methods": "2", "agents": "4", "iterations": "10", "trials": "2", "time": "0.5 s",
    }  # fmt: skip
    assert two["ends"] == [{"what": "lowest final loss", "value": "0.5 ± 0", "run": "B"}]
    assert two["table"]["title"].startswith("iterations k to a loss of ")
    assert two["table"]["columns"][-1] == "loss"
    assert [row[0] for row in two["table"]["rows"]] == ["A", "B"]
    assert [row[-1] for row in two["table"]["rows"]] == ["2", "0.5"]


@pytest.mark.parametrize(("seconds", "shown"), [(0.25, "0.25 s"), (80, "1 min"), (3 * 3600 + 50, "3 h 1 min")])
def test_times_are_easy_to_read(tmp_path, seconds, shown):
    folder = save(tmp_path / "a", more={"seconds": lambda i: seconds * i})
    assert dict(data(write(tmp_path / "report.html", [folder]))["tiles"])["time"] == shown


def test_settings_are_told_once_unless_they_differ(two):
    assert two["shared"]["network.name"] == "ring"
    assert two["shared"]["algorithm.gamma"] == "0.1"
    assert [run["settings"] for run in two["runs"]] == [{"algorithm.name": "A"}, {"algorithm.name": "B"}]


# the network


def test_the_network_is_drawn_with_its_agents_errors(two):
    (net,) = two["networks"]
    assert (net["agents"], net["count"], net["degrees"], net["edges"]) == (4, 4, [2, 2, 2, 2], RING)
    assert np.shape(net["places"]) == (4, 2)
    assert np.min(net["places"]) >= 0
    assert np.max(net["places"]) <= 1
    assert [run["network"] for run in two["runs"]] == [0, 0]
    assert two["runs"][0]["errors"] == [2.25, 0.25, 0.25, 2.25]  # (0, 1, 2, 3) around 1.5, and 4 more in trial 1
    assert two["colours"][0] != two["colours"][-1]


def test_a_layout_keeps_neighbours_close():
    places = layout(12, np.array([(i, i + 1) for i in range(11)]))
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    assert steps == pytest.approx(np.full(11, np.linalg.norm(places[-1] - places[0]) / 11), rel=0.05)
    assert layout(1, np.empty((0, 2), dtype=int)).tolist() == [[0.5, 0.5]]


def test_the_mean_of_the_agents_errors_is_the_consensus_error(tmp_path):
    result = proxdasa.run(
        proxdasa.ProxDASA(gamma=0.01),
        problems.PhaseRetrieval(5, 6, evaluation=20),
        networks.ring(5),
        iterations=9,
        trials=2,
    )
    (run,) = reports.load_runs([result.save(tmp_path / "r")])
    assert np.mean(disagreement(run)) == pytest.approx(run.final("consensus").mean, rel=1e-4)


def test_trials_that_diverged_and_those_of_others_have_no_part_in_the_errors(tmp_path):
    x = torch.tensor([[0.0, 2, 2, 4], [torch.nan] * 4, [0.0, 0, 0, 8]]).unsqueeze(-1)
    gammas = {"name": "A", "gamma": [1, 1, 2]}
    runs = reports.load_runs([save(tmp_path / "r", losses=[[1.0, 1.0, 1.0]], x=x, algorithm=gammas)])
    assert [disagreement(run) for run in runs] == [[4, 0, 0, 4], [4, 4, 4, 36]]


def test_errors_that_are_not_known_are_said_to_be(tmp_path):
    lost, other, broken = (save(tmp_path / name) for name in ("lost", "other", "broken"))
    (lost / "final.safetensors").unlink()
    save(tmp_path / "else", losses=[[1.0]], x=torch.zeros(1, 7, 2))
    (tmp_path / "else" / "final.safetensors").rename(other / "final.safetensors")
    (broken / "final.safetensors").write_bytes(b"not a tensor")
    runs = data(write(tmp_path / "report.html", [lost, other, broken]))["runs"]
    told = {run["name"].rpartition(" ")[2]: run["unknown"] for run in runs}
    assert told["lost"].endswith("it has no final.safetensors")
    assert "x has shape [1, 7, 2], so it belongs to another run" in told["other"]
    assert "not a whole safetensors file" in told["broken"]
    nan = save(tmp_path / "nan", x=torch.full((2, 4, 1), torch.nan))
    assert data(write(tmp_path / "report.html", [nan]))["runs"][0]["unknown"] == "every trial diverged"


def test_a_network_that_cannot_be_drawn_says_why(tmp_path):
    def drawn(name, **facts):
        (run,) = reports.load_runs([save(tmp_path / name, facts=facts)])
        return drawing(run)

    unknown = drawn("unknown", edges=None)
    assert unknown["missing"] == "its edges are not known: config.json has none"
    assert (len(unknown["places"]), unknown["edges"], "degrees" in unknown) == (4, [], False)
    many = drawn("many", edges=[[0, 1]] * (MOST_EDGES + 1))
    assert many["missing"] == f"{MOST_EDGES + 1:,} edges are too many to draw"
    large = drawn("large", agents=MOST_AGENTS + 1)
    assert large["missing"] == f"{MOST_AGENTS + 1} agents are too many to draw"
    for i, wrong in enumerate(([[0, 4]], [[0.5, 1]], [0, 1], "ring", [[0, 1], [2]])):
        assert drawn(str(i), edges=wrong)["missing"] == "its edges are not known: facts.edges must be pairs of agents"


@pytest.mark.parametrize("kind", ["builder", "graph", "file"])
def test_a_network_is_drawn_from_the_edges_that_the_run_noted(tmp_path, kind):
    (tmp_path / "edges.txt").write_text("0 1\n0 2\n0 3\n")
    made = {
        "builder": lambda: networks.star(4),
        "graph": lambda: networks.from_graph(nx.star_graph(3)),
        "file": lambda: networks.from_file(tmp_path / "edges.txt"),
    }
    problem = proxdasa.problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.ones(4, 2))
    proxdasa.run(proxdasa.ProxDASA(gamma=0.1), problem, made[kind](), iterations=2).save(tmp_path / "a")
    (tmp_path / "edges.txt").unlink()
    (run,) = reports.load_runs([tmp_path / "a"])
    drawn = drawing(run)
    assert (drawn["edges"], drawn["degrees"]) == ([[0, 1], [0, 2], [0, 3]], [3, 1, 1, 1])


def test_a_measure_that_is_nowhere_finite_does_not_cost_the_page(tmp_path):
    folder = save(tmp_path / "a")
    rows = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    odd = [{**row, "odd": None if row["trial"] else 1.0} for row in rows]
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in odd))
    assert CliRunner().invoke(cli.app, ["report", str(tmp_path / "a"), "--html"]).exit_code == 0


# what differed from the plan


def differences(tmp_path, **options):
    run = data(write(tmp_path / "report.html", [save(tmp_path / "a", **options)]))["runs"][0]
    return run["differences"], run["diverged"], run["times"]


def test_nothing_differed(tmp_path):
    assert differences(tmp_path) == ([], False, {})


def test_a_run_of_which_a_trial_diverged_is_not_the_best(tmp_path):
    ending = {"iterations": 10, "stopped": None, "diverged": {"1": {"agent": 3, "iteration": 7}}}
    broken = save(tmp_path / "a", "broken", losses=[[8.0, 8.0], [0.1, 0.1]], ending=ending)
    whole = save(tmp_path / "b", "whole", losses=[[8.0, 8.0], [0.5, 0.5]])
    page = data(write(tmp_path / "report.html", [broken, whole]))
    assert {end["run"] for end in page["ends"] if end["what"] == "lowest final loss"} == {"whole"}
    assert [row[-1] for row in page["table"]["rows"]] == ["1 of 2 diverged", "0.5"]
    alone = data(write(tmp_path / "report.html", [broken]))
    assert alone["table"]["rows"][0][-1] == "0.1", "of a single run, what was recorded"
    assert data(write(tmp_path / "report.html", [broken, save(tmp_path / "c", "C", ending=ending)]))["ends"] == []


def test_an_interrupted_run_of_which_trials_diverged(tmp_path):
    ending = {"iterations": 10, "stopped": "interrupted", "diverged": {"1": {"agent": 3, "iteration": 7}}}
    assert differences(tmp_path, ending=ending, iterations=50) == (
        [
            "1 of 2 trials diverged; the means are over what was recorded",
            "trial 1 diverged in iteration 7, first at agent 3",
            "interrupted after 10 of 50 iterations",
        ],
        True,
        {},
    )


def test_records_that_lack_their_end(tmp_path):
    ending = {"iterations": 30, "stopped": None, "diverged": {}}
    folder = save(tmp_path / "a", losses=[[4.0, 6.0], [1.0, 3.0]], ending=ending, iterations=30)
    path = folder / "records.jsonl"
    path.write_text(path.read_text()[:-9])
    shown = data(write(tmp_path / "report.html", [folder]))
    assert shown["faults"] == [f"{path}: the last line is cut short and was left out"]
    assert shown["runs"][0]["differences"] == [
        "the records end at iteration 10, though 30 were made",
        "1 of 2 trials have no record at iteration 10",
    ]


def test_an_interruption_between_observations_lacks_no_record(tmp_path):
    ending = {"iterations": 19, "stopped": "interrupted", "diverged": {}}
    assert differences(tmp_path, ending=ending, iterations=30)[0] == ["interrupted after 19 of 30 iterations"]


def test_where_the_time_went(tmp_path):
    spent = {"computation": 3.0, "communication": 1.0, "waiting": 0.5}
    assert differences(tmp_path, more={kind: lambda _, s=s: s for kind, s in spent.items()})[2] == spent


# the command


def test_report_writes_the_page(tmp_path):
    folders = [save(tmp_path / "x" / "a", "A"), save(tmp_path / "y" / "b", "B")]
    result = call("report", *folders, tmp_path / "y" / ".." / "x", "--html", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert f"page:   {tmp_path / 'out' / 'report.html'}\n" in result.stdout.replace("\n ", "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.csv", "report.html"]
    shown = data(tmp_path / "out" / "report.html")
    assert [run["name"] for run in shown["runs"]] == ["A", "B"]  # each once
    assert shown["title"] == "a, b, x"
    assert shown["networks"][0]["count"] == 4  # as noted
    assert "missing" not in shown["networks"][0]


def test_where_the_files_go(tmp_path, monkeypatch):
    folders = [save(tmp_path / name) for name in "ab"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    call("report", folders[0], "--html")
    call("report", *folders, "--html")
    assert [(path / "report.html").exists() for path in (*folders, tmp_path / "here")] == [True, False, True]


def test_what_can_be_shown_is_shown(tmp_path):
    good = save(tmp_path / "good")
    for name in ("cut", "garbage", "empty", "keyless", "bare"):
        save(tmp_path / name)
    cut, garbage, empty, keyless, bare = (
        tmp_path / name / "records.jsonl" for name in ("cut", "garbage", "empty", "keyless", "bare")
    )
    cut.write_text(cut.read_text()[:-3])
    garbage.write_bytes(b"\xff\xfe\n" + garbage.read_bytes())
    empty.write_text("")
    keyless.write_text('{"loss": 1.0}\n')
    (bare.parent / "config.json").write_text('{"facts": {"title": "M"}, "ending": {}}')
    (tmp_path / "killed" / "checkpoints").mkdir(parents=True)
    (tmp_path / "killed" / "checkpoints" / "config.json").write_text("{}")
    (tmp_path / "nothing").mkdir()
    result = call("report", tmp_path, tmp_path / "nothing", "--html", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    shown = data(tmp_path / "report.html")
    assert [run["name"] for run in shown["runs"]] == ["M, cut", "M, good"]
    killed = tmp_path / "killed"
    expected = [
        f"{killed} holds checkpoints of a run and no records yet; unless it is still running, proxdasa resume {killed} "
        "continues it",
        f"there are no results in {tmp_path / 'nothing'} (no records.jsonl at or below it)",
        f"{bare.parent / 'config.json'}: not the configuration of saved results: it has no agents in facts",
        f"{cut}: the last line is cut short and was left out",
        f"{empty} is empty: the run ended before its first observation",
        f"{garbage}, line 1: not a JSON object: '\ufffd\ufffd'",
        f"{keyless}, line 1: a record needs trial and k",
    ]
    assert shown["faults"] == expected
    assert result.stderr.splitlines() == [f"warning: {fault}" for fault in expected]
    assert reports.load_runs([good])


def test_nothing_to_show_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    both = call("report", tmp_path / "a", tmp_path / "b", "--html")
    assert both.exit_code == 2
    assert both.stderr.count("there are no results in") == 2
    typo = call("report", save(tmp_path / "c"), tmp_path / "nowhere", "--html")
    assert (typo.exit_code, typo.stderr) == (2, f"error: there is no folder {tmp_path / 'nowhere'}\n")
    (tmp_path / "a" / "checkpoints").mkdir()
    (tmp_path / "a" / "checkpoints" / "config.json").write_text("{}")
    killed = call("report", tmp_path / "a")
    assert killed.exit_code == 2
    assert killed.stderr.startswith(f"error: {tmp_path / 'a'} holds checkpoints of a run and no records yet")


def test_reading_damaged_folders_warns_nobody_twice(tmp_path):
    folder = save(tmp_path / "a")
    (folder / "records.jsonl").write_text((folder / "records.jsonl").read_text()[:-3])
    with warnings.catch_warnings(action="error"):
        assert len(reports.salvage([folder])[1]) == 1
    with pytest.raises(ValueError, match="there are no results"):
        reports.salvage([])


def test_measures_that_no_figure_shows_are_on_the_page(tmp_path):
    folder = save(tmp_path / "a")
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps({"trial": 0, "k": k, "density": 0.5, "mine": k}) + "\n" for k in (0, 10)))
    result = call("report", folder, "--html")
    assert result.exit_code == 0, result.output
    assert [measure["name"] for measure in data(folder / "report.html")["measures"]] == ["density of x̄", "mine"]
