"""Buffers of a model that is trained in a user's own loop: constants, or running statistics of the agent's data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from proxdasa.running_statistics import POLICIES, Policy, changed_buffers, check_policy, copy_buffers, is_counter


class Buffers:
    """The buffers of an agent's model, and the policy for those that its forward passes change."""

    def __init__(self, module: nn.Module | None, policy: Policy | None, params: Iterable[Tensor]) -> None:
        check_policy(policy)
        if policy is not None and module is None:
            raise ValueError(f'buffers="{policy}" needs the model whose buffers they are: module=model')
        if module is not None and not {id(each) for each in params} <= {id(each) for each in module.parameters()}:
            raise ValueError(f"module: {type(module).__name__} does not have all the parameters that are to be trained")
        self.policy, self._module = policy, module
        self._first = copy_buffers(module) if module is not None else {}

    def claims(self) -> str:
        """What all agents must have in common."""
        return str((self.policy, [(name, list(each.shape), str(each.dtype)) for name, each in self._named().items()]))

    def check(self) -> None:
        """Raise if there are running statistics but no policy for them."""
        if self.policy is not None or self._module is None:
            return
        for name in changed_buffers(self._module, self._first):
            raise ValueError(
                f"the forward pass changes the model's buffer {name}, a running statistic of this agent's data; choose "
                f"what averaged() does with it: {POLICIES}; GroupNorm and LayerNorm need neither"
            )

    @contextmanager
    def averaged(self, agent: int, agents: int, total: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Context manager in which the buffers are those of the mean model; ``total`` sums a tensor over all agents."""
        held = self._named() if self.policy == "average" else {}
        own = {name: values.clone() for name, values in held.items()}
        real = [values for values in held.values() if values.is_floating_point() or values.is_complex()]
        whole = [values for values in held.values() if is_counter(values)]
        if real:
            # In float64 the mean of equal numbers of float32 is that number: constants stay as they are.
            means = total(torch.cat([_numbers(values) for values in real])) / agents
            for values, mean in zip(real, torch.split(means, [len(_numbers(values)) for values in real]), strict=True):
                parts = torch.view_as_real(values) if values.is_complex() else values
                parts.copy_(mean.view(parts.shape))
        if whole:
            # A transport can only add, so every agent fills its own row, and the maximum is taken afterwards.
            rows = torch.zeros(agents, sum(values.numel() for values in whole), dtype=torch.float64)
            rows[agent] = torch.cat([_numbers(values) for values in whole])
            largest = total(rows).amax(0)
            for values, most in zip(whole, torch.split(largest, [values.numel() for values in whole]), strict=True):
                values.copy_(most.view(values.shape))
        try:
            yield
        finally:
            for name, values in held.items():
                values.copy_(own[name])

    def _named(self) -> dict[str, Tensor]:
        return {} if self._module is None else dict(self._module.named_buffers())


def _numbers(values: Tensor) -> Tensor:
    """A buffer as one row in float64, in main memory."""
    parts = torch.view_as_real(values) if values.is_complex() else values
    return parts.detach().to("cpu", torch.float64).flatten()
