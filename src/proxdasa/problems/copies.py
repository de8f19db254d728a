"""Copies of one network, each with parameters and examples of its own, on one of three paths.

- chain: a chain of known layers becomes batched matrix products and grouped convolutions;
- vmap: any other network that ``torch.func.vmap`` can batch;
- loop: any network at all, one copy after another, which share one module and see views of their rows.

`choose` takes the first path that computes what the network itself does, on two copies and two examples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call

from proxdasa.checks import invalid
from proxdasa.modules import torch_generator
from proxdasa.problems.fitting import ROUNDING, Fit
from proxdasa.problems.losses import Loss
from proxdasa.problems.stacked import Forward, batch, chain_forward, is_chain, vmap_forward

Path = Literal["chain", "vmap", "loop"]
"""How the gradients of copies are computed."""

CLOSE = 1e-3
"""The difference, relative to the gradient, beyond which a path computes something else: rounding is far below, even
in float32, and a parameter that is not seen far above."""
MASK = 2**32 - 1


class LoopWarning(UserWarning):
    """A network's copies cannot be stacked, so they are computed one after another.

    The results are the same, but a step takes time in proportion to trials × agents.

    Examples:
        >>> examples = data.from_tensors(torch.randn(12, 5, 3), torch.arange(12) % 2)
        >>> class Reader(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.cells, self.out = torch.nn.GRU(3, 4, batch_first=True), torch.nn.Linear(4, 2)
        ...
        ...     def forward(self, x):
        ...         return self.out(self.cells(x)[0][:, -1])
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     problem = problems.Supervised(Reader, examples, agents=3)
        >>> problem.path, [each.category.__name__ for each in caught]
        ('loop', ['LoopWarning'])
        >>> quiet = problems.Supervised(Reader, examples, agents=3, path="loop")
    """


@dataclass(frozen=True, eq=False)
class Copies:
    """Stacked copies of a module: row r of x ``[rows, d]`` is the vector of copy r's trained parameters."""

    module: nn.Module
    loss: Loss
    path: Path
    fit: Fit

    def __post_init__(self) -> None:
        _ = self._forward, self._shapes  # now, because torch.compile would stop where they are made

    def losses_and_grads(
        self, x: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor | int, seeds: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Weighted (or, for a number, mean) loss of each row on its own examples ``[rows, batch, ...]``, and gradients.

        Weights are ``[batch]``, the same for all rows, or ``[rows, batch]``.
        torch.compile would unroll a loop, and draws random numbers of its own, so it does not look into one.
        """
        compute = self._losses_and_grads
        if self.path == "loop" and torch.compiler.is_compiling():
            compute = torch.compiler.disable(compute)  # type: ignore[no-untyped-call]
        return compute(x, inputs, targets, weight, seeds)

    def _losses_and_grads(
        self, x: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor | int, seeds: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same. Parameters are separate leaves over views of the rows: no gradient passes through slices of x."""
        with torch.enable_grad():
            leaves = {name: view.detach().requires_grad_() for name, view in self._parameters(x).items()}
            each = self._losses(leaves, inputs, targets, seeds)
            if isinstance(weight, int):
                losses = each.sum(1) / weight
            else:
                losses = each @ weight if weight.ndim == 1 else (each * weight).sum(1)
            # A row's loss depends on its own parameters alone, so the gradient of the sum has those of all rows.
            grads = torch.autograd.grad(losses.sum(), list(leaves.values()))
        return losses.detach(), torch.cat([part.flatten(1) for part in grads], dim=1)

    def losses(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The losses ``[rows, batch]`` of examples ``[rows, batch, ...]``."""
        with torch.no_grad():
            return self._losses(self._parameters(x), inputs, targets, None)

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The outputs ``[rows, batch, ...]`` of a network that returns one tensor."""
        with torch.no_grad():
            return self._forward(self._parameters(x), inputs)

    def _losses(
        self, parameters: Mapping[str, Tensor], inputs: Tensor, targets: Tensor, seeds: Tensor | None
    ) -> Tensor:
        if self.path == "loop":
            every = _rows(parameters, len(inputs))
            with _named(seeds) as name:
                each = []
                for row, own in enumerate(every):
                    name(row)
                    outputs = functional_call(self.module, own, (inputs[row],))
                    each.append(self.loss(outputs, targets[row]).flatten())
            return torch.stack(each)
        if not self.fit.tensor:  # what the network returns is known to its loss alone
            single = batch(lambda own, x, y: self.loss(functional_call(self.module, own, (x,)), y).flatten())
            return single(dict(parameters), inputs, targets)
        outputs = self._forward(parameters, inputs)
        return self.loss(outputs.flatten(0, 1), targets.flatten(0, 1)).view(outputs.shape[:2])

    @cached_property
    def _forward(self) -> Forward:
        """The forward pass of all copies of a network that returns one tensor."""
        if self.path == "chain":
            frozen = {name: each.detach() for name, each in self.module.named_parameters() if not each.requires_grad}
            return chain_forward(cast("nn.Sequential", self.module), frozen)
        if self.path == "vmap":
            return vmap_forward(self.module)
        return lambda parameters, inputs: torch.stack(
            [
                functional_call(self.module, own, (rows,))
                for own, rows in zip(_rows(parameters, len(inputs)), inputs, strict=True)
            ]
        )

    def _parameters(self, x: Tensor) -> dict[str, Tensor]:
        """Views of the rows x ``[rows, d]`` as parameters ``[rows, *shape]``."""
        parts = torch.split(x, [shape.numel() for shape in self._shapes.values()], dim=1)
        shaped = zip(self._shapes.items(), parts, strict=True)
        return {name: part.view(-1, *shape) for (name, shape), part in shaped}

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        return {name: values.shape for name, values in self.module.named_parameters() if values.requires_grad}


def choose(
    module: nn.Module, loss: Loss, fit: Fit, inputs: Tensor, targets: Tensor, wish: Path | None = None
) -> tuple[Copies, str]:
    """The copies of a module on the wished or the first path that fits, and why no earlier one does."""
    if wish is not None and wish not in get_args(Path):
        raise invalid("path", '"chain", "vmap", "loop", or None to choose', wish)
    why = ""
    for path in ("chain", "vmap", "loop") if wish is None else (wish,):
        copies = Copies(module, loss, path, fit)
        obstacle = _obstacle(copies, inputs, targets)
        if not obstacle:
            return copies, why
        why = obstacle
    way = f'path="{wish}" is not possible' if wish else "its copies cannot be computed"
    raise ValueError(f"{type(module).__name__}: {way}: {why}")


def share(rows: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same examples for all rows."""
    return inputs.expand(rows, *inputs.shape), targets.expand(rows, *targets.shape)


def _obstacle(copies: Copies, inputs: Tensor, targets: Tensor) -> str:
    """Why the path does not compute what the network itself does, or nothing if it does."""
    if copies.fit.random and copies.path != "loop":
        return "it draws random numbers, such as dropout's, which are named copy by copy"
    if copies.path == "chain":
        return "" if is_chain(copies.module) else "it is not a chain of layers that can be stacked"
    # Two copies that differ: with one, or with equal ones, a path that ignored the parameters it is given would pass.
    x, expected = _two_by_themselves(copies, inputs, targets)
    both = inputs.expand(2, *inputs.shape), targets.expand(2, *targets.shape)
    try:
        _, got = copies.losses_and_grads(x, *both, len(inputs), torch.tensor([[0], [1]]) if copies.fit.random else None)
    except Exception as error:  # a module may raise anything where it is not called as it expects
        return f"{type(error).__name__}, {str(error).partition('. ')[0].partition(chr(10))[0]}"
    close = max(CLOSE, ROUNDING * torch.finfo(x.dtype).eps) * expected.norm()
    if bool(expected.isfinite().all()) and not bool((got - expected).norm() <= close):
        how = "under torch.func.vmap" if copies.path == "vmap" else "with parameters from outside (checkpointing?)"
        return f"its gradients are others {how}"
    return ""


def _two_by_themselves(copies: Copies, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Two vectors of parameters, and their gradients by plain autograd on a module that has them."""
    module = copy.deepcopy(copies.module)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    random = torch.Generator().manual_seed(0)
    rows, grads = [], []
    for seed in range(2):
        with torch.no_grad():
            for parameter in trained:
                # The same noise in every precision, so that the choice of a path does not depend on it.
                noise = torch.randn(parameter.shape, generator=random, dtype=torch.float32)
                parameter.add_(noise.to(parameter), alpha=0.1)
        rows.append(torch.cat([parameter.detach().flatten() for parameter in trained]))
        with torch.enable_grad(), torch_generator() as generator:
            generator.manual_seed(seed)
            losses = copies.loss(module(inputs), targets)
            grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(losses.mean(), trained)]))
    return torch.stack(rows), torch.stack(grads)


def _rows(parameters: Mapping[str, Tensor], rows: int) -> list[dict[str, Tensor]]:
    """The parameters of each copy. The gradient of ``unbind`` is one stack, that of an index a tensor for each row."""
    apart = {name: values.unbind(0) for name, values in parameters.items()}
    return [{name: values[row] for name, values in apart.items()} for row in range(rows)]


@contextmanager
def _named(seeds: Tensor | None) -> Iterator[Callable[[int], object]]:
    """Context manager with a function that names the random numbers of a row, by the row's word in ``seeds``."""
    if seeds is None:
        yield lambda _row: None
        return
    words = [word & MASK for word in seeds.flatten().tolist()]  # torch's generator has seeds of 32 bits
    with torch_generator() as generator:
        yield lambda row: generator.manual_seed(words[row])
