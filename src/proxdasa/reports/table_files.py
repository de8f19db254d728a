"""A table as people read it, in Markdown and LaTeX, and as programs do, in comma-separated values."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxdasa import disk
from proxdasa.reports.curves import Spread
from proxdasa.reports.latex_texts import latex
from proxdasa.reports.texts import visible

Cell = str | float | Spread
"""NaN stands for an unknown number."""

UNKNOWN = "—"
INTERVALS = (
    "± is half the width of the 95% confidence interval of the mean over trials; brackets hold the smallest and the "
    "largest trial."
)

FORMULA = tuple("=+-@＝＋－＠")
"""Characters that make a spreadsheet take a text for a formula, and run it."""


@dataclass(frozen=True)
class Sheet:
    """A table with notes below it.

    Examples:
        >>> from pathlib import Path
        >>> sheet = reports.Sheet({"method": "method", "loss": "final loss"}, [["D-PSGD", 0.25], ["D²", 0.125]])
        >>> print(sheet.write_markdown(Path("table.md")).read_text().strip())
        | method | final loss |
        | --- | ---: |
        | D-PSGD | 0.25 |
        | D² | 0.125 |
    """

    columns: Mapping[str, str]
    """The headings that people read, by the column names that programs use."""
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    bold: frozenset[tuple[int, int]] = frozenset()
    """The cells that stand out in Markdown and LaTeX, as (row, column)."""

    caption: str = ""
    """What a paper says above the table: LaTeX makes a float of it, and Markdown begins the notes with it."""
    short: bool = False
    """Whether people see means and intervals only; the smallest and the largest trial are then in the CSV alone."""

    def texts(self, brief: bool = False) -> list[list[str]]:
        """The cells as text; ``brief`` leaves out the smallest and the largest trial."""
        return [[_without_ends(cell) if brief or self.short else text(cell) for cell in row] for row in self.rows]

    def brief(self, note: str) -> Sheet:
        """The table for a terminal: no smallest and largest trials, a star at what is bold, and a note that says so."""
        cells = self._emphasize(self.texts(brief=True), "", " *")
        return Sheet(self.columns, cells, [text for text in (self.caption, *self.notes, note) if text])

    def write(self, folder: Path) -> list[Path]:
        """Write the table to a folder as Markdown, CSV and LaTeX."""
        stem = folder / "table"
        return [
            self.write_markdown(stem.with_suffix(".md")),
            self.write_csv(stem.with_suffix(".csv")),
            self.write_latex(stem.with_suffix(".tex")),
        ]

    def write_csv(self, path: Path) -> Path:
        """Write the numbers in full precision; a spread over trials takes four columns. Notes are left out."""
        spreads = [any(isinstance(row[i], Spread) for row in self.rows) for i in range(len(self.columns))]
        parts = ["", "_half_width", "_lowest", "_highest"]
        heading: list[str | float] = []
        for name, wide in zip(self.columns, spreads, strict=True):
            heading += [name + part for part in (parts if wide else parts[:1])]
        flat = [[x for cell, wide in zip(row, spreads, strict=True) for x in _parts(cell, wide)] for row in self.rows]
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([[_inert(x) for x in line] for line in [heading, *flat]])
        return write_text(path, lines.getvalue())

    def markdown(self) -> str:
        """The table in Markdown with the notes as paragraphs below; numbers are aligned to the right."""
        rule = ["---:" if number else "---" for number in self._numbers()]
        body = self._emphasize([[cell.replace("|", r"\|") for cell in row] for row in self.texts()], "**", "**")
        heading = [cell.replace("|", r"\|") for cell in self.columns.values()]
        table = ["| " + " | ".join(line) + " |" for line in (heading, rule, *body)]
        return _lines(*table, *(f"\n{note}" for note in (self.caption, *self.notes) if note))

    def write_markdown(self, path: Path) -> Path:
        """Write the table in Markdown."""
        return write_text(path, self.markdown())

    def write_latex(self, path: Path) -> Path:
        """Write a table for the package booktabs, with the notes as paragraphs below it."""
        alignment = "".join("r" if number else "l" for number in self._numbers())
        cells = [list(map(_latex, row, texts)) for row, texts in zip(self.rows, self.texts(), strict=True)]
        body = self._emphasize(cells, r"\textbf{", "}")
        heading = list(map(latex, self.columns.values()))
        first, *rest = (_no_argument(" & ".join(line)) + r" \\" for line in (heading, *body))
        table = [r"\toprule", first, r"\midrule", *rest, r"\bottomrule"]
        notes = [f"\n{{\\footnotesize {latex(note)}\\par}}" for note in self.notes]
        room = ["\n\\smallskip"] if notes else []  # because a rule leaves none below it
        lines = [rf"\begin{{tabular}}{{{alignment}}}", *table, r"\end{tabular}", *room, *notes]
        if self.caption:
            caption = rf"\caption{{{latex(self.caption)}}}"
            lines = [r"\begin{table}", r"\centering", caption, *lines, r"\end{table}"]
        return write_text(path, _lines(*lines))

    def _emphasize(self, rows: list[list[str]], before: str, after: str) -> list[list[str]]:
        """The cells with marks around those that are bold."""
        return [
            [f"{before}{cell}{after}" if (i, j) in self.bold else cell for j, cell in enumerate(row)]
            for i, row in enumerate(rows)
        ]

    def _numbers(self) -> list[bool]:
        return [
            any(not isinstance(row[i], str) for row in self.rows) or not self.rows for i in range(len(self.columns))
        ]


def text(cell: Cell) -> str:
    """A cell as text: "84.71 ± 0.12 [84.40, 85.00]" for 84.7123 ± 0.1234 over trials from 84.4 to 85.0.

    The half width has two significant digits, and the other numbers are rounded to the same place, but the smallest and
    the largest trial keep at least two digits. A number without a half width has four.
    """
    if isinstance(cell, str | int):
        return str(cell)
    if not isinstance(cell, Spread):
        return UNKNOWN if math.isnan(cell) else f"{cell:.4g}"
    mean, half, lowest, highest = cell
    if not half > 0:
        return text(mean) + (" ± 0" if half == 0 else "")
    place = _place(half)
    low, high = (_to_place(end, min(place, _place(end))) for end in (lowest, highest))
    return f"{_to_place(mean, place)} ± {_to_place(half, place)} [{low}, {high}]"


def _without_ends(cell: Cell) -> str:
    """The text of a cell without the smallest and the largest trial; a name may have brackets of its own."""
    return text(cell).partition(" [")[0] if isinstance(cell, Spread) else text(cell)


def _latex(cell: Cell, shown: str) -> str:
    """The text of a cell for LaTeX; numbers have a minus sign and powers of ten, texts are left as they are."""
    if isinstance(cell, str):
        return latex(shown)
    parts = re.split(r"e([+-]\d+)", shown)  # every second part is an exponent
    parts[::2] = [latex(part.replace("-", "−")) for part in parts[::2]]
    parts[1::2] = [rf"$\cdot 10^{{{int(part)}}}$" for part in parts[1::2]]
    return "".join(parts)


def _no_argument(row: str) -> str:
    r"""The row, written so that ``\\`` before it does not take its beginning for an argument."""
    return f"{{}}{row}" if row.startswith(("[", "*")) else row


def _parts(cell: Cell, wide: bool) -> Sequence[str | float]:
    """A cell as the columns of a file: four for a spread, and as many for a text that stands in the place of one."""
    if isinstance(cell, Spread):
        return cell
    return (cell, "", "", "") if wide else (cell,)


def _place(number: float) -> int:
    """The power of ten of the second significant digit of a number."""
    return int(f"{number:.1e}".partition("e")[2]) - 1


def _to_place(number: float, place: int) -> str:
    """A number rounded to a power of ten."""
    if place < -6 and abs(number) < 1e-3:
        return f"{number:.{max(0, _place(number) + 1 - place)}e}"
    return f"{round(number, -place):.{max(0, -place)}f}"


def _inert(cell: str | float) -> str | float:
    """A cell in one line that no spreadsheet executes: a text that begins like a formula gets an apostrophe."""
    if not isinstance(cell, str):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{visible(cell)}" if cell.startswith(FORMULA) else visible(cell)
    return cell.strip()


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def write_text(path: Path, text: str) -> Path:
    """Write a text file. A file of that name is replaced, and a link is not followed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    disk.replace(path, text.encode())
    return path
