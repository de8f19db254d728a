"""Recipes: how a network was made, recorded in plain values.

``ring(20)`` has the recipe ``{"name": "ring", "agents": 20}``; calling the builder of that name with the rest
gives the same network. What is not a plain value, a graph or a matrix, is represented by its size and a
fingerprint.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeGuard

import numpy as np
from scipy.sparse import csr_array

from proxdasa.checks import InvalidArgumentError, check_number, check_whole, invalid
from proxdasa.networks.matrix_checks import check_matrix, check_weights
from proxdasa.networks.network import Network, count_of
from proxdasa.networks.weights import Weights

P = ParamSpec("P")


def builder(weigh: Callable[P, csr_array | tuple[csr_array, ...]]) -> Callable[P, Network]:
    """Turn a function that returns W, or one for each round, into a builder of networks with the same parameters."""
    name, signature = weigh.__name__, inspect.signature(weigh)

    @functools.wraps(weigh)
    def build(*args: P.args, **kwargs: P.kwargs) -> Network:
        try:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for key, parameter in signature.parameters.items():
                bound.arguments[key] = _convert(key, bound.arguments[key], parameter.annotation)
            made = weigh(*bound.args, **bound.kwargs)
            rounds = made if isinstance(made, tuple) and len(made) > 1 else ()  # a single one does not change
            W = csr_array(sum(made[1:], start=made[0]) / len(made)) if isinstance(made, tuple) else made
            recipe = {"name": name, **{key: _plain(value, W, rounds) for key, value in bound.arguments.items()}}
            return Network(W, _label(recipe, signature), recipe, rounds)
        except InvalidArgumentError as error:  # first: it is a TypeError and a ValueError
            raise InvalidArgumentError(f"{name}: {error}") from error
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    # Code that reads the signature, such as the reader of config files, should see the type that is really returned.
    build.__annotations__ = {**weigh.__annotations__, "return": Network}
    build.__signature__ = signature.replace(return_annotation=Network)  # type: ignore[attr-defined]
    return build


def _convert(key: str, value: Any, annotation: Any) -> Any:
    """Numbers of any library as Python's own, so that recipes can be written as JSON."""
    if annotation is int:
        return check_whole(value, key)
    if annotation is float:
        return check_number(value, key)
    if annotation == Weights and not callable(value):
        raise invalid(key, "a function of a graph, such as metropolis", value)
    return value


def _plain(value: object, W: csr_array, rounds: tuple[csr_array, ...]) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str | Path):
        return str(value)
    if _are_links(value):
        return [list(link) for link in value]
    if callable(value):
        # The name of a user's own function does not identify its weights, so a fingerprint of W is added.
        name, own = getattr(value, "__name__", type(value).__name__), not str(value.__module__).startswith(__package__)
        return {"name": name, **_fingerprint(check_matrix(W), rounds)} if own else name
    return _fingerprint(check_matrix(W), rounds)


def _are_links(value: object) -> TypeGuard[Sequence[Sequence[str]]]:
    """Whether a value is a list of links between agents that have names."""
    pairs = value if isinstance(value, list | tuple) else [()]
    return all(isinstance(pair, list | tuple) and pair and all(isinstance(x, str) for x in pair) for pair in pairs)


def _fingerprint(W: csr_array, rounds: tuple[csr_array, ...]) -> dict[str, object]:
    """The size of a network and a digest of its weights, the same on every machine."""
    digest = hashlib.sha256()
    for each in (W, *map(check_weights, rounds)):
        for array, kind in ((each.indptr, "<i8"), (each.indices, "<i8"), (each.data, "<f8")):
            digest.update(np.ascontiguousarray(array, dtype=kind).tobytes())
    edges = (W.nnz - int(np.count_nonzero(W.diagonal()))) // 2
    return {"agents": int(W.shape[0]), "edges": edges, "sha256": digest.hexdigest()}


def _label(recipe: Mapping[str, Any], signature: inspect.Signature) -> str:
    """The call that made the network, without the arguments that have their default value."""
    shown = []
    for key, parameter in signature.parameters.items():
        value = recipe[key]
        if isinstance(value, list):
            shown.append(count_of(len(value), "link"))
        elif isinstance(value, dict) and "name" in value:
            shown.append(f"{key}={value['name']}")
        elif isinstance(value, dict):
            shown += [count_of(value["agents"], "agent"), count_of(value["edges"], "edge")]
        elif parameter.default is parameter.empty:
            shown.append(str(value))
        elif value != getattr(parameter.default, "__name__", parameter.default):
            shown.append(f"{key}={value}")
    return f"{recipe['name']}({', '.join(shown)})"
