"""A configuration file as a table of plain values; `proxdasa.configs.reading` makes a run of it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from proxdasa import memory_budget

WEIGHT = 50
"""Bytes of memory for each byte of a file while it is read: in a list of digits each byte becomes a Python object."""
WRITTEN_BY_SAVE = ("facts", "ending", "site")
"""Keys of a saved config.json that describe the run rather than set it."""


class ConfigError(ValueError):
    """A configuration that cannot be used, in one line: file, key, and what is accepted."""


def load(path: Path) -> dict[str, Any]:
    """The table of settings in a TOML file or in the config.json of saved results."""
    form = "JSON" if path.suffix == ".json" else "TOML"
    try:
        with path.open("rb") as stream:
            text = memory_budget.read(stream, "it", WEIGHT).decode()
        settings = json.loads(text) if form == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # or tables within tables, a thousand deep
        raise ConfigError(f"{path}: not a valid {form} file: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: not a table of settings; give a TOML file, or the config.json of saved results")
    written = WRITTEN_BY_SAVE if form == "JSON" else ()
    return {key: value for key, value in settings.items() if key not in written}
