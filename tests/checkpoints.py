"""Checkpoints with values that are easily lost, and how to compare and harm them: what their tests share."""

import hashlib
import json
import math

import torch

from proxdasa.runs.checkpoints import Checkpoint, Checkpoints, fingerprint

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


GROWING = [{"trial": 0, "k": 1000 * number, "loss": 0.1**number, "samples": number} for number in range(100)]


def grown(k):
    """A checkpoint of a run that records a row every 1000 iterations."""
    return checkpoint(k, rows=GROWING[: k // 1000 + 1])


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


def forge(place, **changes):
    """Change ``state`` or ``rows``, as bytes, or entries of the manifest of a checkpoint, and correct all checksums."""
    manifest = json.loads((place / "manifest.json").read_bytes())
    for name, data in (("state.safetensors", changes.pop("state", None)), ("rows.jsonl", changes.pop("rows", None))):
        if data is not None:
            (place / name).unlink()  # it may be another's too
            (place / name).write_bytes(data)
            manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    seal(place, changes.pop("manifest", {**manifest, **changes}))


def seal(place, manifest):
    """Write a manifest, or any text in place of all but its beginning, with the right checksum."""
    head, entries = '{\n  "sha256": "', manifest
    if not isinstance(manifest, str):
        entries = json.dumps({"sha256": ""} | manifest | {"sha256": ""}, indent=2)
        entries = entries.removeprefix(head)
    (place / "manifest.json").write_text(head + hashlib.sha256(entries.encode()).hexdigest() + entries)


def two(folder):
    """Two whole checkpoints, of iterations 1000 and 2000."""
    ours = Checkpoints(folder, OURS)
    for k in (1000, 2000):
        ours.write(checkpoint(k))
    return folder
