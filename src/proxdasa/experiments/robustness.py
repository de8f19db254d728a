"""A study of imperfect networks: lost messages, agents that are out, and compressed messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proxdasa import metrics
from proxdasa.algorithms import DPSGD, SPPDM, CDProxSGT, DeepStormV2, ProxDASA, ProxDASAGT
from proxdasa.compressors import QSGD, Float16, SignNorm, TopK
from proxdasa.conditions import Condition, LinkLoss, Outages
from proxdasa.contracts import Algorithm, Compressor, Mixing
from proxdasa.experiment_choices import LOSSES, SHARES_OUT
from proxdasa.experiments.heterogeneity import BATCH, DATA, skewed_partition
from proxdasa.mixing import CompressedGossip, Gossip
from proxdasa.networks import ring
from proxdasa.problems import Supervised
from proxdasa.regularizers import L1
from proxdasa.runs.setup import Setup
from proxdasa.schedules import constant

MEAN_DOWN = 20.0
"""Iterations that an outage lasts on average."""
SPLITS = {"alike": 100.0, "one-class": 0.0}
"""How the labels are divided among the agents, as a level β of `skewed_partition`."""
SPLIT_NAMES = {"alike": "agents alike", "one-class": "one class per agent"}


class Case(NamedTuple):
    """One run of the study: its method, its data and its imperfection."""

    method: str
    split: str
    kind: str
    """What is imperfect: "perfect" (nothing), "loss", "out" or "bytes"."""
    level: str
    """The probability of loss, the share of the time out, or the compressor."""

    @property
    def name(self) -> str:
        """The folder of the run."""
        return f"{self.split}/{self.method}-{self.kind}" + (f"-{self.level}" if self.level else "")


METHODS: dict[str, Algorithm] = {
    "prox-dasa": ProxDASA(gamma=10.0),
    "prox-dasa-gt": ProxDASAGT(gamma=10.0),
    "deepstorm-v2": DeepStormV2(alpha=constant(1.0), beta=0.5),
    "sppdm": SPPDM(gamma=3.0, c=0.3, kappa=0.1, beta=0.9, alpha=0.15, momentum=constant(0.8)),
    "d-psgd": DPSGD(gamma=0.3),
    "cdprox-sgt": CDProxSGT(gamma=1.0),
}
"""The methods, with the parameters of a grid that had the lowest objective if agents are alike and nothing fails."""

COMPRESSORS: dict[str, tuple[Compressor, float]] = {
    "float16": (Float16(), 1.0),
    "8-bits": (QSGD(8), 1.0),
    "tenth": (TopK(0.1), 0.3),
    "sign": (SignNorm(), 0.5),
}
"""The compressors, each with the step size of its gossip, chosen from {0.05, 0.1, 0.2, 0.5, 1} or near these."""


def robustness(
    losses: Sequence[float] = LOSSES,
    shares_out: Sequence[float] = SHARES_OUT,
    agents: int = 10,
    iterations: int = 1_000,
    trials: int = 10,
    seed: int = 0,
) -> dict[Case, Setup]:
    """Six methods on digits on a ring with one round: on a perfect network, and on each imperfect one.

    The problem is that of `heterogeneity`: a perceptron 64 → 32 tanh → 10, λ = 1e-3, batches of 16. SPPDM does not mix
    the vectors that it sends, so its messages are not compressed.
    """
    load, model, observations = DATA["digits"]
    rows, network = load(), ring(agents)
    setups = {}
    for split, beta in SPLITS.items():
        partition = skewed_partition(rows.y, beta, agents)
        problem = Supervised(model, rows, agents, batch_size=BATCH, partition=partition)
        for method, algorithm in METHODS.items():
            for (kind, level), (mixing, conditions) in _imperfections(losses, shares_out).items():
                if kind == "bytes" and not algorithm.facts.mixes:
                    continue
                setups[Case(method, split, kind, level)] = Setup(
                    algorithm,
                    problem,
                    network,
                    regularizer=L1(1e-3),
                    mixing=mixing,
                    conditions=conditions,
                    iterations=iterations,
                    trials=trials,
                    seed=seed,
                    observe_every=max(1, iterations // observations),
                    metrics=metrics.STANDARD,
                )
    return setups


def _imperfections(
    losses: Sequence[float], shares_out: Sequence[float]
) -> dict[tuple[str, str], tuple[Mixing, Sequence[Condition]]]:
    """Mixing and conditions by kind and level."""
    cases: dict[tuple[str, str], tuple[Mixing, Sequence[Condition]]] = {("perfect", ""): (Gossip(), ())}
    cases |= {("loss", f"{loss:g}"): (Gossip(), (LinkLoss(loss),)) for loss in losses}
    for share in shares_out:
        # An agent is out for MEAN_DOWN of every MEAN_DOWN / share iterations.
        cases["out", f"{share:g}"] = Gossip(), (Outages(MEAN_DOWN * (1 - share) / share, MEAN_DOWN),)
    for name, (compressor, step) in COMPRESSORS.items():
        cases["bytes", name] = CompressedGossip(compressor, step=step), ()
    return cases
