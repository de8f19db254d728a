"""The measures of a run in TensorBoard, while it runs; needs ``pip install 'proxdasa[tensorboard]'``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from proxdasa.runs.records import Row, mean_row

FEW = 10
"""This many trials get curves of their own."""


class TensorBoard:
    """Writes a run's progress as event files: ``run(..., progress=TensorBoard("results/tensorboard"))``.

    Each measure is a chart with the mean over trials and, if there are several, a curve for each of the first ten
    (folders ``trial-0``, ...). A resumed run continues its curves; what they had beyond the checkpoint is replaced.
    Every observation is flushed to disk at once; `close`, or the end of a ``with`` block, closes the files.

    Examples:
        >>> from proxdasa.tensorboard import TensorBoard
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> with TensorBoard("results/curves") as board:
        ...     result = proxdasa.run(
        ...         proxdasa.ProxDASA(gamma=0.5), problem, networks.ring(3), iterations=10, progress=board
        ...     )
        >>> from pathlib import Path
        >>> [path.name.startswith("events") for path in Path("results/curves").iterdir()]
        [True]
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ModuleNotFoundError(
                f"curves for TensorBoard need its package ({error}): pip install 'proxdasa[tensorboard]'"
            ) from error
        self._open, self._folder = SummaryWriter, Path(folder)
        self._writers: dict[str, Any] = {}

    def __call__(self, k: int, iterations: int, rows: Sequence[Row]) -> None:  # noqa: ARG002 - as every Progress
        """Write the observation after k iterations."""
        if not rows:
            return
        self._write("", k, mean_row(rows))
        for row in rows:
            name = f"trial-{row['trial']}"
            # A single row may be all that has not diverged: then the trial has a curve already.
            if row["trial"] < FEW and (len(rows) > 1 or (self._folder / name).exists()):
                self._write(name, k, row)

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, name: str, k: int, row: Row) -> None:
        if name not in self._writers:  # hides what earlier files of the same run have from k on
            self._writers[name] = self._open(str(self._folder / name), purge_step=k)
        writer = self._writers[name]
        for measure, value in row.items():
            if measure not in ("trial", "k"):
                writer.add_scalar(measure, value, k)
        writer.flush()  # so that a run that is killed and resumed has no gap
