"""Laws about results: a method finds the solution, with the same bits however its agents are distributed."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from proxdasa.contracts import Problem
from proxdasa.engines import Transport
from proxdasa.engines.messages.threads import in_threads
from proxdasa.problems import PhaseRetrieval
from proxdasa.regularizers import Zero
from proxdasa.runs.saving import Saving
from proxdasa.testing import case as cases
from proxdasa.testing.case import (
    BAD_WEATHER,
    LONG,
    SEEN,
    STEPS,
    WEIGHT,
    Case,
    N,
    Verbs,
    changed_names,
    quadratic,
    rows,
    walk,
)
from proxdasa.testing.law import NEAR, NotApplicable, Violation, close, largest, law


@law(
    usually="a sign, a gradient at another point than the update assumes, or a correction that is not zero at the "
    f"solution; or step sizes too large or too small for curvatures from 1 to 2 and {LONG} iterations"
)
def solution(case: Case) -> None:
    """Agents with equal F_i and without noise find the minimiser of F."""
    _check_solution(case, 0.0)


@law(
    usually="a missing prox, or one with another γ than the step before it; a method for Ψ = 0 declares composite=False"
)
def sparsity(case: Case) -> None:
    """Agents with equal F_i also find the minimiser of F + λ‖·‖₁."""
    if not case.algorithm.facts.composite:
        raise NotApplicable("it declares that it handles only Ψ = 0")
    _check_solution(case, WEIGHT)


def _check_solution(case: Case, weight: float) -> None:
    x0, x_star = rows(), cases.solution_of_one(weight)
    settings = {"regularizer": case.regularizer if weight else Zero(), "iterations": case.long, "x0": x0}
    x = case.setup(quadratic(spread=0.0), case.ring, **settings).run().x
    start, end = largest(x0 - x_star), largest(x - x_star)
    if not end <= NEAR * start:
        raise Violation(
            f"after {case.long} iterations the distance to the minimiser was {end:.2g}, and at the start {start:.2g}"
        )


@law(usually="rows that are mixed and then not used; a method that corrects for differences reaches the minimiser")
def together(case: Case) -> None:
    """Agents with different F_i end closer to the common minimiser than their own minimisers are."""
    weight = WEIGHT if case.algorithm.facts.composite else 0.0
    reached = case.setup(quadratic(), case.star, regularizer=case.regularizer, iterations=case.long).run().x[0]
    x_star, own = cases.solution_of_all(weight), cases.solutions_of_each(weight)
    apart, end = (float((x - x_star).norm(dim=1).mean()) for x in (own, reached))
    if not end <= 0.7 * apart:
        raise Violation(
            f"after {case.long} iterations the agents' mean distance to the minimiser was {end:.2g}; "
            f"that of the minimisers of their own losses is {apart:.2g}"
        )


@law(
    usually="use of the number of rows (x.shape[1]), a mean over rows, or a product whose order of summation depends "
    "on them; a process holds the rows of only some agents"
)
def processes(case: Case) -> None:
    """Exact runs have the same bits in one, two and three processes."""
    setup = case.setup(quadratic(noise=0.1), case.star, regularizer=case.regularizer, exact=True)

    def act(transport: Transport) -> Any:
        engine, algorithm = setup.engine(transport), setup.bound()
        try:
            with torch.no_grad(), engine.stepping():
                here = rows()[:, engine.agents.start : engine.agents.stop].clone()
                state = walk(algorithm, engine, algorithm.init(engine, here), 0, SEEN)
                return type(state)(*(engine.gather(tensor) for tensor in state))
        except Exception as error:
            transport.fail(str(error))  # otherwise the others would wait for messages
            raise

    whole, *_ = in_threads(1, act)
    for size in (2, 3):
        spread, *_ = answers = in_threads(size, act)
        for answer in (whole, *answers):
            if isinstance(answer, Exception):
                raise answer
        if changed := changed_names(whole, spread):
            raise Violation(f"in {size} processes {changed} had other bits than in one")


@law(usually="memory outside of the state, or two variables that must be the same tensor")
def resuming(case: Case) -> None:
    """A run that continues from a checkpoint has the same bits as one that was not interrupted, even if links fail."""

    def interrupt(k: int, _iterations: int, _rows: Any) -> None:
        if k == STEPS // 2:
            raise KeyboardInterrupt

    for chosen, whole in (((), case.calm), (BAD_WEATHER, case.stormy)):
        problem, settings = quadratic(noise=0.1), {"regularizer": case.regularizer, "conditions": chosen}
        setup = case.setup(problem, case.star, x0=rows(), **settings)
        with tempfile.TemporaryDirectory() as folder:
            saving = Saving(Path(folder))
            setup.run(interrupt, saving)
            resumed = setup.run(None, saving)
        if changed := [name for name in whole if not torch.equal(whole[name], resumed.state[name])]:
            weather = "while links failed and agents paused " if chosen else ""
            raise Violation(
                f"after resuming at iteration {STEPS // 2} {weather}the run ended with a different {', '.join(changed)}"
            )


@law(
    usually="differences of large sums, comparisons such as x == 0, or numbers that are too small for single precision"
)
def precision(case: Case) -> None:
    """Single precision agrees with double precision up to rounding."""
    settings = {"regularizer": case.regularizer, "dtype": torch.float32, "x0": rows()}
    single, double = case.setup(quadratic(noise=0.1), case.star, **settings).run().x, case.calm["x"]
    if not close(single.double(), double, 1e-3):
        raise Violation(f"after {STEPS} iterations x differs by {largest(single.double() - double):.2g}")


@law(usually="a full gradient in a step but none in init, so that the error comes hours later")
def streams(case: Case) -> None:
    """It runs on streaming samples, which never repeat, or raises at the start."""
    setup = case.setup(_stream(), case.star, regularizer=case.regularizer)
    algorithm, agents = setup.bound(), Verbs(setup.engine())
    try:
        state = algorithm.init(agents, setup.start())
    except ValueError as error:
        if not agents.uses_full:
            raise
        raise NotApplicable("it needs full gradients, which streams do not have") from error
    try:
        walk(algorithm, agents, state)
    except ValueError as error:
        if not agents.uses_full:
            raise
        raise Violation("init accepted the stream, but a later step raised") from error


@cache  # nothing changes it
def _stream() -> Problem:
    return PhaseRetrieval(agents=N, dim=4, sparsity=2, evaluation="population").to(torch.float64)


@law(
    usually="nan_to_num, or a test that skips a step: the run would continue with wrong numbers instead of stopping "
    "with a warning that names the agent and the iteration"
)
def divergence(case: Case) -> None:
    """A NaN gradient shows in the state of its agent."""

    def spoil(v: Tensor) -> Tensor:
        v = v.clone()
        v[:, 2] = torch.nan
        return v

    setup = case.setup(quadratic(), case.star, regularizer=case.regularizer)
    algorithm, engine = setup.bound(), setup.engine()
    state = walk(algorithm, Verbs(engine, spoil, apart=True), algorithm.init(engine, rows()))
    if all(bool(tensor[:, 2].isfinite().all()) for tensor in state):
        raise Violation(f"all gradients of agent 2 were NaN, but after {STEPS} steps its state was finite")
