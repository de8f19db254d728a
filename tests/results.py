"""Results folders written by hand, and pages made of them: what the tests of the page share."""

import json

import numpy as np
import torch
from safetensors.torch import save_file

from proxdasa import reports

RING = np.array([(0, 1), (0, 3), (1, 2), (2, 3)])


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
        "facts": {"title": title, "agents": 4, "rho": 1 / 3, "rounds": 1} | (facts or {}),
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


def write(path, folders, title="some runs", edges=lambda config: RING, **options):
    """The page of some folders."""
    runs, faults = reports.salvage(folders)
    return reports.write_page(path, title, runs, reports.summarise(runs), edges, faults, **options)


def data(page):
    """What the page's script reads."""
    start = '<script type="application/json" id="data">'
    return json.loads(page.read_text(encoding="utf-8").partition(start)[2].partition("</script>")[0])
