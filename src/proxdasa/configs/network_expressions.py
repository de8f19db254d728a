"""Networks as people type them: a name, a call, or a file."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable
from typing import Any

from proxdasa import networks
from proxdasa.configs.objects import ConfigError, make
from proxdasa.networks import Network


def graph(text: str, agents: int | None = None) -> Network:
    """``ring`` with so many agents, a call such as ``path(8, weights=fastest)``, or the name of a file."""
    call = re.fullmatch(r"(\w+)\s*(\(.*\))?", text)
    if call is None:
        return networks.from_file(text)
    builders = {build.__name__: build for build in networks.ALL}
    name, arguments = call.groups()
    if name not in builders:
        raise ConfigError(f"there is no graph {name!r}; accepted: {', '.join(builders)}, or a file such as ./{name}")
    build = builders[name]
    table = _sized(name, build, agents) if arguments is None else _arguments(text, build)
    made: Network = make(build, table, text)
    return made


def split(text: str) -> list[str]:
    """The parts of a list; commas in brackets do not part it."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _sized(name: str, build: Callable[..., Network], agents: int | None) -> dict[str, Any]:
    """The arguments of a graph that is to have so many agents."""
    wanted = inspect.signature(build).parameters
    if name in ("paper", "from_file"):
        return {}
    if agents is None:
        shape = ", ".join(key for key, parameter in wanted.items() if parameter.default is parameter.empty)
        raise ConfigError(f"{name}: how large? accepted: {name}({shape}) with numbers, or --agents")
    if name == "hypercube" and agents & (agents - 1) == 0:
        return {"dimension": agents.bit_length() - 1}
    if name == "ladder" and agents % 2 == 0:
        return {"rungs": agents // 2}
    if name in ("hypercube", "ladder"):
        raise ConfigError(f"{name}: has {'a power of two' if name == 'hypercube' else 'an even number'} of agents")
    if name in ("grid", "torus"):  # as square as it goes
        rows = max(side for side in range(1, math.isqrt(agents) + 1) if agents % side == 0)
        return {"rows": rows, "columns": agents // rows}
    return {"agents": agents}


def _arguments(text: str, build: Callable[..., Network]) -> dict[str, Any]:
    """The arguments in the brackets of a call, by name."""
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        named = {word.arg: _value(word.value) for word in call.keywords if word.arg}
        bound = inspect.signature(build).bind_partial(*map(_value, call.args), **named)
    except (SyntaxError, ValueError, TypeError) as error:
        raise ConfigError(f"{text}: cannot be read: {error}; accepted: a call such as torus(4, 5)") from error
    return dict(bound.arguments)


def _value(node: ast.expr) -> Any:
    """A number or text, or the name of a weighting as it stands."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
