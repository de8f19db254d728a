"""The paper's linear speed-up figure: sparse phase retrieval on rings of growing size (Section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence

from proxdasa.algorithms import ProxDASA, ProxDASAGT
from proxdasa.experiment_choices import RING_SIZES
from proxdasa.mixing import Gossip
from proxdasa.networks import ring
from proxdasa.problems import PhaseRetrieval
from proxdasa.regularizers import L1
from proxdasa.runs.setup import Setup


def speedup(
    agents: Sequence[int] = RING_SIZES, iterations: int = 10_000, trials: int = 10, seed: int = 0
) -> dict[str, Setup]:
    """Both methods on a ring of each size, as in the paper.

    The paper gives d = 100, batch 1, λ = 0.01, γ = 0.01, α = √(n/K), K = 10,000, weights 1/3, m = ⌈1/(1 − ρ)⌉ and
    10,000 evaluation points per agent. It does not give, and we chose: five non-zero entries of θ* of equal size,
    ‖θ*‖ = 1, noise 0.1, one random start of norm 1 shared by the agents (θ = 0 is stationary), the sizes n, ten trials.
    """
    return {
        f"{name}-n{n:03d}": Setup(
            algorithm(gamma=0.01),
            PhaseRetrieval(agents=n, dim=100, sparsity=5, noise=0.1, evaluation=10_000),
            ring(n),
            regularizer=L1(0.01),
            mixing=Gossip("auto"),
            iterations=iterations,
            trials=trials,
            seed=seed,
        )
        for name, algorithm in (("prox-dasa", ProxDASA), ("prox-dasa-gt", ProxDASAGT))
        for n in agents
    }
