"""The manifest of a checkpoint: what it belongs to, and the size and SHA-256 of its files and of itself.

The manifest seals itself because it holds figures, such as counts and seconds, in which a flipped bit would otherwise
pass unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from proxdasa import disk

# Not named like the files of a results folder, so that a checkpoint is not taken for results.
STATE, ROWS, MANIFEST = "state.safetensors", "rows.jsonl", "manifest.json"

_SEAL = b'{\n  "sha256": "'


class DamagedError(Exception):
    """A checkpoint has changed since it was written."""


class Manifest(NamedTuple):
    """What a checkpoint says about itself."""

    k: int
    fingerprint: str
    notes: dict[str, Any]
    files: dict[str, dict[str, Any]]
    contents: dict[str, str]

    def seal(self) -> bytes:
        """The manifest as JSON; its first entry is the SHA-256 of every byte after that entry's digits."""
        entries = {name: value for name, value in self._asdict().items() if name != "contents" or value}
        text = json.dumps({"sha256": "", **entries}, indent=2, allow_nan=False) + "\n"
        rest = text.encode().removeprefix(_SEAL)
        return _SEAL + sha256(rest).encode() + rest

    @staticmethod
    def read(path: Path) -> Manifest:
        """The manifest in a file. Every byte is verified before anything is parsed."""
        data = _read_bytes(path)
        rest = data[len(_SEAL) + 64 :]
        if data != _SEAL + sha256(rest).encode() + rest:
            raise DamagedError(f"{path} has changed since it was written")
        try:
            entries = {"contents": {}, **json.loads(data)}
            del entries["sha256"]
            manifest = Manifest(**entries)
            kinds = tuple(map(type, manifest)) == (int, str, dict, dict, dict)
            files = [manifest.files[name] for name in (STATE, ROWS)]
            if not kinds or [(type(file["size"]), type(file["sha256"])) for file in files] != [(int, str)] * 2:
                raise TypeError("entries of other types")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path} is not a manifest: {printable(error)}") from error
        return manifest

    def read_file(self, path: Path) -> bytes:
        """The bytes of one of its files, verified to be as they were written."""
        data, size = _read_bytes(path), self.files[path.name]["size"]
        # The file of rows may have grown since: later checkpoints append to it under other names.
        if len(data) < size or (len(data) > size and path.name != ROWS):
            raise DamagedError(f"{path} has {len(data)} bytes, but {size} were written")
        if sha256(data[:size]) != self.files[path.name]["sha256"]:
            raise DamagedError(f"{path} has changed since it was written")
        return data[:size]


def sha256(data: bytes) -> str:
    """The SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def printable(text: object) -> str:
    """Text from an untrusted source, made fit for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:300])


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {disk.reason(error)}") from error
