"""Five rules for lost messages, four of which are wrong, compared on problems whose solutions are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxdasa.algorithms import DPSGD, ProxDASAGT
from proxdasa.contracts import Algorithm, Problem, Regularizer, unpack
from proxdasa.networks import ring
from proxdasa.problems import Quadratic
from proxdasa.regularizers import L1, Zero
from proxdasa.schedules import Number, constant

AGENTS, DIM = 8, 5

Rule = Callable[[Tensor, Tensor], Tensor]
"""Maps W, and which messages arrived ``[trials, receiver, sender]``, to the weights that are used."""


def _both_ends(W: Tensor, arrived: Tensor) -> Tensor:
    return _fill(W * (arrived & arrived.mT))


def _receiver(W: Tensor, arrived: Tensor) -> Tensor:
    return _fill(W * arrived)


def _renormalise(W: Tensor, arrived: Tensor) -> Tensor:
    return W * arrived / (W * arrived).sum(dim=-1, keepdim=True)


def _drop(W: Tensor, arrived: Tensor) -> Tensor:
    return W * arrived


def _fill(V: Tensor) -> Tensor:
    """Add to the diagonal what each row needs to sum to 1."""
    return V + torch.diag_embed(1 - V.sum(dim=-1))


RULES: dict[str, Rule | None] = {
    "both ends keep the weight": _both_ends,
    "the receiver keeps the weight": _receiver,
    "the receiver renormalises": _renormalise,
    "the last value that came stands in": None,
    "the weight is dropped": _drop,
}
"""What happens to the weight W_ij of a message from j that does not reach i. The first is the rule of this library."""


class LossyAgents:
    """Agents on a ring that lose messages, each with the same probability, under one of the rules.

    Unlike with `conditions.LinkLoss`, the two directions of a link fail independently, because some rules differ only
    then. Under the first rule a link is down if either of its messages is lost, so links are down more often.
    """

    def __init__(
        self, problem: Problem, regularizer: Regularizer, rule: Rule | None, loss: float, trials: int, seed: int
    ) -> None:
        self._problem, self._regularizer, self._rule, self._loss, self._trials = (
            problem,
            regularizer,
            rule,
            loss,
            trials,
        )
        self._W = torch.from_numpy(ring(AGENTS).W.toarray())
        self._generator = torch.Generator().manual_seed(seed)
        self._last: dict[int, Tensor] = {}
        """For each vector of a step, the last row that each receiver got from each sender."""

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:  # noqa: ARG002
        """∇F_i, without noise."""
        return self._problem.evaluate(x).grad

    full_grad = grad

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step of γΨ."""
        return self._regularizer.prox(x, gamma)

    def mix(self, *tensors: Tensor) -> Any:
        """One round, in which all tensors travel in the same messages."""
        arrived = torch.rand(self._trials, AGENTS, AGENTS, generator=self._generator) >= self._loss
        arrived |= torch.eye(AGENTS, dtype=torch.bool)  # an agent never loses its own row
        if self._rule is not None:
            V = self._rule(self._W, arrived)
            return unpack(tuple(V @ x for x in tensors))
        mixed = []
        for place, x in enumerate(tensors):
            sent = x.unsqueeze(1).expand(-1, AGENTS, -1, -1)
            # Until a first message arrives, the receiver uses its own row.
            last = self._last.get(place, x.unsqueeze(2).expand(-1, -1, AGENTS, -1))
            self._last[place] = torch.where(arrived.unsqueeze(-1), sent, last)
            mixed.append((self._W.unsqueeze(-1) * self._last[place]).sum(dim=2))
        return unpack(tuple(mixed))


def distances(
    algorithm: Algorithm, rule: str, loss: float, agree: bool, iterations: int, every: int, trials: int, seed: int = 0
) -> Tensor:
    """max_i ‖x_i − x*‖ in iterations 0, ``every``, 2 ``every``, ..., of shape ``[observations, trials]``.

    If agents ``agree``, each F_i(x) = ½‖x − 1‖² and Ψ = 0, so x* = 1. Otherwise their quadratics differ, and Ψ is an L1
    norm.
    """
    problem, regularizer, solution = _make_equal_agents() if agree else _make_unequal_agents()
    agents: Any = LossyAgents(problem, regularizer, RULES[rule], loss, trials, seed)
    state = algorithm.init(agents, solution.new_zeros(trials, AGENTS, DIM))
    found = []
    for k in range(iterations + 1):
        if k % every == 0:
            found.append((state.x - solution).norm(dim=-1).amax(dim=-1))
        state = algorithm.step(agents, k, state)
    return torch.stack(found)


def compare_rules(iterations: int, every: int, trials: int) -> dict[str, dict[str, NDArray[np.float64]]]:
    """`distances` by problem and rule: gradient descent on agents that agree, Prox-DASA-GT on agents that do not."""
    cases: dict[str, tuple[Algorithm, float, bool]] = {
        "D-PSGD, equal agents, 10% lost": (DPSGD(gamma=0.06), 0.1, True),
        "Prox-DASA-GT, unequal agents, 30% lost": (ProxDASAGT(gamma=0.3, alpha=constant(0.2)), 0.3, False),
    }
    return {
        title: {rule: distances(method, rule, loss, agree, iterations, every, trials).numpy() for rule in RULES}
        for title, (method, loss, agree) in cases.items()
    }


def _make_equal_agents() -> tuple[Quadratic, Regularizer, Tensor]:
    A = torch.eye(DIM, dtype=torch.float64).expand(AGENTS, DIM, DIM)
    return Quadratic(A, torch.ones(AGENTS, DIM, dtype=torch.float64)), Zero(), torch.ones(DIM, dtype=torch.float64)


def _make_unequal_agents() -> tuple[Quadratic, Regularizer, Tensor]:
    generator = torch.Generator().manual_seed(0)
    A = torch.diag_embed(0.5 + torch.rand(AGENTS, DIM, generator=generator, dtype=torch.float64))
    b = 3 + 2 * torch.randn(AGENTS, DIM, generator=generator, dtype=torch.float64)
    # The mean curvature is diagonal, so the solution is a soft threshold in each coordinate.
    curvature, slope = A.mean(dim=0).diagonal(), b.mean(dim=0)
    solution = slope.sign() * (slope.abs() - 0.3).clamp(min=0) / curvature
    return Quadratic(A, b), L1(0.3), solution
