"""The quality of a quick search: the rank of its setting among all settings of the default range, each run to the end.

Run as ``python -m benchmarks.quick_search``; takes some minutes.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from proxdasa import data, networks, problems, regularizers, schedules, tuning
from proxdasa.algorithms import DPSGD, DeepStormV2, ProxDASA, ProxDASAGT
from proxdasa.runs.setup import Setup


def logistic(batch: int) -> problems.Supervised:
    return problems.Supervised(
        lambda: torch.nn.Linear(30, 2), data.breast_cancer(), agents=8, batch_size=batch, initial="zeros"
    )


def quadratic(noise: float) -> problems.Quadratic:
    generator = torch.Generator().manual_seed(0)
    A, b = torch.randn(16, 10, 10, generator=generator), 3 * torch.randn(16, 10, generator=generator)
    return problems.Quadratic(A @ A.mT / 10 + 0.1 * torch.eye(10), b, noise=noise)


def cases() -> dict[str, Setup]:
    ring, wide, sparse, strong = networks.ring(8), networks.ring(16), regularizers.L1(1e-3), regularizers.L1(0.1)
    retrieval = problems.PhaseRetrieval(agents=8, dim=50, evaluation=1_000)
    perceptron = problems.Supervised(lambda: problems.models.mlp(64, 32, 10), data.digits(), agents=8, batch_size=8)
    deep, slow = DeepStormV2(schedules.cube_root(1.0), 1.0), ProxDASA(1.0, schedules.diminishing(1.0))
    return {
        "logistic regression": Setup(ProxDASA(1.0), logistic(1), ring, regularizer=sparse, iterations=2_000),
        "logistic regression, K = 300": Setup(ProxDASA(1.0), logistic(1), ring, regularizer=sparse, iterations=300),
        "logistic regression, tracking": Setup(
            ProxDASAGT(1.0), logistic(1), ring, regularizer=sparse, iterations=2_000
        ),
        "logistic regression, batch 16": Setup(ProxDASAGT(1.0), logistic(16), ring, regularizer=sparse),
        "logistic regression, D-PSGD": Setup(DPSGD(1.0), logistic(1), ring, regularizer=sparse),
        "phase retrieval": Setup(ProxDASAGT(1.0), retrieval, ring, regularizer=regularizers.L1(0.01), iterations=2_500),
        "noisy quadratics": Setup(ProxDASAGT(1.0), quadratic(1.0), wide, regularizer=strong, iterations=3_000),
        "noisy quadratics, √(n/k)": Setup(slow, quadratic(1.0), wide, regularizer=strong, iterations=3_000),
        "noisy quadratics, DEEPSTORM": Setup(deep, quadratic(1.0), wide, regularizer=strong),
        "exact quadratics": Setup(ProxDASAGT(1.0), quadratic(0.0), wide, regularizer=strong),
        "digits, perceptron": Setup(ProxDASAGT(1.0), perceptron, ring, regularizer=regularizers.L1(1e-4)),
    }


def main() -> None:
    torch.set_num_threads(1)
    for name, setup in cases().items():
        settings = tuning.default_settings(setup)
        began = time.process_time()
        found = tuning.halve(setup, settings)
        taken = time.process_time() - began
        began = time.process_time()
        replace(setup, algorithm=found.algorithm).run()
        one = time.process_time() - began
        search = tuning.Search(setup, settings)
        with tuning.expect_divergence():
            ranking = search.rank(search.setup.run(), "objective").ranking
        place = [outcome.parameters for outcome in ranking].index(found.best)
        print(
            f"{name}: rank {place + 1} of {len(ranking)}, objective {ranking[place].mean:.5g}, best "
            f"{ranking[0].mean:.5g}; {found.runs:.2f} runs of iterations, {taken / one:.1f} of processor time"
        )


if __name__ == "__main__":
    main()
