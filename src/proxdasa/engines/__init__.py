"""Engines: where the agents' rows are and how messages travel. Algorithms see them only as `contracts.Agents`."""

from typing import TYPE_CHECKING

from proxdasa.lazy_names import lazy_names

if TYPE_CHECKING:
    from proxdasa.engines.launch.connect import connect, end
    from proxdasa.engines.launch.environment import first, several
    from proxdasa.engines.messages.halo import blocks
    from proxdasa.engines.messages.mpi import MPI
    from proxdasa.engines.messages.transport import Alone, Transport
    from proxdasa.engines.processes import Processes
    from proxdasa.engines.simulator import Simulator
    from proxdasa.engines.tasks import Task
else:
    __getattr__, __dir__ = lazy_names(__name__)

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
