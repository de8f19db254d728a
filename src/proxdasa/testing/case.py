"""What the laws check a method on: problems with known answers, networks, and agents that record what is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxdasa import networks
from proxdasa.conditions import Condition, LinkLoss, Participation
from proxdasa.contracts import Agents, Algorithm, Problem, Regularizer, unpack
from proxdasa.networks import Network
from proxdasa.problems import Quadratic
from proxdasa.regularizers import L1, Zero
from proxdasa.runs.setup import Setup
from proxdasa.schedules import Number

N, D = 5, 6
STEPS = 30
"""The number of steps in most checks; restarts that happen less often are not covered."""
SEEN = STEPS // 3
"""The number of steps in the shortest checks of messages: what happens less often is not seen there."""
LONG = 400
"""Iterations within which a method must come close to a solution."""
WEIGHT = 1.0
"""λ of the L1 norm in the checks."""
BAD_WEATHER: Sequence[Condition] = (LinkLoss(0.3), Participation(0.6))
"""Links that fail, and agents that keep their rows in some iterations while the others go on."""


@dataclass(frozen=True)
class Case:
    """A method, what its author declares about it, and runs that several laws look at."""

    algorithm: Algorithm
    tracks: Mapping[str, str]
    long: int = LONG
    """The number of iterations in checks of where a method ends."""

    def setup(self, problem: Problem, network: Network, **settings: Any) -> Setup:
        """A run of the method, by default of `STEPS` iterations and without observations."""
        settings = {"iterations": STEPS, "metrics": (), "observe_every": 1_000_000, **settings}
        return Setup(self.algorithm, problem, network, **settings)

    @property
    def star(self) -> Network:
        """A network whose agents have different numbers of neighbours."""
        return suited(networks.star, self.algorithm.facts.eigenvalues_above)

    @property
    def ring(self) -> Network:
        """A network whose agents have equal numbers of neighbours."""
        return suited(networks.ring, self.algorithm.facts.eigenvalues_above)

    @cached_property
    def noisy(self) -> Setup:
        """A run on different quadratics with noise, which most laws look at."""
        return self.setup(quadratic(noise=0.1), self.star, regularizer=self.regularizer)

    @cached_property
    def course(self) -> Course:
        """The noisy run, step by step."""
        return follow(self.noisy)

    @cached_property
    def watched(self) -> Verbs:
        """The agents of `recorded`."""
        return Verbs(self.noisy.engine())

    @cached_property
    def recorded(self) -> Sequence[tuple[Any, set[tuple[int, int]]]]:
        """The noisy run again: the state after init and after each step, and the samples that were used there."""
        algorithm, agents = self.noisy.bound(), self.watched
        states = [(algorithm.init(agents, rows()), agents.samples)]
        for k in range(STEPS):
            agents.samples = set()
            states.append((algorithm.step(agents, k, states[-1][0]), agents.samples))
        return states

    @cached_property
    def scattered(self) -> tuple[Algorithm, Agents, Any, Any]:
        """The method and agents of a noisy run with Ψ = 0, a random state, and the one that it has become at the end.

        The first step is number 1.
        """
        setup = self.setup(quadratic(noise=0.1), self.star)
        algorithm, engine = setup.bound(), setup.engine()
        state = random_state(algorithm, engine)
        return algorithm, engine, state, walk(algorithm, engine, state, 1)

    @cached_property
    def equal(self) -> tuple[Any, bool]:
        """What `run_equal` gives on the ring."""
        return self.run_equal(self.ring)

    def run_equal(self, network: Network) -> tuple[Any, bool]:
        """The state of equal agents after some steps, and whether the method used degrees or sums over neighbours."""
        problem = quadratic(spread=0.0)
        algorithm = self.setup(problem, self.ring).bound()  # bound to N agents, whatever the network
        here = self.setup(problem.restrict(range(network.n)), network, regularizer=self.regularizer)
        agents = Verbs(here.engine())
        state = algorithm.init(agents, rows(n=1).repeat(1, network.n, 1))
        return walk(algorithm, agents, state), agents.uses_graph

    @cached_property
    def calm(self) -> Mapping[str, Tensor]:
        """The last state of a whole run with noise."""
        return self._last(())

    @cached_property
    def stormy(self) -> Mapping[str, Tensor]:
        """The same in bad weather."""
        return self._last(BAD_WEATHER)

    def _last(self, conditions: Sequence[Condition]) -> Mapping[str, Tensor]:
        settings = {"regularizer": self.regularizer, "conditions": conditions, "x0": rows()}
        return self.setup(quadratic(noise=0.1), self.star, **settings).run().state

    @property
    def regularizer(self) -> Regularizer:
        """λ‖·‖₁ if the method handles a regularizer, otherwise none."""
        return L1(WEIGHT) if self.algorithm.facts.composite else Zero()


class Course(NamedTuple):
    """A run, step by step."""

    algorithm: Algorithm
    agents: Agents
    states: Sequence[Any]
    """After init and after each step."""
    wrote: str | None
    """Which tensors were changed that init or a step was given, and where this happened first."""


def follow(setup: Setup) -> Course:
    """Make the run."""
    algorithm, engine, x = setup.bound(), setup.engine(), rows()
    before, wrote = x.clone(), None
    states = [algorithm.init(engine, x)]
    if not torch.equal(x, before):
        wrote = "init changed the x that it was given"
    for k in range(setup.iterations):
        given, copies = states[-1], [tensor.clone() for tensor in states[-1]]
        states.append(algorithm.step(engine, k, given))
        if not wrote and (changed := changed_names(given, copies)):
            wrote = f"step {k} changed {changed} of the state that it was given"
    return Course(algorithm, engine, states, wrote)


def changed_names(state: Any, other: Sequence[Tensor]) -> str:
    """The names of the variables that differ."""
    pairs = zip(state._fields, state, other, strict=True)
    return ", ".join(name for name, a, b in pairs if not torch.equal(a, b))


# Nothing changes what the following functions return, so it is made once.


@cache
def suited(builder: Callable[[int], Network], bound: float) -> Network:
    """The network, with self weights large enough for this bound on eigenvalues in one and three rounds."""
    network, least = builder(N), max(bound, float(np.cbrt(bound))) + 0.1
    λ = network.smallest_eigenvalue
    s = max(0.0, (least - λ) / (1 - λ))
    return networks.from_matrix(s * np.eye(network.n) + (1 - s) * network.W.toarray()) if s else network


@cache
def quadratic(n: int = N, noise: float = 0.0, spread: float = 1.0) -> Quadratic:
    """Quadratics with curvatures between 1 and 2 and minimisers that differ between agents by about ``spread``."""
    rng = np.random.default_rng(0)
    A, b = np.empty((n, D, D)), np.empty((n, D))
    curvatures, common = np.linspace(1.0, 2.0, D), rng.normal(size=D) * 2
    for i in range(n):
        Q, _ = np.linalg.qr(rng.normal(size=(D, D)))
        A[i] = (Q * curvatures) @ Q.T if spread else np.diag(curvatures)
        b[i] = common + spread * rng.normal(size=D)
    return Quadratic(torch.from_numpy(A), torch.from_numpy(b), noise=noise)


@cache
def solution_of_one(weight: float) -> Tensor:
    """The minimiser of agents with equal quadratics."""
    problem = quadratic(spread=0.0)
    return minimiser(problem.A[0], problem.b[0], weight)


@cache
def solution_of_all(weight: float) -> Tensor:
    """The minimiser of the mean of agents' different quadratics."""
    problem = quadratic()
    return minimiser(problem.A.mean(0), problem.b.mean(0), weight)


