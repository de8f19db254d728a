"""The cost of conditions relative to a perfect network; run as ``python -m benchmarks.conditions``.

It measures one mixing step of two tensors of d numbers for each agent, and a whole step of Prox-DASA on perceptrons, in
one thread and one trial. An iteration of the loop is two calls, `enter` and `mix` or the method's `step`, and each time
is that of ``STEPS`` iterations in a row: a whole number of blocks of events, so that it includes drawing them. The
candidates take turns, and the ratios are those of the best times. Times are processor time: steps are so short that
wall-clock time would show what else the machine does. The argument ``mixing`` or ``steps`` selects one of the two.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence

import torch
from benchmarks.timing import best, show

import proxdasa
from proxdasa import data, networks, problems, regularizers
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
from proxdasa.problems import models
from proxdasa.runs.setup import Setup

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
PERCEPTRONS = ((8, 1, 64), (8, 4, 64), (64, 1, 64))
"""Agents, batch size and hidden units of the whole steps."""


def mixing(n: int, d: int, conditions: tuple[Condition, ...]) -> Callable[[], None]:
    """``STEPS`` iterations of mixing, which continue where the last call stopped."""
    problem = problems.Quadratic(torch.ones(1, 1, 1).expand(n, d, d), torch.zeros(n, d))
    engine = Simulator(Task(problem, networks.ring(n), regularizers.Zero(), proxdasa.Gossip(), 1, 0, conditions))
    x, z = torch.randn(2, 1, n, d)
    iterations = itertools.count()

    def steps() -> None:
        for k in itertools.islice(iterations, STEPS):
            engine.enter(k)
            engine.mix(x, z)

    return steps


def stepping(n: int, batch: int, hidden: int, conditions: tuple[Condition, ...]) -> Callable[[], None]:
    """Iterations of Prox-DASA on perceptrons 20 → hidden tanh → 2 with an L1 norm, as the loop of a run makes them."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64 * n, 20, generator=generator), torch.randint(2, (64 * n,), generator=generator)
    rows = data.from_tensors(x, y, name="noise")
    problem = problems.Supervised(lambda: models.mlp(20, hidden, 2), rows, agents=n, batch_size=batch)
    made = Setup(
        proxdasa.ProxDASA(gamma=0.1, alpha=0.1), problem, networks.ring(n), regularizer=regularizers.L1(1e-4),
        conditions=conditions, compile=False,
    )  # fmt: skip
    loop = made.loop()
    state, iterations = loop.algorithm.init(loop.engine, loop.start), itertools.count()

    def steps() -> None:
        nonlocal state
        with torch.no_grad():
            for k in itertools.islice(iterations, STEPS):
                state = loop._step(loop.engine, k, state)  # includes what it does for agents that are out

    return steps


def compare(cases: dict[str, Callable[[tuple[Condition, ...]], Callable[[], None]]]) -> list[Sequence[str]]:
    """A row for each case: its time on a perfect network, and the ratios."""
    rows: list[Sequence[str]] = []
    for name, make in cases.items():
        times = best({kind: make(given) for kind, given in WEATHER.items()}, repeats=3, clock=time.process_time)
        perfect, *others = times.values()
        rows.append([name, f"{perfect / STEPS * 1e6:.0f}", *(f"{took / perfect:.2f}" for took in others)])
    return rows


def main(which: Sequence[str]) -> None:
    torch.set_num_threads(1)
    columns = ["perfect, µs", *[*WEATHER][1:]]
    if "mixing" in which:
        sizes = itertools.product((8, 4096), (20, 100))
        cases = {f"ring({n}), d = {d}": lambda given, n=n, d=d: mixing(n, d, given) for n, d in sizes}
        show("mixing two tensors, one thread; conditions ÷ perfect", ["network", *columns], compare(cases))
    if "steps" in which:
        wholes = {
            f"ring({n}), batch {batch}": lambda given, size=(n, batch, hidden): stepping(*size, given)
            for n, batch, hidden in PERCEPTRONS
        }
        show("whole steps of Prox-DASA, one thread; conditions ÷ perfect", ["network", *columns], compare(wholes))


if __name__ == "__main__":
    main(sys.argv[1:] or ("mixing", "steps"))
