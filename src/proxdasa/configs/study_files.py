"""The file of a study: that of a run, with several methods and networks, a budget, and how to tune.

The keys are those of a run, but ``methods`` and ``networks`` are lists, ``gradients``, ``rounds`` or ``vectors`` takes
the place of ``iterations``, and a table ``[tuning]`` says which settings each method may try::

    gradients = 2_000
    networks = ["ring", "complete"]
    methods = [{ name = "ProxDASA" }, { name = "DeepStormV2", beta = 0.5 }]
    [tuning]
    gamma = [0.01, 0.03, 0.1]
    [tuning.DeepStormV2]
    alpha = [0.01, 0.03, 0.1]
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from proxdasa.checks import check_count
from proxdasa.configs.network_expressions import graph
from proxdasa.configs.objects import KINDS, look_up, make
from proxdasa.configs.reading import build, make_one_step, with_size
from proxdasa.configs.settings_file import ConfigError, load
from proxdasa.contracts import Algorithm
from proxdasa.networks import Network
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.setup import Setup

Values = list[float] | tuple[float, float]
"""What a search tries for a parameter: the values of a list, or draws from the range of a pair."""

INSTEAD = {"algorithm": "methods", "network": "networks", "iterations": "gradients, rounds or vectors"}
"""Keys of a run, and what a study has in their place."""
BUDGETS = ("gradients", "rounds", "vectors")
"""The kinds of budget that a study may give all its runs: gradients of an agent, rounds, or vectors to a neighbour."""


@dataclass(frozen=True)
class TuningTable:
    """The keys of ``[tuning]`` that are not parameters of methods."""

    settings: int | None = None
    """How many settings each method tries; as many as the lists give by default."""
    measure: str = "objective"
    seed: int | None = None
    """By default the seed of the runs plus one."""
    trials: int | None = None
    gradients: int | None = None
    rounds: int | None = None
    vectors: int | None = None


@dataclass(frozen=True, eq=False)
class StudyFile:
    """A study as its file describes it: every method on every network, and what each may try."""

    setups: Mapping[tuple[str, str], Setup]
    """By method and network. Their numbers of iterations are placeholders."""
    axis: str
    """The cost that is equal for all methods: one of `BUDGETS`."""
    budget: int
    """How much of it an agent may spend in a run."""
    search_budget: int
    """How much of it an agent may spend in the search for each setting that is tried."""
    observe_every: int | Literal["auto"] | None
    tuning: TuningTable
    ranges: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)
    """For each method the values or the range of each parameter."""


def read_study(path: Path, device: str | None = None) -> StudyFile:
    """The study that a TOML file describes, after one trial step of every method on every network.

    ``device`` takes the place of the file's.
    """
    settings = {**load(path), **({"device": device} if device else {})}
    try:
        with flushed_denormals():  # before PyTorch starts its threads, which inherit it
            return _build_study(settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


def _build_study(settings: Mapping[str, Any]) -> StudyFile:
    for key, instead in INSTEAD.items():
        if key in settings:
            raise ConfigError(f"{key}: a study has {instead} in its place; proxdasa run is for a single run")
    given = {key: settings[key] for key in ("networks", "methods", "tuning", *BUDGETS) if key in settings}
    common = {key: value for key, value in settings.items() if key not in given}
    tuning, ranges = _read_tuning(given.get("tuning"), _names(_list(given, "methods")))
    methods = _read_methods(given["methods"], ranges)
    networks = _read_networks(_list(given, "networks"), settings.get("problem"))
    axis, budget, search_budget = _read_budgets(given, tuning)
    first = {"algorithm": next(iter(methods.values()))[0], "network": next(iter(networks.values()))[0]}
    base = build({**common, **first, "iterations": 1}, try_step=False)
    tuning = dataclasses.replace(
        tuning,
        seed=base.seed + 1 if tuning.seed is None else tuning.seed,
        trials=tuning.trials or base.trials,
    )
    if tuning.seed == base.seed:
        raise ConfigError(
            f"tuning.seed: the runs have the seed {base.seed} too, so they would see the samples that chose their "
            "settings; give another seed, or leave it out"
        )
    setups = {}
    for method, (_, algorithm) in methods.items():
        for place, (_, network) in networks.items():
            try:
                setup = dataclasses.replace(base, algorithm=algorithm, network=network)
                make_one_step(setup)
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{method} on {network.label}: {error}") from error
            setups[method, place] = setup
    return StudyFile(setups, axis, budget, search_budget, common.get("observe_every"), tuning, ranges)


def _read_budgets(given: Mapping[str, Any], tuning: TuningTable) -> tuple[str, int, int]:
    """The kind of budget, how much of it a run may spend, and how much the search for a setting may."""
    axes = [axis for axis in BUDGETS if axis in given]
    if not axes:
        raise ConfigError(
            "gradients is missing; a study needs a budget: the sample gradients that an agent may evaluate in a run "
            "or, in its place, rounds or vectors"
        )
    if len(axes) > 1:
        raise ConfigError(f"{axes[1]}: a study has one budget, and this one has {axes[0]} already; make two studies")
    (axis,) = axes
    if other := [each for each in BUDGETS if each != axis and getattr(tuning, each) is not None]:
        raise ConfigError(f"tuning.{other[0]}: the budget of this study is in {axis}; give tuning.{axis}, or none")
    budget: int = KINDS[int].convert(given[axis], axis)
    _positive(budget, axis)
    return axis, budget, getattr(tuning, axis) or budget


def _list(given: Mapping[str, Any], key: str) -> list[Any]:
    found = given.get(key)
    if not isinstance(found, list) or not found:
        raise ConfigError(
            f"{key} must be a list with at least one entry; a study compares every method on every network"
        )
    return found


def _names(methods: list[Any]) -> list[str]:
    """The names of the methods, by which ``[tuning]`` has tables; those of the user's own without their module."""
    tables = [{"name": method} if isinstance(method, str) else method for method in methods]
    return [str(table.get("name")).rpartition(":")[2] if isinstance(table, Mapping) else "" for table in tables]


