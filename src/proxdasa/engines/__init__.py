"""Engines: where the agents' rows live and how messages travel. Algorithms see only the verbs of `contracts.Agents`."""

from proxdasa.engines.connecting import connect, first, restarted, several
from proxdasa.engines.halo import blocks
from proxdasa.engines.processes import Processes
from proxdasa.engines.simulator import Simulator
from proxdasa.engines.transports import Alone, Transport

__all__ = ["Alone", "Processes", "Simulator", "Transport", "blocks", "connect", "first", "restarted", "several"]
