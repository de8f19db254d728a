"""Copies of one network, each with parameters and examples of its own, on one of three paths.

- chain: a chain of known layers becomes batched matrix products and grouped convolutions;
- vmap: any other network that ``torch.func.vmap`` can batch;
- loop: any network at all, one copy after another, which share one module and see views of their rows.

`choose` takes the first path that computes what the network itself does, on two copies and two examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call

from proxdasa.checks import invalid
from proxdasa.modules import copy_module, torch_generator
from proxdasa.problems.losses import Loss
from proxdasa.problems.module_checks import ROUNDING, Fit
from proxdasa.problems.stacked import Forward, batch, chain_forward, is_chain, vmap_forward
from proxdasa.running_statistics import RunningStatistics
from proxdasa.torch_internals import write_count

Values = Mapping[str, Tensor]
"""Parameters or buffers of all copies, or of one, by name."""
Path = Literal["chain", "vmap", "loop"]
"""How the gradients of copies are computed."""

CLOSE = 1e-3
"""The difference, relative to the gradient, beyond which a path computes something else: rounding is far below, even
in float32, and the effect of a parameter that is ignored far above."""
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


class Pass(NamedTuple):
    """The results of a forward and a backward pass of all copies."""

    losses: Tensor
    """``[rows]``"""
    grads: Tensor
    """``[rows, d]``"""
    statistics: Tensor | None
    """The running statistics after it, ``[rows, s]``."""


class _Constant(NamedTuple):
    """A buffer that all copies share, and what it was when they were made."""

    owner: nn.Module
    key: str
    tensor: Tensor
    writes: int | None
    """How often it was written to."""
    value: Tensor


@dataclass(frozen=True, eq=False)
class Copies:
    """Stacked copies of a module: a row of x ``[rows, d]`` is the vector of a copy's trained parameters.

    If the module has running statistics, a row of r ``[rows, s]`` is those of the copy.
    """

    module: nn.Module
    loss: Loss
    path: Path
    fit: Fit
    running: RunningStatistics | None = None

    def __post_init__(self) -> None:
        _ = self._forward, self._shapes, self._constants  # built now, because recorded steps must not build them

    def losses_and_grads(
        self,
        x: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weight: Tensor | int,
        seeds: Tensor | None = None,
        r: Tensor | None = None,
        into: Tensor | None = None,
    ) -> Pass:
        """Weighted (or, for a number, mean) loss of each row on its own examples ``[rows, batch, ...]``, and gradients.

        Weights are ``[batch]``, the same for all rows, or ``[rows, batch]``. Gradients are written ``into`` a tensor
        like x, or into a new one.
        """
        made = self._losses_and_grads(x, inputs, targets, weight, seeds, r, into)
        if self._constants:
            self._check_constants()
        return made

    def _losses_and_grads(
        self,
        x: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weight: Tensor | int,
        seeds: Tensor | None,
        r: Tensor | None,
        into: Tensor | None,
    ) -> Pass:
        """`losses_and_grads` without its check. Parameters are leaves: views of x that no gradient passes through."""
        with torch.enable_grad():
            leaves = {name: view.detach().requires_grad_() for name, view in self._parameters(x).items()}
            each, statistics = self._losses(leaves, self._buffers(r), inputs, targets, seeds)
            if isinstance(weight, int):
                losses = each.sum(1) / weight
            else:
                losses = each @ weight if weight.ndim == 1 else (each * weight).sum(1)
            # A row's loss depends on its own parameters alone, so the gradient of the sum has those of all rows.
            grads = torch.autograd.grad(losses.sum(), list(leaves.values()))
        if into is None:
            into = torch.cat([part.flatten(1) for part in grads], dim=1)
        else:
            for place, part in zip(self._parameters(into).values(), grads, strict=True):
                place.copy_(part)
        return Pass(losses.detach(), into, self.running.rows(statistics, x.dtype) if self.running else None)

    def losses(self, x: Tensor, inputs: Tensor, targets: Tensor, r: Tensor | None = None) -> Tensor:
        """The losses ``[rows, batch]`` of examples ``[rows, batch, ...]``."""
        with torch.no_grad():
            return self._losses(self._parameters(x), self._buffers(r), inputs, targets, None)[0]

    def outputs(self, x: Tensor, inputs: Tensor, r: Tensor | None = None) -> Tensor:
        """The outputs ``[rows, batch, ...]`` of a network that returns one tensor."""
        with torch.no_grad():
            return self._forward({**self._parameters(x), **self._buffers(r)}, inputs)

    def _losses(
        self, parameters: Values, buffers: Values, inputs: Tensor, targets: Tensor, seeds: Tensor | None
    ) -> tuple[Tensor, Values]:
        """The losses ``[rows, batch]``, and the buffers after the forward pass."""
        if self.path == "loop":
            every = _rows(parameters, buffers, len(inputs))
            with _named(seeds) as name:
                each = []
                for row, own in enumerate(every):
                    name(row)
                    outputs = functional_call(self.module, own, (inputs[row],))
                    each.append(self.loss(outputs, targets[row]).flatten())
            return torch.stack(each), {name: torch.stack([own[name] for own in every]) for name in buffers}
        if buffers or not self.fit.tensor:  # only the loss understands outputs that are not a tensor
            together: tuple[Tensor, Values] = batch(self._single)(dict(parameters), dict(buffers), inputs, targets)
            return together
        outputs = self._forward(parameters, inputs)
        return self.loss(outputs.flatten(0, 1), targets.flatten(0, 1)).view(outputs.shape[:2]), {}

    def _single(self, own: Values, buffers: Values, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Values]:
        """The losses of one copy, and its buffers after the forward pass."""
        held = {**own, **{name: values.clone() for name, values in buffers.items()}}
        losses = self.loss(functional_call(self.module, held, (inputs,)), targets).flatten()
        return losses, {name: held[name] for name in buffers}

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
                for own, rows in zip(_rows(parameters, {}, len(inputs)), inputs, strict=True)
            ]
        )

    def _parameters(self, x: Tensor) -> dict[str, Tensor]:
        """Views of the rows x ``[rows, d]`` as parameters ``[rows, *shape]``."""
        parts = torch.split(x, [shape.numel() for shape in self._shapes.values()], dim=1)
        shaped = zip(self._shapes.items(), parts, strict=True)
        return {name: part.view(-1, *shape) for (name, shape), part in shaped}

    def _check_constants(self) -> None:
        """Refuse buffers that some examples change although the first two did not: all copies share them."""
        for held in self._constants:
            now: Tensor = getattr(held.owner, held.key)
            written = now is not held.tensor or write_count(now) != held.writes
            if written and not torch.equal(now, held.value):
                raise ValueError(
                    f"the forward pass changes the buffer {held.key} of {type(held.owner).__name__} for some batches, "
                    "but did not for two of the examples; a running statistic must change in every forward pass"
                )

    @cached_property
    def _constants(self) -> list[_Constant]:
        running = self.running.first if self.running else {}
        return [
            _Constant(owner, name.rpartition(".")[2], values, write_count(values), values.clone())
            for prefix, owner in self.module.named_modules()
            for name, values in owner.named_buffers(prefix, recurse=False)
            if name not in running
        ]

    def _buffers(self, r: Tensor | None) -> dict[str, Tensor]:
        """The running statistics r ``[rows, s]`` as buffers ``[rows, *shape]``; none if the module has none."""
        if self.running is None:
            return {}
        assert r is not None, "running statistics belong to a copy as its parameters do"
        return self.running.views(r)

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        return {name: values.shape for name, values in self.module.named_parameters() if values.requires_grad}


def choose(
    module: nn.Module,
    loss: Loss,
    fit: Fit,
    inputs: Tensor,
    targets: Tensor,
    wish: Path | None = None,
    running: RunningStatistics | None = None,
) -> tuple[Copies, str]:
    """The copies of a module on the requested or the first path that works, and why no earlier one does."""
    if wish is not None and wish not in get_args(Path):
        raise invalid("path", '"chain", "vmap", "loop", or None to choose', wish)
    why, alone = "", cache(partial(_two_by_themselves, module, loss, running, inputs, targets))
    for path in ("chain", "vmap", "loop") if wish is None else (wish,):
        copies = Copies(module, loss, path, fit, running)
        obstacle = _obstacle(copies, inputs, targets, alone)
        if not obstacle:
            return copies, why
        why = obstacle
    way = f'path="{wish}" is not possible' if wish else "its copies cannot be computed"
    raise ValueError(f"{type(module).__name__}: {way}: {why}")


def share(rows: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same examples for all rows."""
    return inputs.expand(rows, *inputs.shape), targets.expand(rows, *targets.shape)


