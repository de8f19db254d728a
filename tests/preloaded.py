"""What the fork server imports (`tests.forks`), so arranged that forking costs little."""

import contextlib
import ctypes
import gc
import importlib
import os
import re
import sys
import tempfile
from pathlib import Path

from tests import forks

HUGE = 2**21
"""The size of a huge page on most machines."""
COLLAPSE = 25
"""The kernel's number of MADV_COLLAPSE, since Linux 6.1."""


def preload():
    gc.disable()  # nearly everything that is made now is kept
    names = (*forks.PRELOADED, *(forks.PRELOADED_FOR_WORKERS if forks.WORKERS in os.environ else ()))
    for name in names:
        with contextlib.suppress(ImportError):  # `make oldest` has not all of them
            importlib.import_module(name)
    with contextlib.suppress(Exception):  # if runs fail, tests say so
        warm_up()
    gc.freeze()
    gc.enable()
    if sys.platform == "linux":
        use_huge_pages()


def warm_up():
    """Make a small run, so that forked processes have what Python and libraries make on first use."""
    import torch  # noqa: PLC0415

    from tests.processes import here, write_config  # noqa: PLC0415

    torch.set_num_threads(1)  # the threads of a pool do not survive a fork
    with tempfile.TemporaryDirectory() as name, torch.random.fork_rng(devices=[]):
        folder = Path(name)
        file = write_config(folder / "run.toml", iterations=10, observe_every=5)
        here("run", file, "-o", folder / "results", "--exact", "--checkpoint-every", 5)


def use_huge_pages():
    """Ask the kernel to move our memory to huge pages, if it can: a fork copies a table with an entry per page."""
    madvise = ctypes.CDLL(None).madvise
    for begin, end in re.findall(r"^(\w+)-(\w+) rw-p \w+ \S+ 0\b", Path("/proc/self/maps").read_text(), re.MULTILINE):
        first, last = -(-int(begin, 16) // HUGE) * HUGE, int(end, 16) // HUGE * HUGE
        if first < last:
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), COLLAPSE)


preload()
