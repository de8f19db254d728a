"""The memory that may be taken. What would need more is refused before it is allocated.

The environment variable PROXDASA_MEMORY, such as 16GB, says how much that is; by default it is 80% of the machine's
physical memory. Estimates are rough, and about the largest parts only.
"""

from __future__ import annotations

import math
import os
import re
from typing import BinaryIO

VARIABLE = "PROXDASA_MEMORY"
"""The environment variable with the bytes that a process may take."""
SHARE = 0.8
"""Of the machine's physical memory, if the variable says nothing."""
UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
PIECE = 2**20
"""Bytes that are read at a time."""


def limit() -> float:
    """The bytes that a process may take; infinitely many on a machine that does not tell what it has."""
    if named := os.environ.get(VARIABLE):
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?) ?([KMGT]?)B?", named.strip(), re.IGNORECASE)
        if match is None:
            raise ValueError(f"{VARIABLE} must be a number of bytes, such as 500MB or 16GB; got {named!r}")
        return float(match[1]) * UNITS[match[2].upper()]
    told = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ())
    return SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if told else math.inf


def check(needed: float, what: str, remedy: str) -> None:
    """Refuse what needs more bytes than may be taken."""
    needed = min(needed, 10**300)  # a whole number in a file may be larger than any of floating point
    if needed > (allowed := limit()):
        raise ValueError(
            f"{what} would take about {_size(needed)} of memory, and {_size(allowed)} may be taken; {remedy}, or allow "
            f"more by the environment variable {VARIABLE}, such as {VARIABLE}={_size(1.2 * needed).replace(' ', '')}"
        )


def read(stream: BinaryIO, what: str, weight: int) -> bytes:
    """All bytes of a stream, unless there are too many: each becomes ``weight`` bytes by the time it is understood.

    A small archive may hold terabytes, and a device never ends.
    """
    pieces, there, most = [], 0, limit() / weight
    while piece := stream.read(PIECE):
        pieces.append(piece)
        there += len(piece)
        if there > most:
            raise ValueError(
                f"{what} holds more than {_size(most)}, which would take more than the {_size(limit())} of memory that "
                f"may be taken; allow more by the environment variable {VARIABLE}, if it is to be trusted"
            )
    return b"".join(pieces)


def _size(count: float) -> str:
    """Bytes in a unit that suits them."""
    unit = next((unit for unit in reversed(UNITS) if count >= UNITS[unit]), "")
    return f"{count / UNITS[unit]:.3g} {unit}B"
