"""Which problems have gradients that compiling speeds up."""

from __future__ import annotations

from torch import nn

from proxdasa.contracts import Problem
from proxdasa.problems.quadratic import Quadratic
from proxdasa.problems.single_index import SingleIndex
from proxdasa.problems.stacked import ELEMENTWISE
from proxdasa.problems.supervised import Supervised


def fuses(problem: Problem) -> bool:
    """Whether most of a gradient's time is spent between small operations, which a compiler removes.

    This holds for gradients in closed form and for perceptrons. Convolutions spend most of their time in products that
    compiling does not speed up, and nothing is known about a user's own problem.
    """
    if isinstance(problem, Supervised):
        layers = (nn.Linear, nn.Flatten, *ELEMENTWISE)
        return problem.path == "chain" and all(type(layer) in layers for layer in problem._module.children())
    return isinstance(problem, SingleIndex | Quadratic)
