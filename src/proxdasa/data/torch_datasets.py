"""PyTorch's map-style data sets as ours: every item is read once, checked, and kept in memory or in a mapped file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sized
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from proxdasa import memory_budget
from proxdasa.checks import check_whole
from proxdasa.data.dataset import Dataset, from_tensors

BATCH = 64
"""Items that are read together."""
CHECKED = 1.5
"""Bytes of memory for each byte of the rows, while they are checked."""


class Pair(NamedTuple):
    """Items of a data set, or one of them: inputs and targets."""

    x: Tensor
    y: Tensor


def from_dataset(
    dataset: TorchDataset[Any],
    test: TorchDataset[Any] | None = None,
    workers: int = 0,
    folder: str | Path | None = None,
    name: str | None = None,
) -> Dataset:
    """A data set made of a map-style torch Dataset, whose items are pairs (x, y) of tensors, arrays or numbers.

    All items must have one shape and one type; whole-number y are labels, floating-point y are targets, as for
    `from_tensors`. A torch DataLoader with this number of ``workers`` reads each item, which must not change from one
    reading to the next: runs name their samples, and random transforms would give one name to several. Rows that do not
    fit into memory are kept in a file in ``folder``, if that is given, and read from there when they are needed; the
    file is deleted after use. Two things copy rows into memory, where they must then fit: exact mode and several
    processes, each of which takes the rows of its own agents, and a problem whose ``dtype`` is not that of the rows.

    Examples:
        >>> from torch.utils.data import TensorDataset
        >>> items = TensorDataset(torch.zeros(6, 2), torch.arange(6) % 3)
        >>> dataset = data.from_dataset(items)
        >>> dataset.x.shape, dataset.classes
        (torch.Size([6, 2]), 3)
    """
    check_whole(workers, "workers", least=0)
    name = name or type(dataset).__name__
    train = _read(dataset, name, workers, folder)
    tested = None if test is None else _read(test, f"{name}, test", workers, folder)
    return from_tensors(train.x, train.y, tested and tested.x, tested and tested.y, name)


def _read(dataset: Any, name: str, workers: int, folder: str | Path | None) -> Pair:
    """All items, in tensors ``[N, ...]`` of the types that `from_tensors` gives them."""
    if isinstance(dataset, IterableDataset) or not (isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")):
        raise TypeError(f"{name}: the data set must be map-style, with len(dataset) and dataset[i]; got {dataset!r}")
    if not len(dataset):
        raise ValueError(f"{name}: the data set has no items")
    numbered = _Numbered(dataset)
    first, again = (_pair(numbered[0][1], 0, name) for _ in range(2))
    if any(a.numpy().tobytes() != b.numpy().tobytes() for a, b in zip(first, again, strict=True)):
        raise ValueError(
            f"{name}: item 0 differs when it is read again; runs name their samples, so the data set must give "
            "the same item for the same index: leave out random transforms"
        )
    typed = from_tensors(first.x.unsqueeze(0), first.y.unsqueeze(0), name=name)
    rows = _allocate(typed.x, typed.y, len(dataset), name, folder)
    generator = torch.Generator()  # otherwise the loader would draw from torch's own
    loader: DataLoader[Any] = DataLoader(
        numbered, BATCH, num_workers=workers, collate_fn=_Stack(name, first), generator=generator
    )
    for start, batch in zip(range(0, len(dataset), BATCH), loader, strict=True):
        if isinstance(batch, Exception):
            raise batch
        for whole, part in zip(rows, batch, strict=True):
            whole[start : start + BATCH] = part
    return rows


def _allocate(x: Tensor, y: Tensor, count: int, name: str, folder: str | Path | None) -> Pair:
    """Tensors for all items, whose rows are like those of x and y: in memory, or in a file if they do not fit."""
    needed = CHECKED * count * (x[0].nbytes + y[0].nbytes)
    if folder is None:
        remedy = "give a folder = ... with room for a file to keep them in"
        memory_budget.check(needed, f"{name}: {count:,} items with x of shape {list(x.shape[1:])}", remedy)
    mapped = folder is not None and needed > memory_budget.limit()
    x, y = (
        _map(part, count, Path(str(folder))) if mapped else part.new_empty(count, *part.shape[1:]) for part in (x, y)
    )
    return Pair(x, y)


def _map(like: Tensor, count: int, folder: Path) -> Tensor:
    """A tensor whose memory is a file without a name, which is deleted with the tensor."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="proxdasa-") as file:
        # Room is reserved now: a disk that fills up under a mapped tensor would kill the process.
        os.posix_fallocate(file.fileno(), 0, count * like[0].nbytes)
        flat = torch.from_file(file.name, shared=True, size=count * like[0].numel(), dtype=like.dtype)
    return flat.view(count, *like.shape[1:])


class _Numbered(TorchDataset[Any]):
    """Items together with their numbers, for messages; copies, as the next item may be read into the same memory."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        item = self._dataset[number]
        return number, tuple(map(_copy, item)) if isinstance(item, tuple | list) else item


class _Stack:
    """The function that stacks items like the first; it returns errors, because torch would add text to raised ones."""

    def __init__(self, name: str, first: Pair) -> None:
        self._name, self._first = name, first

    def __call__(self, items: list[tuple[int, Any]]) -> Pair | Exception:
        try:
            pairs = [_pair(item, number, self._name) for number, item in items]
            for (number, _), pair in zip(items, pairs, strict=True):
                for what, part, known in zip("xy", pair, self._first, strict=True):
                    if (part.shape, part.dtype) != (known.shape, known.dtype):
                        raise ValueError(
                            f"{self._name}: {what} of item {number} has shape {list(part.shape)} and type "
                            f"{part.dtype}, that of item 0 {list(known.shape)} and {known.dtype}; they must match"
                        )
            return Pair(*(torch.stack(parts) for parts in zip(*pairs, strict=True)))
        except (TypeError, ValueError) as error:
            return error


def _copy(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.detach().clone()
    return part.copy() if isinstance(part, np.ndarray) else part


def _pair(item: Any, number: int, name: str) -> Pair:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"{name}: item {number} must be a pair (x, y); got {_show(item)}")
    return Pair(*(_tensor(part, f"{name}: {what} of item {number}") for what, part in zip("xy", item, strict=True)))


def _tensor(part: Any, what: str) -> Tensor:
    if isinstance(part, Tensor):
        return part.detach().cpu()
    if not isinstance(part, np.ndarray | np.generic | int | float) or np.asarray(part).dtype.kind not in "biufc":
        raise TypeError(
            f"{what} must be a tensor, an array or a number; got {_show(part)}; transforms of the data set, such as "
            "ToTensor() for images, can make it one"
        )
    return torch.as_tensor(part)


def _show(thing: Any) -> str:
    return f"a {type(thing).__name__}" + (f" of {len(thing)}" if isinstance(thing, tuple | list) else "")
