"""Files that are whole or not there: written beside their place, brought to the disk, renamed."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED = re.compile(r"\.(config\.json|records\.jsonl|final\.safetensors)\.[a-z0-9_]{8}")
"""The names of files of results folders while they are written; a killed run leaves them."""


class StorageError(OSError):
    """What was computed could not be written, for want of space for example: no fault of the input."""


@contextmanager
def beside(path: Path, data: bytes) -> Iterator[Path]:
    """The data in a file of another name, on the disk and ready to take its place; removed if it has not."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        try:
            put(handle, data)
        finally:
            os.close(handle)
        temporary.chmod(0o644)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def replace(path: Path, data: bytes) -> None:
    """Put data in the place of a file; whoever reads meanwhile reads the old or the new, whole."""
    with beside(path, data) as temporary:
        temporary.replace(path)
    sync(path.parent)


def append(path: Path, data: bytes, after: int = 0) -> None:
    """Write data to a file, which is made if need be, behind its first so many bytes; what was there is cut off."""
    with path.open("ab") as file:
        file.truncate(after)
        put(file.fileno(), data)


def put(handle: int, data: bytes) -> None:
    """Write all of it and bring it to the disk."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
    os.fsync(handle)


def make(folder: Path) -> None:
    """Make a folder and those above it, so that none of them is lost if the power is."""
    if not folder.is_dir():
        make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove what killed runs have left unfinished of a results folder's files; nobody may be writing there."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def reason(error: OSError) -> str:
    """What the system says of an error, without numbers and names."""
    return error.strerror or str(error)
