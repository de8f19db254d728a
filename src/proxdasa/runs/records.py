"""Records: one row per trial and observation, in files that any tool reads.

A results folder holds ``config.json`` (what was run), ``records.jsonl`` (one JSON object a line) and
``final.safetensors`` (the final state). Nothing in it can execute code.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from proxdasa import caller_warnings, disk

if TYPE_CHECKING:
    from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Row = dict[str, Any]

CONFIG, RECORDS, FINAL = "config.json", "records.jsonl", "final.safetensors"
CHECKPOINTS = "checkpoints"
"""The folder of checkpoints within a results folder."""
PART = "trials-"
"""The prefix of folders with checkpoints of some trials, within the folder of the run's checkpoints."""
LOCK = ".lock"
"""An empty file, locked while a run writes to its folder; it may stay there."""


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Context manager: keep other runs out of a results folder, which is created if necessary.

    The operating system's lock ends with this process, however that ends. On file systems without locks it has no
    effect. Temporary files of a killed run are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The file is never removed: one run could lock the removed file, and another a new one of the same name.
    with (folder / LOCK).open("ab") as file:
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                disk.sweep(folder)
        except BlockingIOError:
            raise BlockingIOError(
                f"another run is writing to {folder}; choose another folder, or wait until it has ended"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def write_folder(folder: Path, config: Mapping[str, Any], rows: Iterable[Row], tensors: Mapping[str, Tensor]) -> None:
    """Write a results folder. Each file appears complete or not at all, and none if the records cannot be written.

    If the disk has room for all but the final state, by far the largest file, the others are kept without it.
    """
    from safetensors.torch import save  # noqa: PLC0415 - imports PyTorch, which reading records does not need

    lines, settings, state = format_rows(rows).encode(), _format_config(config), save(separate(tensors))
    final, failure = folder / FINAL, None
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as unfinished:
        ready: dict[str, Path] = {}
        try:
            for name, data in ((RECORDS, lines), (CONFIG, settings)):
                ready[name] = unfinished.enter_context(disk.beside(folder / name, data))
        except OSError as error:
            raise disk.StorageError(
                f"{folder}: the results could not be written: {disk.reason(error)}; earlier files are unchanged; "
                "the results can be saved once that is fixed, or into another folder"
            ) from error
        try:
            ready[FINAL] = unfinished.enter_context(disk.beside(final, state))
        except OSError as error:
            failure = error
        # Remove the old configuration first and write the new one last: a folder without one never looks complete.
        for old in (folder / CONFIG, final):
            old.unlink(missing_ok=True)
        for name in (name for name in (RECORDS, FINAL, CONFIG) if name in ready):
            ready[name].replace(folder / name)
        disk.sync(folder)
    if failure:
        try:
            disk.replace(final, state)  # try again in the space of the old one, which is gone now
        except OSError:
            raise disk.StorageError(
                f"{final} could not be written: {disk.reason(failure)}; the records are saved in {folder}, the final "
                "state is not; it can be saved once that is fixed, or into another folder"
            ) from failure


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the configuration alone."""
    folder.mkdir(parents=True, exist_ok=True)
    disk.replace(folder / CONFIG, _format_config(config))


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a results folder."""
    path = _require(folder, CONFIG)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from error
    entries = config if isinstance(config, dict) else {}
    missing = [name for name in ("ending", "facts") if not isinstance(entries.get(name), dict)]
    if missing:
        raise ValueError(f"{path}: not the configuration of saved results: it has no {' and no '.join(missing)}")
    return dict(config)


def read_rows(folder: Path) -> list[Row]:
    """The records of a results folder; a last line truncated by a killed run is left out with a warning."""
    path = _require(folder, RECORDS)
    # Bytes that are not text then fail as JSON, in an error with the line number.
    return parse_rows(path.read_text(encoding="utf-8", errors="replace"), path)


def format_rows(rows: Iterable[Row]) -> str:
    """Rows as lines of JSON."""
    return "".join(json.dumps(_replace_infinities(row), allow_nan=False) + "\n" for row in rows)


def mean_row(rows: Sequence[Row]) -> Row:
    """The means over trials of one observation's rows."""
    if not rows:
        return {}
    names = [name for name in rows[0] if name not in ("trial", "k")]
    return {"k": rows[0]["k"], **{name: sum(row[name] for row in rows) / len(rows) for name in names}}


def parse_rows(text: str, path: Path) -> list[Row]:
    """The rows in the text of a file (its path is for messages); a truncated last line is left out with a warning."""
    lines = text.splitlines()
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            # Rows share their names, so keep each name once in memory.
            rows.append({sys.intern(key): math.nan if value is None else value for key, value in row.items()})
        except (ValueError, AttributeError, RecursionError) as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not a JSON object: {line[:60]!r}") from error
            caller_warnings.warn(f"{path}: the last line is cut short and was left out")
    return rows


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The final state of a results folder."""
    from safetensors.torch import load_file  # noqa: PLC0415

    path = _require(folder, FINAL)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file: {error}") from error


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that can be saved: safetensors refuses two variables that share one tensor, such as x₋ = x⁰."""
    import torch  # noqa: PLC0415

    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def find_results(folder: Path) -> list[Path]:
    """The results folders at or below a folder, in name order."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    # lexists finds broken links too; reading them then says what is wrong.
    found = sorted(place for place in folders_below(folder) if os.path.lexists(place / RECORDS))
    if not found:
        raise FileNotFoundError(f"there are no results in {folder} (no {RECORDS} at or below it)")
    return found


def folders_below(folder: Path) -> Iterator[Path]:
    """A folder and all folders below it, without following links; one that cannot be listed counts as empty."""
    places = [folder]
    while places:
        place = places.pop()
        yield place
        try:
            with os.scandir(place) as entries:
                places += [place / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue


def _require(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a results folder: it has no {name}")
    return path


def _replace_infinities(value: Any) -> Any:
    """The value with null for infinities and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _replace_infinities(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_infinities(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _format_config(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, allow_nan=False) + "\n").encode()


def part_folders(folder: Path) -> list[Path]:
    """The folders with checkpoints of some trials, within the folder for checkpoints of a run."""
    return sorted(path for path in folder.glob(f"{PART}*") if path.is_dir())
