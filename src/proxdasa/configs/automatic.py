"""The value "auto" in a configuration file: a step size to be found by a quick search before the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxdasa.configs.settings_file import ConfigError

AUTO = "auto"
STEP = "gamma"
"""The parameter of a method that may be automatic."""
ALGORITHM = "algorithm"

Settings = Mapping[str, Any]


def asks_auto(settings: Settings) -> bool:
    """Whether a table of settings has gamma = "auto" for its method."""
    method = settings.get(ALGORITHM)
    return isinstance(method, Mapping) and method.get(STEP) == AUTO


def fill(settings: Settings, found: Settings, note: str | None = None) -> dict[str, Any]:
    """The settings with the values that were found in place of "auto", and a note on how, after any earlier note."""
    filled = {**settings, ALGORITHM: {**settings[ALGORITHM], **found}}
    notes = [text for text in (settings.get("note"), note) if isinstance(text, str)]
    return filled | ({"note": "; ".join(notes)} if notes else {})


def refuse_auto(settings: Settings) -> None:
    """Refuse settings with gamma = "auto" where no search takes place."""
    if asks_auto(settings):
        raise ConfigError(
            f'{ALGORITHM}.{STEP}: "auto" is for proxdasa run, which searches for a value first; '
            "proxdasa tune FILE --quick finds one to write down here"
        )
