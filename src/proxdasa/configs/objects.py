"""From the plain values of a file to objects: strings become classes here, and nowhere else.

What a name accepts is read off its signature, so a new class needs nothing here. Every refusal is one line: the key,
what is wrong with it, and what is accepted.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from reprlib import repr as short
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from proxdasa import algorithms, data, metrics, mixing, networks, problems, regularizers, schedules
from proxdasa.contracts import Algorithm, Mixing, Problem, Regularizer
from proxdasa.data import Examples, Partition
from proxdasa.metrics import Metric
from proxdasa.networks import Network, Weights
from proxdasa.problems import Link, Loss, Model, models
from proxdasa.runs.stopping import Stationary
from proxdasa.schedules import Alpha, Number

ROOMS: dict[str, Sequence[Callable[..., Any]]] = {
    "algorithm": algorithms.ALL,
    "problem": problems.ALL,
    "network": networks.ALL,
    "regularizer": regularizers.ALL,
    "mixing": mixing.ALL,
    "stop": (Stationary,),
    "schedule": schedules.ALL,
    "data": data.ALL,
    "partition": data.partitions.ALL,
    "model": models.ALL,
}
"""The objects that a file can name, by kind."""

VALUES: dict[str, dict[str, Any]] = {
    "metric": {metric.name if isinstance(metric, Metric) else metric.__name__: metric for metric in metrics.ALL},
    "weights": {weights.__name__: weights for weights in networks.WEIGHTINGS},
    "link": {link.name: link for link in problems.LINKS},
    "loss": {loss.__name__: loss for loss in problems.LOSSES},
    "dtype": {"float32": torch.float32, "float64": torch.float64},
}
"""The values of parameters that a file gives by name, by kind."""


class ConfigError(ValueError):
    """A configuration that cannot be used, in one line: file, key, and what is accepted."""


def parameters(thing: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a class or function that a file may set."""
    return {name: p for name, p in inspect.signature(thing).parameters.items() if p.annotation != "torch.dtype"}


def make(thing: Callable[..., Any], table: Mapping[str, Any], key: str) -> Any:
    """The result of calling a class or function with the values of the table at a key."""
    accepted = inspect.signature(thing).parameters
    for name in table:
        if name not in accepted:
            raise ConfigError(f"{_join(key, name)}: unknown key; accepted: {', '.join(sorted(accepted)) or 'none'}")
    hints = get_type_hints(thing.__init__ if inspect.isclass(thing) else thing)
    for name, parameter in accepted.items():
        if parameter.default is inspect.Parameter.empty and name not in table:
            owner = thing.__name__ if key else "every run"
            what = _accepted(hints[name], _join(key, name))
            raise ConfigError(f"{_join(key, name)}: missing, {owner} needs it; accepted: {what}")
    # In the order of the signature, so that a problem is complained of before the network that takes its size.
    values = {name: _convert(table[name], hints[name], _join(key, name)) for name in accepted if name in table}
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
        if not isinstance(name, str) or name not in choices:
            raise ConfigError(f"{_join(key, 'name')}: there is no {kind} {short(name)}; accepted: {', '.join(choices)}")
        return make(choices[name], {k: v for k, v in table.items() if k != "name"}, key)

    return convert


def _choice(kind: str) -> Callable[[Any, str], Any]:
    """A converter for one of a few named values."""
    choices = VALUES[kind]

    def convert(value: Any, key: str) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise ConfigError(f"{key}: {short(value)} is not known; accepted: {', '.join(choices)}")
        return choices[value]

    return convert


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any, key: str) -> Number:
    if isinstance(value, list) and value and all(_is_number(v) for v in value):
        return schedules.per_trial(value)
    if _is_number(value):
        return float(value)
    raise ConfigError(f"{key}: {short(value)} is not a number; accepted: a number, or a list with one number per trial")


def _schedule(value: Any, key: str) -> Alpha:
    table = {"name": value} if isinstance(value, str) else value
    schedule: Alpha
    if isinstance(table, Mapping) and "name" in table:
        schedule = _named("schedule")(table, key)
    elif _is_number(value) or isinstance(value, list):
        _number(value, key)
        schedule = make(schedules.constant, {"value": value}, key)
    else:
        names = ", ".join(choice.__name__ for choice in schedules.ALL)
        raise ConfigError(
            f"{key}: {short(value)} is not a step size; accepted: a number, a list with one number per trial, "
            f"or a schedule by name: {names}"
        )
    return schedule


def _tensor(value: Any, key: str) -> Tensor:
    if isinstance(value, Mapping) and "sha256" in value:
        raise ConfigError(
            f"{key}: too large to be saved with the results, so only its fingerprint is there; "
            "repeat this run from Python, where the array came from; accepted: a list of numbers"
        )
    if not _all_numbers(value):
        raise ConfigError(f"{key}: {short(value)} does not fit; accepted: a list of numbers")
    try:
        return torch.tensor(value, dtype=torch.float64)
    except ValueError as error:  # rows of several lengths
        raise ConfigError(f"{key}: not an array of numbers: {error}; accepted: rows of one length") from error


