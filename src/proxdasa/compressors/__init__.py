"""Compressors: small messages. C(x) has fewer bytes than x, and is closer to x than zero is,

    E‖C(x) − x‖² ≤ (1 − δ) ‖x‖²,    0 < δ ≤ 1,

so that sending C of what is still missing, again and again, sends everything in the end (`CompressedGossip`).

A compressor acts on each row alone. It reduces a row to a few parts (indices and values, levels and a norm) and
restores C(x) from them; on the way between processes the parts are packed into bytes. The random ones take named random
words, as samples do, so that C(x) does not depend on the engine or on the number of processes.

Compressors that look at the whole row never restore a row that is not finite as a finite one. TopK sends values that
are not finite first; RandK sends only those that it draws.
"""

from proxdasa.compressors.casts import BFloat16, Float16
from proxdasa.compressors.quantizers import QSGD, SignNorm
from proxdasa.compressors.selections import RandK, TopK

ALL = (TopK, RandK, QSGD, SignNorm, Float16, BFloat16)

__all__ = ["ALL", "QSGD", "BFloat16", "Float16", "RandK", "SignNorm", "TopK"]
