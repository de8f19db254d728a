"""The small worlds in which a method is tried: problems with known answers, networks, and agents that are watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxdasa import networks
from proxdasa.contracts import Agents, Algorithm, Problem, Regularizer, unpack
from proxdasa.networks import Network
from proxdasa.problems import Quadratic
from proxdasa.regularizers import L1, Zero
from proxdasa.runs.setup import Setup
from proxdasa.schedules import Number

N, D = 5, 6
STEPS = 30
"""Steps of most checks; restarts that come less often are not seen."""
WEIGHT = 1.0
"""λ of the L1 norm in the checks."""


@dataclass(frozen=True)
class Case:
    """A method with what its author says of it."""

    algorithm: Algorithm
    tracks: Mapping[str, str]

    def setup(self, problem: Problem, network: Network, **settings: Any) -> Setup:
        """A run of the method, of `STEPS` iterations unless told otherwise, and not observed."""
        settings = {"iterations": STEPS, "metrics": (), "observe_every": 1_000_000, **settings}
        return Setup(self.algorithm, problem, network, **settings)

    def network(self, network: Network) -> Network:
        """The network, made lazy as far as the method's bound on eigenvalues asks for it, in three rounds too."""
        λ, bound = network.smallest_eigenvalue, self.algorithm.facts.eigenvalues_above
        least = max(bound, float(np.cbrt(bound))) + 0.1
        s = max(0.0, (least - λ) / (1 - λ))
        return networks.from_matrix(s * np.eye(network.n) + (1 - s) * network.W.toarray()) if s else network

    @cached_property
    def star(self) -> Network:
        """Agents that differ in their neighbours."""
        return self.network(networks.star(N))

    @cached_property
    def ring(self) -> Network:
        """Agents that do not."""
        return self.network(networks.ring(N))

    @property
    def regularizer(self) -> Regularizer:
        """λ‖·‖₁ if the method takes it."""
        return L1(WEIGHT) if self.algorithm.facts.composite else Zero()


def quadratic(n: int = N, noise: float = 0.0, spread: float = 1.0) -> Quadratic:
    """Curvatures between 1 and 2, minimisers that differ between agents by about ``spread``."""
    rng = np.random.default_rng(0)
    A, b = np.empty((n, D, D)), np.empty((n, D))
    curvatures, common = np.linspace(1.0, 2.0, D), rng.normal(size=D) * 2
    for i in range(n):
        Q, _ = np.linalg.qr(rng.normal(size=(D, D)))
        A[i] = (Q * curvatures) @ Q.T if spread else np.diag(curvatures)
        b[i] = common + spread * rng.normal(size=D)
    return Quadratic(torch.from_numpy(A), torch.from_numpy(b), noise=noise)


def minimiser(A: Tensor, b: Tensor, weight: float) -> Tensor:
    """The x of least ½xᵀAx − bᵀx + weight ‖x‖₁, by proximal gradient steps."""
    x = torch.zeros_like(b)
    for _ in range(60):
        y = x - 0.5 * (A @ x - b)  # 1/L
        x = y.sign() * (y.abs() - 0.5 * weight).clamp(min=0)
    return x


def rows(trials: int = 1, n: int = N, seed: int = 1) -> Tensor:
    """Random rows."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(trials, n, D)))


def random_state(algorithm: Algorithm, agents: Agents, seed: int = 1) -> Any:
    """A state whose every variable is random, and positive: there may be roots in a step."""
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
    """The verbs of the contract and no others, watched.

    ``spoil`` is done to every gradient. Agents that are ``apart`` get their own rows back from mixing, and find
    neighbours that are like themselves. ``stir`` is the vector, counted from 0, that comes out of mixing changed.
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
        """The vectors that were mixed."""
        self.samples: set[tuple[int, int]] = set()
        """The names (k, sample) of the samples it was asked for."""
        self.missing: list[str] = []
        """What it was asked for that is no verb."""
        self.uses_graph = False
        """Whether degrees or neighbours' sums were asked for."""
        self.uses_full = False
        """Whether full gradients were."""

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """The gradient, its sample noted."""
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
        """Mixing, or nothing."""
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
        raise AttributeError(f"agents have no {name}; an algorithm has the verbs of proxdasa.contracts.Agents only")
