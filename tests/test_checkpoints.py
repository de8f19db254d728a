"""Checkpoints: what is written is read back, and nothing that could be needed is lost."""

import errno
import json
import math
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import proxdasa
from proxdasa import networks, problems
from proxdasa.runs import loop, records
from proxdasa.runs.checkpoints import Checkpoint, Checkpoints, CheckpointWarning, fingerprint
from proxdasa.runs.setup import Setup
from tests.checkpoints import ANOTHER, FILES, GARBAGE, OURS, bits, checkpoint, contents, harm, names, same, two
from tests.laws import FEWER


@pytest.fixture
def folder(tmp_path):
    return two(tmp_path / "deep" / "checkpoints")


# Round trips


def test_a_checkpoint_is_read_back_as_it_was(tmp_path):
    place = Checkpoints(tmp_path, OURS).write(checkpoint())
    assert place == tmp_path / "000001000"
    assert names(place) == FILES
    read = Checkpoints(tmp_path, OURS).latest()
    assert same(read, checkpoint())
    assert [type(value) for value in read.rows[0].values()] == [int, int, float, int]


values = st.floats(width=32) | st.sampled_from([-0.0, math.nan, math.inf, 1e-40])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def tensors(draw):
    """[trials, agents, d] in either type, laid out in any order or with strides."""
    shape = draw(st.tuples(*[st.integers(0, 3)] * 3))
    flat = draw(st.lists(values, min_size=math.prod(shape), max_size=math.prod(shape)))
    tensor = torch.tensor(flat, dtype=draw(st.sampled_from([torch.float32, torch.float64]))).reshape(shape)
    return tensor.permute(draw(st.permutations([0, 1, 2])))[..., :: draw(st.integers(1, 2))]


@FEWER
@given(
    k=st.integers(0, 10**12),
    state=st.dictionaries(st.text("xyzuv_0", min_size=1), tensors(), min_size=1, max_size=4),
    rows=st.lists(
        st.dictionaries(st.text(), st.integers() | st.text() | st.floats(allow_nan=False).filter(math.isfinite))
    ),
    notes=st.dictionaries(st.text(), json_values, max_size=4),
)
def test_whatever_is_written_is_read_back(k, state, rows, notes):
    written = Checkpoint(k, state, rows, notes)
    with tempfile.TemporaryDirectory() as folder:
        Checkpoints(Path(folder), OURS).write(written)
        assert same(Checkpoints(Path(folder), OURS).latest(), written)


def test_variables_that_share_memory_come_back_apart(tmp_path):
    x = torch.arange(6.0).reshape(1, 2, 3)
    Checkpoints(tmp_path, OURS).write(
        checkpoint(state={"x": x, "x_hat": x, "row": x[:, :1], "mean": x[:, :1].expand(1, 2, 3)})
    )
    state = Checkpoints(tmp_path, OURS).latest().state
    assert torch.equal(state["x_hat"], x)
    assert torch.equal(state["row"], x[:, :1])
    assert torch.equal(state["mean"][0, 1], x[0, 0])
    state["x"].zero_()
    assert torch.equal(state["x_hat"], x)


def test_the_state_outlives_its_file(folder):
    state = Checkpoints(folder, OURS).latest().state
    harm(folder / "000002000" / "state.safetensors")
    shutil.rmtree(folder)
    state["x"] += 0
    assert bits(state["z"]) == bits(checkpoint(2000).state["z"])


def test_tiny_numbers_survive_where_arithmetic_flushes_them(tmp_path):
    """A run writes and reads while numbers below 1e-38 count as zero."""
    tiny = torch.full((1, 4, 3), 1e-310, dtype=torch.float64)
    written = checkpoint(state={"x": tiny, "z": tiny.mT, "u": tiny[:, ::2], "v": torch.full((1, 2, 3), 1e-40)})
    expected = {name: bits(tensor) for name, tensor in written.state.items()}
    with loop.flushed_denormals():
        Checkpoints(tmp_path, OURS).write(written)
        read = Checkpoints(tmp_path, OURS).latest()
    assert {name: bits(tensor) for name, tensor in read.state.items()} == expected


def test_what_is_not_finite_in_rows_is_null_and_read_as_nan(tmp_path):
    rows = [{"k": k, "loss": loss} for k, loss in enumerate([1.0, math.nan, math.inf, -math.inf])]
    place = Checkpoints(tmp_path, OURS).write(checkpoint(rows=rows))
    lines = (place / "rows.jsonl").read_text(encoding="ascii").splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [1.0, None, None, None]
    read = Checkpoints(tmp_path, OURS).latest().rows
    assert [math.isnan(row["loss"]) for row in read] == [False, True, True, True]


def test_rows_are_written_as_results_are(tmp_path):
    rows = checkpoint().rows
    place = Checkpoints(tmp_path / "checkpoints", OURS).write(checkpoint(rows=rows))
    records.write_folder(tmp_path, {}, rows, {})
    assert (place / "rows.jsonl").read_bytes() == (tmp_path / "records.jsonl").read_bytes()


