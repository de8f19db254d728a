"""A data set: features, labels or targets, and perhaps a test set."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from proxdasa.checks import check_finite, invalid
from proxdasa.data.partitions import Partition, Shuffled

FLOATS = (torch.float32, torch.float64)


class Examples(Protocol):
    """The source of the agents' examples: a data set in memory, or files that are read when needed.

    Examples:
        >>> dataset = data.from_tensors(torch.zeros(6, 2), torch.arange(6) % 2)
        >>> dataset.here
        True
        >>> _, rows = dataset.load(range(3), data.Contiguous())
        >>> rows
        [tensor([0, 1]), tensor([2, 3]), tensor([4, 5])]
    """

    here: ClassVar[bool]
    """Whether all examples are in memory, for a partition to divide; otherwise the files divide them already."""

    @property
    def partition(self) -> Partition | None:
        """How to divide the examples where the problem does not say, such as by site; None for no preference."""

    def load(self, agents: range, partition: Partition | None = None) -> tuple[Dataset, list[Tensor]]:
        """A data set with the examples of these agents, and the row numbers of each agent."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows (x_j, y_j) for training and, unless they are None, for testing.

    x is ``[N, ...]`` in float32 or float64, or in int64 for networks that take whole numbers, as embeddings do. For
    classification y is ``[N]`` in int64 with values 0, ..., classes − 1; for regression ``classes`` is None and y is
    ``[N]`` or ``[N, ...]`` in float32 or float64. ``origin`` has the arguments of the loader called ``name``, which
    gives the same data set again; it is None if the tensors came from elsewhere. ``partition`` divides the rows where a
    problem is given no other, and ``columns`` are the names of the features of a table.

    Examples:
        >>> dataset = data.from_tensors([[0.0], [1.0], [2.0]], [0, 1, 1], name="three rows")
        >>> dataset.x.shape, dataset.y, dataset.classes
        (torch.Size([3, 1]), tensor([0, 1, 1]), 2)
        >>> dataset.describe()["shapes"]
        [[3, 1], [3]]
    """

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor | None = None
    test_y: Tensor | None = None
    classes: int | None = None
    origin: Mapping[str, Any] | None = None
    partition: Partition | None = None
    columns: tuple[str, ...] | None = None
    here: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (self.test_x is None) != (self.test_y is None):
            given, absent = ("test_y", "test_x") if self.test_x is None else ("test_x", "test_y")
            raise ValueError(f"{self.name}: {given} is given and {absent} is not; give both or neither")
        if self.classes is not None and self.classes < 1:
            raise invalid(f"{self.name}: classes", "at least 1, or None for regression", self.classes)
        self._check("", self.x, self.y)
        if self.test_x is not None and self.test_y is not None:
            self._check("test_", self.test_x, self.test_y)
            for kind, part, test in (("x", self.x, self.test_x), ("y", self.y, self.test_y)):
                if part.shape[1:] != test.shape[1:]:
                    raise ValueError(
                        f"{self.name}: rows of {kind} have shape {list(part.shape[1:])}, "
                        f"those of test_{kind} {list(test.shape[1:])}; they must match"
                    )
                if part.dtype != test.dtype:
                    raise ValueError(
                        f"{self.name}: {kind} is {part.dtype} and test_{kind} {test.dtype}; they must match"
                    )

    def _check(self, prefix: str, x: Tensor, y: Tensor) -> None:
        x_name, y_name = f"{self.name}: {prefix}x", f"{prefix}y"
        if x.ndim < 2 or x.dtype not in (*FLOATS, torch.int64):
            raise ValueError(
                f"{x_name} must be float32, float64 or int64 of shape [N, ...]; got {x.dtype} of shape {list(x.shape)}"
            )
        if y.ndim < 1 or len(x) != len(y) or len(x) == 0:
            raise ValueError(
                f"{x_name} and {y_name} need one row per sample and at least one; "
                f"got shapes {list(x.shape)} and {list(y.shape)}"
            )
        check_finite(x, x_name)
        if self.classes is None:
            if y.dtype not in FLOATS:
                raise ValueError(f"{self.name}: targets {y_name} must be float32 or float64 numbers; got {y.dtype}")
            check_finite(y, f"{self.name}: {y_name}")
        elif y.dtype != torch.int64 or y.ndim != 1:
            raise ValueError(
                f"{self.name}: labels {y_name} must be int64 of shape [N]; got {y.dtype} of shape {list(y.shape)}"
            )
        elif int(y.min()) < 0 or int(y.max()) >= self.classes:
            row = int(((y < 0) | (y >= self.classes)).nonzero()[0])
            raise ValueError(
                f"{self.name}: labels {y_name} must lie in 0, ..., {self.classes - 1}; row {row} has {int(y[row])}"
            )

    def load(self, agents: range, partition: Partition | None = None) -> tuple[Dataset, list[Tensor]]:
        """This data set, and the rows that a partition, by default its own or `Shuffled`, gives to each agent."""
        parts = list((partition or self.partition or Shuffled())(self.y, len(agents)))
        if len(parts) != len(agents) or min(len(part) for part in parts) == 0:
            raise ValueError(f"the partition must give each of {len(agents)} agents at least one example")
        for agent, part in enumerate(parts):  # a mask or a negative number would choose other rows than meant
            whole = isinstance(part, Tensor) and part.ndim == 1 and part.dtype == torch.int64
            if not whole or part.min() < 0 or part.max() >= len(self.y):
                raise ValueError(
                    f"the partition must give agent {agent} row numbers from 0 to {len(self.y) - 1}, a tensor of int64 "
                    f"with one axis; got {part}"
                )
        return self, parts

    def describe(self) -> dict[str, Any]:
        """The loader's name and arguments; without a loader, shapes and a fingerprint."""
        if self.origin is not None:
            return {"name": self.name, **self.origin}
        digest = hashlib.sha256()
        parts = [part for part in (self.x, self.y, self.test_x, self.test_y) if part is not None]
        for part in parts:
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)  # without a copy
        shapes = [list(part.shape) for part in parts]
        return {"name": self.name, "shapes": shapes, "classes": self.classes, "sha256": digest.hexdigest()}


