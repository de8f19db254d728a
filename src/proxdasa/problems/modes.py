"""The copies of a network in its two modes: those whose gradients are taken, and those that are measured."""

from __future__ import annotations

from torch import Tensor, nn

from proxdasa import caller_warnings
from proxdasa.problems.copies import Copies, LoopWarning, Path, choose
from proxdasa.problems.fitting import check_batch_of_one, check_running, try_two
from proxdasa.problems.losses import Loss
from proxdasa.running_statistics import Policy, RunningStatistics


def training_copies(
    module: nn.Module, loss: Loss, two: tuple[Tensor, Tensor], batch_size: int, path: Path | None, policy: Policy | None
) -> Copies:
    """The copies in the mode that the network has, usually training, tried on two examples."""
    fit = try_two(module, loss, *two)
    check_running(module, fit, policy)
    if batch_size == 1:
        check_batch_of_one(module, two[0])
    copies, why = choose(module, loss, fit, *two, path, RunningStatistics.of(module, fit.running))
    if why and copies.path == "loop" and path is None:
        caller_warnings.warn(
            f"{type(module).__name__} cannot be stacked ({why}), so its copies are computed one after another: a step "
            'takes time in proportion to trials × agents. Give path="loop" if that is fine',
            LoopWarning,
        )
    return copies


def evaluating_copies(module: nn.Module, two: tuple[Tensor, Tensor], training: Copies) -> Copies:
    """The copies of the same network, a module that may be changed, in evaluation mode."""
    if training.path == "chain":
        return training  # none of its layers has a mode
    module.eval()
    try:
        fit = try_two(module, training.loss, *two)
        check_running(module, fit, None)
        return choose(module, training.loss, fit, *two, running=training.running)[0]
    except ValueError as error:
        raise ValueError(f"{error} (in evaluation mode, after eval())") from None
