"""Builders: functions that return a `Network`.

The body of each function makes a graph and returns its weights W. The decorator `builder` makes W a network and records
the function's name and arguments as its recipe, from which a config file can make the network again.
"""

import math
from collections.abc import Sequence

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, sparray, spmatrix

from proxdasa import memory_budget
from proxdasa.checks import check_count, check_probability, check_whole, invalid
from proxdasa.networks.matrix_checks import check_dense, check_matrix
from proxdasa.networks.recipes import builder
from proxdasa.networks.weights import Graph, Weights, check_graph, constant, metropolis

AGENT, EDGE = 600, 500
"""Bytes of memory for each agent and each edge while a graph is made into a network (measured)."""


@builder
def ring(agents: int) -> csr_array:
    """Each agent between two others, and W = I − L/3: from three agents on, all weights are 1/3.

    Two agents have one edge, of weight 1/3, and one agent keeps its own value.

    Examples:
        >>> networks.ring(8)
        ring(8): 8 agents, 8 edges, rho=0.8047
    """
    check_count(agents, "agents")
    check_size(agents, agents)
    return constant(nx.cycle_graph(agents), 1 / 3)


@builder
def from_links(links: Sequence[Sequence[str]], weights: Weights = metropolis) -> csr_array:
    """The graph with these links between agents that have names; agents are numbered in alphabetical order.

    Examples:
        >>> networks.from_links([["berlin", "munich"], ["munich", "aachen"]]).edges.tolist()  # aachen is agent 0
        [[0, 2], [1, 2]]
    """
    for link in links:
        if isinstance(link, str) or len(link) != 2 or not all(isinstance(name, str) for name in link):
            raise invalid("links", "a list of pairs of names", link)
    names = sorted({name for link in links for name in link})
    graph = nx.empty_graph(len(names))
    graph.add_edges_from((names.index(left), names.index(right)) for left, right in links)
    return weights(graph)


@builder
def path(agents: int, weights: Weights = metropolis) -> csr_array:
    """Agents in a line: the slowest of all usual graphs to mix.

    Examples:
        >>> networks.path(8)
        path(8): 8 agents, 7 edges, rho=0.9493
        >>> networks.path(8, weights=networks.best_constant)
        path(8, weights=best_constant): 8 agents, 7 edges, rho=0.9239
    """
    check_count(agents, "agents")
    check_size(agents, agents)
    return weights(nx.path_graph(agents))


@builder
def star(agents: int, weights: Weights = metropolis) -> csr_array:
    """Agent 0 in the middle, an edge to each of the others: the graph of a server and its clients.

    Examples:
        >>> networks.star(8)
        star(8): 8 agents, 7 edges, rho=0.8750
    """
    check_count(agents, "agents")
    check_size(agents, agents)
    return weights(nx.star_graph(agents - 1))


@builder
def complete(agents: int) -> csr_array:
    """Everyone talks to everyone, W = 11ᵀ/n: one round is exact averaging, ρ = 0.

    Examples:
        >>> networks.complete(8)
        complete(8): 8 agents, 28 edges, rho=0.0000
    """
    check_count(agents, "agents")
    check_dense(agents**2)
    return csr_array(np.full((agents, agents), 1 / agents))


@builder
def grid(rows: int, columns: int, weights: Weights = metropolis) -> csr_array:
    """A rectangle of agents, numbered row by row, each with its neighbours above, below, left and right.

    Examples:
        >>> networks.grid(2, 3).neighbours(0)
        (1, 3)
    """
    check_count(rows, "rows")
    check_count(columns, "columns")
    check_size(rows * columns, 2 * rows * columns)
    return weights(_number_nodes(nx.grid_2d_graph(rows, columns)))


@builder
def torus(rows: int, columns: int, weights: Weights = metropolis) -> csr_array:
    """A grid whose opposite sides are joined; along a side of one or two agents there is nothing to join.

    Examples:
        >>> networks.torus(3, 4)
        torus(3, 4): 12 agents, 24 edges, rho=0.6000
    """
    check_count(rows, "rows")
    check_count(columns, "columns")
    check_size(rows * columns, 2 * rows * columns)
    return weights(_number_nodes(nx.grid_2d_graph(rows, columns, periodic=True)))


@builder
def ladder(rungs: int, weights: Weights = metropolis) -> csr_array:
    """Two lines of agents side by side, 2 · rungs in all; agent i stands opposite agent rungs + i.

    Examples:
        >>> networks.ladder(3).neighbours(0)
        (1, 3)
    """
    check_count(rungs, "rungs")
    check_size(2 * rungs, 3 * rungs)
    return weights(nx.ladder_graph(rungs))


