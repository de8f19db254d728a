"""Laws of company: what agents and trials are to each other."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from torch import Tensor

from proxdasa import networks
from proxdasa.contracts import Algorithm
from proxdasa.networks import Network
from proxdasa.problems import Quadratic
from proxdasa.schedules import Number, Schedule, is_annotated, per_trial
from proxdasa.testing.case import STEPS, Case, N, Verbs, quadratic, rows, walk
from proxdasa.testing.law import LeftOut, Seen, close, largest, law


@law(usually="rows taken by index (x[:, 0] as a leader) or weights made by torch.arange over the agents")
def relabelling(case: Case) -> None:
    """Agents have no numbers: relabelled, with their data and neighbours, they do the same."""
    order, problem, network = [3, 0, 4, 1, 2], quadratic(), case.star
    moved = Quadratic(problem.A[order], problem.b[order])
    W = networks.from_matrix(network.W.toarray()[np.ix_(order, order)])
    x0 = rows()
    first = case.setup(problem, network, x0=x0, regularizer=case.regularizer).run()
    second = case.setup(moved, W, x0=x0[:, order], regularizer=case.regularizer).run()
    for name, tensor in first.state.items():
        if not close(second.state[name], tensor[:, order]):
            error = largest(second.state[name] - tensor[:, order])
            raise Seen(f"after {STEPS} iterations {name} of the same agent under another number differs by {error:.2g}")


@law(usually="rows taken by index, or steps that depend on where an agent's rows are stored")
def consensus(case: Case) -> None:
    """Agents on a ring that have the same data and begin at one point stay together."""
    state, _ = _alike(case)
    for name, tensor in state._asdict().items():
        if not close(tensor, tensor[:, :1].expand_as(tensor)):
            raise Seen(f"{name} of equal agents differs by {largest(tensor - tensor[:, :1]):.2g}")


@law(usually="sums over agents where a mean belongs, or steps that depend on how many agents there are")
def single(case: Case) -> None:
    """Agents that have the same data and begin at one point do what one agent alone does."""
    state, uses_graph = _alike(case)
    if uses_graph:
        raise LeftOut("it asks for degrees or neighbours' sums, and one agent has no neighbours")
    one, _ = _alike(case, networks.ring(1))
    for name, tensor in state._asdict().items():
        if not close(tensor[:, :1], getattr(one, name)):
            error = largest(tensor[:, :1] - getattr(one, name))
            raise Seen(f"{name} of {N} equal agents differs from that of one agent by {error:.2g}")


def _alike(case: Case, network: Network | None = None) -> tuple[Any, bool]:
    """The state of equal agents after some steps, and whether the method asked for their neighbours."""
    problem, network = quadratic(spread=0.0), network or case.ring
    algorithm = case.setup(problem, case.ring).bound()  # schedules know the number of agents, which is to be N
    here = case.setup(problem.restrict(range(network.n)), network, regularizer=case.regularizer)
    agents = Verbs(here.engine())
    return walk(algorithm, agents, algorithm.init(agents, rows(n=1).repeat(1, network.n, 1))), agents.uses_graph


@law(
    usually="if, max or float() of a parameter (check_positive, torch.where and torch.clamp take one value per trial), "
    "or a mean over all axes"
)
def trials(case: Case) -> None:
    """Trials do not meet: three at once, with parameters of their own, are what each is by itself."""
    problem, factors = quadratic(noise=0.1), (0.5, 0.75, 1.0)

    def run(changes: dict[str, Any], trials: int) -> dict[str, Tensor]:
        varied = Case(dataclasses.replace(case.algorithm, **changes), case.tracks)  # type: ignore[type-var]
        setup = varied.setup(problem, case.star, trials=trials, regularizer=case.regularizer, x0=rows()[0])
        return setup.run().state

    stacked = run(_scaled(case.algorithm, per_trial(factors)), len(factors))
    for trial, factor in enumerate(factors):
        own = run(_scaled(case.algorithm, factor), trial + 1)
        for name, tensor in stacked.items():
            if not close(tensor[trial], own[name][trial]):
                error = largest(tensor[trial] - own[name][trial])
                raise Seen(f"{name} of trial {trial} among three differs by {error:.2g} from the same trial by itself")


def _scaled(algorithm: Algorithm, factor: Number) -> dict[str, Any]:
    """The parameters that may differ by trial, times a factor: those annotated as Number, and those of schedules."""
    scaled: dict[str, Any] = {}
    for field in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, field.name)
        if isinstance(value, Schedule):
            parameters = {name: factor * number for name, number in value.parameters.items()}
            scaled[field.name] = dataclasses.replace(value, parameters=parameters)
        elif isinstance(value, float | Tensor) and is_annotated(field.type, Number, "Number"):
            scaled[field.name] = factor * value
    return scaled
