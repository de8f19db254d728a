"""Checkpoints that are damaged, or whose writer is killed or fails: it is noticed, and the others are as they were."""

import errno
import json
import os
import pickle
import shutil
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxdasa.runs import checkpoints
from proxdasa.runs.checkpoints import Checkpoints, CheckpointWarning
from tests.checkpoints import FILES, GARBAGE, OURS, checkpoint, contents, grown, harm, names, same, two


@pytest.fixture
def folder(tmp_path):
    return two(tmp_path / "deep" / "checkpoints")


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << position % 8
    path.write_bytes(data)


# Damage


def pickled(marker):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(marker),))

    return pickle.dumps(Evil())


HARMS = {
    "a flipped bit": lambda path: flip(path, -2),
    "cut short": lambda path: harm(path, path.read_bytes()[:-1]),
    "cut in half": lambda path: harm(path, path.read_bytes()[: len(path.read_bytes()) // 2]),
    "longer": lambda path: harm(path, path.read_bytes() + b"\n"),
    "empty": harm,
    "zeros": lambda path: harm(path, bytes(len(path.read_bytes()))),
    "garbage": lambda path: harm(path, GARBAGE),
    "a deep nesting": lambda path: harm(path, b"[" * 100_000),
    "a pickle": lambda path: harm(path, pickled(path.parents[1] / "executed")),
    "missing": Path.unlink,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "another checkpoint's": lambda path: shutil.copy(path.parents[1] / "000001000" / path.name, path),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in HARMS for name in FILES if (kind, name) != ("longer", "rows.jsonl")],
)
def test_a_damaged_checkpoint_is_passed_over_and_named(folder, kind, name):
    HARMS[kind](folder / "000002000" / name)
    before = contents(folder)
    said = r"000002000 is the checkpoint of iteration 1000" if (name, kind) == (FILES[0], "another checkpoint's") else (
        rf"000002000/{name} (is|has|cannot)"
    )  # fmt: skip
    with pytest.warns(CheckpointWarning, match=rf"checkpoints/{said} .*; the run continues from 000001000$") as told:
        read = Checkpoints(folder, OURS).latest()
    assert len(told) == 1
    assert told[0].filename == __file__
    assert same(read, checkpoint(1000))
    assert contents(folder) == before
    assert not (folder / "executed").exists()


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_wherever_it_is(folder, name, step):
    ours, path = Checkpoints(folder, OURS), folder / "000002000" / name
    whole = path.read_bytes()
    for position in range(0, len(whole), step):
        flip(path, position)
        with pytest.warns(CheckpointWarning, match=rf"{name} has changed since it was written"):
            assert ours.latest().k == 1000, position
        path.write_bytes(whole)
    assert ours.latest().k == 2000


def test_nothing_is_parsed_that_was_not_verified(folder, monkeypatch):
    for path in folder.rglob("*"):
        if path.is_file():
            harm(path, path.read_bytes()[:-2] + b" \n")

    def refuse(*_):
        raise AssertionError("parsed")

    for name in ("load", "parse_rows"):
        monkeypatch.setattr(checkpoints, name, refuse)
    monkeypatch.setattr(json, "loads", refuse)
    with pytest.raises(ValueError, match=r"has changed since it was written"):
        Checkpoints(folder, OURS).latest()


def test_a_missing_manifest_or_a_file_in_place_of_the_folder(folder):
    shutil.rmtree(folder / "000002000")
    harm(folder / "000002000", GARBAGE)
    with pytest.warns(CheckpointWarning, match=r"000002000/manifest.json cannot be read: Not a directory; the run"):
        assert Checkpoints(folder, OURS).latest().k == 1000


def test_if_all_are_damaged_it_is_an_error_that_tells_each(folder):
    harm(folder / "000001000" / "state.safetensors")
    (folder / "000002000" / "rows.jsonl").unlink()
    before = contents(folder)
    said = (
        r"checkpoints holds no checkpoint from which this run can continue \(.*000002000/rows.jsonl is missing; "
        r".*000001000/state.safetensors has 0 bytes, but \d+ were written\); nothing was deleted; choose"
    )
    for _ in range(2):
        with pytest.raises(ValueError, match=said):
            Checkpoints(folder, OURS).latest()
    assert contents(folder) == before


def test_what_was_set_aside_is_not_forgotten(folder):
    """A run whose only checkpoints are damaged does not start anew at the second attempt either."""
    shutil.rmtree(folder / "000001000")
    (folder / "000002000").rename(folder / "000002000.damaged")
    with pytest.raises(ValueError, match=r"000002000.damaged was found damaged before\); nothing was deleted"):
        Checkpoints(folder, OURS).latest()


def test_a_file_that_may_not_be_read_is_told(folder, monkeypatch):
    read = Path.read_bytes

    def refuse(path):
        if path == folder / "000002000" / "state.safetensors":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.warns(CheckpointWarning, match=r"state.safetensors cannot be read: Permission denied; the run"):
        assert Checkpoints(folder, OURS).latest().k == 1000


# Kills and failures


STEPS = [
    (Path, "mkdir"), (Path, "open"), (Path, "rename"), (os, "write"), (os, "fsync"), (os, "link"), (shutil, "rmtree"),
]  # fmt: skip


class Killed(BaseException):
    """Nothing happens after it."""


@contextmanager
def failing(at, failure, forever):
    """The step of that number does not happen; nor does any later one, if the writer is killed."""
    done = []

    def watched(original):
        def step(*args, **options):
            done.append(original)
            if len(done) == at + 1 or (forever and len(done) > at):
                raise failure
            return original(*args, **options)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, watched(getattr(owner, name)))
        yield done


