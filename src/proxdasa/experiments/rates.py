"""The paper's main theorem, measured: how ‖G‖² falls with K and n, and how long the transient is on slow rings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from proxdasa import metrics
from proxdasa.algorithms import ProxDASA, ProxDASAGT
from proxdasa.experiment_choices import RATE_AGENTS, RATE_LONGEST
from proxdasa.mixing import Gossip
from proxdasa.networks import Network, complete, from_matrix, ring
from proxdasa.problems import Quadratic
from proxdasa.regularizers import L1
from proxdasa.runs.setup import Setup

METHODS: dict[str, type[ProxDASA | ProxDASAGT]] = {"prox-dasa": ProxDASA, "prox-dasa-gt": ProxDASAGT}
MIXINGS = {"one": Gossip(1), "many": Gossip("auto")}
MIXING_NAMES = {"one": "one round", "many": "⌈1/(1 − ρ)⌉ rounds"}
"""The mixings as tables and figures name them."""
FIXED_AGENTS = 8
"""The n of the runs in which K varies."""
SLOW_AGENTS = 4
"""The n of the rings whose weights are chosen for a given ρ."""
GAPS = {"prox-dasa": (0.25, 0.2, 0.16, 0.125), "prox-dasa-gt": (0.014, 0.01, 0.007, 0.005)}
"""The 1 − ρ of slow rings. Those of Prox-DASA-GT are smaller because its transient is shorter: on the rings of one
method, the transient of the other is too short or too long to be measured."""
SHORTEST = 64
"""The smallest K."""


class RateCase(NamedTuple):
    """A run of the study."""

    method: str
    n: int
    mixing: str
    """A key of `MIXINGS`."""
    gap: float | None
    """The 1 − ρ of a ring whose weights are chosen for it; 1 on the complete graph; None on the ring of weights 1/3."""
    K: int

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        graph = self.mixing if self.gap is None else f"gap-{self.gap:g}"
        return f"{self.method}-n{self.n:03d}-{graph}-K{self.K:06d}"


def rates(
    agents: Sequence[int] = RATE_AGENTS, longest: int = RATE_LONGEST, trials: int = 10, seed: int = 0
) -> dict[RateCase, Setup]:
    """The runs that answer three questions; a run that two questions need is made once.

    ‖G‖² against K: 8 agents on a ring, K = longest, longest/4, ... down to 64. Against n: rings of all sizes, K =
    longest/4. The transient: four agents on rings whose weights make 1 − ρ small, and on the complete graph, K =
    longest, longest/2, ... down to 64. Both methods take the theorem's α = √(n/K) and γ = 1/L. On the complete graph
    they are the same method, so one of them is run.
    """
    if min(agents) < 3:
        raise ValueError(f"a ring needs three agents or more here; got {min(agents)}")
    if longest < 4 * SHORTEST:
        raise ValueError(f"the longest run must have {4 * SHORTEST} iterations or more; got {longest}")
    cases = [
        RateCase(method, n, mixing, None, K)
        for method in METHODS
        for mixing in MIXINGS
        for n, K in [*((FIXED_AGENTS, K) for K in lengths(longest, 4)), *((n, longest // 4) for n in agents)]
    ]
    rings = [(method, gap) for method, gaps in GAPS.items() for gap in gaps]
    cases += [
        RateCase(method, SLOW_AGENTS, "one", gap, K)
        for method, gap in [("prox-dasa", 1.0), *rings]
        for K in lengths(longest, 2)
    ]
    problems = {n: opposed_quadratics(n) for n in {case.n for case in cases}}
    return {
        case: Setup(
            METHODS[case.method](gamma=1.0),
            problems[case.n],
            _network(case),
            regularizer=L1(1.0),
            mixing=MIXINGS[case.mixing],
            iterations=case.K,
            trials=trials,
            seed=seed,
            # The method changes within 1/α = √(K/n) iterations; two observations in that time give the mean over k.
            observe_every=max(1, round(math.sqrt(case.K / case.n) / 2)),
            metrics=(metrics.stationarity, metrics.consensus),
        )
        for case in dict.fromkeys(cases)
    }


def lengths(longest: int, factor: int) -> list[int]:
    """The numbers K of iterations in ascending order: the longest, divided by the factor again and again."""
    found = [longest]
    while found[0] // factor >= SHORTEST:
        found.insert(0, found[0] // factor)
    return found


def opposed_quadratics(agents: int, dim: int = 10) -> Quadratic:
    """Quadratics on a ring for which the theorem's second term is as large as it can be, with the same F for every n.

        F_i(x) = ½‖x‖² − b_iᵀx,   b_i = b + √2 cos(2πi/n) 1,   gradient noise of standard deviation 1

    So L = 1, ν² = d and σ² = d. The agents disagree along the ring's slowest eigenvector, which mixing removes last.
    With Ψ = ‖x‖₁, half of the coordinates of the solution are 0.2 (b_j = 1.2); the others (b_j = 1) are 0 on the very
    edge of the threshold, where agents that disagree move the mean of their proximal points.
    """
    around = math.sqrt(2) * torch.cos(2 * math.pi * torch.arange(agents, dtype=torch.float64) / agents)
    b = torch.ones(dim, dtype=torch.float64)
    b[: dim // 2] = 1.2
    A = torch.eye(dim, dtype=torch.float64).expand(agents, dim, dim)
    return Quadratic(A, b + around.unsqueeze(1), noise=1.0)


def slow_ring(agents: int, gap: float) -> Network:
    """The ring W = I − w L whose weight w makes 1 − ρ = 2w (1 − cos(2π/n)) the given number."""
    w = gap / (2 - 2 * math.cos(2 * math.pi / agents))
    neighbours = np.roll(np.eye(agents), 1, axis=0) + np.roll(np.eye(agents), -1, axis=0)
    return from_matrix((1 - 2 * w) * np.eye(agents) + w * neighbours)


def _network(case: RateCase) -> Network:
    if case.gap is None:
        return ring(case.n)
    return complete(case.n) if case.gap == 1 else slow_ring(case.n, case.gap)
