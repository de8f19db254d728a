"""Engines: where the agents' rows live and how messages travel. Algorithms see only the verbs of `contracts.Agents`."""

from proxdasa.engines.agents import Task
from proxdasa.engines.launch.connect import connect, end, first, several
from proxdasa.engines.messages.halo import blocks
from proxdasa.engines.messages.mpi import MPI
from proxdasa.engines.messages.transport import Alone, Transport
from proxdasa.engines.processes import Processes
from proxdasa.engines.simulator import Simulator

__all__ = [
    "MPI",
    "Alone",
    "Processes",
    "Simulator",
    "Task",
    "Transport",
    "blocks",
    "connect",
    "end",
    "first",
    "several",
]
