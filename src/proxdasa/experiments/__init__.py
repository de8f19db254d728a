"""The paper's experiments and two of our own as presets, and configuration files."""

from proxdasa.experiments.config import read
from proxdasa.experiments.heterogeneity import heterogeneity
from proxdasa.experiments.objects import ConfigError
from proxdasa.experiments.series import Announce, run_series
from proxdasa.experiments.speedup import speedup
from proxdasa.experiments.topology import topology

__all__ = ["Announce", "ConfigError", "heterogeneity", "read", "run_series", "speedup", "topology"]
