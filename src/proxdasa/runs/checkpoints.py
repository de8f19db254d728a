"""Checkpoints: what a run needs to go on after it was killed, in files that show any damage.

Each is a folder that is named by its iteration, such as ``000001000``. It holds ``state.safetensors``, ``rows.jsonl``
(the records so far, line by line as in results) and ``manifest.json``, which has the SHA-256 of the other two and of
itself. The file of rows is one file under several names, to which each checkpoint of a run appends: how much of it is
a checkpoint's own is in its manifest, and what follows is of no concern to it. Nothing in it can execute code.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from proxdasa import caller_warnings, disk
from proxdasa.runs.records import Row, format_rows, parse_rows, separate

# Not named as a results folder's records: a checkpoint is not to be found among results.
STATE, ROWS, MANIFEST = "state.safetensors", "rows.jsonl", "manifest.json"

_NUMBER = re.compile(r"[0-9]{9}|[1-9][0-9]{9,}")
_PARTIAL = re.compile(r"\.[0-9]{9,}\.partial")
_ASIDE = re.compile(r"[0-9]{9,}\.damaged(\.[0-9]+)?")
_KEPT = 2
_SEAL = b'{\n  "sha256": "'


class Checkpoint(NamedTuple):
    """A run after k iterations."""

    k: int
    """How many iterations were made."""
    state: dict[str, Tensor]
    """The state of all agents by the method's own names, each ``[trials, agents, d]``."""
    rows: list[Row]
    """The records so far; read back, infinities are NaN, as in results."""
    notes: dict[str, Any]
    """What else the run remembers, as plain JSON values."""