def test_checkpoints_are_not_taken_for_results(tmp_path):
    Checkpoints(tmp_path / "checkpoints", OURS).write(checkpoint())
    records.write_folder(tmp_path, {}, [], {})
    assert records.find_results(tmp_path) == [tmp_path]


@pytest.mark.parametrize("notes", [{"a": math.nan}, {"a": object()}, {"a": (1, 2)}, {1: 2}, {"a": {1: 2}}])
def test_notes_that_would_come_back_otherwise_are_refused(folder, notes):
    before = contents(folder)
    with pytest.raises((TypeError, ValueError), match=r"JSON"):
        Checkpoints(folder, OURS).write(checkpoint(3000, notes=notes))
    assert contents(folder) == before


def test_no_checkpoints_are_none(tmp_path):
    assert Checkpoints(tmp_path / "nowhere", OURS).latest() is None
    for name in (".000001000.partial", "1000", "0000001000", "figures", "000001000.txt", "٠٠٠٠٠١٠٠٠"):
        (tmp_path / name).mkdir()
    assert Checkpoints(tmp_path, OURS).latest() is None


def test_the_latest_is_the_one_of_most_iterations(tmp_path):
    ours = Checkpoints(tmp_path, OURS)
    for k in (999_999_998, 999_999_999, 1_000_000_000):
        ours.write(checkpoint(k))
    assert names(tmp_path) == ["1000000000", "999999999"]
    assert Checkpoints(tmp_path, OURS).latest().k == 1_000_000_000


# Another run's


def test_only_checkpoints_of_other_settings_are_an_error(folder):
    before = contents(folder)
    with pytest.raises(ValueError, match=r"000002000 belongs to a run with other settings.*choose another folder"):
        Checkpoints(folder, ANOTHER).latest()
    assert contents(folder) == before


def test_own_checkpoints_are_found_among_others(folder):
    theirs = Checkpoints(folder, ANOTHER)
    theirs.write(checkpoint(1500))
    with pytest.warns(CheckpointWarning, match=r"000002000 belongs to a run with other settings; the run continues"):
        assert same(theirs.latest(), checkpoint(1500))


def test_another_runs_checkpoint_is_neither_replaced_nor_removed(folder):
    before = contents(folder)
    theirs = Checkpoints(folder, ANOTHER)
    with pytest.raises(ValueError, match=r"000002000 belongs to a run with other settings; choose another folder"):
        theirs.write(checkpoint(2000))
    assert contents(folder) == before
    for k in (3000, 4000, 5000):
        theirs.write(checkpoint(k))
    assert names(folder) == ["000001000", "000002000", "000004000", "000005000"]
    assert contents(folder).items() >= before.items()


# What is kept


def test_the_last_two_are_kept(tmp_path):
    ours, kept = Checkpoints(tmp_path, OURS), []
    for k in range(5):
        ours.write(checkpoint(k))
        kept = [*kept, f"{k:09d}"][-2:]
        assert names(tmp_path) == kept


def test_after_a_resumption_the_last_two_are_kept_too(folder):
    ours = Checkpoints(folder, OURS)
    ours.latest()
    ours.write(checkpoint(3000))
    assert names(folder) == ["000002000", "000003000"]


def test_nothing_is_removed_before_two_are_known_to_be_whole(folder):
    ours = Checkpoints(folder, OURS)
    ours.write(checkpoint(3000))
    assert names(folder) == ["000001000", "000002000", "000003000"]
    ours.write(checkpoint(4000))
    assert names(folder) == ["000003000", "000004000"]


def test_a_removed_one_is_not_counted(folder):
    ours = Checkpoints(folder, OURS)
    ours.latest()
    shutil.rmtree(folder / "000002000")
    ours.write(checkpoint(3000))
    assert names(folder) == ["000001000", "000003000"]


def test_a_damaged_one_is_set_aside_where_it_would_be_removed(folder):
    harm(folder / "000001000" / "state.safetensors", GARBAGE)
    before = contents(folder / "000001000")
    ours = Checkpoints(folder, OURS)
    for k in (3000, 4000, 5000):
        ours.write(checkpoint(k))
    assert names(folder) == ["000001000.damaged", "000004000", "000005000"]
    assert contents(folder / "000001000.damaged") == before


def test_a_damaged_one_is_left_where_it_is_while_it_is_in_nobodys_way(folder):
    harm(folder / "000002000" / "rows.jsonl")
    ours = Checkpoints(folder, OURS)
    with pytest.warns(CheckpointWarning):
        ours.latest()
    ours.write(checkpoint(1500))
    assert names(folder) == ["000001000", "000001500", "000002000"]
    with pytest.warns(CheckpointWarning, match="000002000/rows.jsonl"):
        assert Checkpoints(folder, OURS).latest().k == 1500