def attempts(failure, forever, prepare):
    """Write a checkpoint with a failure at its first step, its second, ..., until there is none; a folder for each."""
    for at in range(100):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "checkpoints"
            write = prepare(folder)
            with failing(at, failure, forever) as done:
                try:
                    write()
                    error = None
                except (Killed, OSError, CheckpointWarning) as caught:
                    error = caught
            yield folder, error
            if len(done) <= at:
                assert error is None
                assert at > 8
                return
    raise AssertionError("no end")


def third(folder):
    """Two are there, the third is written, and the first is removed."""
    ours = Checkpoints(folder, OURS)
    for k in (1000, 2000):
        ours.write(checkpoint(k))
    return lambda: ours.write(checkpoint(3000))


def growing(folder):
    """The same, and the rows of the third are appended to those of the others."""
    ours = Checkpoints(folder, OURS)
    for k in (1000, 2000):
        ours.write(grown(k))
    return lambda: ours.write(grown(3000))


def replacement(folder):
    """Two are there, the second of them damaged; another one takes its place."""
    third(folder)
    harm(folder / "000002000" / "state.safetensors", GARBAGE)
    ours = Checkpoints(folder, OURS)
    with warnings.catch_warnings(action="ignore"):
        ours.latest()
    return lambda: ours.write(checkpoint(2000))


def first(folder):
    """The folder itself is not there yet."""
    return lambda: Checkpoints(folder, OURS).write(checkpoint(1000))


@pytest.mark.parametrize(("prepare", "made"), [(third, checkpoint), (growing, grown)])
def test_a_kill_at_any_step_leaves_the_old_or_the_new(prepare, made):
    found = []
    for folder, _ in attempts(Killed(), True, prepare):
        ours = Checkpoints(folder, OURS)
        read = ours.latest()
        assert same(read, made(read.k))
        found.append(read.k)
        for k in range(read.k + 1000, 5000, 1000):
            ours.write(made(k))
            assert same(Checkpoints(folder, OURS).latest(), made(k))
        assert names(folder) == ["000003000", "000004000"], "and no traces of it stay"
    assert found == sorted(found)
    assert set(found) == {2000, 3000}


