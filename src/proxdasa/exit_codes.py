"""Exit codes, which tell scripts and schedulers how a command ended. docs/processes.md has them in a table."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum


class Code(IntEnum):
    """How a command ended."""

    DONE = 0
    CRASHED = 1  # Python's own code for an unexpected exception
    REFUSED = 2  # click's for wrong usage
    LOST = 3
    DIVERGED = 4
    UNWRITTEN = 5
    UNWELL = 6
    INTERRUPTED = 130  # the shell's for Ctrl-C


MEANINGS = {
    Code.DONE: "done",
    Code.CRASHED: "crashed",
    Code.REFUSED: "bad input",
    Code.LOST: "a process was lost",
    Code.DIVERGED: "every trial diverged",
    Code.UNWRITTEN: "results could not be written",
    Code.UNWELL: "doctor found something missing",
    Code.INTERRUPTED: "interrupted",
}
FINAL = (Code.REFUSED, Code.DIVERGED, Code.INTERRUPTED)
"""Codes of endings that another attempt would not change."""

SUMMARY = "Exit codes: " + ", ".join(f"{code:d} {meaning}" for code, meaning in MEANINGS.items()) + "."


def foremost(codes: Collection[int]) -> int:
    """The exit code of a run of several processes, given the codes of the processes.

    Final codes come first, then signals (negative codes) and errors. Processes that only lost contact with another one
    come last, because they are not the cause.
    """
    failed = [code for code in codes if code]
    return min(failed, key=lambda code: (code not in FINAL, code == Code.LOST, code), default=Code.DONE)
