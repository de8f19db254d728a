"""The checks that make a matrix a mixing matrix, each with a message that names the agents concerned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import block_array, csr_array, diags_array, issparse
from scipy.sparse.csgraph import connected_components

from proxdasa import memory_budget

if TYPE_CHECKING:
    from scipy.sparse import sparray, spmatrix

TOLERANCE = 1e-9
"""How far rounding may take W from symmetry, from rows that sum to one and from weights that are not negative."""
ROUNDINGS = 4
"""The same in units of W's own precision, where that is below double: 5e-7 in float32, 0.004 in float16."""


DENSE = 60
"""Bytes of memory for each entry of a matrix without zeros, including those for checking it (measured)."""


def check_dense(entries: int) -> None:
    """Refuse a matrix without zeros that is too large before it is made."""
    memory_budget.check(DENSE * entries, f"W with {entries:,} entries", "fewer agents or neighbours need less")


def check_matrix(given: ArrayLike | sparray | spmatrix) -> csr_array:
    """W as a sparse copy in canonical form, if it can reach consensus.

    W = Wᵀ,  W1 = 1,  W ≥ 0,  connected,  ρ = max(|λ₂|, |λ_n|) < 1

    A matrix of less than double precision is checked to its own precision. It is then made symmetric, (W + Wᵀ)/2, and
    the self weights become w_ii = 1 − Σ_j w_ij in double precision; where that would be negative, all w_ij shrink by a
    factor.
    """
    W, tolerance = _check_weights(given)
    _check_connected(W)
    _check_rho(W, tolerance)
    return W


def check_weights(given: ArrayLike | sparray | spmatrix) -> csr_array:
    """A matrix as in `check_matrix`, which need neither be connected nor reach consensus by itself."""
    return _check_weights(given)[0]


def _check_weights(given: ArrayLike | sparray | spmatrix) -> tuple[csr_array, float]:
    """The matrix, and how far rounding may have taken its entries."""
    matrix: Any = given if issparse(given) else np.asarray(given)
    rounding = ROUNDINGS * float(np.finfo(matrix.dtype).eps) if np.issubdtype(matrix.dtype, np.floating) else 0.0
    tolerance = max(TOLERANCE, rounding)
    W = _check_symmetric(_check_square(matrix), tolerance)
    _check_rows(W, tolerance)
    _check_signs(W, tolerance)
    # Within the tolerance, so this is rounding; a negative weight would break bounds that rely on W ≥ 0.
    W.data[W.data < 0] = 0.0
    if rounding > TOLERANCE:
        W = _renormalise(W)
    W.eliminate_zeros()
    W.sort_indices()
    return W, tolerance


def _check_square(matrix: Any) -> csr_array:
    if np.iscomplexobj(matrix):
        raise TypeError("W must hold real numbers; got complex ones")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        shape = tuple(matrix.shape)
        raise ValueError(f"W must be a square matrix with one row per agent; got shape {shape}")
    W: csr_array = csr_array(matrix, dtype=np.float64, copy=True)
    W.sum_duplicates()
    if not np.isfinite(W.data).all():
        i, j = _place(W, ~np.isfinite(W.data))
        raise ValueError(f"W must be finite: {_name_of(i, j)} is {W[i, j]}")
    return W


def _check_symmetric(W: csr_array, tolerance: float) -> csr_array:
    difference = csr_array(abs(W - W.T))
    worst = difference.data.max(initial=0.0)
    if worst > tolerance:
        i, j = _place(difference, difference.data == worst)
        raise ValueError(
            f"W must be symmetric: agent {i} takes {W[i, j]:.6g} of agent {j}, "
            f"but agent {j} takes {W[j, i]:.6g} of agent {i}; give both the same weight"
        )
    # Exactly symmetric from here on: one agent reads w_ij, the other w_ji, and means survive only if they are the same.
    return csr_array((W + W.T) / 2) if worst > 0 else W


def _check_rows(W: csr_array, tolerance: float) -> None:
    sums = np.asarray(W.sum(axis=1))
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > tolerance:
        raise ValueError(
            f"every row of W must sum to one: row {worst}, the weights of agent {worst}, "
            f"sums to {sums[worst]:.10g}; correct its self weight, w_ii = 1 − Σ_j w_ij"
        )


def _check_signs(W: csr_array, tolerance: float) -> None:
    least = W.data.min()
    if least < -tolerance:
        i, j = _place(W, W.data == least)
        raise ValueError(
            f"W must not have negative weights: {_name_of(i, j)} is {least:.6g}; "
            f"smaller weights on the edges, as metropolis chooses them, leave positive self weights"
        )


def _renormalise(W: csr_array) -> csr_array:
    """Set the self weights so that rows sum to one in double precision; the weights of edges are symmetric already."""
    others = csr_array(W - diags_array(W.diagonal()))
    others /= max(1.0, others.sum(axis=1).max())
    return csr_array(others + diags_array(np.maximum(1 - others.sum(axis=1), 0.0)))


def _check_connected(W: csr_array) -> None:
    parts, part = connected_components(W, directed=False)
    if parts > 1:
        here, there = int((part == 0).argmax()), int((part == 1).argmax())
        raise ValueError(
            f"the graph is not connected: it falls into {parts} parts, and no path leads, for example, "
            f"from agent {here} to agent {there}; add edges between the parts"
        )


def _check_rho(W: csr_array, tolerance: float) -> None:
    """Refuse ρ = 1. For a connected W that means an eigenvalue −1: no self weights, and a bipartite graph.

    A connected graph is bipartite exactly if its double cover [[0, A], [A, 0]] is not connected.
    """
    if (W.diagonal() > tolerance).any():
        return
    others = csr_array(W - diags_array(W.diagonal()))
    others.eliminate_zeros()
    cover = block_array([[None, others], [others, None]], format="csr")
    parts, _ = connected_components(cover, directed=False)
    if parts > 1:
        raise ValueError(
            "ρ = 1, so mixing never settles: no agent has a self weight and the graph is bipartite, "
            "so that the group of agent 0 and the group of its neighbours only swap their values; "
            "give at least one agent a positive self weight, for example by (I + W)/2"
        )


def _place(W: csr_array, where: NDArray[np.bool_]) -> tuple[int, int]:
    """Row and column of the first stored entry that is marked."""
    at = int(where.argmax())
    return int(np.searchsorted(W.indptr, at, side="right")) - 1, int(W.indices[at])


def _name_of(i: int, j: int) -> str:
    return f"the self weight of agent {i}" if i == j else f"the weight between agents {i} and {j}"
