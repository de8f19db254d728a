"""Networks as people type them: a name, a call, or a file."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

from proxdasa import networks
from proxdasa.configs.calls import call_arguments
from proxdasa.configs.objects import make
from proxdasa.configs.settings_file import ConfigError
from proxdasa.networks import Network


def graph(text: str, agents: int | None = None) -> Network:
    """The network that a text stands for: a name such as ``ring``, a call such as ``path(8)``, or the name of a file.

    ``agents`` is the size of a graph that is given by its name alone.
    """
    call = re.fullmatch(r"(\w+)\s*(\(.*\))?", text)
    if call is None:
        return networks.from_file(text)
    builders = {build.__name__: build for build in networks.ALL}
    name, arguments = call.groups()
    if name not in builders:
        raise ConfigError(f"there is no graph {name!r}; accepted: {', '.join(builders)}, or a file such as ./{name}")
    build = builders[name]
    table = _size_arguments(name, build, agents) if arguments is None else call_arguments(text, build, "torus(4, 5)")
    made: Network = make(build, table, text)
    return made


def split(text: str) -> list[str]:
    """The parts of a list; commas within brackets do not separate parts."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _size_arguments(name: str, build: Callable[..., Network], agents: int | None) -> dict[str, Any]:
    """The arguments for which a graph has this number of agents."""
    wanted = inspect.signature(build).parameters
    if name in ("paper", "from_file"):
        return {}
    if agents is None:
        shape = ", ".join(key for key, parameter in wanted.items() if parameter.default is parameter.empty)
        raise ConfigError(f"{name}: how large? Give {name}({shape}) with numbers, or --agents")
    if name == "hypercube" and agents & (agents - 1) == 0:
        return {"dimension": agents.bit_length() - 1}
    if name == "ladder" and agents % 2 == 0:
        return {"rungs": agents // 2}
    if name in ("hypercube", "ladder"):
        number = "a power of two" if name == "hypercube" else "an even number"
        raise ConfigError(f"{name}: the number of agents must be {number}; got {agents}")
    if name in ("grid", "torus"):  # as close to a square as possible
        rows = max(side for side in range(1, math.isqrt(agents) + 1) if agents % side == 0)
        return {"rows": rows, "columns": agents // rows}
    return {"agents": agents}
