"""DEEPSTORM v1 and v2: proximal gradient tracking of recursive momentum.

Mancino-Ball, Miao, Xu and Chen (2022):

    y = mix[ỹ]
    x' = prox_α(mix[x] − α y)
    d' = (1 − β)(d + ∇G(x', ξ) − ∇G(x, ξ)) + β ṽ          ṽ: an unbiased estimate of ∇F_i(x'_i)
    ỹ' = y + d' − d

starting with ỹ = d = an estimate at x⁰. x and ỹ are sent together. The versions differ in ṽ. The means of ỹ and d agree
after every step.

Step sizes: β_k = 1 − α_{k+1}/α_k + b α²_{k+1}, for the diminishing α_k = `schedules.cube_root(a, k0)`. The paper's
constant α = `schedules.cube_root_horizon(a)` with β = b α²/n is the same formula with b/n for b.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxdasa.algorithms.batches import batch_grad
from proxdasa.algorithms.rows import descend
from proxdasa.checks import check_count, check_positive
from proxdasa.contracts import Agents, Facts, Tracking
from proxdasa.schedules import Alpha, Number, as_schedule

SECOND, INITIAL = 1, 2  # streams of samples: ξ' of version 1, and the batch at the start


class Tracked(NamedTuple):
    """Iterate x, tracker y before mixing, and gradient estimate d at x."""

    x: Tensor
    y: Tensor
    d: Tensor


def _move(agents: Agents, α: Number, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The proximal step along the mixed tracker; returns x' and y."""
    x, y = agents.mix(x, y)
    return agents.prox(descend(x, α, y), α), y


def _beta(alpha: Alpha, b: Number, k: int) -> Number:
    """β_k = 1 − α_{k+1}/α_k + b α²_{k+1}."""
    return 1 - alpha(k + 1) / alpha(k) + b * alpha(k + 1) ** 2


@dataclass(frozen=True, eq=False)
class _Sampled(ABC):
    """The common part of the versions that use only sample gradients; they differ in d'."""

    State: ClassVar[type[Tracked]] = Tracked

    alpha: Alpha
    beta: Number
    initial_batch: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", as_schedule(self.alpha, "alpha"))
        check_positive(self.beta, "beta")
        check_count(self.initial_batch, "initial_batch")

    @property
    def mapping_gamma(self) -> Number:
        """1, because the proximal step α_k varies."""
        return 1.0

    def init(self, agents: Agents, x: Tensor) -> Tracked:
        """Start with ỹ = d = the mean gradient of the initial batch."""
        d = batch_grad(agents, x, 0, self.initial_batch, INITIAL)
        return Tracked(x, d, d)

    def step(self, agents: Agents, k: int, state: Tracked) -> Tracked:
        """Take the proximal step, update the recursive momentum, track."""
        x, y, d = state
        x_new, y = _move(agents, self.alpha(k), x, y)
        d_new = self._momentum(agents, k + 1, _beta(self.alpha, self.beta, k), d, x, x_new)
        return Tracked(x_new, y + d_new - d, d_new)

    @abstractmethod
    def _momentum(self, agents: Agents, k: int, β: Number, d: Tensor, x: Tensor, x_new: Tensor) -> Tensor:
        """The estimate d' at x', from the samples of iteration k."""


@dataclass(frozen=True, eq=False)
class DeepStormV2(_Sampled):
    """DEEPSTORM v2: momentum corrected at one sample.

        x' = prox_α(mix[x] − α y)
        d' = ∇G(x', ξ) + (1 − β)(d − ∇G(x, ξ))
        y' = mix[y + d' − d]

    ``beta`` is the b of β_k = 1 − α_{k+1}/α_k + b α²_{k+1}.

    Examples:
        >>> method = proxdasa.DeepStormV2(alpha=schedules.cube_root(0.3), beta=0.5)
        >>> problem = problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.ones(4, 2), noise=0.1)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=60)
        >>> bool((result.mean - 1).norm() < 0.1)
        True
    """

    facts: ClassVar[Facts] = Facts("DEEPSTORM v2", vectors=2, gradients=2, step="alpha", tracking=Tracking("y", "d"))

    def _momentum(self, agents: Agents, k: int, β: Number, d: Tensor, x: Tensor, x_new: Tensor) -> Tensor:
        return agents.grad(x_new, k) + (1 - β) * (d - agents.grad(x, k))