@builder
def hypercube(dimension: int, weights: Weights = metropolis) -> csr_array:
    """2^dimension agents, neighbours where their numbers differ in one binary digit.

    Examples:
        >>> networks.hypercube(3).neighbours(0)
        (1, 2, 4)
    """
    check_whole(dimension, "dimension", least=0, most=20)  # 2^20 is a million agents
    check_size(2**dimension, dimension * 2**dimension // 2)
    # networkx gives dimension 0 no node at all.
    return weights(_number_nodes(nx.hypercube_graph(dimension)) if dimension else nx.empty_graph(1))


@builder
def exponential(agents: int, weights: Weights = metropolis) -> csr_array:
    """The static exponential graph: agent i is joined to i ± 2^j (mod n) for every power 2^j ≤ n/2.

    About 2 log₂ n neighbours each, and 1 − ρ = 2/log₂ n where n is a power of two; a ring has 1 − ρ of the order 1/n².
    Ying et al., Exponential graph is provably efficient for decentralized deep training, 2021; undirected here.

    Examples:
        >>> networks.exponential(16)
        exponential(16): 16 agents, 56 edges, rho=0.5000
    """
    check_count(agents, "agents")
    check_size(agents, agents * agents.bit_length())
    powers = [2**j for j in range((agents // 2).bit_length())]
    return weights(nx.circulant_graph(agents, powers))


@builder
def erdos_renyi(agents: int, probability: float, seed: int = 0, weights: Weights = metropolis) -> csr_array:
    """Each pair of agents is joined with the given probability, independently of the others.

    Erdős and Rényi, On random graphs I, 1959; connected with high probability above log(n)/n.

    Examples:
        >>> network = networks.erdos_renyi(20, probability=0.3, seed=1)
        >>> network.n, len(network.edges)
        (20, 60)
    """
    check_count(agents, "agents")
    check_probability(probability, "probability")
    check_size(agents, round(1e6 * probability) * agents**2 // 2_000_000)
    graph = nx.fast_gnp_random_graph(agents, probability, seed=seed)
    threshold = math.log(agents) / agents
    _check_connected(graph, seed, f"a larger probability (log(n)/n is {threshold:.3g}, this one is {probability:g})")
    return weights(graph)


@builder
def regular(agents: int, degree: int, seed: int = 0, weights: Weights = metropolis) -> csr_array:
    """A random graph where all agents have the same number of neighbours; from degree 3 on it mixes fast.

    Examples:
        >>> networks.regular(20, degree=3, seed=1).degrees.tolist()[:5]
        [3, 3, 3, 3, 3]
    """
    check_count(agents, "agents")
    check_whole(degree, "degree", least=0)
    if degree >= agents or agents * degree % 2:
        raise ValueError(
            f"there is no graph of {agents} agents with {degree} neighbours each: "
            f"degree must be less than agents, and one of the two even"
        )
    check_size(agents, agents * degree // 2)
    graph = _number_nodes(nx.random_regular_graph(degree, agents, seed=seed))
    _check_connected(graph, seed, "a larger degree (from 3 on most such graphs are connected)")
    return weights(graph)


@builder
def paper() -> csr_array:
    """The 8 agents and 24 edges of the MNIST experiment of Prox-DASA, W = I − L/8, ρ = 0.375.

    Examples:
        >>> networks.paper()
        paper(): 8 agents, 24 edges, rho=0.3750
    """
    # As published, with agents numbered from one.
    edges = "12 23 36 64 45 57 78 81 13 37 74 48 82 25 56 61 14 42 26 67 71 15 58 38"
    graph = nx.empty_graph(8)
    graph.add_edges_from((int(edge[0]) - 1, int(edge[1]) - 1) for edge in edges.split())
    return constant(graph, 1 / 8)


@builder
def from_graph(graph: Graph, weights: Weights = metropolis) -> csr_array:
    """Any undirected networkx graph; agents are its nodes, sorted, or as given if they cannot be sorted.

    Self-loops and edge attributes are ignored: the weights decide what an agent keeps and gives.

    Examples:
        >>> import networkx
        >>> networks.from_graph(networkx.petersen_graph())
        from_graph(10 agents, 15 edges): 10 agents, 15 edges, rho=0.5000
    """
    check_graph(graph)
    return weights(_number_nodes(graph))


@builder
def from_matrix(W: ArrayLike | sparray | spmatrix) -> csr_array:
    """Any symmetric, doubly stochastic W, dense or sparse; its graph is where it is not zero.

    A W in float32 or float16 is checked to that precision and then corrected in double precision: it becomes
    (W + Wᵀ)/2, and each self weight is set so that its row sums to one.

    Examples:
        >>> networks.from_matrix([[0.75, 0.25], [0.25, 0.75]])
        from_matrix(2 agents, 1 edge): 2 agents, 1 edge, rho=0.5000
    """
    return check_matrix(W)


def _number_nodes(graph: Graph) -> Graph:
    """The same graph with nodes 0 … n−1 in ascending order and no self-loops."""
    try:
        nodes = sorted(graph)
    except TypeError:  # nodes of different types cannot be compared
        nodes = list(graph)
    number = {node: i for i, node in enumerate(nodes)}
    plain: Graph = nx.empty_graph(len(nodes))
    plain.add_edges_from((number[a], number[b]) for a, b in graph.edges if a != b)
    return plain


def check_size(agents: int, edges: int) -> None:
    """Refuse a graph that is too large before it is made."""
    needed = AGENT * agents + EDGE * edges
    memory_budget.check(needed, f"a graph of {agents:,} agents and {edges:,} edges", "fewer agents or edges need less")


def _check_connected(graph: Graph, seed: int, remedy: str) -> None:
    """Refuse a random graph that falls into parts, with advice on how to draw a connected one."""
    parts = nx.number_connected_components(graph)
    if parts > 1:
        raise ValueError(
            f"the random graph drawn with seed={seed} is not connected: it falls into {parts} parts; "
            f"try another seed or {remedy}"
        )
