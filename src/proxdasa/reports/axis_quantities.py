"""The quantities in a row of the records: numbers to draw and tabulate, and their names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from proxdasa.runs.records import Row


class Quantity(NamedTuple):
    """How reports name a quantity."""

    name: str
    """The name in a table."""
    formula: str = ""
    """The formula after the name in a figure."""
    log: bool = True
    """Whether to draw it on a log scale."""

    @property
    def label(self) -> str:
        """The label of an axis in a figure."""
        line = f"{self.name} {self.formula}".rstrip()
        return line if len(line) <= 35 else f"{self.name}\n{self.formula}"


QUANTITIES = {
    "k": Quantity("iteration", "k"),
    "seconds": Quantity("simulation of all trials (s)"),
    "epochs": Quantity("epochs of samples"),
    "passes": Quantity("epochs incl. full gradients"),
    "samples": Quantity("samples of an agent"),
    "gradients": Quantity("gradients of an agent"),
    "rounds": Quantity("communication rounds"),
    "vectors": Quantity("vectors to each neighbour"),
    "bytes": Quantity("bytes that an agent sends"),
    "loss": Quantity("loss", "F(x̄)"),
    "objective": Quantity("objective", "F(x̄) + Ψ(x̄)"),
    "stationarity": Quantity("stationarity at own γ", "‖G(x̄, ∇F(x̄), γ)‖²"),
    "consensus": Quantity("consensus error", "‖X − X̄‖²/n"),
    "table_stationarity": Quantity("stationarity at γ = 1", "‖G(x̄, ∇F, 1)‖² + ‖X − X̄‖²"),
    "density": Quantity("density of x̄", log=False),
    "solution_density": Quantity("density of the solution", log=False),
    "accuracy": Quantity("test accuracy (%)", log=False),
    "lowest_accuracy": Quantity("worst agent's accuracy (%)", log=False),
    "test_loss": Quantity("test loss"),
    "dual_gap": Quantity("dual gap", "‖z̄ − ∇F(x̄)‖²"),
    "z_consensus": Quantity("disagreement on z", "‖Z − Z̄‖²/n"),
    "certificate": Quantity("certificate at own γ", "‖G(x̄, z̄, γ)‖²"),
    "per_agent": Quantity("agents' stationarity at own γ", "mean_i ‖G(x_i, ∇F(x_i), γ)‖² + L²‖x_i − x̄‖²"),
    "merit": Quantity("merit function at own γ", "W(x̄, z̄)"),
    "milliseconds": Quantity("ms per iteration"),
    "mean_loss": Quantity("mean of the sites' losses", "mean_i F_i(x_i)"),
    "mean_over": Quantity("sites in the means", log=False),
    "missed": Quantity("rounds of links missed", log=False),
    "epoch": Quantity("times trackers were reset", log=False),
}

AXES = ("k", "samples", "gradients", "epochs", "passes", "rounds", "vectors", "bytes", "seconds")
"""What measures are drawn against."""

OWN_GAMMA = ("stationarity", "certificate", "per_agent", "merit")
"""Measures that each run takes at its own γ: they cannot compare runs of different γ."""

COSTS = (
    "samples", "gradients", "full_gradients", "rounds", "vectors", "bytes", "wire_bytes",
    "seconds", "computation", "communication", "waiting", "epochs",
)  # fmt: skip
"""The quantities of a row that are not measures."""


def _gradients(row: Row) -> float:
    """Sample gradients, with a full gradient counted as one for each sample of a pass; NaN before the first sample."""
    full, samples = row.get("full_gradients", 0), row.get("samples", 0)
    if not full:
        return float(row.get("gradients", math.nan))
    return float(row["gradients"] + full * samples / row["epochs"]) if samples and row.get("epochs") else math.nan


DERIVED: dict[str, Callable[[Row], float]] = {
    # A full gradient is one more pass over the agent's data; epochs count those of its samples.
    "passes": lambda row: row.get("epochs", math.nan) + row.get("full_gradients", 0),
    "gradients": _gradients,
    "accuracy": lambda row: 100 * row.get("accuracy", math.nan),
    "lowest_accuracy": lambda row: 100 * row.get("lowest_accuracy", math.nan),
    "milliseconds": lambda row: 1000 * row.get("seconds", math.nan) / row["k"] if row["k"] else math.nan,
}


def measures(rows: Iterable[Row]) -> list[str]:
    """The measures in any of the rows, in the order of `QUANTITIES`; those not listed there come last."""
    found = dict.fromkeys(name for row in rows for name, number in row.items() if isinstance(number, int | float))
    named = [name for name in found if name not in ("trial", "k", *COSTS)]
    order = list(QUANTITIES)
    return sorted(named, key=lambda name: order.index(name) if name in order else len(order))


def quantity(name: str) -> Quantity:
    """How reports name a quantity; one that is not listed goes by its name in the records."""
    return QUANTITIES.get(name, Quantity(name))


def cost_text(amount: float, axis: str) -> str:
    """An amount of a cost as text, such as "1,000 communication rounds"."""
    names = {"k": "iterations", "seconds": "seconds of the simulation of all trials"}
    name = names.get(axis, quantity(axis).name)
    if amount == 1:
        name = re.sub(r"s\b", "", name, count=1)
    # The fractions of means over trials mean nothing next to a large number.
    return f"{amount:,.0f} {name}" if amount >= 1_000 else f"{amount:.4g} {name}"


def value(row: Row, name: str) -> float:
    """A quantity of a row, as recorded or derived from others; NaN if it is missing."""
    number: float = DERIVED[name](row) if name in DERIVED else row.get(name, math.nan)
    return number
