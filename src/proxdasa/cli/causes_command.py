"""``proxdasa reproduce causes``: what explains the difference between the two presets on MNIST."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from proxdasa import reports
from proxdasa.cli.display import input_errors, output_option, say, show_table, show_written
from proxdasa.cli.outcomes import exit_if_diverged, run_all
from proxdasa.cli.reproduce_options import Overwrite, Seed, Trials
from proxdasa.cli.shared_options import Device, Jobs
from proxdasa.experiment_choices import CAUSES, LEFT


def causes(
    iterations: Annotated[int, typer.Option(min=1, help="K; the paper has 3,000.")] = 500,
    trials: Trials = 10,
    seed: Seed = 0,
    output: Annotated[Path, output_option("Folder for results and table.")] = Path("results/causes"),
    overwrite: Overwrite = False,
    jobs: Jobs = None,
    device: Device = None,
) -> None:
    """Change what the presets do differently on MNIST one thing at a time: Prox-DASA's start, penalty, data and steps.

    Takes 30 to 45 minutes on one core. Finished runs of the same settings in the output folder are reused. The data:
    [b]proxdasa data fetch mnist[/].
    """
    from proxdasa.experiments.causes import causes as plan  # noqa: PLC0415 - imports PyTorch

    with input_errors():
        setups = plan(iterations, trials, seed)
    say(f"Prox-DASA on MNIST, K = {iterations}, {trials} trials, {len(setups)} runs")
    results = run_all(setups, output, overwrite, jobs, device)
    with input_errors():
        runs = {CAUSES[name]: run for name in setups for run in reports.load_runs([output / name])}
        sheet = reports.plateau_sheet(runs, LEFT)
        show_table(f"after {iterations} iterations", replace(sheet, short=True, notes=sheet.notes[:1]))
        show_written(sheet.write(output))
    exit_if_diverged(results)
