"""Several runs into one folder, resumable: what is finished is not run again."""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proxdasa import disk
from proxdasa.descriptions import describe
from proxdasa.runs import records
from proxdasa.runs.loop import CHECKPOINTS, Saving
from proxdasa.runs.progress import Progress
from proxdasa.runs.results import Result, load
from proxdasa.runs.setup import Setup

Announce = Callable[[str, Setup], Progress]
"""Told the name of each run before it starts; gives the progress display for it."""


def run_series(
    setups: Mapping[str, Setup],
    folder: Path,
    announce: Announce,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda _: None,
    ended: Callable[[str, Path, Result], None] = lambda _name, _folder, _result: None,
) -> dict[str, Result]:
    """Run each set-up into ``folder/name``; those whose finished results are there already are reused.

    Results of other settings are refused. With ``overwrite`` the set-ups' earlier results are removed first and all of
    them run, so that what an interruption leaves never mixes old and new. An interruption ends the series; the
    interrupted run is saved with the records it has, and the next time goes on from its last checkpoint. ``say`` is
    told if runs are reused, ``ended`` of each run when its results are there.
    """
    earlier: dict[str, Result] = {}
    if overwrite:
        for name in setups:
            _remove(folder / name)
    else:
        earlier = _reusable(setups, folder)
    if earlier:
        runs, them = ("run", "it") if len(earlier) == 1 else ("runs", "them")
        say(f"{len(earlier)} finished {runs} reused; --overwrite runs {them} again")
    results: dict[str, Result] = {}
    for name, setup in setups.items():
        if name in earlier:
            results[name] = earlier[name]
            ended(name, folder / name, earlier[name])
            continue
        disk.sweep(folder / name)
        saving = Saving(folder / name / CHECKPOINTS, max(1, setup.iterations // 10))
        results[name] = setup.run(announce(name, setup), saving)
        if results[name].records:  # a report cannot read a folder without any
            results[name].save(folder / name, overwrite=True)
        ended(name, folder / name, results[name])
        if results[name].stopped == "interrupted":
            break
        shutil.rmtree(saving.folder, ignore_errors=True)
    return results


def _reusable(setups: Mapping[str, Setup], folder: Path) -> dict[str, Result]:
    """The finished results of the same settings; those of other settings, finished or not, are an error."""
    found = {name: result for name in setups if (result := _unharmed(folder / name))}
    for name, result in found.items():
        if _settings(result.config) != _settings(setups[name].config()):
            raise FileExistsError(
                f"{folder / name} holds results of other settings; choose another --output or add --overwrite"
            )
    return {name: result for name, result in found.items() if result.stopped != "interrupted"}


def _unharmed(folder: Path) -> Result | None:
    """The results in a folder, if they are there and can be read."""
    try:
        with warnings.catch_warnings(action="error"):  # a record that is cut short counts as harm
            return load(folder)
    except (OSError, ValueError, UserWarning):
        return None


def _settings(config: Mapping[str, Any]) -> Any:
    """A configuration as it comes back from a file, without facts: another version of torch is no other setting.

    Settings at their defaults are left out, so that results from before a setting was there stay results of the same.
    """
    plain = json.loads(json.dumps({key: value for key, value in config.items() if key != "facts"}))
    defaults = {entry.name: describe(entry.default) for entry in dataclasses.fields(Setup)}
    return {key: value for key, value in plain.items() if key not in defaults or value != defaults[key]}


def _remove(folder: Path) -> None:
    """Remove results; the configuration first, so that what is left of them never looks whole."""
    for file in (records.CONFIG, records.RECORDS, records.FINAL):
        (folder / file).unlink(missing_ok=True)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
