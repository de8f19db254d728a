"""Checks on two examples that a network, a loss and the data fit together, before anything is trained.

Failures inside torch are reported in one sentence. So are mistakes that would otherwise go unnoticed: a loss that
broadcasts [N, 1] outputs against [N] targets compares every output with the targets of all examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from proxdasa.data import Dataset
from proxdasa.modules import torch_generator
from proxdasa.problems.losses import LOSSES, Loss, cross_entropy
from proxdasa.problems.random_draws import check_draws, may_draw, other_generators
from proxdasa.running_statistics import POLICIES, Policy, changed_buffers, copy_buffers
from proxdasa.torch_internals import write_count

NOISE = 1e-2
"""Size of the noise added to the parameters: if they are all 0, say, outputs are equal, which hides a loss that mixes
examples."""
ROUNDING = 100
"""Units in the last place by which sums may differ between a batch of one example and a batch of two."""


def two_examples(data: Dataset, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Two of the examples with the most different targets; the largest label may be that of a test example."""
    level = (data.y if data.y.ndim == 1 else data.y.flatten(1).sum(1))[rows]
    pair = rows[[int(level.argmax()), int(level.argmin())]]
    if pair[0] == pair[1]:  # equal sums, as one-hot targets have; the targets may differ
        others = (data.y[rows] != data.y[rows[0]]).reshape(len(rows), -1).any(1).nonzero()
        pair = rows[[0, int(others[0]) if len(others) else -1]]
    y = data.y[pair]
    if data.classes is not None and data.test_y is not None:
        y[0] = torch.maximum(y[0], data.test_y.max())
    return data.x[pair], y


class Fit(NamedTuple):
    """What two examples reveal about a network."""

    width: int
    """The most values that a layer computes for one example."""
    random: bool
    """Whether the network, or its loss, draws random numbers."""
    tensor: bool
    """Whether the network returns one tensor; only its loss knows what to do with anything else."""
    running: tuple[str, ...] = ()
    """The running statistics: buffers that a forward pass changes. All others are constants."""
    apart: bool = True
    """Whether the loss of an example does not depend on the rest of its batch, as `is_apart` tells; True where nobody
    asked."""


