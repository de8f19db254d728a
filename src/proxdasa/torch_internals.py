"""All that the library uses of torch and that torch does not document, with the reason for each.

Nothing else may depend on it: a new version of torch can change it without notice. `tests/test_torch_internals.py`
fails if one of these stops working, or if another module of the library uses something private to torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

BatchNorm = nn.modules.batchnorm._BatchNorm
"""The base class of batch normalisation in one, two and three dimensions; the public classes share no other."""


def write_count(x: Tensor) -> int | None:
    """How often x was written to; None for an inference tensor, for which torch does not count this.

    Comparing values instead would need a copy of x, and would miss a write of the same values.
    """
    return None if x.is_inference() else x._version


def parameter_names(layer: nn.Module) -> set[str]:
    """The names of a layer's own parameters, with those that are None, which `named_parameters` leaves out."""
    return {*layer._parameters}


def has_hooks(layer: nn.Module) -> bool:
    """Whether a layer has hooks, which torch can only register and remove, not list."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return any(hooks)


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether a parameter has hooks on its gradient, which torch cannot list either."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def warn_of_slow_vmap(on: bool) -> None:
    """Switch on or off, for all threads, vmap's warning that it calls an operation row by row.

    torch has no public switch for it.
    """
    switch = getattr(torch._C._functorch, "_set_vmap_fallback_warning_enabled", lambda _on: None)
    switch(on)


class RandomOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager that notices operations of this thread that may draw from torch's generator.

    The state of the generator alone does not show this: another thread may draw at the same time.
    """

    seen = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: if this is true, as by default, torch imports its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, operation: Any, _types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in operation.tags
        return operation(*args, **(kwargs or {}))


def load_compiler() -> None:
    """Import torch's compiler, which takes seconds, so that processes forked from this one have it."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of parts that torch itself still uses
        import torch._inductor.compile_fx  # noqa: F401, PLC0415


def compile_graph(graph: fx.GraphModule, examples: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Recorded operations as machine code, for arguments of the shapes of these examples."""
    load_compiler()
    # Not torch.compile, which would record again what is recorded already, and check every call for new shapes, which
    # takes longer than some kernels. Kernels are called from C++: a block of one trial of a9a's perceptron has some 200
    # of them, and calling them from Python would take a fifth of its time.
    compiled = torch._inductor.compile(graph, list(examples), options={"cpp_wrapper": True})
    return cast("Callable[..., Sequence[Tensor]]", compiled)
