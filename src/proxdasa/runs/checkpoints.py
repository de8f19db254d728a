"""Checkpoints: what a run needs to continue after it was killed, in files that reveal any damage.

Each checkpoint is a folder named after its iteration, such as ``000001000``. It holds ``state.safetensors``,
``rows.jsonl`` (the records so far, line by line as in results) and ``manifest.json``, which has the SHA-256 of the
other two and of itself. All checkpoints of a run share one file of rows under several names (hard links); each appends
to it, and its manifest says how much of the file belongs to it. Nothing in a checkpoint can execute code.
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
from proxdasa.runs.checkpoint_manifest import MANIFEST, ROWS, STATE, DamagedError, Manifest, printable, sha256
from proxdasa.runs.records import Row, format_rows, parse_rows, separate

_NUMBER = re.compile(r"[0-9]{9}|[1-9][0-9]{9,}")
_PARTIAL = re.compile(r"\.[0-9]{9,}\.partial")
_ASIDE = re.compile(r"[0-9]{9,}\.damaged(\.[0-9]+)?")
_KEPT = 2


class Checkpoint(NamedTuple):
    """A run after k iterations."""

    k: int
    """The number of iterations made."""
    state: dict[str, Tensor]
    """The state of all agents by the method's own names, each ``[trials, agents, d]``."""
    rows: list[Row]
    """The records so far; read back, infinities are NaN, as in results."""
    notes: dict[str, Any]
    """What else the run needs to continue, as plain JSON values."""


class CheckpointWarning(UserWarning):
    """A checkpoint was skipped, or could not be written or removed."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run.

    A checkpoint is written under a temporary name, flushed to disk and renamed, so that the earlier ones stay intact
    whenever the writer is killed. The last two are kept. Damaged checkpoints and those of other runs are never removed.
    Only one process at a time may write to a folder.
    """

    folder: Path
    """The folder of the checkpoints, which may not exist yet."""
    fingerprint: str
    """The `fingerprint` of the run's settings; only checkpoints with the same one belong to the run."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """For everything that the settings only name, such as a function: a digest of what it computes."""
    _good: set[int] = field(default_factory=set, init=False, repr=False, compare=False)
    """The iterations whose checkpoints were found intact and need not be read again."""
    _bad: set[int] = field(default_factory=set, init=False, repr=False, compare=False)
    """The iterations whose checkpoints were found damaged."""
    _lines: list[_Lines] = field(default_factory=list, init=False, repr=False, compare=False)
    """The file of rows that the next checkpoint appends to; at most one entry."""

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint and remove those before the last two.

        If there is an intact one of the same run and iteration already, it stays: samples are named, so it has the same
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
        """The newest intact checkpoint, or None if there are none at all; changes nothing in the folder.

        ``check`` raises a ValueError if a checkpoint, though intact, cannot be of this run. A warning names each newer
        one that was skipped, and why. If there are checkpoints but none is usable, that is an error: a run does not
        start again from the beginning unless asked to.
        """
        skipped: list[str] = []
        for place in reversed(self._entries(_NUMBER)):
            try:
                checkpoint = self._read(place, check)
            except _ForeignError as error:
                skipped.append(str(error))
                continue
            except DamagedError as error:
                skipped.append(str(error))
                self._bad.add(int(place.name))
                continue
            for reason in skipped:
                caller_warnings.warn(f"{reason}; the run continues from {place.name}", CheckpointWarning)
            self._good.add(checkpoint.k)
            return checkpoint
        skipped += [f"{place} was found damaged before" for place in self._entries(_ASIDE)]
        if skipped:
            raise ValueError(
                f"{self.folder} holds no checkpoint from which this run can continue ({'; '.join(skipped)}); "
                "nothing was deleted; choose another folder, or move this one away to start again"
            )
        return None

    def _put(self, checkpoint: Checkpoint, place: Path) -> None:
        disk.make(self.folder)
        for stale in self._entries(_PARTIAL):
            shutil.rmtree(stale, ignore_errors=True)
        if place.is_dir() and not self._is_damaged(place):
            return
        partial = self.folder / f".{place.name}.partial"
        try:
            partial.mkdir()
            lines = self._put_rows(checkpoint.rows, partial / ROWS)
            state = save(separate(checkpoint.state))
            files = {
                STATE: {"size": len(state), "sha256": sha256(state)},
                ROWS: {"size": lines.size, "sha256": lines.digest.hexdigest()},
            }
            manifest = Manifest(checkpoint.k, self.fingerprint, checkpoint.notes, files, dict(self.contents))
            disk.append(partial / STATE, state)
            disk.append(partial / MANIFEST, manifest.seal())
            # Contents and names must be on disk before the rename makes this a checkpoint; otherwise a power failure
            # could leave one that looks whole and is empty.
            disk.sync(partial)
            if os.path.lexists(place):
                _set_aside(place)
            partial.rename(place)
            self._lines[:] = [lines._replace(file=place / ROWS)]
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        disk.sync(self.folder)

    def _put_rows(self, rows: list[Row], path: Path) -> _Lines:
        """Append the new rows to a hard link of the last checkpoint's file, or write all into a new file."""
        # Each checkpoint would otherwise write all rows of the run so far again.
        known = next((lines for lines in self._lines if lines.begins(rows) and _link(lines, path)), _Lines())
        data, digest = format_rows(rows[known.rows :]).encode(), known.digest.copy()
        digest.update(data)
        # Bytes after known.size were left by a checkpoint that failed halfway, and belong to none.
        disk.append(path, data, after=known.size)
        return _Lines(path, len(rows), rows[-1] if rows else None, known.size + len(data), digest)

    def _prune(self) -> None:
        """Remove all but the last two; those from before this run was resumed are verified first."""
        places = self._entries(_NUMBER)
        kept = [place for place in places if int(place.name) in self._good][-_KEPT:]
        for place in places[: places.index(kept[0])] if len(kept) == _KEPT else ():
            try:
                if self._is_damaged(place):
                    _set_aside(place)
                else:
                    # Renamed first: if we are killed halfway, the rest must not look like a damaged checkpoint.
                    shutil.rmtree(place.rename(self.folder / f".{place.name}.partial"))
            except _ForeignError:
                continue
            except OSError as error:
                caller_warnings.warn(f"{place} could not be removed: {error}", CheckpointWarning)

    def _entries(self, name: re.Pattern[str]) -> list[Path]:
        """The entries of the folder with such a name, oldest first."""
        paths = self.folder.iterdir() if self.folder.exists() else ()
        return sorted((path for path in paths if name.fullmatch(path.name)), key=lambda path: (len(path.name), path))

    def _is_damaged(self, place: Path) -> bool:
        if (k := int(place.name)) in self._good:
            return False
        try:
            self._verify(place)
        except DamagedError:
            return True
        return k in self._bad

    def _read(self, place: Path, check: Callable[[Checkpoint], None]) -> Checkpoint:
        manifest, contents = self._verify(place)
        try:
            with warnings.catch_warnings(action="error"):  # a truncated line is damage here
                rows = parse_rows(contents[ROWS].decode(), place / ROWS)
            checkpoint = Checkpoint(manifest.k, load(contents[STATE]), rows, manifest.notes)
            check(checkpoint)
        except Exception as error:  # a correct hash says nothing about the content, and parsers fail in many ways
            raise DamagedError(f"{place} holds data that this run did not write: {printable(error)}") from error
        return checkpoint

    def _verify(self, place: Path) -> tuple[Manifest, dict[str, bytes]]:
        """The manifest and the bytes of its files, all verified to be as they were written."""
        manifest = Manifest.read(place / MANIFEST)
        if manifest.fingerprint != self.fingerprint:
            raise _ForeignError(f"{place} belongs to a run with other settings")
        if manifest.contents != self.contents:
            raise _ForeignError(f"{place} {_difference(manifest.contents, self.contents)}")
        if manifest.k != int(place.name):
            raise DamagedError(f"{place} is the checkpoint of iteration {manifest.k} under another name")
        return manifest, {name: manifest.read_file(place / name) for name in (STATE, ROWS)}


