"""One of the processes of ``make bench``: steps with messages, and rounds, compared with bare gradients and messages.

run.py starts it by our launcher or mpiexec, or on two machines, where it is given the interface between them; process 0
writes the times to the file it is given.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import proxdasa
from proxdasa import data, engines, networks, problems, regularizers
from proxdasa.engines.messages.halo import HEADER
from proxdasa.engines.messages.transport import Transport
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.setup import Setup

STEPS = 20
REPEATS = 4 if sys.argv[2:] else 15
"""Fewer repetitions for links between machines, which are slow and whose times vary little."""
AGENTS = 8
SMALL = "quickstart's phase retrieval"
CASES = {
    "a9a's perceptron": (problems.models.mlp, (123,), 2, 4),
    "MNIST's LeNet": (problems.models.lenet, (1, 28, 28), 10, 32),
}


def setup(name: str) -> Setup:
    """Prox-DASA on a ring of eight agents, one trial."""
    if name == SMALL:
        return Setup(proxdasa.ProxDASA(gamma=0.1), problems.PhaseRetrieval(AGENTS, dim=50), networks.ring(AGENTS))
    model, shape, classes, batch = CASES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8_000, *shape, generator=generator)
    examples = data.from_tensors(x, torch.randint(0, classes, (len(x),), generator=generator))
    problem = problems.Supervised(model, examples, agents=AGENTS, batch_size=batch)
    return Setup(proxdasa.ProxDASA(gamma=1.0), problem, networks.ring(AGENTS), regularizer=regularizers.L1(1e-4))


def steps(run: Setup, transport: Transport | None) -> Callable[[], None]:
    """Steps of a run that has already begun."""
    engine, algorithm = run.engine(transport), run.bound()
    kept = {"k": 0, "state": algorithm.init(engine, run.start(engine.agents))}

    def act() -> None:
        with engine.stepping():
            for _ in range(STEPS):
                kept["state"] = algorithm.step(engine, kept["k"], kept["state"])
                kept["k"] += 1

    return act


def rounds(run: Setup, transport: Transport) -> Callable[[], None]:
    """Rounds of mixing two vectors."""
    engine = run.engine(transport)
    x = run.start(engine.agents)

    def act() -> None:
        for _ in range(STEPS):
            engine.mix(x, x)

    return act


class Bare:
    """The minimum that a step needs: the gradients of the agents here, and two rows to and from the other process.

    Two agents of each block are at its edge, as on a ring that is cut in two.
    """

    def __init__(self, run: Setup, transport: Transport) -> None:
        here = engines.blocks(AGENTS, transport.size)[transport.rank]
        self.problem, self.peer = run.problem.restrict(here), 1 - transport.rank
        self.x = run.start(here)
        self.sample = self.problem.sample(torch.zeros(1, len(here), self.problem.words, dtype=torch.int32))
        one = 2 * self.problem.dim
        self.out, self.into = torch.zeros(2 * one + HEADER), torch.zeros(2 * one + HEADER)
        self.transport = transport

    def gradient(self) -> None:
        """The gradients alone."""
        for _ in range(STEPS):
            self.problem.grad(self.x, self.sample)

    def exchange(self) -> None:
        """The message alone."""
        for _ in range(STEPS):
            finish(begin(self.transport, self.peer, self.out, self.into))

    def together(self) -> None:
        """The gradient, then both vectors in one message."""
        for _ in range(STEPS):
            self.problem.grad(self.x, self.sample)
            finish(begin(self.transport, self.peer, self.out, self.into))


def begin(transport: Transport, peer: int, out: torch.Tensor, into: torch.Tensor) -> list:
    if isinstance(transport, engines.MPI):
        from mpi4py import MPI  # noqa: PLC0415 - not there under torch.distributed

        return [MPI.COMM_WORLD.Irecv(into.numpy(), peer), MPI.COMM_WORLD.Isend(out.numpy(), peer)]
    return [dist.irecv(into, peer), dist.isend(out, peer)]


def finish(requests: list) -> None:
    for request in requests:
        request.wait()


def main() -> None:
    transport = engines.connect(*sys.argv[2:])
    assert transport is not None
    found = {}
    for name in (SMALL, *CASES):
        run = setup(name)
        bare = Bare(run, transport)
        candidates = {
            "step": steps(run, transport),
            "round": rounds(run, transport),
            "gradient": bare.gradient,
            "exchange": bare.exchange,
            "together": bare.together,
        }
        simulated = steps(run, None)
        times = dict.fromkeys([*candidates, "simulator"], float("inf"))
        with torch.no_grad(), flushed_denormals():
            for _ in range(REPEATS + 1):
                for what, act in candidates.items():
                    transport.sum(torch.zeros(1))  # so that all processes begin together
                    times[what] = min(times[what], timed(act))
                transport.sum(torch.zeros(1))
                if transport.rank == 0:
                    times["simulator"] = min(times["simulator"], timed(simulated))
        found[name] = {what: took / STEPS for what, took in times.items()}
    if transport.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    transport.close()


def timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
