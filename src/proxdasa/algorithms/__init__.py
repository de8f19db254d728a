"""Methods, one short file each, or one for a family that shares its frame: a state, how it starts, one step.

To add a method, write its file after the model of `prox_dasa.py` and list the class in `ALL`: the command line, the
configuration format and the shared tests find it there.
"""

from proxdasa.algorithms.d2 import D2
from proxdasa.algorithms.deepstorm import DeepStormV1, DeepStormV1SVRG, DeepStormV2
from proxdasa.algorithms.dprox_sgt import DProxSGT
from proxdasa.algorithms.dpsgd import DPSGD
from proxdasa.algorithms.prox_dasa import ProxDASA
from proxdasa.algorithms.prox_dasa_gt import ProxDASAGT
from proxdasa.algorithms.prox_gt import ProxGTSA, ProxGTSRE, ProxGTSRO
from proxdasa.algorithms.sppdm import SPPDM

ALL = (
    ProxDASA, ProxDASAGT, DPSGD, DProxSGT, D2, ProxGTSA, ProxGTSRO, ProxGTSRE,
    DeepStormV2, DeepStormV1, DeepStormV1SVRG, SPPDM,
)  # fmt: skip

__all__ = [
    "ALL",
    "D2",
    "DPSGD",
    "SPPDM",
    "DProxSGT",
    "DeepStormV1",
    "DeepStormV1SVRG",
    "DeepStormV2",
    "ProxDASA",
    "ProxDASAGT",
    "ProxGTSA",
    "ProxGTSRE",
    "ProxGTSRO",
]
