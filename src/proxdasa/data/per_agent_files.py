"""Data in one file per agent: a process reads the files of its own agents only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proxdasa.checks import invalid
from proxdasa.data.csv_parquet import read_csv, read_parquet
from proxdasa.data.data_folder import OPENERS
from proxdasa.data.dataset import Dataset
from proxdasa.data.formats import read_svm, read_tensors
from proxdasa.data.loaders import targets
from proxdasa.data.partitions import Partition

AGENT, TENSORS, TABLES = "{agent}", ".safetensors", {".csv": read_csv, ".parquet": read_parquet}


@dataclass(frozen=True)
class PerAgent:
    """Files that are still to be read; `per_agent` explains the fields."""

    files: str
    features: int | tuple[str, ...] | None
    labels: tuple[int, ...] | None
    test: str | None
    target: str | None
    here: ClassVar[bool] = False
    partition: ClassVar[None] = None

    def load(self, agents: range, partition: Partition | None = None) -> tuple[Dataset, list[Tensor]]:  # noqa: ARG002
        """The examples of these agents, agent after agent, and the test examples, which every process reads."""
        held = [self._read(f"agent {agent}", self.files.replace(AGENT, str(agent))) for agent in agents]
        for one in held:
            if (shapes := _shapes(one)) != _shapes(held[0]):
                raise ValueError(
                    f"{one.name}: rows of x and y have shapes {shapes}, those of {held[0].name} {_shapes(held[0])}; "
                    "they must match"
                )
            if one.columns != held[0].columns:
                raise ValueError(_difference(one, held[0]))
        x, y = torch.cat([one.x for one in held]), torch.cat([one.y for one in held])
        whole = replace(held[0], name="per_agent", x=x, y=y)
        if self.test is not None:
            test = self._read("test", self.test)
            whole = replace(whole, test_x=test.x, test_y=test.y)
            if test.columns != whole.columns:
                raise ValueError(_difference(test, held[0]))
        return whole, list(torch.split(torch.arange(len(y)), [len(one.y) for one in held]))

    def _read(self, whose: str, file: str) -> Dataset:
        path, known = Path(file), None if self.labels is None else np.unique(np.array(self.labels, dtype=np.float64))
        columns = None
        try:
            if (kind := _kind(path)) in TABLES:
                assert self.target is not None
                names = self.features if isinstance(self.features, tuple) else None
                labels, x, columns = TABLES[kind](path, self.target, names)
            elif kind == TENSORS:
                labels, x = read_tensors(path)
            else:
                assert not isinstance(self.features, tuple)
                labels, x = read_svm(path, self.features)
        except OSError as error:
            raise type(error)(f"{whose}: {path.absolute()} cannot be read: {error.strerror or error}") from error
        y = targets(path, labels, known, f"labels = {list(self.labels or ())}")
        return Dataset(file, torch.from_numpy(x), y, classes=None if known is None else len(known), columns=columns)

    def describe(self) -> dict[str, Any]:
        """The arguments of `per_agent`; no file is read, so that all processes give the same description."""
        return {"name": "per_agent", **asdict(self), "regression": self.labels is None}


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


def _shapes(data: Dataset) -> tuple[list[int], list[int]]:
    return list(data.x.shape[1:]), list(data.y.shape[1:])


def per_agent(
    files: str | Path,
    features: int | Sequence[str] | None = None,
    labels: Sequence[int] | None = None,
    test: str | Path | None = None,
    regression: bool = False,
    target: str | None = None,
) -> PerAgent:
    r"""Examples in one file for each agent; ``{agent}`` in the file name stands for the agent's number, from 0 on.

    A file is read by the process that holds its agent, and the ``test`` file, if there is one, by every process. Files
    are tables, .csv or .parquet (``proxdasa[parquet]``), in which the column ``target`` is y and ``features``, by
    default all other columns, are x; or .safetensors with x ``[N, ...]`` and y; or else LIBSVM's with the given number
    of ``features``. Text files may be compressed, .bz2, .gz, .xz. The numbers in tables are refused if any is missing.
    Since a file may lack some labels, ``labels`` lists all of them; in ascending order they become
    0, ..., C − 1. With ``regression`` there are no labels, and y are targets.

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
    """
    if AGENT not in str(files):
        raise ValueError(f"files must have {AGENT} in place of the agent's number; got {str(files)!r}")
    _check_kind(Path(files), features, target)
    if test is not None and (_kind(Path(test)) in TABLES) != (target is not None):
        raise ValueError(f"files and test must both be tables (.csv, .parquet) or neither; got test = {str(test)!r}")
    if (labels is None) != regression:
        raise ValueError("give either the labels of all agents, such as [-1, 1], or regression=True")
    known = None if labels is None else tuple(labels)
    chosen = features if features is None or isinstance(features, int) else tuple(features)
    return PerAgent(str(files), chosen, known, None if test is None else str(test), target)


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
