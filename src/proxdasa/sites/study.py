"""A study: one file, the same at all sites, that says what is computed, which sites take part and how to reach them.

It is a configuration file of `proxdasa run`, which simulates the study, with one more table::

    [sites]
    patience = 30.0           # seconds to wait for a neighbour before going on without it
    [sites.addresses]
    charite = "charite.example.org:7443"
    lmu = "lmu.example.org:7443"
    rwth = ""                 # has no open port: it calls its neighbours

Sites are the agents of the network, numbered in alphabetical order of their names; to give a network by names, write
``{ name = "from_links", links = [["charite", "lmu"], ["lmu", "rwth"]] }``. ``conditions`` in the file are only for the
simulation; sites meet real ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from proxdasa.checks import check_positive_number
from proxdasa.configs import own_code, reading, settings_file
from proxdasa.configs.settings_file import ConfigError
from proxdasa.contracts import Problem, running_of
from proxdasa.data.per_agent_files import PerAgent
from proxdasa.metrics import STANDARD, Metric, certificate, density, loss, objective, solution_density
from proxdasa.problems import Supervised
from proxdasa.runs.setup import Setup
from proxdasa.runs.setup_checks import check_buffers
from proxdasa.sites.agreement import mixing_rounds
from proxdasa.sites.keys import check_name
from proxdasa.sites.wire_format import MOST

PATIENCE, WAIT, AGREEMENT = 30.0, 600.0, 1e-3
"""Defaults: seconds of patience, seconds to wait for neighbours at the start, and the share of the disagreement between
sites that may be left at the end."""
FORM = "columns or types of the data"
"""What sites must have in common besides the study; they compare a digest of it."""
OWN = (loss, objective, density, solution_density, certificate)
"""What a site can measure by itself, with its own F_i, x_i and z_i."""
ACCEPTED = ("addresses", "agreement", "patience", "share", "wait")
NUMBERS = ("agreement", "patience", "wait")


@dataclass(frozen=True)
class Study:
    """What all sites have in common."""

    setup: Setup
    names: tuple[str, ...]
    """The sites in alphabetical order: the agents of the network."""
    addresses: Mapping[str, str]
    digest: str
    """The SHA-256 of the file."""
    code: str
    """The SHA-256 of your own modules that the file names, apart from those that load data."""
    patience: float = PATIENCE
    wait: float = WAIT
    agreement: float = AGREEMENT
    share: tuple[str, ...] = ()
    """The numbers whose means over sites are computed and recorded."""

    def number(self, name: str) -> int:
        """The number of a site's agent."""
        if name not in self.names:
            raise ConfigError(f"there is no site {name!r} in the study; it has {', '.join(self.names)}")
        return self.names.index(name)

    def weights(self, name: str) -> dict[str, float]:
        """The weights of a site's links, by the names of its neighbours."""
        row = self.setup.network.W[[self.number(name)]].tocoo()
        found = {self.names[j]: float(w) for j, w in zip(row.col, row.data, strict=True) if w}
        return {other: weight for other, weight in sorted(found.items()) if other != name}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What a site measures."""
        return tuple(metric for metric in self.setup.metrics if metric in OWN)

    @property
    def shared(self) -> dict[str, str]:
        """What two sites compare before their link counts."""
        W = self.setup.network.W.tocoo()
        # Rounded, since weights may come from eigenvalues, whose last bits depend on the processor.
        links = [(int(i), int(j), f"{w:.9e}") for i, j, w in zip(W.row, W.col, W.data, strict=True) if w]
        return {
            "study file": self.digest,
            "version of proxdasa": version("proxdasa"),
            "network": hashlib.sha256(json.dumps(sorted(links)).encode()).hexdigest(),  # it may be in a file
            "code of your own": self.code,
        }


def own_problem(study: Study, name: str) -> Problem:
    """The problem of one site; this reads the site's data."""
    here = study.number(name)
    own = study.setup.problem.restrict(range(here, here + 1))
    setup = study.setup
    check_buffers(own, setup.algorithm, setup.network, setup.mixing, (), random_iterate=False)
    if unknown := [name for name in study.share if name not in _measurable(study, own)]:
        raise ConfigError(
            f"sites.share: {name} does not measure {unknown[0]!r}; accepted: {', '.join(_measurable(study, own))}"
        )
    return own


