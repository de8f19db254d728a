"""ProxGT-SA, ProxGT-SR-O and ProxGT-SR-E: one scheme of proximal gradient tracking with three gradient estimators.

Xin, Das, Khan and Kar (2021):

    y = mix[ỹ]
    x' = mix[prox_γ(x − γ y)]
    v' = the estimate of ∇F_i(x'_i)
    ỹ' = y + v' − v

starting with ỹ = v = the estimate at x⁰. The paper's α is called γ here, because it is the step of the prox. x' is
mixed after y, so an agent waits for its neighbours twice in a step. The means of ỹ and v agree after every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxdasa.algorithms.batches import batch_change, batch_grad
from proxdasa.algorithms.proximal_step import ProximalStep
from proxdasa.algorithms.rows import descend
from proxdasa.checks import check_count
from proxdasa.contracts import Agents, Facts, Tracking
from proxdasa.schedules import Number

RESTARTS = 1  # the stream of samples that restarts draw from


class Tracked(NamedTuple):
    """Iterate x, tracker y before mixing, and gradient estimate v at x."""

    x: Tensor
    y: Tensor
    v: Tensor


def _track(agents: Agents, γ: Number, state: Tracked, estimate: Callable[[Tensor], Tensor]) -> Tracked:
    """One step of the common scheme, with the given estimate of the gradient at x'."""
    x, y, v = state
    y = agents.mix(y)
    x = agents.mix(agents.prox(descend(x, γ, y), γ))
    v_new = estimate(x)
    return Tracked(x, y + v_new - v, v_new)


@dataclass(frozen=True, eq=False)
class ProxGTSA(ProximalStep):
    """ProxGT-SA: the estimate is the mean of b fresh sample gradients.

        x' = mix[prox_γ(x − γ y)]
        v' = (1/b) Σ_j ∇G(x', ξ_j)
        y' = mix[y + v' − v]

    ``batch`` is b.

    Examples:
        >>> problem = problems.PhaseRetrieval(agents=4, dim=5, sparsity=2, evaluation=200)
        >>> method = proxdasa.ProxGTSA(gamma=0.02, batch=4)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=20)
        >>> result.records[-1]["samples"]  # 4 at the start, and 4 in each iteration
        84
    """

    facts: ClassVar[Facts] = Facts("ProxGT-SA", vectors=2, gradients=1, step="gamma", tracking=Tracking("y", "v"))
    State: ClassVar[type[Tracked]] = Tracked

    batch: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.batch, "batch")

    def init(self, agents: Agents, x: Tensor) -> Tracked:
        """Start with ỹ = v = the mean gradient of the first batch."""
        v = batch_grad(agents, x, 0, self.batch)
        return Tracked(x, v, v)

    def step(self, agents: Agents, k: int, state: Tracked) -> Tracked:
        """Take a step with the mean gradient of a new batch."""
        return _track(agents, self.gamma, state, lambda x: batch_grad(agents, x, k + 1, self.batch))


@dataclass(frozen=True, eq=False)
class ProxGTSRO(ProximalStep):
    """ProxGT-SR-O: recursive estimates, restarted every q iterations from a batch of B samples.

        x' = mix[prox_γ(x − γ y)]
        v' = v + (1/b) Σ_j [∇G(x', ξ_j) − ∇G(x, ξ_j)]         at the same ξ_j; every q iterations instead
        v' = (1/B) Σ_j ∇G(x', ξ_j)
        y' = mix[y + v' − v]

    ``batch`` is b, ``period`` q and ``restart_batch`` B.

    Examples:
        >>> problem = problems.PhaseRetrieval(agents=4, dim=5, sparsity=2, evaluation=200)
        >>> method = proxdasa.ProxGTSRO(gamma=0.02, period=10, restart_batch=20)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=30)
        >>> result.records[-1]["samples"]  # 4 batches of 20 and 27 single samples
        107
    """

    facts: ClassVar[Facts] = Facts("ProxGT-SR-O", vectors=2, gradients=2, step="gamma", tracking=Tracking("y", "v"))
    State: ClassVar[type[Tracked]] = Tracked

    period: int
    restart_batch: int
    batch: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.period, "period")
        check_count(self.restart_batch, "restart_batch")
        check_count(self.batch, "batch")

    def init(self, agents: Agents, x: Tensor) -> Tracked:
        """Start with ỹ = v = the mean gradient of the first large batch."""
        v = batch_grad(agents, x, 0, self.restart_batch, RESTARTS)
        return Tracked(x, v, v)

    def step(self, agents: Agents, k: int, state: Tracked) -> Tracked:
        """Take a step with the recursive estimate, or with a restart."""

        def estimate(x: Tensor) -> Tensor:
            if (k + 1) % self.period == 0:
                return batch_grad(agents, x, k + 1, self.restart_batch, RESTARTS)
            return state.v + batch_change(agents, x, state.x, k + 1, self.batch)

        return _track(agents, self.gamma, state, estimate)


@dataclass(frozen=True, eq=False)
class ProxGTSRE(ProximalStep):
    """ProxGT-SR-E: recursive estimates, restarted every q iterations from the local full gradient (finite sums only).

        x' = mix[prox_γ(x − γ y)]
        v' = v + (1/b) Σ_j [∇G(x', ξ_j) − ∇G(x, ξ_j)]         at the same ξ_j; every q iterations instead
        v' = ∇F_i(x')
        y' = mix[y + v' − v]

    ``batch`` is b and ``period`` q.

    Examples:
        >>> method = proxdasa.ProxGTSRE(gamma=0.1, period=10)
        >>> problem = problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.ones(4, 2), noise=0.1)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=30)
        >>> result.records[-1]["full_gradients"]  # one at the start, then every 10 iterations
        4
    """

    facts: ClassVar[Facts] = Facts("ProxGT-SR-E", vectors=2, gradients=2, step="gamma", tracking=Tracking("y", "v"))
    State: ClassVar[type[Tracked]] = Tracked

    period: int
    batch: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.period, "period")
        check_count(self.batch, "batch")

    def init(self, agents: Agents, x: Tensor) -> Tracked:
        """Start with ỹ = v = the full gradient at x⁰."""
        v = agents.full_grad(x)
        return Tracked(x, v, v)

    def step(self, agents: Agents, k: int, state: Tracked) -> Tracked:
        """Take a step with the recursive estimate, or with a restart."""

        def estimate(x: Tensor) -> Tensor:
            if (k + 1) % self.period == 0:
                return agents.full_grad(x)
            return state.v + batch_change(agents, x, state.x, k + 1, self.batch)

        return _track(agents, self.gamma, state, estimate)