def _read_methods(
    given: list[Any], ranges: Mapping[str, Mapping[str, Values]]
) -> dict[str, tuple[Mapping[str, Any], Algorithm]]:
    """The methods by name, each as a table and as an object; a parameter that is searched need not be given."""
    methods: dict[str, tuple[Mapping[str, Any], Algorithm]] = {}
    for i, (entry, name) in enumerate(zip(given, _names(given), strict=True)):
        key = f"methods[{i}]"
        thing, own = look_up("algorithm", entry, key)
        needed = [p.name for p in inspect.signature(thing).parameters.values() if p.default is p.empty]
        searched = {parameter: values[0] for parameter, values in ranges[name].items() if parameter in needed}
        table = {"name": entry if isinstance(entry, str) else entry["name"], **searched, **own}
        if name in methods:
            raise ConfigError(f"{key}: {name} is listed twice; a study has one entry for each method")
        methods[name] = table, KINDS[Algorithm].convert(table, key)
    return methods


def _read_networks(given: list[Any], problem: Any) -> dict[str, tuple[Mapping[str, Any], Network]]:
    """The networks by the names of their folders; a text is a name, a call such as ``grid(2, 4)``, or a file."""
    agents = problem.get("agents") if isinstance(problem, Mapping) else None
    networks: dict[str, tuple[Mapping[str, Any], Network]] = {}
    for j, entry in enumerate(given):
        key = f"networks[{j}]"
        try:
            table = graph(entry, agents).recipe if isinstance(entry, str) else with_size(entry, problem)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{key}: {error}") from error
        network: Network = KINDS[Network].convert(table, key)
        place = re.sub(r"\W+", "-", network.label).strip("-")
        if place in networks:
            raise ConfigError(f"{key}: {network.label} is listed twice; a study has one entry for each network")
        networks[place] = table, network
    return networks


def _read_tuning(table: Any, methods: list[str]) -> tuple[TuningTable, dict[str, dict[str, Values]]]:
    """The table ``[tuning]``, and for each method what it tries: its own table, or else what all have in common."""
    if not isinstance(table, Mapping):
        raise ConfigError("tuning must be a table with values to try, such as gamma = [0.01, 0.03, 0.1]")
    keys = [entry.name for entry in dataclasses.fields(TuningTable)]
    tuning: TuningTable = make(TuningTable, {key: table[key] for key in keys if key in table}, "tuning")
    for key in ("settings", "trials", *BUDGETS):
        if (count := getattr(tuning, key)) is not None:
            _positive(count, f"tuning.{key}")
    rest = {key: value for key, value in table.items() if key not in keys}
    own = {name: rest.pop(name) for name in methods if name in rest}
    common = _read_ranges(rest, "tuning")
    ranges = {name: _read_ranges(own[name], f"tuning.{name}") if name in own else common for name in methods}
    if bare := [name for name in methods if not ranges[name]]:
        raise ConfigError(f"tuning: nothing to try for {bare[0]}; add values such as gamma = [0.01, 0.03, 0.1]")
    return tuning, ranges


def _read_ranges(table: Any, key: str) -> dict[str, Values]:
    """The parameters below a key; those of a schedule have a dot in their names, which TOML reads as a table."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{key} must be a table of parameters and their values")
    ranges: dict[str, Values] = {}
    for name, value in table.items():
        place = f"{key}.{name}"
        if isinstance(value, Mapping):
            ranges |= {f"{name}.{inner}": values for inner, values in _read_ranges(value, place).items()}
        else:
            ranges[name] = _read_values(value, place)
        if name.partition(".")[0] == "regularizer":
            raise ConfigError(f"{place}: all methods of a study solve the same problem, so Ψ has one weight; see tune")
    return ranges


def _read_values(value: Any, key: str) -> Values:
    if isinstance(value, str):
        ends = value.split("..")
        try:
            low, high = map(float, ends)
        except ValueError:
            raise ConfigError(f'{key}: a range is written as "0.001..1"; got {value!r}') from None
        return low, high
    if not isinstance(value, list) or not value:
        raise ConfigError(f'{key} must be a list of numbers, or a range such as "0.001..1"; got {value!r}')
    return [KINDS[float].convert(number, f"{key}[{i}]") for i, number in enumerate(value)]


def _positive(number: int, key: str) -> None:
    try:
        check_count(number, key)
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error
