"""Configuration files: a run written down.

A file has the arguments of `proxdasa.run` as keys. An object is a table with its name and its parameters, or
just its name::

    iterations = 2_000
    [algorithm]
    name = "ProxDASA"
    gamma = 0.01
    alpha = { name = "horizon", scale = 1.0 }     # or a number, for a constant step size

A list in place of a number is one value per trial. Names of data files and networks are relative to the folder in which
the program was started, not to that of the configuration file. `proxdasa.configs.objects` makes objects of values.
"""

from __future__ import annotations

import inspect
import json
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from proxdasa import memory_budget, networks
from proxdasa.configs.objects import ConfigError, make
from proxdasa.runs.setup import Setup

WEIGHT = 50
"""Bytes of memory that a byte of a file takes while it is read: a digit may be a number of a list."""
WRITTEN_BY_SAVE = ("facts", "ending")
"""Keys of a saved config.json that describe the run rather than set it."""


def read(path: Path, try_step: bool = True) -> Setup:
    """The run that a TOML file (or the config.json of saved results) describes.

    It is tried whether it can make a step, unless not: that takes the data of all agents.
    """
    form = "JSON" if path.suffix == ".json" else "TOML"
    try:
        with path.open("rb") as stream:
            text = memory_budget.read(stream, "it", WEIGHT).decode()
        settings = json.loads(text) if form == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not a valid {form} file: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{path}: not a table of settings; accepted: the config.json of saved results, or a TOML file"
        )
    try:
        return build({key: value for key, value in settings.items() if key not in WRITTEN_BY_SAVE}, try_step)
    except ConfigError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


def build(settings: Mapping[str, Any], try_step: bool = True) -> Setup:
    """The run that a table of settings describes, found able to make a step."""
    settings = {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    network, problem = settings.get("network"), settings.get("problem")
    if isinstance(network, str):
        network = settings["network"] = {"name": network}
    if isinstance(network, dict) and isinstance(problem, dict) and "agents" in problem:
        builder = {builder.__name__: builder for builder in networks.ALL}.get(str(network.get("name")))
        if builder and "agents" in inspect.signature(builder).parameters:
            network.setdefault("agents", problem["agents"])  # a network is as large as its problem
    setup: Setup = make(Setup, settings, key="")
    if try_step:
        _try(setup)
    return setup


def _try(setup: Setup) -> None:
    """Make one step, part by part: what does not fit, such as x0 and d, is said of its key before a long run."""
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # whether it diverges is for the run to say
        with _blaming("algorithm"):
            algorithm = setup.bound()
        with _blaming("memory"):
            setup.check_memory()
        with _blaming("x0"):
            x = setup.start()
        with _blaming("regularizer"):
            setup.regularizer.prox(x, 1.0)
        with _blaming("problem"):
            agents = setup.engine()
            _ = agents.epoch  # what lies in files is read now
        with _blaming("algorithm"):
            algorithm.step(agents, 0, algorithm.init(agents, x))


@contextmanager
def _blaming(key: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{key}: {error}") from error
