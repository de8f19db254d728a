"""Buffers of a network: constants, and running statistics and counters, which become rows beside x."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from proxdasa.checks import invalid
from proxdasa.devices import widest

Policy = Literal["average", "local"]
"""What agents do with running statistics: average them, or keep their own."""

POLICIES = (
    'buffers="average" averages them over the agents (of counters it takes the maximum), buffers="local" leaves each '
    "agent its own"
)
"""What the policies mean, for messages."""


def check_policy(policy: Policy | None) -> None:
    """Refuse anything but a policy or none."""
    if policy is not None and policy not in get_args(Policy):
        raise invalid("buffers", '"average" or "local"', policy)


def copy_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The values that the buffers have now."""
    return {name: values.detach().clone() for name, values in module.named_buffers()}


def changed_buffers(module: nn.Module, before: Mapping[str, Tensor]) -> list[str]:
    """The running statistics: buffers that forward passes have changed since `copy_buffers`. Others are constants."""
    return [name for name, values in module.named_buffers() if not torch.equal(values, before[name])]


def is_counter(values: Tensor) -> bool:
    """Whether a buffer holds whole numbers, such as a count of batches; Boolean masks are not counters."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


@dataclass(frozen=True, eq=False)
class RunningStatistics:
    """The running statistics of a network as a row r of s numbers: averages first, then counters.

    A row has the floating-point type of the network. float32 counts exactly up to 2²⁴ batches.
    """

    first: Mapping[str, Tensor]
    """The values before the first batch, by name."""

    @classmethod
    def of(cls, module: nn.Module, names: Collection[str]) -> RunningStatistics | None:
        """The statistics in the buffers with these names, or None if there are none."""
        held = {name: values.detach().clone() for name, values in module.named_buffers() if name in names}
        for name, values in held.items():
            if values.is_complex() or values.dtype == torch.bool:
                raise ValueError(
                    f"the forward pass changes the buffer {name} of {type(module).__name__}, which is {values.dtype}; "
                    "running statistics must be real or whole numbers"
                )
        return cls(dict(sorted(held.items(), key=lambda item: is_counter(item[1])))) if held else None

    @cached_property
    def width(self) -> int:
        """The number s of values."""
        return sum(values.numel() for values in self.first.values())

    @cached_property
    def averages(self) -> int:
        """How many of the values are averages; the others are counters."""
        return sum(values.numel() for values in self.first.values() if not is_counter(values))

    def start(self, dtype: torch.dtype) -> Tensor:
        """The row before the first batch ``[s]``."""
        return torch.cat([values.to(dtype).flatten() for values in self.first.values()])

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """The buffers ``[rows, *shape]`` that rows ``[rows, s]`` hold, in their own types."""
        parts = torch.split(rows, [values.numel() for values in self.first.values()], dim=1)
        return {
            name: (part.round() if is_counter(values) else part).to(values.dtype).view(-1, *values.shape)
            for (name, values), part in zip(self.first.items(), parts, strict=True)
        }

    def rows(self, buffers: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The rows ``[rows, s]`` of buffers ``[rows, *shape]``."""
        held = [buffers[name].detach().to(dtype) for name in self.first]
        return torch.cat([values.reshape(len(values), -1) for values in held], dim=1)

    def combine(self, rows: Tensor) -> Tensor:
        """The statistics ``[..., 1, s]`` of the mean model, from those of all agents ``[..., n, s]``.

        They are the means of averages and the maxima of counters. Means are taken in float64, in which the mean of
        equal float32 numbers is exactly that number.
        """
        averages, counters = torch.split(rows, [self.averages, self.width - self.averages], dim=-1)
        mean = averages.to(widest(rows.device)).mean(dim=-2, keepdim=True).to(rows.dtype)
        return torch.cat([mean, counters.amax(dim=-2, keepdim=True)], dim=-1)

    def fill(self, module: nn.Module, rows: Tensor) -> nn.Module:
        """The module, with the row ``[s]``, or what `combine` makes of all agents' ``[n, s]``, as its statistics."""
        held = dict(module.named_buffers())
        for name, values in self.views(rows.unsqueeze(0) if rows.ndim == 1 else self.combine(rows)).items():
            held[name].copy_(values[0])
        return module


def check_statistics(running: RunningStatistics | None, rows: Tensor | None) -> Tensor | None:
    """Return the rows r, if they fit the network: without its statistics its outputs are meaningless."""
    if running is None and rows is not None:
        raise ValueError("buffers: the network has no running statistics; leave them out")
    if running and (rows is None or rows.shape[-1] != running.width):
        found = "nothing" if rows is None else f"a tensor of shape {list(rows.shape)}"
        raise ValueError(
            f"buffers must be the running statistics that belong to x, {running.width} numbers for each network, as in "
            f"result.buffers or problem.first_buffers(trials=1); got {found}"
        )
    return rows
