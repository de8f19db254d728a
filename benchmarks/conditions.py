"""What conditions cost: mixing in bad weather against perfect mixing; run as ``python -m benchmarks.conditions``.

One mixing step of two tensors of d numbers for each agent, one thread, one trial. An iteration of the loop is two
calls, `enter` and `mix`, and each time is that of ``STEPS`` iterations in a row: a whole number of blocks of events, so
that drawing them is part of it. The ways take turns, and the ratios are those of the best times. It is processor time:
steps are so short that the clock on the wall shows what else the machine does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
from benchmarks.timing import best, show

import proxdasa
from proxdasa import networks, problems, regularizers
from proxdasa.conditions import (
    Bursts,
    Condition,
    LinkLoss,
    MessageNoise,
    Outages,
    Participation,
    StaleMessages,
    Stragglers,
)
from proxdasa.engines import Simulator, Task

STEPS = 512
LOSS, OUTAGES = LinkLoss(0.3), Outages(mean_up=200, mean_down=20)
WEATHER = {
    "perfect": (),
    "loss": (LOSS,),
    "bursts": (Bursts(mean_up=20, mean_down=5),),
    "outages": (OUTAGES,),
    "loss, outages": (LOSS, OUTAGES),
    "participation": (Participation(0.8),),
    "stragglers": (Stragglers([(agent, 3) for agent in range(0, 8, 4)]),),
    "late": (StaleMessages(3),),
    "noise": (MessageNoise(0.1),),
}


def mixing(n: int, d: int, conditions: tuple[Condition, ...]) -> Callable[[], None]:
    """``STEPS`` iterations of mixing, which go on where the last call stopped."""
    problem = problems.Quadratic(torch.ones(1, 1, 1).expand(n, d, d), torch.zeros(n, d))
    engine = Simulator(Task(problem, networks.ring(n), regularizers.Zero(), proxdasa.Gossip(), 1, 0, conditions))
    x, z = torch.randn(2, 1, n, d)
    iterations = itertools.count()

    def steps() -> None:
        for k in itertools.islice(iterations, STEPS):
            engine.enter(k)
            engine.mix(x, z)

    return steps


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for n, d in itertools.product((8, 4096), (20, 100)):
        ways = {name: mixing(n, d, given) for name, given in WEATHER.items()}
        times = best(ways, repeats=5, clock=time.process_time)
        perfect, *others = times.values()
        rows.append(
            [f"ring({n})", str(d), f"{perfect / STEPS * 1e6:.0f}", *(f"{took / perfect:.2f}" for took in others)]
        )
    columns = ["network", "d", "perfect, µs", *[*WEATHER][1:]]
    show("mixing two tensors, one thread; conditions ÷ perfect", columns, rows)


if __name__ == "__main__":
    main()
