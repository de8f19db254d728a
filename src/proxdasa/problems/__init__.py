"""The smooth part of the objective: n local losses F_i with sample gradients, full gradients and losses.

A problem is a value: it holds its data, draws no random numbers and keeps no state between calls
(`proxdasa.contracts.Problem`).
"""

from proxdasa.modules import Model
from proxdasa.problems import models
from proxdasa.problems.copies import LoopWarning
from proxdasa.problems.losses import LOSSES, Loss, cross_entropy, squared_error
from proxdasa.problems.pruning import prune
from proxdasa.problems.quadratic import Quadratic
from proxdasa.problems.repeated import Repeated
from proxdasa.problems.single_index import IDENTITY, LINKS, SQUARE, TANH, Link, PhaseRetrieval, SingleIndex
from proxdasa.problems.supervised import Supervised

ALL = (PhaseRetrieval, SingleIndex, Quadratic, Supervised, Repeated)

__all__ = [
    "ALL",
    "IDENTITY",
    "LINKS",
    "LOSSES",
    "SQUARE",
    "TANH",
    "Link",
    "LoopWarning",
    "Loss",
    "Model",
    "PhaseRetrieval",
    "Quadratic",
    "Repeated",
    "SingleIndex",
    "Supervised",
    "cross_entropy",
    "models",
    "prune",
    "squared_error",
]
