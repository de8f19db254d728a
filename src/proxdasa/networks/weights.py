"""Weights: from a graph to a mixing matrix.

Each function takes an undirected networkx graph and returns a symmetric W with rows summing to one, agents in
the order of the graph's nodes. Self-loops and edge attributes of the graph are ignored. Below, A is the
adjacency matrix, D the diagonal matrix of degrees, L = D − A the Laplacian and Δ the largest degree.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, diags_array

from proxdasa import memory_budget
from proxdasa.checks import check_positive_number
from proxdasa.networks.spectrum import laplacian_ends

# networkx's graphs are generic for type checkers only.
if TYPE_CHECKING:
    Graph = nx.Graph[Any]
else:
    Graph = nx.Graph

Weights = Callable[[Graph], csr_array]
"""A rule that gives a graph its mixing matrix."""


def metropolis(graph: Graph) -> csr_array:
    """Metropolis-Hastings weights, which fit every graph and need only the degrees of neighbours.

        w_ij = 1/(1 + max(deg_i, deg_j)) for neighbours,  w_ii = 1 − Σ_j w_ij

    Xiao, Boyd and Kim, Distributed average consensus with least-mean-square deviation, 2007.

    Examples:
        >>> import networkx
        >>> networks.metropolis(networkx.path_graph(3)).toarray().round(3)
        array([[0.667, 0.333, 0.   ],
               [0.333, 0.333, 0.333],
               [0.   , 0.333, 0.667]])
    """
    A, degrees = _adjacency(graph)
    A.data = 1 / (1 + np.maximum(degrees[A.row], degrees[A.col]))
    return _with_self_weights(A)


def max_degree(graph: Graph) -> csr_array:
    """The same weight on every edge, small enough for the agent with most neighbours: W = I − L/(Δ + 1).

    Examples:
        >>> import networkx
        >>> networks.max_degree(networkx.path_graph(3)).toarray().round(3)
        array([[0.667, 0.333, 0.   ],
               [0.333, 0.333, 0.333],
               [0.   , 0.333, 0.667]])
    """
    _, degrees = _adjacency(graph)
    return constant(graph, 1 / (1 + float(degrees.max())))


def best_constant(graph: Graph) -> csr_array:
    """The weight, the same on every edge, that makes ρ smallest; on uneven graphs it can be too large to use.

        W = I − 2/(λ₁(L) + λ_{n−1}(L)) L

    Xiao and Boyd, Fast linear iterations for distributed averaging, 2004.

    Examples:
        >>> import networkx
        >>> networks.best_constant(networkx.path_graph(3)).toarray().round(3)
        array([[0.5, 0.5, 0. ],
               [0.5, 0. , 0.5],
               [0. , 0.5, 0.5]])
    """
    A, degrees = _adjacency(graph)
    if A.nnz == 0:
        return _with_self_weights(A)
    smallest, greatest = laplacian_ends(csr_array(diags_array(degrees.astype(float)) - A))
    return constant(graph, 2 / (smallest + greatest))


def fastest(graph: Graph) -> csr_array:
    """The weights with the smallest possible ρ, by a semidefinite programme; needs cvxpy (``proxdasa[weights]``).

        minimise ‖W − 11ᵀ/n‖₂  subject to  W = Wᵀ ≥ 0,  W1 = 1,  w_ij = 0 where there is no edge

    Edges that get weight 0 are dropped. Takes a second for 40 agents and minutes for 100.
    Boyd, Diaconis and Xiao, Fastest mixing Markov chain on a graph, 2004.

    Examples:
        >>> network = networks.path(4, weights=networks.fastest)
        >>> f"{network.rho:.3f}, with Metropolis weights {networks.path(4).rho:.3f}"
        '0.707, with Metropolis weights 0.805'
    """
    A, degrees = _adjacency(graph)
    if A.nnz == 0:
        return _with_self_weights(A)
    try:
        cp: Any = importlib.import_module("cvxpy")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("fastest needs cvxpy, which is missing: pip install 'proxdasa[weights]'") from error
    n, above = len(degrees), A.row < A.col
    i, j = A.row[above], A.col[above]
    what = f"the fastest weights of {n} agents and {len(i)} edges"
    memory_budget.check(32 * n * len(i), what, "metropolis needs less")
    ends, edge = np.zeros((n, len(i))), np.arange(len(i))
    ends[i, edge], ends[j, edge] = 1, -1
    w, ρ = cp.Variable(len(i), nonneg=True), cp.Variable()
    disagreement = np.eye(n) - 1 / n - ends @ cp.diag(w) @ ends.T
    inside = [disagreement << ρ * np.eye(n), disagreement >> -ρ * np.eye(n), np.abs(ends) @ w <= 1]
    cp.Problem(cp.Minimize(ρ), inside).solve(solver=cp.CLARABEL)
    if w.value is None:
        raise ValueError("cvxpy found no weights for this graph; use metropolis weights, which fit every graph")
    # The solver is accurate to about 1e-8: smaller weights count as 0, and no agent's edges may sum to more than 1.
    found = np.where(w.value > 1e-6, w.value, 0.0) / max(1.0, float((np.abs(ends) @ w.value).max()))
    return weigh_links(n, i, j, found)


def constant(graph: Graph, weight: float) -> csr_array:
    """The given weight on every edge: W = I − weight · L; refused where a self weight would be negative.

    Examples:
        >>> import networkx
        >>> networks.constant(networkx.path_graph(3), 0.25).toarray()
        array([[0.75, 0.25, 0.  ],
               [0.25, 0.5 , 0.25],
               [0.  , 0.25, 0.75]])
    """
    check_positive_number(weight, "the weight of an edge")
    A, degrees = _adjacency(graph)
    hub = int(degrees.argmax())
    self_weight = 1 - weight * int(degrees[hub])
    if self_weight < -1e-12:
        raise ValueError(
            f"a weight of {weight:.6g} on every edge does not fit this graph: agent {hub} has {degrees[hub]} "
            f"neighbours and would get the negative self weight {self_weight:.6g}; "
            f"use metropolis weights, which fit every graph"
        )
    A.data = np.full(A.nnz, float(weight))
    return _with_self_weights(A)


def weigh_links(n: int, left: NDArray[Any], right: NDArray[Any], weights: NDArray[np.float64]) -> csr_array:
    """W of n agents with these links, each given once, and self weights."""
    ends = np.concatenate([left, right]), np.concatenate([right, left])
    return _with_self_weights(coo_array((np.concatenate([weights, weights]), ends), shape=(n, n)))


def check_graph(graph: object) -> None:
    """Refuse anything but an undirected graph with at most one edge between two agents."""
    if not isinstance(graph, nx.Graph):
        raise TypeError(f"graph must be an undirected networkx.Graph; got {type(graph).__name__}")
    if graph.is_directed():
        raise ValueError("graph is directed, but messages go both ways: use graph.to_undirected()")
    if graph.is_multigraph():
        raise ValueError("graph is a multigraph, but two agents share one edge: use networkx.Graph(graph)")
    if len(graph) == 0:
        raise ValueError("graph is empty: at least one agent is needed")


def _adjacency(graph: Graph) -> tuple[coo_array, NDArray[np.int64]]:
    """The adjacency matrix without self-loops, and the degrees."""
    check_graph(graph)
    A = coo_array(nx.to_scipy_sparse_array(graph, weight=None, dtype=np.dtype(np.float64), format="coo"))
    others = A.row != A.col
    A = coo_array((A.data[others], (A.row[others], A.col[others])), shape=A.shape)
    return A, np.bincount(A.row, minlength=A.shape[0])


def _with_self_weights(A: coo_array) -> csr_array:
    """Add the self weights that make rows sum to one; those below rounding become zero."""
    kept = 1 - A.sum(axis=1)
    kept[np.abs(kept) < 1e-12] = 0.0
    return csr_array(A + diags_array(kept))
