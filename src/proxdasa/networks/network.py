"""The network: a mixing matrix that has been checked, and its properties.

A `Network` exists only if its W can reach consensus: symmetric, rows summing to one, no negative weights,
connected, and ρ < 1. Code that gets a network need not check it again. W is sparse and must not be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, triu

from proxdasa.networks.matrix_checks import TOLERANCE, check_matrix, check_weights
from proxdasa.networks.spectrum import rho, rho_of_rounds, smallest


@final
@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """A connected graph of n agents with symmetric, doubly stochastic weights W and ρ < 1.

    Usually made by a builder such as ``ring(8)``; ``from_matrix(W)`` takes any other W.

    Examples:
        >>> network = networks.ring(5)
        >>> network
        ring(5): 5 agents, 5 edges, rho=0.5393
        >>> network.neighbours(0), network.degrees.tolist()
        ((1, 4), [2, 2, 2, 2, 2])
        >>> network.W.toarray()[0].round(2).tolist()
        [0.33, 0.33, 0.0, 0.0, 0.33]
    """

    W: csr_array
    """The mixing matrix: w_ij is what agent i takes of agent j's rows. Always sparse, with sorted indices."""
    label: str
    """The name in tables and figures."""
    recipe: Mapping[str, object]
    """How it was made, in plain values: the builder's name and its arguments."""
    rounds: tuple[csr_array, ...] = ()
    """The matrices of consecutive rounds, if the graph changes; W is then their mean, on all of their edges."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "W", check_matrix(self.W))
        if self.rounds:
            object.__setattr__(self, "rounds", tuple(check_weights(each) for each in self.rounds))
            self._check_mean()
            if not self.rho < 1:
                raise ValueError("the matrices of all rounds together do not bring the agents closer to each other")

    def _check_mean(self) -> None:
        """Refuse a W that is not the mean of all rounds: messages go along its edges only."""
        rounds = self.rounds
        same = all(each.shape == self.W.shape for each in rounds)
        if not same or abs(self.W - sum(rounds[1:], start=rounds[0]) / len(rounds)).max() > TOLERANCE:
            raise ValueError("W must be the mean of the matrices of all rounds")

    @property
    def n(self) -> int:
        """The number of agents."""
        return int(self.W.shape[0])

    @cached_property
    def rho(self) -> float:
        """ρ = max(|λ₂|, |λ_n|): one round of W shrinks disagreement at least by this factor.

        If the graph changes, this holds on average over all rounds: ρ^R = ‖W_R ⋯ W_1 − J‖, with J = 11ᵀ/n.
        """
        return rho_of_rounds(self.rounds) if self.rounds else rho(self.W)

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """λ_n of W: near −1 where a graph is nearly bipartite and agents give themselves little weight."""
        return smallest(self.W)

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """The number of neighbours of each agent, itself not counted."""
        return np.bincount(self.edges.ravel(), minlength=self.n)

    @cached_property
    def messages_per_round(self) -> float:
        """Messages that an agent sends in a round, on average over agents and, if the graph changes, over rounds."""
        rounds = self.rounds or (self.W,)
        sent = sum(W.nnz - int(np.count_nonzero(W.diagonal())) for W in rounds)
        return sent / (len(rounds) * self.n)

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """The edges as rows (i, j) with i < j, in ascending order."""
        return np.stack([self._upper.row, self._upper.col], axis=1).astype(np.int64)

    @cached_property
    def graph(self) -> nx.Graph[int]:
        """The graph with nodes 0 … n−1 and the weights w_ij as edge attribute ``weight``; frozen."""
        graph: nx.Graph[int] = nx.empty_graph(self.n)
        upper = self._upper
        graph.add_weighted_edges_from(zip(upper.row.tolist(), upper.col.tolist(), upper.data.tolist(), strict=True))
        nx.freeze(graph)
        return graph

    @cached_property
    def _upper(self) -> coo_array:
        # Through CSR, for the order of rows and columns.
        return csr_array(triu(self.W, k=1)).tocoo()

    def neighbours(self, i: int) -> tuple[int, ...]:
        """The agents that agent i exchanges messages with, in ascending order."""
        if not 0 <= i < self.n:
            raise ValueError(f"there is no agent {i}: agents are numbered from 0 to {self.n - 1}")
        row = self.W.indices[self.W.indptr[i] : self.W.indptr[i + 1]]
        return tuple(row[row != i].tolist())

    def describe(self) -> dict[str, object]:
        """The recipe, ready for JSON."""
        return dict(self.recipe)

    def __repr__(self) -> str:
        agents, edges = count_of(self.n, "agent"), count_of(len(self.edges), "edge")
        # Four digits of 0.99999 would read as one, which no network has.
        rate = f"{self.rho:.4f}" if self.rho < 0.9999 else f"1-{1 - self.rho:.2e}"
        rounds = f", {len(self.rounds)} rounds" if self.rounds else ""
        return f"{self.label}: {agents}, {edges}{rounds}, rho={rate}"


def count_of(number: int, noun: str) -> str:
    """The number and its noun, in the plural unless it is one: 1 agent, 8 agents."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
