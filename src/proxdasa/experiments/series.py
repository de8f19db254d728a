"""Running several set-ups into one folder; finished runs are reused, interrupted ones resumed."""

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
from proxdasa.runs.loop import Saving
from proxdasa.runs.progress import Progress
from proxdasa.runs.results import Result, load
from proxdasa.runs.setup import Setup

Announce = Callable[[str, Setup], Progress]
"""Called with the name and set-up of each run before it starts; returns a listener to its progress."""


def run_series(
    setups: Mapping[str, Setup],
    folder: Path,
    announce: Announce,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda _: None,
    ended: Callable[[str, Path, Result], None] = lambda _name, _folder, _result: None,
) -> dict[str, Result]:
    """Run each set-up into ``folder/name``, and reuse finished results that are there already.

    Results of other settings are refused. With ``overwrite`` all earlier results are removed before the first run, so
    that an interruption never leaves a mixture of old and new. An interruption ends the series. The interrupted run is
    saved with the records it has, and resumes from its last checkpoint the next time. ``say`` is called with a sentence
    if runs are reused, and ``ended`` after each run, when its results are saved.
    """
    earlier: dict[str, Result] = {}
    if overwrite:
        for name in setups:
            _remove(folder / name)
    else:
        earlier = _find_reusable(setups, folder)
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
        saving = Saving(folder / name / records.CHECKPOINTS, max(1, setup.iterations // 10))
        results[name] = setup.run(announce(name, setup), saving)
        if results[name].records:  # a report cannot read a folder without any
            results[name].save(folder / name, overwrite=True)
        ended(name, folder / name, results[name])
        if results[name].stopped == "interrupted":
            break
        shutil.rmtree(saving.folder, ignore_errors=True)
    return results


def _find_reusable(setups: Mapping[str, Setup], folder: Path) -> dict[str, Result]:
    """The finished results in the folder; raises FileExistsError if there are any of other settings."""
    found = {name: result for name in setups if (result := _load_intact(folder / name))}
    for name, result in found.items():
        if _settings(result.config) != _settings(setups[name].config()):
            raise FileExistsError(
                f"{folder / name} holds results of other settings; choose another --output or add --overwrite"
            )
    return {name: result for name, result in found.items() if result.stopped != "interrupted"}


def _load_intact(folder: Path) -> Result | None:
    """The results in a folder, or None if they are missing or damaged."""
    try:
        with warnings.catch_warnings(action="error"):  # a record that is cut short counts as damage
            return load(folder)
    except (OSError, ValueError, UserWarning):
        return None


def _settings(config: Mapping[str, Any]) -> Any:
    """The settings in a configuration, as read from a file, without a note or facts such as the version of torch.

    Settings with default values are left out, so that results from before a setting existed still match.
    """
    plain = json.loads(json.dumps({key: value for key, value in config.items() if key not in ("facts", "note")}))
    defaults = {entry.name: describe(entry.default) for entry in dataclasses.fields(Setup)}
    return {key: value for key, value in plain.items() if key not in defaults or value != defaults[key]}


def _remove(folder: Path) -> None:
    """Remove results, the configuration first, so that remains never look like complete results."""
    for file in (records.CONFIG, records.RECORDS, records.FINAL):
        (folder / file).unlink(missing_ok=True)
    shutil.rmtree(folder / records.CHECKPOINTS, ignore_errors=True)
