"""Regularisers: the convex term Ψ, the same for all agents.

A regulariser has two methods: `value` returns Ψ(x), and `prox` the minimiser over y of

    ‖y − x‖²/(2γ) + Ψ(y).

Both act on the last axis and are batched over the leading ones, so rows do not affect each other: a NaN stays in its
own row, and a γ per trial is a tensor ``[trials, 1, 1]``. Results have the dtype of x.

Penalties (`norms`, `matrices`) shrink; `constraints` project, with Ψ = 0 inside and +∞ outside;
`combinations` scale regularisers or apply them side by side, and `of_models` make such combinations for the parameters
of a network. The weight of a penalty may differ by trial (`penalty_weights`). To add one, write a frozen dataclass with
these two methods and list it in `ALL`; a line in the tests then checks it against the laws that all regularisers obey.

Reference: N. Parikh and S. Boyd, Proximal algorithms, Foundations and Trends in Optimization 1(3), 2014.
"""

from proxdasa.regularizers.combinations import Blocks, Scaled
from proxdasa.regularizers.constraints import Box, L1Ball, L2Ball, NonNegative, Simplex
from proxdasa.regularizers.matrices import NuclearNorm, RowL2
from proxdasa.regularizers.norms import L1, ElasticNet, GroupL2, SquaredL2, Zero
from proxdasa.regularizers.of_models import by_parameter, group_neurons

ALL = (
    Zero,
    L1,
    SquaredL2,
    ElasticNet,
    GroupL2,
    NonNegative,
    Box,
    L1Ball,
    L2Ball,
    Simplex,
    NuclearNorm,
    RowL2,
    Scaled,
    Blocks,
)
"""Every regulariser, to be looked up by name."""

__all__ = [
    "ALL",
    "L1",
    "Blocks",
    "Box",
    "ElasticNet",
    "GroupL2",
    "L1Ball",
    "L2Ball",
    "NonNegative",
    "NuclearNorm",
    "RowL2",
    "Scaled",
    "Simplex",
    "SquaredL2",
    "Zero",
    "by_parameter",
    "group_neurons",
]
