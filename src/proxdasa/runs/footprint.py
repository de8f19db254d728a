"""An estimate of the memory that a run needs, before any is allocated."""

from __future__ import annotations

from collections.abc import Sequence

from proxdasa.conditions import Condition, MessageNoise
from proxdasa.contracts import Algorithm, Mixing, Network, Problem
from proxdasa.engines.products import dense_pays
from proxdasa.samples import BLOCK

SCRATCH = 4
"""How many temporary tensors of the size of a variable a step needs."""
SLICED = 2
"""The same for a step in slices: a gradient, and what measuring needs."""
COPIES = 3
"""Tensors of the size of a variable for each compressed vector: old copies, new ones, and those of neighbours."""
LATE = 6
"""Tensors of the size of a variable for each vector and age if messages are late: old, new and those on their way."""
DENSE = 48
"""Bytes for each pair of agents where mixing is one dense product, computed from eigenvectors of W."""
EVENT = 64 * 18
"""Bytes for each entry of W where links or agents fail: events of many rounds at once (measured, four conditions)."""
RECORD = 1_000
"""Bytes for one record of one trial."""


def footprint(
    algorithm: Algorithm,
    problem: Problem,
    network: Network,
    mixing: Mixing,
    trials: int,
    agents: range | None = None,
    varies: bool = False,
    noise: int = 0,
    oldest: int = 0,
    sliced: bool = False,
) -> int:
    """Bytes for variables, temporaries and samples of these agents (default: all), and for the weights of mixing.

    ``varies`` says that links or agents may fail, ``noise`` how many rows of noise there are at a time (`noise_rows`),
    ``oldest`` how late messages may be, ``sliced`` that steps are taken in slices.
    The problem's own data are not included: they are in memory already, or the problem checks them itself.
    """
    n, size = network.n, problem.dtype.itemsize
    rows = trials * (n if agents is None else len(agents))
    variables = rows * problem.dim * size * (len(algorithm.State._fields) + (SLICED if sliced else SCRATCH))
    if compression := getattr(mixing, "compression", None):
        copies = COPIES * algorithm.facts.vectors + (16 if compression.compressor.words(problem.dim) else 0) / size
        variables += int(rows * problem.dim * size * copies)
    variables += LATE * oldest * algorithm.facts.vectors * rows * problem.dim * size
    drawn = rows * BLOCK * problem.words * (4 + size)
    dense = agents is None and dense_pays(network.W, mixing.rounds_for(network.rho))
    weights = DENSE * n**2 if dense else (16 + size) * trials * network.W.nnz
    events = EVENT * trials * network.W.nnz if varies or network.rounds else 0
    return variables + drawn + weights + events + (12 + 2 * size) * trials * noise * problem.dim


def noise_rows(conditions: Sequence[Condition], network: Network, vectors: int) -> int:
    """How many rows of noise are made at a time: one for each agent or, if the noise is your own, for each message."""
    kinds = {isinstance(each, MessageNoise) for each in conditions if each.concerns == "messages"}
    if not kinds:
        return 0
    return network.n if all(kinds) else vectors * network.W.nnz
