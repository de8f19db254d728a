"""Graphs that change: the share of a disagreement that rounds leave, and how many messages agreement takes.

The paper's theory is for one W. The numbers here are computed from the matrices of the rounds and need no theory.
"""

from __future__ import annotations

import math

import numpy as np

from proxdasa.networks import Network
from proxdasa.networks.spectrum import DENSE_LIMIT

WORK = 2**33
"""The most multiplications for a measurement, which take seconds."""
SHARE = 0.1
"""Agents count as agreeing once a disagreement has shrunk to this share."""


def measure_rounds(network: Network, m: int) -> float | None:
    """The largest share of a disagreement that m rounds leave, ‖W_{r+m} ⋯ W_{r+1} − J‖; None if too costly.

    Iterations of m rounds begin at different places of the period, unless m is a multiple of it; the worst one counts.
    """
    n, period = network.n, len(network.rounds)
    starts = range(0, period, math.gcd(m, period))
    if n > DENSE_LIMIT or len(starts) * m * n * network.W.nnz > WORK:
        return None
    left = []
    for start in starts:
        x = np.eye(n) - 1 / n
        for number in range(start, start + m):
            x = network.rounds[number % period] @ x
        left.append(float(np.linalg.norm(x, 2)))
    return max(left)


def messages_to_agree(network: Network) -> float:
    """Messages that an agent sends, on average, until gossip has reduced the worst disagreement to a tenth.

    If the graph changes, rounds are counted from the first one on; in networks of more than 512 agents, whole periods
    are counted.
    """
    rho, period = network.rho, len(network.rounds)
    if network.n == 1:
        return 0.0
    if not network.rounds:
        rounds = math.ceil(math.log(SHARE) / math.log(rho) - 1e-9) if rho > SHARE else 1
        return rounds * network.messages_per_round
    if network.n > DENSE_LIMIT:
        periods = math.ceil(math.log(SHARE) / (period * math.log(rho)) - 1e-9) if rho > 0 else 1
        return periods * period * network.messages_per_round
    x, number, links = np.eye(network.n) - 1 / network.n, 0, 0
    while np.linalg.norm(x, 2) > SHARE:
        W = network.rounds[number % period]
        x, number, links = W @ x, number + 1, links + W.nnz - int(np.count_nonzero(W.diagonal()))
    return links / network.n
