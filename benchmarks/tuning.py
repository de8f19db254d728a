"""The cost of a stacked 3 × 3 grid of γ and α relative to a run of one setting: ratios of processor time.

Run as ``python -m benchmarks.tuning``; a9a is included if its data are there (``proxdasa data fetch a9a``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

import proxdasa
from proxdasa import data, networks, problems, regularizers, schedules
from proxdasa.contracts import Problem
from proxdasa.problems import models

GAMMAS, ALPHAS = (0.003, 0.01, 0.03), (0.03, 0.1, 0.3)


def seconds(acts: Sequence[Callable[[], object]]) -> list[float]:
    """The least processor time of each function in five interleaved repetitions."""
    taken = [float("inf")] * len(acts)
    for _ in range(5):
        for i, act in enumerate(acts):
            began = time.process_time()
            act()
            taken[i] = min(taken[i], time.process_time() - began)
    return taken


def compare(name: str, problem: Problem, iterations: int) -> None:
    method = proxdasa.ProxDASAGT(gamma=0.01, alpha=schedules.diminishing(0.3))
    network, grid = networks.ring(8), {"gamma": GAMMAS, "alpha": ALPHAS}
    settings = {"regularizer": regularizers.L1(1e-4), "iterations": iterations, "observe_every": iterations}
    run = partial(proxdasa.run, method, problem, network, **settings)
    tune = partial(proxdasa.tune, method, problem, network, grid=grid, **settings)
    one, ten, nine = seconds([partial(run, trials=1), partial(run, trials=10), tune])
    print(
        f"{name}: nine settings take {nine / one:.1f} times one trial, {nine / ten:.2f} times ten trials of one setting"
    )


def main() -> None:
    torch.set_num_threads(1)
    compare("phase retrieval, d = 50", problems.PhaseRetrieval(agents=8, dim=50, evaluation=2_000), 2_000)
    try:
        compare("a9a, d = 8066", problems.Supervised(models.mlp, data.a9a(), agents=8, batch_size=4), 100)
    except FileNotFoundError as error:
        print(f"a9a is left out: {error}")


if __name__ == "__main__":
    main()
