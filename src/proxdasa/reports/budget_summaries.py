"""One measure of the same runs at several budgets, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxdasa.reports.axis_quantities import cost_text, quantity
from proxdasa.reports.comparison import Comparison
from proxdasa.reports.ranking import quantity_of
from proxdasa.reports.table_files import Cell, Sheet


@dataclass(frozen=True)
class BudgetSummary:
    """Comparisons of the same runs, one for each kind of cost."""

    comparisons: Sequence[Comparison]
    measure: str

    @property
    def title(self) -> str:
        """What the numbers are."""
        return f"{quantity_of(self.measure, self.comparisons[0].runs).name} at equal budgets"

    def sheet(self) -> Sheet:
        """A row for each run, and a column for each budget."""
        sheets = [each.sheet() for each in self.comparisons]
        columns = {name: heading for name, heading in sheets[0].columns.items() if name in ("method", "run", "trials")}
        before = len(columns)
        rows: list[list[Cell]] = [list(row[:before]) for row in sheets[0].rows]
        bold = set()
        for comparison, sheet in zip(self.comparisons, sheets, strict=True):
            place = list(sheet.columns).index(self.measure)
            bold |= {(i, len(columns)) for i, j in sheet.bold if j == place}
            columns[f"{self.measure}_by_{comparison.axis}"] = f"after {cost_text(comparison.budget, comparison.axis)}"
            for row, cells in zip(rows, sheet.rows, strict=True):
                row.append(cells[place])
        notes = [
            f"{quantity(self.measure).name}: {self.comparisons[0].statistics}",
            *dict.fromkeys(note for sheet in sheets for note in sheet.notes),
        ]
        return Sheet(columns, rows, notes, frozenset(bold), short=True)
