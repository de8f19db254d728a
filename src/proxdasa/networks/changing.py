"""Networks whose graph changes from round to round.

Each round has its own symmetric, doubly stochastic matrix; after the last one the sequence repeats. The graph of a
single round need not be connected: matchings of agents in pairs are cheap, and many of them in a row reach consensus.
"""

from collections.abc import Sequence

import networkx as nx
import numpy as np
from scipy.sparse import csr_array

from proxdasa.checks import check_count, invalid
from proxdasa.networks.graphs import check_size
from proxdasa.networks.network import Network
from proxdasa.networks.recipes import builder
from proxdasa.networks.weights import check_graph, weigh_links


@builder
def one_peer_hypercube(agents: int) -> tuple[csr_array, ...]:
    """A hypercube, one dimension in each round: agent i averages with agent i xor 2^r (weights ½ and ½).

    One message per agent and round, and the exact mean after log₂ n rounds. ``agents`` must be a power of two.

    Examples:
        >>> network = networks.one_peer_hypercube(8)
        >>> network
        one_peer_hypercube(8): 8 agents, 12 edges, 3 rounds, rho=0.0000
    """
    if agents < 2 or agents & (agents - 1):
        raise invalid("agents", "a power of two, at least 2", agents)
    dimensions = agents.bit_length() - 1
    check_size(agents, agents * dimensions)
    lower = [np.flatnonzero((np.arange(agents) & (1 << bit)) == 0) for bit in range(dimensions)]
    return tuple(_pairs(agents, left, left + (1 << bit)) for bit, left in enumerate(lower))


@builder
def random_matchings(graph: "nx.Graph[int]", rounds: int = 64, seed: int = 0) -> tuple[csr_array, ...]:
    """Random matchings of a graph: in each round, agents talk in pairs along some of its edges (weights ½ and ½).

    Edges are visited in random order, and each is taken if both ends are still free, so no further edge fits into a
    round. ``rounds`` matchings are drawn, and repeated.

    Examples:
        >>> import networkx as nx
        >>> network = networks.random_matchings(nx.cycle_graph(8), rounds=16)
        >>> len(network.rounds), network.rho < 1
        (16, True)
    """
    check_count(rounds, "rounds")
    check_graph(graph)
    if sorted(graph.nodes) != list(range(len(graph))):
        raise invalid("graph", "a networkx graph with nodes 0, …, n−1", graph)
    edges = np.array([sorted(edge) for edge in graph.edges if edge[0] != edge[1]], dtype=np.int64).reshape(-1, 2)
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(rounds):
        free, pairs = np.ones(len(graph), dtype=bool), []
        for i, j in edges[random.permutation(len(edges))]:
            if free[i] and free[j]:
                free[[i, j]] = False
                pairs.append((i, j))
        drawn.append(_pairs(len(graph), *np.array(pairs, dtype=np.int64).reshape(-1, 2).T))
    return tuple(drawn)


@builder
def alternating(networks: Sequence[Network]) -> tuple[csr_array, ...]:
    """The given networks in turn, one in each round; none of them may itself change from round to round.

    Examples:
        >>> network = networks.alternating([networks.ring(6), networks.star(6)])
        >>> f"{network.rho:.3f}", f"{networks.ring(6).rho:.3f}"
        ('0.745', '0.667')
    """
    if len({network.n for network in networks}) != 1:
        raise invalid("networks", "a list of networks of one size", [str(network.label) for network in networks])
    if changing := [network.label for network in networks if network.rounds]:
        raise ValueError(f"networks in turn must not change themselves, but {changing[0]} has a matrix for each round")
    return tuple(network.W for network in networks)


def _pairs(n: int, left: np.ndarray, right: np.ndarray) -> csr_array:
    """W of a matching in which agent ``left[k]`` averages with ``right[k]``; the others keep their rows."""
    return weigh_links(n, left, right, np.full(len(left), 0.5))
