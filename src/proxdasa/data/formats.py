"""File formats: LIBSVM text, idx arrays, pairs of tensors. Strict, because errors in training data go unnoticed."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load

from proxdasa import memory_budget
from proxdasa.checks import invalid
from proxdasa.data.data_folder import contents

SVM, IDX, TENSORS = 40, 6, 6
"""Bytes of memory for each byte of such a file while it is read (measured for LIBSVM's)."""


def read_svm(
    path: Path, features: int | None = None, dtype: type[np.floating[Any]] = np.float32
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """The labels ``[N]`` and features ``[N, features]`` of a LIBSVM file; the features are numbers of this type.

    A line is ``label index:value index:value ...`` with indices that count from 1 and increase; other features
    are 0. Empty lines and what follows ``#`` are skipped. Without ``features`` the largest index is the width.
    """
    if features is not None and features < 1:
        raise invalid("features", "at least 1, or None for the largest index", features)
    numbers: list[int] = []  # the line of each row
    labels: list[bytes] = []
    counts: list[int] = []
    pairs: list[bytes] = []
    data = contents(path, SVM)
    for number, line in enumerate(data.split(b"\n"), start=1):
        tokens = line.partition(b"#")[0].split()
        if tokens:
            numbers.append(number)
            labels.append(tokens[0])
            counts.append(len(tokens) - 1)
            pairs += tokens[1:]
    if not labels:
        raise ValueError(f"{path}: it has no rows")
    rows = np.repeat(np.arange(len(labels)), counts)
    split = [pair.partition(b":") for pair in pairs]
    plain = b"_" not in data  # Python would read 1_0 as 10
    y = _floats(labels, plain)
    index = _integers([part[0] for part in split], plain)
    with np.errstate(over="ignore"):  # what is too large becomes infinite and is refused below
        value = _floats([part[2] for part in split], plain).astype(dtype)

    width = features if features is not None else int(index.max(initial=1))

    def show(tokens: list[bytes], at: int) -> str:
        return repr(tokens[at].decode(errors="replace"))

    malformed = ~np.isfinite(value) | (index == MALFORMED)
    outside = ~malformed & ((index < 1) | (index > width))
    falling = np.append((np.diff(index) <= 0) & (np.diff(rows) == 0), False)
    accepted = "at least 1" if features is None else f"in 1, ..., {features}"
    faults = [
        *((at, f"the label {show(labels, at)} is not a finite number") for at in _first(~np.isfinite(y))),
        *(
            (int(rows[at]), f"{show(pairs, at)} is not index:value with a whole and a finite {dtype.__name__} number")
            for at in _first(malformed)
        ),
        *((int(rows[at]), f"the index of {show(pairs, at)} must be {accepted}") for at in _first(outside)),
        *(
            (int(rows[at]), f"indices must increase, but {show(pairs, at + 1)} follows {show(pairs, at)}")
            for at in _first(falling)
        ),
    ]
    if faults:
        row, what = min(faults, key=lambda fault: fault[0])
        raise ValueError(f"{path}, line {numbers[row]}: {what}")
    size = 2 * len(labels) * width * np.dtype(dtype).itemsize  # twice, because `libsvm` makes a padded copy
    dense = f"{path}: {len(labels)} rows of {width} features as a dense array"
    memory_budget.check(size, dense, "fewer rows or features need less")
    x = np.zeros((len(labels), width), dtype=dtype)
    x[rows, index - 1] = value
    return y, x


MALFORMED = np.iinfo(np.int64).min
"""Marks an index that is not a whole number of 64 bits."""


def _first(where: NDArray[np.bool_]) -> list[int]:
    """The index of the first True, as a list that is empty if there is none."""
    return [int(at) for at in np.flatnonzero(where)[:1]]


def _integers(tokens: Sequence[bytes], plain: bool) -> NDArray[np.int64]:
    try:
        return np.fromiter(map(int if plain else _integer, tokens), dtype=np.int64, count=len(tokens))
    except (ValueError, OverflowError):
        return np.fromiter(map(_integer, tokens), dtype=np.int64, count=len(tokens))


def _integer(token: bytes) -> int:
    try:
        number = int(token)
    except ValueError:
        return int(MALFORMED)
    return number if abs(number) < 2**63 and b"_" not in token else int(MALFORMED)


def _floats(tokens: Sequence[bytes], plain: bool) -> NDArray[np.float64]:
    try:
        return np.fromiter(map(float if plain else _float, tokens), dtype=np.float64, count=len(tokens))
    except ValueError:
        return np.fromiter(map(_float, tokens), dtype=np.float64, count=len(tokens))


def _float(token: bytes) -> float:
    try:
        return float(token) if b"_" not in token else math.nan
    except ValueError:
        return math.nan


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of an idx file of unsigned bytes: 0, 0, 8, the number of axes, their lengths, the bytes."""
    data = contents(path, IDX)
    if len(data) < 4 or data[:3] != b"\0\0\x08" or not data[3]:
        raise ValueError(f"{path}: not an idx file of unsigned bytes; it begins with {data[:4].hex(' ') or 'nothing'}")
    header = 4 + 4 * data[3]
    if len(data) < header:
        raise ValueError(f"{path}: it ends within its header, after {len(data)} of {header} bytes")
    shape = struct.unpack(f">{data[3]}I", data[4:header])
    if len(data) != header + math.prod(shape):
        raise ValueError(
            f"{path}: an array of shape {list(shape)} takes {header + math.prod(shape)} bytes; the file has {len(data)}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)


def read_tensors(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """The labels or targets y ``[N, ...]`` and features x ``[N, ...]`` of a safetensors file that has both.

    float64 and whole numbers stay what they are; shorter floating-point types become float32, which has room for them.
    """
    try:
        held = load(contents(path, TENSORS))
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file: {error}") from error
    if not {"x", "y"} <= held.keys():
        raise ValueError(f"{path}: it must have tensors x and y; it has {', '.join(sorted(held)) or 'nothing'}")
    for name in ("x", "y"):
        if held[name].is_complex():
            raise ValueError(f"{path}: {name} must hold real numbers; got {held[name].dtype}")
        if held[name].dtype == torch.uint64:
            raise ValueError(f"{path}: {name} is uint64, whose numbers need not fit into int64; store it as int64")
        if not held[name].is_floating_point():
            held[name] = held[name].to(torch.int64)
        elif held[name].dtype != torch.float64:
            held[name] = held[name].to(torch.float32)
    return held["y"].numpy(), held["x"].numpy()