def _obstacle(
    copies: Copies, inputs: Tensor, targets: Tensor, alone: Callable[[], tuple[Tensor, Tensor | None, Pass]]
) -> str:
    """Why the path does not compute what the network does ``alone``, or nothing if it does."""
    if copies.fit.random and copies.path != "loop":
        return "it draws random numbers, such as dropout's, and each copy needs its own"
    if copies.path == "chain":
        return "" if is_chain(copies.module, inputs.ndim) else "it is not a chain of layers that can be stacked"
    # Two copies that differ: with one, or with equal ones, a path that ignored the parameters it is given would pass.
    x, r, expected = alone()
    both = inputs.expand(2, *inputs.shape), targets.expand(2, *targets.shape)
    try:
        got = copies.losses_and_grads(x, *both, len(inputs), torch.tensor([[0], [1]]) if copies.fit.random else None, r)
    except Exception as error:  # a module may raise anything where it is not called as it expects
        return f"{type(error).__name__}, {str(error).partition('. ')[0].partition(chr(10))[0]}"
    how = "under torch.func.vmap" if copies.path == "vmap" else "with parameters from outside (checkpointing?)"
    if _differ(got.grads, expected.grads):
        return f"its gradients differ {how}"
    if expected.statistics is not None and _differ(got.statistics, expected.statistics):
        return f"its running statistics differ {how}"
    return ""


