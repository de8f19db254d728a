"""Tables and figures from results folders alone; nothing here runs anything."""

from proxdasa.reports.curves import Run, load_runs
from proxdasa.reports.figures import draw
from proxdasa.reports.tables import Line, Slope, Table, summarise, write_csv

__all__ = ["Line", "Run", "Slope", "Table", "draw", "load_runs", "summarise", "write_csv"]
