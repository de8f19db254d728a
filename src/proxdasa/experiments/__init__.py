"""Presets of the paper's experiments and of our own, and a function that runs several set-ups as a series."""

from proxdasa.experiments.equal_budgets import affordable, plan_searches, tuned_setup
from proxdasa.experiments.heterogeneity import heterogeneity
from proxdasa.experiments.rates import rates
from proxdasa.experiments.robustness import robustness
from proxdasa.experiments.series import Announce, remove_results, run_series
from proxdasa.experiments.speedup import speedup
from proxdasa.experiments.topology import topology

__all__ = [
    "Announce",
    "affordable",
    "heterogeneity",
    "plan_searches",
    "rates",
    "remove_results",
    "robustness",
    "run_series",
    "speedup",
    "topology",
    "tuned_setup",
]
