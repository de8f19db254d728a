"""The command line: arguments in, exit codes out; everything else is the library's.

Exit codes: 0 done, 1 every trial of a run diverged, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from proxdasa import data, experiments, records, reports
from proxdasa.experiments.objects import ROOMS, VALUES, parameters
from proxdasa.experiments.speedup import AGENTS
from proxdasa.records import Row
from proxdasa.results import Result
from proxdasa.runner import Progress as Report
from proxdasa.runner import Setup

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
reproduce = typer.Typer(no_args_is_help=True, help="Run an experiment of the paper and show its table and figure.")
app.add_typer(reproduce, name="reproduce")
data_app = typer.Typer(no_args_is_help=True, help="The files of the data sets: download them, see what is there.")
app.add_typer(data_app, name="data")

out = Console()
err = Console(stderr=True)

DIVERGED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def _version(asked: bool) -> None:
    if asked:
        _line(f"proxdasa {version('proxdasa')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Decentralised composite optimisation: agents on a graph minimise a smooth loss plus a convex regulariser."""


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A TOML file; see examples/quickstart.toml.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")],
    overwrite: Annotated[bool, typer.Option(help="Replace results that are in the folder already.")] = False,
) -> None:
    """Run the set-up of a configuration file and save its results."""
    with _input_errors():
        setup = experiments.read(file)
        if (output / records.RECORDS).exists() and not overwrite:
            raise FileExistsError(f"{output} holds results already; choose another --output or add --overwrite")
        output.mkdir(parents=True, exist_ok=True)
    with _progress() as announce:
        result = setup.run(announce(setup.algorithm.facts.title, setup))
    with _input_errors():
        result.save(output, overwrite=True)
    _show_final(result)
    _line(f"results: {output}   (picture and table: proxdasa report {output})")
    _exit(result)


