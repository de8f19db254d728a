"""Whether a network draws random numbers, and from which generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from torch import Tensor, nn

from proxdasa.problems.losses import Loss
from proxdasa.torch_internals import RandomOperations


def may_draw(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> bool:
    """Whether the network or its loss uses operations that may draw from torch's generator."""
    with RandomOperations() as operations:  # type: ignore[no-untyped-call]
        loss(module(inputs), targets)
    return bool(operations.seen)


def other_generators() -> object:
    """The state of the global generators of Python and NumPy."""
    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - does the network draw from it?
    return random.getstate(), numpy["state"]["pos"]


def _draws_elsewhere(module: nn.Module, inputs: Tensor) -> bool:
    """Whether the global generators of Python or NumPy change while the network is computed."""
    before = other_generators()
    module(inputs)
    return before != other_generators()


def check_draws(module: nn.Module, drawn: bool, elsewhere: bool, inputs: Tensor) -> None:
    """Refuse random numbers that cannot be named, and networks that draw in evaluation mode.

    ``elsewhere`` is whether anybody has drawn from the generators of Python or NumPy.
    """
    name = type(module).__name__
    # Another thread would not draw every time.
    if elsewhere and all(_draws_elsewhere(module, inputs) for _ in range(3)):
        raise ValueError(
            f"{name} draws from the generator of Python or NumPy, which cannot be named by seed, trial, agent and "
            "iteration; draw from torch's: torch.rand"
        )
    if drawn and not any(layer.training for layer in module.modules()):
        raise ValueError(
            f"{name} draws random numbers in evaluation mode too, where its losses must be a function of its "
            "parameters; draw only where self.training is True: functional.dropout(x, p, training=self.training)"
        )
