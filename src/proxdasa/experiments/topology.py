"""A study of graphs: when more rounds per iteration pay off (the paper's remark on transient time)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from proxdasa.algorithms import ProxDASA
from proxdasa.contracts import Mixing
from proxdasa.experiment_choices import ROUNDS
from proxdasa.mixing import Chebyshev, Gossip
from proxdasa.networks import complete, exponential, grid, ring
from proxdasa.problems import Quadratic
from proxdasa.regularizers import L1
from proxdasa.runs.setup import Setup

MIXINGS: dict[str, Mixing] = {"single": Gossip(1), "gossip": Gossip("auto"), "chebyshev": Chebyshev("auto")}
MIXING_NAMES = {
    "single": "one round",
    "gossip": "gossip, ⌈1/(1 − ρ)⌉ rounds",
    "chebyshev": "Chebyshev, ⌈1/√(1 − ρ)⌉ rounds",
}
"""The mixings as tables and figures name them."""


def topology(rounds: Sequence[int] = ROUNDS, side: int = 4, trials: int = 10, seed: int = 0) -> dict[str, Setup]:
    """Prox-DASA with each mixing on each graph of side² agents, for each number R of communication rounds.

    An iteration takes m rounds, so R rounds are K = ⌊R/m⌋ iterations, with the theory's α = √(n/K); γ = 0.3, λ = 0.01.
    On the complete graph ρ = 0 and m = 1 for all mixings: they are the same, and only one is run.
    """
    agents = side**2
    problem = disagreeing_quadratics(agents)
    setups: dict[str, Setup] = {}
    for network in (ring(agents), grid(side, side), exponential(agents), complete(agents)):
        for name, mixing in MIXINGS.items():
            m = mixing.rounds_for(network.rho)
            if m == 1 and name != "single":
                continue
            if m > min(rounds):
                raise ValueError(
                    f"{min(rounds)} rounds are less than one iteration of {mixing} on {network.label}, with m = {m}"
                )
            for R in rounds:
                setups[f"{network.recipe['name']}-{name}-{R:06d}"] = Setup(
                    ProxDASA(gamma=0.3),
                    problem,
                    network,
                    regularizer=L1(0.01),
                    mixing=mixing,
                    iterations=R // m,
                    trials=trials,
                    seed=seed,
                )
    return setups


def disagreeing_quadratics(agents: int, dim: int = 10) -> Quadratic:
    """Random quadratics whose minimisers lie far apart, with noise of standard deviation 1 in every coordinate.

        F_i(x) = ½ xᵀA_i x − b_iᵀx,   A_i = B_i B_iᵀ/d,   entries of B_i ~ N(0, 1), those of b_i ~ N(0, 9)

    Curvatures differ too: if they were equal and Ψ = 0, disagreement between agents would not affect the mean x̄.
    """
    generator = np.random.default_rng(0)
    B = torch.from_numpy(generator.normal(size=(agents, dim, dim)))
    b = torch.from_numpy(3 * generator.normal(size=(agents, dim)))
    return Quadratic(B @ B.mT / dim, b, noise=1.0)
