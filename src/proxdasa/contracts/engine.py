"""What an engine offers: the methods that algorithms call, those that observers need, and those of the run's loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, overload

from torch import Tensor

from proxdasa.contracts.parts import Evaluation
from proxdasa.schedules import Number


class Agents(Protocol):
    """The methods that an algorithm may call, and all that it may know. Tensors are ``[trials, agents here, d]``.

    Examples:
        >>> class Half(proxdasa.DPSGD):
        ...     def step(self, agents: contracts.Agents, k, state):  # steps along half the gradient
        ...         x = agents.mix(state.x) - self.gamma * agents.grad(state.x, k) / 2
        ...         return self.State(agents.prox(x, self.gamma))
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> proxdasa.run(Half(gamma=0.5), problem, networks.ring(3), iterations=50).mean.round(decimals=3)
        tensor([[1., 1.]])
    """

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """∇G_i(x_i, ξ_i): the sample is named (seed, trial, agent, k), so calling twice uses the same ξ.

        Another value of ``sample`` names another, independent sample. k need not be the number of the iteration: a
        batch uses several values of k.
        """

    def full_grad(self, x: Tensor) -> Tensor:
        """∇F_i(x_i) over the agent's own data; raises an error if the data are a stream."""

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step of γΨ, row by row."""

    @overload
    def mix(self, x: Tensor, /) -> Tensor: ...
    @overload
    def mix(self, x: Tensor, y: Tensor, /) -> tuple[Tensor, Tensor]: ...
    @overload
    def mix(self, x: Tensor, y: Tensor, z: Tensor, /) -> tuple[Tensor, Tensor, Tensor]: ...
    def mix(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Rows mixed with their neighbours' by the chosen protocol; all tensors share one message per round."""

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


class Block(Protocol):
    """Several iterations of a method as one function."""

    @property
    def size(self) -> int:
        """The number of iterations."""

    def fits(self, k: int) -> bool:
        """Whether it may begin with iteration k: its steps take the same branches as those that were compiled."""

    def __call__(self, k: int, state: Any) -> Any:
        """The state after iterations k, …, k + size − 1; counts their costs."""


class Question(NamedTuple):
    """A gradient that a step asks for: at which point, of which kind, and at which sample."""

    x: Tensor
    verb: str
    names: tuple[int, ...]


class Sliced(Agents, Protocol):
    """The methods of `Agents` for a slice of coordinates, with a gradient that is computed beforehand."""

    agents: range
    """Which agents they are."""
    width: int
    """How many coordinates a slice has."""
    questions: list[Question]
    """The gradients that a step asked for; zeros stand in for the answers if they are not known."""

    @property
    def groups(self) -> Sequence[Sliced]:
        """The same agents in groups, each of which takes a step by itself; `settle` returns what is mixed later."""

    def settle(self, state: Any) -> tuple[list[Tensor], list[int]]:
        """The variables after a step, and the places of those that are still to be mixed.

        Raises RuntimeError if the step computes with what it has mixed: those values do not exist yet.
        """

    def answer(self, question: Question, x: Tensor) -> Tensor:
        """The gradients of these agents at x, for a question that was asked at a slice of it."""

    def count(self, x: Tensor, step: Callable[[], object]) -> None:
        """Call a step on a slice, and count its messages as if whole rows like x were sent."""

    def with_answer(self, answer: Tensor | None) -> Sliced:
        """Agents for one slice, with the slice of the gradient; None if it is not known or not needed."""


class NotCompilableError(Exception):
    """A method, problem or machine does not allow steps to be compiled; the run takes ordinary steps."""


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

    def evaluate(self, x: Tensor, buffers: Tensor | None = None) -> Evaluation:
        """Exact F_i and ∇F_i at the rows of x, or at one shared row ``[trials, 1, d]``.

        If the problem has running statistics, they are r̄, the mean over the agents, unless others are given.
        """

    def scores(self, x: Tensor, buffers: Tensor | None = None) -> Mapping[str, Tensor]:
        """The problem's own measures at points ``[trials, d]``, with r̄ or other statistics ``[trials, s]``."""

    @property
    def buffers(self) -> Tensor | None:
        """The running statistics of the agents here ``[trials, agents here, s]``, if the problem has any."""

    def value(self, x: Tensor) -> Tensor:
        """Ψ of each row."""

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step of γΨ, row by row."""

    @property
    def separable(self) -> bool:
        """Whether Ψ is a sum over coordinates of one function of each (`is_separable`)."""

    def observe_neighbours(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j over the unweighted graph."""


class Host(Protocol):
    """What the loop of a run needs: starting, stepping, saving, stopping, together with the other processes.

    All processes must call methods that communicate, and in the same order.
    """

    extra_rows: dict[str, Tensor]
    """What agents keep beside the variables of the method, by name, each ``[trials, agents here, any width]``.

    The loop saves them in checkpoints, keeps those of agents that are out, and restores earlier ones when it repeats
    iterations; so code that changes rows replaces the tensors. It may write into a tensor that it has replaced, but not
    before the next iteration, so that an iteration can be undone.
    """

    @property
    def writes(self) -> bool:
        """Whether this process writes the results."""

    @property
    def epoch(self) -> float:
        """Samples in one pass over an agent's data, on average over all agents; infinite where data stream."""

    def agree(self, claims: Callable[[], Mapping[str, str]]) -> None:
        """Check that all processes make the same claims; a ValueError names what differs.

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

    def enter(self, k: int) -> Tensor | None:
        """Begin iteration k; return which agents here take part, ``[trials, agents here, 1]``, or None if all do."""

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

    def compile(self, algorithm: Any, state: Any, size: int, first: int) -> Block:
        """At most ``size`` iterations of a method as one function; NotCompilableError says why that is impossible.

        ``state`` is a state of the method, which is not changed; ``first`` is the number of the run's first iteration.
        """

    def sliced(self, algorithm: Any) -> Sliced | None:
        """The agents for steps of a large state in slices; None if the method's steps are taken whole."""

    def counts(self) -> dict[str, float]:
        """What an agent has spent so far: samples, gradients, full gradients, rounds, vectors to each neighbour, bytes.

        Bytes are those of the vectors to all its neighbours, on average over agents and trials. Between processes,
        there are also the bytes that crossed the wire, for each agent, and seconds, for each process.
        """

    def restore(self, counts: Mapping[str, float]) -> None:
        """Set the counts, for example to those of a checkpoint."""


class Engine(Agents, Observer, Host, Protocol):
    """Where rows live. Algorithms see it as `Agents`, measures as `Observer`, and the loop of a run as a whole."""


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
