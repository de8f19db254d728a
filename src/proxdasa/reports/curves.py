"""Curves out of records: what tables and figures are made of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxdasa import records

Array = NDArray[np.float64]

LONGEST_LABEL = 50
"""Characters that a legend has room for."""


@dataclass(frozen=True, eq=False)
class Run:
    """One results folder, as far as a report needs it."""

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

        The mean is NaN where the measure was not recorded.
        """
        groups = self._by_k(measure)
        ks, columns = list(groups), [np.array(values) for values in groups.values()]
        half = [1.96 * c.std(ddof=1) / len(c) ** 0.5 if len(c) > 1 else 0.0 for c in columns]
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
    """The runs in some results folders, labelled by what differs between them, or by their folders if that is much."""
    configs = [records.read_config(path) for path in folders]
    labels = _labels(configs)
    if not all(labels) or max(map(len, labels)) > LONGEST_LABEL:
        paths = [path.resolve() for path in folders]  # so that "." has a name
        above = os.path.commonpath([path.parent for path in paths])
        labels = [str(path.relative_to(above)) for path in paths]
    runs = []
    for path, config, label in zip(folders, configs, labels, strict=True):
        rows = records.read_rows(path)
        if not rows:
            raise ValueError(f"{path / records.RECORDS} is empty: the run ended before its first observation")
        facts = config["facts"]
        runs.append(Run(facts["title"], label, facts["agents"], config, rows, _ending(config)))
    return sorted(runs, key=lambda run: (run.title, run.agents))


def _ending(config: Mapping[str, Any]) -> str | None:
    ending, trials = config["ending"], config["trials"]
    if ending["diverged"]:
        return f"{len(ending['diverged'])} of {trials} trials diverged; the means are over what was recorded"
    if ending["stopped"]:
        return f"{ending['stopped']} after {ending['iterations']} of {config['iterations']} iterations"
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
    last = [key.removesuffix(".name").rpartition(".")[2] for key in differing]
    shown = {
        key: word if last.count(word) == 1 else key.removesuffix(".name")
        for key, word in zip(differing, last, strict=True)
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
