"""``proxdasa reproduce heterogeneity`` and ``topology``: what the paper says of them and does not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from proxdasa import experiments, reports
from proxdasa.cli.display import input_errors, numbers, output_option, say, show_sheet
from proxdasa.cli.progress_display import watched
from proxdasa.cli.study_reports import Output, Overwrite, Seed, Trials, app, finish, load, run_all, write
from proxdasa.experiments.heterogeneity import BETAS, skew
from proxdasa.experiments.topology import ROUNDS
from proxdasa.reports import Cell, Panel, Run, Sheet, finals, named, second_half, shown_curve, words
from proxdasa.runs.setup import Setup

__all__ = ["app"]  # that of the paper's experiments, with the two commands of this module

MEASURES = ("consensus", "table_stationarity", "loss", "lowest_accuracy")
"""What heterogeneity is about. γ = 1 for all, so that D-PSGD's stationarity can be compared with the others'."""
MIXINGS = {"single": "one round", "gossip": "gossip, ⌈1/(1 − ρ)⌉ rounds", "chebyshev": "Chebyshev, ⌈1/√(1 − ρ)⌉ rounds"}


@app.command()
@watched
def heterogeneity(
    data: Annotated[Literal["digits", "mnist"], typer.Option(help="The examples; MNIST takes hours.")] = "digits",
    betas: Annotated[
        str, typer.Option(help="Levels of label skew: Dirichlet's β, or 0 for one class per agent.")
    ] = ",".join(f"{beta:g}" for beta in BETAS),
    iterations: Annotated[int, typer.Option(min=1, help="K.")] = 1_000,
    trials: Trials = 10,
    seed: Seed = 0,
    output: Output = None,
    overwrite: Overwrite = False,
) -> None:
    """Agents whose data differ: Prox-DASA, Prox-DASA-GT and D-PSGD on ever more uneven labels.

    Finished runs of the same settings in the output folder are reused.
    """
    output = output or Path("results", "heterogeneity" if data == "digits" else f"heterogeneity-{data}")
    with input_errors():
        setups = experiments.heterogeneity(data, numbers("--betas", betas, float), 10, iterations, trials, seed)
    say(f"{data}, 10 agents on a ring, K = {iterations}, {trials} trials, β = {betas}")
    results = run_all(setups, output, overwrite)
    with input_errors():
        runs = {name: replace(run, label=_beta(name)) for name, run in load(output, setups).items()}
        sheet = reports.compare(list(runs.values()), {}, ("accuracy", *MEASURES))
        show_sheet("after the last iteration", sheet)
        write(output, sheet, _draw_levels(runs, setups, output / "figure.png"))
    finish(results)


def _beta(name: str) -> str:
    beta = name.rpartition("-beta-")[2]
    return "one class per agent" if beta == "0" else f"β = {beta}"


def _draw_levels(runs: Mapping[str, Run], setups: Mapping[str, Setup], path: Path) -> Path:
    """Measures at the end against the unevenness, and against iterations at the most uneven level."""
    uneven = {id(run): skew(setups[name].problem) for name, run in runs.items()}
    most = max(uneven.values())
    extreme = [replace(run, label=run.title) for run in runs.values() if uneven[id(run)] == most]
    level = next(run.label for run in runs.values() if uneven[id(run)] == most)
    above, below = [], []
    for measure in MEASURES:
        look = words(measure)
        ends = finals(list(runs.values()), lambda run: uneven[id(run)], measure)
        above.append(Panel("at the end", "share of the largest class", f"final {look.name}", ends, log_y=look.log))
        curves = [shown_curve(run, measure) for run in extreme]
        y_range = (None, None) if look.log else second_half(curves)
        below.append(Panel(level, words("k").label, look.label, curves, log_y=look.log, y_range=y_range))
    return reports.draw_panels([above, below], path)


@app.command()
@watched
def topology(
    rounds: Annotated[str, typer.Option(help="Numbers of communication rounds, separated by commas.")] = ",".join(
        map(str, ROUNDS)
    ),
    side: Annotated[int, typer.Option(min=2, help="The graphs have side² agents.")] = 4,
    trials: Trials = 10,
    seed: Seed = 0,
    output: Annotated[Path, output_option("Folder for results, table and figure.")] = Path("results/topology"),
    overwrite: Overwrite = False,
) -> None:
    """Graphs and rounds: ring, grid, exponential and complete, with one round per iteration, gossip and Chebyshev.

    All have the same number of communication rounds, so more rounds per iteration are fewer iterations. Finished runs
    of the same settings in the output folder are reused.
    """
    with input_errors():
        budgets = list(dict.fromkeys(numbers("--rounds", rounds, int)))
        setups = experiments.topology(budgets, side, trials, seed)
    say(f"noisy quadratics, {side**2} agents, {trials} trials, {rounds} communication rounds")
    results = run_all(setups, output, overwrite)
    with input_errors():
        runs = load(output, setups)
        sheet = _graph_sheet(runs, setups, len(budgets))
        show_sheet(f"{named('stationarity', list(runs.values())).label} at the end", sheet)
        write(output, sheet, _draw_graphs(runs, output / "figure.png"))
    finish(results)


def _graph_sheet(runs: Mapping[str, Run], setups: Mapping[str, Setup], budgets: int) -> Sheet:
    """A row per graph and mixing, a column per number of rounds; runs come in this order."""
    names = list(runs)
    groups = [names[i : i + budgets] for i in range(0, len(names), budgets)]
    totals = [name.rpartition("-")[2].lstrip("0") for name in groups[0]]
    rows: list[list[Cell]] = []
    for group in groups:
        setup, (graph, mixing, _) = setups[group[0]], group[0].split("-")
        rho = setup.network.rho
        ends = [runs[name].final("stationarity") for name in group]
        rows.append([graph, rho, MIXINGS[mixing].partition(",")[0], setup.mixing.rounds_for(rho), *ends])
    heads = {"graph": "graph", "rho": "ρ", "mixing": "mixing", "m": "m"}
    return Sheet(heads | {f"rounds_{total}": f"{int(total):,} rounds" for total in totals}, rows)


def _draw_graphs(runs: Mapping[str, Run], path: Path) -> Path:
    """One column per graph: stationarity and consensus at the end against the number of rounds, by mixing.

    On a complete graph agents agree but for rounding, so there is no consensus error to show.
    """
    labels, every = {id(run): MIXINGS[name.split("-")[1]] for name, run in runs.items()}, list(runs.values())
    grid = []
    for measure in ("stationarity", "consensus"):
        row = []
        for graph in dict.fromkeys(name.partition("-")[0] for name in runs):
            mine = [run for name, run in runs.items() if name.startswith(f"{graph}-")]
            curves = finals(mine, lambda run: run.final("rounds").mean, measure, lambda run: labels[id(run)])
            if measure == "consensus" and graph == "complete":
                continue
            row.append(Panel(graph, words("rounds").label, named(measure, every).label, curves, log_x=True))
        grid.append(row)
    return reports.draw_panels(grid, path)
