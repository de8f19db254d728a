"""Eigenvalues of sparse graph matrices, without ever forming a dense n × n one for large n.

Two kinds of graphs make two kinds of trouble. Rings, paths and grids have eigenvalues so close to one that
Lanczos needs thousands of steps, but their matrices factorise with hardly any fill-in. Random graphs fill in
completely, but their spectral gap is wide, and Lanczos is done after a few hundred products. So the first
attempt is Lanczos, with a budget, and the second is Lanczos on the inverse; rings and trees go there at once.

All of it is deterministic: the starting vector is fixed. Only the eigenvalue is wanted, and for that Lanczos
without reorthogonalisation is enough (Paige, Accuracy and effectiveness of the Lanczos algorithm for the
symmetric eigenproblem, 1980), in three vectors of memory. That is why it is implemented here: scipy's restarted eigsh
needs many times the products on large random graphs, and refuses an operator whose only eigenvalue is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.sparse import csc_array, csr_array, diags_array
from scipy.sparse.linalg import LinearOperator, eigsh, splu

from proxdasa import caller_warnings

DENSE_LIMIT = 512
"""Up to this size LAPACK finds all eigenvalues in 25 ms; at twice the size it takes six times as long."""

ACCURACY = 1e-8
"""Residual accepted relative to the distance from one; the eigenvalue's own error is about its square."""
ROUNDING = 1e-13
"""Residual accepted in any case, because products in double precision cannot do much better."""
SHIFT = 1e-12
"""How far beyond one the inverse is taken: little against 1 − λ, which is 1.3e-9 on a ring of 100,000 agents."""
CHECK_EVERY = 10
"""Steps between two evaluations of the residual."""

Vector = NDArray[np.float64]


def rho(W: csr_array) -> float:
    """The mixing rate ρ = max(|λ₂|, |λ_n|) of a connected, symmetric, doubly stochastic W that has ρ < 1."""
    n = W.shape[0]
    if n == 1:
        return 0.0
    if n <= DENSE_LIMIT:
        values = np.linalg.eigvalsh(W.toarray())
        found = max(abs(values[0]), abs(values[-2]))
    else:
        # A connected graph with at most n edges has one cycle at most: it factorises without fill-in, and mixes slowly.
        found = largest(W, near_one=W.nnz <= 3 * n)
        # Gershgorin: λ_n ≥ 2 min w_ii − 1. With the usual weights this makes it unnecessary to compute the other end of
        # the spectrum.
        if found < 1 - 2 * W.diagonal().min():
            found = max(found, largest(-W))
    if found < 1e-12:
        return 0.0
    # Weights near machine precision could round ρ up to one, where 1/(1 − ρ) has no value.
    return min(float(found), float(np.nextafter(1.0, 0.0)))


def rho_of_rounds(rounds: Sequence[csr_array]) -> float:
    """The mean rate ρ of matrices in turn, ρ^R = ‖W_R ⋯ W_1 − J‖; 0 if they reach the exact mean."""
    n = rounds[0].shape[0]

    def disagree(x: Vector) -> Vector:
        x = x - x.mean(axis=0)
        for W in rounds:
            x = W @ x
        return x

    def square(x: Vector) -> Vector:
        x = disagree(x)
        for W in reversed(rounds):
            x = W @ x
        centred: Vector = x - x.mean(axis=0)
        return centred

    if n <= DENSE_LIMIT:
        norm = float(np.linalg.norm(disagree(np.eye(n)), 2))
    else:
        start = np.cos(np.arange(n) * 2.4)
        # Rounds that reach the exact mean leave nothing, and eigsh does not accept an operator that is zero.
        if np.linalg.norm(square(start)) < ROUNDING * n:
            return 0.0
        operator = LinearOperator((n, n), matvec=square, dtype=np.float64)
        norm = math.sqrt(float(eigsh(operator, k=1, v0=start, tol=ACCURACY, return_eigenvectors=False)[0]))
    return 0.0 if norm < 1e-12 else min(norm ** (1 / len(rounds)), np.nextafter(1, 0) if norm < 1 else 1.0)


