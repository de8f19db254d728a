"""Ten trials on a9a in one process and in two, if there are as many cores: what a run gains from several processes.

Run as ``python -m benchmarks.jobs``; needs the data (``proxdasa data fetch a9a``).
"""

from __future__ import annotations

import dataclasses
import time

from proxdasa.engines.launch.launcher import cores
from proxdasa.experiments import real_data
from proxdasa.runs.jobs import run_setup

ITERATIONS = 1_000


def measure(count: int, iterations: int = ITERATIONS) -> float:
    """Seconds that a run takes in ``count`` processes, observed only at its start and its end."""
    (made,) = real_data.comparison("a9a", "as-published", {}, ["prox-dasa"], iterations).values()
    made = dataclasses.replace(made, observe_every=iterations)
    began = time.perf_counter()
    run_setup(made, None, None, count)
    return time.perf_counter() - began


def main() -> None:
    """Print both times, and the efficiency: the speed-up per process."""
    measure(1, 20)  # warms up
    count = min(cores(), 2)  # the run has two parts
    one, several = (min(measure(jobs) for _ in range(2)) for jobs in (1, count))
    print(
        f"ten a9a trials, {ITERATIONS} iterations: one process {one:.1f} s, {count} processes {several:.1f} s, "
        f"{one / several:.2f} times as fast, {one / several / count:.2f} of linear"
    )


if __name__ == "__main__":
    main()
