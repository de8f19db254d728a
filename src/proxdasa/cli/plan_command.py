"""The command plan: what a graph costs, before anything runs on it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from proxdasa import configs, plans, reports
from proxdasa.cli.display import input_errors, output_option, say, show_table
from proxdasa.configs import network_expressions
from proxdasa.configs.objects import ROOMS
from proxdasa.networks import Network
from proxdasa.networks.network import count_of
from proxdasa.networks.spectrum import DENSE_LIMIT
from proxdasa.plans import MixingPlan, Plan
from proxdasa.reports.plan_figures import Drawing, draw_graphs
from proxdasa.runs.setup import Setup

METHODS = {method.__name__: method for method in ROOMS["algorithm"]}
RUNS = (".toml", ".json")
"""How the name of a file ends that describes a run."""
UNKNOWN = "—"
RATES = ("predicted", "measured")

Planned = tuple[Network, str, Plan]
"""A network, the name of its weights, and its plan."""


def plan(
    graph: Annotated[
        str | None,
        typer.Argument(
            help="A name with --agents, such as [b]ring[/]; a call, such as [b]'torus(4, 5)'[/]; a file with a line "
            "[b]i j[/] or [b]i j weight[/] for each edge; W as .csv or .npy; or the .toml of a run."
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Several graphs with all weightings, such as [b]ring,torus,complete[/]."),
    ] = None,
    agents: Annotated[int | None, typer.Option("--agents", "-n", min=1, help="n, for graphs given by name.")] = None,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="The method; default: that of the run, or ProxDASA.")
    ] = None,
    iterations: Annotated[int | None, typer.Option("--iterations", "-K", min=1, help="K, for α = √(n/K).")] = None,
    dim: Annotated[int | None, typer.Option("--dim", "-d", min=1, help="d, for the size of messages.")] = None,
    gamma: Annotated[float | None, typer.Option(help="γ; default: that of the run, or 1/L.")] = None,
    lipschitz: Annotated[
        str | None,
        typer.Option(
            "--lipschitz",
            "-L",
            metavar="NUMBER",
            help="L, for all conditions on α; [b]estimate[/] takes 21 full gradients of a run's problem.",
        ),
    ] = None,
    output: Annotated[Path | None, output_option("Folder for plan.json, plan.csv and graphs.png.")] = None,
) -> None:
    """Rounds, step sizes, transient time and messages that follow from a graph, by the paper's rules.

    For example [b]proxdasa plan ring -n 16 -K 10000 -d 8066[/], or [b]proxdasa plan --compare ring,torus -n 16[/].
    """
    with input_errors():
        setup = configs.read(Path(graph), try_step=False) if graph and graph.endswith(RUNS) else None
        settings: dict[str, Any] = plans.settings(setup) if setup else {}
        given = {"method": _method(method), "K": iterations, "d": dim, "gamma": gamma, **_lipschitz(lipschitz, setup)}
        settings |= {name: value for name, value in given.items() if value is not None}
        networks = [setup.network if setup else network_expressions.graph(graph, agents)] if graph else []
        networks += [network_expressions.graph(text, agents) for text in network_expressions.split(compare or "")]
        for network in networks:
            if agents not in (None, network.n):
                raise ValueError(f"{network.label} has {count_of(network.n, 'agent')}, but --agents is {agents}")
        if not networks:
            raise ValueError("which graph? for example proxdasa plan ring --agents 16; proxdasa plan --help tells more")
        planned = _compare(networks, settings) if compare else _show(networks[0], settings)
        if setup and (broken := plans.departure(setup)):
            say(f"note: {broken}")
        if output is not None:
            _write(output, planned)


def _method(name: str | None) -> Any:
    if name is not None and name not in METHODS:
        raise ValueError(f"--method: there is no method {name!r}; accepted: {', '.join(METHODS)}")
    return METHODS.get(name or "")


def _lipschitz(given: str | None, setup: Setup | None) -> dict[str, Any]:
    if given is None:
        return {}
    if given == "estimate":
        if setup is None:
            raise ValueError("--lipschitz estimate needs a problem: give the .toml of a run in place of the graph")
        return {"problem": setup.problem}
    try:
        return {"L": float(given)}
    except ValueError:
        raise ValueError(f"--lipschitz takes a number, or estimate; got {given!r}") from None


def _show(network: Network, settings: Mapping[str, Any]) -> list[Planned]:
    """One network: how its mixing contracts, and what follows for the method."""
    made = plans.plan(network, **settings)
    low, mean, high = made.degrees
    neighbours = f"{high}" if low == high else f"{low} to {high}, on average {mean:.3g}"
    size = f"{count_of(made.n, 'agent')}, {count_of(made.edges, 'edge')}"
    say(f"{network.label}: {size}, neighbours of an agent: {neighbours}")
    say(f"ρ = {_rate(made.rho)}, spectral gap 1 − ρ = {_number(made.gap)}")
    columns = {"m": "m", "predicted": "predicted", "measured": "measured", "varrho": "ϱ(m)"}
    show_table(_table("what mixing leaves of a disagreement", "rounds m", columns, made.mixings))
    for note in _contraction_notes(made):
        say(f"  {note}")
    columns = {
        "m": "m",
        "alpha_limit": "α at most",
        "K_0": "K_0",
        "K_T": "K_T",
        "vectors": "vectors",
        "megabytes": "MB",
    }
    show_table(_table(f"what follows for {made.method}", "mixing", columns, made.mixings))
    for note in _theory_notes(made):
        say(f"  {note}")
    return [(network, "", made)]


def _table(title: str, first: str, columns: Mapping[str, str], rows: Sequence[MixingPlan]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for row in rows:
        name = f"{row.mixing}, {row.rule}" if first == "rounds m" else row.mixing
        cells = {column: getattr(row, column) for column in columns}
        table.add_row(name, *(_rate(cell) if column in RATES else _number(cell) for column, cell in cells.items()))
    return table


def _contraction_notes(made: Plan) -> list[str]:
    how = "at the eigenvalues of W, the worst case" if made.n <= DENSE_LIMIT else "on a random disagreement"
    return [
        "predicted: ρ^m (Lemma 3); Chebyshev 2(1 − √(1 − ρ))^m (Lemma 1)",
        f"measured: the protocol {how}",
        "ϱ(m) = (1 + ρ²ᵐ) ρ²ᵐ / (1 − ρ²ᵐ)² (Theorem 1); Chebyshev: 1/T_m(1/ρ) for ρ^m",
    ]


def _theory_notes(made: Plan) -> list[str]:
    size = "MB need --dim" if made.d is None else f"MB that an agent sends, d = {made.d:,}"
    notes = [f"in an iteration: vectors to each neighbour; {size}"]
    if made.alpha is not None:
        notes.append(f"α = √(n/K) = {made.alpha:.4g} for K = {made.K:,} (Theorem 1)")
    if made.mixings[0].condition is None:
        return [*notes, f"α and K are those of the paper's own methods; its theory is not about {made.method}"]
    by_condition = {row.condition: [other for other in made.mixings if other.condition == row.condition]
                    for row in made.mixings}  # fmt: skip
    for condition, rows in by_condition.items():
        which = "" if len(by_condition) == 1 else " for m = " + ", ".join(dict.fromkeys(str(row.m) for row in rows))
        notes.append(f"α at most{which}: by {condition}")
    if made.L is None:
        notes.append("  without L only some conditions are known; --lipschitz gives it")
    else:
        estimated = " (estimate: a lower bound, α may have to be less)" if made.L_estimated else ""
        notes.append(f"  with γ = {made.gamma:.4g}, L = {made.L:.4g}{estimated}")
    return [
        *notes,
        "K_0 = n/α²: iterations from which on √(n/K) is small enough",
        "K_T = max{K_0, n³ϱ(m)}, the transient time (Corollary), an order of magnitude:",
        "  constants are left open by the paper, or far from tight",
    ]


def _compare(networks: Sequence[Network], settings: Mapping[str, Any]) -> list[Planned]:
    """Graphs and weightings side by side."""
    planned: list[Planned] = []
    refusals: dict[str, list[str]] = {}
    for network in networks:
        weighted, refused = plans.weightings(network)
        for name, other in weighted.items():
            planned.append((network, name, replace(plans.plan(other, **settings), network=network.label)))
        for name, why in refused.items():
            refusals.setdefault(f"{name}: {why}", []).append(network.label)
    title = f"graphs and weightings, {planned[0][2].method}"
    table = Table("graph", "weights", title=title, title_justify="left")
    for heading in ("ρ", "gossip", "Cheb.", "K_T", "MB"):
        table.add_column(heading, justify="right")
    for network, group in itertools.groupby(planned, key=itemgetter(0)):
        names = itertools.chain([network.label, count_of(len(network.edges), "edge")], itertools.repeat(""))
        for _, weights, made in group:
            single, _, gossip, chebyshev, *_ = made.mixings
            cells = (gossip.m, chebyshev.m, single.K_T, chebyshev.megabytes)
            table.add_row(escape(next(names)), weights, _rate(made.rho), *map(_number, cells))
        table.add_section()
    show_table(table)
    say("  gossip: rounds m = ⌈1/(1 − ρ)⌉; Cheb.: m = ⌈1/√(1 − ρ)⌉ of Chebyshev mixing")
    say("  K_T: transient time with one round (Corollary), an order of magnitude")
    say("  MB that an agent sends in an iteration of Chebyshev mixing" + "; need --dim" * (planned[0][2].d is None))
    for why, labels in refusals.items():
        say(f"  {why}" if len(labels) == len(networks) else f"  {', '.join(labels)}: {why}")
    return planned


def _write(folder: Path, planned: Sequence[Planned]) -> None:
    """The plans in full, their tables as one, and a drawing of each graph."""
    folder.mkdir(parents=True, exist_ok=True)
    told = [{"weights": name, **made.describe()} if name else made.describe() for _, name, made in planned]
    file = folder / "plan.json"
    file.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    facts = [field.name for field in fields(Plan) if field.name not in ("mixings", "degrees")]
    names = [field.name for field in fields(MixingPlan)]
    rows = [
        [weights, *(getattr(made, fact) for fact in facts), *(getattr(row, name) for name in names)]
        for _, weights, made in planned
        for row in made.mixings
    ]
    heads = {column: column for column in ("weights", *facts, *names)}
    table = reports.Sheet(heads, [["" if cell is None else cell for cell in row] for row in rows])
    networks = {id(network): network for network, _, _ in planned}.values()
    rates = {
        id(n): [f"{_rate(made.rho)} {name}".strip() for other, name, made in planned if other is n] for n in networks
    }
    drawings = [
        Drawing(network.label, "ρ = " + ",\n".join(rates[id(network)]), network.n, network.edges, network.recipe)
        for network in networks
    ]
    for path in (file, table.write_csv(folder / "plan.csv"), draw_graphs(drawings, folder / "graphs.png")):
        say(f"written: {path}")


def _rate(value: float | None) -> str:
    """A number up to one; near it by the distance."""
    if value is None:
        return UNKNOWN
    return f"1-{1 - value:.2e}" if 0.9999 < value < 1 else f"{value:.4f}"


def _number(value: float | None) -> str:
    """Four digits, and up to a million all of a whole number."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int) or 1000 <= value < 10**6:
        return f"{value:,.0f}" if value < 10**6 else f"{value:.2g}"
    return f"{value:.4g}" if value < 10**6 else f"{value:.2g}"
