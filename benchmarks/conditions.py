"""The cost of conditions relative to a perfect network; run as ``python -m benchmarks.conditions``.

It measures one mixing step of two tensors of d numbers for each agent, and a whole step of Prox-DASA on perceptrons, in
one thread and one trial. An iteration of the loop is two calls, `enter` and `mix` or the method's `step`, and each time
is that of ``STEPS`` iterations in a row: a whole number of blocks of events, so that it includes drawing them. The
candidates take turns, and the ratios are those of the best times. Times are processor time: steps are so short that
wall-clock time would show what else the machine does. The argument ``mixing`` or ``steps`` selects one of the two.

The last columns of mixing say what the random numbers of noise, one for each coordinate, cost by themselves: ``words``
are 16 bits each by the bare generator, which noise cannot do without, and ``normals`` those of torch's own generator.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
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


def floors(n: int, d: int) -> dict[str, Callable[[], None]]:
    """The random numbers for ``STEPS`` iterations of mixing under noise, by bare generators."""
    philox, normals = np.random.Philox(key=0), torch.empty(n * d)

    def words() -> None:
        for _ in range(2 * STEPS):
            philox.random_raw(n * d // 4)  # of 64 bits each

    def draw() -> None:
        for _ in range(2 * STEPS):
            normals.normal_()

    return {"words": words, "normals": draw}


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


def compare(
    cases: dict[str, Callable[[tuple[Condition, ...]], Callable[[], None]]],
    others: dict[str, dict[str, Callable[[], None]]],
    repeats: Sequence[int],
) -> list[Sequence[str]]:
    """A row for each case: its time on a perfect network, and the ratios, of its conditions and of others."""
    rows: list[Sequence[str]] = []
    for (name, make), count in zip(cases.items(), repeats, strict=True):
        candidates = {kind: make(given) for kind, given in WEATHER.items()} | others.get(name, {})
        times = best(candidates, repeats=count, clock=time.process_time)
        perfect, *rest = times.values()
        rows.append([name, f"{perfect / STEPS * 1e6:.0f}", *(f"{took / perfect:.2f}" for took in rest)])
    return rows


def main(which: Sequence[str]) -> None:
    torch.set_num_threads(1)
    columns = ["perfect, µs", *[*WEATHER][1:]]
    if "mixing" in which:
        sizes = {f"ring({n}), d = {d}": (n, d) for n, d in itertools.product((8, 4096), (20, 100))}
        cases = {name: lambda given, size=size: mixing(*size, given) for name, size in sizes.items()}
        # Short turns can be disturbed as a whole, so they need more of them.
        rows = compare(cases, {name: floors(*size) for name, size in sizes.items()}, [20, 20, 3, 3])
        show("mixing two tensors, one thread; conditions ÷ perfect", ["network", *columns, *floors(8, 20)], rows)
    if "steps" in which:
        wholes = {
            f"ring({n}), batch {batch}": lambda given, size=(n, batch, hidden): stepping(*size, given)
            for n, batch, hidden in PERCEPTRONS
        }
        rows = compare(wholes, {}, [3] * len(wholes))
        show("whole steps of Prox-DASA, one thread; conditions ÷ perfect", ["network", *columns], rows)


if __name__ == "__main__":
    main(sys.argv[1:] or ("mixing", "steps"))
