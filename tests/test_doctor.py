"""The doctor: says what is there, and has a cure for what is not."""

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from proxdasa.cli import app, doctor
from tests.processes import LINUX, TROUBLE, commands

examine = sys.modules["proxdasa.cli.doctor"]
FORKED = """
from proxdasa.cli.doctor import MESSAGE
from tests.processes import PROGRAMS
PROGRAMS[MESSAGE] = lambda: exec(MESSAGE, {})
"""
"""Lets forked processes run the program that the doctor gives to Python."""


@LINUX
def test_this_machine_is_well(tmp_path):
    """The two processes are forked; two fresh interpreters would import PyTorch."""
    forked = tmp_path / "forked.py"
    forked.write_text(FORKED)
    with commands(tmp_path) as start:
        lines = start("proxdasa", "doctor", "--messages", env={TROUBLE: str(forked)}).ended().splitlines()
    assert lines[0] == f"ok      Python {platform.python_version()}, PyTorch {torch.__version__}"
    assert "ok      two processes exchange messages by Unix sockets, sums by gloo on lo" in lines
    assert sum(not line.startswith("        cure: ") for line in lines) == len(examine.CHECKS + examine.MESSAGES)


def test_without_messages_it_says_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(examine, "MESSAGES", ())
    lines = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()
    left_out = "not checked: PyTorch itself, its devices, messages between processes (proxdasa doctor --messages)"
    assert lines[-1].strip() == left_out
    assert sum(line.startswith(("ok", "missing", "FAILED")) for line in lines) == len(examine.CHECKS)


def test_a_complaint_of_something_needed_is_the_exit_code(monkeypatch):
    bad, fair = examine.Finding("no air", "open a window"), examine.Finding("no tea", "boil water", needed=False)
    monkeypatch.setattr(examine, "CHECKS", (lambda: bad, lambda: fair))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 6
    assert done.stdout == ("FAILED  no air\n        cure: open a window\nmissing no tea\n        cure: boil water\n")
    monkeypatch.setattr(examine, "CHECKS", (lambda: fair,))
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
    assert callable(doctor)


def missing(name):
    raise PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("check", "patch", "cure"),
    [
        ("_threads", (os, "environ", {"OMP_NUM_THREADS": "1000000"}), "set OMP_NUM_THREADS="),
        ("_python", (examine, "version", missing), "pip install torch"),
        ("_gloo", (examine, "launch", lambda *_: 3), "ip link set lo up"),
        ("_gloo", (os, "environ", {"GLOO_DEVICE_TRANSPORT": "TCP_TLS"}), "unset GLOO_DEVICE_TRANSPORT"),
        ("_gloo", (torch.distributed, "is_gloo_available", lambda: False), "another build of PyTorch"),
        ("_mpi", (examine.importlib.util, "find_spec", lambda _: None), "pip install proxdasa[mpi]"),
        ("_mpi", (subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="1\n1\n")), "the mpiexec of the library"),
        ("_compiler", (shutil, "which", lambda _: None), "install g++"),
        ("_disk", (shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20)), "make room"),
        ("_data", (examine.data, "listing", lambda _: [("a9a", "a9a.bz2", False)]), "proxdasa data fetch a9a"),
        ("_sklearn", (examine.importlib.util, "find_spec", lambda _: None), "pip install proxdasa[data]"),
    ],
)
def test_cures(check, patch, cure, monkeypatch):
    if patch[0] is subprocess:
        pytest.importorskip("mpi4py", reason="needs mpi4py")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(*patch)
    assert cure in getattr(examine, check)().cure
