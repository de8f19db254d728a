"""What the rooms of the library promise each other.

One idea carries the whole design: what an agent does alone is row-wise, and only mixing crosses rows. State is
``[trials, agents, d]``: the last axis is the vector, the leading axes are a batch. An algorithm acts on rows through
the verbs of `Agents` and never learns how many rows there are, where the others live or how messages travel. That is
why it is written once and runs on every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, overload, runtime_checkable

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
        >>> result = proxdasa.run(method, problem, networks.ring(3), regularizer=Halfspace(), iterations=200)
        >>> result.mean.round(decimals=3)
        tensor([[0.5000, 0.5000]])
    """

    def value(self, x: Tensor) -> Tensor:
        """Ψ(x), of shape ``x.shape[:-1]``; infinite outside the domain of a constraint."""

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """argmin_y ‖y − x‖²/(2γ) + Ψ(y), for a number γ > 0 or a tensor that broadcasts against x with last axis 1."""


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
        ...     # `to` and `restrict` are needed only by runs with a `dtype` or with `processes`
        >>> method = proxdasa.ProxDASAGT(gamma=0.5, alpha=0.3)
        >>> proxdasa.run(method, Centres(), networks.ring(3), iterations=200).mean.round(decimals=3)
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

    def restrict(self, agents: range) -> Self:
        """The losses of these agents alone, with no more data than theirs; the others live elsewhere."""

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


class Network(Protocol):
    """A connected graph of agents with symmetric, doubly stochastic weights W."""

    @property
    def n(self) -> int:
        """The number of agents."""

    @property
    def W(self) -> csr_array:  # noqa: N802
        """The mixing matrix, always sparse."""

    @property
    def rho(self) -> float:
        """ρ = max(|λ₂|, |λ_n|) < 1."""

    @property
    def smallest_eigenvalue(self) -> float:
        """λ_n > −1."""

    @property
    def degrees(self) -> Any:
        """The number of neighbours of each agent, as an integer array."""


class Mixing(Protocol):
    """A polynomial in W, applied through nothing but the verb "apply W".

    Examples:
        >>> class Lazy:  # (I + W)/2
        ...     def rounds_for(self, rho):
        ...         return 1
        ...
        ...     def __call__(self, apply, x, rho):
        ...         return (x + apply(x)) / 2
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> method = proxdasa.ProxDASA(gamma=0.5, alpha=0.3)
        >>> proxdasa.run(method, problem, networks.ring(3), mixing=Lazy(), iterations=200).mean.round(decimals=3)
        tensor([[1., 1.]])
    """

    def rounds_for(self, rho: float) -> int:
        """The number m of communication rounds on a network with this ρ."""

    def __call__(self, apply: Callable[[Tensor], Tensor], x: Tensor, rho: float) -> Tensor:
        """The mixed x, after exactly ``rounds_for(rho)`` calls of ``apply``."""


