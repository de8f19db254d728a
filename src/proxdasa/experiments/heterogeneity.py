"""A study of gradient tracking on data that are divided among the agents more and more unevenly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from proxdasa import metrics
from proxdasa.algorithms import DPSGD, ProxDASA, ProxDASAGT
from proxdasa.contracts import Algorithm, Problem
from proxdasa.data import Dataset, Dirichlet, Partition, Shards, digits, mnist
from proxdasa.experiment_choices import BETAS
from proxdasa.networks import ring
from proxdasa.problems import Model, Supervised, models
from proxdasa.regularizers import L1
from proxdasa.runs.setup import Setup

BATCH = 16
"""Examples per agent and iteration; a partition must give every agent at least as many."""
DRAWS = 100
"""Dirichlet partitions to try until every agent has a batch."""

DATA: dict[str, tuple[Callable[[], Dataset], Model, int]] = {
    "digits": (digits, partial(models.mlp, inputs=64, hidden=32, outputs=10), 50),
    "mnist": (mnist, models.lenet, 4),
}
"""The data sets, each with its model and its number of observations; an observation of MNIST takes long."""


def heterogeneity(
    data: str = "digits",
    betas: Sequence[float] = BETAS,
    agents: int = 10,
    iterations: int = 1_000,
    trials: int = 10,
    seed: int = 0,
) -> dict[str, Setup]:
    """Prox-DASA, Prox-DASA-GT and D-PSGD on a ring with one round, for each level β of label skew.

    The model is a perceptron 64 → 32 tanh → 10 for digits, and LeNet for MNIST; λ = 1e-3. Both DASA methods take γ = 3
    and the theory's α = √(n/K); D-PSGD takes γ = 0.3, the one of {0.03, 0.1, 0.3, 1} with the lowest final objective on
    digits at β = 100. These values are the same for every β.
    """
    if data not in DATA:
        raise ValueError(f"data must be {' or '.join(DATA)}; got {data!r}")
    load, model, observations = DATA[data]
    rows = load()
    methods: dict[str, Algorithm] = {
        "prox-dasa": ProxDASA(gamma=3.0),
        "prox-dasa-gt": ProxDASAGT(gamma=3.0),
        "d-psgd": DPSGD(gamma=0.3),
    }
    problems = {
        beta: Supervised(model, rows, agents, batch_size=BATCH, partition=skewed_partition(rows.y, beta, agents))
        for beta in betas
    }
    return {
        f"{name}-beta-{beta:g}": Setup(
            method,
            problem,
            ring(agents),
            regularizer=L1(1e-3),
            iterations=iterations,
            trials=trials,
            seed=seed,
            observe_every=max(1, iterations // observations),
            metrics=(*metrics.STANDARD, metrics.lowest_accuracy),
        )
        for name, method in methods.items()
        for beta, problem in problems.items()
    }


def level(name: str) -> str:
    """The level of label skew of a run, given its name among the set-ups of `heterogeneity`."""
    beta = name.rpartition("-beta-")[2]
    return "one class per agent" if beta == "0" else f"β = {beta}"


def skew(problem: Problem) -> float:
    """The share of an agent's most frequent class in its examples, averaged over agents: from 1/classes to 1."""
    assert isinstance(problem, Supervised)
    labels = [problem.examples.y[rows] for rows in problem.parts]
    return sum(float(y.bincount().max() / len(y)) for y in labels) / len(labels)


def skewed_partition(y: Tensor, beta: float, agents: int) -> Partition:
    """The partition of level β: `Dirichlet`, but one class per agent for β = 0.

    The limit β → 0 of Dirichlet differs: it has one agent per class, and agents without a class would get a single
    row. So for β = 0 the rows are sorted by label and cut into equal parts, where a part may hold some rows of the next
    class. For β > 0 the partition is the first draw that gives every agent a batch.
    """
    if beta == 0:
        return Shards(per_agent=1)
    for draw in range(DRAWS):
        partition = Dirichlet(beta, seed=draw)
        if min(len(rows) for rows in partition(y, agents)) >= BATCH:
            return partition
    raise ValueError(
        f"none of {DRAWS} Dirichlet partitions with beta = {beta:g} gives each of {agents} agents {BATCH} examples; "
        "choose a larger beta, or 0 for one class per agent"
    )
