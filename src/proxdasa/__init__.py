"""proxdasa: decentralised composite optimisation.

n agents on a connected graph, each with its own data, jointly minimise (1/n) Σ F_i(x) + Ψ(x), where each F_i is smooth,
possibly non-convex and accessed through one-sample stochastic gradients, and Ψ is convex and possibly non-smooth. There
is no server and no pooled data; agents communicate only with their neighbours.
"""

from typing import TYPE_CHECKING

from proxdasa.lazy_names import lazy_names

if TYPE_CHECKING:
    from proxdasa import (
        compressors,
        conditions,
        data,
        metrics,
        networks,
        optim,
        plans,
        problems,
        regularizers,
        schedules,
        testing,
    )
    from proxdasa.algorithms import (
        D2,
        DPSGD,
        NEXT,
        SPPDM,
        CDProxSGT,
        DeepStormV1,
        DeepStormV1SVRG,
        DeepStormV2,
        DProxSGT,
        PGExtra,
        ProxDASA,
        ProxDASAGT,
        ProxGTSA,
        ProxGTSRE,
        ProxGTSRO,
    )
    from proxdasa.mixing import Chebyshev, CompressedGossip, Every, Gossip
    from proxdasa.plans import plan
    from proxdasa.problems import prune
    from proxdasa.reports.comparison import compare
    from proxdasa.runs.compiling import CompileWarning
    from proxdasa.runs.divergence import DivergenceWarning
    from proxdasa.runs.results import Result, load
    from proxdasa.runs.setup import run
    from proxdasa.runs.stopping import Stationary
    from proxdasa.schedules import per_trial
    from proxdasa.tuning import tune
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "D2",
    "DPSGD",
    "NEXT",
    "SPPDM",
    "CDProxSGT",
    "Chebyshev",
    "CompileWarning",
    "CompressedGossip",
    "DProxSGT",
    "DeepStormV1",
    "DeepStormV1SVRG",
    "DeepStormV2",
    "DivergenceWarning",
    "Every",
    "Gossip",
    "PGExtra",
    "ProxDASA",
    "ProxDASAGT",
    "ProxGTSA",
    "ProxGTSRE",
    "ProxGTSRO",
    "Result",
    "Stationary",
    "compare",
    "compressors",
    "conditions",
    "data",
    "load",
    "metrics",
    "networks",
    "optim",
    "per_trial",
    "plan",
    "plans",
    "problems",
    "prune",
    "regularizers",
    "run",
    "schedules",
    "testing",
    "tune",
]
