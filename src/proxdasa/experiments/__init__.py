"""The paper's experiments and two of our own as presets, and series of runs."""

from proxdasa.experiments.heterogeneity import heterogeneity
from proxdasa.experiments.series import Announce, run_series
from proxdasa.experiments.speedup import speedup
from proxdasa.experiments.topology import topology

__all__ = ["Announce", "heterogeneity", "run_series", "speedup", "topology"]
