"""Plans as people read them: tables, the notes below them, and files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from proxdasa.networks import Network
from proxdasa.networks.network import count_of
from proxdasa.networks.spectrum import DENSE_LIMIT
from proxdasa.plans import MixingPlan, Plan
from proxdasa.reports.plan_figures import Drawing, draw_graphs
from proxdasa.reports.table_files import UNKNOWN, Cell, Sheet, write_text

RATES = ("predicted", "measured")
"""Columns of numbers between 0 and 1, some of them very close to 1."""

GUARANTEES = (
    "α at most, K_0, K_T and γ = 1/L are guarantees of the theory, not advice:",
    "  with them the proofs hold, but steps that are larger by orders of magnitude",
    "  usually converge, and sooner; proxdasa tune FILE --quick finds such steps",
)
"""What the step sizes of a plan are, and are not."""


class Planned(NamedTuple):
    """A network, the name of its weights if there are several to choose from, and its plan."""

    network: Network
    weights: str
    plan: Plan


def network_lines(planned: Planned) -> list[str]:
    """The size of a network, and how well it is connected."""
    network, _, plan = planned
    low, mean, high = plan.degrees
    neighbours = f"{high}" if low == high else f"{low} to {high}, on average {mean:.3g}"
    size = f"{count_of(plan.n, 'agent')}, {count_of(plan.edges, 'edge')}"
    lines = [f"{network.label}: {size}, neighbours of an agent: {neighbours}"]
    if plan.period > 1:
        lines += [
            f"the graph changes, and repeats itself after {count_of(plan.period, 'round')}",
            f"messages that an agent sends in a round: {network.messages_per_round:.3g} on average",
        ]
    rates = ", on average over these rounds" if plan.period > 1 else ""
    return [
        *lines,
        f"ρ = {_rate(plan.rho)}, spectral gap 1 − ρ = {_number(plan.gap)}{rates}",
        f"messages of an agent until gossip leaves a tenth of a disagreement: {_number(plan.messages_to_agree)}",
    ]


def contraction_sheet(plan: Plan) -> Sheet:
    """How much of a disagreement each way to mix leaves."""
    columns = {"rule": "rounds m", "m": "m", "predicted": "predicted", "measured": "measured", "varrho": "ϱ(m)"}
    how = "at the eigenvalues of W, the worst case" if plan.n <= DENSE_LIMIT else "on a random disagreement"
    notes = (
        [
            "measured: the product of m consecutive matrices, the worst of an iteration",
            "predicted and ϱ(m): the paper's theory is for a graph that does not change",
        ]
        if plan.period > 1
        else [
            "predicted: ρ^m (Lemma 3); Chebyshev 2(1 − √(1 − ρ))^m (Lemma 1)",
            f"measured: the protocol {how}",
            "ϱ(m) = (1 + ρ²ᵐ) ρ²ᵐ / (1 − ρ²ᵐ)² (Theorem 1); Chebyshev: 1/T_m(1/ρ) for ρ^m",
        ]
    )
    return Sheet(columns, [[f"{row.mixing}, {row.rule}", *_cells(row, columns)] for row in plan.mixings], notes)


def consequence_sheet(plan: Plan) -> Sheet:
    """What each way to mix means for step sizes, iterations and messages."""
    columns = {
        "mixing": "mixing",
        "m": "m",
        "alpha_limit": "α at most",
        "K_0": "K_0",
        "K_T": "K_T",
        "vectors": "vectors",
        "megabytes": "MB",
    }
    return Sheet(columns, [[row.mixing, *_cells(row, columns)] for row in plan.mixings], _theory_notes(plan))


def _cells(row: MixingPlan, columns: Mapping[str, str]) -> list[Cell]:
    """The cells of a row after its first."""
    found = {column: getattr(row, column) for column in list(columns)[1:]}
    return [_rate(value) if column in RATES else _number(value) for column, value in found.items()]


def _theory_notes(plan: Plan) -> list[str]:
    size = "MB need --dim" if plan.d is None else f"MB that an agent sends, d = {plan.d:,}"
    when = "in an iteration" if plan.every == 1 else f"in an iteration that sends, one of {plan.every:,}"
    notes = [f"{when}: vectors to each neighbour; {size}"]
    if plan.alpha is not None:
        notes.append(f"α = √(n/K) = {plan.alpha:.4g} for K = {plan.K:,} (Theorem 1)")
    if plan.every > 1:
        return [*notes, "α and K are known if every iteration sends; the theory does not cover local steps"]
    if plan.period > 1:
        return [*notes, "α, K_0, K_T: the paper's theory is for a graph that does not change"]
    if plan.mixings[0].condition is None:
        return [*notes, f"α and K are known for the paper's own methods; its theory does not cover {plan.method}"]
    by_condition: dict[str | None, list[int]] = {}
    for row in plan.mixings:
        by_condition.setdefault(row.condition, []).append(row.m)
    for condition, rounds in by_condition.items():
        which = "" if len(by_condition) == 1 else " for m = " + ", ".join(dict.fromkeys(map(str, rounds)))
        notes.append(f"α at most{which}: by {condition}")
    if plan.L is None:
        notes.append("  without L only some conditions are known; --lipschitz gives it")
    else:
        estimated = " (estimate: a lower bound, α may have to be less)" if plan.L_estimated else ""
        notes.append(f"  with γ = {plan.gamma:.4g}, L = {plan.L:.4g}{estimated}")
    return [
        *notes,
        "K_0 = n/α²: the number of iterations from which √(n/K) is small enough",
        "K_T = max{K_0, n³ϱ(m)}, the transient time (Corollary), an order of magnitude:",
        "  the paper leaves its constants open, or they are far from tight",
        *GUARANTEES,
    ]


def comparison_sheet(planned: Sequence[Planned]) -> Sheet:
    """Graphs and weightings side by side; a graph is named in its first row, its edges are counted in the second.

    Where graphs change, rules and times of the paper are left out, and messages compare them with the others.
    """
    columns = {"graph": "graph", "weights": "weights", "rho": "ρ", "messages": "1/10"}
    columns |= {"rounds": "m", "K_T": "K_T", "megabytes": "MB"}
    rows: list[list[Cell]] = []
    for network, group in itertools.groupby(planned, key=attrgetter("network")):
        names = itertools.chain([network.label, count_of(len(network.edges), "edge")], itertools.repeat(""))
        for _, weights, plan in group:
            ways = {row.rule: row for row in plan.mixings}
            gossip, chebyshev = ways.get("⌈1/(1 − ρ)⌉"), ways.get("⌈1/√(1 − ρ)⌉")
            rounds = f"{_number(gossip.m)}, {_number(chebyshev.m)}" if gossip and chebyshev else UNKNOWN
            agree, K_T = _number(plan.messages_to_agree), _number(plan.mixings[0].K_T)
            sent = _number((chebyshev or plan.mixings[0]).megabytes)
            rows.append([next(names), weights, _rate(plan.rho), agree, rounds, K_T, sent])
    changes = any(plan.period > 1 for _, _, plan in planned)
    notes = [
        "1/10: messages of an agent until gossip leaves a tenth of a disagreement",
        "m: rounds ⌈1/(1 − ρ)⌉ of gossip, ⌈1/√(1 − ρ)⌉ of Chebyshev mixing",
        "K_T: transient time with one round (Corollary), an order of magnitude",
        "MB that an agent sends in an iteration of Chebyshev mixing"
        + (f", one of {planned[0].plan.every:,}" if planned[0].plan.every > 1 else "")
        + "; need --dim" * (planned[0].plan.d is None),
        *(["graphs that change: MB for one round; the paper's m and K_T are for one W"] if changes else []),
    ]
    return Sheet(columns, rows, notes)


def write_plans(folder: Path, planned: Sequence[Planned]) -> list[Path]:
    """Write every number of the plans as JSON and CSV, and a drawing of each graph."""
    described = [{"weights": name, **plan.describe()} if name else plan.describe() for _, name, plan in planned]
    facts = [field.name for field in fields(Plan) if field.name not in ("mixings", "degrees")]
    names = [field.name for field in fields(MixingPlan)]
    rows = [
        [weights, *(getattr(plan, fact) for fact in facts), *(getattr(row, name) for name in names)]
        for _, weights, plan in planned
        for row in plan.mixings
    ]
    columns = {column: column for column in ("weights", *facts, *names)}
    sheet = Sheet(columns, [["" if cell is None else cell for cell in row] for row in rows])
    return [
        write_text(folder / "plan.json", json.dumps(described, indent=2, ensure_ascii=False) + "\n"),
        sheet.write_csv(folder / "plan.csv"),
        draw_graphs(_drawings(planned), folder / "graphs.png"),
    ]


def _drawings(planned: Sequence[Planned]) -> list[Drawing]:
    """Each graph once, with ρ for each of its weightings below it."""
    rates: dict[Network, list[str]] = {}
    for network, name, plan in planned:
        rates.setdefault(network, []).append(f"{_rate(plan.rho)} {name}".strip())
    return [
        Drawing(network.label, "ρ = " + ",\n".join(own), network.n, network.edges, network.recipe)
        for network, own in rates.items()
    ]


def _rate(value: float | None) -> str:
    """A number up to one with four decimals; very close to one, by the distance from it."""
    if value is None:
        return UNKNOWN
    return f"1-{1 - value:.2e}" if 0.9999 < value < 1 else f"{value:.4f}"


def _number(value: float | None) -> str:
    """Four significant digits, but all digits of a whole number below a million."""
    if value is None:
        return UNKNOWN
    if value >= 10**6:
        return f"{value:.2g}"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.4g}"
