"""The a9a run (8 agents on a ring, batches of 4, d = 8,066, Prox-DASA with L1) on one core: ours, or written by hand.

``python -m benchmarks.jax_scan JAX``, or "bare gradient", "torch", "ordinary steps" or "compiled", prints the
milliseconds per iteration and trial in runs of one trial and of ten, the best of several repetitions. The examples are
made up, as many and as sparse as a9a's. The bare gradient is a lower bound: its examples are already selected, its
backward pass is written for this very network, and the result is not used.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np

N, BATCH, GAMMA, ALPHA, WEIGHT = 8, 4, 1.25, 0.3, 1e-4
INPUTS, HIDDEN, CLASSES, EXAMPLES = 123, 64, 2, 32_561
SHAPES = [(HIDDEN, INPUTS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]
STEPS, REPEATS = 200, 5
"""How many iterations are timed together, and how many times."""
LONG = 10**6
"""Iterations of a run whose blocks are compiled: long enough for the longest blocks."""


def examples() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and classes."""
    random = np.random.default_rng(0)
    x = (random.random((EXAMPLES, INPUTS)) < 0.11).astype(np.float32)
    return x, random.integers(0, CLASSES, EXAMPLES)


def ring() -> np.ndarray:
    """The mixing matrix."""
    W = np.zeros((N, N), dtype=np.float32)
    for i in range(N):
        W[i, [i - 1, i, (i + 1) % N]] = 1 / 3
    return W


def fastest(advance: Callable[[], object], trials: int) -> float:
    """Milliseconds for one iteration of one trial, after a first call that compiles.

    This is the processor time of all threads: wall-clock time would show what else the core does.
    """
    advance()
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        advance()
        times.append(time.process_time() - began)
    return min(times) / STEPS / trials * 1e3


def in_jax(trials: int) -> float:
    """The run as a JAX user writes it: one agent's gradient, vmap over agents and trials, a scan over iterations."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    x, y = map(jnp.asarray, examples())
    cuts, W = np.cumsum([int(np.prod(shape)) for shape in SHAPES]), ring()
    share = EXAMPLES // N

    def loss(flat, rows):
        parts = jnp.split(flat, cuts[:-1])
        w1, b1, w2, b2 = (part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True))
        scores = jax.nn.log_softmax(jnp.tanh(x[rows] @ w1.T + b1) @ w2.T + b2)
        return -jnp.take_along_axis(scores, y[rows][:, None], axis=1).mean()

    gradients = jax.vmap(jax.vmap(jax.grad(loss)))

    def step(state, given):
        (p, z), (k, rows) = state, given
        alpha = jnp.minimum(ALPHA * jnp.sqrt(N / (k + 1)), 1.0)
        moved = p - GAMMA * z
        prox = jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - GAMMA * WEIGHT, 0)
        g = gradients(p, rows)
        return (W @ ((1 - alpha) * p + alpha * prox), W @ ((1 - alpha) * z + alpha * g)), None

    @jax.jit
    def advance(state, key):
        drawn = jax.random.randint(key, (STEPS, trials, N, BATCH), 0, share) + share * jnp.arange(N)[:, None]
        return jax.lax.scan(step, state, (jnp.arange(STEPS), drawn))[0]

    p = 0.05 * jax.random.normal(jax.random.key(0), (trials, N, int(cuts[-1])))
    kept = {"state": (p, jnp.zeros_like(p)), "key": jax.random.key(1)}

    def run() -> None:
        kept["key"], key = jax.random.split(kept["key"])
        kept["state"] = jax.block_until_ready(advance(kept["state"], key))

    return fastest(run, trials)


def in_torch(trials: int) -> float:
    """The run as a user of PyTorch writes it, step by step: all networks in batched products, and autograd."""
    import torch  # noqa: PLC0415
    from torch.nn import functional as F  # noqa: N812, PLC0415

    torch.set_num_threads(1)
    x, y = map(torch.from_numpy, examples())
    sizes, share, rows = [int(np.prod(shape)) for shape in SHAPES], EXAMPLES // N, trials * N
    W, starts = torch.from_numpy(ring()).expand(trials, N, N), share * torch.arange(N)[:, None]

    def gradients(p: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            parts = [
                part.view(rows, *shape).detach().requires_grad_()
                for part, shape in zip(p.view(rows, -1).split(sizes, dim=1), SHAPES, strict=True)
            ]
            w1, b1, w2, b2 = parts
            hidden = torch.tanh(torch.baddbmm(b1.unsqueeze(1), x[chosen], w1.mT))
            scores = torch.baddbmm(b2.unsqueeze(1), hidden, w2.mT)
            loss = F.cross_entropy(scores.flatten(0, 1), y[chosen].flatten(), reduction="sum") / BATCH
            return torch.cat([part.flatten(1) for part in torch.autograd.grad(loss, parts)], dim=1).view_as(p)

    p = 0.05 * torch.randn(trials, N, sum(sizes))
    k, z = 0, torch.zeros_like(p)

    def run() -> None:
        nonlocal k, p, z
        drawn = (torch.randint(share, (STEPS, trials, N, BATCH)) + starts).view(STEPS, rows, BATCH)
        for chosen in drawn:
            alpha = min(ALPHA * (N / (k + 1)) ** 0.5, 1.0)
            prox = F.softshrink(torch.add(p, z, alpha=-GAMMA), GAMMA * WEIGHT)
            g = gradients(p, chosen)
            p, z, k = torch.bmm(W, torch.lerp(p, prox, alpha)), torch.bmm(W, torch.lerp(z, g, alpha)), k + 1

    with torch.no_grad():
        return fastest(run, trials)


def bare_gradient(trials: int) -> float:
    """The forward and the backward pass alone, in the fewest products and without autograd."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    rows = trials * N
    x, y = (torch.from_numpy(each[: rows * BATCH]).view(rows, BATCH, *each.shape[1:]) for each in examples())
    right = torch.nn.functional.one_hot(y, CLASSES).float()
    w1, b1, w2, b2 = (0.05 * torch.randn(rows, *shape) for shape in SHAPES)

    def run() -> None:
        for _ in range(STEPS):
            hidden = torch.baddbmm(b1.unsqueeze(1), x, w1.mT).tanh_()
            scores = torch.baddbmm(b2.unsqueeze(1), hidden, w2.mT).softmax(dim=-1).sub_(right).div_(BATCH)
            torch.bmm(scores.mT, hidden), scores.sum(dim=1)
            inner = torch.bmm(scores, w2).mul_(1 - hidden * hidden)
            torch.bmm(inner.mT, x), inner.sum(dim=1)

    with torch.no_grad():
        return fastest(run, trials)


