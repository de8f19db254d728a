"""Checkpoints whose sums are right and whose content is not: they are passed over, or refused in a sentence."""

import json
import math
import os
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from typer.testing import CliRunner

import proxdasa
from proxdasa import networks, problems
from proxdasa.cli import app
from proxdasa.engines.agents import LocalAgents
from proxdasa.runs.checkpoints import CheckpointWarning
from proxdasa.runs.loop import Saving
from proxdasa.runs.setup import Setup
from tests.checkpoints import contents, forge, seal
from tests.laws import FEWER
from tests.processes import write_config

MADE = Setup(
    proxdasa.ProxDASA(0.01),
    problems.PhaseRetrieval(agents=4, dim=5, sparsity=2, evaluation="population"),
    networks.ring(4),
    iterations=12,
    observe_every=2,
    metrics=(proxdasa.metrics.loss,),
    trials=2,
    random_iterate=True,
    stop=proxdasa.Stationary(1e-12, every=4),
)
WHOLE = MADE.run()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The checkpoints of a run that was interrupted, of iterations 4 and 8."""
    path = tmp_path_factory.mktemp("stopped")

    def interrupt(k, _iterations, _rows):
        if k >= 8:
            raise KeyboardInterrupt

    MADE.run(interrupt, Saving(path, 4))
    return path


@pytest.fixture
def folder(tmp_path, stopped):
    """A copy, in which both checkpoints have their rows in one file too."""
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    earlier, later = (tmp_path / name / "rows.jsonl" for name in ("000000004", "000000008"))
    earlier.unlink()
    os.link(later, earlier)
    return tmp_path


def tensors(change):
    def state(place):
        given = load((place / "state.safetensors").read_bytes())
        change(given)
        return {"state": save(given)}

    return state


def rows(change):
    def lines(place):
        entries = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()][:4]
        return {"rows": "".join(json.dumps(row) + "\n" for row in change(entries)).encode()}

    return lines


def first(**changes):
    return rows(lambda entries: [entries[0] | changes, *entries[1:]])


def notes(**changes):
    def changed(place):
        given = json.loads((place / "manifest.json").read_bytes())["notes"] | changes
        return {"notes": {name: value for name, value in given.items() if value is not ...}}

    return changed


WRONG = {
    "a shape": tensors(lambda state: state.update(x=state["x"][:, :3].clone())),
    "no trial": tensors(lambda state: state.update(z=torch.zeros(0, 4, 5))),
    "a type": tensors(lambda state: state.update(x=state["x"].double())),
    "whole numbers": tensors(lambda state: state.update(x=state["x"].to(torch.int64))),
    "a variable too few": tensors(lambda state: state.pop("z")),
    "a variable too many": tensors(lambda state: state.update(u=state["z"].clone())),
    "no random iterate": tensors(lambda state: state.pop("random_iterate")),
    "no tensors": lambda _: {"state": b"\x08\x00\x00\x00\x00\x00\x00\x00garbage!"},
    "no state at all": lambda _: {"state": b""},
    "rows that are no text": lambda _: {"rows": b"\xff\xfe\n"},
    "a row cut short": lambda _: {"rows": b'{"trial": 0, "k": 0}\n{"tri'},
    "rows that are no objects": lambda _: {"rows": b"[1, 2]\n3\n"},
    "deep rows": lambda _: {"rows": b"[" * 100_000 + b"\n"},
    "a row without a trial": rows(lambda entries: [{"k": 0}]),
    "a row of another trial": first(trial=2),
    "a row of no trial": first(trial=True),
    "a row of a later k": first(k=10),
    "rows in another order": rows(lambda entries: entries[::-1]),
    "a row with a text": first(loss="small"),
    "a row with a list": first(loss=[1]),
    "observed later": notes(observed=9),
    "observed at a half": notes(observed=1.5),
    "no observation": notes(observed=...),
    "negative seconds": notes(seconds=-1.0),
    "seconds in words": notes(seconds="1"),
    "huge counts": notes(counts={"samples": 10**400}),
    "negative counts": notes(counts={"samples": -1}),
    "counts in a list": notes(counts=[1]),
    "no count of rounds": notes(counts={"samples": 4}),
    "half a round": notes(counts={"samples": 4, "rounds": 3.5}),
    "a trial that is none": notes(diverged={"7": [0, 1]}),
    "a trial in words": notes(diverged={"one": [0, 1]}),
    "an agent that is none": notes(diverged={"0": [4, 1]}),
    "a divergence to come": notes(diverged={"0": [0, 9]}),
    "a divergence nowhere": notes(diverged={"0": []}),
    "too few numbers of the stopping rule": notes(watch=[]),
    "numbers of the stopping rule that are none": notes(watch=[0, 0, "a", 0]),
    "no notes": lambda _: {"notes": {}},
    "notes in a list": lambda _: {"notes": []},
    "a k that is no number": lambda _: {"k": "8"},
    "files that are none": lambda _: {"files": {}},
    "files of no size": lambda _: {"files": {"state.safetensors": {}, "rows.jsonl": {}}},
    "a fingerprint that is none": lambda _: {"fingerprint": 8},
    "an entry more": lambda _: {"more": 1},
    "contents in a list": lambda _: {"contents": []},
    "another k": lambda _: {"k": 7},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_earlier_checkpoint_is_used(folder, name):
    newest = folder / "000000008"
    forge(newest, **WRONG[name](newest))
    before = contents(newest)
    with pytest.warns(CheckpointWarning, match=r"000000008.*; the run continues from 000000004") as told:
        result = MADE.run(None, Saving(folder, 4))
    assert len(told) == 1
    assert torch.equal(result.x, WHOLE.x)
    assert [row["k"] for row in result.records] == [row["k"] for row in WHOLE.records]
    assert contents(folder / "000000008.damaged") == before, "set aside where the run leaves its own"


@pytest.mark.parametrize("name", ["a shape", "rows in another order", "another k"])
def test_it_can_go_on_from_the_checkpoints_of_such_a_run(folder, name):
    newest = folder / "000000008"
    forge(newest, **WRONG[name](newest))
    with pytest.warns(CheckpointWarning):
        MADE.run(None, Saving(folder, 4))
    again = MADE.run(None, Saving(folder))
    assert again.iterations == 12
    assert torch.equal(again.x, WHOLE.x)


@pytest.mark.parametrize("k", [13, 10**12])
def test_a_checkpoint_beyond_the_last_iteration_is_none(folder, k):
    (folder / "000000008").rename(newest := folder / f"{k:09d}")
    forge(newest, k=k)
    with pytest.warns(
        CheckpointWarning, match=rf"it is of iteration {k}, but the run has only 12; the run continues from"
    ):
        result = MADE.run(None, Saving(folder, 4))
    assert result.iterations == 12
    assert torch.equal(result.x, WHOLE.x)


@pytest.mark.parametrize("text", ["", "[", '"}', '", "k": 1e999}', "[" * 100_000, '", "k": 8, "k": 9}'])
def test_a_manifest_that_is_none_is_passed_over(folder, text):
    seal(folder / "000000008", text)
    said = r"000000008.manifest.json is not a manifest: .*continues from 000000004"
    with pytest.warns(CheckpointWarning, match=said):
        assert torch.equal(MADE.run(None, Saving(folder)).x, WHOLE.x)


def test_where_there_is_no_earlier_one_it_is_a_sentence(folder):
    for place in sorted(folder.glob("0*")):
        forge(place, **WRONG["a variable too few"](place))
    before = contents(folder)
    said = r"000000008 holds data that this run did not write: its state has random_iterate, x, but that of the run "
    said += "has random_iterate, x, z;"
    with pytest.raises(ValueError, match=said):
        MADE.run(None, Saving(folder))
    assert contents(folder) == before


def test_nothing_of_it_reaches_the_terminal_as_it_is(folder):
    for place in sorted(folder.glob("0*")):
        forge(place, **tensors(lambda state: state.update({"\x1b[2J" + "y" * 10_000: state["x"].clone()}))(place))
    with pytest.raises(ValueError, match=r"its state has \?\[2Jyyy") as told:
        MADE.run(None, Saving(folder))
    assert "\x1b" not in str(told.value)
    assert len(str(told.value)) < 2_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@FEWER
@given(
    st.sampled_from(["k", "notes", "files", "contents", "observed", "seconds", "counts", "diverged", "watch"]),
    json_values,
)
def test_whatever_a_manifest_says_a_run_goes_on_rightly_or_refuses(tmp_path_factory, stopped, key, value):
    folder = tmp_path_factory.mktemp("forged")
    shutil.copy(stopped / "config.json", folder)
    place = shutil.copytree(stopped / "000000008", folder / "000000008")
    forge(place, **({key: value} if key in ("k", "notes", "files", "contents") else notes(**{key: value})(place)))
    try:
        x, told = MADE.run(None, Saving(folder)).x, ""
    except ValueError as error:
        x, told = WHOLE.x, str(error)
    assert torch.equal(x, WHOLE.x)
    assert not told or "holds no checkpoint from which this run can continue" in told


@pytest.mark.parametrize("every", [-5, 0, 1.5, "5", True, [5], {}])
def test_checkpoints_every_so_often_is_a_number_or_a_sentence(tmp_path, every):
    with pytest.raises(ValueError, match=r"checkpoint_every must be a whole number of at least 1; got"):
        Saving(tmp_path, every)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of a run with checkpoints."""
    path = tmp_path_factory.mktemp("results")
    config = write_config(path / "run.toml", iterations=20, observe_every=10)
    run = CliRunner().invoke(app, ["run", str(config), "-o", str(path / "r"), "--checkpoint-every", "10"])
    assert run.exit_code == 0, run.output
    return path / "r"


