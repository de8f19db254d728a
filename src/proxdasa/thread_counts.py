"""How many threads torch computes in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context manager: this thread computes in so many threads.

    Each thread of Python has a number of its own, so others that compute meanwhile keep theirs. But every number that
    is set is also the one that threads started later begin with, so nothing is set that is not a change. Otherwise a
    thread that began with the 1 of another one would set it again after that one has restored its own.
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
