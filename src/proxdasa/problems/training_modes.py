"""The copies of a network in its two modes: those whose gradients are taken, and those that are measured."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from proxdasa import caller_warnings
from proxdasa.modules import convert, copy_module
from proxdasa.problems.copies import Copies, LoopWarning, Path, choose
from proxdasa.problems.losses import Loss
from proxdasa.problems.module_checks import check_batch_of_one, check_running, is_apart, try_two
from proxdasa.running_statistics import Policy, RunningStatistics


def training_copies(
    module: nn.Module,
    loss: Loss,
    two: tuple[Tensor, Tensor],
    batch_size: int,
    fewest: int,
    path: Path | None,
    policy: Policy | None,
) -> Copies:
    """The copies in the mode that the network has, usually training, tried on two examples.

    ``fewest`` is the smallest number of examples that an agent has.
    """
    trial = copy_module(module)
    fit = try_two(trial, loss, *two)
    check_running(module, fit, policy)
    if batch_size == 1:
        check_batch_of_one(trial, two[0])
    elif fewest < batch_size and not fit.random:
        fit = fit._replace(apart=is_apart(trial, loss, *two))
    copies, why = choose(module, loss, fit, *two, path, RunningStatistics.of(module, fit.running))
    if why and copies.path == "loop" and path is None:
        caller_warnings.warn(
            f"{type(module).__name__} cannot be stacked ({why}), so its copies are computed one after another: a step "
            'takes time in proportion to trials × agents. Pass path="loop" to accept this without a warning',
            LoopWarning,
        )
    return copies


def evaluating_copies(module: nn.Module, dtype: torch.dtype, two: tuple[Tensor, Tensor], training: Copies) -> Copies:
    """The copies of the same network, in this type, in evaluation mode."""
    if training.path == "chain":
        return training  # none of its layers has a mode
    module = convert(module, dtype).eval()
    try:
        fit = try_two(copy_module(module), training.loss, *two)
        check_running(module, fit, None)
        if not fit.random:
            _check_apart(module, training.loss, *two)
        return choose(module, training.loss, fit, *two, running=training.running)[0]
    except ValueError as error:
        raise ValueError(f"{error} (in evaluation mode, after eval())") from None


def copy_modes(
    training: Copies, evaluating: Copies, module: nn.Module, running: RunningStatistics | None = None
) -> tuple[Copies, Copies]:
    """The copies in both modes for another copy of the network, which may be changed, and of its statistics.

    Another thread needs this, or another device. Forward passes put the parameters of a row into the module for a
    moment, so threads must not share one.
    """
    running = running or training.running
    ours = replace(training, module=module, running=running)
    if evaluating is training:
        return ours, ours
    return ours, replace(evaluating, module=copy_module(module).eval(), running=evaluating.running and running)


def _check_apart(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Refuse a network whose loss of an example depends on the rest of its batch, because F would depend on batches."""
    with torch.no_grad():
        together = loss(module(inputs), targets)
        try:
            apart = torch.cat([loss(module(inputs[i : i + 1]), targets[i : i + 1]) for i in range(len(inputs))])
        except Exception:  # a module may raise anything; only what normalises by batch is known to be wrong
            if not any(
                isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) for layer in module.modules()
            ):
                return
            apart = torch.full_like(together, torch.nan)
    if not torch.allclose(together, apart, rtol=1e-3, atol=1e-5):
        raise ValueError(
            f"{type(module).__name__} computes the loss of an example from its whole batch, so a measure would depend "
            "on how examples are divided into batches; BatchNorm needs track_running_stats=True"
        )
