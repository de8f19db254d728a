"""Configuration files: a run written down, and the objects that it names."""

from typing import TYPE_CHECKING

from proxdasa.lazy_names import lazy_names

if TYPE_CHECKING:
    from proxdasa.configs import calls, network_expressions, objects
    from proxdasa.configs.automatic import asks_auto, fill
    from proxdasa.configs.reading import build, read
    from proxdasa.configs.settings_file import ConfigError, load
    from proxdasa.configs.study_files import StudyFile, read_study
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ConfigError",
    "StudyFile",
    "asks_auto",
    "build",
    "calls",
    "fill",
    "load",
    "network_expressions",
    "objects",
    "read",
    "read_study",
]
