"""The network as a page shows it: where agents stand, who talks to whom, and how far each is from the mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from proxdasa import records
from proxdasa.reports.curves import Array, Run

MOST_AGENTS, MOST_EDGES = 500, 5_000
"""More are a blot."""
CAREFULLY = 150
"""Agents up to which the time for a layout by distances in the graph is hardly noticed."""

Pairs = NDArray[np.int64]
"""Edges as rows (i, j)."""
Edges = Callable[[Mapping[str, Any]], Pairs]
"""The edges of the network that a configuration names; a ValueError or OSError says why they are not known."""


def drawing(run: Run, edges: Edges) -> dict[str, Any]:
    """What a page needs to draw a run's network, or why it cannot, as plain values."""
    told = {key: run.config["facts"].get(key) for key in ("agents", "rho", "rounds")}
    if run.agents > MOST_AGENTS:
        return {**told, "missing": f"{run.agents:,} agents are too many to draw"}
    try:
        known = _noted(run) if "edges" in run.config["facts"] else edges(run.config)
    except (ValueError, OSError) as error:
        circle = layout(run.agents, np.empty((0, 2), dtype=np.int64)).round(3).tolist()
        return {**told, "places": circle, "edges": [], "missing": f"its edges are not known: {error}"}
    degrees = np.bincount(known.ravel(), minlength=run.agents).tolist()
    drawn = {**told, "count": len(known), "degrees": degrees, "places": layout(run.agents, known).round(3).tolist()}
    if len(known) > MOST_EDGES:
        return {**drawn, "edges": [], "missing": f"{len(known):,} edges are too many to draw"}
    return {**drawn, "edges": known.tolist()}


def _noted(run: Run) -> Pairs:
    """The edges that the configuration has among its facts, as for graphs made in Python."""
    given, agents = run.config["facts"]["edges"], range(run.agents)
    if not isinstance(given, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(i) is int and i in agents for i in pair)
        for pair in given
    ):
        raise ValueError("facts.edges are no pairs of agents")
    return np.array(given, dtype=np.int64).reshape(-1, 2)


def layout(agents: int, edges: Pairs) -> Array:
    """A place in the unit square for each agent: distances as in the graph (Kamada and Kawai, 1989), or a circle."""
    graph: nx.Graph[int] = nx.empty_graph(agents)
    graph.add_edges_from(edges.tolist())
    places = nx.kamada_kawai_layout(graph) if len(edges) and agents <= CAREFULLY else nx.circular_layout(graph)
    points = np.array([places[agent] for agent in range(agents)], dtype=float)
    low, high = points.min(0), points.max(0)
    return np.asarray((points - (low + high) / 2) / (max(high - low) or 1.0) + 0.5)


def disagreement(run: Run) -> list[float]:
    """‖x_i − x̄‖² of each agent in the final state, the mean over the run's trials that did not diverge.

    Its mean over agents is the consensus error. A ValueError or OSError says why it is not known.
    """
    if run.folder is None:
        raise ValueError("the final state was not saved")
    state = records.read_tensors(run.folder)
    if "x" not in state:
        raise ValueError(f"{run.folder / records.FINAL} holds no x")
    x = state["x"]
    if x.ndim != 3 or x.shape[1] != run.agents or not all(trial < len(x) for trial in run.began):
        raise ValueError(f"{run.folder / records.FINAL}: x is of shape {list(x.shape)}, which is another run's")
    x = x[list(run.began)].double()
    errors = (x - x.mean(dim=1, keepdim=True)).square().sum(dim=-1)
    errors = errors[errors.isfinite().all(dim=1)]
    if not len(errors):
        raise ValueError("every trial diverged")
    means: list[float] = errors.mean(dim=0).tolist()
    return means
