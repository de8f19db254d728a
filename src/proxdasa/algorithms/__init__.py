"""Methods, one short file each: a state, how it starts, one step.

To add a method, write its file after the model of `prox_dasa.py` and list the class in `ALL`: the command line, the
configuration format and the shared tests find it there.
"""

from proxdasa.algorithms.prox_dasa import ProxDASA
from proxdasa.algorithms.prox_dasa_gt import ProxDASAGT

ALL = (ProxDASA, ProxDASAGT)

__all__ = ["ALL", "ProxDASA", "ProxDASAGT"]