def smallest(W: csr_array) -> float:
    """The smallest eigenvalue λ_n of a connected, symmetric, doubly stochastic W."""
    if W.shape[0] <= DENSE_LIMIT:
        return float(np.linalg.eigvalsh(W.toarray())[0])
    return -largest(-W)


def laplacian_ends(L: csr_array) -> tuple[float, float]:
    """The eigenvalues λ_{n−1}(L) and λ₁(L) of the Laplacian of a graph with at least one edge."""
    if L.shape[0] <= DENSE_LIMIT:
        values = np.linalg.eigvalsh(L.toarray())
        return float(values[1]), float(values[-1])
    scale = 2 * L.diagonal().max()
    scaled = csr_array(L / scale)
    return scale * (1 - largest(csr_array(_identity(scaled) - scaled))), scale * largest(scaled)


def largest(A: csr_array, near_one: bool = False) -> float:
    """The largest eigenvalue of A on the vectors that sum to zero, where none may exceed one.

    A is symmetric and maps these vectors to themselves, as W, −W and L/(2Δ) do. What counts is the distance
    1 − λ, so that is what the accuracy is relative to. ``near_one`` says that the inverse is worth the first attempt.
    """
    attempts = (_by_inverse, _by_products) if near_one else (_by_products, _by_inverse)
    for attempt in attempts:
        value, converged = attempt(A)
        if converged:
            return value
    caller_warnings.warn("the eigenvalues of this network were found only roughly; rho may be off")
    return value


def _by_products(A: csr_array) -> tuple[float, bool]:
    """The eigenvalue by Lanczos on A, and whether it has converged."""
    return _lanczos(lambda v: A @ v, A.shape[0], steps=1000, accept=lambda value: max(ACCURACY * (1 - value), ROUNDING))


def _by_inverse(A: csr_array) -> tuple[float, bool]:
    """The eigenvalue by Lanczos on (I − A)⁻¹, and whether it has converged."""
    # One is an eigenvalue of W, so the matrix to invert is shifted a little; what that amplifies is the
    # constant vector, which is projected out.
    shifted = csc_array((1 + SHIFT) * _identity(A) - A)
    factors = splu(shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    inverse, converged = _lanczos(factors.solve, A.shape[0], steps=200, accept=lambda value: ACCURACY * value)
    return 1 + SHIFT - 1 / inverse, converged


def _identity(A: csr_array) -> csr_array:
    return csr_array(diags_array(np.ones(A.shape[0])))


def _lanczos(
    apply: Callable[[Vector], Vector], n: int, steps: int, accept: Callable[[float], float]
) -> tuple[float, bool]:
    """The largest Ritz value on the vectors that sum to zero, and whether its residual became acceptable.

        β_k v_{k+1} = A v_k − α_k v_k − β_{k−1} v_{k−1},  T_k = tridiag(β, α, β),  T_k s = θ s

    with the largest such θ; its residual is β_k times the last entry of s.
    """
    v = np.random.default_rng(0).standard_normal(n)
    v -= v.mean()
    v /= np.linalg.norm(v)
    previous = np.zeros(n)
    alphas: list[float] = []
    betas: list[float] = []
    beta = size = value = 0.0
    for k in range(1, steps + 1):
        w = apply(v)
        # Every product is projected: rounding would otherwise let the constant vector grow back.
        w -= w.mean()
        w -= beta * previous
        alpha = float(w @ v)
        w -= alpha * v
        beta = float(np.linalg.norm(w))
        alphas.append(alpha)
        size = max(size, abs(alpha) + beta)
        exhausted = beta <= 1e-14 * size  # few distinct eigenvalues, and all are found
        if exhausted or k % CHECK_EVERY == 0:
            top, s = eigh_tridiagonal(alphas, betas, select="i", select_range=(k - 1, k - 1))
            value = float(top[0])
            if exhausted or beta * abs(s[-1, 0]) <= accept(value):
                return value, True
        betas.append(beta)
        previous, v = v, w / beta
    return value, False
