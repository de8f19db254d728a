"""``make bench``: ratios of times, each measured within one run on this machine.

Nothing is asserted; the ratios are for reading. Times are the best of several interleaved repetitions, so that other
load on the machine affects both sides alike. ``python -m benchmarks.run large`` runs one part, or several.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from benchmarks import jobs, observing, sites
from benchmarks.large import large
from benchmarks.starting import starting
from benchmarks.timing import best, console, show
from tests.namespaces import ADDRESSES, machines

import proxdasa
from proxdasa import data, networks, problems, regularizers
from proxdasa.engines.launch.launcher import launch
from proxdasa.engines.products import SparseProduct
from proxdasa.runs.setup import Setup

# ---------------------------------------------------------------------------------------- phase retrieval

N, D, STEPS = 20, 100, 320


def setup(trials: int) -> Setup:
    return Setup(
        proxdasa.ProxDASA(gamma=0.01),
        problems.PhaseRetrieval(agents=N, dim=D, evaluation="population"),
        networks.ring(N),
        regularizer=regularizers.L1(0.01),
        mixing=proxdasa.Gossip("auto"),
        iterations=STEPS,
        trials=trials,
        observe_every=STEPS,
    )


def numpy_loop(run: Setup, seed: int, tuned: bool) -> np.ndarray:
    """One trial of the same run in NumPy with stacked agents, either as the paper writes it or tuned by hand.

    The tuned run uses single precision and computes W^m once; the other uses double precision and m products with W.
    """
    problem, network = run.problem, run.network
    dtype = np.float32 if tuned else np.float64
    rng, truth = np.random.default_rng(seed), problem.truth.numpy().astype(dtype)
    rounds, W = run.mixing.rounds_for(network.rho), network.W.toarray()
    if tuned:
        rounds, W = 1, np.linalg.matrix_power(W, rounds).astype(dtype)
    gamma, alpha, threshold, noise = (dtype(value) for value in (0.01, (N / STEPS) ** 0.5, 0.01 * 0.01, 0.1))
    x = np.tile(problem.start(seed, 1).numpy()[0].astype(dtype), (N, 1))
    z = np.zeros_like(x)
    for _ in range(STEPS):
        y = x - gamma * z
        y = np.sign(y) * np.maximum(np.abs(y) - threshold, 0)
        X = rng.standard_normal((N, D), dtype=dtype)
        Y = (X @ truth) ** 2 + noise * rng.standard_normal(N, dtype=dtype)
        s = (X * x).sum(1)
        v = (4 * (s * s - Y) * s)[:, None] * X
        x, z = (1 - alpha) * x + alpha * y, (1 - alpha) * z + alpha * v
        for _ in range(rounds):
            x, z = W @ x, W @ z
    return x


def stacking() -> None:
    one, ten = setup(1), setup(10)
    times = best(
        {
            "ten stacked trials": ten.run,
            "one trial": one.run,
            "ten plain NumPy loops": lambda: [numpy_loop(one, seed, tuned=False) for seed in range(10)],
            "ten NumPy loops tuned by hand": lambda: [numpy_loop(one, seed, tuned=True) for seed in range(10)],
        }
    )
    stacked = times["ten stacked trials"]
    rows = [[name, f"{value / STEPS * 1e6:.0f}", f"{value / stacked:.2f}"] for name, value in times.items()]
    show(f"phase retrieval, n = {N}, d = {D}", ["what", "µs per iteration", "÷ ten stacked"], rows)
    console.print(
        f"stacked is {times['ten plain NumPy loops'] / stacked:.1f}× as fast as plain NumPy loops (aim: ≥ 3), "
        f"{times['ten NumPy loops tuned by hand'] / stacked:.1f}× as fast as tuned ones; "
        f"ten trials cost {stacked / times['one trial']:.1f}× one (aim: ≤ 3)\n"
    )


def floor() -> None:
    """What a step costs beyond the bare gradient on samples that are drawn already."""
    run = setup(10)
    engine, algorithm = run.engine(), run.bound()
    state = algorithm.init(engine, run.start())
    sample = run.problem.sample(torch.randint(-(2**31), 2**31, (10, N, run.problem.words), dtype=torch.int32))
    x, z = state

    def steps() -> None:
        now = state
        for k in range(STEPS):
            now = algorithm.step(engine, k, now)

    def repeat(function: Callable[[int], object]) -> Callable[[], None]:
        def repeated() -> None:
            for k in range(STEPS):
                function(k)

        return repeated

    with engine.stepping(), torch.no_grad():
        times = best(
            {
                "bare gradient": repeat(lambda _: run.problem.grad(x, sample)),
                "whole step": steps,
                "of which samples": repeat(lambda k: engine._cells[0].samples(k, 0)),
                "of which mixing": repeat(lambda _: engine.mix(x, z)),
                "of which prox": repeat(lambda _: engine.prox(x - 0.01 * z, 0.01)),
            }
        )
    bare = times["bare gradient"]
    rows = [[name, f"{value / STEPS * 1e6:.0f}", f"{value / bare:.2f}"] for name, value in times.items()]
    show("the same run, ten stacked trials, one thread", ["what", "µs", "÷ bare gradient"], rows)


# ---------------------------------------------------------------------------------------- mixing

WIDTH = 8_066


def products(n: int) -> dict[str, Callable[[torch.Tensor], object]]:
    """Ways to compute W x on a ring."""
    W = networks.ring(n).W
    slots = torch.from_numpy(W.indices.reshape(n, 3).astype(np.int64))
    weights = torch.from_numpy(W.data.reshape(n, 3, 1)).float()
    narrow = W.astype(np.float32)
    with warnings.catch_warnings(action="ignore"):  # torch calls its CSR support a beta
        torch_csr = torch.sparse_csr_tensor(*(torch.from_numpy(a) for a in (W.indptr, W.indices, narrow.data)), W.shape)
    made: dict[str, torch.Tensor] = {}

    def dense(x: torch.Tensor) -> torch.Tensor:
        if "W" not in made:
            made["W"] = torch.from_numpy(W.toarray()).float()
        return made["W"] @ x

    def index_select(x: torch.Tensor) -> torch.Tensor:
        total = x.index_select(1, slots[:, 0]) * weights[:, 0]
        for slot in (1, 2):
            total.addcmul_(x.index_select(1, slots[:, slot]), weights[:, slot])
        return total

    return {
        "dense": dense,
        "embedding_bag (ours)": SparseProduct(W, torch.float32),
        "index_select": index_select,
        "scipy CSR": lambda x: narrow @ x[0].numpy(),
        "torch CSR": lambda x: torch_csr @ x[0],
    }


def peak_memory(n: int, name: str, answer: multiprocessing.Queue[float]) -> None:
    """Megabytes that making and using one product adds; runs in a process of its own."""
    x = torch.ones(1, n, WIDTH)
    product = products(n)[name]
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before = _peak()
    product(x)
    answer.put(_peak() - before)


def _peak() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def mixing() -> None:
    context = multiprocessing.get_context("spawn")
    rows = []
    for n in (64, 512, 4096):
        x = torch.randn(1, n, WIDTH)
        candidates = products(n)
        times = best({name: partial(product, x) for name, product in candidates.items()}, repeats=3)
        for name, value in times.items():
            memory = "not on this system"
            if Path("/proc/self/clear_refs").exists():
                queue = context.Queue()
                process = context.Process(target=peak_memory, args=(n, name, queue))
                process.start()
                memory = f"{queue.get(timeout=120):.0f}"
                process.join()
            rows.append([str(n), name, f"{value * 1e3:.2f}", f"{times['dense'] / value:.1f}", memory])
    show(
        f"one round on a ring, d = {WIDTH}, {torch.get_num_threads()} threads",
        ["agents", "product", "ms", "dense ÷ this", "MB added"],
        rows,
    )


# ---------------------------------------------------------------------------------------- networks as problems


class Case(NamedTuple):
    """A network on made-up examples of the size and density of real ones."""

    model: Callable[[], torch.nn.Module]
    x: torch.Tensor
    classes: int
    batch: int
    trials: int
    observe_every: int = 0
    times: int = 1
    """How many times larger the real data set is."""

    def setup(self) -> Setup:
        """A run of Prox-DASA on 8 agents."""
        y = torch.randint(0, self.classes, (len(self.x),), generator=torch.Generator().manual_seed(0))
        examples = data.from_tensors(self.x, y, self.x[: len(self.x) // 5], y[: len(self.x) // 5])
        return Setup(
            proxdasa.ProxDASA(gamma=1.0),
            problems.Supervised(self.model, examples, agents=8, batch_size=self.batch),
            networks.ring(8),
            regularizer=regularizers.L1(1e-4),
            trials=self.trials,
        )

    def steps(self) -> Callable[[], None]:
        """Eight steps of a run, which continue where the last call stopped."""
        run = self.setup()
        engine, algorithm = run.engine(), run.bound()
        kept = {"k": 0, "state": algorithm.init(engine, run.start())}

        def steps() -> None:
            with torch.no_grad():
                for _ in range(8):
                    kept["state"] = algorithm.step(engine, kept["k"], kept["state"])
                    kept["k"] += 1

        return steps

    def bare(self) -> Callable[[], None]:
        """Eight forward and backward passes of ONE network on as many examples, all in one batch."""
        network, count = self.model(), 8 * self.batch * self.trials
        inputs, targets = self.x[:count], torch.zeros(count, dtype=torch.int64)

        def bare() -> None:
            for _ in range(8):
                loss = torch.nn.functional.cross_entropy(network(inputs), targets)
                torch.autograd.grad(loss, list(network.parameters()))

        return bare

    def observation(self) -> Callable[[], None]:
        """What an observation computes: loss and gradient over all data, and the answers to the test examples."""
        engine = self.setup().engine()
        x = 0.05 * torch.randn(self.trials, 1, self.setup().problem.dim)

        def observation() -> None:
            engine.evaluate(x)
            engine.scores(x[:, 0])

        return observation


def learning() -> None:
    """A whole step compared with the bare gradient, and the share of a run that is spent on observing it."""
    generator = torch.Generator().manual_seed(0)
    binary = (torch.rand(32_561, 123, generator=generator) < 0.11).float()
    images = torch.randn(3_000, 1, 28, 28, generator=generator)
    mlp, lenet = problems.models.mlp, problems.models.lenet
    cases = {
        "a9a's perceptron, ten trials": Case(mlp, binary, 2, 4, 10, observe_every=100),
        "MNIST's LeNet, one trial": Case(lenet, images, 10, 32, 1),
        "MNIST's LeNet, ten trials": Case(lenet, images, 10, 32, 10, observe_every=500, times=20),
    }
    rows = []
    for name, case in cases.items():
        candidates = {"step": case.steps(), "bare": case.bare()}
        times = {what: took / 8 for what, took in best(candidates, repeats=5 if case.trials > 1 else 15).items()}
        share = ""
        if case.observe_every:
            observing = best({"observation": case.observation()}, repeats=2)["observation"] * case.times
            share = f"{observing / (observing + case.observe_every * times['step']):.0%}"
        shown = [f"{times[what] * 1e3:.2f}" for what in ("step", "bare")]
        rows.append([name, *shown, f"{times['step'] / times['bare']:.2f}", share])
    show(
        f"networks, 8 agents, {torch.get_num_threads()} threads",
        ["what", "whole step, ms", "bare gradient, ms", "ratio", "of a run is observing"],
        rows,
    )


# ---------------------------------------------------------------------------------------- against JAX


def against_jax() -> None:
    """The a9a run on one core, ours and written by hand in JAX and in torch, each in a process of its own."""
    rows, jax = [], dict[str, float]()
    for what in ("JAX", "bare gradient", "torch", "ordinary steps", "compiled"):
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}
        found = subprocess.run(
            [sys.executable, "-m", "benchmarks.jax_scan", what], env=alone, capture_output=True, text=True, check=False
        )
        if found.returncode:
            console.print(f"left out: {what} ({found.stderr.strip().splitlines()[-1]})")
            continue
        times = json.loads(found.stdout.splitlines()[-1])
        jax = jax or (times if what == "JAX" else {})
        shown = [f"{times[trials]:.2f}" for trials in ("1", "10")]
        rows.append([what, *shown, *(f"{times[trials] / jax[trials]:.2f}" if jax else "" for trials in ("1", "10"))])
    show(
        "a9a's perceptron, 8 agents, one core: ms for one iteration of one trial",
        ["what", "one trial", "ten", "one ÷ JAX", "ten ÷ JAX"],
        rows,
    )


# ---------------------------------------------------------------------------------------- processes


def processes() -> None:
    """Two processes with four agents each: a step compared with bare gradients and messages, and with one process."""
    program = str(Path(__file__).with_name("processes.py"))
    launches = {"one machine": lambda said: launch([sys.executable, program, said], 2)}
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if mpiexec.exists():
        command = [str(mpiexec), "-n", "2", sys.executable, program]
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}
        launches["MPI"] = lambda said: subprocess.run([*command, said], env=alone, check=True)
    launches |= {
        f"a link of {rate}/s": partial(on_two_machines, rate, program) for rate in ("1gbit", "200mbit", "50mbit")
    }
    rows = []
    for name, start in launches.items():
        with tempfile.TemporaryDirectory() as folder:
            said = Path(folder) / "times.json"
            try:
                start(str(said))
            except OSError as error:
                console.print(f"left out: {name} ({error})")
                continue
            found = json.loads(said.read_text(encoding="utf-8"))
        for case, times in found.items():
            shown = [f"{times[what] * 1e3:.2f}" for what in ("step", "gradient", "round", "exchange", "simulator")]
            ratios = [
                f"{times['round'] / times['exchange']:.2f}",
                f"{times['step'] / times['together']:.2f}",
                f"{times['step'] / times['simulator']:.2f}",
            ]
            rows.append([f"{case}, {name}", *shown, *ratios])
    show(
        "8 agents in 2 processes, ms; bare = gradient, then a message by gloo or MPI; alone = all in one process\n"
        "aims for a round by a bare message on one machine: ≤ 1.5 for the quickstart's, ≤ 1.3 for a9a's",
        ["what", "step", "gradient", "round", "message", "alone", "round ÷ message", "step ÷ bare", "step ÷ alone"],
        rows,
    )


def on_two_machines(rate: str, program: str, said: str) -> None:
    """Start the two processes in network namespaces with a slow link between them."""
    with machines(rate) as names:
        shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500"}
        both = [
            subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, program, said, "veth0"],
                env={**os.environ, **shared, "OMP_NUM_THREADS": "1", "RANK": str(rank), "TORCH_CPP_LOG_LEVEL": "ERROR"},
            )
            for rank, name in enumerate(names)
        ]
        codes = [process.wait() for process in both]
        if any(codes):
            raise OSError("a process has failed")


# ---------------------------------------------------------------------------------------- sites


def between_sites() -> None:
    """A round between two sites compared with the bare exchange of the same bytes, with the same encryption."""
    rows = []
    for link in (*sites.LINKS, sites.RELAYED):
        try:
            found = sites.measure(link)
        except OSError as error:
            console.print(f"left out: sites over {link} ({error})")
            continue
        for width, times in found.items():
            shown = [f"{times[what] * 1e3:.2f}" for what in ("round", "bare", "least round")]
            ratios = [f"{times[what] / times['bare']:.2f}" for what in ("round", "least round")]
            rows.append([f"{width}, {link}", *shown, *ratios])
    columns = ["a row of", "round", "bare exchange", "least round", "round ÷ bare (aim: ≤ 1.3)", "least ÷ bare"]
    show("two sites, gRPC with mutual TLS, ms", columns, rows)


def several_jobs() -> None:
    """Ten trials on a9a in several processes."""
    try:
        jobs.main()
    except FileNotFoundError as error:
        console.print(f"left out: ten trials on a9a in several processes ({error})")


def observations() -> None:
    """The share of compiled runs on a9a that is observing."""
    try:
        observing.main()
    except FileNotFoundError as error:
        console.print(f"left out: observing runs on a9a ({error})")


PARTS = {
    part.__name__: part
    for part in (
        starting, stacking, floor, learning, observations, against_jax, mixing, processes, large, several_jobs,
        between_sites,
    )
}  # fmt: skip

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        if name not in PARTS:
            sys.exit(f"no benchmark {name}; there are {', '.join(PARTS)}")
        PARTS[name]()
