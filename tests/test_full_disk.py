"""A full disk costs no more than what does not fit: the records stay, and what to do next is said."""

import errno
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import networks, problems
from proxdasa.cli import app
from proxdasa.disk import StorageError
from proxdasa.runs import records
from tests import forks
from tests.processes import LIMIT, LINUX, check_same, commands, trouble, with_tests, write_config

RESULT = proxdasa.run(
    proxdasa.ProxDASA(0.01),
    problems.PhaseRetrieval(4, dim=2_000, evaluation="population"),
    networks.ring(4),
    iterations=5,
)
FILES = ["config.json", "final.safetensors", "records.jsonl"]
FULL = os.strerror(errno.ENOSPC)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def room(monkeypatch):
    """A function that says how many bytes there is room for from now on, in files of all names together."""
    write, left = os.write, [1 << 60]

    def bounded(handle, data):
        if len(data) > left[0] > 0:
            data = data[: left[0]]  # as the system does: as much as there is room for, and then none
        if not left[0]:
            raise OSError(errno.ENOSPC, FULL)
        left[0] -= (count := write(handle, data))
        return count

    monkeypatch.setattr(os, "write", bounded)
    return lambda size: left.__setitem__(0, size)


def sizes(folder):
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_if_the_final_state_does_not_fit_the_records_are_kept(tmp_path, room):
    whole = sizes(RESULT.save(tmp_path / "whole"))
    room(sum(whole.values()) - 1)
    with pytest.raises(StorageError) as told:
        RESULT.save(tmp_path / "full")
    assert str(told.value) == (
        f"{tmp_path / 'full' / 'final.safetensors'} could not be written: {FULL}; the records are saved in "
        f"{tmp_path / 'full'}, the final state is not; it can be saved once that is fixed, or into another folder"
    )
    assert names(tmp_path / "full") == ["config.json", "records.jsonl"]
    for name in ("config.json", "records.jsonl"):
        assert (tmp_path / "full" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert records.read_config(tmp_path / "full")["ending"]["iterations"] == 5
    with pytest.raises(FileNotFoundError, match=r"it has no final\.safetensors"):
        proxdasa.load(tmp_path / "full")
    room(1 << 60)
    assert torch.equal(proxdasa.load(RESULT.save(tmp_path / "full", overwrite=True)).x, RESULT.x)


@pytest.mark.parametrize("earlier", [True, False])
def test_if_the_records_do_not_fit_nothing_is_changed(tmp_path, room, earlier):
    whole = sizes(RESULT.save(tmp_path / "whole"))
    folder = RESULT.save(tmp_path / "full") if earlier else tmp_path / "full"
    before = sizes(folder) if earlier else {}
    for size in (0, 1, whole["records.jsonl"] - 1, whole["records.jsonl"], whole["records.jsonl"] + 5):
        room(size)
        with pytest.raises(StorageError, match=rf"full: the results could not be written: {FULL}; earlier files are"):
            RESULT.save(folder, overwrite=True)
        assert sizes(folder) == before


def test_records_of_one_run_are_never_beside_the_state_of_another(tmp_path, room):
    whole = sizes(RESULT.save(tmp_path))
    room(whole["config.json"] + whole["records.jsonl"] + 10)
    with pytest.raises(StorageError):
        RESULT.save(tmp_path, overwrite=True)
    assert names(tmp_path) == ["config.json", "records.jsonl"]


def test_the_room_that_an_earlier_state_took_is_used(tmp_path, monkeypatch):
    """Where the new one and the old do not fit together."""
    RESULT.save(tmp_path)
    write, full = os.write, len((tmp_path / "final.safetensors").read_bytes())

    def bounded(handle, data):
        if len(data) >= full and (tmp_path / "final.safetensors").exists():
            raise OSError(errno.ENOSPC, FULL)
        return write(handle, data)

    monkeypatch.setattr(os, "write", bounded)
    RESULT.save(tmp_path, overwrite=True)
    assert names(tmp_path) == FILES
    assert torch.equal(proxdasa.load(tmp_path).x, RESULT.x)


def test_results_are_on_the_disk_before_they_have_their_names(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append(os.fstat(handle).st_ino), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda old, new: (events.append(os.path.basename(new)), replace(old, new)))
    RESULT.save(tmp_path)
    for name in FILES:
        assert events.index((tmp_path / name).stat().st_ino) < events.index(name)
    assert events[-1] == tmp_path.stat().st_ino


# Really full


ON_A_DISK = """
import shutil, subprocess, sys
from tests.forks import STAND_IN
disk, kept, file = sys.argv[1:]

def mount(*words):
    if subprocess.run(["mount", *words], check=False).returncode:
        sys.exit(77)

def run(*words):
    print("exit code", subprocess.run([*STAND_IN, "proxdasa", *words], check=False).returncode, flush=True)

mount("-t", "tmpfs", "-o", "size=1024k", "none", disk)
run("run", file, "-o", f"{disk}/results", "--checkpoint-every", "2")
shutil.copytree(f"{disk}/results", f"{kept}/full")
mount("-o", "remount,size=16m", disk)
run("resume", f"{disk}/results")
shutil.copytree(f"{disk}/results", f"{kept}/after")
"""
"""What an interpreter does in a name space, which the commands enter too."""


@pytest.mark.usefixtures("drawn")
def test_a_run_on_a_disk_that_is_really_full_goes_on_when_there_is_room(tmp_path):
    """A small file system in a name space of its own; two checkpoints fit and the final state besides them does not."""
    if not shutil.which("unshare"):
        pytest.skip("there is no program unshare here, which makes a name space")
    file = write_config(tmp_path / "run.toml", iterations=4, observe_every=2, dim=2_000)
    for name in ("disk", "kept"):
        (tmp_path / name).mkdir()
    results, kept = tmp_path / "disk" / "results", tmp_path / "kept" / "full"
    forks.share()
    script = (sys.executable, "-c", ON_A_DISK, tmp_path / "disk", tmp_path / "kept", file)
    made = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *map(str, script)],
        env={**os.environ, "PYTHONPATH": with_tests()}, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    if made.returncode == 77 or "unshare" in made.stderr:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    assert re.findall(r"exit code \d+", made.stdout) == ["exit code 5", "exit code 0"], made.stdout + made.stderr
    assert f"error: {results / 'final.safetensors'} could not be written: {FULL}; the records are saved" in made.stderr
    assert f"proxdasa resume {results} continues from the last checkpoint" in made.stderr
    assert "Traceback" not in made.stderr
    assert names(kept) == [".lock", "checkpoints", "config.json", "records.jsonl"]
    assert {row["k"] for row in records.read_rows(kept)} == {0, 2, 4}
    assert CliRunner().invoke(app, ["report", str(kept)]).exit_code == 0
    assert CliRunner().invoke(app, ["run", str(file), "-o", str(tmp_path / "whole")]).exit_code == 0
    check_same(tmp_path / "kept" / "after", tmp_path / "whole")


@LINUX
def test_a_bound_on_the_size_of_files_leaves_the_records_too(tmp_path):
    file = write_config(tmp_path / "run.toml", iterations=4, observe_every=2, dim=2_000)
    env = trouble(tmp_path / "bound", "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))")
    with commands(tmp_path) as start:
        words = ("run", file, "-o", tmp_path / "results", "--checkpoint-every", 2)
        said = start("proxdasa", *words, env=env).ended(5)
    assert said.count("earlier checkpoints are as they were; the run continues") == 2
    assert "there is no checkpoint to continue from" in said
    assert "Traceback" not in said
    assert {row["k"] for row in records.read_rows(tmp_path / "results")} == {0, 2, 4}
