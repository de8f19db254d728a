"""The laws: what holds for every method that satisfies the contract, whatever it computes."""

from proxdasa.testing.laws_of_agents import consensus, relabelling, single, trials
from proxdasa.testing.laws_of_claims import (
    alive,
    averaging,
    costs,
    heard,
    late,
    pausing,
    samples,
    slices,
    tracking,
)
from proxdasa.testing.laws_of_form import alone, contract, inputs, replay, shapes, stable, verbs
from proxdasa.testing.laws_of_results import (
    divergence,
    precision,
    processes,
    resuming,
    solution,
    sparsity,
    streams,
    together,
)

FOUNDATIONS = (contract, shapes, stable, verbs, inputs, replay)
"""Laws that the others depend on: the check ends at the first of these that is broken."""
LAWS = (
    alone, alive, heard, costs, samples, tracking, pausing, late, averaging, slices, relabelling, consensus, single,
    trials, solution, sparsity, together, processes, resuming, precision, streams, divergence,
)  # fmt: skip
