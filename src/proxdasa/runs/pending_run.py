"""A run that has not started, to be made as a whole or in parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxdasa.runs import records
from proxdasa.runs.interleaved_runs import Course
from proxdasa.runs.progress import Progress
from proxdasa.runs.records import part_folders
from proxdasa.runs.results import Result
from proxdasa.runs.saving import Saving
from proxdasa.runs.setup import Setup
from proxdasa.runs.trial_parts import Part, divide, merge

Listening = Progress | Sequence[Progress] | None


@dataclass(frozen=True, eq=False)
class PendingRun:
    """A run that has not started."""

    setup: Setup
    saving: Saving | None = None
    begin: Callable[[], Listening] = lambda: None
    """Called when it starts; returns the listeners to its progress."""
    end: Callable[[Result], None] = lambda _: None
    """Called with its result."""
    title: str | None = None
    """What to call it in messages; by default the name of the method."""
    parts: list[range] = field(init=False)

    def __post_init__(self) -> None:
        # A run that an earlier version computed and stopped as a whole continues as a whole, and one in parts in parts.
        whole = self.saving and any(self.saving.folder.glob("[0-9]*"))
        begun = {path.name for path in part_folders(self.saving.folder)} if self.saving else set()
        object.__setattr__(self, "parts", [range(self.setup.trials)] if whole else divide(self.setup, begun))

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.title or self.setup.algorithm.facts.title

    def course(self, number: int, report: Progress) -> Course:
        """The course of part ``number``."""
        if len(self.parts) == 1:
            return self.setup.loop().course(report, self.saving)
        chosen = self.parts[number]
        saving = self.saving and self.saving.of_part(chosen, self.setup.iterations)
        return Part.of(self.setup, chosen).loop().course(report, saving)

    def finish(self, results: Sequence[Result]) -> Result:
        """The result of the whole; removes checkpoints that only parts need, once all have ended."""
        result = results[0] if len(self.parts) == 1 else merge(self.setup, self.parts, results)
        if len(self.parts) > 1 and self.saving and not self.saving.every and result.stopped != "interrupted":
            for folder in part_folders(self.saving.folder):
                shutil.rmtree(folder, ignore_errors=True)
            (self.saving.folder / records.CONFIG).unlink(missing_ok=True)
        self.end(result)
        return result
