"""The arguments of an optimizer, checked and put into the form that its steps use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from proxdasa.checks import check_count
from proxdasa.contracts import Mixing, Regularizer
from proxdasa.engines import Alone, Transport, connect
from proxdasa.mixing.mixing_checks import check_mixing
from proxdasa.networks import Network
from proxdasa.regularizers import Blocks
from proxdasa.schedules import Alpha, Schedule


def check_network(network: object) -> None:
    """Raise unless it is a network."""
    if not isinstance(network, Network):
        raise TypeError(f"network must be a network, such as networks.ring(8); got {network!r}")
    if network.rounds:
        raise ValueError(f"{network.label} changes from round to round, which optimizers do not support yet")


def check_protocol(mixing: Mixing, network: Network) -> None:
    """Refuse a mixing that rests in some iterations or keeps copies, which optimizers do not support."""
    check_mixing(mixing, network)
    if getattr(mixing, "compression", None):
        raise ValueError(f"{mixing} keeps copies of neighbours' parameters, which optimizers do not support yet")
    if callable(getattr(mixing, "rests", None)):
        raise ValueError(f"{mixing} sends nothing in some iterations, which optimizers do not support yet")


def join_regularizers(sizes: Sequence[int], regularizers: Sequence[Regularizer]) -> Regularizer:
    """One regularizer for all coordinates, which applies that of each group to the group's coordinates."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    parts = zip(ends, sizes, regularizers, strict=True)
    return Blocks([(end - size, end, regularizer) for end, size, regularizer in parts if size])


def bind_alpha(alpha: Alpha, network: Network, iterations: int | None, dtype: torch.dtype) -> Alpha:
    """The step size with n and K filled in."""
    if not isinstance(alpha, Schedule):
        return alpha
    if any(isinstance(value, Tensor) for value in alpha.parameters.values()):
        raise ValueError("alpha has one value per trial, but an optimizer has no trials; give it one number")
    if iterations is not None:
        check_count(iterations, "iterations")
    elif "iterations" in alpha.needs:
        raise ValueError(f"schedules.{alpha.name} depends on the number K of steps; give iterations=K")
    return alpha.bind(network.n, iterations, dtype)


def find_processes(network: Network, processes: Transport | None) -> Transport:
    """The given processes, or those that this one was started with; raise unless there is one for each agent."""
    if processes is None:
        if dist.is_available() and dist.is_initialized():
            raise ValueError(
                "torch.distributed is connected already; call engines.connect() instead, once, and pass what it "
                "returns: processes=..."
            )
        processes = connect() or Alone()
    if processes.size != network.n:
        raise ValueError(
            f"network: {network.label} has {network.n} agents, but the number of processes, each of which is one "
            f"agent, is {processes.size}; start the script with torchrun --standalone --nproc-per-node {network.n}, or "
            f"use a network of {processes.size}, such as networks.ring({processes.size})"
        )
    return processes
