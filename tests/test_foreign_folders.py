"""Reports on folders from someone else: nothing outside is opened, nothing hangs, and what is good is shown."""

import csv
import inspect
import io
import json
import os
import re
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from proxdasa import cli, reports
from proxdasa.reports import Sheet, figures, foreign_folders, load_runs, loading, network_drawings, visible
from tests.results import data, opened_files, save

SECRET = "the first line of a file that is nobody's business"
GONE = object()
ESCAPES = "\x1b]0;title\x07 \x9b31m red \u202e backwards \ud800 half"


def call(*arguments):
    return CliRunner().invoke(cli.app, ["report", *map(str, arguments)])


def shown(tmp_path, *more):
    """What the page and the command say of everything in a folder."""
    result = call(tmp_path / "all", "--html", "-o", tmp_path, *more)
    assert result.exit_code == 0, result.output
    return data(tmp_path / "report.html"), result


def change(folder, **changes):
    """Change a configuration: "facts__rho" is rho in facts, "network" the network; ``GONE`` takes a setting away."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        table, _, key = name.rpartition("__")
        (config[table] if table else config)[key] = value
        if value is GONE:
            del (config[table] if table else config)[key]
    path.write_text(json.dumps(config))
    return folder


@pytest.fixture
def good(tmp_path):
    return save(tmp_path / "all" / "good", "Good")


@pytest.fixture
def bad(tmp_path, good):
    """A folder to be damaged, beside one that is not."""
    return save(tmp_path / "all" / "bad", "Bad")


@pytest.fixture
def opened():
    """The names of all files that are opened from Python."""
    with opened_files() as names:
        yield names


# nothing outside is opened


def test_a_network_from_a_file_is_not_read_by_a_report(tmp_path, good, opened):
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    change(good, network={"name": "from_file", "path": str(secret), "weights": None}, facts__edges=GONE)
    opened.clear()
    page, _ = shown(tmp_path)
    assert str(secret) not in opened
    assert SECRET not in (tmp_path / "report.html").read_text()
    assert page["networks"][0]["missing"] == "its edges are not known: config.json has none"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)], ids=["fifo", "device"])
def test_a_network_from_a_file_that_never_ends_is_not_waited_for(tmp_path, good, make):
    make(tmp_path / "endless")
    change(good, network={"name": "from_file", "path": str(tmp_path / "endless")}, facts__edges=GONE)
    assert [run["name"] for run in shown(tmp_path)[0]["runs"]] == ["Good"]


@pytest.mark.parametrize("name", ["config.json", "records.jsonl", "final.safetensors"])
def test_a_link_to_something_outside_the_folder_is_not_followed(tmp_path, bad, opened, name):
    outside = tmp_path / "outside" / name
    outside.parent.mkdir()
    (bad / name).rename(outside)
    (bad / name).symlink_to(outside)
    opened.clear()
    page, result = shown(tmp_path)
    assert str(outside) not in opened
    told = f"{bad / name} is a link to something outside the folder, where a report opens nothing"
    if name == "final.safetensors":
        assert page["runs"][0]["unknown"] == told
    else:
        assert [run["name"] for run in page["runs"]] == ["Good"]
        assert page["faults"] == [told]
        assert result.stderr == f"warning: {told}\n"


def test_a_link_within_the_folder_is_followed(tmp_path, good):
    (good / "records.jsonl").rename(good / "records-1.jsonl")
    (good / "records.jsonl").symlink_to("records-1.jsonl")
    assert [run["name"] for run in shown(tmp_path)[0]["runs"]] == ["Good"]


def test_folders_behind_links_are_not_searched(tmp_path, good):
    save(tmp_path / "outside" / "run")
    (tmp_path / "all" / "link").symlink_to(tmp_path / "outside")
    assert len(shown(tmp_path)[0]["runs"]) == 1


@pytest.mark.parametrize("option", ["--html", "--target=1"])
@pytest.mark.usefixtures("drawn")
def test_files_are_written_into_the_folder_even_if_links_with_their_names_lie_there(tmp_path, good, option):
    precious = tmp_path / "precious"
    precious.write_text(SECRET)
    for name in ("report.html", "report.csv", "report.png"):
        (good / name).symlink_to(precious)
    assert call(good, option).exit_code == 0
    assert precious.read_text() == SECRET
    assert not (good / "report.csv").is_symlink()


# nothing hangs, and nothing eats memory


@pytest.mark.parametrize("name", ["config.json", "records.jsonl", "final.safetensors"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "loop"])
def test_what_is_no_regular_file_is_named_and_the_rest_is_shown(tmp_path, bad, name, kind):
    (bad / name).unlink()
    make = {
        "fifo": os.mkfifo,
        "folder": os.mkdir,
        "device": lambda path: os.symlink("/dev/zero", path),
        "loop": lambda path: os.symlink(path, path),
    }
    make[kind](bad / name)
    page, _ = shown(tmp_path)
    told = [*page["faults"], *(run.get("unknown", "") for run in page["runs"])]
    assert any(str(bad / name) in text for text in told)
    assert "Good" in [run["name"] for run in page["runs"]]


@pytest.mark.parametrize(("name", "megabytes"), [("config.json", 5), ("records.jsonl", 100_000)])
def test_files_that_are_too_large_are_named(tmp_path, bad, name, megabytes):
    os.truncate(bad / name, megabytes * 10**6)  # it takes no room on the disk
    page, _ = shown(tmp_path)
    most = foreign_folders.MOST_BYTES[name] // 10**6
    assert page["faults"] == [f"{bad / name} has {megabytes:,} MB; a report reads up to {most}"]
    assert len(page["runs"]) == 1


def test_a_final_state_that_is_too_large_is_left_out(tmp_path, good, monkeypatch):
    monkeypatch.setattr(network_drawings, "MOST_STATE", 8 * 5)
    assert shown(tmp_path)[0]["runs"][0]["unknown"].endswith("x has 8 numbers, too many for a report")
    (good / "final.safetensors").write_bytes((10**9).to_bytes(8, "little") + b" " * 100)
    assert "its header is too large" in shown(tmp_path)[0]["runs"][0]["unknown"]


@pytest.mark.parametrize("agents", [4, 10**7])
def test_a_ring_of_ten_million_agents_is_not_made(tmp_path, good, agents, monkeypatch):
    change(good, network={"name": "ring", "agents": 10**7}, facts__agents=agents, facts__edges=GONE)
    page, _ = shown(tmp_path)
    missing = {
        4: "its edges are not known: config.json has none",
        10**7: "10,000,000 agents are too many to draw",
    }
    assert page["networks"][0]["missing"] == missing[agents]
    assert len((tmp_path / "report.html").read_text()) < 100_000


def test_folders_may_lie_deep_within_each_other(tmp_path, good):
    place, limit = tmp_path / "all", sys.getrecursionlimit()
    deep = [place := place / "a" for _ in range(300)]
    for place in deep:
        place.mkdir()
    try:
        sys.setrecursionlimit(len(inspect.stack(0)) + 250)  # fewer calls than there are folders
        assert len(shown(tmp_path)[0]["runs"]) == 1
    finally:
        sys.setrecursionlimit(limit)
        for place in reversed(deep):  # what removes temporary folders does so recursively
            place.rmdir()


def test_trials_and_quantities_have_bounds(tmp_path, bad):
    change(bad, trials=10**9)
    assert "trials must be a whole number from 1 to 10,000; got 1000000000" in shown(tmp_path)[0]["faults"][0]
    change(bad, trials=2)
    row = {"trial": 0, "k": 0} | {f"m{i}": 1.0 for i in range(300)}
    (bad / "records.jsonl").write_text(json.dumps(row) + "\n")
    assert shown(tmp_path)[0]["faults"] == [f"{bad / 'records.jsonl'} has 302 quantities; a report reads up to 200"]


def test_what_a_figure_has_no_room_for_is_left_out_with_a_word(tmp_path, good, bad, drawn, monkeypatch):
    monkeypatch.setattr(figures, "MOST_METHODS", 1)
    result = call(tmp_path / "all")
    assert result.exit_code == 0
    assert result.stderr == "warning: the figure shows 1 of 2 runs; the table has all of them\n"
    assert {ax.get_title() for ax in drawn[0].axes} == {"Bad"}
    assert (tmp_path / "all" / "report.csv").read_text().count("\n") == 3
    monkeypatch.setattr(loading, "MOST_RUNS", 1)
    assert shown(tmp_path)[0]["faults"] == ["2 runs are too many for a report, which shows the first 1"]


# wrong types are named, and the other folders shown


WRONG = {
    "facts": 3,
    "ending": [],
    "facts__title": 7,
    "facts__agents": "4",
    "facts__rho": "nearly 1",
    "facts__rounds": -1,
    "facts__gamma": ["a"],
    "ending__iterations": 1e400,
    "ending__stopped": 5,
    "ending__diverged": {"x": {}},
    "trials": 2.5,
    "iterations": None,
    "observe_every": "often",
    "algorithm": "A",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_in_a_configuration_is_one_sentence(tmp_path, bad, name):
    change(bad, **{name: WRONG[name]})
    page, result = shown(tmp_path)
    (told,) = page["faults"]
    assert told.startswith(f"{bad / 'config.json'}: ")
    assert name.rpartition("__")[2] in told or name in ("facts", "ending")
    assert [run["name"] for run in page["runs"]] == ["Good"]
    assert result.stderr == f"warning: {told}\n"
    alone = call(bad)
    assert (alone.exit_code, alone.stderr) == (2, f"error: {told}\n")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"facts": {}, "ending": {}, "x": ' + "[" * 50 + "]" * 50 + "}"],
)
def test_json_that_is_deep_or_long_is_one_sentence(tmp_path, bad, text):
    (bad / "config.json").write_text(text)
    page, _ = shown(tmp_path)
    assert len(page["faults"]) == len(page["runs"]) == 1
    assert page["faults"][0].startswith(str(bad / "config.json"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"trial": 0, "k": 20, "loss": "low"}', "loss must be a number; got 'low'"),
        ('{"trial": 0, "k": 20, "loss": [1]}', "loss must be a number; got [1]"),
        ('{"trial": 0, "k": 20, "loss": true}', "loss must be a number; got True"),
        ('{"trial": "0", "k": 10}', "trial must be a whole number from 0 to 1; got trial '0' at k = 10"),
        ('{"trial": 2, "k": 10}', "trial must be a whole number from 0 to 1; got trial 2 at k = 10"),
        ('{"trial": 0, "k": 1.5}', "k must be a whole number from 0 to 1,000,000,000,000; got trial 0 at k = 1.5"),
        ('{"trial": 0, "k": null}', "k must be a whole number from 0 to 1,000,000,000,000; got trial 0 at k = nan"),
        ('{"trial": 0, "k": -1}', "k must be a whole number from 0 to 1,000,000,000,000; got trial 0 at k = -1"),
        ('{"trial": 1, "k": 10}', "trial 1 at k = 10 does not follow the lines above it"),
        ('{"trial": 0, "k": 5}', "trial 0 at k = 5 does not follow the lines above it"),
        ('{"trial": 0, "k": ' + "9" * 5000 + "}", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
    ],
)
def test_a_record_that_is_none_is_named_with_its_line(tmp_path, bad, line, words):
    with (bad / "records.jsonl").open("a") as file:
        file.write(line + '\n{"trial": 0, "k": 30, "loss": 1.0}\n')
    page, _ = shown(tmp_path)
    (told,) = page["faults"]
    assert told.startswith(f"{bad / 'records.jsonl'}, line 5: {words}")
    assert [run["name"] for run in page["runs"]] == ["Good"]


@pytest.mark.parametrize(
    "value", ["1e400", "-1e400", "NaN", "1e308", "-1e308", "1e149", "-1e149", "1e-320", "9" * 400, "null"]
)
def test_numbers_of_no_ordinary_size_cost_nothing(tmp_path, good, value, request):
    fixture = {"1e149": "good", "-1e149": "laid_out"}.get(value, "drawn")  # the others are not drawn as they are
    found = request.getfixturevalue(fixture)
    text = (good / "records.jsonl").read_text()
    (good / "records.jsonl").write_text(
        re.sub(r'"(loss|consensus|seconds)": [0-9.e-]+', rf'"\1": {value}', text, count=7)
    )
    assert len(shown(tmp_path)[0]["runs"]) == 1
    assert call(good, "-o", tmp_path).exit_code == 0
    for ax in found[0].axes if fixture == "drawn" else ():
        assert all((np.abs([*line.get_ydata(), *ax.get_ylim()]) < 1e100).all() for line in ax.lines)


@pytest.mark.parametrize("shape", [(0, 4, 1), (2, 4), (2, 4, 0)])
def test_a_final_state_of_any_shape_costs_nothing(tmp_path, good, shape):
    save_file({"x": torch.zeros(shape, dtype=torch.int64)}, good / "final.safetensors")
    assert len(shown(tmp_path)[0]["runs"]) == 1


def test_names_that_a_script_knows_otherwise_do_not_cost_the_page(tmp_path, good):
    """What else they do is for a browser to show."""
    names = ("constructor", "__proto__", "toString", 'x") url(a')
    text = (good / "records.jsonl").read_text()
    more = "".join(f', "{json.dumps(name)[1:-1]}": 1.0' for name in names)
    (good / "records.jsonl").write_text(text.replace("}", more + "}"))
    change(good, constructor={"a": 1})
    assert {measure["key"] for measure in shown(tmp_path)[0]["measures"]} >= set(names)


# nothing acts that should show


@pytest.mark.usefixtures("laid_out")
def test_escape_sequences_do_not_reach_the_terminal_the_page_or_the_table(tmp_path, good):
    strange = good.with_name("a\x1b[2Jb\x9b")
    good.rename(strange)
    change(strange, facts__title=ESCAPES, ending__stopped=ESCAPES, note=ESCAPES)
    text = (strange / "records.jsonl").read_text()
    (strange / "records.jsonl").write_text(text.replace('"rounds"', json.dumps(ESCAPES)))
    (strange / "x").mkdir()
    for name in ("broken", "also\rbroken"):
        save(tmp_path / "all" / name)
        (tmp_path / "all" / name / "config.json").write_text(json.dumps({ESCAPES: ESCAPES}))
    _, result = shown(tmp_path)
    plain = call(tmp_path / "all", "-o", tmp_path)
    assert plain.exit_code == 0, plain.output
    missing = call(tmp_path / "no\x1b[2Jwhere")
    written = (tmp_path / "report.csv").read_text() + (tmp_path / "report.html").read_text()
    for text in (result.stdout, result.stderr, plain.stdout, plain.stderr, missing.stderr, written):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text)
    assert r"\x1b]0;title\x07" in plain.stdout
    assert r"a\x1b[2Jb\x9b" in result.stdout + plain.stdout


def test_visible_texts_are_left_as_they_are():
    assert visible("Prox-DASA, γ = 0.1 → ‖X − X̄‖² 模型 🙂") == "Prox-DASA, γ = 0.1 → ‖X − X̄‖² 模型 🙂"
    assert visible("a\nb\tc\x1b\x9b\u202e\ud800") == r"a\nb\tc\x1b\x9b\u202e\ud800"


@pytest.mark.parametrize("titles", [["$x_$", "$\\frac{", "_hidden", "模型 🙂"], ["M" * 10_000, "", " ", "%s {} \\"]])
def test_a_method_may_have_any_name(tmp_path, titles):
    for number, title in enumerate(titles):
        folder = change(save(tmp_path / "all" / str(number), "Good"), facts__title=title)
        text = (folder / "records.jsonl").read_text()
        (folder / "records.jsonl").write_text(text.replace('"consensus"', '"other"'))  # half as much to draw
    result = call(tmp_path / "all", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "report.png").stat().st_size > 0


@pytest.mark.parametrize("text", ["=1+2", "+cmd", "-cmd", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"])
def test_no_cell_of_a_table_is_a_formula(tmp_path, text):
    path = Sheet({"a": "a", text: "b"}, [[text, "x"]]).write_csv(tmp_path / "t.csv")
    rows = list(csv.reader(io.StringIO(path.read_bytes().decode())))
    inert = visible(text) if text[0] in "\t\r\n" else f"'{text}"
    assert rows == [["a", inert], [inert, "x"]]
    assert inert[0] in "'\\"


def test_numbers_stay_numbers_in_a_table(tmp_path):
    path = Sheet({"a": "a", "b": "b", "c": "c"}, [[-1.5, "-2e-3", "+4"]]).write_csv(tmp_path / "t.csv")
    assert path.read_text() == "a,b,c\n-1.5,-2e-3,+4\n"


@pytest.mark.usefixtures("drawn")
def test_the_table_of_a_report_has_no_formula(tmp_path, good):
    change(good, facts__title='=HYPERLINK("http://example.org")')
    assert call(good).exit_code == 0
    _, row = csv.reader((good / "report.csv").read_text(encoding="utf-8").splitlines())
    assert row[0] == '\'=HYPERLINK("http://example.org")'


def test_reading_one_folder_for_an_experiment_is_as_careful(tmp_path, bad):
    change(bad, facts__agents=-1)
    with pytest.raises(ValueError, match=r"config\.json: facts\.agents must be a whole number from 1"):
        load_runs([bad])
    assert len(reports.salvage([bad.with_name("good")])[0]) == 1
