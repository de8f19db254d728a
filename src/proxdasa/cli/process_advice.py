"""Whether several processes are worth their messages, judged by the times that a run measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from proxdasa.cli.progress_display import note
from proxdasa.runs.records import Row

ENOUGH = 2.0
"""Seconds of stepping before there is enough to judge by."""


@final
class ProcessAdvice:
    """A listener to a run's progress that notes, once, if one process would be faster.

    One process would have to do the work of all of them. That takes at most the sum of their computing times (less
    where agents are stacked, or where there are more cores than processes). If the steps take longer than that sum,
    messages cost more time than the processes save.
    """

    def __init__(self, processes: int) -> None:
        self._processes, self._judged = processes, False
        self._first: Row | None = None

    def __call__(self, _k: int, _iterations: int, rows: Sequence[Row]) -> None:
        """Judge by the time since the first record: earlier times may be those of other processes."""
        if self._judged or not rows:
            return
        now = rows[0]
        self._first = first = self._first or now
        seconds, computation = (now[name] - first[name] for name in ("seconds", "computation"))
        if seconds < ENOUGH:
            return
        self._judged = True
        if self._processes * computation < seconds:
            note(
                f"note: these {self._processes} processes compute for {computation / seconds:.0%} of the time and "
                "spend the rest on messages; one process (without --processes) would probably be faster"
            )
