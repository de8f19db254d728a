"""How long commands that compute nothing take, and importing the package, relative to importing torch alone.

``python -m benchmarks.starting``; a part of ``make bench``.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchmarks.timing import best, show

COMMANDS = {
    "proxdasa --help": ["-m", "proxdasa", "--help"],
    "proxdasa list": ["-m", "proxdasa", "list"],
    "proxdasa doctor": ["-m", "proxdasa", "doctor"],
    "an argument that does not exist": ["-m", "proxdasa", "run", "--nonsense"],
    "import proxdasa": ["-c", "import proxdasa"],
    "import proxdasa, and what run needs": ["-c", "import proxdasa; proxdasa.run"],
    "import torch": ["-c", "import torch"],
}


def starting() -> None:
    start = partial(subprocess.run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    times = best({name: partial(start, [sys.executable, *words]) for name, words in COMMANDS.items()}, repeats=4)
    rows = [[name, f"{value:.2f}", f"{value / times['import torch']:.2f}"] for name, value in times.items()]
    show("starting; aims: commands ≤ 0.5 s, imports ≤ 1.5 × torch", ["what", "seconds", "÷ import torch"], rows)


if __name__ == "__main__":
    starting()