def test_a_kill_before_the_first_leaves_none_or_it():
    found = []
    for folder, _ in attempts(Killed(), True, first):
        read = Checkpoints(folder, OURS).latest()
        found.append(read and read.k)
        Checkpoints(folder, OURS).write(checkpoint(1000))
        assert names(folder) == ["000001000"]
    assert set(found) == {None, 1000}


def test_a_kill_at_any_step_keeps_what_is_damaged():
    found = []
    for folder, _ in attempts(Killed(), True, replacement):
        with warnings.catch_warnings(action="ignore", category=CheckpointWarning):
            found.append(Checkpoints(folder, OURS).latest().k)
        assert [path.read_bytes() for path in folder.glob("000002000*/state.safetensors")].count(GARBAGE) == 1
    assert found == sorted(found)
    assert set(found) == {1000, 2000}


@pytest.mark.parametrize("prepare", [third, growing, replacement, first])
def test_a_full_disk_is_told_and_changes_nothing(prepare):
    """Whichever step it is that fails: the error says so, and the next attempt succeeds."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    errors = 0
    for folder, error in attempts(full, False, prepare):
        place = folder / {first: "000001000", replacement: "000002000"}.get(prepare, "000003000")
        made = grown if prepare is growing else checkpoint
        if isinstance(error, CheckpointWarning):
            assert "000001000 could not be removed: [Errno 28] No space left on device" in str(error)
        elif error:
            errors += 1
            assert str(error) == (
                f"{place} could not be written: No space left on device; earlier checkpoints are as they were"
            )
            assert not list(folder.glob(".*")), "what was written of it does not fill the disk further"
        ours = Checkpoints(folder, OURS)
        with warnings.catch_warnings(action="ignore", category=CheckpointWarning):
            read = ours.latest()
        assert read is None if prepare is first and error and not place.exists() else same(read, made(read.k))
        ours.write(made(int(place.name)))
        assert same(Checkpoints(folder, OURS).latest(), made(int(place.name)))
    assert errors > 8


@pytest.mark.parametrize("part", ["x", "x/deeper"])
def test_a_place_that_is_no_folder_is_told(tmp_path, part):
    harm(tmp_path / "x")
    with pytest.raises(OSError, match=r"000001000 could not be written: (File exists|Not a directory); earlier"):
        Checkpoints(tmp_path / part, OURS).write(checkpoint())


def test_everything_is_on_the_disk_before_it_is_renamed(folder, monkeypatch):
    """And the name is before anything older is removed."""
    events, fsync, rename = [], os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append(os.fstat(handle).st_ino), fsync(handle)))
    monkeypatch.setattr(Path, "rename", lambda path, to: (events.append(path.name), rename(path, to))[1])
    ours = Checkpoints(folder, OURS)
    ours.latest()
    place = ours.write(checkpoint(3000))
    new, old = events.index(".000003000.partial"), events.index("000001000")
    assert {(place / name).stat().st_ino for name in FILES} == set(events[: new - 1])
    assert events[new - 1] == place.stat().st_ino
    assert events[new + 1 : old] == [folder.stat().st_ino]


def test_the_folders_above_are_on_the_disk_too(tmp_path, monkeypatch):
    synced, fsync = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.add(os.fstat(handle).st_ino), fsync(handle)))
    Checkpoints(tmp_path / "a" / "b", OURS).write(checkpoint())
    assert {path.stat().st_ino for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")} <= synced


@pytest.mark.parametrize(("mask", "file", "place"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_who_may_read_them_is_the_users_choice(tmp_path, mask, file, place):
    before = os.umask(mask)
    try:
        made = Checkpoints(tmp_path, OURS).write(checkpoint())
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == place
    assert {path.stat().st_mode & 0o777 for path in made.iterdir()} == {file}
