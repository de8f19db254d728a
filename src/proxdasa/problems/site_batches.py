"""Batches of agents with unequal numbers of examples, and how much each example counts.

One rule for all: a batch is min(batch_size, N_i) different examples of agent i, all equally likely. An agent
with no more examples than a batch therefore takes all of them, and its sample gradient is its full gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from proxdasa import samples
from proxdasa.devices import CPU
from proxdasa.problems.module_checks import Fit
from proxdasa.torch_internals import BatchNorm


@dataclass(frozen=True, eq=False)
class SiteBatches:
    """The batches of agents that have ``sizes`` = N_i ``[n]`` examples.

    ``mean_size`` is the mean of the N_i of the whole network if examples count alike, None if agents do.
    """

    sizes: Tensor
    batch_size: int
    mean_size: float | None
    dtype: torch.dtype
    device: torch.device = CPU
    """Where weights are; places are drawn on the host."""
    weights: Tensor | None = field(init=False)
    """The weights ``[n, batch_size]`` of what `draw` gives in the sample gradients; None if all are equal."""

    def __post_init__(self) -> None:
        if self.mean_size is not None and math.isnan(self.mean_size):
            raise ValueError(
                'weights = "examples" needs the numbers of examples of all agents, but this part of the problem knows '
                "only its own; a run in several processes collects them, otherwise pass their mean as mean_size"
            )
        object.__setattr__(self, "weights", self._weights())  # once: a compiled step cannot look at sizes

    @property
    def epoch(self) -> float:
        """The mean number of batches in the examples of an agent, which is at least one."""
        return int(self.sizes.clamp(min=self.batch_size).sum()) / (len(self.sizes) * self.batch_size)

    def draw(self, words: Tensor) -> Tensor:
        """The places, among the examples of all agents, that words ``[..., n, batch_size]`` draw, in the same shape.

        An agent with at most batch_size examples takes all N_i of them in turn, until the row is full; `weights` gives
        no weight to repeats. So a batch, and a dropout mask, has the same shape whichever agents are computed together.
        If no agent has more, no words are needed: without any, the places are ``[n, batch_size]``, the same for all.

        Floyd's method: the j-th draw is uniform over one more example than the draw before it; an example that was
        drawn already is replaced by the one that was added.
        """
        sizes, turn = self.sizes.unsqueeze(-1), torch.arange(self.batch_size)
        starts = sizes.cumsum(0) - sizes
        if words.shape[-1] == 0:
            return starts + turn % sizes
        newcomers = sizes - self.batch_size + turn  # [n, batch_size]
        drawn = (samples.uniforms(words) * (newcomers + 1)).to(torch.int64)
        for j in range(1, self.batch_size):
            again = (drawn[..., :j] == drawn[..., j : j + 1]).any(-1)
            drawn[..., j] = torch.where(again, newcomers[:, j], drawn[..., j])
        # A site with exactly batch_size examples is no special case: its j-th draw is always j, the only one of the
        # first j + 1 examples that was not drawn before.
        short = sizes < self.batch_size
        if bool(short.any()):
            drawn = torch.where(short, turn % sizes, drawn)
        return starts + drawn

    def _weights(self) -> Tensor | None:
        if self.mean_size is None and int(self.sizes.min()) >= self.batch_size:
            return None
        taken = self.sizes.clamp(max=self.batch_size).unsqueeze(-1)
        weights = (torch.arange(self.batch_size) < taken) / taken.to(torch.float64)
        if self.mean_size is not None:
            weights *= self.sizes.to(torch.float64).unsqueeze(-1) / self.mean_size
        return weights.to(self.dtype).to(self.device)

    def full_weights(self, agent: int) -> Tensor:
        """The weights ``[N_i]`` of an agent's examples in F_i."""
        size = int(self.sizes[agent])
        weight = 1 / (size if self.mean_size is None else self.mean_size)
        return torch.full((size,), weight, dtype=self.dtype, device=self.device)


def check_filled_batches(module: nn.Module, fit: Fit, sizes: list[int], batch_size: int, first: int) -> None:
    """Refuse batches of unequal sizes for networks that look at a whole batch: they would see repeated examples.

    ``first`` is the number of the first agent.
    """
    if (fewest := min(sizes)) >= batch_size:
        return
    layers = [
        (f"the layer {name!r}", "normalises over a batch")
        for name, layer in module.named_modules()
        if isinstance(layer, BatchNorm) and (layer.training or layer.running_mean is None)
    ]
    layers += [(f"the layer {name.rpartition('.')[0]!r}", "keeps statistics of its batches") for name in fit.running]
    if not fit.apart:
        layers.append((type(module).__name__, "computes the loss of an example from its whole batch"))
    for name, why in layers:
        raise ValueError(
            f"batch_size must be at most {fewest}, the number of examples of agent {first + sizes.index(fewest)}, "
            f"because {name} {why}; got {batch_size}"
        )
