"""The command report: a table and a figure or page of the runs in results folders."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from proxdasa import reports
from proxdasa.cli.display import input_errors, output_option, show_report, show_warning
from proxdasa.runs import records


def report(
    folders: Annotated[list[Path], typer.Argument(help="Results folders, or folders that hold several.")],
    target: Annotated[
        float | None,
        typer.Option(help="The loss to reach; default: twice the worst final loss, less in short runs."),
    ] = None,
    axis: Annotated[
        str,
        typer.Option(help=f"What to draw against: {', '.join(reports.AXES)}."),
    ] = "k",
    html: Annotated[
        bool,
        typer.Option("--html", help="Instead of the figure, write an HTML page, to look at and to share."),
    ] = False,
    output: Annotated[
        Path | None,
        output_option("Folder for the files; default: that of the results, or . for several."),
    ] = None,
) -> None:
    """Draw the figure and print the table of finished runs, from their records alone.

    Nothing outside the folders is opened. Runs that cannot be read are left out with a warning.
    """
    with input_errors():
        if html and axis != "k":
            raise ValueError("--axis is for the figure; on a page of --html you choose among all of them")
        if target is not None and not math.isfinite(target):
            raise ValueError(f"--target is a loss to reach, a finite number; got {target}")
        found, missing = find_results(folders)
        runs, faults = reports.salvage(found)
        faults = [*map(reports.visible, missing), *faults]
        for fault in faults:
            show_warning(fault)
        place = output or (folders[0] if len(folders) == 1 else Path())
        summary = reports.summarise(runs, target)
        if html:
            title = reports.visible(", ".join(folder.resolve().name for folder in folders))
            written = {"page": reports.write_page(place / "report.html", title, runs, summary, faults)}
        else:
            shown, left_out = reports.drawable(runs)
            if left_out:
                show_warning(left_out)
            written = {"figure": reports.draw(shown, place / "report.png", axis)}
        written["table"] = reports.write_csv(summary, place / "report.csv")
        show_report(runs, summary, written)


def find_results(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The results at or below some folders, each once, and a sentence on each that is missing."""
    found: dict[Path, Path] = {}
    missing: list[str] = []
    for folder in folders:
        below = sorted(records.folders_below(folder))
        begun = [place for place in below if os.path.lexists(place / records.CHECKPOINTS / records.CONFIG)]
        unfinished = [
            f"{run} holds checkpoints of a run and no records yet; unless it is still running, "
            f"proxdasa resume {run} continues it"
            for run in begun
            if not os.path.lexists(run / records.RECORDS)
        ]
        missing += unfinished
        try:
            found |= {path.resolve(): path for path in records.find_results(folder)}
        except FileNotFoundError as error:
            if not folder.is_dir():
                raise
            missing += [] if unfinished else [str(error)]
    if not found:
        raise FileNotFoundError("; ".join(missing))
    return list(found.values()), missing
