"""Where a run writes checkpoints, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proxdasa.checks import check_count
from proxdasa.runs.records import PART


@dataclass(frozen=True)
class Saving:
    """Where a run writes checkpoints, and how many iterations apart.

    If the folder holds checkpoints, the run continues from them. An interrupted run writes one in any case.
    """

    folder: Path
    every: int | None = None
    whole: Saving | None = None
    """The saving of the whole run, if this one is for some of its trials (`runs.trial_parts`)."""

    def __post_init__(self) -> None:
        if self.every is not None:
            check_count(self.every, "checkpoint_every")

    @staticmethod
    def of(checkpoints: str | Path | None, every: int | None) -> Saving | None:
        """The arguments ``checkpoints`` and ``checkpoint_every`` of `run` as one object, if there are any."""
        if every is not None and checkpoints is None:
            raise ValueError("checkpoint_every needs a folder for the checkpoints: checkpoints=...")
        return None if checkpoints is None else Saving(Path(checkpoints), every)

    def of_part(self, trials: range, iterations: int) -> Saving:
        """The saving of some of the trials: a folder within this one, and in any case a checkpoint at the end."""
        return Saving(self.folder / part_name(trials), min(self.every or iterations, iterations), whole=self)


def part_name(trials: range) -> str:
    """The name of the folder with the checkpoints of some of the trials."""
    return f"{PART}{trials.start:03d}-{trials[-1]:03d}"
