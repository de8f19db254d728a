"""A rehearsal: all sites of a study on this machine, with throw-away keys."""

from __future__ import annotations

import random
import re
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from proxdasa import disk
from proxdasa.configs.reading import SITE
from proxdasa.sites import keys
from proxdasa.sites.study import Study, read_study

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsal of a study: its study file, and the folder of all its files."""

    study: Study
    file: Path
    """The study file with addresses on this machine."""
    folder: Path

    @classmethod
    def of(cls, file: Path, folder: Path) -> Rehearsal:
        """Make keys for all sites, and a copy of the study file in which their addresses are ports of this machine."""
        study = read_study(file)
        disk.make(folder)
        mark = folder / "original.sha256"
        if mark.exists() and mark.read_text() != study.digest:
            raise ValueError(
                f"{folder} is the rehearsal of another study, or of an earlier version; choose another folder"
            )
        disk.replace(mark, study.digest.encode())
        authority = folder / "authority"
        if not authority.exists():
            keys.make_authority(authority)
            disk.replace(folder / keys.CERTIFICATE, (authority / keys.CERTIFICATE).read_bytes())
            for name in study.names:
                keys.sign(authority, keys.make_request(name, folder)[1])
        copy = folder / "study.toml"
        if not copy.exists():  # a rehearsal that is continued keeps its addresses
            disk.replace(copy, _readdress(file.read_text(), study).encode())
        return cls(read_study(copy), copy, folder)

    def commands(self, data: str | None = None, checkpoint_every: float = 60.0) -> dict[str, list[str]]:
        """The command that runs each site."""
        found = {}
        for name in self.study.names:
            command = [sys.executable, "-m", "proxdasa", "site", "run", str(self.file), "--as", name]
            command += ["--keys", str(self.folder), "--output", str(self.folder / name)]
            command += ["--checkpoint-every", f"{checkpoint_every:g}"]
            command += ["--data", data.replace(SITE, name)] if data else []
            found[name] = command
        return found


def _readdress(text: str, study: Study) -> str:
    """The study file with addresses on this machine; a site without an address stays without one."""
    for (name, address), port in zip(study.addresses.items(), free_ports(len(study.addresses)), strict=True):
        if address:
            # Only the value of this key changes, so that the rest of the file stays as people wrote it.
            pattern = rf'^(\s*"?{re.escape(name)}"?\s*=\s*)(["\']){re.escape(address)}\2'
            text, count = re.subn(pattern, rf'\g<1>"{HOST}:{port}"', text, flags=re.MULTILINE)
            if count != 1:
                raise ValueError(f"sites.addresses.{name} must stand on a line of its own for a rehearsal")
    return text


def free_ports(count: int) -> list[int]:
    """Find unused ports below the range that the system uses for outgoing connections, which could take them again."""
    found: set[int] = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with suppress(OSError):
            socket.create_server((HOST, port)).close()
            found.add(port)
    return list(found)
