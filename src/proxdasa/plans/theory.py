"""Formulas from the paper: how mixing contracts, and which step sizes the proofs allow.

Lemmas are numbered as in the paper's appendix. Its ≍ and ≲ leave constants open. The conditions here have the constants
of the proofs, which are far from tight.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from proxdasa.mixing import Chebyshev, Gossip


class Condition(NamedTuple):
    """A bound on α_k that a proof uses."""

    text: str
    """The condition as the paper writes it."""
    place: str
    """Where in the paper it is."""
    limit: float
    """The largest α that meets it."""


def bound(mixing: Gossip | Chebyshev, rho: float) -> float:
    """The paper's upper bound on the share of a disagreement that mixing leaves.

    ‖A_m − Ā_m‖ ≤ ρ^m ‖A₀ − Ā₀‖ (gossip, Lemma 3),   ≤ 2 (1 − √(1 − ρ))^m ‖A₀ − Ā₀‖ (Chebyshev, Lemma 1)
    """
    m = mixing.rounds_for(rho)
    # The factor 2 makes Chebyshev's bound exceed 1 for few rounds; `contraction` gives the exact value.
    return float(2 * (1 - math.sqrt(1 - rho)) ** m if isinstance(mixing, Chebyshev) else rho**m)


def contraction(mixing: Gossip | Chebyshev, rho: float) -> float:
    """The share of the worst disagreement that mixing leaves: its polynomial at λ = ±ρ, where it is largest.

    ρ^m (gossip),   1/μ_m = 1/T_m(1/ρ) = 1/cosh(m arcosh(1/ρ)) (Chebyshev, Algorithm 3)
    """
    m = mixing.rounds_for(rho)
    if not isinstance(mixing, Chebyshev) or rho == 0:
        return float(rho**m)
    small = math.exp(-m * math.acosh(1 / rho))  # cosh itself would overflow
    return 2 * small / (1 + small**2)


def varrho(left: float) -> float:
    """ϱ(m) = (1 + ρ^{2m}) ρ^{2m} / (1 − ρ^{2m})², with ``left``, the share that mixing leaves, in place of ρ^m.

    Theorem 1. It is at most 1 exactly if ρ^{2m} ≤ 1/3.
    """
    square = left**2
    # There is a pole at 1, where mixing changes nothing.
    return (1 + square) * square / (1 - square) ** 2 if square < 1 else math.inf


def c_gamma(gamma: float) -> float:
    """C_γ = 2 √((1 + 1/γ)² + (1 + γ/2)²), the Lipschitz constant of ∇η (Lemma 5)."""
    # hypot, because γ may come from a file, and the squares of a tiny or huge one overflow.
    return 2 * math.hypot(1 + 1 / gamma, 1 + gamma / 2)


def conditions(tracking: bool, varrho: float, gamma: float | None = None, L: float | None = None) -> list[Condition]:
    """The conditions on α_k of Prox-DASA, or of Prox-DASA-GT (``tracking``), as far as γ and L are known.

    γ C_γ > 2 for every γ, so that α < 1/16 is required even if γ is not known.
    """
    lemma = "Lemma 8" if tracking else "Lemma 7"
    found = [
        Condition("α ≤ 1", lemma, 1.0),
        Condition("ϱ(m) α² ≤ 1/8", lemma, _root(1 / 8, varrho)),
        Condition("α ≤ 1/(8γC_γ)", "Lemma 11", 1 / (8 * gamma * c_gamma(gamma)))
        if gamma
        else Condition("α ≤ 1/(8γC_γ) < 1/16", "Lemma 11", 1 / 16),
    ]
    if gamma and L:
        found += [
            Condition("ϱ(m) α ≤ 1/(9Lγ)", lemma, 1 / (9 * L * gamma * varrho) if varrho else math.inf)
            if tracking
            else Condition("ϱ(m) α² ≤ 1/(24L²γ²)", lemma, _root(1 / (24 * L**2 * gamma**2), varrho)),
            Condition("α ≤ 1/(8γL)", "Lemma 11", 1 / (8 * gamma * L)),
            Condition("α ≤ 1/(32γC_γL²)", "Lemma 11", 1 / (32 * gamma * c_gamma(gamma) * L**2)),
        ]
    return found


def strictest(given: list[Condition]) -> Condition:
    """The condition with the smallest limit; the first of several."""
    return min(given, key=lambda condition: condition.limit)


def _root(share: float, varrho: float) -> float:
    """The largest α with ϱ(m) α² ≤ share."""
    return math.sqrt(share / varrho) if varrho else math.inf