@reproduce.command()
def speedup(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for results and figure.")] = Path(
        "results/speedup"
    ),
    agents: Annotated[str, typer.Option(help="Sizes of the ring, separated by commas.")] = ",".join(map(str, AGENTS)),
    iterations: Annotated[int, typer.Option(min=1, help="K.")] = 10_000,
    trials: Annotated[int, typer.Option(min=1, help="Independent repetitions.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Names the samples.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Remove earlier results of these runs and run all again.")] = False,
) -> None:
    """The linear speed-up figure: sparse phase retrieval on rings of growing size (Section 5.1).

    Finished runs of the same settings in the output folder are reused.
    """
    with _input_errors():
        if not re.fullmatch(r"\d+(,\d+)*", agents):
            raise ValueError(f"--agents takes numbers separated by commas, such as 5,10,20; got {agents!r}")
        sizes = [int(size) for size in agents.split(",")]
        setups = experiments.speedup(sizes, iterations, trials, seed)
        output.mkdir(parents=True, exist_ok=True)
    _line(f"sparse phase retrieval, d = 100, K = {iterations}, {trials} trials, rings of {agents} agents")
    with _input_errors(), _progress(list(setups)) as announce:
        results = experiments.run_series(setups, output, announce, overwrite, lambda text: _line(text, err))
    name, last = list(results.items())[-1]
    if last.stopped == "interrupted":
        kept = "its records are saved" if last.records else "it has no records"
        _line(
            f"interrupted: {_name(setups[name])} at iteration {last.iterations} of {iterations} ({kept}); "
            f"{len(results) - 1} of {len(setups)} runs are finished; "
            f"the same command{' without --overwrite' if overwrite else ''} goes on",
            err,
        )
        raise typer.Exit(INTERRUPTED)
    with _input_errors():
        _show_report(output, [output / name for name in setups], None)
    _line(
        "theory at fixed K with α = √(n/K): both ∝ n^-0.5; "
        "equivalently, n times the agents reach the same ‖G‖² with K/n iterations"
    )
    if any(result.stopped == "diverged" for result in results.values()):
        raise typer.Exit(DIVERGED)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A results folder, or a folder that holds several.")],
    target: Annotated[
        float | None,
        typer.Option(help="Loss that the runs should reach; default: twice the worst final loss, less in short runs."),
    ] = None,
) -> None:
    """Draw the figure and print the table of finished runs, from their records alone."""
    with _input_errors():
        _show_report(folder, records.find_results(folder), target)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help=f"The data set: {' or '.join(data.SOURCES)}.")],
    folder: Annotated[Path | None, typer.Option(help="The data folder; default: see [b]proxdasa data list[/].")] = None,
) -> None:
    """Download a data set and verify its checksums; files that are there already and right are kept."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(), TimeRemainingColumn())
    with _input_errors(), Progress(*columns, console=err, disable=not err.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def update(file: str, here: int, size: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=size)
            bars.update(tasks[file], completed=here)

        paths = data.fetch(name, folder, update)
    for path in paths:
        _line(f"{path}: {'downloaded' if path.name in tasks else 'there already'}, checksum right")


@data_app.command("list")
def data_list(
    folder: Annotated[Path | None, typer.Option(help="The data folder to look into.")] = None,
) -> None:
    """What is in the data folder, what is missing, and where it is expected."""
    if folder is None:
        _line(f"data folder: {data.folder()}   (the environment variable {data.VARIABLE} names another)")
    else:
        _line(f"data folder: {folder}")
    for name, path, there in data.listing(folder):
        _line(f"{name}: {path}" if there else f"{name}: {path} is missing (proxdasa data fetch {name})")
    ready = importlib.util.find_spec("sklearn") is not None
    _line(f"digits, breast_cancer: {'with scikit-learn' if ready else 'missing (pip install proxdasa[data])'}")


@app.command("list")
def list_() -> None:
    """Everything a configuration file can name, with parameters and defaults."""
    keys = {name: parameter.default for name, parameter in parameters(Setup).items()}
    needed = [name for name, default in keys.items() if default is inspect.Parameter.empty]
    optional = [
        f"{name}={default}" if isinstance(default, int) else name
        for name, default in keys.items()
        if name not in needed
    ]
    out.print(f"[bold]keys[/]\n{', '.join(needed)}; optional: {', '.join(optional)}\n", highlight=False)
    for room, choices in ROOMS.items():
        table = Table(title=room, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
        for choice in choices:
            table.add_row(f"[cyan]{choice.__name__}[/]", escape(_signature(choice)), escape(_first_line(choice)))
        out.print(table)
        out.print()
    for kind, values in VALUES.items():
        takes = {name: _signature(value) for name, value in values.items() if kind == "metric" and callable(value)}
        names = (f"{name}({takes[name]})" if name in takes else name for name in values)
        out.print(f"[bold]{kind}[/]\n{escape(', '.join(names))}\n", highlight=False)


def main() -> None:
    """Entry point."""
    warnings.showwarning = _show_warning
    app()


def _signature(thing: Any) -> str:
    shown = []
    for name, parameter in parameters(thing).items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            shown.append(name)
        elif isinstance(default, int | float | str) or default is None:
            shown.append(f"{name}={default!r}")
        else:
            described = records.describe(default)
            shown.append(f"{name}={described if isinstance(described, str) else described['name']}")
    return ", ".join(shown)


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


@contextmanager
def _input_errors() -> Iterator[None]:
    """Bad input is one line and exit code 2, not a traceback."""
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        err.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False, emoji=False)
        raise typer.Exit(BAD_INPUT) from None


@contextmanager
def _progress(series: Sequence[str] = ()) -> Iterator[experiments.Announce]:
    """A bar per run on a terminal, in 80 columns; elsewhere one line per run as it ends."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TaskProgressColumn(),
        TextColumn("{task.fields[measures]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as bars:

        def announce(name: str, setup: Setup) -> Report:
            shown = _name(setup) if series else setup.algorithm.facts.title
            if len(series) > 1:
                shown = f"run {series.index(name) + 1} of {len(series)}: {shown}"
            task = bars.add_task(shown, total=setup.iterations, measures="")

            def update(k: int, iterations: int, rows: Sequence[Row]) -> None:
                bars.update(task, completed=k)
                if rows:
                    bars.update(task, measures=_measures(rows))
                if k == iterations and not err.is_terminal:
                    _line(f"{shown}: {k} iterations, {_measures(rows)}", err)

            return update

        yield announce


def _name(setup: Setup) -> str:
    return f"{setup.algorithm.facts.title} n = {setup.network.n}"


def _measures(rows: Sequence[Row]) -> str:
    if not rows:
        return "every trial diverged"
    names = {"loss": "loss", "stationarity": "‖G‖²"}
    means = {shown: sum(row[name] for row in rows) / len(rows) for name, shown in names.items() if name in rows[0]}
    return " ".join(f"{name} {value:.2g}" for name, value in means.items())


def _show_final(result: Result) -> None:
    last = [row for row in result.records if row["k"] == result.records[-1]["k"]] if result.records else []
    if not last:
        return
    table = Table(title=f"after {last[0]['k']} iterations, {len(last)} trials", title_justify="left")
    table.add_column("measure")
    table.add_column("mean", justify="right")
    table.add_column("smallest", justify="right")
    table.add_column("largest", justify="right")
    for name in list(last[0])[2:]:
        values = [float(row[name]) for row in last]
        table.add_row(name, f"{sum(values) / len(values):.4g}", f"{min(values):.4g}", f"{max(values):.4g}")
    out.print(table)


def _show_report(folder: Path, folders: Sequence[Path], target: float | None) -> None:
    runs = reports.load_runs(folders)
    summary = reports.summarise(runs, target)
    figure = reports.draw(runs, folder / "figure.png")
    data = reports.write_csv(summary, folder / "table.csv")
    table = Table(
        title=f"iterations k to a loss of {summary.target:.4g}, and measures at the end", title_justify="left"
    )
    for name in ("method", "run", "k to target", "‖G‖² ± 95%", "consensus", "loss"):
        table.add_column(name, justify="left" if name in ("method", "run") else "right", no_wrap=name == "method")
    for line in summary.lines:
        reached = "not by all" if math.isnan(line.iterations_to_target) else f"{line.iterations_to_target:.0f}"
        numbers = (line.stationarity, line.consensus, line.loss)
        shown = ["not recorded" if math.isnan(number) else f"{number:.3g}" for number in numbers]
        shown[0] += f" ± {line.stationarity_half_width:.2g}" if line.stationarity_half_width > 0 else ""
        table.add_row(line.method, escape(line.run), reached, *shown)
    out.print(table)
    for run in runs:
        if run.ending:
            _line(f"{run.title}, {run.label}: {run.ending}")
    for slope in summary.slopes:
        _line(
            f"{slope.method}: iterations to target {_power(slope.iterations_to_target)}, "
            f"final ‖G‖² {_power(slope.stationarity)}"
        )
    _line(f"figure: {figure}")
    _line(f"table:  {data}")


def _power(exponent: float) -> str:
    return "has no fit (a value is missing or 0)" if math.isnan(exponent) else f"∝ n^{exponent:.2f}"


def _line(text: str, console: Console = out) -> None:
    """Print text as it is: paths are neither wrapped, so that they can be copied, nor read as markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    err.print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True, highlight=False, emoji=False)


def _exit(result: Result) -> None:
    if result.stopped == "interrupted":
        _line(f"interrupted after {result.iterations} iterations; the records so far are saved", err)
        raise typer.Exit(INTERRUPTED)
    if result.stopped == "diverged":
        raise typer.Exit(DIVERGED)
