"""Sparse single-index models, phase retrieval among them: streaming samples with gradients in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from proxdasa import memory_budget, samples
from proxdasa.checks import check_not_negative, check_whole, invalid
from proxdasa.contracts import Evaluation
from proxdasa.devices import CPU


@dataclass(frozen=True)
class Link:
    """The function g of a single-index model, with its derivative.

    ``population``, where it is known, gives the exact loss and gradient (θ, θ*, noise) ↦ (F, ∇F) for Gaussian X.

    Examples:
        >>> cubic = problems.Link("cubic", value=lambda s: s**3, slope=lambda s: 3 * s**2)
        >>> problem = problems.SingleIndex(agents=4, dim=10, link=cubic, sparsity=2, evaluation=100)
        >>> problem.link.name
        'cubic'
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    population: Callable[[Tensor, Tensor, float], Evaluation] | None = None

    def describe(self) -> str:
        """The name, as a configuration file writes it."""
        return self.name


def _square_population(θ: Tensor, truth: Tensor, noise: float) -> Evaluation:
    """F = 3‖θ‖⁴ + 3‖θ*‖⁴ − 2‖θ‖²‖θ*‖² − 4(θᵀθ*)² + σ², from the fourth moments of a Gaussian."""
    a, b, c = θ.square().sum(-1), truth.square().sum(), θ @ truth
    loss = 3 * a**2 + 3 * b**2 - 2 * a * b - 4 * c**2 + noise**2
    return Evaluation(loss, (12 * a - 4 * b).unsqueeze(-1) * θ - 8 * c.unsqueeze(-1) * truth)


def _identity_population(θ: Tensor, truth: Tensor, noise: float) -> Evaluation:
    """F = ‖θ − θ*‖² + σ²."""
    return Evaluation((θ - truth).square().sum(-1) + noise**2, 2 * (θ - truth))


SQUARE = Link("square", torch.square, lambda s: s + s, _square_population)
IDENTITY = Link("identity", lambda s: s, torch.ones_like, _identity_population)
TANH = Link("tanh", torch.tanh, lambda s: 1 - torch.tanh(s).square())
LINKS = (SQUARE, IDENTITY, TANH)

KEPT = 2**30
"""Bytes of evaluation points that are kept in memory; more than that are drawn again in every evaluation."""
MANY = 2**12
"""With more agents than this, points are read a block of agents at a time."""
ROWS = 2**14
"""Points that are used together, so that they are still in the cache when they are read again."""


