"""A study: one file, the same at all sites, with what is computed, who takes part and how to reach them.

It is a configuration file as `proxdasa run` takes it, which simulates the study, with one more table::

    [sites]
    patience = 30.0           # seconds to wait for a neighbour before going on without it
    [sites.addresses]
    charite = "charite.example.org:7443"
    lmu = "lmu.example.org:7443"
    rwth = ""                 # has no open port: it calls its neighbours

Sites are the agents of the network, numbered in alphabetical order of their names; a network by names is
``{ name = "from_links", links = [["charite", "lmu"], ["lmu", "rwth"]] }``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from proxdasa.checks import check_positive_number
from proxdasa.configs import reading
from proxdasa.configs.objects import ConfigError
from proxdasa.contracts import Problem, running_of
from proxdasa.data.per_agent_files import PerAgent
from proxdasa.metrics import STANDARD
from proxdasa.problems import Supervised
from proxdasa.runs.setup import Setup
from proxdasa.sites.keys import check_name

PATIENCE, WAIT, AGREEMENT = 30.0, 600.0, 1e-3
"""Defaults: seconds of patience, seconds to wait for neighbours at the start, and how much of the disagreement between
sites may be left at the end."""
ACCEPTED = ("addresses", "agreement", "patience", "wait")


@dataclass(frozen=True)
class Study:
    """What all sites have in common."""

    setup: Setup
    names: tuple[str, ...]
    """The sites in alphabetical order: the agents of the network."""
    addresses: Mapping[str, str]
    digest: str
    """The SHA-256 of the file."""
    patience: float = PATIENCE
    wait: float = WAIT
    agreement: float = AGREEMENT

    def number(self, name: str) -> int:
        """The agent that a site is."""
        if name not in self.names:
            raise ConfigError(f"there is no site {name!r} in the study; it has {', '.join(self.names)}")
        return self.names.index(name)

    def weights(self, name: str) -> dict[str, float]:
        """The weights of a site's links, by the names of its neighbours."""
        row = self.setup.network.W[[self.number(name)]].tocoo()
        found = {self.names[j]: float(w) for j, w in zip(row.col, row.data, strict=True) if w}
        return {other: weight for other, weight in sorted(found.items()) if other != name}

    @property
    def shared(self) -> dict[str, str]:
        """What two sites compare before their link counts."""
        return {"study file": self.digest, "version of proxdasa": version("proxdasa")}


def own_problem(study: Study, name: str) -> Problem:
    """The problem of one site, which reads its data."""
    here = study.number(name)
    own = study.setup.problem.restrict(range(here, here + 1))
    if running_of(own) is not None:
        raise ConfigError("running statistics, such as BatchNorm's, are not supported at sites yet; use GroupNorm")
    return own


def read_study(path: Path, data: Path | None = None) -> Study:
    """Read a study; ``data`` takes the place of the file of this site's examples."""
    text, settings = path.read_bytes(), reading.load(path)
    try:
        sites = settings.pop("sites", None)
        if not isinstance(sites, Mapping) or not isinstance(sites.get("addresses"), Mapping):
            raise ConfigError("sites.addresses is missing: a table with the address of each site, such as host:7443")
        if unknown := [key for key in sites if key not in ACCEPTED]:
            raise ConfigError(f"sites.{unknown[0]}: unknown key; accepted: {', '.join(ACCEPTED)}")
        setup = reading.build(settings, try_step=False)
        if data is not None:
            setup = _with_data(setup, data)
        _check(setup)
        names = tuple(sorted(map(check_name, sites["addresses"])))
        if len(names) != setup.network.n:
            raise ConfigError(f"sites.addresses has {len(names)} sites, but the network has {setup.network.n} agents")
        addresses = {name: _check_address(name, sites["addresses"][name]) for name in names}
        numbers = {key: check_positive_number(sites[key], f"sites.{key}") for key in ACCEPTED[1:] if key in sites}
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return Study(setup, names, addresses, hashlib.sha256(text).hexdigest(), **numbers)


def _with_data(setup: Setup, data: Path) -> Setup:
    """The set-up with this file in place of the files of all."""
    problem = setup.problem
    if not isinstance(problem, Supervised) or not isinstance(problem.data, PerAgent):
        raise ConfigError('--data needs a problem whose data are { name = "per_agent", ... }')
    return replace(setup, problem=replace(problem, data=replace(problem.data, files=str(data))))


def _check_address(name: str, address: object) -> str:
    host, _, port = str(address).rpartition(":")
    if address != "" and not (isinstance(address, str) and host and port.isdecimal() and 0 < int(port) < 2**16):
        raise ConfigError(f'sites.addresses.{name} must be "host:port", or "" for no open port; got {address!r}')
    return str(address)


def _check(setup: Setup) -> None:
    """Refuse what sites cannot do."""
    facts = setup.algorithm.facts
    if setup.trials != 1:
        raise ConfigError(f"trials must be 1 for sites; got {setup.trials}")
    if tuple(setup.metrics) != tuple(STANDARD):
        raise ConfigError("metrics cannot be chosen at sites: a site records its own loss, scores and certificate")
    if setup.random_iterate or setup.compile:
        raise ConfigError("random_iterate and compile are not supported at sites; leave them out")
    if setup.stop is not None:
        raise ConfigError("stop is not supported at sites yet; leave it out, and choose a number of iterations")
    if setup.conditions or setup.network.rounds:
        raise ConfigError("sites meet real conditions on a fixed network; leave conditions and changing networks out")
    if not facts.mixes or not getattr(setup.mixing, "varies", False):
        raise ConfigError(f"{facts.title} with {setup.mixing} cannot go on without a neighbour; choose Gossip")
    if getattr(setup.problem, "join", None) and getattr(setup.problem, "weights", "agents") != "agents":
        raise ConfigError('weights = "examples" needs the numbers of examples of all sites, which do not leave them')
