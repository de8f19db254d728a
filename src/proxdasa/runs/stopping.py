"""Knowing when to stop, without a gradient more than the method takes anyway.

z̄ follows ∇F(x̄) (paper, remark "Dual convergence"), so agents can see from their own x and z how stationary they are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from proxdasa.contracts import Algorithm, Engine
from proxdasa.schedules import check_count, check_positive

FORGOTTEN = 0.01
"""z has forgotten where it began once its start has no more than this weight in it."""


@dataclass(frozen=True)
class Stationary:
    """Stop once every agent has found itself stationary, ``patience`` times in a row.

        ‖G(x_i, z_i, γ)‖² ≤ tolerance,    G(x, z, γ) = (x − prox_γ(x − γ z)) / γ

    Every ``every`` iterations each agent looks at its own x and z, and tells the others whether it is satisfied: one
    number, no gradient. That is the strictest agent's view, noise included, so the true ‖G(x̄, ∇F(x̄), γ)‖² is usually
    well below the tolerance (a quarter of it in the tests' quadratics). Agents whose data differ are satisfied with
    Prox-DASA-GT, whose z follow the network's gradient; those of Prox-DASA keep apart.

    Looking begins when z⁰ = 0, which would satisfy everybody, has left z: ∏(1 − α_k) ≤ 0.01. Needs a
    method that declares an averaged gradient (`contracts.Averaging`).
    """

    tolerance: float
    patience: int = 5
    every: int = 100

    def __post_init__(self) -> None:
        check_positive(self.tolerance, "tolerance")
        check_count(self.patience, "patience")
        check_count(self.every, "every")

    def check(self, algorithm: Algorithm) -> None:
        """Refuse methods that average no gradient."""
        if algorithm.facts.averaging is None:
            raise ValueError(
                f"stop: Stationary looks at z, an average of gradients, and {algorithm.facts.title} declares none; "
                "choose Prox-DASA or Prox-DASA-GT, or a number of iterations"
            )


class Watch:
    """The rule at work in one run: how often in a row each trial has passed, and since when it is done."""

    def __init__(self, rule: Stationary, algorithm: Algorithm, trials: int) -> None:
        assert algorithm.facts.averaging is not None, "the rule was not checked"
        self.rule, self._algorithm, self._averaging = rule, algorithm, algorithm.facts.averaging
        self.streaks = torch.zeros(trials, dtype=torch.int64)
        self.done: dict[int, int] = {}
        self._made, self._start = 0, torch.ones(trials, dtype=torch.float64)

    def satisfied(self, engine: Engine, k: int, state: Any, lost: Collection[int]) -> bool:
        """Look after k iterations; whether all trials are done."""
        passed = self._passed(engine, state) & (self._weight_of_start(k) <= FORGOTTEN)
        self.streaks = torch.where(passed, self.streaks + 1, 0)
        for trial in (self.streaks >= self.rule.patience).nonzero().flatten().tolist():
            self.done.setdefault(trial, k)
        return self.finished(lost)

    def finished(self, lost: Collection[int]) -> bool:
        """Whether all trials, but for those that are lost, are done."""
        return all(trial in self.done or trial in lost for trial in range(len(self.streaks)))

    def numbers(self) -> list[float]:
        """What it remembers, for a checkpoint."""
        return [*self.streaks.tolist(), *(self.done.get(trial, -1) for trial in range(len(self.streaks)))]

    def restore(self, numbers: list[float]) -> None:
        """Go on from there."""
        streaks, done = numbers[: len(self.streaks)], numbers[len(self.streaks) :]
        self.streaks = torch.tensor(streaks).to(torch.int64)
        self.done = {trial: int(k) for trial, k in enumerate(done) if k >= 0}

    def _passed(self, engine: Engine, state: Any) -> Tensor:
        """Whether all agents of each trial are satisfied."""
        γ = self._algorithm.mapping_gamma
        mapping = (state.x - engine.prox(state.x - γ * self._averaging.z(state), γ)) / γ
        content = mapping.square().sum(-1, keepdim=True) <= self.rule.tolerance
        return engine.mean(content.to(torch.float64)).flatten() == 1.0

    def _weight_of_start(self, k: int) -> Tensor:
        """∏_{j<k} (1 − α_j) for each trial."""
        α = self._averaging.alpha(self._algorithm)
        for j in range(self._made, k):
            self._start = self._start * (1 - torch.as_tensor(α(j), dtype=torch.float64).flatten())
        self._made = max(self._made, k)
        return self._start
