"""The data folder, and the contents of its files, compressed or not."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proxdasa import memory_budget

VARIABLE = "PROXDASA_DATA"
"""The environment variable that names the data folder."""

OPENERS: dict[str, Callable[[Path], Any]] = {".bz2": bz2.BZ2File, ".gz": gzip.GzipFile, ".xz": lzma.LZMAFile}
"""How compressed files are opened, by suffix; any other file is read as it is."""


def folder() -> Path:
    """The data folder: the environment variable PROXDASA_DATA, else ``proxdasa`` in the user's cache directory.

    Examples:
        >>> import os
        >>> from unittest import mock
        >>> with mock.patch.dict(os.environ, PROXDASA_DATA="/srv/data"):
        ...     print(data.folder())
        /srv/data
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative paths.
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "proxdasa"


def candidates(place: Path) -> list[Path]:
    """The files that hold what is expected at a path: the plain file first, then compressed ones."""
    return [path for path in (place, *(Path(f"{place}{suffix}") for suffix in OPENERS)) if path.is_file()]


def contents(path: Path, weight: int = 1) -> bytes:
    """The uncompressed bytes of a file; the error for a damaged archive names it.

    ``weight`` is the number of bytes of memory that each byte takes once it is parsed; files that would take too much
    are refused.
    """
    path = path.absolute()  # so that "no such file" says where it was looked for
    opener = OPENERS.get(path.suffix)
    if opener is None:
        with path.open("rb") as stream:
            return memory_budget.read(stream, str(path), weight)
    path.stat()  # a missing or unreadable file raises its own error, not that of a damaged archive
    try:
        with opener(path) as stream:
            return memory_budget.read(stream, f"{path}, uncompressed,", weight)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: damaged or incomplete {path.suffix} file: {error}") from error
