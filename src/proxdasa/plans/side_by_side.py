"""All weightings of one graph, for a comparison."""

from __future__ import annotations

import numpy as np

from proxdasa.networks import WEIGHTINGS, Network, fastest, from_graph

MOST_AGENTS = 50
"""On larger graphs the fastest weights take too long to compute for a comparison."""


def weightings(network: Network) -> tuple[dict[str, Network], dict[str, str]]:
    """The graph of a network with each of `networks.WEIGHTINGS`, and why some of them cannot be used.

    If the network's own weights are none of these, they come first. A graph that changes has only its own weights.

    Examples:
        >>> made, refused = plans.weightings(networks.path(4))
        >>> {name: round(network.rho, 3) for name, network in made.items()}
        {'metropolis': 0.805, 'max_degree': 0.805, 'best_constant': 0.707, 'fastest': 0.707}
    """
    if network.rounds:
        return {"its own": network}, {}
    made: dict[str, Network] = {}
    refused: dict[str, str] = {}
    for weights in WEIGHTINGS:
        if weights is fastest and network.n > MOST_AGENTS:
            refused[weights.__name__] = f"left out above {MOST_AGENTS} agents, where it takes minutes"
            continue
        try:
            made[weights.__name__] = from_graph(network.graph, weights=weights)
        except ModuleNotFoundError as error:
            refused[weights.__name__] = str(error)
        except ValueError as error:
            refused[weights.__name__] = str(error).removeprefix("from_graph: ").partition(":")[0]
    known = any(np.allclose((other.W - network.W).data, 0, atol=1e-9) for other in made.values())
    return (made if known else {"its own": network} | made), refused
