"""Ten trials on a9a in one process and in two, if there are as many cores: what a run gains from several processes.

Run as ``python -m benchmarks.jobs``; needs the data (``proxdasa data fetch a9a``).
"""

from __future__ import annotations

import dataclasses
from functools import partial

from benchmarks.timing import best

from proxdasa.engines.launch.launcher import cores
from proxdasa.experiments import real_data
from proxdasa.runs.jobs import run_setup

ITERATIONS = 1_000


def main() -> None:
    """Print the time of both, and the efficiency: the speed-up per process.

    The run is observed only at its start and its end. Reading and preparing the data, which runs share, is not timed.
    """
    (made,) = real_data.comparison("a9a", "as-published", {}, ["prox-dasa"], ITERATIONS).values()
    made = dataclasses.replace(made, observe_every=ITERATIONS)
    count = min(cores(), 2)  # the run has two parts
    runs = {str(jobs): partial(run_setup, made, None, None, jobs) for jobs in (1, count)}
    one, several = best(runs, repeats=5).values()
    print(
        f"ten a9a trials, {ITERATIONS} iterations: one process {one:.1f} s, {count} processes {several:.1f} s, "
        f"{one / several:.2f} times as fast, {one / several / count:.2f} of linear"
    )


if __name__ == "__main__":
    main()