class Agents(Protocol):
    """The verbs an algorithm has, and all it may know. Tensors are ``[trials, agents here, d]``.

    Examples:
        >>> class Half(proxdasa.DPSGD):
        ...     def step(self, agents: contracts.Agents, k, state):  # steps along half the gradient
        ...         x = agents.mix(state.x) - self.gamma * agents.grad(state.x, k) / 2
        ...         return self.State(agents.prox(x, self.gamma))
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> proxdasa.run(Half(gamma=0.5), problem, networks.ring(3), iterations=100).mean.round(decimals=3)
        tensor([[1., 1.]])
    """

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """∇G_i(x_i, ξ_i): the sample is named (seed, trial, agent, k), so calling twice uses the same ξ.

        Another value of ``sample`` names another, independent one. k need not be the iteration: a batch takes several.
        """

    def full_grad(self, x: Tensor) -> Tensor:
        """∇F_i(x_i) over the agent's own data (an error where the data stream)."""

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step of γΨ, row by row."""

    @overload
    def mix(self, x: Tensor, /) -> Tensor: ...
    @overload
    def mix(self, x: Tensor, y: Tensor, /) -> tuple[Tensor, Tensor]: ...
    @overload
    def mix(self, x: Tensor, y: Tensor, z: Tensor, /) -> tuple[Tensor, Tensor, Tensor]: ...
    def mix(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Rows mixed with their neighbours' by the chosen protocol; one message per neighbour and round for all."""

    @property
    def degrees(self) -> Tensor:
        """The number of neighbours of each agent, shaped ``[agents here, 1]``."""

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j over the unweighted graph, one round of one vector."""


def unpack(mixed: tuple[Tensor, ...]) -> Any:
    """The return value of `Agents.mix`: a tensor for one argument, a tuple for several."""
    return mixed if len(mixed) > 1 else mixed[0]


Step = Callable[[Any, int, Any], Any]
"""Maps (agents, k, state) to the state after iteration k."""


class Observer(Protocol):
    """What measuring a run needs. Nothing here counts as work or communication of the agents."""

    @property
    def n(self) -> int:
        """The number of agents in the whole network."""

    @property
    def agents(self) -> range:
        """The agents whose rows live in this process."""

    @property
    def degrees(self) -> Tensor:
        """The number of neighbours of each agent, shaped ``[agents here, 1]``."""

    def mean(self, x: Tensor) -> Tensor:
        """The mean over all agents, ``[trials, 1, d]``."""

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all agents, ``[trials, n, d]``, in every process."""

    def evaluate(self, x: Tensor) -> Evaluation:
        """Exact F_i and ∇F_i at the rows of x, or at one shared row ``[trials, 1, d]``."""

    def scores(self, x: Tensor) -> Mapping[str, Tensor]:
        """The problem's own measures at points ``[trials, d]``."""

    def value(self, x: Tensor) -> Tensor:
        """Ψ of each row."""

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step of γΨ, row by row."""

    def observe_neighbours(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j over the unweighted graph."""


class Host(Protocol):
    """What the life of a run needs: starting, stepping, saving, stopping, together with the other processes.

    Verbs that take part in communication must be called by all processes in the same order.
    """

    @property
    def writes(self) -> bool:
        """Whether this process writes the results."""

    @property
    def epoch(self) -> float:
        """Samples in one pass over an agent's data, on average over all agents; infinite where data stream."""

    def agree(self, claims: Callable[[], Mapping[str, str]]) -> None:
        """Compare with the other processes what all must have in common; a ValueError names what differs.

        The claims are a function because they may be costly to compute, and a lone process needs none.
        """

    def broadcast(self, value: Any) -> Any:
        """The plain JSON value that the writing process passes, in every process."""

    def total(self, x: Tensor) -> Tensor:
        """The elementwise sum over processes of a tensor of any shape that all of them share."""

    def collect(self, x: Tensor) -> Tensor:
        """The rows of all agents ``[trials, n, d]`` in the process that writes; the others must not use the answer."""

    def distribute(self, x: Tensor | None, like: Tensor) -> Tensor:
        """The rows that live here, shaped like ``like``. The writing process passes all agents' rows, others None."""

    def proceed(self, k: int) -> bool:
        """Whether to run iteration k; false once the processes have agreed to stop before it."""

    def rewind(self, k: int) -> None:
        """Undo the costs counted for iteration k, which was interrupted and will be repeated."""

    def fail(self, reason: str) -> None:
        """Let the other processes know why this one stops."""

    def interruptible(self) -> AbstractContextManager[None]:
        """Context manager around a run: signals ask all processes to stop before the same iteration."""

    def stepping(self) -> AbstractContextManager[None]:
        """Context manager around stepping: sets the thread count and starts the clock."""

    def compile(self, step: Step) -> Step:
        """An algorithm's step after `torch.compile`."""

    def counts(self) -> dict[str, float]:
        """What an agent has spent so far: samples, gradients, full gradients, rounds, vectors to each neighbour.

        Where messages travel, bytes and seconds too, on average over the agents.
        """

    def restore(self, counts: Mapping[str, float]) -> None:
        """Set the counts, for example to those of a checkpoint."""


class Engine(Agents, Observer, Host, Protocol):
    """Where rows live. Algorithms see `Agents` of it, measures `Observer`, and the loop of a run all."""


class NonFiniteError(ArithmeticError):
    """An agent was about to send a row that is not finite.

    Examples:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = optim.ProxDASA(model.parameters(), networks.ring(1), gamma=0.1, alpha=0.3)
        >>> (model(torch.ones(2)) * torch.inf).sum().backward()
        >>> try:
        ...     optimizer.step()
        ... except contracts.NonFiniteError:
        ...     print("stopped before anything was sent")
        stopped before anything was sent
    """


