"""Several runs in one process that go on in turn."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch

from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.results import Result

Course = Generator[None, None, Result]
"""A run that pauses now and then, so that others can go on in between (`take_turns`)."""


def take_turns(
    courses: Sequence[Course], ended: Callable[[int, Result], None] = lambda _i, _result: None
) -> list[Result]:
    """Let several courses go on in turn, each to its next pause, so that they stay together; their results.

    If one is interrupted, all are.
    """
    results: dict[int, Result] = {}
    stopping = False
    # Held here too: the courses end at different times, and each puts back what it has found.
    with torch.no_grad(), flushed_denormals():
        for course in courses:
            next(course)
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
    """Go on to the next pause, or to the end, where the course has a result."""
    try:
        if stopping:
            course.throw(KeyboardInterrupt)
        else:
            next(course)
    except StopIteration as end:
        result: Result = end.value
        return result
    return None
