"""How much memory a run needs, roughly, before it has any."""

from __future__ import annotations

from proxdasa.contracts import Algorithm, Mixing, Network, Problem
from proxdasa.engines.products import dense_pays
from proxdasa.samples import BLOCK

SCRATCH = 4
"""Tensors like a variable that a step makes besides those it returns."""
DENSE = 48
"""Bytes for each pair of agents where mixing is a product with a dense matrix, and its eigenvectors are sought."""
RECORD = 1_000
"""Bytes for the record of a trial."""


def footprint(
    algorithm: Algorithm, problem: Problem, network: Network, mixing: Mixing, trials: int, agents: range | None = None
) -> int:
    """The bytes of these agents' variables, or all, with what a step makes of them, samples, and weights for mixing.

    The problem's own data are there already, or for the problem to judge.
    """
    n, size = network.n, problem.dtype.itemsize
    rows = trials * (n if agents is None else len(agents))
    variables = rows * problem.dim * size * (len(algorithm.State._fields) + SCRATCH)
    drawn = rows * BLOCK * problem.words * (4 + size)
    dense = agents is None and dense_pays(network.W, mixing.rounds_for(network.rho))
    weights = DENSE * n**2 if dense else (16 + size) * trials * network.W.nnz
    return variables + drawn + weights
