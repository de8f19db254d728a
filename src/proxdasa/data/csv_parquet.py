"""Tables in files: CSV text and parquet. Numbers only, and strict, as in `formats`."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxdasa import memory_budget
from proxdasa.data.columns import ENCODE, FILL, choose_columns, column_numbers, feature_matrix, open_frame
from proxdasa.data.data_folder import contents

CSV, PARQUET = 10, 5
"""Bytes of memory for each byte of such a file while it is read (measured)."""
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""What people write for a missing value, in lower case."""


class Table(NamedTuple):
    """The target ``[N]``, the features ``[N, columns]``, and their names."""

    target: NDArray[Any]
    features: NDArray[Any]
    columns: tuple[str, ...]


def read_csv(
    path: Path,
    target: str,
    features: Sequence[str] | None = None,
    dtype: type[np.floating[Any]] = np.float32,
) -> Table:
    """A table of numbers with commas between them, whose first line has the names of the columns.

    The features are numbers of this type, the target float64.
    """
    held = contents(path, CSV)
    rows = csv.reader(io.TextIOWrapper(io.BytesIO(held), encoding="utf-8-sig", newline=""), strict=True)
    number = _number if b"_" in held else float
    values, lines = array("d"), array("q")
    try:
        names = [name.strip() for name in next(rows, [])]
        if not names:
            raise ValueError(f"{path}: the first line must have the names of the columns")
        chosen = choose_columns(names, target, features, str(path))
        places = [names.index(name) for name in chosen]
        for row in filter(None, rows):
            if len(row) != len(names):
                where, wanted = f"{path}, line {rows.line_num}", f"{len(names)} names in the first line"
                raise ValueError(f"{where}: there are {len(row)} columns, but {wanted}")
            tokens = [row[place] for place in places]
            try:
                values.extend([number(token) for token in tokens])
            except ValueError:
                raise _fault(tokens, chosen, f"{path}, line {rows.line_num}") from None
            lines.append(rows.line_num)
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num}: not CSV: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file in UTF-8: {error.reason} at byte {error.start}") from error
    if not lines:
        raise ValueError(f"{path}: it has no rows")
    numbers = np.frombuffer(values, dtype=np.float64).reshape(len(lines), len(chosen))
    return _table(path, numbers[:, -1], numbers[:, :-1], dtype, chosen, lambda row: f"line {lines[row]}")


def _number(token: str) -> float:
    if "_" in token:  # Python would read 1_0 as 10
        raise ValueError(token)
    return float(token)


def _fault(tokens: list[str], names: list[str], where: str) -> ValueError:
    """The error for a row in which something is not a number."""
    for token, name in zip(tokens, names, strict=True):
        try:
            _number(token)
        except ValueError:
            missing = token.strip().lower() in MISSING
            why = f"there is no value; {FILL}" if missing else f"{token.strip()!r} is not a number; {ENCODE}"
            return ValueError(f"{where}, column {name!r}: {why}")
    raise AssertionError(tokens)


def read_parquet(
    path: Path,
    target: str,
    features: Sequence[str] | None = None,
    dtype: type[np.floating[Any]] | None = None,
) -> Table:
    """A parquet file with a column for each feature and for the target.

    The features are numbers of this type, by default float32 if all columns are, else float64; the target keeps its
    type.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("parquet files are read by pyarrow, which is missing: pip install pyarrow") from error
    held = contents(path, PARQUET)
    try:
        file = parquet.ParquetFile(pa.BufferReader(held))
        chosen = choose_columns(file.schema_arrow.names, target, features, str(path))
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        size = max(sum(group.total_byte_size for group in groups), 8 * file.metadata.num_rows * len(chosen))
        what = f"{path}: {file.metadata.num_rows:,} rows of {len(chosen)} columns"
        memory_budget.check(3 * size, what, "fewer rows or columns need less")
        read: Any = file.read(columns=chosen)
    except (pa.ArrowException, OSError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"{path}: not a whole parquet file: {why}") from error
    if not len(read):
        raise ValueError(f"{path}: it has no rows")
    frame = open_frame(read)
    x, y = feature_matrix(frame, chosen[:-1], str(path)), column_numbers(frame[target], str(path))
    return _table(path, y, x, dtype or x.dtype.type, chosen, lambda row: f"row {row}")


def _table(
    path: Path,
    y: NDArray[Any],
    x: NDArray[Any],
    dtype: type[np.floating[Any]],
    chosen: list[str],
    name_row: Callable[[int], str],
) -> Table:
    """The table, unless a number is not finite in the type that it gets."""
    with np.errstate(over="ignore"):  # what is too large becomes infinite and is refused here
        typed = x.astype(dtype)
    for numbers, finite in ((x, np.isfinite(typed)), (y[:, None], np.isfinite(y)[:, None])):
        if not finite.all():
            row, column = np.argwhere(~finite)[0].tolist()
            name, value = chosen[column if numbers is x else -1], numbers[row, column]
            why = (
                f"there is no value; {FILL}" if np.isnan(value) else f"{value} is not a finite {dtype.__name__} number"
            )
            raise ValueError(f"{path}, {name_row(row)}, column {name!r}: {why}")
    return Table(y, typed, tuple(chosen[:-1]))
