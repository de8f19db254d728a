"""Several runs into one folder, resumable: what is finished is not run again."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

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
        earlier = _finished(folder / name, setup)
        results[name] = earlier or setup.run(announce(name, setup))
        if results[name].stopped == "interrupted":
            break
        if not earlier:
            results[name].save(folder / name, overwrite=True)
    return results


def _finished(folder: Path, setup: Setup) -> Result | None:
    """The results in a folder, if they are the finished results of this very set-up, unharmed."""
    try:
        with warnings.catch_warnings(action="error"):  # a record that is cut short counts as harm
            result = load(folder)
    except (OSError, ValueError, UserWarning):
        return None
    same = result.config == json.loads(json.dumps(setup.config()))
    return result if same and result.stopped is None else None
