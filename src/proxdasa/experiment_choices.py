"""What the experiments are run for unless you choose otherwise; --help shows it, and need not build any of them."""

from typing import Literal

RING_SIZES = (5, 10, 20, 40)
"""The numbers of agents of the linear speed-up."""
ROUNDS = (1_000, 4_000, 16_000, 64_000)
"""The numbers of communication rounds for which graphs are compared."""
BETAS = (100.0, 1.0, 0.1, 0.0)
"""Levels of label skew, from agents with similar data to one class per agent."""
LOSSES = (0.1, 0.3, 0.5)
"""Probabilities that a link is down in a round."""
SHARES_OUT = (0.1, 0.3)
"""Shares of the time that an agent is out."""
RATE_AGENTS = (4, 8, 16, 32)
"""The numbers of agents for which rates are measured."""
RATE_LONGEST = 16_384
"""The largest number of iterations for which rates are measured."""

Preset = Literal["paper", "as-published"]
NAMES = {
    "sppdm": "SPPDM",
    "prox-gt-sr-e": "ProxGT-SR-E",
    "deepstorm-v2": "DEEPSTORM v2",
    "prox-dasa": "Prox-DASA",
    "prox-dasa-gt": "Prox-DASA-GT",
    "prox-dasa-gt-script": "Prox-DASA-GT's script",
}
"""The methods on real data, and their names in tables. The script of Prox-DASA-GT averages v into z instead of the
tracker, so it is Prox-DASA with α_k = α min{√(n/k), 1}, and sends a third vector that nobody reads. Here it runs as
Prox-DASA, with two vectors."""
