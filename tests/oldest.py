"""The constraints of `make oldest`: every library at the floor that pyproject.toml promises, all else as pinned."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("data", "frames", "mpi", "parquet", "sites", "tensorboard", "weights")
"""What users may add to the dependencies, and `make oldest` installs."""


def floors():
    """The oldest version that the metadata promise, for each library."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    promised = project["dependencies"] + [line for extra in EXTRAS for line in extras[extra]]
    found = {line: re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<\d+)?", line) for line in promised}
    if vague := [line for line, match in found.items() if match is None]:
        raise ValueError(f"pyproject.toml must name the oldest version, as in 'numpy>=1.26', for {', '.join(vague)}")
    return dict(match.groups() for match in found.values())


def constraints():
    """The lines of a constraints file."""
    oldest = floors()
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    others = [line for line in pinned if line.partition("==")[0] not in oldest]
    return others + [f"{name}=={version}" for name, version in oldest.items()]


if __name__ == "__main__":
    sys.stdout.write("\n".join([*constraints(), ""]))