def form(problem: Problem) -> str:
    """A digest of the form of a site's data, which must be the same at all sites, or x would mean different things."""
    data, running = getattr(problem, "examples", None), running_of(problem)
    found = [problem.dim, str(problem.dtype)]
    found += [running.first_buffers(1).shape[-1]] if running else []
    found += [list(data.columns or ()), str(data.x.dtype), list(data.x.shape[1:]), str(data.y.dtype)] if data else []
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _measurable(study: Study, own: Problem) -> list[str]:
    """The names of what a site measures."""
    averages, running = study.setup.algorithm.facts.averaging is not None, running_of(own)
    x = study.setup.start()[:, 0]
    scores = running.scores(x, running.first_buffers(1)[:, 0]) if running else own.scores(x)
    return [metric.name for metric in study.metrics if averages or not metric.needs_z] + [*scores]


def read_study(path: Path, data: Path | None = None) -> Study:
    """Read a study; ``data`` replaces the file of this site's examples."""
    text, settings = path.read_bytes(), settings_file.load(path)
    try:
        sites = settings.get("sites")
        if not isinstance(sites, Mapping) or not isinstance(sites.get("addresses"), Mapping):
            raise ConfigError("sites.addresses is missing: a table with the address of each site, such as host:7443")
        if unknown := [key for key in sites if key not in ACCEPTED]:
            raise ConfigError(f"sites.{unknown[0]}: unknown key; accepted: {', '.join(ACCEPTED)}")
        setup = reading.build(settings, try_step=False)
        if data is not None:
            setup = _with_data(setup, data)
        _check(setup)
        # The conditions in a study file are only for its simulation: sites meet real ones.
        setup = replace(setup, conditions=())
        names = tuple(sorted(map(check_name, sites["addresses"])))
        if len(names) != setup.network.n:
            raise ConfigError(f"sites.addresses has {len(names)} sites, but the network has {setup.network.n} agents")
        addresses = {name: _check_address(name, sites["addresses"][name]) for name in names}
        numbers = {key: check_positive_number(sites[key], f"sites.{key}") for key in NUMBERS if key in sites}
        share = _check_share(sites.get("share", []))
        last = setup.iterations + mixing_rounds(setup.network.rho, numbers.get("agreement", AGREEMENT))
        if last > MOST:
            raise ConfigError(f"iterations: sites can make at most {MOST:,}, with their last rounds; got {last:,}")
        code = own_code.digest({**settings, "sites": {}, "problem": _without_data(settings.get("problem"))})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return Study(setup, names, addresses, hashlib.sha256(text).hexdigest(), code, **numbers, share=share)


def _without_data(problem: object) -> object:
    """The table of a problem without its data, which every site may load in its own way."""
    return {key: value for key, value in problem.items() if key != "data"} if isinstance(problem, Mapping) else problem


def _with_data(setup: Setup, data: Path) -> Setup:
    """The set-up with this file in place of all agents' files."""
    problem = setup.problem
    if not isinstance(problem, Supervised) or not isinstance(problem.data, PerAgent):
        raise ConfigError('--data needs a problem whose data are { name = "per_agent", ... }')
    return replace(setup, problem=replace(problem, data=replace(problem.data, files=str(data))))


def _check_address(name: str, address: object) -> str:
    host, _, port = str(address).rpartition(":")
    if address != "" and not (isinstance(address, str) and host and port.isdecimal() and 0 < int(port) < 2**16):
        raise ConfigError(f'sites.addresses.{name} must be "host:port", or "" for no open port; got {address!r}')
    return str(address)


def _check_share(share: object) -> tuple[str, ...]:
    if not isinstance(share, list) or not all(isinstance(name, str) for name in share) or len({*share}) < len(share):
        raise ConfigError(f'sites.share must be a list of names, such as ["loss"]; got {share!r}')
    return tuple(share)


def _check(setup: Setup) -> None:
    """Refuse settings that sites do not support."""
    facts = setup.algorithm.facts
    if setup.trials != 1:
        raise ConfigError(f"trials must be 1 for sites; got {setup.trials}")
    if tuple(setup.metrics) != tuple(STANDARD):  # by default, a site records those of them that it can
        for metric in setup.metrics:
            if metric not in OWN:
                accepted = ", ".join(own.name for own in OWN)
                raise ConfigError(f"metrics: a site cannot measure {metric.name} by itself; accepted: {accepted}")
    if setup.random_iterate or setup.compile is True or setup.device != "cpu":
        raise ConfigError("random_iterate, compile and device are not supported at sites; leave them out")
    if setup.network.rounds:
        raise ConfigError("sites have fixed links; choose a network that does not change from round to round")
    if not facts.mixes or not getattr(setup.mixing, "varies", False):
        raise ConfigError(f"{facts.title} with {setup.mixing} cannot go on without a neighbour; choose Gossip")
    if getattr(setup.problem, "join", None) and getattr(setup.problem, "weights", "agents") != "agents":
        raise ConfigError('weights = "examples" needs the numbers of examples of all sites, which do not leave them')