def _all_numbers(value: Any) -> bool:
    return all(map(_all_numbers, value)) if isinstance(value, list) else _is_number(value)


def _metrics(value: Any, key: str) -> tuple[Metric, ...]:
    chosen: list[Metric] = []
    for entry in value if isinstance(value, list) else [value]:
        table = entry if isinstance(entry, Mapping) else {"name": entry}
        if "name" not in table:
            raise ConfigError(f"{key}: {short(entry)} needs a name; accepted: {', '.join(VALUES['metric'])}")
        metric = _choice("metric")(table["name"], key)
        rest = {k: v for k, v in table.items() if k != "name"}
        if isinstance(metric, Metric) and rest:
            raise ConfigError(f"{_join(key, next(iter(rest)))}: unknown key; accepted by {metric.name}: none")
        chosen.append(metric if isinstance(metric, Metric) else make(metric, rest, key))
    return tuple(chosen)


def _factory(value: Any, key: str) -> Model:
    """A function without parameters that makes a network, found able to make one."""
    _named("model")(value, key)
    table = {"name": value} if isinstance(value, str) else value
    chosen = {model.__name__: model for model in models.ALL}[table["name"]]
    return functools.partial(chosen, **{name: given for name, given in table.items() if name != "name"})


CONVERTERS: dict[Any, Callable[[Any, str], Any]] = {
    Algorithm: _named("algorithm"),
    Problem: _named("problem"),
    Network: _named("network"),
    Regularizer: _named("regularizer"),
    Mixing: _named("mixing"),
    Stationary: _named("stop"),
    Alpha: _schedule,
    Number: _number,
    Tensor: _tensor,
    Weights: _choice("weights"),
    Link: _choice("link"),
    torch.dtype: _choice("dtype"),
    Sequence[Metric]: _metrics,
    Examples: _named("data"),
    Partition: _named("partition"),
    Model: _factory,
    Loss: _choice("loss"),
}
"""How the value of a parameter is read, by the parameter's type."""

PLAIN: dict[Any, tuple[Callable[[Any], bool], Callable[[Any], Any], str]] = {
    bool: (lambda value: isinstance(value, bool), bool, "true or false"),
    int: (lambda value: isinstance(value, int) and not isinstance(value, bool), int, "a whole number"),
    float: (lambda value: _is_number(value) or value in ("inf", "-inf"), float, "a number"),
    str: (lambda value: isinstance(value, str), str, "a text"),
}


def _convert(value: Any, hint: Any, key: str) -> Any:
    """The value as its parameter's type wants it."""
    if hint in CONVERTERS:
        return CONVERTERS[hint](value, key)
    if hint in PLAIN:
        fits, plain, words = PLAIN[hint]
        if not fits(value):
            raise ConfigError(f"{key}: {short(value)} does not fit; accepted: {words}")
        return plain(value)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{key}: {short(value)} does not fit; accepted: {', '.join(map(repr, arguments))}")
        return value
    if origin in (Union, types.UnionType):
        return _first_that_fits(value, arguments, key)
    if origin is tuple and arguments[-1] is not Ellipsis:
        if not isinstance(value, list) or len(value) != len(arguments):
            raise ConfigError(f"{key}: {short(value)} does not fit; accepted: a list of {len(arguments)}")
        return tuple(_convert(v, h, f"{key}[{i}]") for i, (v, h) in enumerate(zip(value, arguments, strict=True)))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if not isinstance(value, list):
            _, _, words = PLAIN.get(arguments[0], (None, None, ""))
            listed = f"a list of {words.removeprefix('a ')}s" if words else "a list"
            raise ConfigError(f"{key}: {short(value)} does not fit; accepted: {listed}")
        return tuple(_convert(entry, arguments[0], f"{key}[{i}]") for i, entry in enumerate(value))
    raise ConfigError(f"{key}: cannot be set in a file")


def _first_that_fits(value: Any, hints: Sequence[Any], key: str) -> Any:
    if value is None and types.NoneType in hints:
        return None
    refusals: dict[Any, str] = {}
    for hint in hints:
        if hint is types.NoneType:
            continue
        try:
            return _convert(value, hint, key)
        except ConfigError as error:
            refusals[hint] = str(error)
    if isinstance(value, list) and Tensor in refusals:  # what is accepted nested has the better reason
        raise ConfigError(refusals[Tensor])
    told = [refusal for refusal in refusals.values() if "accepted: " in refusal]
    accepted = dict.fromkeys(refusal.rpartition("accepted: ")[2] for refusal in told)
    if len(accepted) == 1:
        raise ConfigError(told[0])
    if not accepted:  # it was the right thing, with a fault of its own
        raise ConfigError(next(iter(refusals.values())))
    raise ConfigError(f"{key}: {short(value)} does not fit; accepted: {' or '.join(accepted)}")


def _accepted(hint: Any, key: str) -> str:
    """What a parameter accepts, in the words in which it refuses nothing at all."""
    try:
        _convert(None, hint, key)
    except ConfigError as error:
        return str(error).rpartition("accepted: ")[2]
    return "anything"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