@cache
def solutions_of_each(weight: float) -> Tensor:
    """The minimisers of the agents' own quadratics."""
    problem = quadratic()
    return minimiser(problem.A, problem.b, weight)


def minimiser(A: Tensor, b: Tensor, weight: float) -> Tensor:
    """The x of least ½xᵀAx − bᵀx + weight ‖x‖₁, by proximal gradient steps; one for each of several A and b."""
    x = torch.zeros_like(b)
    for _ in range(60):
        y = x - 0.5 * (torch.einsum("...ij,...j->...i", A, x) - b)  # 1/L
        x = y.sign() * (y.abs() - 0.5 * weight).clamp(min=0)
    return x


def rows(trials: int = 1, n: int = N, seed: int = 1) -> Tensor:
    """Random rows ``[trials, n, D]``."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(trials, n, D)))


def random_state(algorithm: Algorithm, agents: Agents, seed: int = 1) -> Any:
    """A state whose variables are all random, and positive because a step may take roots."""
    state = algorithm.init(agents, rows())
    return type(state)(*(rows(seed=seed + i).abs() for i in range(len(state))))


def walk(algorithm: Algorithm, agents: Agents, state: Any, start: int = 0, stop: int = STEPS) -> Any:
    """The state after iterations ``start`` to ``stop − 1``."""
    for k in range(start, stop):
        state = algorithm.step(agents, k, state)
    return state


def _same(x: Tensor) -> Tensor:
    return x


class Verbs:
    """Agents with only the methods of `contracts.Agents`, which record how they are used.

    ``spoil`` is applied to every gradient. With ``apart``, mixing returns each agent's own rows and all neighbours
    equal the agent itself. ``stir`` is the number, from 0, of a vector that mixing returns changed.
    """

    def __init__(
        self,
        agents: Agents,
        spoil: Callable[[Tensor], Tensor] = _same,
        apart: bool = False,
        stir: int | None = None,
    ) -> None:
        self._agents, self._spoil, self._apart, self._stir = agents, spoil, apart, stir
        self.mixed = 0
        """The number of vectors that were mixed."""
        self.samples: set[tuple[int, int]] = set()
        """The (k, sample) of every sample that was used."""
        self.missing: list[str] = []
        """Attributes that were asked for and do not exist."""
        self.uses_graph = False
        """Whether degrees or sums over neighbours were used."""
        self.uses_full = False
        """Whether full gradients were used."""

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """The gradient; records its sample."""
        self.samples.add((k, sample))
        return self._spoil(self._agents.grad(x, k, sample))

    def full_grad(self, x: Tensor) -> Tensor:
        """The full gradient."""
        self.uses_full = True
        return self._spoil(self._agents.full_grad(x))

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step."""
        return self._agents.prox(x, gamma)

    def mix(self, *tensors: Tensor) -> Any:
        """The mixed tensors or, if the agents are apart, the same tensors."""
        mixed = tensors if self._apart else self._agents.mix(*tensors)
        several = list(mixed if isinstance(mixed, tuple) else (mixed,))
        if self._stir is not None and 0 <= (place := self._stir - self.mixed) < len(several):
            several[place] = several[place] + rows(len(several[place]), seed=77).abs()
        self.mixed += len(several)
        return unpack(tuple(several))

    @property
    def degrees(self) -> Tensor:
        """The number of neighbours."""
        self.uses_graph = True
        return self._agents.degrees

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j."""
        self.uses_graph = True
        return self._agents.degrees * x if self._apart else self._agents.neighbour_sum(x)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            self.missing.append(name)
        raise AttributeError(
            f"agents have no {name}; an algorithm may use only the methods of proxdasa.contracts.Agents"
        )