def fingerprint(config: Mapping[str, Any]) -> str:
    """The SHA-256 of a configuration's settings, whatever their order. 1 and 1.0 are the same setting.

    The facts about a run and about its ending are not settings and do not count, nor does a note. For ``compile``,
    "auto" counts as False, so that a run can continue where steps cannot be compiled.
    """
    settings = {name: value for name, value in config.items() if name not in ("facts", "ending", "note")}
    if settings.get("compile") == "auto":
        settings["compile"] = False
    plain = json.loads(json.dumps(settings, allow_nan=False), parse_float=_number)
    return sha256(json.dumps(plain, sort_keys=True).encode())


class _ForeignError(Exception):
    """A checkpoint belongs to another run."""


class _Lines(NamedTuple):
    """A file of rows, as far as it belongs to a checkpoint."""

    file: Path | None = None
    rows: int = 0
    last: Row | None = None
    """Its last row, by which a longer list with the same beginning is recognised."""
    size: int = 0
    digest: Any = hashlib.sha256()

    def begins(self, rows: list[Row]) -> bool:
        """Whether the list begins with the rows of this file."""
        # Identity is enough, since a run only appends to its list, and takes constant time.
        return 0 < self.rows <= len(rows) and rows[self.rows - 1] is self.last


def _link(lines: _Lines, path: Path) -> bool:
    """Give a file of rows a second name; returns whether that worked and the file is still as long as it was."""
    assert lines.file is not None
    try:
        os.link(lines.file, path)
    except OSError:  # somebody removed it, or the file system has no hard links
        return False
    # If somebody has truncated it, appending at the old size would fill the gap with zeros.
    if path.stat().st_size >= lines.size:
        return True
    path.unlink()
    return False


def _difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Why a checkpoint with the same settings belongs to another run."""
    if unknown := ours.keys() - theirs.keys():
        return f"does not say what {_join(unknown)} computed in its run"
    others = {name for name in theirs if theirs[name] != ours.get(name)}
    return f"belongs to a run in which {_join(others)} computed something else"


def _join(names: Collection[str]) -> str:
    return printable(" and ".join(sorted(names)))


def _number(text: str) -> int | float:
    return int(value) if (value := float(text)).is_integer() else value


def _set_aside(place: Path) -> None:
    """Rename a damaged checkpoint, so that it can be inspected."""
    endings = itertools.chain([""], (f".{number}" for number in itertools.count(2)))
    names = (place.with_name(f"{place.name}.damaged{ending}") for ending in endings)
    place.rename(next(name for name in names if not os.path.lexists(name)))
