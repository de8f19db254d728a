"""Data in one file per agent: a process reads the files of its own agents only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxdasa.checks import invalid
from proxdasa.data.columns import WHOLE
from proxdasa.data.csv_parquet import read_csv, read_parquet
from proxdasa.data.data_folder import OPENERS
from proxdasa.data.dataset import Dataset
from proxdasa.data.formats import read_svm, read_tensors
from proxdasa.data.loaders import targets
from proxdasa.data.partitions import Partition

AGENT, TENSORS, CSV, PARQUET = "{agent}", ".safetensors", ".csv", ".parquet"
TABLES = (CSV, PARQUET)
Kind = Literal["float32", "float64", "int64"]


@dataclass(frozen=True)
class PerAgent:
    """Files that are still to be read; `per_agent` explains the fields."""

    files: str
    features: int | tuple[str, ...] | None
    labels: tuple[int, ...] | None
    test: str | None
    target: str | None
    dtype: Kind | None = None
    names: tuple[str, ...] | None = None
    here: ClassVar[bool] = False
    partition: ClassVar[None] = None

    def load(self, agents: range, partition: Partition | None = None) -> tuple[Dataset, list[Tensor]]:  # noqa: ARG002
        """The examples of these agents, agent after agent, and the test examples, which every process reads."""
        held = [self._read(whose, file) for whose, file in self._files(agents)]
        for one in held:
            if (shapes := _shapes(one)) != _shapes(held[0]):
                raise ValueError(
                    f"{one.name}: rows of x and y have shapes {shapes}, those of {held[0].name} {_shapes(held[0])}; "
                    "they must match"
                )
            if one.columns != held[0].columns:
                raise ValueError(_difference(one, held[0]))
            _check_types(one, held[0])
        x, y = torch.cat([one.x for one in held]), torch.cat([one.y for one in held])
        whole = replace(held[0], name="per_agent", x=x, y=y)
        if self.test is not None:
            test = self._read("test", self.test)
            if len(test.columns or ()) == len(whole.columns or ()) and test.columns != whole.columns:
                raise ValueError(_difference(test, held[0]))
            _check_types(test, held[0])
            whole = replace(whole, test_x=test.x, test_y=test.y)
        return whole, list(torch.split(torch.arange(len(y)), [len(one.y) for one in held]))

    def _files(self, agents: range) -> list[tuple[str, str]]:
        """Each agent and its file; the error for missing files names all of them."""
        if self.names is None:
            return [(f"agent {agent}", self.files.replace(AGENT, str(agent))) for agent in agents]
        if agents.stop > len(self.names):
            raise ValueError(f"names has {len(self.names)} names of agents; there are at least {agents.stop} agents")
        found = [(name, self.files.replace(AGENT, name)) for name in self.names[agents.start : agents.stop]]
        if missing := [f"{name} ({Path(file).absolute()})" for name, file in found if not Path(file).exists()]:
            raise FileNotFoundError(f"there is no file of {', '.join(missing)}")
        return found

    def _read(self, whose: str, file: str) -> Dataset:
        path, known = Path(file), None if self.labels is None else np.unique(np.array(self.labels, dtype=np.float64))
        try:
            labels, x, columns = self._numbers(path)
        except OSError as error:
            raise type(error)(f"{whose}: {path.absolute()} cannot be read: {error.strerror or error}") from error
        if known is None:
            y = torch.from_numpy(labels)
        else:
            y = targets(path, labels.astype(np.float64), known, f"labels = {list(self.labels or ())}")
        return Dataset(file, torch.from_numpy(x), y, classes=None if known is None else len(known), columns=columns)

    def _numbers(self, path: Path) -> tuple[NDArray[Any], NDArray[Any], tuple[str, ...] | None]:
        """Labels or targets and features, in their final types, and the names of columns."""
        kind, columns = _kind(path), None
        # Text has no types, so it is read as float32 unless another type is requested. Whole numbers are read as
        # float64 first, which shows whether they are whole.
        requested = {None: None, "float32": np.float32, "float64": np.float64, "int64": np.float64}[self.dtype]
        if kind in TABLES:
            assert self.target is not None
            names = self.features if isinstance(self.features, tuple) else None
            if kind == CSV:
                labels, x, columns = read_csv(path, self.target, names, requested or np.float32)
            else:
                labels, x, columns = read_parquet(path, self.target, names, requested)
        elif kind == TENSORS:
            labels, x = read_tensors(path)
        else:
            assert not isinstance(self.features, tuple)
            labels, x = read_svm(path, self.features, requested or np.float32)
        typed = kind in (TENSORS, PARQUET)
        if self.labels is None:
            labels = labels.astype(_target_type(self.dtype, labels.dtype if typed else None))
        return labels, x if self.dtype is None else _cast(x, self.dtype, path), columns

    def describe(self) -> dict[str, Any]:
        """The arguments of `per_agent`; no file is read, so that all processes give the same description."""
        plain = {"name": "per_agent", **asdict(self), "regression": self.labels is None}
        if self.dtype is None:
            del plain["dtype"]  # so that runs from before this choice existed keep their description
        if self.names is None:
            del plain["names"]
        return plain


def _kind(path: Path) -> str:
    """The suffix of a file, apart from that of its compression."""
    return path.with_suffix("").suffix if path.suffix in OPENERS else path.suffix


def _difference(one: Dataset, other: Dataset) -> str:
    """The message for files with different columns."""
    assert one.columns is not None
    assert other.columns is not None
    i = next(i for i, names in enumerate(zip(one.columns, other.columns, strict=True)) if len({*names}) == 2)
    return (
        f"{one.name}: column {i + 1} of the features is {one.columns[i]!r}, but {other.columns[i]!r} in {other.name}; "
        "features = [...] chooses columns by name"
    )


def _target_type(requested: Kind | None, own: np.dtype[Any] | None) -> type[np.floating[Any]]:
    """The type of targets: the requested one, or that of the file, where whole numbers need float64 to stay exact."""
    if requested in (None, "int64"):
        return np.float32 if own is None or own == np.float32 else np.float64
    return np.float32 if requested == "float32" else np.float64


def _cast(x: NDArray[Any], dtype: Kind, path: Path) -> NDArray[Any]:
    """The features in the requested type; refuses fractions, and numbers too large to be exact, as whole numbers."""
    if dtype == "int64" and x.dtype.kind == "f":
        fits = (np.floor(x) == x) & (np.abs(x) < WHOLE)
        if not fits.all():
            at = tuple(np.argwhere(~fits)[0].tolist())
            raise ValueError(f'{path}: dtype = "int64" needs whole numbers below 2^53; row {at[0]} has {x[at]}')
    return x.astype(dtype, copy=False)


def _check_types(one: Dataset, other: Dataset) -> None:
    own, others = (f"{held.x.dtype} and {held.y.dtype}".replace("torch.", "") for held in (one, other))
    if own != others:
        raise ValueError(
            f"{one.name}: x and y are {own}, those of {other.name} {others}; they must match, and "
            'dtype = "float32", "float64" or "int64" says which type x is to have'
        )


def _shapes(data: Dataset) -> tuple[list[int], list[int]]:
    return list(data.x.shape[1:]), list(data.y.shape[1:])


def per_agent(
    files: str | Path,
    features: int | Sequence[str] | None = None,
    labels: Sequence[int] | None = None,
    test: str | Path | None = None,
    regression: bool = False,
    target: str | None = None,
    dtype: Kind | None = None,
    names: Sequence[str] | None = None,
) -> PerAgent:
    r"""Examples in one file for each agent; ``{agent}`` in the file name stands for the agent's number, from 0 on.

    A file is read by the process that holds its agent, and the ``test`` file, if there is one, by every process. Files
    are tables, .csv or .parquet (``proxdasa[parquet]``), in which the column ``target`` is y and ``features``, by
    default all other columns, are x; or .safetensors with x ``[N, ...]`` and y; or else in LIBSVM's format, with the
    given number of ``features``. Text files may be compressed, .bz2, .gz, .xz. Tables with missing numbers are refused.
    Since a file may lack some labels, ``labels`` lists all of them; in ascending order they become
    0, ..., C − 1. With ``regression`` there are no labels, and y are targets. With ``names`` of the
    agents ``{agent}`` stands for the name.

    ``dtype`` is the type of x, and of targets: "float32", "float64", or "int64" for networks that take whole numbers,
    as embeddings do. By default it is that of the files: float64 and whole numbers in .safetensors stay what they are,
    a .parquet table is float32 if all its features are, otherwise float64, and text, which has no type, becomes
    float32. A problem does not know types before files are read: it computes in float64 if ``dtype`` is "float64" here
    or in the problem, and warns if the numbers of files lose digits otherwise.

    Examples:
        >>> from pathlib import Path
        >>> for agent in range(3):
        ...     _ = Path(f"site-{agent}.svm").write_text("-1 1:0.5\n+1 2:1\n" * (agent + 1))
        >>> sites = data.per_agent("site-{agent}.svm", features=2, labels=[-1, 1])
        >>> problem = problems.Supervised(lambda: torch.nn.Linear(2, 2), sites, agents=3)
        >>> [len(rows) for rows in problem.parts]
        [2, 4, 6]
        >>> _ = Path("clinic-0.csv").write_text("id,age,dose,sick\n1,71,0.5,1\n2,38,0.1,0\n")
        >>> clinics = data.per_agent("clinic-{agent}.csv", ["age", "dose"], labels=[0, 1], target="sick")
        >>> clinics.load(range(1))[0].x
        tensor([[71.0000,  0.5000],
                [38.0000,  0.1000]])
        >>> data.per_agent("{agent}.csv", names=["lmu", "rwth"], labels=[0, 1], target="sick").names
        ('lmu', 'rwth')
    """
    if AGENT not in str(files):
        raise ValueError(f"files must have {AGENT} in place of the agent's number; got {str(files)!r}")
    if names is not None and not _are_names(names):
        raise invalid("names", "a list of texts, a different one for each agent", names)
    _check_kind(Path(files), features, target)
    if test is not None and (_kind(Path(test)) in TABLES) != (target is not None):
        raise ValueError(f"files and test must both be tables (.csv, .parquet) or neither; got test = {str(test)!r}")
    if (labels is None) != regression:
        raise ValueError("give either the labels of all agents, such as [-1, 1], or regression=True")
    if labels is not None and not _are_labels(labels):
        raise invalid("labels", "a list of whole numbers below 2^53, the labels of all agents", labels)
    if dtype not in (None, *get_args(Kind)):
        raise invalid("dtype", '"float32", "float64" or "int64", or left out for the type that the files have', dtype)
    known = None if labels is None else tuple(labels)
    chosen = features if features is None or isinstance(features, int) else tuple(features)
    named = None if names is None else tuple(names)
    return PerAgent(str(files), chosen, known, None if test is None else str(test), target, dtype, named)


def _are_names(names: Any) -> bool:
    """Whether these are names of agents rather than one text or numbers."""
    texts = not isinstance(names, str) and all(isinstance(name, str) and name for name in names)
    return texts and len({*names}) == len(names)


def _are_labels(labels: Any) -> bool:
    """Whether these are whole numbers that float64, the type in which labels are read, represents exactly."""
    listed = list(labels) if isinstance(labels, Sequence | np.ndarray) else []
    return bool(listed) and all(
        isinstance(each, Real) and each % 1 == 0 and -WHOLE < float(each) < WHOLE for each in listed
    )


def _check_kind(path: Path, features: int | Sequence[str] | None, target: str | None) -> None:
    """Refuse arguments that do not go with the kind of the files."""
    if (kind := _kind(path)) in TABLES:
        if target is None:
            raise ValueError(f"target must be the name of the column with labels or targets for {kind} files; got None")
        if isinstance(features, int | str):
            raise invalid("features", f"a list of names of columns, or left out, for {kind} files", features)
        return
    if target is not None:
        raise invalid("target", f"left out for {path.name}, which is not a table (.csv, .parquet)", target)
    if (features is None) != (kind == TENSORS) or not isinstance(features, int | None):
        raise ValueError(f"features must be given for LIBSVM files and left out for {TENSORS} files; got {features}")
