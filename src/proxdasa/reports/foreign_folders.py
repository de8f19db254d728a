"""Reading results folders that anyone may have written: nothing in them is trusted before it is checked.

A report opens regular files within the folder and nothing else, reads no more of them than fits into memory, and takes
numbers and texts only where they belong. What is wrong is reported in one sentence about the folder. Control characters
in texts are replaced by escapes here, so that no later code has to.
"""

from __future__ import annotations

import math
import os
import re
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proxdasa.reports.texts import visible
from proxdasa.runs import records

Contents = tuple[dict[str, Any], list[records.Row]]
"""The configuration and the records of a results folder."""

MOST_BYTES = {records.CONFIG: 4_000_000, records.RECORDS: 64_000_000}
"""The largest files that a report reads; 64 MB are more than 100,000 observations."""
DEEPEST = 20
"""The deepest nesting of tables in a configuration."""
MOST_TRIALS, MOST_QUANTITIES, MOST = 10_000, 200, 10**12
"""Limits on the trials of a folder, the quantities of a record, and all other whole numbers."""
LARGEST = 1e150
"""Numbers beyond this count as infinite, and those below its inverse as 0, so that squares do not overflow."""

Test = tuple[Callable[[Any], bool], str]
"""A check of a value, and a description of what it accepts."""


def file_within(folder: Path, name: str, most: float = math.inf) -> Path:
    """The path of a file, after checking that it is regular, lies within the folder, and has at most ``most`` bytes."""
    path = folder / name
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{folder} is not a results folder: it has no {name}")
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise ValueError(f"{path} is a link to something outside the folder, where a report opens nothing")
    if not real.is_file():
        raise ValueError(f"{path} is not a regular file")
    if (size := real.stat().st_size) > most:
        raise ValueError(f"{path} has {size / 1e6:,.0f} MB; a report reads up to {most / 1e6:,.0f}")
    return path


def read(folder: Path) -> Contents:
    """The configuration and the records of a folder, checked to have the form that a report needs."""
    for name, most in MOST_BYTES.items():
        file_within(folder, name, most)
    config = _config(folder / records.CONFIG, records.read_config(folder))
    rows = records.read_rows(folder)
    if not rows:
        raise ValueError(f"{folder / records.RECORDS} is empty: the run ended before its first observation")
    _check_rows(folder / records.RECORDS, rows, config["trials"])
    return config, rows


def _whole(least: int, most: int = MOST) -> Test:
    return lambda value: type(value) is int and least <= value <= most, f"a whole number from {least} to {most:,}"


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def _is_divergence(value: Any) -> bool:
    """Whether a value is a table of (agent, iteration) by trial."""
    return isinstance(value, Mapping) and all(
        re.fullmatch("[0-9]{1,9}", trial)
        and isinstance(where, Mapping)
        and all(type(where.get(key)) is int for key in ("agent", "iteration"))
        for trial, where in value.items()
    )


def _is_gamma(value: Any) -> bool:
    return all(map(_finite, value)) if isinstance(value, list) else _finite(value)


def _is_links(value: Any) -> bool:
    """Whether a value is a table of the links of a site, by neighbour."""
    is_count = _whole(0)[0]
    return isinstance(value, Mapping) and all(
        isinstance(link, Mapping)
        and all(is_count(link.get(key)) for key in ("rounds", "missed", "sent"))
        and isinstance(link.get("down"), list)
        and all(isinstance(span, list) and len(span) in (1, 2) and all(map(is_count, span)) for span in link["down"])
        for link in value.values()
    )


NEEDED: dict[str, dict[str, Test]] = {
    "facts": {"title": (lambda value: isinstance(value, str), "a text"), "agents": _whole(1)},
    "ending": {
        "iterations": _whole(0),
        "stopped": (lambda value: value is None or isinstance(value, str), "null or a text"),
        "diverged": (_is_divergence, "a table with the agent and iteration of each trial that diverged"),
    },
    "": {
        "trials": _whole(1, MOST_TRIALS),
        "iterations": _whole(0),
        "algorithm": (lambda value: isinstance(value, Mapping), "a table"),
    },
}
"""What the tables of a configuration must have; "" stands for the whole configuration."""
OPTIONAL: dict[str, dict[str, Test]] = {
    "facts": {
        "rho": (_finite, "a number"),
        "rounds": _whole(0),
        "gamma": (_is_gamma, "a number, or one for each trial"),
        "links": (_is_links, "a table with the rounds, bytes and outages of each link of a site"),
    },
    "ending": {},
    "": {"observe_every": _whole(1)},
}
"""What they may have besides; null counts as missing."""


def _config(path: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = _escape(path, found)
    for name, needed in NEEDED.items():
        table = config[name] if name else config
        where, stem = (f" in {name}", f"{name}.") if name else ("", "")
        if missing := set(needed) - set(table if isinstance(table, Mapping) else ()):
            lacks = " and no ".join(sorted(missing))
            raise ValueError(f"{path}: not the configuration of saved results: it has no {lacks}{where}")
        given = {key: test for key, test in OPTIONAL[name].items() if table.get(key) is not None}
        for key, (fits, expected) in (needed | given).items():
            if not fits(table[key]):
                raise ValueError(f"{path}: {stem}{key} must be {expected}; got {reprlib.repr(table[key])}")
    return config


def _escape(path: Path, value: Any, depth: int = 0) -> Any:
    """The value with control characters escaped in all its texts."""
    if depth > DEEPEST:
        raise ValueError(f"{path}: tables are nested more than {DEEPEST} deep")
    if isinstance(value, Mapping):
        return {visible(key): _escape(path, inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_escape(path, inner, depth + 1) for inner in value]
    return visible(value) if isinstance(value, str) else value


def _check_rows(path: Path, rows: list[records.Row], trials: int) -> None:
    """Refuse records that no run writes; replace numbers that count as infinite by NaN, and as 0 by 0."""
    (is_trial, trial_range), (is_k, k_range) = _whole(0, trials - 1), _whole(0)
    last, seen = 0, set[int]()
    for number, row in enumerate(rows):
        line = f"{path}, line {number + 1}"
        if not {"trial", "k"} <= row.keys():
            raise ValueError(f"{line}: a record needs trial and k")
        trial, k = row["trial"], row["k"]
        if not is_trial(trial) or not is_k(k):
            expected = f"k must be {k_range}" if is_trial(trial) else f"trial must be {trial_range}"
            raise ValueError(f"{line}: {expected}; got trial {reprlib.repr(trial)} at k = {reprlib.repr(k)}")
        seen = seen if k == last else set()
        if k < last or trial in seen:
            raise ValueError(f"{line}: trial {trial} at k = {k} does not follow the lines above it")
        last = k
        seen.add(trial)
        rows[number] = {visible(name): _number(line, name, value) for name, value in row.items()}
    if (count := len({name for row in rows for name in row})) > MOST_QUANTITIES:
        raise ValueError(f"{path} has {count:,} quantities; a report reads up to {MOST_QUANTITIES}")


def _number(line: str, name: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"{line}: {visible(name)} must be a number; got {reprlib.repr(value)}")
    if not abs(value) <= LARGEST:
        return math.nan
    number: float = value
    return number if abs(number) >= 1 / LARGEST else 0
