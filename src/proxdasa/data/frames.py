"""Data frames as data sets, divided by a column that names sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxdasa.data.columns import choose_columns, column_numbers, feature_matrix, open_frame
from proxdasa.data.dataset import Dataset, from_tensors
from proxdasa.data.partitions import Sites


def from_frame(
    frame: Any,
    target: str,
    site: str | None = None,
    test: Any = None,
    features: Sequence[str] | None = None,
    name: str = "frame",
) -> Dataset:
    """A data set made of a data frame of pandas or polars, or a pyarrow table.

    The column ``target`` is y: whole numbers, true and false are labels, floating-point numbers are targets. The
    ``features``, by default all other columns, must be numbers without gaps: text, categories and missing values are
    refused, because how to encode or fill them is up to you. The column ``site`` says which site holds a row: each site
    is an agent, in sorted order, and the rows of the data set are sorted by site. ``test`` is another frame with the
    same columns; it needs no sites. Needs narwhals (``proxdasa[frames]``).

    Examples:
        >>> import pandas
        >>> table = {"age": [71, 38, 64, 50], "dose": [0.5, 0.1, 0.2, 0.9], "sick": [1, 0, 1, 0]}
        >>> frame = pandas.DataFrame(table | {"hospital": ["south", "north", "south", "south"]})
        >>> patients = data.from_frame(frame, target="sick", site="hospital")
        >>> patients.columns, patients.partition.sizes
        (('age', 'dose'), {'north': 1, 'south': 3})
        >>> problem = problems.Supervised(lambda: torch.nn.Linear(2, 2), patients, agents=2)
        >>> [len(rows) for rows in problem.parts]
        [1, 3]
    """
    opened = open_frame(frame)
    names = [column for column in opened.columns if column != site]
    if site is not None and (site not in opened.columns or site == target or site in (features or ())):
        wanted = "a column besides target and features"
        raise ValueError(f"{name}: site must be {wanted}; got {site!r}; there are {', '.join(map(repr, names))}")
    *columns, _ = choose_columns(names, target, features, name)
    x, y = feature_matrix(opened, columns, name), _target(opened[target], name)
    order: Any = slice(None)
    partition = None
    if site is not None:
        order, partition = _sites(opened[site], name)
    test_x = test_y = None
    if test is not None:
        held, where = open_frame(test), f"{name}, test"
        choose_columns([column for column in held.columns if column != site], target, columns, where)
        test_x, test_y = feature_matrix(held, columns, where), _target(held[target], where)
    made = from_tensors(x[order], y[order], test_x, test_y, name)
    return replace(made, partition=partition, columns=tuple(columns))


def _target(column: Any, where: str) -> NDArray[Any]:
    numbers = column_numbers(column, where)
    return numbers.copy() if numbers.dtype.kind == "f" else numbers.astype(np.int64)  # a frame's arrays are read-only


def _sites(column: Any, where: str) -> tuple[NDArray[np.int64], Sites]:
    """The order that sorts rows by site and is otherwise stable, and the sites."""
    values = column.to_list()
    # NaN is a null to some libraries only, and is neither equal to itself nor in any order.
    pairs = enumerate(zip(values, column.is_null().to_list(), strict=True))
    if missing := [row for row, (value, null) in pairs if null or value != value]:  # noqa: PLR0124
        row = missing[0]
        raise ValueError(
            f"{where}: row {row} has no site in the column {column.name!r}; name it, or drop the row, first"
        )
    try:
        sites = sorted(set(values))
    except TypeError:
        kinds = sorted({type(value).__name__ for value in values})
        raise ValueError(
            f"{where}: the sites of the column {column.name!r} cannot be sorted, and agents are numbered in sorted "
            f"order; they are of the types {', '.join(kinds)}"
        ) from None
    number = {site: i for i, site in enumerate(sites)}
    agents = np.array([number[value] for value in values], dtype=np.int64)
    sizes = np.bincount(agents, minlength=len(sites)).tolist()
    return agents.argsort(kind="stable"), Sites(column.name, dict(zip(map(str, sites), sizes, strict=True)))
