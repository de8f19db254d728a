"""The short form of ``make soak``, and what it would find."""

import platform
import subprocess
import sys
import types

import pytest
from benchmarks import soak

from tests.processes import LINUX

pytestmark = LINUX


def test_a_soak_of_seconds(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(soak, "PAUSE", 0.05)
    monkeypatch.setattr(soak, "LAST", 80)  # which is enough for the models to agree
    assert soak.soak(minutes=0.1, seed=83, folder=tmp_path, fork=True) == 0, capsys.readouterr().out
    told = capsys.readouterr().out
    assert "in the end: |mean u − mean v| = " in told
    assert "  aachen: memory " in told


def test_threads_share_one_heap():
    """So that memory does not grow with every new thread."""
    code = """
import ctypes, sys, threading
from pathlib import Path
from proxdasa.sites.heap import share_one_heap
print(share_one_heap())
libc, held = ctypes.CDLL(None), []
libc.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=lambda: held.append(libc.malloc(ctypes.c_size_t(2000)))) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
heap = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]")).split()[0]
begin, end = (int(each, 16) for each in heap.split("-"))
print(all(begin <= place < end for place in held))
"""
    assert printed(code) == "True\nTrue\n"


def test_the_heap_keeps_what_is_freed():
    """So that not every round has a megabyte given to it page by page."""
    code = """
import resource
from proxdasa.sites.heap import share_one_heap
share_one_heap()
faults = []
for _ in range(100):
    rows = [b"x" * 2**20 for _ in range(8)]
    del rows
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0] < 2**20 // resource.getpagesize())
"""
    assert printed(code) == "True\n"


def printed(code):
    """What a program prints that is about memory of glibc."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library")
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def watch(**growing):
    """Measurements over an hour, with a rise of some of them by so much, and spikes."""
    flat = {"memory": 300.0, "files": 11.0, "threads": 14.0}
    line = [
        soak.Sample(
            float(at), **{name: flat[name] + growing.get(name, 0.0) * at / 3600 + (at % 7 == 0) for name in flat}
        )
        for at in range(3600)
    ]
    return types.SimpleNamespace(samples=dict.fromkeys(soak.NAMES, line))


def test_what_is_flat_is_no_fault():
    assert soak.report(watch(), 3600.0) == []


@pytest.mark.parametrize("what", soak.ROOM)
def test_what_grows_is_a_fault(what):
    faults = soak.report(watch(**{what: 20.0}), 3600.0)
    assert [fault.partition(" grew by 15.0")[0] for fault in faults] == [f"{what} of {name}" for name in soak.LASTING]
