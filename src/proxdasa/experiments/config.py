"""Configuration files: strings become objects here, and nowhere else.

A file has the arguments of `proxdasa.run` as keys. An object is a table with its name and its parameters, or
just its name::

    iterations = 2_000
    [algorithm]
    name = "ProxDASA"
    gamma = 0.01
    alpha = { name = "horizon", scale = 1.0 }     # or a number, for a constant step size

A list in place of a number is one value per trial. What a name accepts is read off its signature, so a new class needs
nothing here.
"""

from __future__ import annotations

import inspect
import json
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from proxdasa import algorithms, metrics, mixing, networks, problems, regularizers, schedules
from proxdasa.contracts import Algorithm, Mixing, Problem, Regularizer
from proxdasa.metrics import Metric
from proxdasa.networks import Network, Weights
from proxdasa.problems import Link
from proxdasa.runner import Setup
from proxdasa.schedules import Alpha, Number

ROOMS: dict[str, Sequence[Callable[..., Any]]] = {
    "algorithm": algorithms.ALL,
    "problem": problems.ALL,
    "network": networks.ALL,
    "regularizer": regularizers.ALL,
    "mixing": mixing.ALL,
    "schedule": schedules.ALL,
}
"""What can be named in a file, by kind."""

WRITTEN_BY_SAVE = ("facts", "ending")
"""Keys of a saved config.json that describe the run rather than set it."""


class ConfigError(ValueError):
    """A configuration that cannot be used, in one line: file, key, and what is accepted."""


