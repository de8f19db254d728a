"""Configuration files: a run written down, and the objects that it names."""

from typing import TYPE_CHECKING

from proxdasa.lazy_names import lazy_names

if TYPE_CHECKING:
    from proxdasa.configs import calls, network_expressions, objects
    from proxdasa.configs.automatic import asks_auto, fill
    from proxdasa.configs.reading import build, read
    from proxdasa.configs.settings_file import ConfigError, load
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["ConfigError", "asks_auto", "build", "calls", "fill", "load", "network_expressions", "objects", "read"]