@pytest.mark.parametrize("ending", [{"checkpoint_every": -5}, {"checkpoint_every": math.inf}, [], 5, None])
def test_a_folder_that_says_otherwise_is_not_resumed(tmp_path, results, ending):
    told = shutil.copytree(results, tmp_path / "r") / "checkpoints" / "config.json"
    told.write_text(json.dumps(json.loads(told.read_text()) | {"ending": ending}))
    resumed = CliRunner().invoke(app, ["resume", str(tmp_path / "r")])
    assert resumed.exit_code == 2
    said = " ".join(resumed.output.split())
    what = "a run with checkpoints: ending: " if isinstance(ending, dict) else "saved results: it has no ending"
    assert f"{told}: not the configuration of {what}" in said


def test_a_cost_that_an_earlier_version_did_not_count_stays_unknown(tmp_path):
    """Its records would otherwise hold what was spent since the run was continued."""
    problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    setup = Setup(proxdasa.DPSGD(0.1), problem, networks.ring(3), iterations=30, observe_every=10)
    counts = LocalAgents.counts

    def stop(at):
        def progress(k, *_):
            if k == at:
                raise KeyboardInterrupt

        return progress

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalAgents, "counts", lambda self: {k: v for k, v in counts(self).items() if k != "bytes"})
        setup.run(stop(10), Saving(tmp_path))
    setup.run(stop(20), Saving(tmp_path))
    result, plain = setup.run(saving=Saving(tmp_path)), setup.run()
    assert ["bytes" in row and math.isnan(row["bytes"]) for row in result.records] == [False, False, True, True]
    for cost in ("samples", "gradients", "rounds", "vectors"):
        assert [row[cost] for row in result.records] == [row[cost] for row in plain.records]
