"""``proxdasa reproduce``: the experiments, each from one command to its table and figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from proxdasa import experiments, reports, tuning
from proxdasa.cli.display import (
    err,
    input_errors,
    numbers,
    output_option,
    say,
    show_report,
    show_sheet,
    show_table,
)
from proxdasa.cli.progress_display import ended, note, progress, watched
from proxdasa.exit_codes import Code
from proxdasa.experiments import real_data
from proxdasa.experiments.speedup import AGENTS
from proxdasa.runs import records
from proxdasa.runs.results import Result
from proxdasa.runs.setup import Setup

app = typer.Typer(no_args_is_help=True, help="Run an experiment and show its table and figure.")

Output = Annotated[Path | None, output_option("Folder for results, table and figure.")]
Trials = Annotated[int, typer.Option(min=1, help="Independent repetitions, run as one stacked computation.")]
Seed = Annotated[int, typer.Option(min=0, help="Names the samples.")]
Overwrite = Annotated[bool, typer.Option(help="Remove earlier results of these runs and run all again.")]
Iterations = Annotated[int | None, typer.Option(min=1, help="K; default: the paper's.")]
Preset = Annotated[
    real_data.Preset,
    typer.Option(
        help="[b]as-published[/]: what the authors' scripts compute (but ProxGT-SR-E as its own paper has it). "
        "[b]paper[/]: the paper's loss, λ and Algorithm 2, γ and α tuned on its grid."
    ),
]
Algorithms = Annotated[
    str | None,
    typer.Option(help=f"Methods separated by commas, of {', '.join(real_data.NAMES)}; default: those of the preset."),
]


@app.command()
@watched
def speedup(
    output: Annotated[Path, output_option("Folder for results and figure.")] = Path("results/speedup"),
    agents: Annotated[str, typer.Option(help="Sizes of the ring, separated by commas.")] = ",".join(map(str, AGENTS)),
    iterations: Annotated[int, typer.Option(min=1, help="K.")] = 10_000,
    trials: Trials = 10,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """The linear speed-up figure: sparse phase retrieval on rings of growing size (Section 5.1).

    Finished runs of the same settings in the output folder are reused.
    """
    with input_errors():
        setups = experiments.speedup(numbers("--agents", agents, int), iterations, trials, seed)
    say(f"sparse phase retrieval, d = 100, K = {iterations}, {trials} trials, rings of {agents} agents")
    results = run_all(setups, output, overwrite)
    with input_errors():
        runs = reports.load_runs([output / name for name in setups])
        summary, figure = reports.summarise(runs), reports.draw(runs, output / "figure.png")
        table = reports.write_csv(summary, output / "table.csv")
        show_report(runs, summary, {"figure": figure, "table": table})
    say(
        "theory at fixed K with α = √(n/K): both ∝ n^-0.5; "
        "equivalently, n times the agents reach the same ‖G‖² with K/n iterations"
    )
    finish(results)


def _compare(
    context: typer.Context,
    preset: Preset = "as-published",
    algorithms: Algorithms = None,
    iterations: Iterations = None,
    trials: Trials = 10,
    seed: Seed = 0,
    output: Output = None,
    overwrite: Overwrite = False,
) -> None:
    name = str(context.info_name)
    output = output or Path("results", f"{name}-{preset}")
    with input_errors():
        methods = _chosen(algorithms, real_data.algorithms(preset))
        sweeps = real_data.sweep(name, methods, iterations, seed) if preset == "paper" else {}
    tuned = {}
    with tuning.divergence_expected():
        searched = run_all(sweeps, output, overwrite)
    for method, result in searched.items():
        _show_sweep(result)
        try:
            tuned[method.removeprefix("sweep/")] = gamma, alpha = real_data.best(result)
        except ValueError as error:
            say(f"{error}; it is left out", err)
            methods.remove(method.removeprefix("sweep/"))
        else:
            say(f"{result.config['facts']['title']}: γ = {gamma:g} and α = {alpha:g} have the lowest objective\n")
    if not methods:
        raise typer.Exit(Code.DIVERGED)
    with input_errors():
        setups = real_data.comparison(name, preset, tuned, methods, iterations, trials, seed)
    results = run_all(setups, output, overwrite)
    with input_errors():
        runs = [replace(run, title=real_data.NAMES[method]) for method, run in load(output, setups).items()]
        sheet = reports.compare(runs, real_data.published(name))
        show_sheet(f"{name}, {preset}", sheet)
        write(output, sheet, reports.draw_comparison(runs, output / "figure.png"))
    finish(searched | results)


for _name, _summary in {
    "a9a": "The comparison on a9a: a perceptron on a ring of 8 agents, five methods (Section 5.2).",
    "mnist": "The comparison on MNIST: LeNet on a random graph of 8 agents, five methods (Section 5.2); takes hours.",
}.items():
    _reused = "Finished runs of the same settings in the output folder are reused, method by method."
    app.command(_name, help=f"{_summary}\n\n{_reused} The data: [b]proxdasa data fetch {_name}[/].")(watched(_compare))


def _chosen(given: str | None, known: Sequence[str]) -> list[str]:
    if given is None:
        return list(known)
    asked = [part.strip() for part in given.split(",")]
    for method in asked:
        if method not in known:
            raise ValueError(f"--algorithms: there is no {method!r} in this preset; accepted: {', '.join(known)}")
    return [method for method in known if method in asked]


def load(output: Path, setups: Mapping[str, Setup]) -> dict[str, reports.Run]:
    """The saved runs of a series that are no sweeps, in its order."""
    return {name: run for name in setups for run in reports.load_runs([output / name])}


def write(output: Path, sheet: reports.Sheet, figure: Path) -> None:
    """The table in three formats, and where everything is."""
    written = [sheet.write_markdown(output / "table.md"), sheet.write_csv(output / "table.csv")]
    for path in (*written, sheet.write_latex(output / "table.tex"), figure):
        say(f"written: {path}")


def _show_sweep(result: Result) -> None:
    """The final objective for each γ and α."""
    cells = {tuple(one.parameters.values()): one.fault or f"{one.mean:.4g}" for one in real_data.ranking(result)}
    gammas, alphas = ({setting[name]: None for setting in real_data.GRID} for name in ("gamma", "alpha"))
    say(f"{result.config['facts']['title']}: objective after {result.iterations} iterations")
    table = Table("", *(Column(f"α = {alpha:g}", justify="right") for alpha in alphas))
    for gamma in gammas:
        table.add_row(f"γ = {gamma:g}", *(cells[gamma, alpha] for alpha in alphas))
    show_table(table)


def run_all(setups: Mapping[str, Setup], output: Path, overwrite: bool) -> dict[str, Result]:
    """The series of runs, or the end of the command if it was interrupted."""
    with input_errors(), records.claim(output), progress(list(setups), output) as announce:
        results = experiments.run_series(setups, output, announce, overwrite, note, ended)
    if results and (last := results[name := list(results)[-1]]).stopped == "interrupted":
        kept = "its records are saved" if last.records else "it has no records"
        say(
            f"interrupted: {name} at iteration {last.iterations} of {setups[name].iterations} ({kept}); "
            f"{len(results) - 1} of {len(setups)} runs are finished; "
            f"the same command{' without --overwrite' if overwrite else ''} goes on",
            err,
        )
        raise typer.Exit(Code.INTERRUPTED)
    return results


def finish(results: Mapping[str, Result]) -> None:
    """The exit code."""
    if any(result.stopped == "diverged" for result in results.values()):
        raise typer.Exit(Code.DIVERGED)
