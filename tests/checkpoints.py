"""Checkpoints with values that are easily lost, and how to compare and harm them: what their tests share."""

import math

import torch

from proxdasa.checkpoints import Checkpoint, Checkpoints, fingerprint

FILES = ["manifest.json", "rows.jsonl", "state.safetensors"]
OURS, ANOTHER = fingerprint({"gamma": 0.1}), fingerprint({"gamma": 0.2})
GARBAGE = bytes(range(256)) * 8


def checkpoint(k=1000, **changes):
    """A checkpoint with values that are easily lost, different for every k."""
    x = torch.tensor([[[1.0, -0.0, math.nan], [1e-310, math.inf, 0.1 * k]]], dtype=torch.float64)
    settings = {
        "state": {"x": x, "z": x.to(torch.float32).mT},
        "rows": [{"trial": 0, "k": 0, "loss": 0.1, "samples": 0}, {"trial": 0, "k": k, "loss": 1e-300, "samples": k}],
        "notes": {"seconds": 1.5 * k, "diverged": {"0": [1, 6]}, "stopped": None},
    }
    return Checkpoint(k, **settings | changes)


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.contiguous().numpy().tobytes()


def same(read, written):
    assert (read.k, read.rows, read.notes) == (written.k, written.rows, written.notes)
    assert {name: bits(tensor) for name, tensor in read.state.items()} == {
        name: bits(tensor) for name, tensor in written.state.items()
    }
    return True


def contents(folder):
    """Every file at or below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def harm(path, data=b""):
    path.write_bytes(data)


def two(folder):
    """Two whole checkpoints, of iterations 1000 and 2000."""
    ours = Checkpoints(folder, OURS)
    for k in (1000, 2000):
        ours.write(checkpoint(k))
    return folder
