"""Laws about agents and trials: how they may and may not depend on each other."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from proxdasa import networks
from proxdasa.contracts import Algorithm
from proxdasa.networks import Network
from proxdasa.problems import Quadratic
from proxdasa.schedules import Number, Schedule, is_annotated, per_trial
from proxdasa.testing.case import STEPS, Case, N, quadratic, rows
from proxdasa.testing.law import NotApplicable, Violation, close, largest, law

ORDER = [3, 0, 4, 1, 2]
"""The agents in another order."""


@law(usually="rows taken by index (x[:, 0] as a leader) or weights made by torch.arange over the agents")
def relabelling(case: Case) -> None:
    """Results do not depend on the agents' numbers: relabelled, with their data and neighbours, they do the same."""
    x0 = rows()
    first = case.setup(quadratic(), case.star, x0=x0, regularizer=case.regularizer).run()
    second = case.setup(*_relabel(case.star), x0=x0[:, ORDER], regularizer=case.regularizer).run()
    for name, tensor in first.state.items():
        if not close(second.state[name], tensor[:, ORDER]):
            error = largest(second.state[name] - tensor[:, ORDER])
            raise Violation(
                f"after {STEPS} iterations {name} of the same agent under another number differs by {error:.2g}"
            )


@cache
def _relabel(network: Network) -> tuple[Quadratic, Network]:
    problem, W = quadratic(), network.W.toarray()
    return Quadratic(problem.A[ORDER], problem.b[ORDER]), networks.from_matrix(W[np.ix_(ORDER, ORDER)])


@law(usually="rows taken by index, or steps that depend on where an agent's rows are stored")
def consensus(case: Case) -> None:
    """Agents on a ring with the same data and the same starting point stay together."""
    state, _ = case.equal
    for name, tensor in state._asdict().items():
        if not close(tensor, tensor[:, :1].expand_as(tensor)):
            raise Violation(f"{name} of equal agents differs by {largest(tensor - tensor[:, :1]):.2g}")


@law(usually="sums over agents instead of means, or steps that depend on how many agents there are")
def single(case: Case) -> None:
    """Agents with the same data and the same starting point do what a single agent does."""
    state, uses_graph = case.equal
    if uses_graph:
        raise NotApplicable("it uses degrees or sums over neighbours, and a single agent has none")
    one, _ = case.run_equal(networks.ring(1))
    for name, tensor in state._asdict().items():
        if not close(tensor[:, :1], getattr(one, name)):
            error = largest(tensor[:, :1] - getattr(one, name))
            raise Violation(f"{name} of {N} equal agents differs from that of one agent by {error:.2g}")


@law(
    usually="if, max or float() of a parameter (check_positive, torch.where and torch.clamp handle values per trial), "
    "or a mean over all axes"
)
def trials(case: Case) -> None:
    """Trials are independent: three stacked trials, each with its own parameters, equal three single runs."""
    problem, factors = quadratic(noise=0.1), (0.5, 0.75, 1.0)

    def run(changes: dict[str, Any], trials: int) -> dict[str, Tensor]:
        varied = dataclasses.replace(case, algorithm=dataclasses.replace(case.algorithm, **changes))  # type: ignore[type-var]
        setup = varied.setup(problem, case.star, trials=trials, regularizer=case.regularizer, x0=rows()[0])
        return setup.run().state

    stacked = run(_scale_parameters(case.algorithm, per_trial(factors)), len(factors))
    for trial, factor in enumerate(factors):
        own = run(_scale_parameters(case.algorithm, factor), trial + 1)
        for name, tensor in stacked.items():
            if not close(tensor[trial], own[name][trial]):
                error = largest(tensor[trial] - own[name][trial])
                raise Violation(
                    f"{name} of trial {trial} of three differs by {error:.2g} from the same trial on its own"
                )


def _scale_parameters(algorithm: Algorithm, factor: Number) -> dict[str, Any]:
    """The parameters that may differ by trial (annotated as Number, or of a schedule), multiplied by a factor."""
    scaled: dict[str, Any] = {}
    for field in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, field.name)
        if isinstance(value, Schedule):
            parameters = {name: factor * number for name, number in value.parameters.items()}
            scaled[field.name] = dataclasses.replace(value, parameters=parameters)
        elif isinstance(value, float | Tensor) and is_annotated(field.type, Number, "Number"):
            scaled[field.name] = factor * value
    return scaled
