"""``proxdasa reproduce``: the experiments, each from one command to its table and figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from proxdasa import reports, tuning
from proxdasa.cli.before_computing import computes
from proxdasa.cli.causes_command import causes
from proxdasa.cli.display import (
    err,
    input_errors,
    output_option,
    parse_numbers,
    say,
    show_report,
    show_table,
    show_written,
)
from proxdasa.cli.outcomes import exit_if_diverged, run_all
from proxdasa.cli.progress_display import add_audience_options
from proxdasa.cli.reproduce_options import Algorithms, Iterations, Output, Overwrite, Preset, Seed, Trials
from proxdasa.cli.shared_options import Device, Jobs
from proxdasa.exit_codes import Code
from proxdasa.experiment_choices import BETAS, LOSSES, NAMES, RATE_AGENTS, RATE_LONGEST, RING_SIZES, ROUNDS, SHARES_OUT

if TYPE_CHECKING:
    from proxdasa.experiments.rates import RateCase
    from proxdasa.runs.setup import Setup

RULES_LENGTH = 3_000
"""Iterations for each rule of `lost_messages`."""

app = typer.Typer(no_args_is_help=True, help="Run an experiment and show its table and figure.")


@app.command()
@add_audience_options
@computes
def speedup(
    output: Annotated[Path, output_option("Folder for results and figure.")] = Path("results/speedup"),
    agents: Annotated[str, typer.Option(help="Sizes of the ring, separated by commas.")] = ",".join(
        map(str, RING_SIZES)
    ),
    iterations: Annotated[int, typer.Option(min=1, help="K.")] = 10_000,
    trials: Trials = 10,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    jobs: Jobs = None,
    device: Device = None,
) -> None:
    """The linear speed-up figure: sparse phase retrieval on rings of growing size (Section 5.1).

    Finished runs of the same settings in the output folder are reused.
    """
    from proxdasa import experiments  # noqa: PLC0415

    with input_errors():
        setups = experiments.speedup(parse_numbers("--agents", agents, int), iterations, trials, seed)
    say(f"sparse phase retrieval, d = 100, K = {iterations}, {trials} trials, rings of {agents} agents")
    results = run_all(setups, output, overwrite, jobs, device)
    with input_errors():
        runs = reports.load_runs([output / name for name in setups])
        summary, figure = reports.summarise(runs), reports.draw(runs, output / "figure.png")
        table = reports.write_csv(summary, output / "table.csv")
        show_report(runs, summary, {"figure": figure, "table": table})
    say(
        "theory at fixed K with α = √(n/K): both ∝ n^-0.5; "
        "equivalently, n times the agents reach the same ‖G‖² with K/n iterations"
    )
    exit_if_diverged(results)


def _compare(
    context: typer.Context,
    preset: Preset = "as-published",
    algorithms: Algorithms = None,
    iterations: Iterations = None,
    trials: Trials = 10,
    seed: Seed = 0,
    output: Output = None,
    overwrite: Overwrite = False,
    jobs: Jobs = None,
    device: Device = None,
) -> None:
    from proxdasa.experiments import real_data  # noqa: PLC0415

    name = str(context.info_name)
    output = output or Path("results", f"{name}-{preset}")
    with input_errors():
        methods = _choose(algorithms, real_data.algorithms(preset))
        sweeps = real_data.sweep(name, methods, iterations, seed) if preset == "paper" else {}
    tuned = {}
    with tuning.expect_divergence():
        searched = run_all(sweeps, output, overwrite, jobs, device)
    for folder, result in searched.items():
        method, title = folder.removeprefix("sweep/"), result.config["facts"]["title"]
        symbols = {"gamma": "γ", "alpha": "α"}
        sheet = reports.tuning_results.cross_sheet(real_data.ranking(result), "gamma", "alpha", symbols)
        show_table(f"{title}: objective after {result.iterations} iterations", sheet)
        try:
            tuned[method] = gamma, alpha = real_data.best(result)
        except ValueError as error:
            say(f"{error}; it is left out", err)
            methods.remove(method)
        else:
            say(f"{title}: γ = {gamma:g} and α = {alpha:g} have the lowest objective\n")
    if not methods:
        raise typer.Exit(Code.DIVERGED)
    with input_errors():
        setups = real_data.comparison(name, preset, tuned, methods, iterations, trials, seed)
    results = run_all(setups, output, overwrite, jobs, device)
    with input_errors():
        runs = [replace(run, title=NAMES[method]) for method, run in _load(output, setups).items()]
        sheet = reports.compare(runs, real_data.published_values(name))
        _show_study(f"{name}, {preset}", sheet, output, lambda path: reports.draw_comparison(runs, path))
    exit_if_diverged(searched | results)


for _name, _summary in {
    "a9a": "The comparison on a9a: a perceptron on a ring of 8 agents, five methods (Section 5.2).",
    "mnist": "The comparison on MNIST: LeNet on a random graph of 8 agents, five methods (Section 5.2); takes hours.",
}.items():
    _reused = "Finished runs of the same settings in the output folder are reused, method by method."
    _help = f"{_summary}\n\n{_reused} The data: [b]proxdasa data fetch {_name}[/]."
    app.command(_name, help=_help)(add_audience_options(computes(_compare)))
app.command()(add_audience_options(computes(causes)))


@app.command()
@add_audience_options
@computes
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
    jobs: Jobs = None,
    device: Device = None,
) -> None:
    """Agents whose data differ: Prox-DASA, Prox-DASA-GT and D-PSGD on ever more uneven labels.

    Finished runs of the same settings in the output folder are reused.
    """
    from proxdasa import experiments  # noqa: PLC0415
    from proxdasa.experiments.heterogeneity import level, skew  # noqa: PLC0415

    output = output or Path("results", "heterogeneity" if data == "digits" else f"heterogeneity-{data}")
    with input_errors():
        setups = experiments.heterogeneity(data, parse_numbers("--betas", betas, float), 10, iterations, trials, seed)
    say(f"{data}, 10 agents on a ring, K = {iterations}, {trials} trials, β = {betas}")
    results = run_all(setups, output, overwrite, jobs, device)
    with input_errors():
        runs = {name: replace(run, label=level(name)) for name, run in _load(output, setups).items()}
        shares = {run: skew(setups[name].problem) for name, run in runs.items()}
        sheet = reports.compare(list(shares), {}, ("accuracy", *reports.LEVEL_MEASURES))
        _show_study("after the last iteration", sheet, output, lambda path: reports.draw_levels(shares, path))
    exit_if_diverged(results)


@app.command()
@add_audience_options
@computes
def topology(
    rounds: Annotated[str, typer.Option(help="Numbers of communication rounds, separated by commas.")] = ",".join(
        map(str, ROUNDS)
    ),
    side: Annotated[int, typer.Option(min=2, help="The graphs have side² agents.")] = 4,
    trials: Trials = 10,
    seed: Seed = 0,
    output: Annotated[Path, output_option("Folder for results, table and figure.")] = Path("results/topology"),
    overwrite: Overwrite = False,
    jobs: Jobs = None,
    device: Device = None,
) -> None:
    """Graphs and rounds: ring, grid, exponential and complete, with one round per iteration, gossip and Chebyshev.

    All have the same number of communication rounds, so more rounds per iteration mean fewer iterations. Finished runs
    of the same settings in the output folder are reused.
    """
    from proxdasa import experiments  # noqa: PLC0415

    with input_errors():
        setups = experiments.topology(list(dict.fromkeys(parse_numbers("--rounds", rounds, int))), side, trials, seed)
    say(f"noisy quadratics, {side**2} agents, {trials} trials, {rounds} communication rounds")
    results = run_all(setups, output, overwrite, jobs, device)
    with input_errors():
        runs = [_graph_run(name, setups[name], run) for name, run in _load(output, setups).items()]
        title = f"{reports.quantity_of('stationarity', [each.run for each in runs]).label} at the end"
        _show_study(title, reports.rounds_sheet(runs), output, lambda path: reports.draw_rounds(runs, path))
    exit_if_diverged(results)


@app.command()
@add_audience_options
@computes
def rates(
    agents: Annotated[str, typer.Option(help="Sizes of the ring, separated by commas.")] = ",".join(
        map(str, RATE_AGENTS)
    ),
    longest: Annotated[int, typer.Option(min=1, help="The largest K.")] = RATE_LONGEST,
    trials: Trials = 10,
    seed: Seed = 0,
    output: Annotated[Path, output_option("Folder for results, tables and figure.")] = Path("results/rates"),
    overwrite: Overwrite = False,
    jobs: Jobs = None,
    device: Device = None,
) -> None:
    """The main theorem, measured: ‖G‖² against K and n, and the length of the transient on slow rings.

    With fitted exponents and their intervals. Takes minutes. Finished runs of the same settings in the output folder
    are reused.
    """
    from proxdasa import experiments  # noqa: PLC0415

    with input_errors():
        sizes = parse_numbers("--agents", agents, int)
        cases = experiments.rates(sizes, longest, trials, seed)
    setups = {case.name: setup for case, setup in cases.items()}
    say(f"opposed quadratics, rings of {agents} agents, K up to {longest}, {trials} trials, {len(setups)} runs")
    results = run_all(setups, output, overwrite, jobs, device)
    with input_errors():
        study = _rates(cases, _load(output, setups), sizes, longest // 4)
        sheet, lengths = reports.rates_sheet(study), reports.transients_sheet(study)
        show_table("how long the transient is", lengths)
        show_table("fitted power laws", sheet)
        written = [*sheet.write(output), lengths.write_csv(output / "transients.csv")]
        show_written([*written, reports.draw_rates(study, output / "figure.png")])
    exit_if_diverged(results)


@app.command()
@add_audience_options
@computes
def robustness(
    losses: Annotated[str, typer.Option(help="Shares of messages that are lost.")] = ",".join(
        f"{loss:g}" for loss in LOSSES
    ),
    out: Annotated[str, typer.Option(help="Shares of the time that an agent is out.")] = ",".join(
        f"{share:g}" for share in SHARES_OUT
    ),
    iterations: Annotated[int, typer.Option(min=1, help="K.")] = 1_000,
    trials: Trials = 10,
    seed: Seed = 0,
    output: Annotated[Path, output_option("Folder for results, tables and figures.")] = Path("results/robustness"),
    overwrite: Overwrite = False,
    jobs: Jobs = None,
    device: Device = None,
) -> None:
    """Imperfect networks: six methods under lost messages, agents that are out, and compressed messages.

    On digits, with agents alike and with one class per agent; and five rules for lost messages, on small problems whose
    answers are known and which are computed on the CPU whatever --device says. Takes about half an hour. Finished runs
    of the same settings in the output folder are reused.
    """
    from proxdasa import experiments  # noqa: PLC0415
    from proxdasa.experiments import lost_messages  # noqa: PLC0415
    from proxdasa.experiments.robustness import SPLIT_NAMES  # noqa: PLC0415

    with input_errors():
        shares = parse_numbers("--losses", losses, float), parse_numbers("--out", out, float)
        cases = experiments.robustness(*shares, 10, iterations, trials, seed)
    setups = {case.name: setup for case, setup in cases.items()}
    say(f"digits, 10 agents on a ring, K = {iterations}, {trials} trials, {len(setups)} runs")
    rules = lost_messages.compare_rules(RULES_LENGTH, RULES_LENGTH // 100, trials)
    with tuning.expect_divergence():
        results = run_all(setups, output, overwrite, jobs, device)
    with input_errors():
        loaded = _load(output, setups)
        runs = [
            reports.ImperfectRun(loaded[case.name], SPLIT_NAMES[case.split], case.kind, case.level)
            for case in cases
            if case.name in loaded
        ]
        labelled = [replace(each.run, label=f"{each.split}, {each.condition}") for each in runs]
        sheet = reports.compare(labelled, {}, ("objective", "consensus", "accuracy", "bytes"))
        show_table("final objective", reports.robustness_sheet(runs, "objective"))
        show_table(f"distance to the solution after {RULES_LENGTH} iterations", reports.rules_sheet(rules))
        written = [*sheet.write(output), reports.rules_sheet(rules).write_csv(output / "rules.csv")]
        written.append(reports.draw_imperfections(runs, output / "figure.png"))
        written.append(reports.draw_bytes(runs, output / "bytes.png"))
        show_written([*written, reports.draw_rules(rules, RULES_LENGTH // 100, output / "rules.png")])
    exit_if_diverged(results)


def _rates(
    cases: Mapping[RateCase, Setup], loaded: Mapping[str, reports.Run], sizes: Sequence[int], K: int
) -> reports.Rates:
    """The runs by question; those against n have these sizes, and K iterations."""
    from proxdasa.experiments.rates import FIXED_AGENTS, MIXING_NAMES  # noqa: PLC0415
    from proxdasa.plans.theory import varrho  # noqa: PLC0415

    runs = {case: replace(loaded[case.name], label=MIXING_NAMES[case.mixing]) for case in cases}
    rings = [
        reports.RingRun(run, case.gap, varrho(1 - case.gap))
        for case, run in runs.items()
        if case.gap is not None and case.gap < 1
    ]
    plain = {case: run for case, run in runs.items() if case.gap is None}
    return reports.Rates(
        [run for case, run in plain.items() if case.n == FIXED_AGENTS],
        [run for case, run in plain.items() if case.K == K and case.n in sizes],
        rings,
        [run for case, run in runs.items() if case.gap == 1],
    )


def _graph_run(name: str, setup: Setup, run: reports.Run) -> reports.GraphRun:
    from proxdasa.experiments.topology import MIXING_NAMES  # noqa: PLC0415

    graph, mixing, budget = name.split("-")
    rho = setup.network.rho
    return reports.GraphRun(run, graph, rho, MIXING_NAMES[mixing], setup.mixing.rounds_for(rho), int(budget))


def _choose(given: str | None, known: Sequence[str]) -> list[str]:
    """The methods that --algorithms names, in the order of the paper's table."""
    if given is None:
        return list(known)
    asked = [part.strip() for part in given.split(",")]
    for method in asked:
        if method not in known:
            raise ValueError(f"--algorithms: there is no {method!r} in this preset; accepted: {', '.join(known)}")
    return [method for method in known if method in asked]


def _load(output: Path, setups: Mapping[str, Setup]) -> dict[str, reports.Run]:
    """The saved runs of a series by name, in its order."""
    return {name: run for name in setups for run in reports.load_runs([output / name])}


def _show_study(title: str, sheet: reports.Sheet, output: Path, draw: Callable[[Path], Path]) -> None:
    """Show the table in brief, write it and the figure, and say where they are."""
    show_table(title, reports.shorten_comparison(sheet))
    show_written([*sheet.write(output), draw(output / "figure.png")])
