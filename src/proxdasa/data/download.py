"""Downloads: from the first mirror that sends the right bytes, to a file that is complete or absent."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from proxdasa.data import data_folder
from proxdasa.data.sources import SOURCES, File, Source

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the number of bytes downloaded so far, and the size of the file."""

PIECE = 2**16
PATIENCE = 30.0
"""Seconds without a byte after which the next mirror is tried."""


class FetchError(OSError):
    """No mirror sent the file; the message gives the reason for each, and where to put the file by hand.

    Examples:
        >>> issubclass(data.FetchError, OSError)  # caught like any other error of reading and writing
        True
    """


def fetch(name: str, folder: str | Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Download a data set's files into the data folder, and return their paths.

    Files that are there with the checksum of the reference files are kept, others are replaced.

    Examples:
        >>> len(data.fetch("a9a"))  # downloads the files that are not in `folder()` yet
        2
    """
    if name not in SOURCES:
        raise ValueError(f"there is no data set {name!r} to download; accepted: {', '.join(SOURCES)}")
    source = SOURCES[name]
    paths = [source.path(file, None if folder is None else Path(folder)) for file in source.files]
    return [_fetch(source, file, path, progress) for file, path in zip(source.files, paths, strict=True)]


def _fetch(source: Source, file: File, place: Path, progress: Progress | None) -> Path:
    wrong: list[Path] = []
    for path in data_folder.candidates(place):
        if _is_right(path, file):
            for other in wrong:  # a plain file is read before a compressed one, so a damaged one must go
                other.unlink()
            return path
        wrong.append(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    target = place.with_name(file.served)
    reasons: list[str] = []
    for mirror in source.mirrors:
        try:
            _store(mirror + file.served, file, target, progress)
        except _UnusableError as error:
            reasons.append(f"{mirror + file.served}: {error}")
        else:
            for path in wrong:
                if path != target:
                    path.unlink()
            return target
    raise FetchError(f"{file.served} could not be downloaded ({'; '.join(reasons)}); put it by hand at {target}")


class _UnusableError(Exception):
    """What a mirror sent cannot be used, or it sent nothing."""


def _is_right(path: Path, file: File) -> bool:
    try:
        return hashlib.sha256(data_folder.contents(path)).hexdigest() == file.sha256
    except ValueError:
        return False


def _store(url: str, file: File, target: Path, progress: Progress | None) -> None:
    """Write to a temporary file, check, flush to disk, rename: a reader never sees an incomplete file."""
    part = target.with_name(f".{target.name}.{token_hex(4)}.part")
    try:
        with part.open("xb") as stream:
            _download(url, file, stream, progress)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _download(url: str, file: File, stream: BinaryIO, progress: Progress | None) -> None:
    digest = hashlib.md5(usedforsecurity=False) if file.md5 else hashlib.sha256()
    here = 0
    for piece in _pieces(url):
        here += len(piece)
        if here > file.size:
            raise _UnusableError(f"sends more than the {file.size} bytes of the file")
        digest.update(piece)
        stream.write(piece)
        if progress is not None:
            progress(file.served, here, file.size)
    if here < file.size:
        raise _UnusableError(f"ended after {here} of {file.size} bytes")
    if digest.hexdigest() != (file.md5 or file.sha256):
        raise _UnusableError(f"wrong checksum, {digest.name} {digest.hexdigest()} instead of {file.md5 or file.sha256}")


def _pieces(url: str) -> Iterator[bytes]:
    """The body at an address, piece by piece.

    Errors of the connection become `_UnusableError`, so that the next mirror is tried. Errors of the caller, such as
    a full disk, are not raised in here and stay what they are.
    """
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            while True:
                piece = response.read(PIECE)
                if not piece:
                    return
                yield piece
    except urllib.error.HTTPError as error:
        with error:  # closes the connection, which the error keeps open
            raise _UnusableError(f"HTTP {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _UnusableError(f"no connection: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _UnusableError(f"broke off: {error or type(error).__name__}") from error
