"""The defaults of the experiments, which --help shows without building any of them."""

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
CAUSES = {
    "as-published": "as published",
    "as-published-start": "as published, but one start for all agents",
    "as-published-penalty": "as published, but λ instead of 8 λ",
    "as-published-data": "as published, but data dealt at random",
    "as-published-steps": "as published, but γ = 3, α = 0.3",
    "paper": "as the paper says",
    "paper-start": "as the paper says, but a different start for each agent",
    "paper-penalty": "as the paper says, but 8 λ instead of λ",
    "paper-data": "as the paper says, but data in blocks",
    "paper-steps": "as the paper says, but γ = 1/8, α = 3",
}
"""The runs that separate what the presets do differently, and what tables call them."""
LEFT = 20.0
"""The accuracy in per cent above which a trial on MNIST has left the plateau, where it is about 11."""

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
