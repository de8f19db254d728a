"""Configuration files: a run written down, and the objects that it names."""

from proxdasa.configs.automatic import asks_auto, fill
from proxdasa.configs.objects import ConfigError
from proxdasa.configs.reading import build, load, read

__all__ = ["ConfigError", "asks_auto", "build", "fill", "load", "read"]