def test_a_damaged_one_makes_room_for_a_new_one(folder):
    for attempt in ("", ".2", ".3"):
        harm(folder / "000002000" / "rows.jsonl", attempt.encode())
        ours = Checkpoints(folder, OURS)
        with pytest.warns(CheckpointWarning):
            ours.latest()
        ours.write(checkpoint(2000))
        assert (folder / f"000002000.damaged{attempt}" / "rows.jsonl").read_bytes() == attempt.encode()
        assert same(Checkpoints(folder, OURS).latest(), checkpoint(2000))


def test_an_empty_folder_or_a_file_makes_room_for_a_new_one(tmp_path):
    (tmp_path / "000001000").mkdir()
    harm(tmp_path / "000002000", GARBAGE)
    for k in (1000, 2000):
        Checkpoints(tmp_path, OURS).write(checkpoint(k))
    assert names(tmp_path) == ["000001000", "000001000.damaged", "000002000", "000002000.damaged"]
    assert (tmp_path / "000002000.damaged").read_bytes() == GARBAGE


@pytest.mark.parametrize("resumed", [True, False])
def test_a_whole_one_of_the_same_iteration_stays(folder, resumed):
    before, ours = contents(folder), Checkpoints(folder, OURS)
    if resumed:
        ours.latest()
    assert ours.write(checkpoint(2000, notes={"later": True})) == folder / "000002000"
    assert contents(folder) == before


def test_old_checkpoints_are_not_read_again_at_every_write(folder, monkeypatch):
    ours, read, whole = Checkpoints(folder, OURS), [], Path.read_bytes
    ours.latest()
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path.parent.name), whole(path))[1])
    ours.write(checkpoint(3000))
    assert read == ["000001000"] * 3, "written before this run was resumed, so verified once before it is removed"
    for k in (4000, 5000):
        ours.write(checkpoint(k))
    assert len(read) == 3


def test_leftovers_of_killed_writers_are_removed_and_nothing_else(folder):
    others = [".000003000", ".partial", ".mine.partial", "000003000.partial", "000003000.txt", "1000", ".003.partial"]
    for name in (".000003000.partial", ".000009000.partial", *others):
        (folder / name).mkdir()
        harm(folder / name / "state.safetensors", GARBAGE)
    Checkpoints(folder, OURS).write(checkpoint(3000))
    assert names(folder) == sorted([*others, "000001000", "000002000", "000003000"])


def test_an_old_one_that_cannot_be_removed_is_told(folder, monkeypatch):
    ours = Checkpoints(folder, OURS)
    ours.latest()

    def refuse(path, ignore_errors=False):
        assert ignore_errors or path.name == ".000001000.partial"
        if not ignore_errors:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.warns(CheckpointWarning, match=r"000001000 could not be removed: .*Permission denied") as told:
        ours.write(checkpoint(3000))
    assert told[0].filename == __file__
    assert Checkpoints(folder, OURS).latest().k == 3000


# Fingerprints


CONFIG = {
    "algorithm": {"name": "ProxDASA", "gamma": 0.1, "alpha": {"name": "horizon", "scale": 1.0}},
    "seed": 0,
    "x0": [1, 2],
}


@pytest.mark.parametrize(
    "other",
    [
        dict(reversed(CONFIG.items())),
        CONFIG | {"algorithm": dict(reversed(CONFIG["algorithm"].items()))},
        CONFIG | {"facts": {"torch": "2.0"}},
        CONFIG | {"facts": {}, "ending": {"stopped": "interrupted"}},
        CONFIG | {"x0": (1.0, 2.0)},
        CONFIG | {"algorithm": {"name": "ProxDASA", "gamma": 0.1, "alpha": {"name": "horizon", "scale": 1}}},
        json.loads(json.dumps(CONFIG)),
    ],
)
def test_the_same_settings_have_the_same_fingerprint(other):
    assert fingerprint(other) == fingerprint(CONFIG)


@pytest.mark.parametrize(
    "other",
    [
        {},
        CONFIG | {"seed": 1},
        CONFIG | {"seed": "0"},
        CONFIG | {"x0": [2, 1]},
        CONFIG | {"x0": None},
        CONFIG | {"trials": 1},
        CONFIG | {"algorithm": {**CONFIG["algorithm"], "gamma": math.nextafter(0.1, 1)}},
        CONFIG | {"algorithm": {**CONFIG["algorithm"], "facts": {}}},
    ],
)
def test_other_settings_have_another_fingerprint(other):
    assert fingerprint(other) != fingerprint(CONFIG)


def test_the_fingerprint_of_a_run_is_that_of_its_saved_configuration(tmp_path):
    problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    setup = Setup(proxdasa.ProxDASA(gamma=1), problem, networks.ring(3), iterations=3)
    saved = records.read_config(setup.run().save(tmp_path))
    assert fingerprint(saved) == fingerprint(setup.config())
    longer = Setup(proxdasa.ProxDASA(gamma=1), problem, networks.ring(3), iterations=4)
    assert fingerprint(longer.config()) != fingerprint(setup.config())
