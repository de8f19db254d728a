"""Runs and results folders written by hand, pages made of them, and a look at which files are opened."""

import contextlib
import functools
import json
import os
import sys

import torch
from safetensors.torch import save_file

from proxdasa import reports
from proxdasa.reports import Run

RING = [[0, 1], [0, 3], [1, 2], [2, 3]]
T = {1: 12.7062, 2: 4.30265, 9: 2.26216}
"""Student's t at 0.975 by degrees of freedom, as printed in tables."""


def rows(**measures):
    """Rows at k = 0, 10, 20, ...; each measure is a list over k of lists over trials."""
    return [
        {"trial": trial, "k": 10 * i, **{name: values[i][trial] for name, values in measures.items()}}
        for i, first in enumerate(next(iter(measures.values())))
        for trial in range(len(first))
    ]


def run(losses, agents=1, title="M", label="r", ending=None, **measures):
    config = {"ending": {"diverged": {}}}
    return Run(title, label, agents, config, rows(loss=losses, **measures), ending)


def power(n, exponent=-1.0, title="M"):
    """A run with n agents that reaches a loss of 1 at k = 10 and a stationarity of n^exponent."""
    return run([[8.0], [1.0]], n, title, f"n = {n}", stationarity=[[9.0], [n**exponent]], consensus=[[0.0], [0.1]])


def save_rows(folder, config=None, records=None, **facts):
    """A results folder without the rest of the library."""
    folder.mkdir(parents=True)
    default = {
        "algorithm": {"name": "A", "gamma": 0.1},
        "problem": {"name": "P", "agents": 2},
        "network": {"name": "ring", "agents": 2},
        "trials": 2,
        "iterations": 20,
        "facts": {"title": "M", "agents": 2, **facts},
        "ending": {"iterations": 20, "stopped": None, "diverged": {}},
    }
    (folder / "config.json").write_text(json.dumps(default | (config or {})))
    lines = rows(loss=[[4.0, 6.0], [1.0, 3.0]]) if records is None else records
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


def save(folder, title="M", losses=((4.0, 6.0), (1.0, 3.0)), x=None, more=None, facts=None, **config):
    """A results folder of four agents on a ring; losses are lists over observations of lists over trials."""
    folder.mkdir(parents=True)
    trials, last = len(losses[0]), 10 * (len(losses) - 1)
    whole = {
        "algorithm": {"name": title, "gamma": 0.1},
        "network": {"name": "ring", "agents": 4},
        "iterations": last,
        "trials": trials,
        "observe_every": 10,
        "facts": {"title": title, "agents": 4, "rho": 1 / 3, "rounds": 1, "edges": RING} | (facts or {}),
        "ending": {"iterations": last, "stopped": None, "diverged": {}},
    }
    (folder / "config.json").write_text(json.dumps(whole | config))
    rows = [
        {"trial": trial, "k": 10 * i, "loss": loss, "consensus": loss / 8, "rounds": 20 * i, "seconds": i / 4}
        | {name: value(i) for name, value in (more or {}).items()}
        for i, values in enumerate(losses)
        for trial, loss in enumerate(values)
    ]
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    x = torch.arange(4 * trials).view(trials, 4, 1).float() if x is None else x
    save_file({"x": x.contiguous()}, folder / "final.safetensors")
    return folder


def write(path, folders, title="some runs"):
    """The page of some folders."""
    runs, faults = reports.salvage(folders)
    return reports.write_page(path, title, runs, reports.summarise(runs), faults)


def data(page):
    """What the page's script reads."""
    start = '<script type="application/json" id="data">'
    return json.loads(page.read_text(encoding="utf-8").partition(start)[2].partition("</script>")[0])


_OPENED: list[str] | None = None


def _note(event, arguments):
    if _OPENED is not None and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        _OPENED.append(os.fsdecode(arguments[0]))


@functools.cache
def _listen():
    """Once, and not before it is needed: a hook cannot be removed, and is called for much else."""
    sys.addaudithook(_note)


@contextlib.contextmanager
def opened_files():
    """The names of all files that are opened from Python in here."""
    global _OPENED  # noqa: PLW0603 - of the one hook
    _listen()
    _OPENED = []
    try:
        yield _OPENED
    finally:
        _OPENED = None
