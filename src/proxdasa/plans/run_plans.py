"""The plan for the set-up of a run, and whether the run meets the conditions of the theory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from proxdasa.contracts import Algorithm, Mixing
from proxdasa.mixing import Chebyshev, Every, Gossip
from proxdasa.plans.planning import TRACKING
from proxdasa.plans.theory import conditions, contraction, strictest, varrho
from proxdasa.runs.setup import Setup


def settings(setup: Setup, method: type[Algorithm] | None = None) -> dict[str, Any]:
    """The arguments of `plan` that a set-up determines, perhaps for another method than its own.

    γ is among them only if it is the same for all trials.
    """
    γ, every = getattr(setup.algorithm, "gamma", None), 1
    if method is None:
        every = setup.algorithm.facts.interval(setup.algorithm)
    return {
        "method": method or type(setup.algorithm),
        "K": setup.iterations,
        "d": setup.problem.dim,
        "dtype": setup.problem.dtype,
        "gamma": γ if isinstance(γ, int | float) else None,
        **protocol(setup.mixing, every),
    }


def protocol(mixing: Mixing, every: int = 1) -> dict[str, Any]:
    """The arguments of `plan` that a mixing determines, for a method that sends once in ``every`` iterations."""
    while isinstance(mixing, Every):  # which may contain another one
        # The method and the mixing each send in iteration k only if k + 1 is a multiple of their own number.
        every, mixing = math.lcm(every, mixing.period), mixing.mixing
    return {"mixing": mixing if isinstance(mixing, Gossip | Chebyshev) else None, "every": every}


def departure(setup: Setup) -> str | None:
    """A sentence about the strictest condition on step sizes that a run violates, or None; L is not needed.

    Only Prox-DASA and Prox-DASA-GT with the paper's protocols have conditions: those of `theory.conditions`, and
    α_{k+1} ≤ α_k (Lemmas 7 and 8). They are checked at some iterations only, most of them early.
    """
    method, mixing = type(setup.algorithm), setup.mixing
    if method not in TRACKING or not isinstance(mixing, Gossip | Chebyshev) or setup.conditions or setup.network.rounds:
        return None
    algorithm = setup.bound()
    k = np.unique(np.geomspace(1, setup.iterations, 200).astype(int)) - 1
    sizes = torch.stack([torch.as_tensor(algorithm.alpha(int(i))).flatten() for i in k]).cpu()  # type: ignore[attr-defined]
    gammas = torch.as_tensor(algorithm.gamma).flatten().tolist()  # type: ignore[attr-defined]
    ϱ, theory = varrho(contraction(mixing, setup.network.rho)), f"the theory of {method.facts.title}"
    asked = strictest([strictest(conditions(TRACKING[method], ϱ, γ)) for γ in gammas])
    largest = sizes.amax(dim=1)
    if bool((sizes.diff(dim=0) > 0).any()):
        return f"{theory} asks for step sizes that do not grow, and these do"
    if float(largest[0]) <= asked.limit:
        return None
    later = k[(largest <= asked.limit).numpy()]
    since = f" (and less from k = {later[0]} on)" if len(later) else ""
    return (
        f"{theory} asks for α_k ≤ {asked.limit:.3g} here, by {asked.text} of {asked.place}, and α_0 is "
        f"{float(largest[0]):.3g}{since}"
    )
