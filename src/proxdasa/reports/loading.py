"""Loading runs from results folders, each with a label that distinguishes it from the others."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from proxdasa.reports.curves import Run
from proxdasa.reports.foreign_folders import Contents, read
from proxdasa.reports.texts import shorten, visible
from proxdasa.runs import records

LONGEST_LABEL = 50
"""The most characters that a legend has room for."""
LONGEST_NAME = 120
"""The most characters of a method's name, or of a label that cannot be shorter."""
MOST_RUNS = 1_000
"""The most runs of a report; every setting of a sweep counts as one."""


class Recorded(Protocol):
    """What a report needs from a `Result` that is not in a folder."""

    @property
    def records(self) -> Sequence[records.Row]:
        """One row per trial and observation."""
        ...

    def full_config(self) -> Mapping[str, Any]:
        """What was run, and how it ended."""
        ...


def as_runs(results: Sequence[Recorded | str | Path] | Mapping[str, Recorded]) -> list[Run]:
    """The runs of results, by their names if it is a mapping, or of results folders; see `load_runs`."""
    named = results if isinstance(results, Mapping) else {f"result {i}": result for i, result in enumerate(results)}
    contents: dict[Path, Contents] = {}
    for name, result in named.items():
        if isinstance(result, str | Path):
            contents[Path(result)] = read(Path(result))
        elif result.records:
            contents[Path(name)] = dict(result.full_config()), list(result.records)
        else:
            raise ValueError(f"{name} has no records, so there is nothing to compare")
    if not contents:
        raise ValueError("there are no results to compare")
    return _runs(contents)


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in some results folders, sorted by method and number of agents.

    Runs of one method are labelled by the settings that differ between them, or by their folders if none or too many
    do. A sweep, whose trials differ in parameters, gives one run for each combination of parameters.

    Examples:
        >>> from pathlib import Path
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> for gamma in (0.1, 0.5):
        ...     result = proxdasa.run(proxdasa.DPSGD(gamma), problem, networks.ring(3), iterations=10)
        ...     folder = result.save(f"results/gamma-{gamma}")
        >>> runs = reports.load_runs(sorted(Path("results").iterdir()))
        >>> [(run.title, run.label) for run in runs]
        [('D-PSGD', 'gamma = 0.1'), ('D-PSGD', 'gamma = 0.5')]
    """
    return _runs({path: read(path) for path in folders})


def salvage(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs of those results folders that can be read, and a sentence on every fault that was found."""
    contents: dict[Path, Contents] = {}
    faults: list[str] = []
    for path in folders:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                contents[path] = read(path)
            except (ValueError, OSError) as error:
                faults.append(visible(str(error)))
        faults += [visible(str(warning.message)) for warning in caught]
    if not contents:
        raise ValueError("; ".join(faults) or "there are no results to report on")
    runs = _runs(contents)
    if len(runs) > MOST_RUNS:
        faults.append(f"{len(runs):,} runs are too many for a report, which shows the first {MOST_RUNS:,}")
    return runs[:MOST_RUNS], faults


def _runs(contents: Mapping[Path, Contents]) -> list[Run]:
    methods: dict[str, list[tuple[Path, _Part]]] = {}
    for path, (config, _) in contents.items():
        for part in _parts(config):
            methods.setdefault(part.config["facts"]["title"], []).append((path, part))
    above = os.path.commonpath([path.resolve().parent for path in contents])  # resolved, so that "." has a name
    runs = []
    by_trial = {path: _by_trial(rows) for path, (_, rows) in contents.items()}
    for method, parts in methods.items():
        title = shorten(method, LONGEST_NAME)
        labels = _labels([part.config for _, part in parts])
        if not all(labels) or len(set(labels)) < len(labels) or max(map(len, labels)) > LONGEST_LABEL:
            places = [visible(str(path.resolve().relative_to(above))) for path, _ in parts]
            labels = [", ".join([place, *part.values]) for place, (_, part) in zip(places, parts, strict=True)]
        for (path, part), label in zip(parts, labels, strict=True):
            mine = [row for trial in part.trials for row in by_trial[path].get(trial, ())]
            if mine:
                mine.sort(key=itemgetter("k"))
                agents, ending, short = part.config["facts"]["agents"], _ending(part), shorten(label, LONGEST_NAME)
                runs.append(Run(title, short, agents, part.config, mine, ending, path, part.trials))
    return sorted(runs, key=lambda run: (run.title, run.agents))


def _by_trial(rows: Sequence[records.Row]) -> dict[int, list[records.Row]]:
    found: dict[int, list[records.Row]] = {}
    for row in rows:
        found.setdefault(row["trial"], []).append(row)
    return found