@dataclass(frozen=True, eq=False)
class SingleIndex:
    """The sparse single-index model of the paper's synthetic experiment, the same at every agent.

        Y = g(Xᵀθ*) + ε,    F_i(θ) = E (Y − g(Xᵀθ))²,    ∇G(θ, ξ) = −2 (Y − g(Xᵀθ)) g'(Xᵀθ) X

    X ~ N(0, I), ε ~ N(0, noise²), and θ* has ``sparsity`` entries ±1/√sparsity, so ‖θ*‖ = 1. Training samples stream,
    one per agent and iteration. Losses and full gradients come from a fixed sample of ``evaluation`` points per
    agent, or with ``evaluation="population"`` from the exact expectation where the link has one. ``seed`` names θ* and
    the evaluation points; they are the same for every trial, every n and every floating-point type. ``first`` is the
    number of the first agent, for a part of a larger network.

    Examples:
        >>> problem = problems.SingleIndex(agents=4, dim=10, link=problems.TANH, sparsity=2, evaluation=100)
        >>> f"{problem.evaluate(problem.truth.expand(1, 1, 10)).loss.mean():.2f}"  # the variance of the noise
        '0.01'
    """

    agents: int
    dim: int = 100
    link: Link = SQUARE
    sparsity: int = 5
    noise: float = 0.1
    evaluation: int | Literal["population"] = 10_000
    seed: int = 0
    first: int = field(default=0, repr=False)
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    _device: ClassVar[torch.device] = CPU
    """Where θ* and the evaluation points are."""

    def __post_init__(self) -> None:
        check_whole(self.agents, "agents", least=1)
        check_whole(self.dim, "dim", least=1)
        if not 1 <= self.sparsity <= self.dim:
            raise invalid("sparsity", f"a whole number from 1 to dim = {self.dim}", self.sparsity)
        check_not_negative(self.noise, "noise")
        if self.evaluation == "population":
            if self.link.population is None:
                raise ValueError(
                    f"the population loss of the link {self.link.name!r} is not known; give evaluation a number"
                )
        elif not isinstance(self.evaluation, int) or self.evaluation < 1:
            raise invalid("evaluation", 'a number of points or "population"', self.evaluation)
        else:
            least = self.evaluation * self.words * self.dtype.itemsize  # the points of one agent at a time
            points = f"evaluation = {self.evaluation:,} points at each of {self.agents:,} agents, d = {self.dim:,},"
            memory_budget.check(max(least, min(self._size, KEPT)), points, "fewer points or agents need less")

    @property
    def epoch(self) -> float:
        """Infinite, because samples stream."""
        return math.inf

    @property
    def work(self) -> tuple[float, float]:
        """The operations of a sample gradient, and those of an evaluation, for one agent and trial."""
        points = self.evaluation if isinstance(self.evaluation, int) else 1
        return 6 * self.dim, 6 * self.dim * points

    @property
    def words(self) -> int:
        """The number of random words per sample: one for each coordinate of X, and one for ε."""
        return self.dim + 1

    def to(self, dtype: torch.dtype) -> SingleIndex:
        """The same model in another floating-point type."""
        return replace(self, dtype=dtype)

    def to_device(self, device: torch.device) -> SingleIndex:
        """The same model, with θ* and the evaluation points on another device."""
        moved = replace(self)
        vars(moved)["_device"] = device
        return moved

    def restrict(self, agents: range) -> SingleIndex:
        """The model of some of the agents."""
        return replace(self, agents=len(agents), first=self.first + agents.start)

    @cached_property
    def truth(self) -> Tensor:
        """θ*, of norm 1: a random support with random signs and equal magnitudes."""
        words = samples.words(self.seed, samples.GROUND_TRUTH, 0, 0, self.dim + self.sparsity)
        support = words[: self.dim].argsort()[: self.sparsity]
        signs = torch.where(words[self.dim :] < 0, -1.0, 1.0)
        truth = torch.zeros(self.dim, dtype=torch.float64)
        truth[support] = signs.to(torch.float64) / math.sqrt(self.sparsity)
        return truth.to(self.dtype).to(self._device)

    def start(self, seed: int, trials: int) -> Tensor:
        """A random point of norm 1 for each trial, shared by its agents.

        θ = 0 is stationary for the square link, so the paper's x⁰ = 0 would never move.
        """
        words = torch.stack([samples.words(seed, samples.START, trial, 0, self.dim) for trial in range(trials)])
        return torch.nn.functional.normalize(samples.normals(words).to(self.dtype), dim=-1).unsqueeze(1)

    def sample(self, words: Tensor) -> Tensor:
        """Samples (X, Y), each in one row with Y last."""
        drawn = samples.normals(words).to(self.dtype)
        rows = drawn.view(-1, self.words)  # with two axes the product needs no copy of X
        X, ε = rows[:, :-1], rows[:, -1]
        # In place: ε is a column of what is returned, and becomes Y there.
        ε.mul_(self.noise).add_(self.link.value(X @ self.truth))
        return drawn

    def grad(self, x: Tensor, sample: Tensor) -> Tensor:
        """The sample gradients 2 (g(Xᵀθ) − Y) g'(Xᵀθ) X."""
        X, Y = sample[..., :-1], sample[..., -1]
        s = torch.linalg.vecdot(X, x)
        return ((self.link.value(s) - Y) * self.link.slope(s)).mul_(2).unsqueeze(-1) * X

    def grad_of(self, agents: range, x: Tensor, sample: Tensor) -> Tensor:  # noqa: ARG002
        """The sample gradients of some of the agents, for which their samples are enough."""
        return self.grad(x, sample)

    def evaluate(self, x: Tensor) -> Evaluation:
        """Mean loss and gradient over each agent's evaluation points, or the exact expectation."""
        if self.evaluation == "population":
            assert self.link.population is not None
            return self.link.population(x, self.truth, self.noise)
        shared = x.flatten(0, -2).mT if x.shape[-2] == 1 and self.agents > MANY else None  # [d, trials]
        x = x.expand(*x.shape[:-2], self.agents, self.dim)
        θ = x.reshape(-1, self.agents, self.dim).permute(1, 2, 0)  # [n, d, trials]: one product per agent
        loss, grad = θ.new_zeros(self.agents, θ.shape[-1]), torch.zeros_like(θ.mT)  # [n, trials, d]
        for here in self._blocks:
            points = self._held[here] if self._held else self._draw(here)
            # Slices that stay in cache: X is read for the residual and again for the gradient.
            slices = (torch.split(part, max(1, ROWS // len(here)), dim=1) for part in points)
            rows = slice(here.start, here.stop)
            for X, Y in zip(*slices, strict=True):
                s = X @ θ[rows] if shared is None else (X.flatten(0, 1) @ shared).view(*Y.shape[:2], -1)
                residual = self.link.value(s) - Y
                loss[rows] += residual.square().sum(dim=1)
                # Not Xᵀ times a column, which takes more than twice as long.
                grad[rows] += (residual * self.link.slope(s)).mT @ X
        count, shape = self.evaluation, x.shape
        return Evaluation(loss.T.reshape(shape[:-1]) / count, grad.transpose(0, 1).reshape(shape) * (2 / count))

    def scores(self, x: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """No scores besides loss and gradient."""
        return {}

    @property
    def _blocks(self) -> list[range]:
        """Agents whose points are drawn and used together: all of them, or few enough for the cache if n is large."""
        assert isinstance(self.evaluation, int)
        most = self.agents if self._size <= KEPT and self.agents <= MANY else max(1, ROWS // self.evaluation)
        return [range(first, min(first + most, self.agents)) for first in range(0, self.agents, most)]

    @cached_property
    def _held(self) -> dict[range, tuple[Tensor, Tensor]]:
        """The evaluation points by block of agents; none if they take more memory than `KEPT`."""
        return {here: self._draw(here) for here in self._blocks} if self._size <= KEPT else {}

    @property
    def _size(self) -> int:
        """Bytes of all evaluation points."""
        assert isinstance(self.evaluation, int)
        return self.agents * self.evaluation * self.words * self.dtype.itemsize

    def _draw(self, here: range) -> tuple[Tensor, Tensor]:
        """The evaluation points of some agents, X ``[agents, points, d]`` and Y ``[agents, points, 1]``."""
        assert isinstance(self.evaluation, int)
        agents = range(self.first + here.start, self.first + here.stop)
        X = torch.empty(len(here), self.evaluation, self.dim, dtype=self.dtype)
        Y = torch.empty(len(here), self.evaluation, 1, dtype=self.dtype)
        count = self.evaluation * self.words
        most = max(1, ROWS // self.evaluation)  # at a time, because the words take as much memory again
        host = self if self._device == CPU else replace(self)
        for first in range(0, len(here), most):
            words = samples.words_of(self.seed, samples.EVALUATION, 0, agents[first : first + most], count)
            rows = host.sample(words.reshape(-1, self.evaluation, self.words))
            X[first : first + most], Y[first : first + most] = rows[..., :-1], rows[..., -1:]
        return X.to(self._device), Y.to(self._device)


def PhaseRetrieval(  # noqa: N802
    agents: int,
    dim: int = 100,
    sparsity: int = 5,
    noise: float = 0.1,
    evaluation: int | Literal["population"] = 10_000,
    seed: int = 0,
) -> SingleIndex:
    """Sparse phase retrieval, the paper's synthetic experiment: `SingleIndex` with g(s) = s².

    With ‖θ*‖ = 1 the exact loss is F = 3‖θ‖⁴ + 3‖θ*‖⁴ − 2‖θ‖²‖θ*‖² − 4(θᵀθ*)² + noise².

    Examples:
        >>> problem = problems.PhaseRetrieval(agents=8, dim=50, sparsity=5, evaluation=100)
        >>> int((problem.truth != 0).sum()), f"{problem.truth.norm():.2f}"
        (5, '1.00')
    """
    return SingleIndex(agents, dim, SQUARE, sparsity, noise, evaluation, seed)
