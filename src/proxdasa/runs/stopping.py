"""Knowing when to stop, without any additional gradient.

z̄ follows ∇F(x̄) (paper, remark "Dual convergence"), so agents can see from their own x and z how stationary they are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from proxdasa.checks import check_count, check_positive
from proxdasa.contracts import Algorithm
from proxdasa.schedules import Number

FORGOTTEN = 0.01
"""z counts as having forgotten z⁰ once z⁰ has at most this weight in it."""


@dataclass(frozen=True)
class Stationary:
    """Stop once every agent has found its own x and z stationary, ``patience`` times in a row.

        ‖G(x_i, z_i, γ)‖² ≤ tolerance,    G(x, z, γ) = (x − prox_γ(x − γ z)) / γ

    Every ``every`` iterations each agent computes this from its own x and z and sends one number, whether it is
    satisfied; no gradient is needed. The strictest agent decides, noise included, so the true ‖G(x̄, ∇F(x̄), γ)‖² is
    usually well below the tolerance (a quarter of it in the tests' quadratics). If the agents' data differ, use
    Prox-DASA-GT, whose z follow the network's gradient; with Prox-DASA each z_i follows the agent's own.

    The rule starts once z has forgotten z⁰ = 0, which would satisfy every agent: ∏(1 − α_k) ≤ 0.01. It needs a method
    that declares an averaged gradient (`contracts.Averaging`).

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> rule = proxdasa.Stationary(tolerance=1e-6, patience=2, every=10)
        >>> result = proxdasa.run(
        ...     proxdasa.ProxDASA(gamma=0.5, alpha=0.3), problem, networks.ring(3), iterations=1_000, stop=rule
        ... )
        >>> result.stopped, result.iterations
        ('stationary', 70)
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


class Satisfied(Protocol):
    """What the rule needs from an engine."""

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step of γΨ, row by row."""

    def total(self, x: Tensor) -> Tensor:
        """The sum over all processes that decide together."""


class Watch:
    """The rule at work in one run: how often in a row each trial has passed, and when it was done."""

    def __init__(self, rule: Stationary, algorithm: Algorithm, trials: int) -> None:
        assert algorithm.facts.averaging is not None, "the rule was not checked"
        self.rule, self._algorithm, self._averaging = rule, algorithm, algorithm.facts.averaging
        self._streaks = -1, torch.zeros(trials, dtype=torch.int64)
        """The iteration of the last check, and the streaks then: one tuple, so that an interruption cannot separate
        them."""
        self.done: dict[int, int] = {}
        self._made, self._start = 0, torch.ones(trials, dtype=torch.float64)

    def satisfied(self, engine: Satisfied, k: int, state: Any, lost: Collection[int]) -> bool:
        """Apply the rule after k iterations, once; returns whether all trials are done, except for those ``lost``."""
        passed = self.streaks >= self.rule.patience if self.seen == k else self.note(engine, k, state)
        for trial in passed.nonzero().flatten().tolist():
            self.done.setdefault(trial, k)
        return all(trial in self.done or trial in lost for trial in range(len(self.streaks)))

    def note(self, engine: Satisfied, k: int, state: Any) -> Tensor:
        """Look at the state after k iterations; return which trials have passed often enough in a row by now."""
        passed = self._all_satisfied(engine, state) & (self._weight_of_start(k) <= FORGOTTEN)
        self._streaks = k, torch.where(passed, self.streaks + 1, 0)
        return self.streaks >= self.rule.patience

    def skip(self, made: int, k: int) -> None:
        """Continue at iteration k after ``made`` of them: z forgets nothing in those skipped, and streaks restart."""
        self._weight_of_start(made)
        self._made = max(self._made, k)
        self._streaks = -1, torch.zeros_like(self.streaks)

    @property
    def seen(self) -> int:
        """The iteration in which it last looked."""
        return self._streaks[0]

    @property
    def streaks(self) -> Tensor:
        """How often in a row each trial has passed."""
        return self._streaks[1]

    def numbers(self) -> list[float]:
        """The streaks and ends of all trials, for a checkpoint."""
        return [*self.streaks.tolist(), *(self.done.get(trial, -1) for trial in range(len(self.streaks)))]

    def restore(self, numbers: list[float], seen: int) -> None:
        """Continue from the numbers of a checkpoint, and the iteration in which it had last looked."""
        streaks, done = numbers[: len(self.streaks)], numbers[len(self.streaks) :]
        self._streaks = seen, torch.tensor(streaks).to(torch.int64)
        self.done = {trial: int(k) for trial, k in enumerate(done) if k >= 0}

    def _all_satisfied(self, engine: Satisfied, state: Any) -> Tensor:
        """Whether all agents of each trial are satisfied."""
        γ = self._algorithm.mapping_gamma
        mapping = (state.x - engine.prox(state.x - γ * self._averaging.z(state), γ)) / γ
        unsatisfied = ~(mapping.square().sum(-1) <= self.rule.tolerance)  # NaN does not satisfy an agent
        # Counting agents that are not satisfied needs one sum, and no process has to know n.
        return engine.total(unsatisfied.sum(-1)).cpu() == 0

    def _weight_of_start(self, k: int) -> Tensor:
        """∏_{j<k} (1 − α_j) for each trial."""
        α = self._averaging.alpha(self._algorithm)
        for j in range(self._made, k):
            self._start = self._start * (1 - torch.as_tensor(α(j)).cpu().to(torch.float64).flatten())
        self._made = max(self._made, k)
        return self._start
