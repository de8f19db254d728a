"""The options that the commands of ``proxdasa reproduce`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxdasa.cli.display import output_option
from proxdasa.experiment_choices import NAMES
from proxdasa.experiment_choices import Preset as Presets

Output = Annotated[Path | None, output_option("Folder for results, table and figure.")]
Trials = Annotated[int, typer.Option(min=1, help="Independent repetitions, run as one stacked computation.")]
Seed = Annotated[int, typer.Option(min=0, help="The seed of all random samples.")]
Overwrite = Annotated[bool, typer.Option(help="Remove earlier results of these runs and run all again.")]
Iterations = Annotated[int | None, typer.Option(min=1, help="K; default: the paper's.")]
Preset = Annotated[
    Presets,
    typer.Option(
        help="[b]as-published[/]: what the authors' scripts compute (but ProxGT-SR-E as its own paper has it). "
        "[b]paper[/]: the paper's loss, λ and Algorithm 2, γ and α tuned on its grid."
    ),
]
Algorithms = Annotated[
    str | None,
    typer.Option(help=f"Methods separated by commas, of {', '.join(NAMES)}; default: those of the preset."),
]