def _differ(got: Tensor | None, expected: Tensor) -> bool:
    """Whether a path computes something other than the network itself."""
    close = max(CLOSE, ROUNDING * torch.finfo(expected.dtype).eps) * expected.norm()
    return bool(expected.isfinite().all()) and (got is None or not bool((got - expected).norm() <= close))


def _two_by_themselves(
    module: nn.Module, loss: Loss, running: RunningStatistics | None, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor | None, Pass]:
    """Two vectors of parameters, statistics if there are any, and what plain autograd computes on modules with them."""
    noisy, random = copy_module(module), torch.Generator().manual_seed(0)
    rows, losses, grads, before, after = [], [], [], [], []
    for seed in range(2):
        with torch.no_grad():
            for parameter in noisy.parameters():
                if parameter.requires_grad:
                    # The same noise in every precision, so that the choice of a path does not depend on it.
                    noise = torch.randn(parameter.shape, generator=random, dtype=torch.float32)
                    parameter.add_(noise.to(parameter), alpha=0.1)
        module = noisy if seed else copy_module(noisy)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        rows.append(torch.cat([parameter.detach().flatten() for parameter in trained]))
        if running:
            row = running.start(rows[0].dtype)
            row[: running.averages] += 0.1 * (seed + 1)  # so that a path that uses others is detected
            before.append(row)
            running.fill(module, row)
        with torch.enable_grad(), torch_generator() as generator:
            generator.manual_seed(seed)
            losses.append(loss(module(inputs), targets).mean())
            grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(losses[-1], trained)]))
        if running:
            after.append(running.rows({name: b.unsqueeze(0) for name, b in module.named_buffers()}, row.dtype)[0])
    statistics = torch.stack(after) if running else None
    alone = Pass(torch.stack(losses).detach(), torch.stack(grads), statistics)
    return torch.stack(rows), torch.stack(before) if running else None, alone


def _rows(parameters: Values, buffers: Values, rows: int) -> list[dict[str, Tensor]]:
    """The parameters of each copy, and buffers that it may change.

    The gradient of ``unbind`` is one stack, that of an index a tensor for each row.
    """
    apart = {name: values.unbind(0) for name, values in parameters.items()}
    return [
        {name: values[row] for name, values in apart.items()}
        | {name: values[row].clone() for name, values in buffers.items()}
        for row in range(rows)
    ]


@contextmanager
def _named(seeds: Tensor | None) -> Iterator[Callable[[int], object]]:
    """Context manager that yields a function, which seeds torch's generator for a row by its word in ``seeds``."""
    if seeds is None:
        yield lambda _row: None
        return
    words = [word & MASK for word in seeds.flatten().tolist()]  # torch's generator has seeds of 32 bits
    with torch_generator() as generator:
        yield lambda row: generator.manual_seed(words[row])
