"""The command plan: what a graph costs, before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxdasa import configs, plans, reports
from proxdasa.cli.auto_gamma import ANY
from proxdasa.cli.display import input_errors, output_option, say, show_table, show_written

if TYPE_CHECKING:
    from proxdasa.contracts import Mixing
    from proxdasa.networks import Network
    from proxdasa.runs.setup import Setup

RUNS = (".toml", ".json")
"""Suffixes of files that describe a run."""


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
    mixing: Annotated[
        str | None,
        typer.Option(
            metavar="CALL",
            help="A protocol to plan for in addition to those of the paper's rules, such as [b]Gossip(5)[/] or "
            "[b]Every(5, Chebyshev(3))[/], without --compare; default: that of the run.",
        ),
    ] = None,
    output: Annotated[Path | None, output_option("Folder for plan.json, plan.csv and graphs.png.")] = None,
) -> None:
    """Predict rounds, step sizes, transient time and messages for a graph, by the paper's rules.

    Rounds, contraction and messages are exact. The limits on α, the γ = 1/L and the times K_0 and K_T are guarantees of
    the theory, not advice: much larger steps usually work better, and [b]proxdasa tune FILE --quick[/] finds them.
    For graphs that change, such as [b]'base_graph(6)'[/], the theory has no step sizes and no times.

    For example [b]proxdasa plan ring -n 16 -K 10000 -d 8066[/], or [b]proxdasa plan --compare ring,torus -n 16[/].
    """
    with input_errors():
        file = Path(graph) if graph and graph.endswith(RUNS) else None
        unknown = file is not None and configs.asks_auto(configs.load(file))
        setup = configs.read(file, try_step=False, auto=ANY) if file else None
        if compare and mixing:
            raise ValueError(
                "--mixing is for the plan of one graph; a comparison shows the paper's rules: leave one out"
            )
        chosen = _mixing(mixing)
        setup = replace(setup, mixing=chosen) if setup and chosen else setup
        settings: dict[str, Any] = plans.protocol(chosen) if chosen else {}
        settings |= plans.settings(setup, _method(method)) if setup else {}
        settings |= {"gamma": None} if unknown else {}
        given = {"method": _method(method), "K": iterations, "d": dim, "gamma": gamma, **_lipschitz(lipschitz, setup)}
        settings |= {name: value for name, value in given.items() if value is not None}
        networks = [setup.network if setup else configs.network_expressions.graph(graph, agents)] if graph else []
        networks += [
            configs.network_expressions.graph(text, agents) for text in configs.network_expressions.split(compare or "")
        ]
        for network in networks:
            if agents not in (None, network.n):
                raise ValueError(
                    f"{network.label} has {network.n} agent{'s' * (network.n > 1)}, but --agents is {agents}"
                )
        if not networks:
            raise ValueError("give a graph, for example proxdasa plan ring --agents 16; see proxdasa plan --help")
        planned = _compare(networks, settings) if compare else _show(networks[0], settings)
        if setup and not unknown and (broken := plans.departure(setup)):
            say(f"note: {broken}")
        if output is not None:
            show_written(reports.plan_tables.write_plans(output, planned))


def _method(name: str | None) -> Any:
    methods = {method.__name__: method for method in configs.objects.ROOMS["algorithm"]}
    if name is not None and name not in methods:
        raise ValueError(f"--method: there is no method {name!r}; accepted: {', '.join(methods)}")
    return methods.get(name or "")


def _mixing(text: str | None) -> Mixing | None:
    if text is None:
        return None
    mixing = configs.calls.mixing(text)
    if plans.protocol(mixing)["mixing"] is None:
        raise ValueError(f"--mixing: plans know Gossip, Chebyshev, and Every of these; got {text}")
    return mixing


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


def _show(network: Network, settings: Mapping[str, Any]) -> list[reports.plan_tables.Planned]:
    """Show one network: how its mixing contracts, and what follows for the method."""
    planned = reports.plan_tables.Planned(network, "", plans.plan(network, **settings))
    for line in reports.plan_tables.network_lines(planned):
        say(line)
    _show_sheet("what mixing leaves of a disagreement", reports.plan_tables.contraction_sheet(planned.plan))
    _show_sheet(f"what follows for {planned.plan.method}", reports.plan_tables.consequence_sheet(planned.plan))
    return [planned]


def _compare(networks: Sequence[Network], settings: Mapping[str, Any]) -> list[reports.plan_tables.Planned]:
    """Show graphs and weightings side by side."""
    planned: list[reports.plan_tables.Planned] = []
    refusals: dict[str, list[str]] = {}
    for network in networks:
        weighted, refused = plans.weightings(network)
        for name, other in weighted.items():
            made = replace(plans.plan(other, **settings), network=network.label)
            planned.append(reports.plan_tables.Planned(network, name, made))
        for name, why in refused.items():
            refusals.setdefault(f"{name}: {why}", []).append(network.label)
    first_rows = {each.network: row for row, each in reversed(list(enumerate(planned)))}
    _show_sheet(
        f"graphs and weightings, {planned[0].plan.method}",
        reports.plan_tables.comparison_sheet(planned),
        set(first_rows.values()),
    )
    for why, labels in refusals.items():
        say(f"  {why}" if len(labels) == len(networks) else f"  {', '.join(labels)}: {why}")
    return planned


def _show_sheet(title: str, sheet: reports.Sheet, sections: Collection[int] = ()) -> None:
    show_table(title, replace(sheet, notes=[f"  {note}" for note in sheet.notes]), sections)
