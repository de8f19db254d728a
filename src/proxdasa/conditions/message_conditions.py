"""Conditions under which messages are disturbed or delayed on their way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from proxdasa.checks import check_not_negative, check_whole
from proxdasa.conditions.events import Draws, Events
from proxdasa.conditions.normal_sums import NormalSums


@dataclass(frozen=True)
class MessageNoise:
    """Every message arrives with Gaussian noise of this standard deviation, in every coordinate and round.

        x_i ← W_ii x_i + Σ_j W_ij (x_j + σ ε_ij),   ε_ij standard normal

    over the links that are up. Each message has noise of its own: ε_ij and ε_ji are independent, and so are those of
    two neighbours that get the same row. What is drawn is the noise of each receiver's sum, which has the same
    distribution and takes less time.

    Means are preserved in expectation only. The mean over agents moves by (σ/n) Σ_ij W_ij ε_ij in each round. Variables
    that a method contracts forget this error: in an averaged gradient z ← mix[(1 − α) z + α v] it stays bounded. A
    gradient tracker never forgets it: the mean of u − v is a random walk, whose variance grows by (σ/n)² Σ_ij W_ij² in
    each round, so methods with a tracker drift away in the long run.

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
        """Draw the noise that each receiver sees."""
        return NormalSums(draws, self.std)


@dataclass(frozen=True)
class StaleMessages:
    """Messages are late: a neighbour gets a row from 0 to ``age`` iterations earlier, each equally likely.

        x_i ← W_ii x_i + Σ_j W_ij x_j^(k − a_ij),   a_ij uniform on 0, 1, ..., age

    over the links that are up, where x_j^(k') is what agent j mixed in iteration k' in the same call of ``mix``. The
    age is drawn independently for each direction of a link in each round. Only iterations in which the sender took
    part and mixed are counted; until there are enough of them, the oldest row is used. What a method mixes at its
    start is never late.

    W x has the same mean as x, but late messages change the mean, because receivers have rows of different iterations.
    The error vanishes once rows settle, and a method that forgets its past ends as near to the solution as without
    delays. A gradient tracker does not forget, nor does a method that adds up differences between neighbours, such as
    PG-EXTRA: its mean keeps the error, and the method ends at another point; a `TrackerWarning` says so.

    Mixing must have one round per iteration, because a second one would mix rows that are not there yet.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.arange(8.0).view(4, 2))
        >>> late = [conditions.StaleMessages(3)]
        >>> result = proxdasa.run(proxdasa.DPSGD(0.1), problem, networks.ring(4), conditions=late, iterations=100)
        >>> result.mean.round(decimals=1)  # the solution is (3, 4)
        tensor([[3., 4.]])
    """

    age: int
    concerns: ClassVar[Literal["delays"]] = "delays"

    def __post_init__(self) -> None:
        check_whole(self.age, "age", least=0)

    def begin(self, draws: Draws) -> Events:
        """Draw an age for each message."""
        return lambda block: draws.whole_bytes(block, self.age + 1)


class TrackerWarning(UserWarning):
    """Conditions do not preserve the means that a tracker or another correction needs, so the method ends elsewhere.

    Examples:
        >>> import warnings
        >>> problem = problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.ones(4, 2))
        >>> late = [conditions.StaleMessages(3)]
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     result = proxdasa.run(
        ...         proxdasa.ProxDASAGT(0.3, 0.2), problem, networks.ring(4), conditions=late, iterations=10
        ...     )
        >>> [warning.category.__name__ for warning in caught]
        ['TrackerWarning']
    """
