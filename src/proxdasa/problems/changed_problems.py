"""A problem of examples with something changed: for some of its agents, in another type, or on another device."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from proxdasa.devices import CPU
from proxdasa.modules import convert
from proxdasa.problems.copies import Copies
from proxdasa.problems.starting_points import flatten
from proxdasa.problems.training_modes import copy_modes
from proxdasa.running_statistics import RunningStatistics

if TYPE_CHECKING:
    from proxdasa.problems.supervised import Supervised


class Changeable:
    """The part of `Supervised` that makes changed copies of it."""

    _device: ClassVar[torch.device] = CPU
    """Where examples, networks and weights are."""

    def _change(self, **changes: Any) -> Supervised:
        """The same problem and network with some fields changed, which are neither checked nor tried."""
        own = cast("Supervised", self)
        changed, kept = object.__new__(type(own)), {entry.name: getattr(own, entry.name) for entry in fields(own)}
        vars(changed).update(kept | changes, _module=own._module)
        return changed

    def _try_again(self, **changes: Any) -> Supervised:
        """The same problem with some fields changed, with which its network is tried."""
        changed = self._change(**changes)
        changed._try()
        return changed

    def _keep_trial(self, **changes: Any) -> Supervised:
        """The same problem with some fields changed, whose network need not be tried again."""
        own, changed = cast("Supervised", self), self._change(**changes)
        training, evaluating = copy_modes(own._training, own._evaluating, convert(own._module, own.dtype))
        vars(changed).update(_training=training, _evaluating=evaluating)
        return changed

    def to_device(self, device: torch.device) -> Supervised:
        """The same problem, with examples and networks on another device, where two of the examples are tried."""
        own = cast("Supervised", self)
        name = type(own._module).__name__
        if own._random:
            raise ValueError(
                f'device: {name} draws random numbers, such as dropout\'s, which are named on the CPU; use device="cpu"'
            )
        data, parts = own._loaded
        here = copy.copy(data)  # they were checked on the host
        tensors = {key: getattr(data, key) for key in ("x", "y", "test_x", "test_y")}
        # Cast first: not every device has float64.
        vars(here).update({key: None if each is None else own._cast(each).to(device) for key, each in tensors.items()})
        moved = own._keep_trial()
        module = _copy_to(device, convert(own._module, own.dtype))
        modes = copy_modes(own._training, own._evaluating, module, _move(own._training.running, device))
        vars(moved).update(_device=device, _loaded=(here, [rows.to(device) for rows in parts]))
        vars(moved).update(_training=modes[0], _evaluating=modes[1])
        _try(modes[0], own._two, device, name)
        return moved


def _copy_to(device: torch.device, module: nn.Module) -> nn.Module:
    """A copy on a device; weights that layers share stay shared, which ``Module.to`` does not guarantee."""
    trained = {id(each): nn.Parameter(each.detach().to(device), each.requires_grad) for each in module.parameters()}
    kept = {id(each): each.detach().to(device) for each in module.buffers()}
    return copy.deepcopy(module, {**trained, **kept})


def _move(running: RunningStatistics | None, device: torch.device) -> RunningStatistics | None:
    return running and RunningStatistics({name: values.to(device) for name, values in running.first.items()})


def _try(copies: Copies, two: tuple[Tensor, Tensor], device: torch.device, name: str) -> None:
    """Refuse a network that cannot be computed there, for example because it holds a tensor that did not move."""
    x = flatten(copies.module).unsqueeze(0)
    inputs, targets = (each.to(device).unsqueeze(0) for each in two)
    r = copies.running.start(x.dtype).unsqueeze(0) if copies.running else None
    try:
        copies.losses_and_grads(x, inputs, targets, inputs.shape[1], r=r)
    except (RuntimeError, TypeError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"device: {name} or its loss fails on {device}: {why} (tensors that a network keeps must be parameters or "
            'buffers, by register_buffer, to move with it; device="cpu" needs none of that)'
        ) from None
