"""A simulated device: its tensors are computed on the CPU, but claim to be on another device.

They claim to be on the meta device, which nothing else uses here. An operation that mixes them with tensors of the host
fails, as it would on a GPU, and so does NumPy.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "meta"


def tensors_in(values: Iterable) -> Iterator[Tensor]:
    """The tensors among arguments or results of an operation, and in lists of them."""
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from tensors_in(each)


def replaced(kind: type[Tensor], act: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A value, or lists of values, with an action applied to each tensor of a kind."""
    if isinstance(value, kind):
        return act(value)
    return type(value)(replaced(kind, act, each) for each in value) if type(value) in (list, tuple) else value


class Elsewhere(Tensor):
    """A tensor of the device."""

    @staticmethod
    def __new__(cls, inner: Tensor):
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=NAME, requires_grad=False
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def tolist(self) -> list:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        raise AssertionError(f"{operation} outside of the device's driver")


class Driver(TorchDispatchMode):
    """Context manager in which the device is there; counts when the host looks at its numbers."""

    looks = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [*tensors_in(args), *tensors_in(kwargs.values())]
        ours = [each for each in given if isinstance(each, Elsewhere)]
        target = kwargs.get("device")
        moves = operation in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if ours and not moves and any(each.ndim for each in given if not isinstance(each, Elsewhere)):
            raise RuntimeError(f"{operation} mixes devices")
        if target is not None and str(target) == NAME:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        self.looks += bool(ours) and (str(target) == "cpu" or operation is torch.ops.aten._local_scalar_dense.default)
        inner = replaced(Elsewhere, lambda each: each.inner, args)
        made = operation(*inner, **{name: replaced(Elsewhere, lambda e: e.inner, v) for name, v in kwargs.items()})
        if operation is torch.ops.aten._to_copy.default and made is inner[0]:
            made = made.clone()
        stays = bool(ours) if target is None else str(target) == NAME
        changed = {id(each.inner): each for each in ours}  # by operations in place

        def wrap(each: Tensor) -> Tensor:
            return changed[id(each)] if id(each) in changed else Elsewhere(each)

        return replaced(Tensor, wrap, made) if stays else made
