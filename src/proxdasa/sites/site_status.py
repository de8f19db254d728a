"""The status of a site: a small file in its folder, rewritten from time to time."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxdasa import disk
from proxdasa.sites.links import Links

STATUS = "status.json"
"""The file in a site's folder that reports its progress."""
PACE = 1.0
"""Seconds between two versions of this file."""

log = logging.getLogger("proxdasa.sites")


class Status:
    """Writes the status file of one site."""

    def __init__(self, folder: Path, links: Links, last_round: int) -> None:
        self._folder, self._links, self._K = folder, links, last_round
        self._told = time.monotonic()

    def write(self, k: int, doing: str, measured: Mapping[str, Any], always: bool = False) -> None:
        """Write what the site is doing after k iterations, and what it measured last."""
        if not always and time.monotonic() - self._told < PACE:
            return
        self._told = time.monotonic()
        links = self._links
        neighbours = {
            name: "counts" if link.since is not None else "there" if links.connections.connected(name) else "away"
            for name, link in links.all.items()
        }
        status: dict[str, Any] = {
            "site": links.connections.me, "doing": doing, "iteration": k, "of": self._K, "neighbours": neighbours,
            "epoch": links.epoch, "at": time.time(), **links.connections.spent, "measured": dict(measured),
        }  # fmt: skip
        try:
            disk.make(self._folder)
            disk.replace(self._folder / STATUS, json.dumps(status, indent=1).encode())
        except OSError as error:
            log.warning("%s; the site goes on", disk.reason(error))
