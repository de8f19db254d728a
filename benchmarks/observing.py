"""The share of `proxdasa reproduce a9a` that is spent on observing the runs; run as ``python -m benchmarks.observing``.

Each of its five methods makes the same iterations with ten trials twice, compiled, in one thread: observed every 100
iterations as in the experiment, and only at the start and the end. The two take turns, and the difference of their best
processor times is the cost of observing. Compiling comes before and is not counted; in a run that has to compile, the
share is smaller. Needs the data (``proxdasa data fetch a9a``).
"""

from __future__ import annotations

import dataclasses
import time

from benchmarks.timing import best, show

from proxdasa.experiments import real_data
from proxdasa.thread_counts import threads

ITERATIONS, EVERY = 500, 100


def main() -> None:
    """Print, for each method and for all together, the time of the steps and that of the observations."""
    rows, total = [], [0.0, 0.0]
    for name, setup in real_data.comparison("a9a", "as-published", {}, iterations=ITERATIONS).items():
        made = dataclasses.replace(setup, compile=True)
        seldom, often = (dataclasses.replace(made, observe_every=every) for every in (ITERATIONS, EVERY))
        with threads(1):
            times = best({"seldom": seldom.run, "often": often.run}, repeats=3, clock=time.process_time)
        spared = ITERATIONS // EVERY - 1
        each = (times["often"] - times["seldom"]) / spared
        steps = (times["seldom"] - 2 * each) / (ITERATIONS // EVERY)  # between two observations
        total = [total[0] + steps, total[1] + each]
        rows.append([name, f"{steps * 1e3:.0f}", f"{each * 1e3:.0f}", f"{each / (steps + each):.0%}"])
    rows.append(["all", *(f"{part * 1e3:.0f}" for part in total), f"{total[1] / sum(total):.0%}"])
    columns = ["ten trials of", f"{EVERY} iterations, ms", "one observation, ms", "share of observing"]
    show("reproduce a9a, compiled, processor time of one core", columns, rows)


if __name__ == "__main__":
    main()
