"""Facts about a run, which are noted in its configuration and affect nothing."""

from __future__ import annotations

import functools
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from proxdasa.descriptions import describe

NOTED_EDGES = 2_000
"""The configuration lists the edges of a network with at most this many, for reports to draw."""


@functools.cache
def _own_version() -> str:
    """Read once: reading it each time would slow down runs of a few milliseconds."""
    return version("proxdasa")


def facts_of(setup: Any) -> dict[str, Any]:
    """The facts about a run by name."""
    facts = {
        "title": setup.algorithm.facts.title,
        "agents": setup.network.n,
        "dim": setup.problem.dim,
        "rho": setup.network.rho,
        "rounds": setup.mixing.rounds_for(setup.network.rho),
        "proxdasa": _own_version(),
        "torch": torch.__version__,
    }
    gamma, edges = setup.algorithm.mapping_gamma, setup.network.edges
    facts["gamma"] = describe(gamma.flatten().tolist() if isinstance(gamma, Tensor) else gamma)
    return facts | ({"edges": edges.tolist()} if len(edges) <= NOTED_EDGES else {})
