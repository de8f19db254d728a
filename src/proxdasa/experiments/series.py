"""Several runs into one folder, resumable: what is finished is not run again."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proxdasa.results import Result, load
from proxdasa.runner import Progress, Setup

Announce = Callable[[str, Setup], Progress]
"""Told the name of each run before it starts; gives the progress display for it."""


def run_series(
    setups: Mapping[str, Setup], folder: Path, announce: Announce, overwrite: bool = False
) -> dict[str, Result]:
    """Run each set-up into ``folder/name``, skipping those whose finished results are there already.

    Finished results of other settings are not replaced unless told so. An interruption ends the series: the interrupted
    run is not saved, the finished ones are.
    """
    finished = {name: _finished(folder / name) for name in setups}
    same = {name for name, found in finished.items() if found and found.config == _plain(setups[name])}
    other = [name for name, found in finished.items() if found and name not in same]
    if other and not overwrite:
        raise FileExistsError(
            f"{folder / other[0]} holds results of other settings; choose another folder or overwrite"
        )
    results: dict[str, Result] = {}
    for name, setup in setups.items():
        earlier = finished[name] if name in same else None
        results[name] = earlier or setup.run(announce(name, setup))
        if results[name].stopped == "interrupted":
            break
        if not earlier:
            results[name].save(folder / name, overwrite=True)
    return results


def _finished(folder: Path) -> Result | None:
    """The results in a folder, if they are there, finished and unharmed."""
    try:
        with warnings.catch_warnings(action="error"):  # a record that is cut short counts as harm
            result = load(folder)
    except (OSError, ValueError, UserWarning):
        return None
    return result if result.stopped is None else None


def _plain(setup: Setup) -> dict[str, Any]:
    """The configuration as it comes back from a file."""
    config: dict[str, Any] = json.loads(json.dumps(setup.config()))
    return config
