"""Records: one row per trial and observation, in files that any tool reads.

A results folder holds ``config.json`` (what was run), ``records.jsonl`` (one JSON object a line) and
``final.safetensors`` (the final state). Nothing in it can execute code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Row = dict[str, Any]

CONFIG, RECORDS, FINAL = "config.json", "records.jsonl", "final.safetensors"


def describe(thing: Any) -> Any:
    """A JSON-able description: plain values as they are, objects as {"name": ..., parameters ...}."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, Tensor):
        if thing.numel() <= 64:
            return (thing.flatten() if thing.shape[1:] == (1, 1) else thing).tolist()
        digest = hashlib.sha256(thing.detach().contiguous().cpu().numpy().tobytes()).hexdigest()
        return {"shape": list(thing.shape), "dtype": str(thing.dtype), "sha256": digest}
    if isinstance(thing, torch.dtype):
        return str(thing).removeprefix("torch.")
    if isinstance(thing, Mapping):
        return {str(key): describe(value) for key, value in thing.items()}
    if isinstance(thing, Sequence):
        return [describe(value) for value in thing]
    if callable(getattr(thing, "describe", None)):
        return describe(thing.describe())
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = {field.name: describe(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
        return {"name": type(thing).__name__, **fields}
    return getattr(thing, "__name__", repr(thing))


def write_folder(folder: Path, config: Mapping[str, Any], rows: Iterable[Row], tensors: Mapping[str, Tensor]) -> None:
    """Write a results folder; each file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    _replace(folder / FINAL, lambda path: save_file(contiguous, path))
    lines = "".join(json.dumps(_plain(row), allow_nan=False) + "\n" for row in rows)
    _replace(folder / RECORDS, lambda path: path.write_text(lines, encoding="utf-8"))
    text = json.dumps(config, indent=2, allow_nan=False) + "\n"
    _replace(folder / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a results folder."""
    config = json.loads(_expected(folder, CONFIG).read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError(f"{folder / CONFIG} is not a table of settings")
    return config


def read_rows(folder: Path) -> list[Row]:
    """The records of a results folder; a last line cut short by a killed run is left out with a warning."""
    path = _expected(folder, RECORDS)
    lines = path.read_text(encoding="utf-8").splitlines()
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows.append({key: math.nan if value is None else value for key, value in row.items()})
        except (json.JSONDecodeError, AttributeError) as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not a JSON object: {line[:60]!r}") from error
            warnings.warn(f"{path}: the last line is cut short and was left out", stacklevel=2)
    return rows


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The final state of a results folder."""
    return load_file(_expected(folder, FINAL))


def find_results(folder: Path) -> list[Path]:
    """The results folders at or below a folder, in name order."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    found = sorted(path.parent for path in folder.rglob(RECORDS))
    if not found:
        raise FileNotFoundError(f"there are no results in {folder} (no {RECORDS} at or below it)")
    return found


def _expected(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a results folder: it has no {name}")
    return path


def _plain(row: Row) -> Row:
    """JSON has no word for infinities and NaN; other tools read null."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the file, then rename, so that a reader never sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
