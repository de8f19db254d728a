"""From the plain values of a file to objects: strings become classes here, and nowhere else.

The keys that an object accepts are read off the signature of its class or function, so a new class needs no change
here. Every refusal is one line: the key with its path, what is wrong with it, and what is accepted.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from reprlib import repr as short
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from proxdasa import algorithms, conditions, data, metrics, mixing, networks, problems, regularizers, schedules
from proxdasa.checks import is_whole
from proxdasa.compressors import ALL as COMPRESSORS
from proxdasa.conditions import Condition
from proxdasa.configs import own_code
from proxdasa.configs.settings_file import ConfigError
from proxdasa.contracts import Algorithm, Compressor, Mixing, Problem, Regularizer
from proxdasa.data import Examples, Partition
from proxdasa.metrics import Metric
from proxdasa.networks import Network, Weights
from proxdasa.problems import Link, Loss, Model, models
from proxdasa.regularizers.penalty_weights import PerTrial
from proxdasa.runs.stopping import Stationary
from proxdasa.schedules import Alpha, Number

ROOMS: dict[str, Sequence[Callable[..., Any]]] = {
    "algorithm": algorithms.ALL,
    "problem": problems.ALL,
    "network": networks.ALL,
    "regularizer": regularizers.ALL,
    "mixing": mixing.ALL,
    "compressor": COMPRESSORS,
    "stop": (Stationary,),
    "condition": conditions.ALL,
    "schedule": schedules.ALL,
    "data": data.ALL,
    "partition": data.partitions.ALL,
    "model": models.ALL,
}
"""The objects that a file can name, by kind."""

NAMED: dict[str, Sequence[Any]] = {
    "metric": metrics.ALL,
    "weights": networks.WEIGHTINGS,
    "link": problems.LINKS,
    "loss": problems.LOSSES,
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}

VALUES: dict[str, dict[str, Any]] = {
    kind: {getattr(value, "name", None) or value.__name__: value for value in values} for kind, values in NAMED.items()
} | {"dtype": DTYPES}
"""The values of parameters that a file gives by name, by kind."""


CLASSES = ("algorithm", "problem", "regularizer", "mixing", "compressor", "partition", "condition")
OWN: dict[str, Callable[[str], Callable[..., Any]]] = {
    **dict.fromkeys(CLASSES, own_code.load_class),
    "model": own_code.load,
    "data": own_code.load_data,
}
"""Functions that load the user's own objects, for the kinds that a file can name as MODULE:NAME."""


class MisfitError(ConfigError):
    """A value of the wrong kind for its key; where several kinds are accepted, the next one is tried."""

    def __init__(self, key: str, value: Any, accepted: str) -> None:
        super().__init__(f"{key} must be {accepted}; got {short(value)}")
        self.key = key


