"""Several runs that advance in turn in one process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch

from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.results import Result

Course = Generator[None, None, Result]
"""A run that pauses now and then, so that others can advance in between (`take_turns`)."""


def take_turns(
    courses: Sequence[Course], ended: Callable[[int, Result], None] = lambda _i, _result: None
) -> list[Result]:
    """Advance several courses in turn, each to its next pause, so that they keep pace; return their results.

    If one is interrupted, all are.
    """
    results: dict[int, Result] = {}
    stopping = False
    # Entered here too: courses end at different times, and each restores the settings that it found.
    with torch.no_grad(), flushed_denormals():
        for i, course in enumerate(courses):
            if (result := _advance(course, stopping=False)) is not None:  # interrupted before its first pause
                results[i], stopping = result, True
        while left := [i for i in range(len(courses)) if i not in results]:
            for i in left:
                try:
                    if (result := _advance(courses[i], stopping)) is not None:
                        results[i] = result
                        stopping |= result.stopped == "interrupted"
                        ended(i, result)
                except KeyboardInterrupt:  # between two turns
                    if stopping:
                        raise
                    stopping = True
    return [results[i] for i in range(len(courses))]


def _advance(course: Course, stopping: bool) -> Result | None:
    """Advance to the next pause, or to the end; return the result, if there is one."""
    try:
        if stopping:
            course.throw(KeyboardInterrupt)
        else:
            next(course)
    except StopIteration as end:
        result: Result = end.value
        return result
    return None
