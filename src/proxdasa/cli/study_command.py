"""The command study: methods tuned with the same budget, then compared at equal budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxdasa import configs, reports, tuning
from proxdasa.cli.display import err, input_errors, output_option, say, show_table, show_written
from proxdasa.cli.outcomes import run_all
from proxdasa.cli.progress_display import add_audience_options, note
from proxdasa.cli.shared_options import Device, Jobs
from proxdasa.exit_codes import Code

if TYPE_CHECKING:
    from proxdasa.configs import StudyFile

BUDGETS = ("gradients", "rounds", "bytes", "seconds")
"""The costs at equal amounts of which the runs are compared."""
MOST_NETWORKS = 4
"""The most networks that a figure can distinguish, by dashes."""
Pair = tuple[str, str]
"""A method and a network."""


@add_audience_options
def study(
    file: Annotated[Path, typer.Argument(help="The TOML file of a study; see docs/comparing.md.")],
    output: Annotated[Path, output_option("Folder for everything: searches, runs, tables, figures, the page.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove an earlier study and start over.")] = False,
    jobs: Jobs = None,
    device: Device = None,
) -> None:
    """Compare methods fairly: tune each with the same budget, then run and compare them at equal budgets.

    Every method tries the same number of settings, on a seed that the runs do not use, by the same measure. All runs
    have the same budget of gradients, rounds or vectors, and are compared at equal gradients, rounds, bytes and
    seconds.
    A diverged trial counts as a defeat, and so does a method all of whose settings diverge.
    The same command continues a study that was interrupted or killed.

    For example [b]proxdasa study study.toml --output results/study --jobs 2[/].
    """
    with input_errors():
        configs.load(file)  # a file that cannot be read is refused before PyTorch is imported
    from proxdasa import experiments  # noqa: PLC0415

    with input_errors():
        plan = configs.read_study(file, device)
        _check_networks(plan)
        table = plan.tuning
        assert table.seed is not None
        assert table.trials is not None
        searches = experiments.plan_searches(
            plan.setups,
            plan.ranges,
            table.measure,
            table.settings,
            plan.search_budget,
            table.seed,
            table.trials,
            plan.axis,
        )
        if overwrite:  # the runs too, and first: an interruption leaves no mixture of old and new
            for pair in plan.setups:
                experiments.remove_results(output / _run(pair))
    note(f"{len(searches)} searches of {next(iter(searches.values())).size}")
    sweeps = {_sweep(pair): search.setup for pair, search in searches.items()}
    with tuning.expect_divergence():
        results = run_all(sweeps, output, overwrite, jobs)
    with input_errors():
        found = {pair: search.rank(results[_sweep(pair)], table.measure) for pair, search in searches.items()}
        for pair, tuned in found.items():
            tuned.write((output / _sweep(pair)).parent)
        setups = {
            _run(pair): experiments.tuned_setup(plan.setups[pair], tuned, plan.budget, plan.observe_every, plan.axis)
            for pair, tuned in found.items()
            if not tuned.ranking[0].fault
        }
    settings = _settings_sheet(plan, found)
    show_table(f"settings with the best {reports.quantity(table.measure).name} of a search", settings)
    if not setups:
        say("no method is left: all settings of every method diverged; smaller step sizes may help", err)
        raise typer.Exit(Code.DIVERGED)
    with tuning.expect_divergence():
        run_all(setups, output, False, jobs)
    with input_errors():
        written = [settings.write_markdown(output / "settings.md"), settings.write_csv(output / "settings.csv")]
        _report(plan, output, [pair for pair, tuned in found.items() if tuned.ranking[0].fault], written)


def _check_networks(plan: StudyFile) -> None:
    networks = {network for _, network in plan.setups}
    if len(networks) > MOST_NETWORKS:
        raise ValueError(
            f"networks: a figure can distinguish {MOST_NETWORKS}, but there are {len(networks)}; make several studies"
        )


def _sweep(pair: Pair) -> str:
    return f"tuning/{'-'.join(pair)}/{tuning.SWEEP}"


def _run(pair: Pair) -> str:
    return f"runs/{'-'.join(pair)}"


def _settings_sheet(plan: StudyFile, found: Mapping[Pair, tuning.Tuning]) -> reports.Sheet:
    """The settings that each method tried, and the best of them."""
    measure, rows = plan.tuning.measure, list[list[reports.Cell]]()
    for (method, network), tuned in found.items():
        best = tuned.ranking[0]
        chosen = ", ".join(f"{name} = {number:g}" for name, number in best.parameters.items())
        end = reports.tuning_results.ranking([best], measure).rows[0][-2 if best.fault else -1]
        setup = plan.setups[method, network]
        rows.append(
            [setup.algorithm.facts.title, setup.network.label, len(tuned.ranking),
             "none: every setting diverged" if best.fault else chosen, end]
        )  # fmt: skip
    columns = {"method": "method", "graph": "network", "settings": "tried", "rule": "chosen"}
    notes = [
        f"{reports.quantity(measure).name} after {plan.search_budget:,} {reports.quantity(plan.axis).name}, seed "
        f"{plan.tuning.seed}, {plan.tuning.trials} trial{'s' * (plan.tuning.trials != 1)} of each setting"
    ]
    notes += [
        f"{plan.setups[pair].algorithm.facts.title} on {plan.setups[pair].network.label}: {text}"
        for pair, tuned in found.items()
        for text in tuned.notes
    ]
    return reports.Sheet({**columns, measure: reports.quantity(measure).name}, rows, notes, short=True)


def _report(plan: StudyFile, output: Path, lost: list[Pair], written: list[Path]) -> None:
    """Compare the runs at each budget, and write the tables, the figures and the page."""
    folders = {output / _run(pair): pair for pair in plan.setups if pair not in lost}
    by = "network" if len({network for _, network in plan.setups}) > 1 else None
    comparisons = []
    for axis in BUDGETS:
        budget = plan.budget if axis == plan.axis else None
        measures = list(
            dict.fromkeys([plan.tuning.measure, *reports.default_measures(reports.load_runs(list(folders)))])
        )
        comparison = reports.compare_runs(list(folders), measures, axis, by, budget)
        named = {
            folders[run.folder][1]: group
            for run, group in zip(comparison.runs, comparison.groups, strict=True)
            if run.folder is not None
        }
        losers = [(plan.setups[pair].algorithm.facts.title, named.get(pair[1], pair[1])) for pair in lost]
        comparisons.append(replace(comparison, lost=losers))
        written += comparisons[-1].write(output, latex=True, name=f"comparison-{axis}")
    summary = reports.BudgetSummary(comparisons, plan.tuning.measure)
    sheet = summary.sheet()
    written += [sheet.write_markdown(output / "summary.md"), sheet.write_csv(output / "summary.csv")]
    title = reports.visible(output.resolve().name)
    runs, groups = comparisons[0].runs, comparisons[0].groups if by else None
    written.append(reports.write_page(output / "report.html", title, runs, summary, others=groups))
    show_table(summary.title, sheet.brief("* is bold in the files."))
    show_written(written)
