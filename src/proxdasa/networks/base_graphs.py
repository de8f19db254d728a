"""Base-(k+1) graphs: consecutive rounds, each with few neighbours, after which all agents have the exact mean.

Takezawa, Sato, Bao, Niwa and Yamada, Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized
Learning via Finite-time Convergence, NeurIPS 2023.

If n is a product of factors up to k + 1, agents are numbered by digits of these bases, and in each round those that
differ in one digit only take their average: all k + 1 or fewer of a group are neighbours.

If n has a larger prime factor, it is written as n = Σ_l a_l (k+1)^{p_l}, p_1 > p_2 > …, and agents are divided into
parts of a_l (k+1)^{p_l}. First, each part finds its mean in this way. Then, in turn, every member of the later parts
exchanges values with a_l agents of part l, one of each of its blocks of (k+1)^{p_l}, with the weights

    w = |V_l| / (a_l Σ_{j≥l} |V_j|)

so that the mean of the later parts becomes that of all agents, and so does the mean of each block of part l. Finally,
once its part has had its turn, each block finds its mean.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from proxdasa.checks import check_count
from proxdasa.networks.graphs import check_size
from proxdasa.networks.recipes import builder
from proxdasa.networks.weights import weigh_links

Agents = NDArray[np.int64]


class Links(NamedTuple):
    """Links between agents, with their weights: what happens in a round."""

    left: Agents
    right: Agents
    weights: NDArray[np.float64]


@builder
def base_graph(agents: int, k: int = 1) -> tuple[csr_array, ...]:
    """The Base-(k+1) graph: the exact mean after finitely many rounds, with at most k neighbours in each of them.

    For any number of agents, in at most 2 log_{k+1}(n) + 2 rounds (Takezawa et al. 2023); with k = 1 and a power of two
    it is the one-peer hypercube. If n = p q, where the factors of p are at most k + 1, blocks of q agents may find
    their means first and agents of different blocks theirs after that; that is done if it takes no more rounds.

    Examples:
        >>> network = networks.base_graph(6)
        >>> network
        base_graph(6): 6 agents, 7 edges, 4 rounds, rho=0.0000
        >>> [len(networks.base_graph(25, k).rounds) for k in (1, 2, 3, 4)]
        [9, 6, 5, 2]
    """
    check_count(agents, "agents")
    check_count(k, "k")
    k = min(k, max(agents - 1, 1))  # an agent cannot have more neighbours
    check_size(agents, agents * k * 2 * agents.bit_length())
    rounds = _simple(agents, k)
    q = agents
    for factor in range(2, k + 2):
        while q % factor == 0:
            q //= factor
    across = _cube(np.arange(agents), _factors(agents // q, k + 1) or (), q)
    factorised = [_repeat(links, agents // q, q) for links in _simple(q, k)] + across
    shorter = rounds if len(rounds) < len(factorised) else factorised
    return tuple(weigh_links(agents, *links) for links in shorter or [_join([])])


def _simple(n: int, k: int) -> list[Links]:
    """The rounds for the agents 0, …, n−1, without looking for factors of n, unless all of them are small."""
    if (factors := _factors(n, k + 1)) is not None:
        return _cube(np.arange(n), factors)
    parts = _parts(n, k + 1)
    alone = [_cube(part, _factors(len(part), k + 1) or ()) for part, _ in parts]
    blocks = [_cube(part, [k + 1] * power) for part, power in parts]
    blocks[-1] = alone[-1]  # the last part has the mean of all when its turn comes
    rounds = [_join(_cycle(cube, m) for cube in alone) for m in range(len(alone[0]))]
    last = len(parts) - 1
    for turn in range(parts[0][1] + 1):
        links = [_exchange(parts[turn:], k)] if turn < last else []
        for part, cube in enumerate(blocks):
            since = turn - min(part + 1, last)  # how long ago the part had its turn
            links += [_cycle(cube, since)] if since >= 0 else []
        rounds.append(_join(links))
    return rounds


def _parts(n: int, base: int) -> list[tuple[Agents, int]]:
    """The parts of a (base)^p agents, in descending order of p, with p."""
    parts, start, power = [], 0, 0
    while base ** (power + 1) <= n:
        power += 1
    for p in range(power, -1, -1):
        if size := (n - start) // base**p * base**p:
            parts.append((np.arange(start, start + size), p))
            start += size
    return parts


def _exchange(parts: Sequence[tuple[Agents, int]], k: int) -> Links:
    """The first part's turn: all members of the later ones exchange with one agent of each of its blocks.

    Its other agents all have the same value. They average in groups too, in case values change between the rounds.
    """
    (giving, power), *later = parts
    taking = np.concatenate([part for part, _ in later])
    blocks = giving.reshape(-1, (k + 1) ** power)
    weight = len(giving) / (len(blocks) * (len(giving) + len(taking)))
    left, rest = blocks[:, : len(taking)], blocks[:, len(taking) :].ravel()
    right = np.broadcast_to(taking, left.shape)
    whole = len(rest) - len(rest) % (k + 1)
    groups = [_average(rest[:whole].reshape(-1, k + 1)), _average(rest[None, whole:])]
    return _join([Links(left.ravel(), right.ravel(), np.full(left.size, weight)), *groups])


def _cube(agents: Agents, factors: Sequence[int], stride: int = 1) -> list[Links]:
    """Rounds after which blocks of Π factors agents, each ``stride`` from the next, have their means."""
    rounds = []
    for factor in factors:
        digits = agents.reshape(-1, factor, stride).swapaxes(1, 2)
        rounds.append(_average(digits.reshape(-1, factor)))
        stride *= factor
    return rounds


def _average(groups: Agents) -> Links:
    """Groups ``[groups, members]`` that take their average in one round."""
    size = groups.shape[1]
    left, right = np.triu_indices(size, 1)
    return Links(groups[:, left].ravel(), groups[:, right].ravel(), np.full(len(groups) * len(left), 1 / max(size, 1)))


def _cycle(rounds: Sequence[Links], m: int) -> Links:
    """The m-th round of a sequence that repeats; no links if it is empty."""
    return rounds[m % len(rounds)] if rounds else _join([])


def _repeat(links: Links, times: int, stride: int) -> Links:
    """The same links in each of several blocks of agents."""
    starts = stride * np.arange(times)[:, None]
    return Links((links.left + starts).ravel(), (links.right + starts).ravel(), np.tile(links.weights, times))


def _join(links: Iterable[Links]) -> Links:
    nothing = Links(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    return Links(*map(np.concatenate, zip(*itertools.chain([nothing], links), strict=True)))


@functools.cache
def _factors(n: int, most: int) -> tuple[int, ...] | None:
    """As few factors of n as possible, none above ``most``; None if n has a larger prime factor."""
    if n == 1:
        return ()
    smaller = {f: _factors(n // f, most) for f in range(2, min(n, most) + 1) if n % f == 0}
    return min(((*rest, f) for f, rest in smaller.items() if rest is not None), key=len, default=None)
