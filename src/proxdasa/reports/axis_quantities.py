"""What a row of the records tells: numbers to draw and tabulate, and their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from proxdasa.runs.records import Row


class Words(NamedTuple):
    """How a report speaks of a quantity."""

    name: str
    """In a table."""
    formula: str = ""
    """Beside the name in a figure."""
    log: bool = True
    """Whether its size matters rather than its difference."""

    @property
    def label(self) -> str:
        """Along the axis of a figure."""
        line = f"{self.name} {self.formula}".rstrip()
        return line if len(line) <= 35 else f"{self.name}\n{self.formula}"


WORDS = {
    "k": Words("iteration", "k"),
    "seconds": Words("simulation of all trials (s)"),
    "epochs": Words("epochs of samples"),
    "passes": Words("epochs incl. full gradients"),
    "rounds": Words("communication rounds"),
    "vectors": Words("vectors to each neighbour"),
    "loss": Words("loss", "F(x̄)"),
    "objective": Words("objective", "F(x̄) + Ψ(x̄)"),
    "stationarity": Words("stationarity at own γ", "‖G(x̄, ∇F(x̄), γ)‖²"),
    "consensus": Words("consensus error", "‖X − X̄‖²/n"),
    "table_stationarity": Words("stationarity at γ = 1", "‖G(x̄, ∇F, 1)‖² + ‖X − X̄‖²"),
    "density": Words("density", log=False),
    "accuracy": Words("test accuracy (%)", log=False),
    "lowest_accuracy": Words("worst agent's accuracy (%)", log=False),
    "test_loss": Words("test loss"),
    "dual_gap": Words("dual gap", "‖z̄ − ∇F(x̄)‖²"),
    "z_consensus": Words("disagreement on z", "‖Z − Z̄‖²/n"),
    "certificate": Words("certificate at own γ", "‖G(x̄, z̄, γ)‖²"),
    "per_agent": Words("agents' stationarity at own γ", "mean_i ‖G(x_i, ∇F(x_i), γ)‖² + L²‖x_i − x̄‖²"),
    "merit": Words("merit function at own γ", "W(x̄, z̄)"),
    "milliseconds": Words("ms per iteration"),
}

OWN_GAMMA = ("stationarity", "certificate", "per_agent", "merit")
"""Measures that each run takes at its own γ: they say nothing across runs that differ in it."""

COSTS = (
    "samples", "gradients", "full_gradients", "rounds", "vectors", "bytes",
    "seconds", "computation", "communication", "waiting", "epochs",
)  # fmt: skip
"""What a row tells beside measures."""

DERIVED: dict[str, Callable[[Row], float]] = {
    # A full gradient is one more pass over the agent's data; epochs count those of its samples.
    "passes": lambda row: row.get("epochs", math.nan) + row.get("full_gradients", 0),
    "accuracy": lambda row: 100 * row.get("accuracy", math.nan),
    "lowest_accuracy": lambda row: 100 * row.get("lowest_accuracy", math.nan),
    "milliseconds": lambda row: 1000 * row.get("seconds", math.nan) / row["k"] if row["k"] else math.nan,
}


def measures(rows: Iterable[Row]) -> list[str]:
    """What was measured in any of the rows, in the order of `WORDS`; what is not listed there comes last."""
    found = dict.fromkeys(name for row in rows for name, number in row.items() if isinstance(number, int | float))
    named = [name for name in found if name not in ("trial", "k", *COSTS)]
    order = list(WORDS)
    return sorted(named, key=lambda name: order.index(name) if name in order else len(order))


def words(name: str) -> Words:
    """The words for a quantity; one that is not listed goes by the name it has in the records."""
    return WORDS.get(name, Words(name))


def value(row: Row, name: str) -> float:
    """A quantity of a row, as recorded or made from what is; NaN if it is not there."""
    number: float = DERIVED[name](row) if name in DERIVED else row.get(name, math.nan)
    return number
