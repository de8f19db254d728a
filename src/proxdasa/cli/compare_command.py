"""The command compare: methods next to each other at an equal budget, as a figure and a table for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxdasa import reports
from proxdasa.cli.display import input_errors, output_option, show_table, show_warning, show_written
from proxdasa.cli.report_command import find_results


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Results folders, or folders that hold several.")],
    measures: Annotated[
        str | None,
        typer.Option(help="Measures separated by commas, such as objective,accuracy; default: the usual ones."),
    ] = None,
    axis: Annotated[
        str, typer.Option(help=f"The cost that is equal for all runs: {', '.join(reports.AXES)}.")
    ] = "gradients",
    by: Annotated[
        str | None,
        typer.Option(help="What differs besides the method, such as network; shown by the dashes of a curve."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="How much of that cost; default: what every run has spent, except those that diverged or converged."
        ),
    ] = None,
    width: Annotated[str, typer.Option(help="The width of the figure in a paper: column or page.")] = "page",
    pdf: Annotated[bool, typer.Option("--pdf", help="Write the figure as PDF, with fonts embedded.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Write the table for LaTeX too (booktabs).")] = False,
    output: Annotated[Path, output_option("Folder for the figure and the table.")] = Path(),
) -> None:
    """Compare finished runs at an equal budget: one figure and one table, ready for a paper.

    The colour shows the method. In the table the best run is bold, and so are those that a paired test over the shared
    seeds does not find worse; the caption names the test. A run with a diverged trial is never bold.
    """
    with input_errors():
        found, missing = find_results(folders)
        for fault in missing:
            show_warning(reports.visible(fault))
        wanted = None if measures is None else [name.strip() for name in measures.split(",") if name.strip()]
        if wanted == []:
            raise ValueError("--measures names no measure; give some, such as objective,accuracy, or leave it out")
        comparison = reports.compare_runs(found, wanted, axis, by, budget)
        written = comparison.write(output, pdf, latex, width)
        sheet, number = comparison.sheet(), len(comparison.runs)
        title = f"{number} runs compared" if number > 1 else "one run, and nothing to compare it with"
        show_table(title, sheet.brief("* is bold in the files." if sheet.bold else ""))
        show_written(written)