class CheckpointWarning(UserWarning):
    """A checkpoint was passed over, or could not be removed."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run.

    A checkpoint is written beside its place, brought to the disk and renamed: whenever the writer is killed, the
    earlier ones are as they were. The last two are kept. What is damaged or another run's is never removed. Only one
    process at a time may write to a folder.
    """

    folder: Path
    """Where they are, or will be."""
    fingerprint: str
    """The run's settings, as `fingerprint` has it; only checkpoints of the same settings are the run's own."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """What the settings do not tell apart, such as functions, by their names: a digest of what each computes."""
    _good: set[int] = field(default_factory=set, init=False, repr=False, compare=False)
    """The iterations whose checkpoints were seen whole, which need not be read again."""
    _bad: set[int] = field(default_factory=set, init=False, repr=False, compare=False)
    """Those that were found damaged, or whole and none of this run's."""
    _lines: list[_Lines] = field(default_factory=list, init=False, repr=False, compare=False)
    """The file of rows that the next checkpoint appends to, if there is one."""

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint and remove those before the last two.

        If a whole one of the same run and iteration is there already it stays; samples are named, so it has the same
        state. A damaged one in its place is set aside under another name.
        """
        place, notes = self.folder / f"{checkpoint.k:09d}", checkpoint.notes
        if json.loads(json.dumps(notes, allow_nan=False)) != notes:
            raise TypeError(f"notes must be JSON values that are read back as they are; got {notes!r}")
        try:
            self._put(checkpoint, place)
        except _ForeignError as error:
            raise ValueError(f"{error}; choose another folder") from None
        except OSError as error:
            raise OSError(
                f"{place} could not be written: {disk.reason(error)}; earlier checkpoints are as they were"
            ) from error
        self._good.add(checkpoint.k)
        self._prune()
        return place

    def latest(self, check: Callable[[Checkpoint], None] = lambda _: None) -> Checkpoint | None:
        """The newest whole checkpoint, None if there are none at all; nothing is changed in the folder.

        ``check`` raises a ValueError if a checkpoint, though as it was written, is none of this run. A warning tells
        of each newer one that was passed over and why. If there are checkpoints, but none to go on from, that is an
        error: a run does not start anew unasked.
        """
        passed: list[str] = []
        for place in reversed(self._found(_NUMBER)):
            try:
                checkpoint = self._read(place, check)
            except _ForeignError as error:
                passed.append(str(error))
                continue
            except _DamagedError as error:
                passed.append(str(error))
                self._bad.add(int(place.name))
                continue
            for reason in passed:
                caller_warnings.warn(f"{reason}; the run goes on from {place.name}", CheckpointWarning)
            self._good.add(checkpoint.k)
            return checkpoint
        passed += [f"{place} was found damaged before" for place in self._found(_ASIDE)]
        if passed:
            raise ValueError(
                f"{self.folder} holds no checkpoint from which this run can go on ({'; '.join(passed)}); "
                "nothing was deleted; choose another folder, or move this one away to start anew"
            )
        return None

    def _put(self, checkpoint: Checkpoint, place: Path) -> None:
        disk.make(self.folder)
        for stale in self._found(_PARTIAL):
            shutil.rmtree(stale, ignore_errors=True)
        if place.is_dir() and not self._damaged(place):
            return
        partial = self.folder / f".{place.name}.partial"
        try:
            partial.mkdir()
            lines = self._put_rows(checkpoint.rows, partial / ROWS)
            state = save(separate(checkpoint.state))
            files = {STATE: _entry(len(state), _sha256(state)), ROWS: _entry(lines.size, lines.digest.hexdigest())}
            manifest = _Manifest(checkpoint.k, self.fingerprint, checkpoint.notes, files, dict(self.contents))
            disk.append(partial / STATE, state)
            disk.append(partial / MANIFEST, _sealed(manifest))
            disk.sync(partial)
            if os.path.lexists(place):
                _set_aside(place)
            partial.rename(place)
            self._lines[:] = [lines._replace(file=place / ROWS)]
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        disk.sync(self.folder)

    def _put_rows(self, rows: list[Row], path: Path) -> _Lines:
        """Append rows to the file that the last checkpoint has, under a second name, or write all into a new one."""
        known = next((lines for lines in self._lines if lines.goes_on(rows) and _linked(lines, path)), _Lines())
        data, digest = format_rows(rows[known.rows :]).encode(), known.digest.copy()
        digest.update(data)
        disk.append(path, data, after=known.size)
        return _Lines(path, len(rows), rows[-1] if rows else None, known.size + len(data), digest)

    def _prune(self) -> None:
        """Remove what is older than the last two; those of before this run was resumed are verified first."""
        places = self._found(_NUMBER)
        kept = [place for place in places if int(place.name) in self._good][-_KEPT:]
        for place in places[: places.index(kept[0])] if len(kept) == _KEPT else ():
            try:
                if self._damaged(place):
                    _set_aside(place)
                else:
                    # Renamed first, so that what is left if this is killed is not taken for a damaged checkpoint.
                    shutil.rmtree(place.rename(self.folder / f".{place.name}.partial"))
            except _ForeignError:
                continue
            except OSError as error:
                caller_warnings.warn(f"{place} could not be removed: {error}", CheckpointWarning)

    def _found(self, name: re.Pattern[str]) -> list[Path]:
        """What has such a name, the oldest first."""
        paths = self.folder.iterdir() if self.folder.exists() else ()
        return sorted((path for path in paths if name.fullmatch(path.name)), key=lambda path: (len(path.name), path))

    def _damaged(self, place: Path) -> bool:
        if (k := int(place.name)) in self._good:
            return False
        try:
            self._verified(place)
        except _DamagedError:
            return True
        return k in self._bad

    def _read(self, place: Path, check: Callable[[Checkpoint], None]) -> Checkpoint:
        manifest, contents = self._verified(place)
        try:
            with warnings.catch_warnings(action="error"):  # a line cut short is no row
                rows = parse_rows(contents[ROWS].decode(), place / ROWS)
            checkpoint = Checkpoint(manifest.k, load(contents[STATE]), rows, manifest.notes)
            check(checkpoint)
        except Exception as error:  # bytes with the right sum may be anything, and parsers refuse it in many ways
            raise _DamagedError(f"{place} holds what this run did not write: {_printable(error)}") from error
        return checkpoint

    def _verified(self, place: Path) -> tuple[_Manifest, dict[str, bytes]]:
        """The manifest and the bytes of the files in it, all known to be as they were written."""
        manifest = _opened(place / MANIFEST)
        if manifest.fingerprint != self.fingerprint:
            raise _ForeignError(f"{place} belongs to a run with other settings")
        if manifest.contents != self.contents:
            raise _ForeignError(f"{place} {_difference(manifest.contents, self.contents)}")
        if manifest.k != int(place.name):
            raise _DamagedError(f"{place} is the checkpoint of iteration {manifest.k} under another name")
        return manifest, {name: _checked(place / name, **manifest.files[name]) for name in (STATE, ROWS)}


def fingerprint(config: Mapping[str, Any]) -> str:
    """The SHA-256 of a configuration's settings, in whatever order; facts about the run and its ending are none.

    1 and 1.0 are the same setting.
    """
    settings = {name: value for name, value in config.items() if name not in ("facts", "ending")}
    plain = json.loads(json.dumps(settings, allow_nan=False), parse_float=_number)
    return _sha256(json.dumps(plain, sort_keys=True).encode())


class _DamagedError(Exception):
    """A checkpoint is not as it was written."""


class _ForeignError(Exception):
    """A checkpoint is another run's."""


