"""Several runs into one folder, resumable: what is finished is not run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from proxdasa import records
from proxdasa.results import Result, load
from proxdasa.runner import Progress, Setup

Announce = Callable[[str, Setup], Progress]
"""Told the name of each run before it starts; gives the progress display for it."""


def run_series(setups: Mapping[str, Setup], folder: Path, announce: Announce) -> dict[str, Result]:
    """Run each set-up into ``folder/name``, skipping those whose finished results are there already.

    An interruption ends the series: the interrupted run is not saved, the finished ones are.
    """
    results: dict[str, Result] = {}
    for name, setup in setups.items():
        results[name] = _finished(folder / name, setup) or setup.run(announce(name, setup))
        if results[name].stopped == "interrupted":
            break
        results[name].save(folder / name, overwrite=True)
    return results


def _finished(folder: Path, setup: Setup) -> Result | None:
    """The results in a folder, if they are the finished results of this very set-up."""
    if not (folder / records.CONFIG).exists():
        return None
    result = load(folder)
    same = result.config == json.loads(json.dumps(setup.config()))
    return result if same and result.stopped is None else None
