"""The paper's experiments as presets, and configuration files."""

from proxdasa.experiments.config import read
from proxdasa.experiments.objects import ConfigError
from proxdasa.experiments.series import Announce, run_series
from proxdasa.experiments.speedup import speedup

__all__ = ["Announce", "ConfigError", "read", "run_series", "speedup"]
