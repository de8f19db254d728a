"""Runs out of results folders, each with a label that tells it from the others."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxdasa import records
from proxdasa.reports.curves import Run

LONGEST_LABEL = 50
"""Characters that a legend has room for."""


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in some results folders, by method and size.

    Those of one method are labelled by what differs between them, or by their folders if that is much or nothing. A
    sweep, whose trials differ in parameters, is one run for each combination of them.
    """
    return _runs({path: _read(path) for path in folders})


def salvage(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs of those results folders that can be read, and what is wrong with the others or with a part of them."""
    contents: dict[Path, _Contents] = {}
    faults: list[str] = []
    for path in folders:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                contents[path] = _read(path)
            except (ValueError, OSError) as error:
                faults.append(str(error))
        faults += [str(warning.message) for warning in told]
    if not contents:
        raise ValueError("; ".join(faults) or "there are no results to report on")
    return _runs(contents), faults


_Contents = tuple[dict[str, Any], list[records.Row]]
"""The configuration and the records of a results folder."""


def _read(path: Path) -> _Contents:
    """What a results folder holds, found to have what a report needs."""
    config, rows = records.read_config(path), records.read_rows(path)
    if not rows:
        raise ValueError(f"{path / records.RECORDS} is empty: the run ended before its first observation")
    for table, keys in {"facts": ("title", "agents"), "ending": ("iterations", "stopped", "diverged")}.items():
        _check(path, config[table], keys, f" in {table}")
    _check(path, config, ("trials", "iterations", "algorithm"))
    for number, row in enumerate(rows, start=1):
        if not {"trial", "k"} <= row.keys():
            raise ValueError(f"{path / records.RECORDS}, line {number}: a record needs trial and k")
    return config, rows


def _check(path: Path, table: Any, keys: Sequence[str], where: str = "") -> None:
    missing = set(keys) - set(table if isinstance(table, Mapping) else ())
    if missing:
        words = " and no ".join(sorted(missing))
        raise ValueError(f"{path / records.CONFIG}: not the configuration of saved results: it has no {words}{where}")


def _runs(contents: Mapping[Path, _Contents]) -> list[Run]:
    methods: dict[str, list[tuple[Path, _Part]]] = {}
    for path, (config, _) in contents.items():
        for part in _parts(config):
            methods.setdefault(part.config["facts"]["title"], []).append((path, part))
    above = os.path.commonpath([path.resolve().parent for path in contents])  # resolved, so that "." has a name
    runs = []
    for title, parts in methods.items():
        labels = _labels([part.config for _, part in parts])
        if not all(labels) or len(set(labels)) < len(labels) or max(map(len, labels)) > LONGEST_LABEL:
            labels = [", ".join([str(path.resolve().relative_to(above)), *part.values]) for path, part in parts]
        for (path, part), label in zip(parts, labels, strict=True):
            mine = [row for row in contents[path][1] if row["trial"] in part.trials]
            if mine:
                agents, ending = part.config["facts"]["agents"], _ending(part)
                runs.append(Run(title, label, agents, part.config, mine, ending, path, part.trials))
    return sorted(runs, key=lambda run: (run.title, run.agents))


@dataclass(frozen=True)
class _Part:
    """Trials of one results folder that share their parameters: all of them, unless it is a sweep."""

    config: Mapping[str, Any]
    """The configuration with this part's parameters in place of one for each trial."""
    trials: Sequence[int]
    values: Sequence[str] = ()
    """What tells the part from the others of its folder, in words."""


def _parts(config: Mapping[str, Any]) -> list[_Part]:
    """A results folder by combination of the method's parameters, in the order of trials."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for trial in range(config["trials"]):
        algorithm = _of_trial(config["algorithm"], trial, config["trials"])
        groups.setdefault(repr(algorithm), ({**config, "algorithm": algorithm}, []))[1].append(trial)
    configs = [part for part, _ in groups.values()]
    values = [[label] if label else [] for label in _labels(configs)]
    return [_Part(part, trials, own) for (part, trials), own in zip(groups.values(), values, strict=True)]


def _of_trial(value: Any, trial: int, trials: int) -> Any:
    """Parameters, and those of schedules among them, with this trial's value where there is one for each."""
    if isinstance(value, Mapping):
        return {key: _of_trial(inner, trial, trials) for key, inner in value.items()}
    return value[trial] if isinstance(value, list) and len(value) == trials else value


def _ending(part: _Part) -> str | None:
    ending, iterations = part.config["ending"], part.config["iterations"]
    diverged = [trial for trial in part.trials if str(trial) in ending["diverged"]]
    if diverged:
        return f"{len(diverged)} of {len(part.trials)} trials diverged; the means are over what was recorded"
    if ending["stopped"]:
        return f"{ending['stopped']} after {ending['iterations']} of {iterations} iterations"
    return None


def _labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each run its settings that others do not share; the method is named elsewhere."""
    flat = [flatten({k: v for k, v in config.items() if k not in ("facts", "ending")}) for config in configs]
    for settings, config in zip(flat, configs, strict=True):
        settings.pop("algorithm.name", None)
        settings.pop("problem.agents", None)
        settings.pop("network.agents", None)
        settings["n"] = config["facts"]["agents"]
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    differing = [key for key in keys if len({repr(settings.get(key)) for settings in flat}) > 1]
    stems = [key.removesuffix(".name") for key in differing]
    # A constant step size is "alpha = 0.1", not "value = 0.1", unless others are not constant.
    stems = [short if (short := stem.removesuffix(".value")) not in stems else stem for stem in stems]
    last = [stem.rpartition(".")[2] for stem in stems]
    shown = {
        key: word if last.count(word) == 1 else stem for key, stem, word in zip(differing, stems, last, strict=True)
    }
    return [", ".join(f"{shown[key]} = {settings[key]}" for key in differing if key in settings) for settings in flat]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, by keys such as "algorithm.gamma"."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
