"""The network of a run for the page: positions of agents, edges, and each agent's distance from the mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from proxdasa.reports.curves import Array, Run
from proxdasa.reports.foreign_folders import file_within
from proxdasa.runs import records

MOST_AGENTS, MOST_EDGES = 500, 5_000
"""Networks with more agents or edges than this are not drawn: the drawing would be unreadable."""
CAREFULLY = 150
"""The most agents for which a layout by distances in the graph is fast enough."""

Pairs = NDArray[np.int64]
"""Edges as rows (i, j)."""
MOST_STATE = 200_000_000
"""The most bytes of x to read from a final state."""
HEADER = 1_000_000
"""The most bytes of the header of a final state's file."""


def drawing(run: Run) -> dict[str, Any]:
    """What the page needs to draw a run's network, or why it cannot, as plain values.

    The edges are those in the configuration. The network is not rebuilt from its recipe, which may need a file that is
    elsewhere, or any amount of time.
    """
    facts = {key: run.config["facts"].get(key) for key in ("agents", "rho", "rounds")}
    if run.agents > MOST_AGENTS:
        return {**facts, "missing": f"{run.agents:,} agents are too many to draw"}
    try:
        known = _read_edges(run)
    except ValueError as error:
        circle = layout(run.agents, np.empty((0, 2), dtype=np.int64)).round(3).tolist()
        return {**facts, "places": circle, "edges": [], "missing": f"its edges are not known: {error}"}
    degrees = np.bincount(known.ravel(), minlength=run.agents).tolist()
    drawn = {**facts, "count": len(known), "degrees": degrees}
    if len(known) > MOST_EDGES:
        return {**drawn, "missing": f"{len(known):,} edges are too many to draw"}
    return {**drawn, "places": layout(run.agents, known).round(3).tolist(), "edges": known.tolist()}


def _read_edges(run: Run) -> Pairs:
    """The edges among the facts of the configuration."""
    given, agents = run.config["facts"].get("edges"), range(run.agents)
    if given is None:
        raise ValueError("config.json has none")
    if not isinstance(given, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(i) is int and i in agents for i in pair)
        for pair in given
    ):
        raise ValueError("facts.edges must be pairs of agents")
    return np.array(given, dtype=np.int64).reshape(-1, 2)


def layout(agents: int, edges: Pairs) -> Array:
    """A position in the unit square for each agent: by distances in the graph (Kamada and Kawai, 1989), or a circle."""
    graph: nx.Graph[int] = nx.empty_graph(agents)
    graph.add_edges_from(edges.tolist())
    places = nx.kamada_kawai_layout(graph) if len(edges) and agents <= CAREFULLY else nx.circular_layout(graph)
    points = np.array([places[agent] for agent in range(agents)], dtype=float)
    low, high = points.min(0), points.max(0)
    return np.asarray((points - (low + high) / 2) / (max(high - low) or 1.0) + 0.5)


def disagreement(run: Run) -> list[float]:
    """‖x_i − x̄‖² of each agent in the final state, averaged over the run's trials that did not diverge.

    Its mean over agents is the consensus error. Raises ValueError or OSError, with the reason, if it is not known.
    """
    if "site" in run.config:
        raise ValueError("a site has its own x only")
    if run.folder is None:
        raise ValueError("the final state was not saved")
    if run.agents > MOST_AGENTS:
        raise ValueError(f"{run.agents:,} agents are too many to show one by one")
    path = _state_file(run.folder)
    total, count = torch.zeros(run.agents, dtype=torch.float64), 0
    try:
        with safe_open(path, framework="pt") as state:
            variables = state.keys()
            if "x" not in variables:
                raise ValueError(f"{path} holds no x")
            x = state.get_slice("x")
            shape, trials = x.get_shape(), list(run.began)
            if len(shape) != 3 or shape[1] != run.agents or not all(trial < shape[0] for trial in trials):
                raise ValueError(f"{path}: x has shape {shape}, so it belongs to another run")
            if math.prod(shape) * 8 > MOST_STATE:
                raise ValueError(f"{path}: x has {math.prod(shape):,} numbers, too many for a report")
            for trial in trials:
                own = x[trial].double()
                errors = (own - own.mean(dim=0)).square().sum(dim=-1)
                if errors.isfinite().all():
                    total, count = total + errors, count + 1
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file: {error}") from error
    if not count:
        raise ValueError("every trial diverged")
    means: list[float] = (total / count).tolist()
    return means


def _state_file(folder: Path) -> Path:
    """The file of the final state, after checking that its header is not too large."""
    path = file_within(folder, records.FINAL)
    with path.open("rb") as file:
        if int.from_bytes(file.read(8), "little") > HEADER:
            raise ValueError(f"{path}: not a whole safetensors file: its header is too large")
    return path