@dataclass(frozen=True, eq=False)
class DeepStormV1(_Sampled):
    """DEEPSTORM v1: momentum corrected at a second, independent sample ξ'.

        x' = prox_α(mix[x] − α y)
        d' = (1 − β)(d + ∇G(x', ξ) − ∇G(x, ξ)) + β ∇G(x', ξ')
        y' = mix[y + d' − d]

    ``beta`` is the b of β_k = 1 − α_{k+1}/α_k + b α²_{k+1}.

    Examples:
        >>> method = proxdasa.DeepStormV1(alpha=schedules.cube_root(0.3), beta=0.5)
        >>> problem = problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.ones(4, 2), noise=0.1)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=60)
        >>> bool((result.mean - 1).norm() < 0.1)
        True
    """

    facts: ClassVar[Facts] = Facts("DEEPSTORM v1", vectors=2, gradients=3, step="alpha", tracking=Tracking("y", "d"))

    def _momentum(self, agents: Agents, k: int, β: Number, d: Tensor, x: Tensor, x_new: Tensor) -> Tensor:
        change = agents.grad(x_new, k) - agents.grad(x, k)
        return (1 - β) * (d + change) + β * agents.grad(x_new, k, SECOND)


@dataclass(frozen=True, eq=False)
class DeepStormV1SVRG:
    """DEEPSTORM v1-SVRG: momentum corrected by a sample gradient relative to a snapshot x̂ (finite sums only).

        x' = prox_α(mix[x] − α y)
        ṽ = ∇G(x', ξ') − ∇G(x̂, ξ') + ∇F_i(x̂)                 every q iterations x̂ = x', and ṽ = ∇F_i(x')
        d' = (1 − β)(d + ∇G(x', ξ) − ∇G(x, ξ)) + β ṽ
        y' = mix[y + d' − d]

    ``snapshot`` is q; ``beta`` is the b of β_k = 1 − α_{k+1}/α_k + b α²_{k+1}. The first snapshot is x⁰, and d⁰ its
    full gradient.

    Examples:
        >>> method = proxdasa.DeepStormV1SVRG(alpha=schedules.cube_root(0.3), beta=0.5, snapshot=20)
        >>> problem = problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.ones(4, 2), noise=0.1)
        >>> result = proxdasa.run(method, problem, networks.ring(4), iterations=60)
        >>> bool((result.mean - 1).norm() < 0.1)
        True
    """

    facts: ClassVar[Facts] = Facts(
        "DEEPSTORM v1-SVRG", vectors=2, gradients=4, step="alpha", tracking=Tracking("y", "d")
    )

    alpha: Alpha
    beta: Number
    snapshot: int

    class State(NamedTuple):
        """Iterate x, tracker y before mixing, gradient estimate d at x, snapshot x̂ and its full gradient v̂."""

        x: Tensor
        y: Tensor
        d: Tensor
        x_hat: Tensor
        v_hat: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", as_schedule(self.alpha, "alpha"))
        check_positive(self.beta, "beta")
        check_count(self.snapshot, "snapshot")

    @property
    def mapping_gamma(self) -> Number:
        """1, because the proximal step α_k varies."""
        return 1.0

    def init(self, agents: Agents, x: Tensor) -> State:
        """Start with x̂ = x⁰ and ỹ = d = v̂ = the full gradient there."""
        v = agents.full_grad(x)
        return self.State(x, v, v, x, v)

    def step(self, agents: Agents, k: int, state: State) -> State:
        """Take the proximal step, update the momentum with the snapshot or renew it, track."""
        x, y, d, x_hat, v_hat = state
        β = _beta(self.alpha, self.beta, k)
        x_new, y = _move(agents, self.alpha(k), x, y)
        change = agents.grad(x_new, k + 1) - agents.grad(x, k + 1)
        if (k + 1) % self.snapshot == 0:
            x_hat = x_new
            v = v_hat = agents.full_grad(x_new)
        else:
            v = agents.grad(x_new, k + 1, SECOND) - agents.grad(x_hat, k + 1, SECOND) + v_hat
        d_new = (1 - β) * (d + change) + β * v
        return self.State(x_new, y + d_new - d, d_new, x_hat, v_hat)
