"""Configuration files: a run written down.

A file has the arguments of `proxdasa.run` as keys. An object is a table with its name and its parameters, or
just its name::

    iterations = 2_000
    [algorithm]
    name = "ProxDASA"
    gamma = 0.01
    alpha = { name = "horizon", scale = 1.0 }     # or a number, for a constant step size

``name = "methods:NEXT"`` is a class of your own, NEXT in methods.py (see `proxdasa.configs.own_code`).
A list in place of a parameter of the method is one value per trial; the weight of a regularizer then is
``{ per_trial = [...] }``, because a list may be a weight for each coordinate. Names of data files and networks are
relative to the folder in which the program was started, not to that of the configuration file.
`proxdasa.configs.objects` turns values into objects.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from proxdasa import networks
from proxdasa.configs.automatic import STEP, asks_auto, fill, refuse_auto
from proxdasa.configs.objects import make
from proxdasa.configs.settings_file import ConfigError, load
from proxdasa.data.per_agent_files import AGENT
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.setup import Setup

SITE = "{site}"
"""Stands for the name of a site in the names of files."""


def read(path: Path, try_step: bool = True, auto: float | None = None, device: str | None = None) -> Setup:
    """The run that a TOML file (or the config.json of saved results) describes.

    Runs one trial step unless ``try_step=False``: the step needs every agent's data. ``auto`` takes the place of
    gamma = "auto", which is refused without it, and ``device`` that of the file's device.
    """
    settings = load(path)
    if device is not None:
        settings = {**settings, "device": device}
    try:
        if auto is not None and asks_auto(settings):
            settings = fill(settings, {STEP: auto})
        return build(settings, try_step)
    except ConfigError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


def build(settings: Mapping[str, Any], try_step: bool = True) -> Setup:
    """The run that a table of settings describes, after one trial step unless ``try_step=False``."""
    with flushed_denormals():  # before PyTorch starts its threads, which inherit it
        return _build(settings, try_step)


def _build(settings: Mapping[str, Any], try_step: bool) -> Setup:
    refuse_auto(settings)
    sites = settings.get("sites")
    if sites is not None and not isinstance(sites, Mapping):
        raise ConfigError(f"sites must be a table, such as that of docs/sites.md; got {sites!r:.60}")
    # Of the participants of a study, a run that simulates it needs only the names (see `proxdasa.sites.study`).
    given = {key: value for key, value in settings.items() if key != "sites"}
    settings = {key: dict(value) if isinstance(value, Mapping) else value for key, value in given.items()}
    if "problem" in settings:
        settings["problem"] = with_names(settings["problem"], sites)
    if "network" in settings:
        settings["network"] = with_size(settings["network"], settings.get("problem"))
    setup: Setup = make(Setup, settings, key="")
    if try_step:
        make_one_step(setup)
    return setup


def with_size(network: Any, problem: Any) -> Any:
    """The table of a network with as many agents as the table of the problem has, so that a file says it once."""
    table = {"name": network} if isinstance(network, str) else network
    if isinstance(table, Mapping) and isinstance(problem, Mapping) and "agents" in problem:
        builder = {builder.__name__: builder for builder in networks.ALL}.get(str(table.get("name")))
        if builder and "agents" in inspect.signature(builder).parameters:
            return {"agents": problem["agents"], **table}
    return table


def with_names(problem: Any, sites: Any) -> Any:
    """The table of a problem with the names of sites, in alphabetical order, for files = "{site}.csv"."""
    data = problem.get("data") if isinstance(problem, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(files := data.get("files"), str):
        return problem
    if SITE not in files:
        return problem
    names = _names_of_sites(data, sites)
    return {**problem, "data": {**data, "files": files.replace(SITE, AGENT), "names": names}}


def _names_of_sites(data: Mapping[str, Any], sites: Any) -> list[str]:
    """The names that take the place of {site}; what would contradict them is refused."""
    if AGENT in data["files"]:
        raise ConfigError(f"problem.data.files has both {SITE} and {AGENT}; leave one out")
    if "names" in data:
        raise ConfigError(f"problem.data.names is given beside {SITE}, the names in sites.addresses; leave one out")
    addresses = sites.get("addresses") if isinstance(sites, Mapping) else None
    if not isinstance(addresses, Mapping):
        raise ConfigError(f"problem.data.files has {SITE}, which needs the names of sites in a table sites.addresses")
    return sorted(addresses)


def make_one_step(setup: Setup) -> None:
    """Make one step, part by part, so that what does not fit is reported with its key before a long run starts."""
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # the run itself warns if it diverges
        with _with_key("algorithm"):
            algorithm = setup.bound()
        with _with_key("problem"):
            _ = setup.problem.words  # reads data that are in files
        with _with_key("memory"):
            setup.check_memory()
        with _with_key("x0"):
            x = setup.start()
        with _with_key("regularizer"):
            setup.check_weights()
            setup.regularizer.prox(x, 1.0)
        with _with_key("problem"):
            agents = setup.engine()
            _ = agents.epoch
        with _with_key("algorithm"):
            algorithm.step(agents, 0, algorithm.init(agents, x))


@contextmanager
def _with_key(key: str) -> Iterator[None]:
    """Context manager that puts a key before the errors raised within, unless they begin with it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        named = str(error).startswith((f"{key} ", f"{key}."))  # as in "x0 of shape [2] does not broadcast to ..."
        raise ConfigError(str(error) if named else f"{key}: {error}") from error
