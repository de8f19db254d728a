"""Gives all threads of a site one heap, which keeps freed memory.

glibc gives threads heaps of their own, up to eight for each core, and returns little of a heap's memory to the system.
gRPC starts threads for every connection that is opened, so each heap would come to hold some of every kind of memory,
and the process would grow for hours although nothing is leaked. The threads of a site hardly compete for one heap,
because Python's lock lets only one of them run at a time.

A round allocates memory for rows and messages, and frees it. glibc returns a block of a megabyte to the system at once,
and the next round gets it back page by page, which takes several times as long as the work on the block.
"""

from __future__ import annotations

import ctypes
import sys

ARENA_MAX, MMAP_THRESHOLD, TRIM_THRESHOLD = -8, -3, -1
"""M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h."""
SETTINGS = {ARENA_MAX: 1, MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**27}
"""Blocks of up to 32 MB, the most that glibc allows, come from the heap, which keeps up to 128 MB of free memory."""


def share_one_heap() -> bool:
    """Make all threads started from now on use one heap; returns false where the system has no such settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all(mallopt(what, value) == 1 for what, value in SETTINGS.items())
