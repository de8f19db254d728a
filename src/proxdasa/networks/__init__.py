"""Networks: who talks to whom, and how much weight they give each other.

A network is a connected graph with a symmetric, doubly stochastic matrix W. One communication round replaces
every agent's row by its weighted average over the neighbourhood: x ← W x. The mean stays, and disagreement
shrinks at least by ρ = max(|λ₂|, |λ_n|).

Builders are functions, ``ring(8)``, ``from_graph(graph)``, ``from_file(path)``, and return a `Network`.
The W of every `Network` has been checked: one that could not reach consensus is refused, with a message that names the
agents responsible. Where a graph leaves a choice of weights, these are functions too:
``path(8, weights=best_constant)``.

A builder that is listed in `ALL` can be named in config files.
"""

from proxdasa.networks.base_graphs import base_graph
from proxdasa.networks.changing import alternating, one_peer_hypercube, random_matchings
from proxdasa.networks.graphs import (
    complete,
    erdos_renyi,
    exponential,
    from_graph,
    from_links,
    from_matrix,
    grid,
    hypercube,
    ladder,
    paper,
    path,
    regular,
    ring,
    star,
    torus,
)
from proxdasa.networks.network import Network
from proxdasa.networks.network_files import from_file
from proxdasa.networks.weights import Weights, best_constant, constant, fastest, max_degree, metropolis

ALL = (
    ring, path, star, complete, grid, torus, ladder, hypercube, exponential, erdos_renyi, regular, paper, from_file,
    from_links, one_peer_hypercube, base_graph,
)  # fmt: skip
"""The builders whose arguments can be written in a file: numbers, a path and the name of a weighting."""

WEIGHTINGS = (metropolis, max_degree, best_constant, fastest)
"""The weights that need nothing but the graph."""

__all__ = [
    "ALL",
    "WEIGHTINGS",
    "Network",
    "Weights",
    "alternating",
    "base_graph",
    "best_constant",
    "complete",
    "constant",
    "erdos_renyi",
    "exponential",
    "fastest",
    "from_file",
    "from_graph",
    "from_links",
    "from_matrix",
    "grid",
    "hypercube",
    "ladder",
    "max_degree",
    "metropolis",
    "one_peer_hypercube",
    "paper",
    "path",
    "random_matchings",
    "regular",
    "ring",
    "star",
    "torus",
]
