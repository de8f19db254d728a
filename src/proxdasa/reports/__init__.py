"""Tables, figures and a page from results folders alone; nothing here runs anything."""

from proxdasa.reports.axis_quantities import words
from proxdasa.reports.curves import Curve, Run, Spread, finals
from proxdasa.reports.figures import draw, draw_comparison, drawable, second_half, shown_curve
from proxdasa.reports.loading import load_runs, salvage
from proxdasa.reports.page import write_page
from proxdasa.reports.panels import Panel, draw_panels
from proxdasa.reports.ranking import named
from proxdasa.reports.table_files import Cell, Sheet
from proxdasa.reports.tables import Line, Slope, Table, compare, summarise, write_csv
from proxdasa.reports.texts import visible

__all__ = [
    "Cell",
    "Curve",
    "Line",
    "Panel",
    "Run",
    "Sheet",
    "Slope",
    "Spread",
    "Table",
    "compare",
    "draw",
    "draw_comparison",
    "draw_panels",
    "drawable",
    "finals",
    "load_runs",
    "named",
    "salvage",
    "second_half",
    "shown_curve",
    "summarise",
    "visible",
    "words",
    "write_csv",
    "write_page",
]