def ours(trials: int, compiled: bool) -> float:
    """The same run in this library, between two observations."""
    import torch  # noqa: PLC0415

    import proxdasa  # noqa: PLC0415
    from proxdasa import data, networks, problems, regularizers, schedules  # noqa: PLC0415
    from proxdasa.runs.compiling import Steps  # noqa: PLC0415
    from proxdasa.runs.setup import Setup  # noqa: PLC0415

    torch.set_num_threads(1)
    x, y = map(torch.from_numpy, examples())
    run = Setup(
        proxdasa.ProxDASA(GAMMA, schedules.diminishing(ALPHA)),
        problems.Supervised(problems.models.mlp, data.from_tensors(x, y), agents=N, batch_size=BATCH),
        networks.ring(N),
        regularizer=regularizers.L1(WEIGHT),
        trials=trials,
    )
    engine, algorithm = run.engine(), run.bound()
    steps = Steps(engine, algorithm, algorithm.step, {})
    now = (0, algorithm.init(engine, run.start()))

    def advance() -> None:
        nonlocal now
        due = now[0] + STEPS
        with engine.stepping():
            while now[0] < due:
                now = steps.advance(*now, due)

    with torch.no_grad():
        if compiled:
            steps.compile(now[1], [100], 0, LONG)
        return fastest(advance, trials)


if __name__ == "__main__":
    way = sys.argv[1]
    if hasattr(os, "sched_setaffinity"):  # one core, whatever threads a library starts
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if way == "JAX":
        try:
            import jax  # noqa: F401
        except ImportError:
            sys.exit("jax is missing: pip install 'proxdasa[bench]'")
    hand = {"JAX": in_jax, "torch": in_torch, "bare gradient": bare_gradient}.get(way)
    print(json.dumps({n: hand(n) if hand else ours(n, way == "compiled") for n in (1, 10)}))
