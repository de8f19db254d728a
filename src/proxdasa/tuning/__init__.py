"""Tuning: many settings of a method's parameters in one run.

Trials are stacked anyway and parameters may differ by trial, so S settings with R trials each are one run of S · R
trials. All settings see the same samples, starting points and events (`problems.Repeated`): each block of R trials is
the run that `proxdasa.run` would make with its setting, so settings differ by their parameters alone.
"""

from typing import TYPE_CHECKING

from proxdasa.lazy_names import lazy_names

if TYPE_CHECKING:
    from proxdasa.tuning.default_range import default_settings
    from proxdasa.tuning.halving import RUNGS, Halving, Rung, halve
    from proxdasa.tuning.method_parameters import stack_settings, tunable, with_parameters
    from proxdasa.tuning.ranked_settings import Outcome, larger_is_better, rank
    from proxdasa.tuning.search import SWEEP, Search, Tuning, expect_divergence
    from proxdasa.tuning.settings import Setting, choose, combinations, draws
    from proxdasa.tuning.tune_function import tune
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "RUNGS",
    "SWEEP",
    "Halving",
    "Outcome",
    "Rung",
    "Search",
    "Setting",
    "Tuning",
    "choose",
    "combinations",
    "default_settings",
    "draws",
    "expect_divergence",
    "halve",
    "larger_is_better",
    "rank",
    "stack_settings",
    "tunable",
    "tune",
    "with_parameters",
]
