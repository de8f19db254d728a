"""One heap for all threads of a site.

glibc gives threads heaps of their own, up to eight for each core, and hands back little of what one of them once held.
gRPC starts threads for every connection that is opened, so that each heap would come to hold a share of every kind of
memory, and the process would grow for hours though nothing is kept. Threads of a site hardly compete for the one heap:
Python's lock lets one of them work at a time.
"""

from __future__ import annotations

import ctypes
import sys

ARENA_MAX = -8
"""M_ARENA_MAX of malloc.h."""


def share_one_heap() -> bool:
    """Have all threads that are started from now on use one heap; false where the system has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and mallopt(ARENA_MAX, 1) == 1
