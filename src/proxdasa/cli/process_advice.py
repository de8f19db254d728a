"""Whether several processes are worth their messages, judged from what a run has measured itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from proxdasa.cli.progress_display import note
from proxdasa.runs.records import Row

ENOUGH = 2.0
"""Seconds of steps to judge by."""


@final
class Worth:
    """Told of a run's progress, it says once if one process would be faster.

    One process has the work of all to do, which takes it at most as long as all of them together (less, where agents
    are stacked or there are more cores than processes). If the steps take longer than that, messages outweigh what the
    processes save.
    """

    def __init__(self, processes: int) -> None:
        self._processes, self._judged = processes, False
        self._first: Row | None = None

    def __call__(self, _k: int, _iterations: int, rows: Sequence[Row]) -> None:
        """Judge from the records since the first, which may be of an earlier start with other processes."""
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
