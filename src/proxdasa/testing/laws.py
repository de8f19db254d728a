"""The laws: what holds for every method that keeps the contract, whatever it computes."""

from proxdasa.testing.laws_of_claims import alive, averaging, costs, heard, samples, tracking
from proxdasa.testing.laws_of_company import consensus, relabelling, single, trials
from proxdasa.testing.laws_of_endings import (
    divergence,
    precision,
    processes,
    resuming,
    solution,
    sparsity,
    streams,
    together,
)
from proxdasa.testing.laws_of_form import alone, contract, inputs, replay, shapes, stable, verbs

FOUNDATIONS = (contract, shapes, stable, verbs, inputs, replay)
"""Those without which the others have nothing to be checked on: the first that is broken ends the check."""
LAWS = (
    alone, alive, heard, costs, samples, tracking, averaging, relabelling, consensus, single, trials,
    solution, sparsity, together, processes, resuming, precision, streams, divergence,
)  # fmt: skip
