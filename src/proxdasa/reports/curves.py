"""Curves out of records: what tables and figures are made of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from proxdasa import records

Array = NDArray[np.float64]

LONGEST_LABEL = 50
"""Characters that a legend has room for."""


@dataclass(frozen=True, eq=False)
class Run:
    """One results folder, or the trials of one that share their parameters, as far as a report needs it."""

    title: str
    """The method."""
    label: str
    """What tells the run from its companions of the same method."""
    agents: int
    config: Mapping[str, Any]
    rows: Sequence[records.Row]
    ending: str | None = None
    """How the run ended if not as planned, in words."""

    def curve(self, measure: str) -> tuple[Array, Array, Array]:
        """Iterations k, mean over trials, and half the width of its 95% confidence interval.

        The interval is Student's: mean ± t(0.975, T − 1) s/√T over T trials. The mean is NaN where the measure was not
        recorded.
        """
        groups = self._by_k(measure)
        ks, columns = list(groups), [np.array(values) for values in groups.values()]
        half = [stdtrit(len(c) - 1, 0.975) * c.std(ddof=1) / len(c) ** 0.5 if len(c) > 1 else 0.0 for c in columns]
        return np.array(ks, dtype=float), np.array([c.mean() for c in columns]), np.array(half)

    def lowest(self, measure: str) -> Array:
        """The smallest value over trials at each observation."""
        groups = self._by_k(measure)
        return np.array([min(values) for values in groups.values()])

    def final(self, measure: str) -> tuple[float, float]:
        """The mean over trials at the end, and half the width of its confidence interval."""
        _, mean, half = self.curve(measure)
        return float(mean[-1]), float(half[-1])

    def _by_k(self, measure: str) -> dict[int, list[float]]:
        groups: dict[int, list[float]] = {}
        for row in self.rows:
            groups.setdefault(row["k"], []).append(row.get(measure, np.nan))
        return groups

    def first_below(self, measure: str, target: float) -> list[float]:
        """For each trial the first observed iteration at which the measure is at most the target (NaN if never)."""
        first: dict[int, float] = {}
        for row in self.rows:
            first.setdefault(row["trial"], np.nan)
            if np.isnan(first[row["trial"]]) and row.get(measure, np.nan) <= target:
                first[row["trial"]] = row["k"]
        return list(first.values())


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in some results folders, labelled by what differs between them, or by their folders if that is much.

    A sweep, whose trials differ in parameters, is one run for each combination of them.
    """
    parts = [(path, part) for path in folders for part in _parts(records.read_config(path))]
    labels = _labels([part.config for _, part in parts])
    if not all(labels) or max(map(len, labels)) > LONGEST_LABEL:
        above = os.path.commonpath([path.resolve().parent for path in folders])  # resolved, so that "." has a name
        labels = [", ".join([str(path.resolve().relative_to(above)), *part.values]) for path, part in parts]
    rows = {path: records.read_rows(path) for path in folders}
    for path in folders:
        if not rows[path]:
            raise ValueError(f"{path / records.RECORDS} is empty: the run ended before its first observation")
    runs = []
    for (path, part), label in zip(parts, labels, strict=True):
        facts, mine = part.config["facts"], [row for row in rows[path] if row["trial"] in part.trials]
        if mine:
            runs.append(Run(facts["title"], label, facts["agents"], part.config, mine, _ending(part)))
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
    flat = [_flatten({k: v for k, v in config.items() if k not in ("facts", "ending")}) for config in configs]
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


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
