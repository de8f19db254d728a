"""Tables: which columns are features and which is the target, and columns of data frames as numbers.

Data frames of pandas, polars and pyarrow are read through narwhals. Nothing is encoded, filled in or dropped here: how
to do that is a decision about the data, so categories and missing values are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxdasa import memory_budget

if TYPE_CHECKING:
    import narwhals

ENCODE = "encode categories as numbers first, such as a column of 0 and 1 for each"
FILL = "drop such rows, or fill them in, first"
LEAVE_OUT = "or leave the column out by features = [...]"
INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+")
"""Names of the column in which pandas saves the numbers of rows: none in CSV, which is read again as the last one."""
SHOWN = 20
"""The most names of columns that a message lists."""
WHOLE = 2**53
"""float64 represents all whole numbers up to this one, and rounds the next one to it."""


def choose_columns(names: Sequence[str], target: str, features: Sequence[str] | None, where: str) -> list[str]:
    """The features of a table, by default all columns but the target, followed by the target."""
    if other := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"{where}: names of columns must be texts; there is {other[0]!r}")
    if double := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"{where}: there are two columns {double[0]!r}; give each a name of its own")
    if features is None and (index := [name for name in names if INDEX.fullmatch(name) and name != target]):
        raise ValueError(
            f"{where}: the column {index[0]!r} looks like the index that pandas saves with a frame, and would be a "
            "feature; save the frame with index=False, or choose columns by features = [...]"
        )
    if isinstance(features, str):
        raise TypeError(f"features must be a list of names of columns; got the text {features!r}")
    chosen = [*([name for name in names if name != target] if features is None else features), target]
    if missing := [name for name in chosen if name not in names]:
        listed = ", ".join(map(repr, names[:SHOWN])) + (", ..." if len(names) > SHOWN else "")
        raise ValueError(f"{where}: there is no column {missing[0]!r}; there are {listed}")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"{where}: features must be different columns, and not the target; got {chosen[:-1]}")
    if len(chosen) == 1:
        raise ValueError(f"{where}: there is no column besides the target {target!r}, so there are no features")
    return chosen


def open_frame(frame: Any) -> narwhals.DataFrame[Any]:
    """A data frame of pandas, polars or pyarrow, in the form that they share."""
    nw = _narwhals()
    try:
        opened: narwhals.DataFrame[Any] = nw.from_native(frame, eager_only=True)
    except nw.exceptions.DuplicateError as error:
        raise ValueError(f"frame: {' '.join(str(error).split())}; give each column a name of its own") from None
    except TypeError:
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
        raise TypeError(
            f"frame must be a data frame of pandas or polars, or a pyarrow.Table, in memory (collect() a lazy one); "
            f"got {kind}"
        ) from None
    return opened


def feature_matrix(frame: narwhals.DataFrame[Any], columns: Sequence[str], where: str) -> NDArray[Any]:
    """Columns as numbers ``[N, columns]``: float32 if all of them are, else float64."""
    memory_budget.check(
        24 * len(frame) * len(columns),
        f"{where}: {len(frame):,} rows of {len(columns)} columns",
        "fewer rows need less",
    )
    numbers = [column_numbers(frame[name], where) for name in columns]
    single = all(column.dtype == np.float32 for column in numbers)
    return np.stack(numbers, axis=1, dtype=np.float32 if single else np.float64, casting="unsafe")


def column_numbers(column: narwhals.Series[Any], where: str) -> NDArray[Any]:
    """A column of finite numbers, or of true and false, as an array; anything else is refused with its first row."""
    nw, kind, place = _narwhals(), column.dtype, f"{where}: the column {column.name!r}"
    if kind in (nw.String, nw.Categorical, nw.Enum, nw.Object):
        raise ValueError(f"{place} holds {kind}, not numbers; {ENCODE}, {LEAVE_OUT}")
    if kind != nw.Boolean and not kind.is_integer() and not kind.is_float():
        raise ValueError(
            f"{place} holds {kind}, not numbers; turn it into whole or floating-point numbers, {LEAVE_OUT}"
        )
    if count := int(column.null_count()):
        row = column.is_null().to_list().index(True)
        raise ValueError(f"{place} has no value in row {row}, {count} of {len(column)} in all; {FILL}")
    numbers: NDArray[Any] = np.asarray(column.to_numpy())
    if kind.is_float() and not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ValueError(f"{place} has {numbers[row]} in row {row}; {FILL}")
    if kind.is_integer() and (large := (numbers > WHOLE) | (numbers < -WHOLE)).any():
        row = int(large.argmax())
        raise ValueError(
            f"{place} has {numbers[row]} in row {row}, but beyond 2^53 float64 skips whole numbers; rescale "
            f"the column, {LEAVE_OUT}"
        )
    return numbers


def _narwhals() -> ModuleType:
    try:
        import narwhals.stable.v2 as nw  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("data frames are read by narwhals, which is missing: pip install narwhals") from error
    return nw
