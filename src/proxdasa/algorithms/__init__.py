"""The methods: one short file for each, or for a family with a common scheme, with its state, its start and one step.

To add a method, write a file like `prox_dasa.py` and list the class in `ALL`, where the command line, the configuration
format and the shared tests find it.
"""

from proxdasa.algorithms.cdprox_sgt import CDProxSGT
from proxdasa.algorithms.d2 import D2
from proxdasa.algorithms.deepstorm import DeepStormV1, DeepStormV1SVRG, DeepStormV2
from proxdasa.algorithms.dprox_sgt import DProxSGT
from proxdasa.algorithms.dpsgd import DPSGD
from proxdasa.algorithms.next import NEXT
from proxdasa.algorithms.pg_extra import PGExtra
from proxdasa.algorithms.prox_dasa import ProxDASA
from proxdasa.algorithms.prox_dasa_gt import ProxDASAGT
from proxdasa.algorithms.prox_gt import ProxGTSA, ProxGTSRE, ProxGTSRO
from proxdasa.algorithms.sppdm import SPPDM

ALL = (
    ProxDASA, ProxDASAGT, DPSGD, DProxSGT, D2, ProxGTSA, ProxGTSRO, ProxGTSRE,
    DeepStormV2, DeepStormV1, DeepStormV1SVRG, SPPDM,
    PGExtra, NEXT, CDProxSGT,
)  # fmt: skip

__all__ = [
    "ALL",
    "D2",
    "DPSGD",
    "NEXT",
    "SPPDM",
    "CDProxSGT",
    "DProxSGT",
    "DeepStormV1",
    "DeepStormV1SVRG",
    "DeepStormV2",
    "PGExtra",
    "ProxDASA",
    "ProxDASAGT",
    "ProxGTSA",
    "ProxGTSRE",
    "ProxGTSRO",
]
