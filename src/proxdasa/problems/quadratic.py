"""Quadratics: problems whose solutions are known."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from proxdasa import samples
from proxdasa.checks import check_finite, check_not_negative
from proxdasa.contracts import Evaluation


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Local quadratics with optional Gaussian gradient noise.

        F_i(x) = ½ xᵀA_i x − b_iᵀx,      ∇G_i(x, ξ) = A_i x − b_i + noise · ξ,  ξ ~ N(0, I)

    A is ``[n, d, d]`` with symmetric A_i, b is ``[n, d]``. The agents' quadratics may differ arbitrarily.

    Examples:
        >>> problem = problems.Quadratic(A=torch.eye(2).expand(3, 2, 2), b=torch.ones(3, 2), noise=0.1)
        >>> problem.agents, problem.dim
        (3, 2)
        >>> problem.evaluate(torch.zeros(1, 3, 2)).grad[0]
        tensor([[-1., -1.],
                [-1., -1.],
                [-1., -1.]])
    """

    A: Tensor
    b: Tensor
    noise: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "A", torch.as_tensor(self.A))
        object.__setattr__(self, "b", torch.as_tensor(self.b))
        n, d = self.b.shape if self.b.ndim == 2 else (0, 0)
        if self.b.ndim != 2 or self.A.shape != (n, d, d):
            raise ValueError(
                f"Quadratic needs A of shape [n, d, d] and b [n, d]; got {list(self.A.shape)} and {list(self.b.shape)}"
            )
        if self.A.dtype != self.b.dtype or not self.A.is_floating_point():
            raise ValueError(f"A and b need one floating-point type; got {self.A.dtype} and {self.b.dtype}")
        check_finite(self.A, "A")
        check_finite(self.b, "b")
        skew = (self.A - self.A.mT).abs().amax(dim=(1, 2))
        if bool((skew > 1e-5 * self.A.abs().amax()).any()):
            raise ValueError(f"A_i must be symmetric; that of agent {int(skew.argmax())} is not (use (A + Aᵀ)/2)")
        check_not_negative(self.noise, "noise")

    @property
    def agents(self) -> int:
        """The number n of agents."""
        return self.b.shape[0]

    @property
    def work(self) -> tuple[float, float]:
        """The operations of a sample gradient, and those of an evaluation, for one agent and trial."""
        return 2 * self.dim**2, 4 * self.dim**2

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.b.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of A and b."""
        return self.b.dtype

    @property
    def epoch(self) -> float:
        """One sample is a pass over the data: every gradient uses all of A_i and b_i."""
        return 1.0

    @property
    def words(self) -> int:
        """The number of random words per sample: one for each coordinate of the noise, if there is any."""
        return self.dim if self.noise else 0

    def to(self, dtype: torch.dtype) -> Quadratic:
        """The same quadratics in another floating-point type."""
        return replace(self, A=self.A.to(dtype), b=self.b.to(dtype))

    def to_device(self, device: torch.device) -> Quadratic:
        """The same quadratics, on another device."""
        moved = copy.copy(self)  # they were checked on the host
        vars(moved).update(A=self.A.to(device), b=self.b.to(device))
        return moved

    def restrict(self, agents: range) -> Quadratic:
        """The quadratics of some of the agents."""
        rows = slice(agents.start, agents.stop)
        return replace(self, A=self.A[rows].clone(), b=self.b[rows].clone())

    def start(self, seed: int, trials: int) -> Tensor:  # noqa: ARG002
        """The starting point x⁰ = 0."""
        return torch.zeros(self.dim, dtype=self.dtype)

    def sample(self, words: Tensor) -> Tensor:
        """The gradient noise, noise · ξ."""
        return (self.noise * samples.normals(words)).to(self.dtype)

    def grad(self, x: Tensor, sample: Tensor) -> Tensor:
        """The noisy gradients A_i x_i − b_i + noise · ξ_i."""
        exact = self._curvature(x) - self.b
        return exact + sample if self.noise else exact

    def grad_of(self, agents: range, x: Tensor, sample: Tensor) -> Tensor:
        """The noisy gradients of some of the agents."""
        rows, part = slice(agents.start, agents.stop), copy.copy(self)
        vars(part).update(A=self.A[rows], b=self.b[rows])
        return part.grad(x, sample)

    def evaluate(self, x: Tensor) -> Evaluation:
        """The losses F_i(x_i) and gradients A_i x_i − b_i."""
        Ax = self._curvature(x)
        return Evaluation(loss=(x * (0.5 * Ax - self.b)).sum(-1), grad=Ax - self.b)

    def scores(self, x: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """No scores besides loss and gradient."""
        return {}

    def _curvature(self, x: Tensor) -> Tensor:
        if x.ndim == 3 and x.shape[1] == self.agents:
            # The same bits as einsum's, in a third of its time if A is small.
            return torch.bmm(x.transpose(0, 1), self.A.mT).transpose(0, 1)
        return torch.einsum("nij,...nj->...ni", self.A, x)  # one point for all agents
