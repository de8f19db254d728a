"""Small runs of five methods, a method with local steps, and processes that are threads.

The tests of engines share them.

Run as a program, by torchrun or mpiexec, it makes the runs with the processes it was started with, and the first writes
the hash of each method's final x.
"""

import contextlib
import functools
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch

import proxdasa
from proxdasa import data, engines, networks, problems, regularizers, schedules
from proxdasa.contracts import Facts
from proxdasa.engines.messages.threads import in_threads
from proxdasa.metrics import View
from proxdasa.runs.saving import Saving
from proxdasa.runs.setup import Setup

__all__ = [
    "METHODS", "RETRIEVAL", "LocalSteps", "N", "digest", "in_threads", "light", "main", "make_runs", "run_until",
    "runs", "setup",
]  # fmt: skip

N = 8

RETRIEVAL = """
[problem]
name = "PhaseRetrieval"
agents = 3
dim = 4
sparsity = 2
evaluation = 20
[network]
name = "ring"
[regularizer]
name = "L1"
weight = 0.01
"""
"""The tables of a configuration file for a run that takes no time."""


def perceptron():
    return torch.nn.Sequential(torch.nn.Linear(64, 5), torch.nn.Tanh(), torch.nn.Linear(5, 10))


METHODS = {
    "prox-dasa": proxdasa.ProxDASA(gamma=0.5, alpha=schedules.diminishing(0.3)),
    "prox-dasa-gt": proxdasa.ProxDASAGT(gamma=0.5, alpha=schedules.diminishing(0.3)),
    "deepstorm": proxdasa.DeepStormV2(alpha=schedules.cube_root(0.5, 10), beta=0.5, initial_batch=3),
    "prox-gt": proxdasa.ProxGTSRE(gamma=0.1, batch=2, period=4),
    "sppdm": proxdasa.SPPDM(gamma=2.0, c=1.0, kappa=0.1, beta=0.9, alpha=0.01, momentum=schedules.nesterov()),
}


@dataclass(frozen=True, eq=False)
class LocalSteps:
    """DProxSGT that mixes in every p-th step only."""

    facts: ClassVar[Facts] = Facts("local steps", vectors=2, gradients=1, sends_every="local_steps")

    gamma: schedules.Number = 0.1
    local_steps: int = 3

    class State(NamedTuple):
        x: torch.Tensor
        y: torch.Tensor
        g: torch.Tensor

    @property
    def mapping_gamma(self):
        return self.gamma

    def init(self, agents, x):
        return self.State(x, torch.zeros_like(x), torch.zeros_like(x))

    def sends(self, k):
        return (k + 1) % self.local_steps == 0

    def step(self, agents, k, state):
        x, y, g = state
        g_new = agents.grad(x, k)
        y = y + g_new - g
        if self.sends(k):
            x, y = agents.mix(x, y)
        return self.State(agents.prox(x - self.gamma * y, self.gamma), y, g_new)


def images() -> data.Dataset:
    """Noisy images of ten kinds, as large as the digits of scikit-learn, which takes a second to import."""
    rng = np.random.default_rng(0)
    kinds, labels = rng.random((10, 64)), rng.integers(10, size=500)
    rows = torch.from_numpy(np.clip(kinds[labels] + rng.normal(scale=0.3, size=(500, 64)), 0, 1)).float()
    y = torch.from_numpy(labels)
    return data.from_tensors(rows[:400], y[:400], rows[400:], y[400:], name="images")


@functools.cache
def problem() -> problems.Supervised:
    """Made once; nothing changes it."""
    return problems.Supervised(perceptron, images(), N, batch_size=3, partition=data.Dirichlet(1.0), initial="each")


@functools.cache
def quadratics() -> problems.Quadratic:
    """One for each agent, with noise."""
    rng, d = np.random.default_rng(1), 30
    A, b = torch.tensor(rng.uniform(0.5, 1.5, size=(N, d))), torch.tensor(rng.normal(size=(N, d)))
    return problems.Quadratic(torch.diag_embed(A).float(), b.float(), noise=0.3)


def setup(name: str, problem=problem, **changes) -> Setup:
    """Images on a random graph of eight agents, two trials."""
    settings = {
        "regularizer": regularizers.L1(1e-3),
        "mixing": proxdasa.Chebyshev(2),
        "iterations": 12,
        "trials": 2,
        "seed": 5,
        "observe_every": 6,
        "exact": True,
    }
    # Torch's own initialisation takes torch's random numbers, which threads would take from each other.
    settings["x0"] = np.random.default_rng(0).normal(scale=0.2, size=(2, N, problem().dim))
    return Setup(METHODS[name], problem(), networks.erdos_renyi(N, 0.4, seed=1), **settings | changes)


def light(name: str, **changes) -> Setup:
    """The same with quadratics, whose gradients take no time: for tests of what agents send, and of when."""
    return setup(name, quadratics, **changes)


def digest(x: torch.Tensor) -> str:
    return hashlib.sha256((x + 0.0).numpy().tobytes()).hexdigest()


def run_until(made: Setup, size: int, k: int | None, saving: Saving | None = None, asks: int = 0) -> list:
    """The results of a run in ``size`` processes, one of which asks to stop after k iterations, if at all."""

    def part(transport):
        loop = made.loop(transport)

        def progress(now, _iterations, _rows):
            if now == k and transport.rank == asks:
                loop.engine.ask_to_stop()

        return loop.run(progress, saving)

    return in_threads(size, part)


for entry in vars(View).values():
    if isinstance(entry, functools.cached_property):
        entry.lock = contextlib.nullcontext()  # Python 3.11 lets one thread in at a time, and here each waits for all


def runs() -> dict[str, Setup]:
    """What `main` runs: one method on images, and the others on quadratics; six iterations include a restart."""
    changes = {"x0": None, "iterations": 6}
    return {name: (setup if name == "prox-dasa-gt" else light)(name, **changes) for name in METHODS}


def main(path: Path, interface: str | None = None) -> None:
    """Make the runs with the processes that this one was started with; the first writes the hashes."""
    transport = engines.connect(interface, timeout=120)  # however busy the machine is
    lines = [f"{name} {digest(made.run(processes=transport).x)}\n" for name, made in runs().items()]
    if transport is None or transport.rank == 0:
        path.write_text("".join(lines), encoding="utf-8")
    if transport:
        transport.close()


def make_runs() -> None:
    """The program."""
    main(Path(sys.argv[1]))


if __name__ == "__main__":
    make_runs()
