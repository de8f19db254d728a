"""A faster way to measure problems that consist of examples, and an estimate of what measuring costs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from proxdasa.problems.changed_problems import Changeable
from proxdasa.problems.perceptrons import Examples, Perceptrons

if TYPE_CHECKING:
    from proxdasa.problems.supervised import Supervised

LEAST = 6
"""Operations of a sample gradient for each parameter, at least: two forward and four backward."""


class Measured(Changeable):
    """The part of `Supervised` that is for measuring, on the CPU or another device."""

    @cached_property
    def observed(self) -> Perceptrons | None:
        """A faster way to evaluate and score points that all agents share, if there is one; equal up to rounding."""
        own = cast("Supervised", self)
        if own._device.type != "cpu":
            return None  # the faster way is made for the cache of a CPU core
        data, tests = own.examples, None
        if data.test_x is not None and data.test_y is not None:
            tests = Examples(own._cast(data.test_x), own._cast(data.test_y))
        training = Examples(own._x, own._y, own._rows, self._shared_weights())
        return Perceptrons.of(own._evaluating, training, tests, data.classes)

    @property
    def work(self) -> tuple[float, float]:
        """The operations of a sample gradient, and those of an evaluation with scores, for one agent and trial."""
        own = cast("Supervised", self)
        each, tests = self._operations(), own.examples.test_x
        # A forward pass is a third of a gradient; test examples are shared by all agents.
        examples = (len(own._rows) + (0 if tests is None else len(tests) / 3)) / own.agents
        return each * own.batch_size, each * examples

    def _shared_weights(self) -> Tensor:
        """The weights of all agents' examples in the mean of the F_i."""
        own = cast("Supervised", self)
        return torch.cat([own._batches.full_weights(i) for i in range(own.agents)]) / own.agents

    def _operations(self) -> float:
        """The floating-point operations of the gradient of one example, counted."""
        from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - few need it, and it takes a while

        own = cast("Supervised", self)
        copies, (inputs, targets) = own._evaluating, own._two
        x = torch.zeros(1, own.dim, dtype=own.dtype)
        r = copies.running.start(x.dtype).unsqueeze(0) if copies.running else None
        with FlopCounterMode(display=False) as counter:
            copies.losses_and_grads(x, inputs.unsqueeze(0), targets.unsqueeze(0), len(inputs), r=r)
        return max(float(counter.get_total_flops()) / len(inputs), LEAST * own.dim)
