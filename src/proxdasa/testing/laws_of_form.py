"""Laws about form: what a method consists of, and what a step may use and change."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from proxdasa.checks import check_count, check_positive
from proxdasa.contracts import Algorithm, Facts, parameters_of
from proxdasa.testing.case import (
    SEEN,
    STEPS,
    Case,
    N,
    Verbs,
    changed_names,
    follow,
    quadratic,
    random_state,
    rows,
    walk,
)
from proxdasa.testing.law import Violation, close, largest, law


@law(usually="a missing @dataclass(frozen=True, eq=False), facts: ClassVar[Facts] or State with x first")
def contract(case: Case) -> None:
    """A method is a frozen dataclass with facts, mapping_gamma, State, init and step; its parameters are fields."""
    algorithm: Any = case.algorithm
    if "__dataclass_params__" not in dir(algorithm):
        raise Violation(f"{algorithm!r} is not a dataclass")
    if not algorithm.__dataclass_params__.frozen:
        raise Violation("the dataclass is not frozen, so a run could change its parameters")
    if not isinstance(getattr(algorithm, "facts", None), Facts):
        raise Violation(f"facts is {getattr(algorithm, 'facts', 'missing')!r}, not proxdasa.contracts.Facts(...)")
    fields = getattr(getattr(algorithm, "State", None), "_fields", ())
    if fields[:1] != ("x",):
        raise Violation(
            f"State is not a NamedTuple whose first variable is x; its variables: {', '.join(fields) or 'none'}"
        )
    if missing := [name for name in ("init", "step") if not callable(getattr(algorithm, name, None))]:
        raise Violation(f"there is no {' and no '.join(missing)}")
    _check_interval(algorithm)
    check_positive(algorithm.mapping_gamma, "mapping_gamma")
    json.dumps(case.setup(quadratic(), case.star).config(), allow_nan=False)


def _check_interval(algorithm: Algorithm) -> None:
    name = algorithm.facts.sends_every
    if name is None:
        return
    if name not in parameters_of(algorithm):
        raise Violation(f"facts have sends_every={name!r}, but there is no such parameter")
    interval = algorithm.facts.interval(algorithm)
    check_count(interval, name)
    if interval > SEEN:
        raise Violation(
            f"with {name} = {interval} some laws would see no message; check it with {name} of at most {SEEN}"
        )


@law(usually="torch.zeros(...) without dtype (use torch.zeros_like(x)), a mean that drops an axis, a bare tuple")
def shapes(case: Case) -> None:
    """init and step return a State whose variables all have the shape [trials, agents, d] and the type of x."""
    for dtype in (torch.float64, torch.float32):
        setup = case.setup(quadratic(noise=0.1), case.star, trials=2, dtype=dtype, regularizer=case.regularizer)
        algorithm, engine, x = setup.bound(), setup.engine(), rows(trials=2).to(dtype)
        state = algorithm.init(engine, x)
        _check_state(algorithm, state, x, "init")
        for k in range(STEPS):
            state = algorithm.step(engine, k, state)
            _check_state(algorithm, state, x, f"step {k}")


def _check_state(algorithm: Algorithm, state: Any, x: Tensor, where: str) -> None:
    if not isinstance(state, algorithm.State):
        raise Violation(f"{where} returned a {type(state).__name__}, not the method's State")
    for name, value in state._asdict().items():
        if not isinstance(value, Tensor):
            raise Violation(f"{where} gave {name} as a {type(value).__name__}")
        if value.shape != x.shape or value.dtype != x.dtype:
            shape, dtype = list(value.shape), value.dtype
            raise Violation(f"{where} gave {name} as {dtype} {shape}, where x⁰ is {x.dtype} {list(x.shape)}")


@law(usually="step sizes for another problem (give an instance with suitable ones), or a sign")
def stable(case: Case) -> None:
    """With the given step sizes and curvatures from 1 to 2, x stays bounded."""
    x, end = rows(), case.course.states[-1].x
    if not largest(end) <= 100 * largest(x):
        algorithm = case.course.algorithm
        raise Violation(f"with {algorithm} x grew from {largest(x):.2g} to {largest(end):.2g} in {STEPS} steps")


@law(
    usually="arithmetic in place (x += ..., x.mul_(...)) on the state, or on the result of prox, which for Ψ = 0 is "
    "its argument; divergence is located by replaying steps from an earlier state"
)
def inputs(case: Case) -> None:
    """init and step do not write into the tensors that they are given."""
    if case.algorithm.facts.composite and (wrote := follow(case.setup(quadratic(noise=0.1), case.star)).wrote):
        raise Violation(wrote)
    if wrote := case.course.wrote:
        raise Violation(wrote)


@law(
    usually="random numbers of its own (samples come from agents.grad(x, k)), or memory outside of the state, such as "
    "a counter or a list in an attribute"
)
def replay(case: Case) -> None:
    """A step depends only on k, the state and what the agents return: repeated, it gives the same bits."""
    setup, half, (algorithm, engine, states, _) = case.noisy, STEPS // 2, case.course
    for what, other in (
        ("a second run from the start", case.recorded[-1][0]),
        (f"continuing again from the state after {half} steps", walk(algorithm, engine, states[half], half)),
        (f"continuing from the state after {half} steps with a fresh copy of the method",
         walk(setup.bound(), setup.engine(), states[half], half)),
    ):  # fmt: skip
        if changed := changed_names(states[-1], other):
            raise Violation(f"{what} gave a different {changed}")


@law(usually="agents.n, agents.mean or other attributes of an engine; an agent has no access to the whole network")
def verbs(case: Case) -> None:
    """An algorithm uses only the methods of proxdasa.contracts.Agents."""
    try:
        _ = case.recorded
    except AttributeError:
        if not case.watched.missing:
            raise
    if case.watched.missing:
        raise Violation(f"it used agents.{case.watched.missing[0]}")


@law(usually="a mean, norm or product over the agents' axis (x.mean(1), x.norm()); reduce over the last axis only")
def alone(case: Case) -> None:
    """Only mix and neighbour_sum cross rows: without them, nothing reaches one agent from another."""
    setup = case.setup(quadratic(noise=0.1), case.star, regularizer=case.regularizer)
    algorithm, agents = setup.bound(), Verbs(setup.engine(), apart=True)
    state = random_state(algorithm, agents)
    base = walk(algorithm, agents, state, 1, 5)
    for agent in range(N):
        nudge = torch.zeros_like(state.x)
        nudge[:, agent] = 1.0
        nudged = walk(algorithm, agents, type(state)(*(tensor + nudge for tensor in state)), 1, 5)
        others = [i for i in range(N) if i != agent]
        for name, a, b in zip(base._fields, base, nudged, strict=True):
            if reached := [str(i) for i in others if not close(a[:, i], b[:, i])]:
                raise Violation(f"{name} of agents {', '.join(reached)} changed with the rows of agent {agent}")
