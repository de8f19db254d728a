"""One heap for all threads of a site, which keeps what is freed.

glibc gives threads heaps of their own, up to eight for each core, and hands back little of what one of them once held.
gRPC starts threads for every connection that is opened, so that each heap would come to hold a share of every kind of
memory, and the process would grow for hours though nothing is kept. Threads of a site hardly compete for the one heap:
Python's lock lets one of them work at a time.

A round allocates memory for rows and messages, and frees it. glibc returns a megabyte to the system at once, and the
next round gets it again page by page, which takes several times as long as the work on it.
"""

from __future__ import annotations

import ctypes
import sys

ARENA_MAX, MMAP_THRESHOLD, TRIM_THRESHOLD = -8, -3, -1
"""M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h."""
SETTINGS = {ARENA_MAX: 1, MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**27}
"""Blocks of up to 32 MB, the most that glibc allows, come from the heap; up to 128 MB that are free stay there."""


def share_one_heap() -> bool:
    """Have all threads that are started from now on use one heap; false where the system has no such settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all(mallopt(what, value) == 1 for what, value in SETTINGS.items())
