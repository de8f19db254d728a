"""Configuration files: a run written down, and the objects that it names."""

from proxdasa.configs.objects import ConfigError
from proxdasa.configs.reading import build, read

__all__ = ["ConfigError", "build", "read"]
