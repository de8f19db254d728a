"""Compares step sizes that the theory guarantees with those of a quick search: ``python -m benchmarks.guarantees``.

Logistic regression on the breast cancer data, eight agents on a ring, one sample per step.
"""

from __future__ import annotations

import torch

import proxdasa
from proxdasa import data, networks, problems, regularizers, schedules
from proxdasa.descriptions import describe


def main() -> None:
    torch.set_num_threads(1)
    problem = problems.Supervised(lambda: torch.nn.Linear(30, 2), data.breast_cancer(), agents=8, initial="zeros")
    network, settings = networks.ring(8), {"regularizer": regularizers.L1(1e-3), "iterations": 2_000}
    plan = proxdasa.plan(network, proxdasa.ProxDASA, K=2_000, problem=problem)
    assert plan.gamma is not None
    assert plan.mixings[0].alpha_limit is not None
    found = proxdasa.tune(proxdasa.ProxDASA(gamma=1.0), problem, network, quick=True, **settings)
    for name, method in {
        "plan": proxdasa.ProxDASA(plan.gamma, alpha=schedules.constant(plan.mixings[0].alpha_limit)),
        "tune --quick": found.algorithm,
    }.items():
        result = proxdasa.run(method, problem, network, **settings)
        first, last = result.records[0]["objective"], result.last[0]["objective"]
        print(f"{name}: γ = {method.gamma:.3g}, α = {describe(method.alpha)}: {first:.4f} to {last:.4f}")
    print(found.cost)


if __name__ == "__main__":
    main()
