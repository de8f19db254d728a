"""Checks of a mixing on a network, before anything is computed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from proxdasa.checks import is_whole
from proxdasa.contracts import Mixing, Network
from proxdasa.mixing.chebyshev import Chebyshev
from proxdasa.mixing.compressed_gossip import CompressedGossip
from proxdasa.mixing.every import Every
from proxdasa.mixing.gossip import Gossip

MOST = 100_000
"""The most rounds in an iteration: preparing more would silently take minutes."""


def count_rounds(mixing: Mixing, network: Network) -> int:
    """The number of rounds of an iteration, if it is a whole number of at most `MOST`."""
    rounds = mixing.rounds_for(network.rho)
    if not is_whole(rounds) or not 0 <= rounds <= MOST:
        given = f"{rounds:,}" if is_whole(rounds) and rounds > 0 else f"{rounds!r}"
        raise ValueError(
            f"mixing: the rounds of an iteration must be a whole number of at most {MOST:,}, but {mixing} asks for "
            f"{given} on this network, whose spectral gap 1 − ρ is {1 - network.rho:.2g}"
        )
    return rounds


def check_mixing(mixing: Mixing, network: Network) -> None:
    """Refuse too many rounds, and a user's own mixing that is not what `contracts.Mixing` says.

    It must be a polynomial in W that preserves means, and apply W as often as messages are counted.
    """
    rounds, inner = count_rounds(mixing, network), mixing
    while isinstance(inner, Every):
        inner = inner.mixing
    if type(inner) in (Gossip, Chebyshev, CompressedGossip):  # and not a class that inherits from them
        return
    applied = 0

    def apply(x: Tensor) -> Tensor:
        nonlocal applied
        applied += 1
        return torch.from_numpy(network.W @ x[0].numpy())[None]

    x = torch.from_numpy(np.random.default_rng(0).normal(size=(1, network.n, 2)))
    once = mixing(apply, x, network.rho)
    if applied != rounds:
        raise ValueError(
            f"mixing: {mixing} applies W {applied} times, but rounds_for, by which messages are counted, gives {rounds}"
        )
    pairs = [(mixing(apply, scale * x, network.rho), scale * once) for scale in (-(2.0**30), 2.0**-30)]
    pairs.append((mixing(apply, apply(x), network.rho), apply(once) if once.shape == x.shape else once))
    if not all(a.shape == x.shape and _close(a, b) for a, b in pairs):
        raise ValueError(f"mixing must be a polynomial in W, and so a linear function of the rows; {mixing} is not")
    same = torch.ones_like(x)
    if not _close(mixed := mixing(apply, same, network.rho), same):
        raise ValueError(
            f"mixing must preserve means, but {mixing} turns rows that are all 1 into {float(mixed.mean()):.4g}"
        )


def _close(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) <= 1e-6 * float(b.abs().max())
