"""The contracts between the packages of the library.

The whole design rests on one idea: what an agent does alone is row-wise, and only mixing crosses rows. The state is
``[trials, agents, d]``: the last axis is the vector, the leading axes are a batch. An algorithm acts on rows through
the methods of `Agents`. It knows neither how many rows there are nor where the others are nor how messages travel, so
it is written once and runs on every engine.
"""

from typing import TYPE_CHECKING

from proxdasa.lazy_names import lazy_names

if TYPE_CHECKING:
    from proxdasa.contracts.compression import Compression, Compressor, Part
    from proxdasa.contracts.engine import (
        Agents,
        Block,
        Engine,
        Host,
        NonFiniteError,
        NotCompilableError,
        Observer,
        PeerError,
        Question,
        Sliced,
        Step,
        unpack,
    )
    from proxdasa.contracts.method import Algorithm, Averaging, Facts, Tracking, parameters_of, replace_unchecked
    from proxdasa.contracts.parts import (
        Evaluation,
        Mixing,
        Network,
        Observed,
        PartialGrad,
        Peers,
        Problem,
        Regularizer,
        Running,
        Solved,
        is_separable,
        observed_of,
        partial_grad_of,
        running_of,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Agents",
    "Algorithm",
    "Averaging",
    "Block",
    "Compression",
    "Compressor",
    "Engine",
    "Evaluation",
    "Facts",
    "Host",
    "Mixing",
    "Network",
    "NonFiniteError",
    "NotCompilableError",
    "Observed",
    "Observer",
    "Part",
    "PartialGrad",
    "PeerError",
    "Peers",
    "Problem",
    "Question",
    "Regularizer",
    "Running",
    "Sliced",
    "Solved",
    "Step",
    "Tracking",
    "is_separable",
    "observed_of",
    "parameters_of",
    "partial_grad_of",
    "replace_unchecked",
    "running_of",
    "unpack",
]
