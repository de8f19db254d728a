"""Mixing protocols: polynomials in W, written with the one verb "apply W".

They know neither the graph nor where rows live. `Gossip` spends m rounds on W^m, `Chebyshev` on the polynomial of
degree m that contracts disagreement fastest.
"""

from proxdasa.mixing.chebyshev import Chebyshev
from proxdasa.mixing.gossip import Gossip

ALL = (Gossip, Chebyshev)

__all__ = ["ALL", "Chebyshev", "Gossip"]