def read(path: Path) -> Setup:
    """The run that a TOML file (or the config.json of saved results) describes."""
    try:
        text = path.read_text(encoding="utf-8")
        settings = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not a valid {path.suffix.lstrip('.') or 'TOML'} file: {error}") from error
    try:
        return build({key: value for key, value in settings.items() if key not in WRITTEN_BY_SAVE})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def build(settings: Mapping[str, Any]) -> Setup:
    """The run that a table of settings describes."""
    settings = {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    network, problem = settings.get("network"), settings.get("problem")
    if isinstance(network, str):
        network = settings["network"] = {"name": network}
    if isinstance(network, dict) and isinstance(problem, dict) and "agents" in problem:
        builder = {builder.__name__: builder for builder in networks.ALL}.get(str(network.get("name")))
        if builder and "agents" in inspect.signature(builder).parameters:
            network.setdefault("agents", problem["agents"])  # a network is as large as its problem
    setup = _call(Setup, settings, key="")
    assert isinstance(setup, Setup)
    return setup


def parameters(thing: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a class or function that a file may set."""
    return {name: p for name, p in inspect.signature(thing).parameters.items() if p.annotation != "torch.dtype"}


def _call(thing: Callable[..., Any], table: Mapping[str, Any], key: str) -> Any:
    """Call a class or function with the values of a table."""
    accepted = inspect.signature(thing).parameters
    for name in table:
        if name not in accepted:
            raise ConfigError(f"{_join(key, name)}: unknown key; accepted: {', '.join(sorted(accepted))}")
    for name, parameter in accepted.items():
        if parameter.default is inspect.Parameter.empty and name not in table:
            raise ConfigError(f"{_join(key, name)}: missing; {thing.__name__} needs it")
    hints = get_type_hints(thing.__init__ if inspect.isclass(thing) else thing)
    values = {name: _convert(value, hints[name], _join(key, name)) for name, value in table.items()}
    try:
        return thing(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{key + ': ' if key else ''}{error}") from error


def _named(kind: str) -> Callable[[Any, str], Any]:
    """A converter for objects of one room: a name, or a table with a name and parameters."""

    def convert(value: Any, key: str) -> Any:
        table = {"name": value} if isinstance(value, str) else value
        choices = {choice.__name__: choice for choice in ROOMS[kind]}
        if not isinstance(table, Mapping) or "name" not in table:
            raise ConfigError(f"{key}: needs a name; accepted: {', '.join(choices)}")
        name = table["name"]
        if name not in choices:
            raise ConfigError(f"{_join(key, 'name')}: there is no {kind} {name!r}; accepted: {', '.join(choices)}")
        return _call(choices[name], {k: v for k, v in table.items() if k != "name"}, key)

    return convert


def _choice(choices: Mapping[str, Any]) -> Callable[[Any, str], Any]:
    """A converter for one of a few named values."""

    def convert(value: Any, key: str) -> Any:
        if value not in choices:
            raise ConfigError(f"{key}: {value!r} is not known; accepted: {', '.join(choices)}")
        return choices[value]

    return convert


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any, key: str) -> Number:
    if isinstance(value, list) and value and all(_is_number(v) for v in value):
        return schedules.per_trial(value)
    if _is_number(value):
        return float(value)
    raise ConfigError(f"{key}: {value!r} is not a number; accepted: a number, or a list with one number per trial")


def _schedule(value: Any, key: str) -> Alpha:
    if _is_number(value) or isinstance(value, list):
        return schedules.constant(_number(value, key))
    schedule: Alpha = _named("schedule")(value, key)
    return schedule


def _tensor(value: Any, key: str) -> Tensor:
    try:
        return torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: not an array of numbers: {error}") from error


def _metrics(value: Any, key: str) -> tuple[Metric, ...]:
    known = {metric.name if isinstance(metric, Metric) else metric.__name__: metric for metric in metrics.ALL}
    chosen: list[Metric] = []
    for entry in value if isinstance(value, list) else [value]:
        table = {"name": entry} if isinstance(entry, str) else entry
        metric = _choice(known)(table.get("name") if isinstance(table, Mapping) else table, key)
        rest = {k: v for k, v in table.items() if k != "name"}
        chosen.append(metric if isinstance(metric, Metric) and not rest else _call(metric, rest, key))
    return tuple(chosen)


CONVERTERS: dict[Any, Callable[[Any, str], Any]] = {
    Algorithm: _named("algorithm"),
    Problem: _named("problem"),
    Network: _named("network"),
    Regularizer: _named("regularizer"),
    Mixing: _named("mixing"),
    Alpha: _schedule,
    Number: _number,
    Tensor: _tensor,
    Weights: _choice({weights.__name__: weights for weights in networks.WEIGHTINGS}),
    Link: _choice({link.name: link for link in problems.LINKS}),
    torch.dtype: _choice({"float32": torch.float32, "float64": torch.float64}),
    Sequence[Metric]: _metrics,
}
"""How the value of a parameter is read, by the parameter's type."""

PLAIN: dict[Any, tuple[Callable[[Any], bool], Callable[[Any], Any], str]] = {
    bool: (lambda value: isinstance(value, bool), bool, "true or false"),
    int: (lambda value: isinstance(value, int) and not isinstance(value, bool), int, "a whole number"),
    float: (_is_number, float, "a number"),
    str: (lambda value: isinstance(value, str), str, "a text"),
}


def _convert(value: Any, hint: Any, key: str) -> Any:
    """The value as its parameter's type wants it."""
    if hint in CONVERTERS:
        return CONVERTERS[hint](value, key)
    if hint in PLAIN:
        fits, make, words = PLAIN[hint]
        if not fits(value):
            raise ConfigError(f"{key}: {value!r} does not fit; accepted: {words}")
        return make(value)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _choice({argument: argument for argument in arguments})(value, key)
    if origin in (Union, types.UnionType):
        return _first_that_fits(value, arguments, key)
    if origin is tuple and arguments[-1] is not Ellipsis:
        if not isinstance(value, list) or len(value) != len(arguments):
            raise ConfigError(f"{key}: {value!r} does not fit; accepted: a list of {len(arguments)}")
        return tuple(_convert(v, h, f"{key}[{i}]") for i, (v, h) in enumerate(zip(value, arguments, strict=True)))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if not isinstance(value, list):
            raise ConfigError(f"{key}: {value!r} does not fit; accepted: a list")
        return tuple(_convert(entry, arguments[0], f"{key}[{i}]") for i, entry in enumerate(value))
    raise ConfigError(f"{key}: cannot be set in a file")


def _first_that_fits(value: Any, hints: Sequence[Any], key: str) -> Any:
    refusals: list[str] = []
    for hint in hints:
        if hint is types.NoneType:
            continue
        try:
            return _convert(value, hint, key)
        except ConfigError as error:
            refusals.append(str(error))
    accepted = dict.fromkeys(refusal.rpartition("accepted: ")[2] for refusal in refusals)
    if len(accepted) == 1 or isinstance(value, Mapping):
        raise ConfigError(refusals[0])
    raise ConfigError(f"{key}: {value!r} does not fit; accepted: {' or '.join(accepted)}")


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
