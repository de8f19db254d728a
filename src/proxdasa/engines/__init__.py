"""Engines: where the agents' rows live and how messages travel. Algorithms see only the verbs of `contracts.Agents`."""

from proxdasa.engines.connecting import connect, end, first, several
from proxdasa.engines.halo import blocks
from proxdasa.engines.mpi import MPI
from proxdasa.engines.processes import Processes
from proxdasa.engines.simulator import Simulator
from proxdasa.engines.transports import Alone, Transport

__all__ = ["MPI", "Alone", "Processes", "Simulator", "Transport", "blocks", "connect", "end", "first", "several"]
