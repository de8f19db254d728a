"""The parts of a run that users choose or write: problem, regularizer, network, mixing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from proxdasa.schedules import Number

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Evaluation(NamedTuple):
    """Losses F_i(x_i) ``[..., n]`` and gradients ∇F_i(x_i) ``[..., n, d]`` of one pass over the agents' data.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> evaluation = problem.evaluate(torch.ones(1, 3, 2))
        >>> evaluation.loss, evaluation.grad.shape
        (tensor([[-1., -1., -1.]]), torch.Size([1, 3, 2]))
    """

    loss: Tensor
    grad: Tensor


class Regularizer(Protocol):
    """The convex term Ψ, acting on the last axis and batched over all leading ones.

    Examples:
        >>> class Halfspace:  # the constraint Σ x ≤ 1
        ...     def value(self, x):
        ...         return torch.where(x.sum(-1) <= 1 + 1e-6, 0.0, torch.inf)
        ...
        ...     def prox(self, x, gamma):
        ...         excess = (x.sum(-1, keepdim=True) - 1).clamp(min=0)
        ...         return x - excess / x.shape[-1]
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> method = proxdasa.ProxDASA(gamma=0.5, alpha=0.3)
        >>> result = proxdasa.run(method, problem, networks.ring(3), regularizer=Halfspace(), iterations=60)
        >>> result.mean.round(decimals=3)
        tensor([[0.5000, 0.5000]])
    """

    def value(self, x: Tensor) -> Tensor:
        """Ψ(x), of shape ``x.shape[:-1]``; infinite outside the domain of a constraint."""

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """argmin_y ‖y − x‖²/(2γ) + Ψ(y), for a number γ > 0 or a tensor that broadcasts against x with last axis 1."""


def is_separable(regularizer: Regularizer) -> bool:
    """Whether Ψ(x) = Σ_j ψ(x_j) with one ψ for all coordinates; an attribute ``separable`` declares this.

    The proximal step of a slice of the coordinates is then a slice of the whole proximal step.
    """
    return bool(getattr(regularizer, "separable", False))


class Solved(Protocol):
    """The result of a run, as far as a problem needs it."""

    @property
    def solution(self) -> Tensor:
        """The solution of each trial ``[trials, d]``; NaN for trials that diverged."""

    @property
    def buffers(self) -> Tensor | None:
        """The running statistics of all agents ``[trials, n, s]``, if the network has any."""


class Problem(Protocol):
    """The smooth part: n local losses F_i, seen by the algorithms through one-sample gradients.

    A problem draws nothing. It turns named random words into samples, so that any engine on any number of
    processes, starting at any iteration, sees the same ξ (see `proxdasa.samples`).

    Examples:
        >>> class Centres:  # F_i(x) = ½‖x − c_i‖², with exact gradients
        ...     agents, dim, dtype, epoch, words = 3, 2, torch.float32, 1.0, 0
        ...     c = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 6.0]])
        ...
        ...     def start(self, seed, trials):
        ...         return torch.zeros(2)
        ...
        ...     def sample(self, words):
        ...         return words
        ...
        ...     def grad(self, x, sample):
        ...         return x - self.c
        ...
        ...     def evaluate(self, x):
        ...         return contracts.Evaluation(0.5 * (x - self.c).square().sum(-1), x - self.c)
        ...
        ...     def scores(self, x):
        ...         return {}
        ...
        ...     # `to`, `to_device` and `restrict` are needed only by runs with a `dtype`, a `device` or `processes`;
        ...     # `grad_of` (see `PartialGrad`) only saves memory if the state is large;
        ...     # `join` (see `Peers`) only if parts of the problem must know something of each other
        >>> method = proxdasa.ProxDASAGT(gamma=0.5, alpha=0.3)
        >>> proxdasa.run(method, Centres(), networks.ring(3), iterations=80).mean.round(decimals=3)
        tensor([[1., 2.]])
    """

    @property
    def agents(self) -> int:
        """The number n of local losses."""

    @property
    def dim(self) -> int:
        """The dimension d of x."""

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of its data and gradients."""

    @property
    def epoch(self) -> float:
        """How many samples are one pass over an agent's data; infinite where samples stream and never repeat.

        An agent of a streaming problem has no full gradient to compute.
        """

    @property
    def words(self) -> int:
        """How many random 32-bit words one sample is made of; 0 for exact gradients."""

    def to(self, dtype: torch.dtype) -> Self:
        """The same problem in another floating-point type."""

    def to_device(self, device: torch.device) -> Self:
        """The same problem, whose gradients, evaluations and scores take and give tensors on another device.

        Samples are made by the problem that is on the host, and arrive on the device.
        """

    def restrict(self, agents: range) -> Self:
        """The problem of these agents alone, with no data but theirs; the others are in other processes."""

    def start(self, seed: int, trials: int) -> Tensor:
        """The default x⁰, broadcastable to ``[trials, n, d]``."""

    def sample(self, words: Tensor) -> Tensor:
        """Samples ``[..., trials, n, ?]`` from random words ``[..., trials, n, words]`` (int32, uniform)."""

    def grad(self, x: Tensor, sample: Tensor) -> Tensor:
        """∇G_i(x_i, ξ_i) for x ``[trials, n, d]`` and a sample ``[trials, n, ?]``."""

    def evaluate(self, x: Tensor) -> Evaluation:
        """F_i and ∇F_i over all data, or over the evaluation sample of a streaming problem.

        x is ``[trials, n, d]``, or ``[trials, 1, d]`` for one point shared by all agents; then the answer may be the
        mean over agents.
        """

    def scores(self, x: Tensor) -> Mapping[str, Tensor]:
        """Measures of its own at points x ``[trials, d]``, such as test accuracy, each ``[trials]``; may be empty."""


