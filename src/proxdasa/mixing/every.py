"""Fewer messages: mixing in some iterations only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from proxdasa.checks import check_count, invalid
from proxdasa.contracts import Compression, Mixing
from proxdasa.mixing.gossip import Gossip


@dataclass(frozen=True)
class Every:
    """Mix in every ``period``-th iteration, and send nothing in the others: local steps in between.

        mix(X) = mixing(X) if k + 1 is a multiple of ``period``, else X

    In the other iterations, sums over neighbours have an agent's own row in place of theirs, as if every link were
    down. A method with its own local steps (`contracts.Facts.sends_every`) sends only in iterations in which both send.

    The theory of the paper's methods assumes that every iteration mixes; with local steps their step sizes usually have
    to be smaller, and agents whose data differ drift apart in between.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.ones(4, 2))
        >>> result = proxdasa.run(
        ...     proxdasa.ProxDASA(gamma=0.5, alpha=0.3),
        ...     problem,
        ...     networks.ring(4),
        ...     mixing=proxdasa.Every(5),
        ...     iterations=20,
        ... )
        >>> result.records[-1]["rounds"]
        4
    """

    period: int
    mixing: Mixing = field(default_factory=Gossip)

    def __post_init__(self) -> None:
        check_count(self.period, "period")
        if isinstance(self.mixing, type) or not callable(getattr(self.mixing, "rounds_for", None)):
            raise invalid("mixing", "a mixing, such as Gossip(1)", self.mixing)

    @property
    def varies(self) -> bool:
        """Whether W may differ from round to round."""
        return bool(getattr(self.mixing, "varies", False))

    @property
    def compression(self) -> Compression | None:
        """How messages are compressed, if they are; copies stay as they are while nothing is sent."""
        found: Compression | None = getattr(self.mixing, "compression", None)
        return found

    def rests(self, k: int) -> bool:
        """Whether iteration k sends nothing, because of this mixing or of the one that it contains."""
        inner: Callable[[int], bool] | None = getattr(self.mixing, "rests", None)
        return (k + 1) % self.period != 0 or (inner is not None and inner(k))

    def rounds_for(self, rho: float) -> int:
        """The number of rounds in an iteration that mixes."""
        return self.mixing.rounds_for(rho)

    def __call__(self, apply: Callable[[Tensor], Tensor], x: Tensor, rho: float) -> Tensor:
        """The mixed rows, in an iteration that mixes."""
        return self.mixing(apply, x, rho)
