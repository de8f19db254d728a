"""How many threads torch computes in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context manager: torch uses this many threads for what the current Python thread computes.

    Torch keeps one number for each Python thread, so other threads that compute meanwhile keep theirs. But setting the
    number also sets the initial number of all threads that start later. So it is set only if it changes: otherwise a
    thread that started with another thread's 1 would set 1 again after the other one has restored its own number.
    """
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
