"""``python -m benchmarks.architectures``: the gradients of all agents' networks, against plain autograd agent by agent.

Prints the table of docs/own-model.md: architecture, path, whether the gradients are equal, and the processor time of
`Supervised.grad` divided by that of as many separate modules with ``backward()`` each, for one trial and for ten. Times
are the best of interleaved repetitions, in one thread; nothing is asserted.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from tests import architectures

from proxdasa.problems import Supervised
from proxdasa.samples import Samples

AGENTS, BATCH, TIMES = 8, 16, (1, 10)


def one_by_one(problem: Supervised, modules: list[torch.nn.Module], rows: torch.Tensor) -> list[torch.Tensor]:
    """Each agent's gradient, computed by a module of its own."""
    found = []
    for module, own in zip(modules, rows, strict=True):
        module.zero_grad()
        problem.loss(module(problem._x[own]), problem._y[own]).mean().backward()
        found.append(torch.cat([each.grad.flatten() for each in module.parameters() if each.grad is not None]))
    return found


def best(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least processor time of each function; the functions take turns."""
    times = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.process_time()
            function()
            times[name] = min(times[name], time.process_time() - began)
    return times


def measure(name: str, trials: int) -> tuple[float, bool]:
    """The ratio of times, and whether the gradients are equal up to rounding."""
    problem = architectures.problem(name, AGENTS, rows=600, batch_size=BATCH, dtype=torch.float32, initial="each")
    x, sample = problem.start(0, trials), Samples(problem, 0, trials, range(AGENTS))(0)
    r = problem.first_buffers(trials) if problem.running else None
    statistics = None if r is None else r[0, 0]
    modules = [copy.deepcopy(problem.module(row, buffers=statistics)) for row in x.flatten(0, 1)]
    rows = sample[..., :BATCH].flatten(0, 1)
    plain = partial(one_by_one, problem, modules, rows)
    times = best({"ours": lambda: problem.grad(x, sample, r), "plain": plain}, repeats=10 + 40 // trials)
    expected, random = plain(), problem.words > BATCH
    if random:  # a named seed gives the masks of each agent
        for module, seed in zip(modules, sample[..., -1].flatten().tolist(), strict=True):
            torch.manual_seed(seed % 2**32)
            expected[modules.index(module)] = one_by_one(problem, [module], rows[[modules.index(module)]])[0]
    close = torch.allclose(problem.grad(x, sample, r).flatten(0, 1), torch.stack(expected), rtol=1e-3, atol=1e-5)
    return times["ours"] / times["plain"], close


def main() -> None:
    torch.set_num_threads(1)
    sys.stdout.write("| network | path | gradients equal | cost, 1 trial | cost, 10 trials |\n|---|---|---|---|---|\n")
    for name, made in architectures.ALL.items():
        found = [measure(name, trials) for trials in TIMES]
        costs = " | ".join(f"{ratio:.2f}" for ratio, _ in found)
        equal = "yes" if all(same for _, same in found) else "no"
        sys.stdout.write(f"| {name} | {made.path} | {equal} | {costs} |\n")


if __name__ == "__main__":
    main()
