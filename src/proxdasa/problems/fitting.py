"""Checks on two examples that a network, a loss and the data fit together, before anything is trained.

Failures inside torch are reported in one sentence. So are mistakes that would otherwise go unnoticed: a loss that
broadcasts [N, 1] outputs against [N] targets compares every output with the targets of all examples.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from proxdasa.problems.losses import Loss, cross_entropy

NOISE = 1e-2
"""Size of the noise added to the parameters: if they are all 0, say, outputs are equal, which hides a loss that mixes
examples."""
ROUNDING = 100
"""Units in the last place by which sums may differ between a batch of one example and a batch of two."""


def try_two(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> int:
    """Check that all fits, or raise ValueError; return the most values that a layer computes for one example."""
    module = copy.deepcopy(module).to(inputs.dtype)
    sizes = [inputs.numel()]

    def note(_layer: nn.Module, _inputs: object, output: object) -> None:
        sizes.append(output.numel() if isinstance(output, Tensor) else 0)

    for layer in module.modules():
        layer.register_forward_hook(note)
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trained.values():
            parameter.add_(torch.randn(parameter.shape, generator=random, dtype=parameter.dtype), alpha=NOISE)
    with torch.enable_grad():
        outputs = _outputs(module, inputs)
        losses = _losses(loss, outputs, targets)
        _check_gradients(loss, losses, trained)
    with torch.no_grad():
        _check_one_by_one(loss, losses, outputs.detach(), targets)
    return max(sizes) // len(inputs)


def _outputs(module: nn.Module, inputs: Tensor) -> Tensor:
    """The network's outputs; refuses those without one row for each example, also for a single example."""
    name, shape = type(module).__name__, list(inputs.shape)
    with _explain(f"{name} fails on two examples, inputs of shape {shape}"):
        outputs: object = module(inputs)
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"{name} returns a {type(outputs).__name__}; a network must return one tensor, its outputs; "
            "wrap it in a module that does"
        )
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


def _losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The losses of the examples; refuses a loss that does not return one number for each."""
    if loss is cross_entropy and outputs.ndim == 2 and not targets.is_floating_point():
        classes, largest = outputs.shape[1], int(targets.max())
        if largest >= classes:
            raise ValueError(
                f"the label {largest} is among the examples, but the number of the network's outputs is {classes}, "
                f"for labels 0, ..., {classes - 1}; it needs at least {largest + 1}"
            )
    given = f"outputs of shape {list(outputs.shape)} and {_describe(targets)}"
    with _explain(f"the loss {_name(loss)} fails for {given}"):
        losses: object = loss(outputs, targets)
    shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    if not isinstance(losses, Tensor) or losses.shape[:1] != outputs.shape[:1] or losses.numel() != len(outputs):
        raise ValueError(
            f"the loss {_name(loss)} must return one number for each example, [{len(outputs)}] for {given}; "
            f'got {shape}; torch\'s losses do that with reduction="none"'
        )
    return losses.flatten()


def _check_gradients(loss: Loss, losses: Tensor, trained: dict[str, nn.Parameter]) -> None:
    if not losses.requires_grad:
        raise ValueError(f"the loss {_name(loss)} has no gradient: its result does not depend on the parameters")
    grads = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
    if unused := [name for name, grad in zip(trained, grads, strict=True) if grad is None]:
        raise ValueError(
            f"the loss does not depend on the network's parameter {unused[0]}; "
            "use it, or freeze it by requires_grad_(False)"
        )


def _check_one_by_one(loss: Loss, losses: Tensor, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a loss whose value for one example depends on the other examples of the batch."""
    both = range(len(outputs))
    alone = torch.cat([_losses(loss, outputs[j : j + 1], targets[j : j + 1]) for j in both])
    # A batch of an example and its own copy is computed by the same operations as a batch of both examples, so there
    # is almost no rounding that could hide a small effect of the other example's targets.
    doubled = torch.stack([_losses(loss, outputs[[j, j]], targets[[j, j]])[j] for j in both])
    scale = alone.abs() + outputs.abs().max()
    if not bool(scale.isfinite().all()):
        return  # a run reports by itself what is not finite
    eps = torch.finfo(losses.dtype).eps
    changed = (losses - alone).abs() > ROUNDING * eps * scale
    changed |= (losses - doubled).abs() > 4 * eps * losses.abs()
    if bool(changed.any()):
        raise ValueError(
            f"the loss {_name(loss)} of two examples is {_numbers(losses)} together and {_numbers(alone)} one by one; "
            f"that of an example must depend on no other: outputs of shape {list(outputs.shape)} and targets of "
            f"shape {list(targets.shape)} may broadcast, which targets.view_as(outputs) avoids"
        )


@contextmanager
def _explain(what: str) -> Iterator[None]:
    """Context manager that raises torch's errors as a ValueError, as the end of the sentence ``what``."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{what}: {why}") from None


def _name(loss: Loss) -> str:
    return str(getattr(loss, "__name__", type(loss).__name__))


def _describe(targets: Tensor) -> str:
    kind = str(targets.dtype).removeprefix("torch.")
    return f"labels {targets.tolist()}" if kind == "int64" else f"targets of shape {list(targets.shape)} in {kind}"


def _numbers(losses: Tensor) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in losses.tolist()) + "]"
