"""A simulated device: its tensors are computed on the CPU, but claim to be on another device.

They claim to be on the meta device, which nothing else uses here. An operation that mixes them with tensors of the host
fails, as it would on a GPU, and so does NumPy.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "meta"


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
        kwargs = dict(kwargs or {})
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        ours = [each for each in given if isinstance(each, Elsewhere)]
        target = kwargs.get("device")
        moves = operation in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if ours and not moves and any(each.ndim for each in given if not isinstance(each, Elsewhere)):
            raise RuntimeError(f"{operation} mixes devices")
        if target is not None and str(target) == NAME:
            kwargs["device"] = torch.device("cpu")
        self.looks += bool(ours) and (str(target) == "cpu" or operation is torch.ops.aten._local_scalar_dense.default)
        inner_args, inner_kwargs = tree_map_only(Elsewhere, lambda each: each.inner, (args, kwargs))
        made = operation(*inner_args, **inner_kwargs)
        if operation is torch.ops.aten._to_copy.default and made is inner_args[0]:
            made = made.clone()
        stays = bool(ours) if target is None else str(target) == NAME
        changed = {id(each.inner): each for each in ours}  # by operations in place

        def wrap(each: Tensor) -> Tensor:
            return changed[id(each)] if id(each) in changed else Elsewhere(each)

        return tree_map_only(Tensor, wrap, made) if stays else made