def make(thing: Callable[..., Any], table: Mapping[str, Any], key: str) -> Any:
    """The result of calling a class or function with the values of the table at a key."""
    accepted = inspect.signature(thing).parameters
    for name in table:
        if name not in accepted:
            raise ConfigError(f"{_join(key, name)}: unknown key; accepted: {', '.join(sorted(accepted)) or 'none'}")
    # The fields of a dataclass are resolved in the module of the class that has them, which may be a base.
    plain_class = inspect.isclass(thing) and not dataclasses.is_dataclass(thing)
    hints = get_type_hints(thing.__init__ if plain_class else thing)
    for name, parameter in accepted.items():
        if parameter.default is inspect.Parameter.empty and name not in table:
            owner = thing.__name__ if key else "every run"
            what = _accepted_by(hints.get(name, UNKNOWN))
            raise ConfigError(f"{_join(key, name)} is missing; {owner} needs it{': ' * bool(what)}{what}")
    # In the order of the signature: a fault of the problem is reported before one of the network that takes its size.
    # A parameter of the user's own class may have no annotation; it gets what the file has.
    values = {
        name: _convert(table[name], hints[name], _join(key, name)) if name in hints else table[name]
        for name in accepted
        if name in table
    }
    try:
        return thing(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{key + ': ' if key else ''}{error}") from error


class Kind(NamedTuple):
    """How the values of one type are read from a file."""

    convert: Callable[[Any, str], Any]
    """Function of a value and its key; raises `MisfitError` for a value of another kind."""
    accepted: str
    """The end of the sentence "KEY must be …"."""


def look_up(kind: str, value: Any, key: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The class or function that a name, or a table with a name, stands for, and the rest of the table."""
    choices = {choice.__name__: choice for choice in ROOMS[kind]}
    names = ", ".join(choices)
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        raise MisfitError(key, value, f"one of {names}")
    if "name" not in table:
        raise ConfigError(f"{_join(key, 'name')} is missing; accepted: {names}")
    name, rest = table["name"], {k: v for k, v in table.items() if k != "name"}
    if own_code.is_own(name) and kind in OWN:
        return _load_own(OWN[kind], name, key), rest
    if not isinstance(name, str) or name not in choices:
        own = ", or one of your own as MODULE:NAME" * (kind in OWN)
        raise ConfigError(f"{_join(key, 'name')}: there is no {kind} {short(name)}; accepted: {names}{own}")
    return choices[name], rest


def _load_own(load: Callable[[str], Any], name: str, key: str) -> Any:
    try:
        return load(name)
    except own_code.OwnCodeError as error:
        raise ConfigError(f"{key}: {error}") from error


def _object(kind: str) -> Kind:
    """Objects of one room: a name, or a table with a name and parameters."""
    names = ", ".join(choice.__name__ for choice in ROOMS[kind])
    return Kind(lambda value, key: make(*look_up(kind, value, key), key), f"one of {names}")


def _simple_kind(fits: Callable[[Any], bool], convert: Callable[[Any], Any], accepted: str) -> Kind:
    """Values that need no more than a check and a conversion."""

    def read(value: Any, key: str) -> Any:
        if not fits(value):
            raise MisfitError(key, value, accepted)
        return convert(value)

    return Kind(read, accepted)


def _choice(kind: str) -> Kind:
    """One of a few values that have names."""
    choices = VALUES[kind]
    return _simple_kind(
        lambda value: isinstance(value, str) and value in choices, choices.__getitem__, f"one of {', '.join(choices)}"
    )


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a float can hold; a whole number in a file may have any number of digits."""
    return isinstance(value, float) or (is_whole(value) and abs(value) <= sys.float_info.max)


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


def _all_numbers(value: Any) -> bool:
    return all(map(_all_numbers, value)) if isinstance(value, list) else _is_number(value)


UNKNOWN = object()
NUMBER = "a number, or a list with one number per trial"
SCHEDULE = "a number, a list with one number per trial, or a schedule: " + ", ".join(s.__name__ for s in schedules.ALL)
NUMBERS = "a list of numbers"
PER_TRIAL = "{ per_trial = [...] } with one number per trial"


def _schedule(value: Any, key: str) -> Alpha:
    schedule: Alpha
    if own_code.is_own(value):
        schedule = _load_own(own_code.load, value, key)
    elif isinstance(value, str | Mapping):
        schedule = make(*look_up("schedule", value, key), key)
    elif _is_number(value) or _is_list_of_numbers(value):
        schedule = make(schedules.constant, {"value": value}, key)
    else:
        raise MisfitError(key, value, SCHEDULE)
    return schedule


def _tensor(value: Any, key: str) -> Tensor:
    if isinstance(value, Mapping) and "sha256" in value:
        raise ConfigError(
            f"{key} was too large to be saved with the results, which have only its fingerprint; "
            "repeat this run from Python, where the array came from"
        )
    if not _all_numbers(value):
        raise MisfitError(key, value, NUMBERS)
    try:
        return torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError) as error:  # a list among numbers, or lists of different lengths
        raise ConfigError(f"{key} must be an array whose rows have the same length: {error}") from error


def _metrics(value: Any, key: str) -> tuple[Metric, ...]:
    chosen: list[Metric] = []
    for entry in value if isinstance(value, list) else [value]:
        table = entry if isinstance(entry, Mapping) else {"name": entry}
        if "name" not in table:
            raise ConfigError(f"{key}: {short(entry)} needs a name; accepted: {', '.join(VALUES['metric'])}")
        metric = METRIC.convert(table["name"], key)
        rest = {k: v for k, v in table.items() if k != "name"}
        if isinstance(metric, Metric) and rest:
            raise ConfigError(f"{_join(key, next(iter(rest)))}: unknown key; accepted by {metric.name}: none")
        chosen.append(metric if isinstance(metric, Metric) else make(metric, rest, key))
    return tuple(chosen)


def _factory(value: Any, key: str) -> Model:
    """A function without parameters that makes a network."""
    model, arguments = look_up("model", value, key)
    make(model, arguments, key)  # so that arguments which do not fit are refused now
    return functools.partial(model, **arguments)


def _or_own(kind: Kind) -> Kind:
    """Values that have names, or a function of the user's own."""

    def read(value: Any, key: str) -> Any:
        return _load_own(own_code.load, value, key) if own_code.is_own(value) else kind.convert(value, key)

    return Kind(read, kind.accepted)


METRIC = _choice("metric")

KINDS: dict[Any, Kind] = {
    bool: _simple_kind(lambda value: isinstance(value, bool), bool, "true or false"),
    int: _simple_kind(is_whole, int, "a whole number"),
    float: _simple_kind(lambda value: _is_number(value) or value in ("inf", "-inf"), float, "a number"),
    str: _simple_kind(lambda value: isinstance(value, str), str, "a text"),
    Number: _simple_kind(
        lambda value: _is_number(value) or _is_list_of_numbers(value),
        lambda value: schedules.per_trial(value) if isinstance(value, list) else float(value),
        NUMBER,
    ),
    PerTrial: _simple_kind(
        lambda value: isinstance(value, Mapping) and [*value] == ["per_trial"] and _is_list_of_numbers(*value.values()),
        lambda value: PerTrial(tuple(map(float, value["per_trial"]))),
        PER_TRIAL,
    ),
    Alpha: Kind(_schedule, SCHEDULE),
    Tensor: Kind(_tensor, NUMBERS),
    Algorithm: _object("algorithm"),
    Problem: _object("problem"),
    Network: _object("network"),
    Regularizer: _object("regularizer"),
    Mixing: _object("mixing"),
    Compressor: _object("compressor"),
    Stationary: _object("stop"),
    Condition: _object("condition"),
    Examples: _object("data"),
    Partition: _object("partition"),
    Model: _object("model")._replace(convert=_factory),
    Weights: _choice("weights"),
    Link: _choice("link"),
    Loss: _or_own(_choice("loss")),
    torch.dtype: _choice("dtype"),
    Sequence[Metric]: METRIC._replace(convert=_metrics),
}
"""How the value of a parameter is read, by the parameter's type; lists, pairs and alternatives of these follow."""


def _convert(value: Any, hint: Any, key: str) -> Any:
    """The value as the type of its parameter."""
    if hint in KINDS:
        return KINDS[hint].convert(value, key)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_to_any(value, hint, key)
    if origin is Literal:
        if value not in arguments:
            raise MisfitError(key, value, _accepted_by(hint))
        return value
    if not _accepted_by(hint):
        raise ConfigError(f"{key} cannot be set in a file")
    if not isinstance(value, list) or (_is_tuple(hint) and len(value) != len(arguments)):
        raise MisfitError(key, value, _accepted_by(hint))
    hints = arguments if _is_tuple(hint) else arguments[:1] * len(value)
    return tuple(_convert(v, h, f"{key}[{i}]") for i, (v, h) in enumerate(zip(value, hints, strict=True)))


def _convert_to_any(value: Any, union: Any, key: str) -> Any:
    """The value as the first type of a union that it fits."""
    if value is None and types.NoneType in get_args(union):
        return None
    faults: list[ConfigError] = []
    for hint in filter(_accepted_by, get_args(union)):
        try:
            return _convert(value, hint, key)
        except ConfigError as error:
            # A value of the right kind with a fault further down, at another key, explains more than a misfit.
            if not isinstance(error, MisfitError) or error.key != key:
                faults.append(error)
    raise faults[0] if faults else MisfitError(key, value, _accepted_by(union))


def _accepted_by(hint: Any) -> str:
    """What a parameter of this type accepts; empty for None and for types that a file cannot give."""
    if hint in KINDS:
        return KINDS[hint].accepted
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(filter(None, map(_accepted_by, arguments))))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if _is_tuple(hint):
        return f"a list of {len(arguments)} values"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        plain = {int: "a list of whole numbers", float: NUMBERS, str: "a list of texts"}
        return plain.get(arguments[0], "a list")
    return ""


def _is_tuple(hint: Any) -> bool:
    """Whether a type is a tuple with a given number of entries."""
    return get_origin(hint) is tuple and get_args(hint)[-1] is not Ellipsis


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