class PeerError(RuntimeError):
    """A peer is unreachable or out of step. Several processes may raise this for the same cause.

    ``noticed_here`` is false in processes that only learned of the cause from another one.

    Examples:
        >>> try:
        ...     raise contracts.PeerError("process 1 has ended", noticed_here=True)
        ... except contracts.PeerError as error:
        ...     print(error)
        process 1 has ended
    """

    def __init__(self, reason: str, noticed_here: bool) -> None:
        super().__init__(reason)
        self.noticed_here = noticed_here


class Averaging(NamedTuple):
    """Declares that a method averages gradients: z ← (1 − α_k) z + α_k g in step k, so that z̄ follows ∇F(x̄).

    That is what makes a dual gap, a certificate without a gradient more, and a rule for stopping. The law "averaging"
    of `proxdasa.testing` checks the claim.

    Examples:
        >>> proxdasa.ProxDASA.facts.averaging
        Averaging(variable='z', step_size='alpha')
    """

    variable: str
    """The variable of the state that is z."""
    step_size: str
    """The parameter of the method that is the schedule α_k."""

    def z(self, state: Any) -> Tensor:
        """The averaged gradients in a state of the method."""
        z: Tensor = getattr(state, self.variable)
        return z

    def alpha(self, algorithm: Algorithm) -> Callable[[int], Number]:
        """The step sizes of a method whose schedules are bound."""
        alpha: Callable[[int], Number] = getattr(algorithm, self.step_size)
        return alpha


class Facts(NamedTuple):
    """What a method declares of itself.

    Examples:
        >>> proxdasa.ProxDASAGT.facts.title, proxdasa.ProxDASAGT.facts.vectors
        ('Prox-DASA-GT', 3)
        >>> proxdasa.D2.facts.composite
        False
    """

    title: str
    """The name in the literature, used in tables and figures."""
    vectors: int
    """Vectors sent to each neighbour in a step, in each round of the mixing protocol."""
    gradients: int
    """Gradients that each agent evaluates in an ordinary step for each sample of its batch; batches at the start and
    from time to time come on top."""
    composite: bool = True
    """Whether it handles Ψ ≠ 0."""
    eigenvalues_above: float = -1.0
    """The eigenvalues of mixing must exceed this; −1 asks for nothing, as every network's do."""
    mixes: bool = True
    """Whether it mixes; one that does not sends its vectors once in a step, whatever the protocol."""
    averaging: Averaging | None = None
    """Which of its variables averages gradients, if one does."""


@runtime_checkable
class Algorithm(Protocol):
    """A method: a state, how it starts, and one step. See `proxdasa.algorithms` for how short that is.

    It is a dataclass, whose fields are its parameters: `run` binds schedules and per-trial values in them.

    Examples:
        >>> from dataclasses import dataclass
        >>> from typing import ClassVar, NamedTuple
        >>> @dataclass(frozen=True, eq=False)
        ... class GradientDescent:
        ...     facts: ClassVar = contracts.Facts("gradient descent", vectors=1, gradients=1, composite=False)
        ...     gamma: schedules.Number
        ...
        ...     class State(NamedTuple):
        ...         x: torch.Tensor
        ...
        ...     @property
        ...     def mapping_gamma(self):
        ...         return self.gamma
        ...
        ...     def init(self, agents, x):
        ...         return self.State(x)
        ...
        ...     def step(self, agents, k, state):
        ...         return self.State(agents.mix(state.x - self.gamma * agents.grad(state.x, k)))
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> proxdasa.run(GradientDescent(gamma=0.5), problem, networks.ring(3), iterations=50).mean.round(decimals=3)
        tensor([[1., 1.]])
    """

    facts: ClassVar[Facts]
    """What the method says of itself; the shared tests count whether it is true."""

    @property
    def mapping_gamma(self) -> Number:
        """The γ at which stationarity is measured: the method's own proximal step where that is constant, else 1."""

    @property
    def State(self) -> type[Any]:  # noqa: N802
        """The NamedTuple of its variables."""

    def init(self, agents: Agents, x: Tensor) -> Any:
        """The state, a NamedTuple of tensors whose first field is x, from the starting rows."""

    def step(self, agents: Agents, k: int, state: Any) -> Any:
        """The state after iteration k."""