class Running(Protocol):
    """A problem whose networks have running statistics: rows r ``[trials, n, s]`` that belong to the rows of x.

    A problem may have an attribute ``running``, which is None or has these methods. An engine keeps r beside x.
    """

    @property
    def mixed_buffers(self) -> int:
        """How many statistics, from the first on, are mixed with the neighbours'; 0 if each agent keeps its own."""

    def first_buffers(self, trials: int) -> Tensor:
        """r before the first sample."""

    def combine_buffers(self, rows: Tensor) -> Tensor:
        """The statistics r̄ ``[trials, 1, s]`` that belong to x̄, from those of all agents."""

    def grad_and_buffers(self, x: Tensor, buffers: Tensor, sample: Tensor) -> tuple[Tensor, Tensor]:
        """∇G_i(x_i, ξ_i) as `Problem.grad` gives it, and r after this sample."""

    def evaluate(self, x: Tensor, buffers: Tensor) -> Evaluation:
        """F_i and ∇F_i as `Problem.evaluate` gives them, at rows of x with these rows of r."""

    def scores(self, x: Tensor, buffers: Tensor) -> Mapping[str, Tensor]:
        """The scores of points ``[trials, d]`` with statistics ``[trials, s]``."""


def running_of(problem: Problem) -> Running | None:
    """The problem's running statistics, if it has any."""
    found: Running | None = getattr(problem, "running", None)
    return found


class Observed(Protocol):
    """A faster way to measure a problem, whose results agree with the problem's own up to rounding.

    A problem may have an attribute ``observed``, which is None or has these methods; exact runs do not use it. Another
    such attribute is ``work``: the numbers of floating-point operations of a sample gradient and of an evaluation, for
    one agent and trial, from which ``observe_every="auto"`` chooses its number.
    """

    def evaluate(self, x: Tensor) -> Evaluation:
        """The means over agents of F_i and ∇F_i at a point ``[trials, 1, d]`` that all share."""

    def scores(self, x: Tensor) -> Mapping[str, Tensor]:
        """The scores of points ``[trials, d]``."""


def observed_of(problem: Problem) -> Observed | None:
    """The faster way to measure a problem, if it has one."""
    found: Observed | None = getattr(problem, "observed", None)
    return found


class PartialGrad(Protocol):
    """The gradients of some of the agents; a problem may offer this as a method ``grad_of``.

    Steps of large states then hold the gradients of only a few agents at a time.
    """

    def __call__(self, agents: range, x: Tensor, sample: Tensor) -> Tensor:
        """∇G_i(x_i, ξ_i) of these agents, for their rows of x ``[trials, agents, d]`` and of the sample."""


def partial_grad_of(problem: Problem) -> PartialGrad | None:
    """The problem's ``grad_of``, if it has one that belongs to its ``grad``: a subclass may define another ``grad``."""
    owner = next((each for each in type(problem).__mro__ if {"grad", "grad_of"} & vars(each).keys()), None)
    found: PartialGrad | None = getattr(problem, "grad_of", None) if owner and "grad_of" in vars(owner) else None
    return found


class Peers(Protocol):
    """The processes that hold the other agents of a problem.

    A problem may have a method ``join(peers)``, for what its parts must know about each other: every process calls it
    on its part, once, before the first iteration, and works with the part that it returns.

    Examples:
        >>> class Counted(problems.Quadratic):
        ...     def join(self, peers):
        ...         peers.agree({"noise": str(self.noise)})
        ...         print("agents everywhere:", int(peers.sum(torch.tensor([float(self.agents)]))))
        ...         return self
        >>> problem = Counted(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> method = proxdasa.ProxDASA(gamma=0.5, alpha=0.3)
        >>> _ = proxdasa.run(method, problem, networks.ring(3), iterations=1, processes=engines.Alone())
        agents everywhere: 3
    """

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes."""

    def agree(self, claims: Mapping[str, str]) -> None:
        """Raise ValueError in all processes if they differ in one of these texts, whose names are for the message."""


class Network(Protocol):
    """A connected graph of agents with symmetric, doubly stochastic weights W."""

    @property
    def n(self) -> int:
        """The number of agents."""

    @property
    def W(self) -> csr_array:  # noqa: N802
        """The mixing matrix, always sparse."""

    @property
    def rounds(self) -> tuple[csr_array, ...]:
        """The matrices of consecutive rounds if the graph changes, else empty; W is then their mean."""

    @property
    def rho(self) -> float:
        """ρ = max(|λ₂|, |λ_n|) < 1."""

    @property
    def smallest_eigenvalue(self) -> float:
        """λ_n > −1."""

    @property
    def edges(self) -> Any:
        """The links as rows (i, j) with i < j, in ascending order, as an integer array."""

    @property
    def degrees(self) -> Any:
        """The number of neighbours of each agent, as an integer array."""


class Mixing(Protocol):
    """A polynomial in W that preserves means, written in terms of one operation, "apply W".

    Examples:
        >>> class Lazy:  # (I + W)/2
        ...     def rounds_for(self, rho):
        ...         return 1
        ...
        ...     def __call__(self, apply, x, rho):
        ...         return (x + apply(x)) / 2
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> method = proxdasa.ProxDASA(gamma=0.5, alpha=0.3)
        >>> proxdasa.run(method, problem, networks.ring(3), mixing=Lazy(), iterations=80).mean.round(decimals=3)
        tensor([[1., 1.]])
    """

    def rounds_for(self, rho: float) -> int:
        """The number m of communication rounds on a network with this ρ."""

    def __call__(self, apply: Callable[[Tensor], Tensor], x: Tensor, rho: float) -> Tensor:
        """The mixed x, after exactly ``rounds_for(rho)`` calls of ``apply``."""
