"""gamma = "auto" in the file of a run: a quick search first, and a file with numbers for the run itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from proxdasa import configs, disk, engines, tuning
from proxdasa.cli.display import err, say
from proxdasa.cli.outcomes import outcomes
from proxdasa.cli.progress_display import note, progress
from proxdasa.exit_codes import Code
from proxdasa.runs import records

if TYPE_CHECKING:
    from proxdasa.runs.setup import Setup

FILLED = "auto.json"
"""The file with the values that were found, in the results folder."""
ANY = 1.0
"""A placeholder for γ in the set-up of a search, which puts the values that it tries in its place."""


def settle(
    file: Path, output: Path, make_room: Callable[[], None], adapt: Callable[[Setup], Setup], device: str | None
) -> Path:
    """The file itself or, if it has gamma = "auto", a file in ``output`` with the values that a quick search found.

    ``adapt`` turns the setup of the file into that of the run, with what the command line adds.
    The search takes place before processes are launched, and they read the file that it has written.
    """
    with outcomes(output):
        settings = configs.load(file)
        if not configs.asks_auto(settings):
            return file
        from proxdasa.descriptions import describe  # noqa: PLC0415 - imports PyTorch

        if engines.several():
            raise ValueError(
                f'{file}: algorithm.gamma: "auto" is searched for by one process; use --processes in place of torchrun '
                "or mpiexec, or proxdasa tune FILE --quick first, and write the numbers that it finds into the file"
            )
        setup = adapt(configs.read(file, auto=ANY, device=device))
        averaging = setup.algorithm.facts.averaging
        given = [averaging.step_size] if averaging and averaging.step_size in settings["algorithm"] else []
        with records.claim(output):
            make_room()
            found = search(setup, tuning.default_settings(setup, given), output)
            if found.ranking[0].fault:
                raise ValueError(f'{file}: gamma = "auto" found nothing: every setting {found.ranking[0].fault}')
            described = describe(found.algorithm)
            values = {name: described[name] for name in found.best}
            how = f'gamma = "auto": {" and ".join(found.best)} by a quick search, {found.cost}'
            note(f"{', '.join(f'{name} = {value:g}' for name, value in found.best.items())}: {found.cost}")
            text = json.dumps(configs.fill(settings, values, how), indent=2) + "\n"
            disk.replace(output / FILLED, text.encode())
            forget_rungs(output)
    return output / FILLED


def search(setup: Setup, settings: list[tuning.Setting], output: Path, measure: str = "objective") -> tuning.Halving:
    """A quick search, with its progress on the terminal; the same command continues it where it was interrupted."""
    from proxdasa.runs.saving import Saving  # noqa: PLC0415 - imports PyTorch

    saving = Saving(output / tuning.RUNGS, max(1, setup.iterations // 10))
    try:
        with progress(output=output) as announce:
            return tuning.halve(setup, settings, measure, progress=announce("quick search", setup), saving=saving)
    except KeyboardInterrupt:
        say("interrupted; what the search has found out is kept: the same command, without --overwrite, continues", err)
        raise typer.Exit(Code.INTERRUPTED) from None


def forget_rungs(output: Path) -> None:
    """Remove the checkpoints of a quick search."""
    shutil.rmtree(output / tuning.RUNGS, ignore_errors=True)
