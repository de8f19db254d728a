"""What happens to messages on their way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from proxdasa.checks import check_not_negative
from proxdasa.conditions.events import Draws, Events


@dataclass(frozen=True)
class MessageNoise:
    """Every message arrives with Gaussian noise of this standard deviation, in every coordinate and round.

        x_i ← W_ii x_i + Σ_j W_ij (x_j + σ ε_ij),   ε_ij standard normal

    over the links that are up. Each receiver has noise of its own: ε_ij and ε_ji are independent, and so are those of
    two neighbours that get the same row.

    Means survive in expectation only. The mean over agents moves by (σ/n) Σ_ij W_ij ε_ij in each round. Variables that
    a method contracts forget it again: an averaged gradient z ← mix[(1 − α) z + α v] keeps a bounded share. A gradient
    tracker never forgets: the mean of u − v is a random walk, whose variance grows by (σ/n)² Σ_ij W_ij² in each round,
    so methods with a tracker drift away in the long run.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.ones(4, 2))
        >>> result = proxdasa.run(
        ...     proxdasa.DPSGD(0.3), problem, networks.ring(4), conditions=[conditions.MessageNoise(0.1)], iterations=50
        ... )
        >>> bool((result.x - 1).abs().max() < 0.5), bool((result.x - 1).abs().max() > 0.01)
        (True, True)
    """

    std: float
    concerns: ClassVar[Literal["messages"]] = "messages"

    def __post_init__(self) -> None:
        check_not_negative(self.std, "std")

    def begin(self, draws: Draws) -> Events:
        """Draw noise for each message."""
        return lambda number, links, width: self.std * draws.normals(number, links, width)
