"""Where rows live and how messages travel. The simulator holds all agents in one process."""

from proxdasa.engines.simulator import Simulator

__all__ = ["Simulator"]
