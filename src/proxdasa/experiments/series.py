"""Runs several set-ups into one folder; finished runs are reused, and interrupted ones are resumed."""

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
from proxdasa.runs.jobs import choose_jobs, run_all
from proxdasa.runs.pending_run import PendingRun
from proxdasa.runs.progress import Progress
from proxdasa.runs.results import Result, load
from proxdasa.runs.saving import Saving
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
    jobs: int | None = 1,
) -> dict[str, Result]:
    """Run each set-up into ``folder/name``, and reuse finished results that are there already.

    Results of other settings are refused. With ``overwrite`` all earlier results are removed before the first run, so
    that an interruption never leaves a mixture of old and new. An interruption ends the series. The interrupted run is
    saved with the records it has, and resumes from its last checkpoint the next time. ``say`` is called with a sentence
    if runs are reused, and ``ended`` after each run, when its results are saved. The runs, and the trials of large
    ones, are spread over ``jobs`` processes (None: over all cores if the work is long), with the same results.
    """
    earlier: dict[str, Result] = {}
    if overwrite:
        for name in setups:
            remove_results(folder / name)
    else:
        earlier = _find_reusable(setups, folder)
    if earlier:
        runs, them = ("run", "it") if len(earlier) == 1 else ("runs", "them")
        say(f"{len(earlier)} finished {runs} reused; --overwrite runs {them} again")
    results = dict(earlier)
    for name, result in earlier.items():
        ended(name, folder / name, result)

    def prepare(name: str, setup: Setup) -> PendingRun:
        place = folder / name
        saving = Saving(place / records.CHECKPOINTS, max(1, setup.iterations // 10))

        def begin() -> Progress:
            disk.sweep(place)
            return announce(name, setup)

        def end(result: Result) -> None:
            results[name] = result
            if result.records:  # a report cannot read a folder without records
                result.save(place, overwrite=True)
            ended(name, place, result)
            if result.stopped != "interrupted":
                shutil.rmtree(saving.folder, ignore_errors=True)

        return PendingRun(setup, saving, begin, end, name)

    run_all(
        [prepare(name, setup) for name, setup in setups.items() if name not in earlier],
        choose_jobs(list(setups.values()), jobs, own_code=True),
        alone=len(setups) == 1,
    )
    return {name: results[name] for name in setups if name in results}


def _find_reusable(setups: Mapping[str, Setup], folder: Path) -> dict[str, Result]:
    """The finished results in the folder; raises FileExistsError if there are results of other settings."""
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


def remove_results(folder: Path) -> None:
    """Remove results, the configuration first, so that leftovers never look like complete results."""
    for file in (records.CONFIG, records.RECORDS, records.FINAL):
        (folder / file).unlink(missing_ok=True)
    shutil.rmtree(folder / records.CHECKPOINTS, ignore_errors=True)