class _Manifest(NamedTuple):
    k: int
    fingerprint: str
    notes: dict[str, Any]
    files: dict[str, dict[str, Any]]
    contents: dict[str, str]


class _Lines(NamedTuple):
    """A file of rows, as far as a checkpoint knows it."""

    file: Path | None = None
    rows: int = 0
    last: Row | None = None
    """The last of its rows, by which rows are known that begin with the same."""
    size: int = 0
    digest: Any = hashlib.sha256()

    def goes_on(self, rows: list[Row]) -> bool:
        """Whether these are the same rows, and perhaps more."""
        return 0 < self.rows <= len(rows) and rows[self.rows - 1] is self.last


def _linked(lines: _Lines, path: Path) -> bool:
    """Give a file of rows a second name; whether it could be done, and the file is as long as it was."""
    assert lines.file is not None
    try:
        os.link(lines.file, path)
    except OSError:  # removed by somebody, or a file system without
        return False
    if path.stat().st_size >= lines.size:
        return True
    path.unlink()
    return False


def _difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Why a checkpoint of the same settings is another run's."""
    if unknown := ours.keys() - theirs.keys():
        return f"does not say what {_listed(unknown)} computed in its run"
    others = {name for name in theirs if theirs[name] != ours.get(name)}
    return f"belongs to a run in which {_listed(others)} computed something else"


def _listed(names: Collection[str]) -> str:
    return _printable(" and ".join(sorted(names)))


def _printable(words: object) -> str:
    """Words that may be anybody's, fit for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(words)[:300])


def _entry(size: int, sha256: str) -> dict[str, Any]:
    return {"size": size, "sha256": sha256}


def _sealed(manifest: _Manifest) -> bytes:
    """The manifest as JSON; its first entry is the SHA-256 of every byte after that entry's digits."""
    entries = {name: value for name, value in manifest._asdict().items() if name != "contents" or value}
    text = json.dumps({"sha256": "", **entries}, indent=2, allow_nan=False) + "\n"
    rest = text.encode().removeprefix(_SEAL)
    return _SEAL + _sha256(rest).encode() + rest


def _opened(path: Path) -> _Manifest:
    """The manifest in a file; it is not parsed before every byte of it was checked."""
    data = _bytes(path)
    rest = data[len(_SEAL) + 64 :]
    if data != _SEAL + _sha256(rest).encode() + rest:
        raise _DamagedError(f"{path} is not as it was written")
    try:
        told = {"contents": {}, **json.loads(data)}
        del told["sha256"]
        manifest = _Manifest(**told)
        kinds = tuple(map(type, manifest)) == (int, str, dict, dict, dict)
        entries = [manifest.files[name] for name in (STATE, ROWS)]
        sizes = [(type(entry["size"]), type(entry["sha256"])) for entry in entries]
        if not kinds or sizes != [(int, str)] * 2:
            raise TypeError("entries of other types")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _DamagedError(f"{path} is no manifest: {_printable(error)}") from error
    return manifest


def _checked(path: Path, size: int, sha256: str) -> bytes:
    data = _bytes(path)
    if len(data) < size or (len(data) > size and path.name != ROWS):
        raise _DamagedError(f"{path} has {len(data)} bytes where {size} were written")
    if _sha256(data[:size]) != sha256:
        raise _DamagedError(f"{path} is not as it was written")
    return data[:size]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _DamagedError(f"{path} is missing") from None
    except OSError as error:
        raise _DamagedError(f"{path} cannot be read: {disk.reason(error)}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _number(text: str) -> int | float:
    return int(value) if (value := float(text)).is_integer() else value


def _set_aside(place: Path) -> None:
    """Give a damaged checkpoint another name, under which it can be looked at."""
    endings = itertools.chain([""], (f".{number}" for number in itertools.count(2)))
    names = (place.with_name(f"{place.name}.damaged{ending}") for ending in endings)
    place.rename(next(name for name in names if not os.path.lexists(name)))
