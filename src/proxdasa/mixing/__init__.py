"""Mixing protocols: polynomials in W, written in terms of one operation, "apply W".

They depend neither on the graph nor on where rows are stored. `Gossip` spends m rounds on W^m,
`Chebyshev` on the polynomial of degree m that contracts disagreement fastest; `Every` mixes in some iterations only,
and `CompressedGossip` sends small messages.
"""

from proxdasa.mixing.chebyshev import Chebyshev
from proxdasa.mixing.compressed_gossip import CompressedGossip
from proxdasa.mixing.every import Every
from proxdasa.mixing.gossip import Gossip

ALL = (Gossip, Chebyshev, Every, CompressedGossip)

__all__ = ["ALL", "Chebyshev", "CompressedGossip", "Every", "Gossip"]
