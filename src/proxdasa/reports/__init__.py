"""Tables, figures and a page from results folders alone; nothing here runs anything."""

from typing import TYPE_CHECKING

from proxdasa.lazy_names import lazy_names

if TYPE_CHECKING:
    from proxdasa.reports import plan_tables, tuning_results
    from proxdasa.reports.axis_quantities import AXES, quantity
    from proxdasa.reports.budget_summaries import BudgetSummary
    from proxdasa.reports.comparison import Comparison, default_measures
    from proxdasa.reports.comparison import compare as compare_runs
    from proxdasa.reports.curves import Curve, Run, Spread, finals
    from proxdasa.reports.experiment_figures import (
        LEVEL_MEASURES,
        GraphRun,
        draw_levels,
        draw_rounds,
        plateau_sheet,
        rounds_sheet,
    )
    from proxdasa.reports.figures import draw, draw_comparison, draw_runs, drawable, second_half, shown_curve
    from proxdasa.reports.loading import load_runs, salvage
    from proxdasa.reports.page import write_page
    from proxdasa.reports.panels import Panel, draw_panels
    from proxdasa.reports.ranking import quantity_of
    from proxdasa.reports.rates_figures import Rates, RingRun, draw_rates, rates_sheet, transients_sheet
    from proxdasa.reports.robustness_figures import (
        ImperfectRun,
        draw_bytes,
        draw_imperfections,
        draw_rules,
        robustness_sheet,
        rules_sheet,
    )
    from proxdasa.reports.table_files import Cell, Sheet
    from proxdasa.reports.tables import Line, Slope, Table, compare, end_sheet, shorten_comparison, summarise, write_csv
    from proxdasa.reports.texts import visible
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "AXES",
    "LEVEL_MEASURES",
    "BudgetSummary",
    "Cell",
    "Comparison",
    "Curve",
    "GraphRun",
    "ImperfectRun",
    "Line",
    "Panel",
    "Rates",
    "RingRun",
    "Run",
    "Sheet",
    "Slope",
    "Spread",
    "Table",
    "compare",
    "compare_runs",
    "default_measures",
    "draw",
    "draw_bytes",
    "draw_comparison",
    "draw_imperfections",
    "draw_levels",
    "draw_panels",
    "draw_rates",
    "draw_rounds",
    "draw_rules",
    "draw_runs",
    "drawable",
    "end_sheet",
    "finals",
    "load_runs",
    "plan_tables",
    "plateau_sheet",
    "quantity",
    "quantity_of",
    "rates_sheet",
    "robustness_sheet",
    "rounds_sheet",
    "rules_sheet",
    "salvage",
    "second_half",
    "shorten_comparison",
    "shown_curve",
    "summarise",
    "transients_sheet",
    "tuning_results",
    "visible",
    "write_csv",
    "write_page",
]
