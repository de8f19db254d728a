"""The share of `proxdasa reproduce a9a` that is spent on observing the runs; run as ``python -m benchmarks.observing``.

Each of its five methods makes compiled iterations with ten trials, whose time is that of the records, and is observed
at their start, in one thread. The two take turns, and the share is that of the best times if there is an observation
every 100 iterations, as in the experiment. Compiling is not counted; in a run that has to compile, the share is
smaller. Needs the data (``proxdasa data fetch a9a``).
"""

from __future__ import annotations

import dataclasses
import time

from benchmarks.timing import show

from proxdasa.experiments import real_data
from proxdasa.runs.observed_columns import measure
from proxdasa.runs.setup import Setup
from proxdasa.thread_counts import threads

ITERATIONS, EVERY, REPEATS = 500, 100, 4


def time_both(setup: Setup) -> tuple[float, float]:
    """Seconds for the iterations between two observations, and for an observation."""
    made = dataclasses.replace(setup, compile=True, observe_every=ITERATIONS)
    loop, steps, observation = made.loop(), float("inf"), float("inf")
    state = loop.algorithm.init(loop.engine, loop.start)
    for _ in range(REPEATS):
        steps = min(steps, made.run().records[-1]["seconds"] * EVERY / ITERATIONS)
        for _ in range(REPEATS):
            began, view = time.perf_counter(), loop._view(state)
            measure(loop._measures, view)
            loop.engine.scores(view.x_mean[:, 0])
            observation = min(observation, time.perf_counter() - began)
    return steps, observation


def main() -> None:
    """Print, for each method and for all together, the time of the steps and that of an observation."""
    rows, total = [], [0.0, 0.0]
    for name, setup in real_data.comparison("a9a", "as-published", {}, iterations=ITERATIONS).items():
        with threads(1):
            steps, observation = time_both(setup)
        total = [total[0] + steps, total[1] + observation]
        rows.append(
            [name, f"{steps * 1e3:.0f}", f"{observation * 1e3:.0f}", f"{observation / (steps + observation):.0%}"]
        )
    rows.append(["all", *(f"{part * 1e3:.0f}" for part in total), f"{total[1] / sum(total):.0%}"])
    columns = ["ten trials of", f"{EVERY} iterations, ms", "one observation, ms", "share of observing"]
    show("reproduce a9a, compiled, one thread", columns, rows)


if __name__ == "__main__":
    main()
