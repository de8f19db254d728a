"""A limit on memory: what would need more is refused before it is allocated.

The environment variable PROXDASA_MEMORY, such as 16GB, sets the limit; by default it is 80% of the machine's physical
memory. Estimates are rough, and count the largest parts only.
"""

from __future__ import annotations

import math
import os
import re
from typing import BinaryIO

VARIABLE = "PROXDASA_MEMORY"
"""The environment variable with the limit in bytes."""
SHARE = 0.8
"""The share of the machine's physical memory that is the limit by default."""
UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
PIECE = 2**20
"""Bytes to read at a time."""


def limit() -> float:
    """The bytes that a process may take; infinite on a machine that does not report its memory."""
    if named := os.environ.get(VARIABLE):
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?) ?([KMGT]?)B?", named.strip(), re.IGNORECASE)
        if match is None:
            raise ValueError(f"{VARIABLE} must be a number of bytes, such as 500MB or 16GB; got {named!r}")
        return float(match[1]) * UNITS[match[2].upper()]
    known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ())
    return SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else math.inf


def check(needed: float, what: str, remedy: str) -> None:
    """Raise ValueError if more bytes are needed than the limit."""
    needed = min(needed, 10**300)  # an integer from a file may be too large for a float
    if needed > (allowed := limit()):
        enough = 1.2 * needed
        # Larger numbers are written with an exponent, which the variable does not take, and no machine has as much.
        example = f", such as {VARIABLE}={_size(enough).replace(' ', '')}" if enough < 999 * UNITS["T"] else ""
        raise ValueError(
            f"{what} would take about {_size(needed)} of memory, but the limit is {_size(allowed)}; {remedy}, or raise "
            f"the limit with the environment variable {VARIABLE}{example}"
        )


def read(stream: BinaryIO, what: str, weight: int) -> bytes:
    """All bytes of a stream; raises ValueError if they would take too much memory at ``weight`` bytes each when parsed.

    The size is not known beforehand: a small archive may hold terabytes, and a device never ends.
    """
    pieces, there, most = [], 0, limit() / weight
    while piece := stream.read(PIECE):
        pieces.append(piece)
        there += len(piece)
        if there > most:
            raise ValueError(
                f"{what} holds more than {_size(most)}, which would take more than the limit of {_size(limit())} of "
                f"memory; if you trust it, raise the limit with the environment variable {VARIABLE}"
            )
    return b"".join(pieces)


def _size(count: float) -> str:
    """A number of bytes in a suitable unit."""
    unit = next((unit for unit in reversed(UNITS) if count >= UNITS[unit]), "")
    return f"{count / UNITS[unit]:.3g} {unit}B"


def is_exhausted(error: Exception) -> bool:
    """Whether an error says that there was not enough memory to allocate."""
    # For lack of CPU memory torch raises a plain RuntimeError, so its text is all there is to go by. A test makes torch
    # raise it, and fails if the text changes.
    # When a GPU runs out of memory, its subclass OutOfMemoryError says "out of memory".
    said = ("allocate memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(map(str(error).__contains__, said))
    )
