"""The rows of checkpoints: each appends its own to one file, and none depends on what comes after them."""

import errno
import hashlib
import json
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

import proxdasa
from proxdasa import networks, problems
from proxdasa.runs.checkpoints import Checkpoints, CheckpointWarning
from tests.checkpoints import GROWING, OURS, checkpoint, grown, harm, names, same, seal


def written(path="/proc/self/io"):
    """Bytes that this process has given to the system to write, by all ways there are."""
    with open(path, encoding="ascii") as file:
        return int(dict(line.split(": ") for line in file)["wchar"])


def spent(folder, count):
    """Bytes that a run writes that observes in each iteration and leaves so many checkpoints."""
    problem = problems.PhaseRetrieval(agents=3, dim=2, sparsity=1, evaluation="population")
    settings = {"iterations": 5 * count, "observe_every": 1, "checkpoints": folder, "checkpoint_every": 5}
    before = written()
    proxdasa.run(proxdasa.ProxDASA(0.01), problem, networks.ring(3), **settings)
    return written() - before


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="the system does not count what a process writes")
def test_what_a_checkpoint_costs_does_not_grow_with_the_records(tmp_path):
    few, many = spent(tmp_path / "few", 5), spent(tmp_path / "many", 20)
    assert many < 1.2 * 4 * few, f"{few} bytes for 5 checkpoints, {many} for 20"


def test_only_new_rows_are_written(tmp_path, monkeypatch):
    ours, sizes, write = Checkpoints(tmp_path, OURS), [], os.write
    monkeypatch.setattr(os, "write", lambda handle, data: (sizes.append(len(data)), write(handle, data))[1])
    for k in range(0, 50_000, 1000):
        sizes.clear()
        place = ours.write(grown(k))
        assert len(sizes) == 3
        assert sizes[0] < 100, "a row, the state, the manifest"
    assert (place / "rows.jsonl").read_text().count("\n") == 50
    assert same(Checkpoints(tmp_path, OURS).latest(), grown(49_000))


def test_damage_behind_the_rows_of_a_checkpoint_does_not_concern_it(tmp_path):
    ours = Checkpoints(tmp_path, OURS)
    places = [ours.write(grown(k)) for k in (1000, 2000)]
    assert places[0].joinpath("rows.jsonl").samefile(places[1] / "rows.jsonl")
    first = 2 * len(b'{"trial": 0, "k": 1000, "loss": 0.1, "samples": 1}\n')
    for end in (b"", b"garbage" * 100, bytes(100)):
        data = (places[1] / "rows.jsonl").read_bytes()
        harm(places[1] / "rows.jsonl", data[: first + 5] + end)
        with pytest.warns(CheckpointWarning, match=r"000002000/rows.jsonl .*; the run continues from 000001000"):
            assert same(Checkpoints(tmp_path, OURS).latest(), grown(1000))


def test_damage_to_what_they_share_is_seen_by_both(tmp_path):
    ours = Checkpoints(tmp_path, OURS)
    places = [ours.write(grown(k)) for k in (1000, 2000)]
    data = bytearray((places[1] / "rows.jsonl").read_bytes())
    data[3] ^= 1
    harm(places[1] / "rows.jsonl", data)
    with pytest.raises(ValueError, match=r"000002000/rows.jsonl has changed .*000001000/rows.jsonl has changed"):
        Checkpoints(tmp_path, OURS).latest()


def test_a_resumed_run_leaves_the_rows_of_the_one_before_alone(tmp_path):
    """What is behind them may belong to a checkpoint that is damaged, and is kept to be looked at."""
    ours = Checkpoints(tmp_path, OURS)
    for k in (1000, 2000):
        ours.write(grown(k))
    harm(tmp_path / "000002000" / "state.safetensors")
    rows = (tmp_path / "000002000" / "rows.jsonl").read_bytes()
    resumed = Checkpoints(tmp_path, OURS)
    with pytest.warns(CheckpointWarning, match="continues from 000001000"):
        read = resumed.latest()
    resumed.write(checkpoint(1500, rows=[*read.rows, {"trial": 0, "k": 1500, "loss": 7.0}]))
    assert (tmp_path / "000002000" / "rows.jsonl").read_bytes() == rows
    assert (tmp_path / "000001000" / "rows.jsonl").read_bytes() == rows


def test_a_copied_folder_is_as_good(tmp_path):
    ours = Checkpoints(tmp_path / "ours", OURS)
    for k in (1000, 2000):
        ours.write(grown(k))
    shutil.copytree(tmp_path / "ours", tmp_path / "copy")
    assert same(Checkpoints(tmp_path / "copy", OURS).latest(), grown(2000))


@pytest.mark.parametrize("failure", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOENT])
def test_where_a_file_has_one_name_only_all_rows_are_written(tmp_path, monkeypatch, failure):
    def refuse(*_):
        raise OSError(failure, os.strerror(failure))

    monkeypatch.setattr(os, "link", refuse)
    ours = Checkpoints(tmp_path, OURS)
    for k in (1000, 2000, 3000):
        ours.write(grown(k))
    assert not (tmp_path / "000002000" / "rows.jsonl").samefile(tmp_path / "000003000" / "rows.jsonl")
    assert same(Checkpoints(tmp_path, OURS).latest(), grown(3000))


def test_a_file_that_was_cut_short_in_between_is_written_anew(tmp_path):
    ours = Checkpoints(tmp_path, OURS)
    for k in (1000, 2000):
        ours.write(grown(k))
    harm(tmp_path / "000002000" / "rows.jsonl", b"short")
    ours.write(grown(3000))
    assert same(Checkpoints(tmp_path, OURS).latest(), grown(3000))


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=1, max_size=4, unique_by=lambda step: step[0]))
def test_whatever_rows_are_written_are_read_back(tmp_path_factory, steps):
    """In any order, continued or not, by one writer or another."""
    folder = tmp_path_factory.mktemp("rows")
    ours = Checkpoints(folder, OURS)
    for number, (count, another) in enumerate(steps):
        ours = Checkpoints(folder, OURS) if another else ours
        made = checkpoint(number, rows=GROWING[:count])
        ours.write(made)
        assert same(Checkpoints(folder, OURS).latest(), made)
    assert names(folder)[-1] == f"{len(steps) - 1:09d}"


def test_checkpoints_of_before_rows_were_appended_are_read(tmp_path):
    """Written by hand, as they were: a file of rows for each, and no word of functions."""
    expected, files = checkpoint(1000), {}
    (place := tmp_path / "000001000").mkdir()
    for name, data in (
        ("state.safetensors", save({name: tensor.contiguous() for name, tensor in expected.state.items()})),
        ("rows.jsonl", "".join(json.dumps(row) + "\n" for row in expected.rows).encode()),
    ):
        harm(place / name, data)
        files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    seal(place, {"k": 1000, "fingerprint": OURS, "notes": expected.notes, "files": files})
    assert same(Checkpoints(tmp_path, OURS).latest(), expected)


def test_what_a_killed_run_left_unfinished_beside_its_checkpoints_is_removed(tmp_path):
    for name in (".config.json.a1b2_3cd", ".config.json.mine"):
        harm(tmp_path / name)
    problem = problems.PhaseRetrieval(agents=3, dim=2, sparsity=1, evaluation="population")
    settings = {"iterations": 4, "checkpoints": tmp_path, "checkpoint_every": 2}
    proxdasa.run(proxdasa.ProxDASA(0.01), problem, networks.ring(3), **settings)
    assert names(tmp_path) == [".config.json.mine", "000000002", "000000004", "config.json"]
