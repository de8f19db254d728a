"""Data in one file per agent: a process reads the files of its own agents only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proxdasa.data.dataset import Dataset
from proxdasa.data.formats import read_svm, read_tensors
from proxdasa.data.loaders import targets
from proxdasa.data.partitions import Partition

AGENT, TENSORS = "{agent}", ".safetensors"


@dataclass(frozen=True)
class PerAgent:
    """Files that are still to be read; `per_agent` explains the fields."""

    files: str
    features: int | None
    labels: tuple[int, ...] | None
    test: str | None
    here: ClassVar[bool] = False

    def load(self, agents: range, partition: Partition | None = None) -> tuple[Dataset, list[Tensor]]:  # noqa: ARG002
        """The examples of these agents, agent after agent, and the test examples, which every process reads."""
        held = [self._read(f"agent {agent}", self.files.replace(AGENT, str(agent))) for agent in agents]
        for one in held:
            if (shapes := _shapes(one)) != _shapes(held[0]):
                raise ValueError(
                    f"{one.name}: rows of x and y have shapes {shapes}, those of {held[0].name} {_shapes(held[0])}; "
                    "they must match"
                )
        x, y = torch.cat([one.x for one in held]), torch.cat([one.y for one in held])
        whole = replace(held[0], name="per_agent", x=x, y=y)
        if self.test is not None:
            test = self._read("test", self.test)
            whole = replace(whole, test_x=test.x, test_y=test.y)
        return whole, list(torch.split(torch.arange(len(y)), [len(one.y) for one in held]))

    def _read(self, whose: str, file: str) -> Dataset:
        path, known = Path(file), None if self.labels is None else np.unique(np.array(self.labels, dtype=np.float64))
        try:
            labels, x = read_tensors(path) if path.suffix == TENSORS else read_svm(path, self.features)
        except OSError as error:
            raise type(error)(f"{whose}: {path.absolute()} cannot be read: {error.strerror or error}") from error
        y = targets(path, labels, known, f"labels = {list(self.labels or ())}")
        return Dataset(file, torch.from_numpy(x), y, classes=None if known is None else len(known))

    def describe(self) -> dict[str, Any]:
        """The arguments of `per_agent`; no file is read, so that all processes give the same description."""
        return {"name": "per_agent", **asdict(self), "regression": self.labels is None}


def _shapes(data: Dataset) -> tuple[list[int], list[int]]:
    return list(data.x.shape[1:]), list(data.y.shape[1:])


def per_agent(
    files: str | Path,
    features: int | None = None,
    labels: Sequence[int] | None = None,
    test: str | Path | None = None,
    regression: bool = False,
) -> PerAgent:
    r"""Examples in one file for each agent; ``{agent}`` in the file name stands for the agent's number, from 0 on.

    A file is read by the process that holds its agent, and the ``test`` file, if there is one, by every process. Files
    are LIBSVM's, plain or .bz2, .gz, .xz, with the given number of ``features``, or .safetensors with x ``[N, ...]``
    and y. Since a file may lack some labels, ``labels`` lists all of them; in ascending order they become
    0, ..., C − 1. With ``regression`` there are no labels, and y are targets.

    Examples:
        >>> from pathlib import Path
        >>> for agent in range(3):
        ...     _ = Path(f"site-{agent}.svm").write_text("-1 1:0.5\n+1 2:1\n" * (agent + 1))
        >>> sites = data.per_agent("site-{agent}.svm", features=2, labels=[-1, 1])
        >>> problem = problems.Supervised(lambda: torch.nn.Linear(2, 2), sites, agents=3)
        >>> [len(rows) for rows in problem.parts]
        [2, 4, 6]
    """
    if AGENT not in str(files):
        raise ValueError(f"files must have {AGENT} in place of the agent's number; got {str(files)!r}")
    if (features is None) != (Path(files).suffix == TENSORS):
        raise ValueError(f"features must be given for LIBSVM files and left out for {TENSORS} files; got {features}")
    if (labels is None) != regression:
        raise ValueError("give either the labels of all agents, such as [-1, 1], or regression=True")
    known = None if labels is None else tuple(labels)
    return PerAgent(str(files), features, known, None if test is None else str(test))
