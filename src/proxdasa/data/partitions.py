"""Partitions: which rows of a data set each agent holds.

A partition is a value with parameters; called with the labels y ``[N]`` and a number of agents it returns one tensor of
row numbers per agent, in ascending order. No row goes to two agents, and every agent gets at least one. Sizes may
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from proxdasa.checks import check_count, check_positive_number, check_seed, check_whole
from proxdasa.data.permutations import PROPORTIONS, ROWS_OF_CLASSES, SHARDS, SHUFFLE, permutation

Partition = Callable[[Tensor, int], list[Tensor]]
"""A function from (y, agents) to the rows of each agent."""
SHOWN = 20
"""The most sites that a message lists."""


@dataclass(frozen=True)
class Contiguous:
    """Blocks of ⌊N/n⌋ rows as they stand in the file; the last N − n⌊N/n⌋ rows are not used.

    That is how the authors' scripts divide a9a and MNIST.

    Examples:
        >>> data.Contiguous()(torch.zeros(7), 3)
        [tensor([0, 1]), tensor([2, 3]), tensor([4, 5])]
    """

    def __call__(self, y: Tensor, agents: int) -> list[Tensor]:
        """The rows of each agent."""
        _check(y, agents)
        return list(torch.arange(len(y) // agents * agents).chunk(agents))


@dataclass(frozen=True)
class Shuffled:
    """Rows dealt at random: the agents' data are alike. All rows are used; sizes differ by at most one.

    Examples:
        >>> [len(rows) for rows in data.Shuffled(seed=0)(torch.zeros(7), 3)]
        [3, 2, 2]
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def __call__(self, y: Tensor, agents: int) -> list[Tensor]:
        """The rows of each agent."""
        _check(y, agents)
        order = permutation(len(y), self.seed, SHUFFLE)
        return [part.sort().values for part in order.tensor_split(agents)]


@dataclass(frozen=True)
class Shards:
    """Rows sorted by label, cut into n · per_agent shards of nearly one size, and the shards dealt at random.

    With few shards per agent each sees few classes. All rows are used. After McMahan et al., 2017, Section 3.

    Examples:
        >>> y = torch.tensor([0, 1, 2, 3] * 3)
        >>> [y[rows].unique().tolist() for rows in data.Shards(per_agent=1)(y, 4)]  # one class for each agent
        [[3], [0], [2], [1]]
    """

    per_agent: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self.per_agent, "per_agent")
        check_seed(self.seed)

    def __call__(self, y: Tensor, agents: int) -> list[Tensor]:
        """The rows of each agent."""
        _check(y, agents)
        _check_flat(y, "Shards")
        count = agents * self.per_agent
        if count > len(y):
            raise ValueError(f"{agents} agents with {self.per_agent} shards each need {count} rows; there are {len(y)}")
        shards = y.argsort(stable=True).tensor_split(count)
        dealt = permutation(count, self.seed, SHARDS).view(agents, self.per_agent).tolist()
        return [torch.cat([shards[shard] for shard in hand]).sort().values for hand in dealt]


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: the rows of each class are spread over agents in proportions p ~ Dirichlet(β, ..., β).

    Large β is nearly uniform, small β gives each class to few agents. All rows are used; sizes differ. An agent left
    without rows gets one from the agent that has the most. After Hsu, Qi and Brown, 2019. The gamma variates are
    NumPy's, whose values may change with its version.

    Examples:
        >>> y = torch.arange(1000) % 10
        >>> even, skewed = data.Dirichlet(beta=1000.0)(y, 4), data.Dirichlet(beta=0.1)(y, 4)
        >>> len(y[even[0]].unique()), len(y[skewed[0]].unique()) < 10
        (10, True)
    """

    beta: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive_number(self.beta, "beta")
        check_seed(self.seed)

    def __call__(self, y: Tensor, agents: int) -> list[Tensor]:
        """The rows of each agent."""
        _check(y, agents)
        _check_flat(y, "Dirichlet")
        if y.is_floating_point():
            raise ValueError(f"Dirichlet needs class labels, whole numbers; got {y.dtype}, as regression targets are")
        generator = np.random.Generator(np.random.Philox(key=np.array([self.seed, PROPORTIONS], dtype=np.uint64)))
        order = permutation(len(y), self.seed, ROWS_OF_CLASSES)
        hands: list[list[Tensor]] = [[] for _ in range(agents)]
        for label in sorted(set(y.tolist())):
            rows = order[y[order] == label]
            shares = generator.dirichlet(np.full(agents, self.beta))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64).clip(0, len(rows))
            for hand, part in zip(hands, rows.tensor_split(cuts.tolist()), strict=True):
                hand.append(part)
        held = [torch.cat(hand) for hand in hands]
        for agent in range(agents):
            if len(held[agent]) == 0:
                giver = max(range(agents), key=lambda i: len(held[i]))
                held[agent], held[giver] = held[giver][-1:], held[giver][:-1]
        return [rows.sort().values for rows in held]


@dataclass(frozen=True)
class Sizes:
    """Rows as they stand in the file, ``sizes[i]`` of them for agent i; those that remain are not used.

    Examples:
        >>> data.Sizes([3, 1])(torch.zeros(5), 2)
        [tensor([0, 1, 2]), tensor([3])]
    """

    sizes: Sequence[int]

    def __call__(self, y: Tensor, agents: int) -> list[Tensor]:
        """The rows of each agent."""
        _check(y, agents)
        if len(self.sizes) != agents or sum(self.sizes) > len(y) or min(self.sizes) < 1:
            raise ValueError(
                f"sizes must be {agents} positive numbers, one for each agent, with a sum of at most {len(y)} rows; "
                f"got {list(self.sizes)}"
            )
        return list(torch.split(torch.arange(sum(self.sizes)), list(self.sizes)))


@dataclass(frozen=True)
class Sites:
    """Rows as they stand, sorted by site: ``sizes`` has the number of rows of each site, which is one agent.

    `from_frame` makes it from the column with this name.

    Examples:
        >>> data.Sites("hospital", {"north": 3, "south": 1})(torch.zeros(4), 2)
        [tensor([0, 1, 2]), tensor([3])]
    """

    column: str
    sizes: Mapping[str, int]

    def __call__(self, y: Tensor, agents: int) -> list[Tensor]:
        """The rows of each agent."""
        if agents != len(self.sizes):
            listed = [f"{site!r} with {size} rows" for site, size in self.sizes.items()]
            more = ", ..." if len(listed) > SHOWN else ""
            raise ValueError(
                f"the column {self.column!r} names {len(listed)} sites ({', '.join(listed[:SHOWN])}{more}), and each "
                f"is one agent: agents must be {len(listed)}; got {agents}"
            )
        return Sizes([*self.sizes.values()])(y, agents)


ALL = (Contiguous, Shuffled, Shards, Dirichlet, Sizes)


def _check(y: Tensor, agents: int) -> None:
    check_whole(agents, "agents", least=1)
    if y.ndim < 1 or agents > len(y):
        raise ValueError(f"{agents} agents need at least one row each; y has shape {list(y.shape)}")


def _check_flat(y: Tensor, name: str) -> None:
    if y.ndim != 1:
        raise ValueError(f"{name} needs one label per row, y of shape [N]; got {list(y.shape)}")