def try_two(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> Fit:
    """Check that network, loss and examples fit together, or raise ValueError. The module, a copy, is changed."""
    sizes = [inputs.numel()]
    for layer in module.modules():
        layer.register_forward_hook(lambda _layer, _inputs, output: sizes.append(_count(output)))
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trained.values():
            parameter.add_(torch.randn(parameter.shape, generator=noise, dtype=parameter.dtype), alpha=NOISE)
    before = copy_buffers(module)
    with torch.enable_grad(), torch_generator() as generator:
        state, elsewhere = generator.get_state(), other_generators()
        with _unchanged(module, inputs):
            outputs = _outputs(module, inputs)
            _check_outputs(loss, outputs, targets)
            losses = _losses(loss, outputs, targets)
        # Some operations draw only if their probability is positive, and other threads may draw at the same time.
        drawn = not torch.equal(generator.get_state(), state) and may_draw(module, loss, inputs, targets)
        check_draws(module, drawn, other_generators() != elsewhere, inputs)
        running = changed_buffers(module, before)
        _check_gradients(loss, losses, trained)
    if not drawn:
        with torch.no_grad():
            _check_one_by_one(loss, losses, outputs, targets, module, inputs)
    return Fit(max(sizes) // len(inputs), drawn, isinstance(outputs, Tensor), tuple(running))


def is_apart(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss of an example does not depend on the rest of its batch. The module, from `try_two`, is changed.

    It must not draw random numbers.
    """
    with torch.no_grad():
        losses, twice = (_losses(loss, module(inputs[rows]), targets[rows]) for rows in ([0, 1], [0, 0]))
    bound = torch.finfo(twice.dtype).eps ** 0.5 * (twice[0].abs() + 1)
    return not bool((twice[0] - losses[0]).abs() > bound)


def _count(output: object) -> int:
    """The number of values in a layer's output, whatever it is made of."""
    if isinstance(output, Tensor):
        return output.numel()
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return sum(map(_count, parts))


@contextmanager
def _unchanged(module: nn.Module, inputs: Tensor) -> Iterator[None]:
    """Context manager that refuses changes to inputs and parameters, which are examples and rows of x in a run."""
    name, given = type(module).__name__, write_count(inputs)
    before = {key: (write_count(each), each.detach().clone()) for key, each in module.named_parameters()}
    yield
    if write_count(inputs) != given:
        raise ValueError(f"{name} changes its inputs in place, and with them the examples; let it change a copy")
    for key, now in module.named_parameters():
        writes, values = before[key]  # torch counts changes in place, even to the same values, but not those of .data
        same = torch.equal(now, values) or torch.allclose(now, values, rtol=0, atol=0, equal_nan=True)
        if write_count(now) != writes or not same:
            raise ValueError(
                f"the forward pass of {name} changes its parameter {key}, as max_norm of nn.Embedding does; use a "
                "changed copy of it instead, or a regularizer, or a buffer for what is not trained"
            )


def check_running(module: nn.Module, fit: Fit, policy: Policy | None) -> None:
    """Refuse running statistics that change in evaluation mode, or for which no policy was chosen."""
    for layer_name, layer in module.named_modules():
        if isinstance(layer, nn.SyncBatchNorm) and layer.training:
            raise ValueError(
                f"the layer {layer_name!r} is SyncBatchNorm, which would mix the batches of all agents; use BatchNorm"
            )
    if not fit.running:
        return
    where, _, buffer = fit.running[0].rpartition(".")
    what = (
        f"{type(module.get_submodule(where)).__name__} (layer {where!r}) keeps running statistics: its buffer {buffer}"
    )
    if not any(layer.training for layer in module.modules()):
        raise ValueError(
            f"{what} changes in evaluation mode too, where losses must be a function of parameters and statistics; "
            "change it only where self.training is True"
        )
    if policy is None:
        raise ValueError(
            f"{what} changes in every forward pass. Choose what becomes of them: {POLICIES}. GroupNorm and LayerNorm "
            "need neither, and eval() on the layer keeps the statistics that it has, as one "
            "does with a trained backbone"
        )


def check_batch_of_one(module: nn.Module, inputs: Tensor) -> None:
    """Refuse batches of one example for a network that cannot be trained on one. The module, a copy, is changed."""
    what = f"batch_size must be at least 2, because {type(module).__name__} fails on a batch of one example"
    with torch.no_grad(), torch_generator(), _explain(lambda: what):
        module(inputs[:1])


def _outputs(module: nn.Module, inputs: Tensor) -> Any:
    """What the network returns; refuses a tensor without one row for each example, also for a single example."""
    name, shape = type(module).__name__, list(inputs.shape)
    whole = "" if inputs.is_floating_point() else f" in {str(inputs.dtype).removeprefix('torch.')}"
    numbers = 'for measurements pass x.float(), or dtype="float32" to per_agent'
    remedy = "" if not whole else f" (whole numbers stay whole, as embeddings need them; {numbers})"
    with _explain(lambda: f"{name} fails on two examples, inputs of shape {shape}{whole}{remedy}"):
        outputs: object = module(inputs)
    if not isinstance(outputs, Tensor):
        return outputs
    if outputs.shape[:1] != inputs.shape[:1]:
        raise ValueError(
            f"{name} returns outputs of shape {list(outputs.shape)} for two examples, inputs of shape {shape}; "
            "it must return one row for each example, [2, ...]"
        )
    try:
        alone = module(inputs[:1])
    except (RuntimeError, ValueError):  # normalisation over a batch cannot be computed for one
        return outputs
    if alone.shape != (1, *outputs.shape[1:]):
        raise ValueError(
            f"{name} returns outputs of shape {list(outputs.shape)} for two examples, but {list(alone.shape)} for "
            "one; it must return one row for each example, with squeeze(-1), say, in place of squeeze()"
        )
    return outputs


def _check_outputs(loss: Loss, outputs: Any, targets: Tensor) -> None:
    """Refuse outputs that our own losses do not take: tuples, say, and too few for the labels."""
    if loss in LOSSES and not isinstance(outputs, Tensor):
        raise ValueError(
            f"the network returns a {type(outputs).__name__}, but the loss {_name(loss)} takes one tensor; give a loss "
            "of your own, loss=..., which is called with what the network returns and the targets"
        )
    if loss is cross_entropy and outputs.ndim == 2 and not targets.is_floating_point():
        classes, largest = outputs.shape[1], int(targets.max())
        if largest >= classes:
            raise ValueError(
                f"the label {largest} is among the examples, but the number of the network's outputs is {classes}, "
                f"for labels 0, ..., {classes - 1}; it needs at least {largest + 1}"
            )


def _losses(loss: Loss, outputs: Any, targets: Tensor) -> Tensor:
    """The losses of the examples; refuses a loss that does not return one number for each."""

    def given() -> str:
        tensor = isinstance(outputs, Tensor)
        what = f"outputs of shape {list(outputs.shape)}" if tensor else f"a {type(outputs).__name__}"
        return f"{what} and {_describe(targets)}"

    with _explain(lambda: f"the loss {_name(loss)} fails for {given()}"):
        losses: object = loss(outputs, targets)
    if not isinstance(losses, Tensor) or losses.shape[:1] != targets.shape[:1] or losses.numel() != len(targets):
        shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"the loss {_name(loss)} must return one number for each example, [{len(targets)}] for {given()}; "
            f'got {shape}; torch\'s losses do that with reduction="none"'
        )
    return losses.flatten()


def _check_gradients(loss: Loss, losses: Tensor, trained: dict[str, nn.Parameter]) -> None:
    if not losses.requires_grad:
        raise ValueError(f"the loss {_name(loss)} has no gradient: its result does not depend on the parameters")
    with _explain(lambda: "the gradient of the loss cannot be computed"):
        grads = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
    if unused := [name for name, grad in zip(trained, grads, strict=True) if grad is None]:
        raise ValueError(
            f"the loss does not depend on the network's parameter {unused[0]}; "
            "use it, or freeze it by requires_grad_(False)"
        )
    if other := [each for each in _parameters_of(losses) if not any(each is own for own in trained.values())]:
        raise ValueError(
            f"the loss depends on a parameter of shape {list(other[0].shape)} that is not the network's, so it would "
            "never be trained; make it one of the network, with nn.ModuleList for layers in a list, or freeze it by "
            "requires_grad_(False)"
        )
    if sparse := [name for name, grad in zip(trained, grads, strict=True) if grad.layout is not torch.strided]:
        raise ValueError(f"the parameter {sparse[0]} has a sparse gradient; nn.Embedding has sparse=False")


def _parameters_of(losses: Tensor) -> list[nn.Parameter]:
    """The parameters on which losses depend, whoever owns them."""
    nodes, found = {losses.grad_fn}, []
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if isinstance(leaf := getattr(node, "variable", None), nn.Parameter):
            found.append(leaf)
        following = {each for each, _ in node.next_functions} - nodes
        nodes |= following
        waiting += following
    return found


def _check_one_by_one(
    loss: Loss, losses: Tensor, outputs: Any, targets: Tensor, module: nn.Module, inputs: Tensor
) -> None:
    """Refuse a loss whose value for one example depends on the other examples of the batch."""

    def compute(rows: list[int]) -> Tensor:
        part = outputs.detach()[rows] if isinstance(outputs, Tensor) else module(inputs[rows])
        return _losses(loss, part, targets[rows])

    both = range(len(targets))
    try:
        alone = torch.cat([compute([j]) for j in both])
    except (RuntimeError, ValueError):
        if isinstance(outputs, Tensor):
            raise
        return  # normalisation over a batch again
    eps = torch.finfo(losses.dtype).eps
    if isinstance(outputs, Tensor):
        bound = ROUNDING * eps * (alone.abs() + outputs.abs().max())
    else:  # the rounding is that of a whole network
        bound = eps**0.5 * (alone.abs() + 1)
    if not bool(bound.isfinite().all()):
        return  # the run itself reports values that are not finite
    changed = (losses - alone).abs() > bound
    if isinstance(outputs, Tensor):
        # A batch of an example and its own copy is computed by the same operations as a batch of both examples, so
        # there is almost no rounding that could hide a small effect of the other example's targets.
        doubled = torch.stack([compute([j, j])[j] for j in both])
        changed |= (losses - doubled).abs() > 4 * eps * losses.abs()
    if bool(changed.any()):
        shape = f"of shape {list(outputs.shape)}" if isinstance(outputs, Tensor) else f"({type(outputs).__name__})"
        raise ValueError(
            f"the loss {_name(loss)} of two examples is {_numbers(losses)} together and {_numbers(alone)} one by one; "
            f"that of an example must not depend on the others: outputs {shape} and targets of "
            f"shape {list(targets.shape)} may broadcast, which targets.view_as(outputs) avoids"
        )


@contextmanager
def _explain(what: Callable[[], str]) -> Iterator[None]:
    """Context manager that raises torch's errors as a ValueError, as the end of the sentence that ``what`` returns."""
    try:
        yield
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{what()}: {why}") from None


def _name(loss: Loss) -> str:
    return str(getattr(loss, "__name__", type(loss).__name__))


def _describe(targets: Tensor) -> str:
    kind = str(targets.dtype).removeprefix("torch.")
    return f"labels {targets.tolist()}" if kind == "int64" else f"targets of shape {list(targets.shape)} in {kind}"


def _numbers(losses: Tensor) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in losses.tolist()) + "]"