def from_tensors(
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    test_x: ArrayLike | Tensor | None = None,
    test_y: ArrayLike | Tensor | None = None,
    name: str = "tensors",
) -> Dataset:
    """A data set made of tensors, arrays or lists.

    Whole-number y are labels 0, ..., C − 1, with C one more than the largest; floating-point y are targets. float64
    stays float64, and a problem made of it is computed in float64; shorter floating-point types become float32.
    Whole-number x become int64 and stay whole, as embeddings need them: give ``x.float()`` for measurements.

    Examples:
        >>> data.from_tensors([[0.0], [1.0]], [0, 2]).classes  # whole numbers are labels 0, 1, 2
        3
        >>> data.from_tensors([[0.0], [1.0]], [0.5, 2.0]).classes is None  # other numbers are targets
        True
    """
    parts = {
        key: None if part is None else torch.as_tensor(part)
        for key, part in (("x", x), ("y", y), ("test_x", test_x), ("test_y", test_y))
    }
    for key, part in parts.items():
        if part is not None and part.is_complex():
            raise TypeError(f"{name}: {key} must hold real numbers; got {part.dtype}")
        if part is not None and part.dtype == torch.uint64:
            raise TypeError(f"{name}: {key} is uint64, whose numbers need not fit into int64; give int64")
    targets = [part for part in (parts["y"], parts["test_y"]) if part is not None]
    regression = any(part.is_floating_point() for part in targets)
    if regression and not all(part.is_floating_point() for part in targets):
        raise TypeError(f"{name}: y and test_y must both be labels (whole numbers) or both be targets (floating point)")
    given = {key: part for key, part in parts.items() if part is not None}
    cast = {
        key: part.to(_kind(*(each for name, each in given.items() if name[-1] == key[-1])))
        for key, part in given.items()
    }
    for key, part in given.items():
        rounds = cast[key].is_floating_point() and not part.is_floating_point()
        if rounds and not torch.equal(cast[key].to(torch.int64), part.to(torch.int64)):
            kind = str(cast[key].dtype).removeprefix("torch.")
            raise ValueError(f"{name}: {key} has whole numbers that {kind} would round; give x and test_x in float64")
    labels = [] if regression else [cast[key] for key in ("y", "test_y") if key in cast]
    largest = max((int(part.max()) for part in labels if part.numel()), default=0)
    classes = None if regression else max(largest, 0) + 1  # negative labels are refused by Dataset
    return Dataset(name, cast["x"], cast["y"], cast.get("test_x"), cast.get("test_y"), classes)


def _kind(*parts: Tensor) -> torch.dtype:
    """One type for the tensors of training and testing, in which no floating-point number loses digits."""
    if not any(part.is_floating_point() for part in parts):
        return torch.int64
    return torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
