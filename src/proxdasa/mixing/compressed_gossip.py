"""Small messages: agents send, compressed, how their rows differ from the copies that their neighbours have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from proxdasa.checks import check_probability, invalid
from proxdasa.contracts import Compressor


@dataclass(frozen=True)
class CompressedGossip:
    """One round of gossip on copies that neighbours have of each other (CHOCO: Koloskova, Stich and Jaggi, 2019).

        x̂_i ← x̂_i + C(x_i − x̂_i)                        the message is C(x_i − x̂_i)
        x_i ← x_i + γ Σ_j W_ij (x̂_j − x̂_i)

    Agent i and all its neighbours hold the same copy x̂_i, which starts at 0. What a message leaves out stays in
    x_i − x̂_i and is sent later, so the copies become exact where the rows settle; compressing x_i itself would leave a
    permanent error. Every round preserves means, whatever C is. Each vector that an iteration mixes has its own copies,
    which checkpoints include.

    ``step`` is γ, between 0 and 1: one number, or one for each vector that a step of the method mixes, in that order.
    There is no default, because it decides whether a run converges. It has to be small if C is coarse: begin with about
    δ of the compressor (``compressor.contraction(d)``; 0.1 for `SignNorm`), and try larger and smaller ones. Without
    compression, C(x) = x, and with γ = 1 this is `Gossip`, up to rounding.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(20).expand(4, 20, 20), torch.arange(80.0).view(4, 20))
        >>> result = proxdasa.run(
        ...     proxdasa.ProxDASAGT(gamma=0.5, alpha=0.1),
        ...     problem,
        ...     networks.ring(4),
        ...     mixing=proxdasa.CompressedGossip(compressors.TopK(0.2), step=0.3),
        ...     iterations=250,
        ... )
        >>> result.x[0, 2, :3].round(decimals=3)
        tensor([30., 31., 32.])
    """

    compressor: Compressor
    step: float | Sequence[float]

    def __post_init__(self) -> None:
        if isinstance(self.compressor, type) or not callable(getattr(self.compressor, "restore", None)):
            given = repr(self.compressor)
            raise TypeError(f"compressor must be one of proxdasa.compressors, such as TopK(0.1); got {given}")
        several = isinstance(self.step, Sequence) and not isinstance(self.step, str)
        steps = tuple(self.step) if several else (self.step,)  # type: ignore[arg-type]
        for step in steps:
            if check_probability(step, "step") == 0:
                raise invalid("step", "a number above 0, at most 1", step)
        if not steps:
            raise ValueError("step must be a number, or one for each vector that a step of the method mixes; got none")
        if several:
            object.__setattr__(self, "step", steps)

    @property
    def steps(self) -> tuple[float, ...]:
        """γ for each vector; a single one applies to all."""
        return tuple(self.step) if isinstance(self.step, Sequence) else (self.step,)

    @property
    def compression(self) -> CompressedGossip:
        """Itself; this attribute tells engines that messages are compressed."""
        return self

    def step_of(self, number: int | None) -> float:
        """γ of a vector, by its number in an iteration; the smallest for one that is mixed before the first."""
        return min(self.steps) if number is None else self.steps[min(number, len(self.steps) - 1)]

    def rounds_for(self, rho: float) -> int:  # noqa: ARG002
        """One round."""
        return 1

    def __call__(self, apply: Callable[[Tensor], Tensor], x: Tensor, rho: float) -> Tensor:  # noqa: ARG002
        """x + γ (W x − x), what mixing amounts to if copies are exact; with several γ, the largest."""
        return x + max(self.steps) * (apply(x) - x)