@dataclass(frozen=True)
class _Part:
    """Trials of one results folder that share their parameters: all of them, unless it is a sweep."""

    config: Mapping[str, Any]
    """The configuration with this part's parameters in place of lists over trials."""
    trials: Sequence[int]
    values: Sequence[str] = ()
    """The settings that distinguish the part from others of its folder."""


def _parts(config: Mapping[str, Any]) -> list[_Part]:
    """The parts of a results folder, one for each combination of parameters, in the order of trials."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    varying = [key for key in ("regularizer", "metrics") if _has_weights_by_trial(config.get(key))]
    for trial in range(config["trials"]):
        algorithm = _of_trial(config["algorithm"], trial, config["trials"])
        noted = {key: config["facts"][key] for key in ("gamma",) if key in config["facts"]}
        facts = {**config["facts"], **_of_trial(noted, trial, config["trials"])}
        psi = {key: _weights_of_trial(config[key], trial) for key in varying}
        part = {**config, "algorithm": algorithm, **psi, "facts": facts}
        groups.setdefault(repr((algorithm, psi)), (part, []))[1].append(trial)
    configs = [part for part, _ in groups.values()]
    values = [[label] if label else [] for label in _labels(configs)]
    return [_Part(part, trials, own) for (part, trials), own in zip(groups.values(), values, strict=True)]


def _of_trial(value: Any, trial: int, trials: int) -> Any:
    """The parameters, also of schedules, with this trial's value in place of lists over trials."""
    if isinstance(value, Mapping):
        return {key: _of_trial(inner, trial, trials) for key, inner in value.items()}
    return value[trial] if isinstance(value, list) and len(value) == trials else value


def _has_weights_by_trial(value: Any) -> bool:
    """Whether the value contains a regularizer that differs by trial; most do not, and may have many weights."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return (isinstance(value, Mapping) and "per_trial" in value) or any(map(_has_weights_by_trial, inner))


def _weights_of_trial(value: Any, trial: int) -> Any:
    """Regularizers with this trial's weight in place of ``{"per_trial": [...]}``; plain lists mean something else."""
    if isinstance(value, list):
        return [_weights_of_trial(inner, trial) for inner in value]
    if not isinstance(value, Mapping):
        return value
    weights = value.get("per_trial")
    if isinstance(weights, list) and trial < len(weights):
        return weights[trial]
    return {key: _weights_of_trial(inner, trial) for key, inner in value.items()}


def _ending(part: _Part) -> str | None:
    ending, iterations = part.config["ending"], part.config["iterations"]
    diverged = [trial for trial in part.trials if str(trial) in ending["diverged"]]
    if diverged:
        return f"{len(diverged)} of {len(part.trials)} trials diverged; the means are over what was recorded"
    if ending["stopped"]:
        return f"{ending['stopped']} after {ending['iterations']} of {iterations} iterations"
    return None


def _labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each run the settings that differ between the runs, without the method."""
    flat = [flatten({k: v for k, v in config.items() if k not in ("facts", "ending", "note")}) for config in configs]
    for settings, config in zip(flat, configs, strict=True):
        settings.pop("algorithm.name", None)
        settings.pop("problem.agents", None)
        settings.pop("network.agents", None)
        settings["n"] = config["facts"]["agents"]
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    differing = distinguishing(keys, flat)
    stems = [key.removesuffix(".name") for key in differing]
    # A constant step size is "alpha = 0.1", not "value = 0.1", unless others are not constant.
    stems = [short if (short := stem.removesuffix(".value")) not in stems else stem for stem in stems]
    last = [stem.rpartition(".")[2] for stem in stems]
    shown = {
        key: word if last.count(word) == 1 else stem for key, stem, word in zip(differing, stems, last, strict=True)
    }
    return [
        ", ".join(f"{shown[key]} = {brief(settings[key])}" for key in differing if key in settings) for settings in flat
    ]


def distinguishing(keys: Sequence[str], flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose settings differ; of a network only the name, if that distinguishes all of them."""

    def kinds(some: Sequence[str]) -> int:
        return len({tuple(repr(settings.get(key)) for key in some) for settings in flat})

    differing = [key for key in keys if kinds([key]) > 1]
    network = [key for key in differing if key.startswith("network.")]
    if "network.name" in network and kinds(["network.name"]) == kinds(network):
        return [key for key in differing if key not in network or key == "network.name"]
    return differing


def brief(setting: Any) -> Any:
    """A setting without digits that are due to rounding: 0.15 for 0.15000000000000002."""
    return float(f"{setting:.12g}") if isinstance(setting, float) else setting


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, by keys such as "algorithm.gamma"."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
