"""Writing files that are complete or absent: data go to a temporary file, are synced to disk, and are renamed."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED = re.compile(r"\.(config\.json|records\.jsonl|final\.safetensors)\.[a-z0-9_]{8}")
"""The names of unfinished files in results folders, which a killed run leaves behind."""


class StorageError(OSError):
    """Results could not be written, for example because the disk is full; the input is not at fault."""


@contextmanager
def beside(path: Path, data: bytes) -> Iterator[Path]:
    """Write data to a temporary file next to ``path``, for the caller to rename; it is removed if that fails."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        try:
            put(handle, data)
        finally:
            os.close(handle)
        # mkstemp makes a file that only its owner can read.
        temporary.chmod(0o644)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def replace(path: Path, data: bytes) -> None:
    """Replace a file by data atomically: a reader sees either the old or the new content, complete."""
    with beside(path, data) as temporary:
        temporary.replace(path)
    # A new name is an entry of the folder, which is synced separately.
    sync(path.parent)


def append(path: Path, data: bytes, after: int = 0) -> None:
    """Write data to a file after its first ``after`` bytes; what followed them is cut off. Creates a missing file."""
    # Not "wb", which would empty a file that other checkpoints share.
    with path.open("ab") as file:
        file.truncate(after)
        put(file.fileno(), data)


def put(handle: int, data: bytes) -> None:
    """Write all the data and sync them to disk."""
    view = memoryview(data)
    # os.write may write less than it was given.
    while view:
        view = view[os.write(handle, view) :]
    os.fsync(handle)


def make(folder: Path) -> None:
    """Make a folder and its parents, and sync them, so that none is lost in a power failure."""
    if not folder.is_dir():
        make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(folder: Path) -> None:
    """Sync the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove unfinished files that killed runs have left in a results folder; no run may be writing there."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def reason(error: OSError) -> str:
    """The system's description of an error, without error number and file name."""
    return error.strerror or str(error)
