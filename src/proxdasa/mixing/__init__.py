"""Mixing protocols: polynomials in W, written in terms of one operation, "apply W".

They depend neither on the graph nor on where rows are stored. `Gossip` spends m rounds on W^m,
`Chebyshev` on the polynomial of degree m that contracts disagreement fastest.
"""

from proxdasa.mixing.chebyshev import Chebyshev
from proxdasa.mixing.gossip import Gossip

ALL = (Gossip, Chebyshev)

__all__ = ["ALL", "Chebyshev", "Gossip"]
