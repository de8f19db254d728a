"""The laws: what holds for every method that keeps the contract, whatever it computes.

A law says what it demands and what is usually behind a breach; its function raises `Seen` with what was seen instead,
or `LeftOut` with the reason why it does not apply.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxdasa import networks
from proxdasa.contracts import Algorithm, Facts
from proxdasa.engines import Transport
from proxdasa.engines.messages.threads import in_threads
from proxdasa.mixing import Gossip
from proxdasa.networks import Network
from proxdasa.problems import PhaseRetrieval, Quadratic
from proxdasa.regularizers import Zero
from proxdasa.runs.loop import Saving
from proxdasa.schedules import Number, Schedule, annotated, check_positive, per_trial
from proxdasa.testing.case import STEPS, WEIGHT, Case, N, Verbs, minimiser, quadratic, random_state, rows, walk

LONG = 400
"""Iterations in which a method must come near a solution."""
NEAR = 0.01
"""How near: the share of the distance at the start that may be left."""
ROUNDING = 1e-10


class Seen(Exception):  # noqa: N818 - not a fault of ours
    """What was seen instead of what a law demands."""


class LeftOut(Exception):  # noqa: N818 - nor is this
    """Why a law does not apply."""


class Law(NamedTuple):
    """A demand, what is usually behind its breach, and the check."""

    name: str
    demand: str
    usually: str
    check: Callable[[Case], None]


def law(usually: str) -> Callable[[Callable[[Case], None]], Law]:
    """A check that demands what its docstring says."""
    return lambda check: Law(check.__name__, " ".join((check.__doc__ or "").split()), usually, check)


# what a method is


@law(usually="@dataclass(frozen=True, eq=False), facts: ClassVar[Facts] or a State with x first was forgotten")
def contract(case: Case) -> None:
    """A method is a frozen dataclass with facts, mapping_gamma, State, init and step; its parameters are fields."""
    algorithm: Any = case.algorithm
    if "__dataclass_params__" not in dir(algorithm):
        raise Seen(f"{algorithm!r} is not a dataclass")
    if not algorithm.__dataclass_params__.frozen:
        raise Seen("the dataclass is not frozen, so that a run could change its parameters")
    if not isinstance(getattr(algorithm, "facts", None), Facts):
        raise Seen(f"facts is {getattr(algorithm, 'facts', 'missing')!r}, not proxdasa.contracts.Facts(...)")
    fields = getattr(getattr(algorithm, "State", None), "_fields", ())
    if fields[:1] != ("x",):
        raise Seen(f"State is no NamedTuple whose first variable is x; its variables: {', '.join(fields) or 'none'}")
    if missing := [name for name in ("init", "step") if not callable(getattr(algorithm, name, None))]:
        raise Seen(f"there is no {' and no '.join(missing)}")
    check_positive(algorithm.mapping_gamma, "mapping_gamma")
    json.dumps(case.setup(quadratic(), case.star).config(), allow_nan=False)


@law(usually="torch.zeros(...) without dtype (use torch.zeros_like(x)), a mean that drops an axis, a bare tuple")
def shapes(case: Case) -> None:
    """What init and step return is a State whose every variable has the shape [trials, agents, d] and the type of x."""
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
        raise Seen(f"{where} returned a {type(state).__name__}, not the method's State")
    for name, value in state._asdict().items():
        if not isinstance(value, Tensor):
            raise Seen(f"{where} gave {name} as a {type(value).__name__}")
        if value.shape != x.shape or value.dtype != x.dtype:
            shape, dtype = list(value.shape), value.dtype
            raise Seen(f"{where} gave {name} as {dtype} {shape}, where x⁰ is {x.dtype} {list(x.shape)}")


@law(usually="step sizes for another problem (give an instance with suitable ones), or a sign")
def stable(case: Case) -> None:
    """The given step sizes suit curvatures from 1 to 2: x does not run away."""
    setup = case.setup(quadratic(noise=0.1), case.star, regularizer=case.regularizer)
    algorithm, engine, x = setup.bound(), setup.engine(), rows()
    end = walk(algorithm, engine, algorithm.init(engine, x.clone())).x
    if not _largest(end) <= 100 * _largest(x):
        raise Seen(f"with {algorithm} x grew from {_largest(x):.2g} to {_largest(end):.2g} in {STEPS} steps")


# what a step may touch


@law(
    usually="arithmetic in place (x += ..., x.mul_(...)) on the state, or on what prox returned, which for Ψ = 0 is "
    "its own argument; divergence is located by replaying steps from an earlier state"
)
def inputs(case: Case) -> None:
    """Steps, and init, do not write into the tensors they are given."""
    for regularizer in (Zero(), case.regularizer):
        setup = case.setup(quadratic(noise=0.1), case.star, regularizer=regularizer)
        algorithm, engine, x = setup.bound(), setup.engine(), rows()
        before = x.clone()
        state = algorithm.init(engine, x)
        if not torch.equal(x, before):
            raise Seen("init changed the x it was given")
        for k in range(STEPS):
            given, copies = state, [tensor.clone() for tensor in state]
            state = algorithm.step(engine, k, given)
            if changed := _changed(given, copies):
                raise Seen(f"step {k} changed {changed} of the state it was given")


def _changed(state: Any, other: Sequence[Tensor]) -> str:
    """The names of the variables that differ."""
    pairs = zip(state._fields, state, other, strict=True)
    return ", ".join(name for name, a, b in pairs if not torch.equal(a, b))


@law(
    usually="random numbers of its own (samples come from agents.grad(x, k), which names them), or memory outside of "
    "the state, such as a counter or a list in an attribute"
)
def replay(case: Case) -> None:
    """A step depends on k, the state and the agents' answers alone: made again, it has the same bits."""
    setup = case.setup(quadratic(noise=0.1), case.star, regularizer=case.regularizer)
    algorithm, engine, half = setup.bound(), setup.engine(), STEPS // 2
    middle = walk(algorithm, engine, algorithm.init(engine, rows()), stop=half)
    end = walk(algorithm, engine, middle, half)
    again = setup.bound()
    whole = walk(again, setup.engine(), again.init(setup.engine(), rows()))
    for what, other in (
        ("a second run from the start", whole),
        (f"going on from the state after {half} steps once more", walk(algorithm, engine, middle, half)),
        (f"going on from the state after {half} steps with a fresh copy of the method",
         walk(setup.bound(), setup.engine(), middle, half)),
    ):  # fmt: skip
        if changed := _changed(end, other):
            raise Seen(f"{what} gave another {changed}")


@law(
    usually="agents.n, agents.mean or other things that some engine happens to have; what needs the whole network "
    "cannot be had by an agent"
)
def verbs(case: Case) -> None:
    """An algorithm uses the verbs of proxdasa.contracts.Agents and knows nothing else of its agents."""
    setup = case.setup(quadratic(noise=0.1), case.star, regularizer=case.regularizer)
    algorithm, agents = setup.bound(), Verbs(setup.engine())
    try:
        walk(algorithm, agents, algorithm.init(agents, rows()))
    except AttributeError:
        if not agents.missing:
            raise
    if agents.missing:
        raise Seen(f"it asked for agents.{agents.missing[0]}")


@law(usually="a mean, norm or product over the agents' axis (x.mean(1), x.norm()); reduce over the last axis only")
def alone(case: Case) -> None:
    """Only mix and neighbour_sum cross rows: without them, what an agent has does not reach another."""
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
            if reached := [str(i) for i in others if not _close(a[:, i], b[:, i])]:
                raise Seen(f"{name} of agents {', '.join(reached)} changed with the rows of agent {agent}")


def _close(a: Tensor, b: Tensor, tolerance: float = ROUNDING) -> bool:
    """Equal up to rounding, at the size of the numbers."""
    return float((a - b).abs().max()) <= tolerance * (1 + float(b.abs().max()))


# what a method says of itself


@law(
    usually="a variable that is carried, and perhaps sent, for nothing, or one that the equations use and the code "
    "does not"
)
def alive(case: Case) -> None:
    """Every variable of the state has an influence on a later x."""
    setup = case.setup(quadratic(noise=0.1), case.star)
    algorithm, engine = setup.bound(), setup.engine()
    state = random_state(algorithm, engine)
    base = walk(algorithm, engine, state, 1)
    for name in state._fields:
        nudged = state._replace(**{name: getattr(state, name) + rows(seed=99).abs()})
        if _close(walk(algorithm, engine, nudged, 1).x, base.x, 1e-12):
            raise Seen(f"{name} was changed, and x after {STEPS} steps was the same")


@law(usually="x, _ = agents.mix(x, y) and then y as it was before; such a vector is sent for nothing")
def heard(case: Case) -> None:
    """Every vector that comes out of mixing has an influence on a later x."""
    setup = case.setup(quadratic(noise=0.1), case.star)
    algorithm, engine = setup.bound(), setup.engine()
    state, agents = random_state(algorithm, engine), Verbs(engine)
    algorithm.step(agents, 1, state)
    if not agents.mixed:
        raise LeftOut("it does not mix")
    base = walk(algorithm, engine, state, 1)
    for vector in range(agents.mixed):
        if _close(walk(algorithm, Verbs(engine, stir=vector), state, 1).x, base.x, 1e-12):
            raise Seen(
                f"vector {vector + 1} of the {agents.mixed} that a step mixes came out changed, and x was the same"
            )


@law(
    usually="two calls of mix where one message could carry both, a gradient that is evaluated and not used, or facts "
    "copied from another method"
)
def costs(case: Case) -> None:
    """Facts declare what is counted: vectors per step and round, gradients per sample of an ordinary step, mixes."""
    facts, batch = case.algorithm.facts, getattr(case.algorithm, "batch", 1)
    for mixing in (Gossip(1), Gossip(3)):
        setup = case.setup(quadratic(noise=0.1), case.star, mixing=mixing)
        algorithm, engine = setup.bound(), setup.engine()
        state, gradients = algorithm.init(engine, rows()), []
        rounds = mixing.rounds if facts.mixes else 1
        for k in range(STEPS):
            before = engine.counts()
            state = algorithm.step(engine, k, state)
            spent = {name: count - before[name] for name, count in engine.counts().items()}
            gradients.append(spent["gradients"])
            if spent["vectors"] != rounds * facts.vectors:
                raise Seen(
                    f"step {k} sent {spent['vectors']:g} vectors to each neighbour in {spent['rounds']:g} rounds; "
                    f"facts have vectors={facts.vectors}, mixes={facts.mixes}, and mixing takes {mixing.rounds}"
                )
        if (ordinary := statistics.mode(gradients)) != facts.gradients * batch:
            raise Seen(f"an ordinary step took {ordinary:g} gradients; facts have gradients={facts.gradients}"
                       + (f" for each of {batch} samples" if batch > 1 else ""))  # fmt: skip


@law(usually="agents.grad(x, 0), or a name that does not move with k: the noise of one sample then never averages out")
def samples(case: Case) -> None:
    """Every step uses a sample that no step before has used."""
    setup = case.setup(quadratic(noise=0.1), case.star, regularizer=case.regularizer)
    algorithm, agents = setup.bound(), Verbs(setup.engine())
    state = algorithm.init(agents, rows())
    drew = bool(agents.samples)
    for k in range(STEPS):
        before = set(agents.samples)
        agents.samples.clear()
        state = algorithm.step(agents, k, state)
        if agents.samples and agents.samples <= before:
            raise Seen(f"step {k} asked for samples {sorted(agents.samples)} only, all of which had been used before")
        drew |= bool(agents.samples)
        agents.samples |= before
    if not drew:
        raise LeftOut("it uses no sample gradients")


@law(usually="a tracker that is not begun with what it tracks, or that adds the new value and forgets to take the old")
def tracking(case: Case) -> None:
    """The mean over agents of a tracker is that of what it tracks, after every step."""
    if not case.tracks:
        raise LeftOut("no tracks={...} were given")
    setup = case.setup(quadratic(noise=0.1), case.star, regularizer=case.regularizer)
    algorithm, engine = setup.bound(), setup.engine()
    state = algorithm.init(engine, rows())
    for k in range(STEPS):
        state = algorithm.step(engine, k, state)
        for tracker, tracked in case.tracks.items():
            u, v = getattr(state, tracker).mean(1), getattr(state, tracked).mean(1)
            if not _close(u, v):
                raise Seen(f"after step {k} the means of {tracker} and {tracked} differ by {_largest(u - v):.2g}")


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


# what agents and trials are to each other


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
        if not _close(second.state[name], tensor[:, order]):
            error = _largest(second.state[name] - tensor[:, order])
            raise Seen(f"after {STEPS} iterations {name} of the same agent under another number differs by {error:.2g}")


@law(usually="rows taken by index, or steps that depend on where an agent's rows are stored")
def consensus(case: Case) -> None:
    """Agents on a ring that have the same data and begin at one point stay together."""
    state, _ = _alike(case)
    for name, tensor in state._asdict().items():
        if not _close(tensor, tensor[:, :1].expand_as(tensor)):
            raise Seen(f"{name} of equal agents differs by {_largest(tensor - tensor[:, :1]):.2g}")


@law(usually="sums over agents where a mean belongs, or steps that depend on how many agents there are")
def single(case: Case) -> None:
    """Agents that have the same data and begin at one point do what one agent alone does."""
    state, uses_graph = _alike(case)
    if uses_graph:
        raise LeftOut("it asks for degrees or neighbours' sums, and one agent has no neighbours")
    one, _ = _alike(case, networks.ring(1))
    for name, tensor in state._asdict().items():
        if not _close(tensor[:, :1], getattr(one, name)):
            error = _largest(tensor[:, :1] - getattr(one, name))
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
            if not _close(tensor[trial], own[name][trial]):
                error = _largest(tensor[trial] - own[name][trial])
                raise Seen(f"{name} of trial {trial} among three differs by {error:.2g} from the same trial by itself")


def _scaled(algorithm: Algorithm, factor: Number) -> dict[str, Any]:
    """The parameters that may differ by trial, times a factor: those annotated as Number, and those of schedules."""
    scaled: dict[str, Any] = {}
    for field in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, field.name)
        if isinstance(value, Schedule):
            parameters = {name: factor * number for name, number in value.parameters.items()}
            scaled[field.name] = dataclasses.replace(value, parameters=parameters)
        elif isinstance(value, float | Tensor) and annotated(field.type, Number, "Number"):
            scaled[field.name] = factor * value
    return scaled


# where it ends


@law(
    usually="a sign, a gradient at another point than the update assumes, or a correction that is not zero at the "
    f"solution; or step sizes too large or too small for curvatures from 1 to 2 and {LONG} iterations"
)
def solution(case: Case) -> None:
    """Agents that agree find the minimiser of F: without noise, where all F_i are alike."""
    _check_solution(case, 0.0)


@law(
    usually="a prox that is missing, or with another γ than the step before it; a method for Ψ = 0 declares "
    "composite=False"
)
def sparsity(case: Case) -> None:
    """Agents that agree find the minimiser of F + λ‖·‖₁ too."""
    if not case.algorithm.facts.composite:
        raise LeftOut("it declares that it is for Ψ = 0 only")
    _check_solution(case, WEIGHT)


def _check_solution(case: Case, weight: float) -> None:
    problem, x0 = quadratic(spread=0.0), rows()
    regularizer = case.regularizer if weight else Zero()
    x = case.setup(problem, case.ring, regularizer=regularizer, iterations=LONG, x0=x0).run().x
    x_star = minimiser(problem.A[0], problem.b[0], weight)
    start, end = _largest(x0 - x_star), _largest(x - x_star)
    if not end <= NEAR * start:
        raise Seen(f"after {LONG} iterations from a distance of {start:.2g} it was at {end:.2g} of the minimiser")


@law(usually="rows that are mixed and then not used; a method that corrects for differences comes all the way")
def together(case: Case) -> None:
    """Agents that differ solve the network's problem and not their own: they end nearer to its minimiser."""
    problem, weight = quadratic(), WEIGHT if case.algorithm.facts.composite else 0.0
    reached = case.setup(problem, case.star, regularizer=case.regularizer, iterations=LONG).run().x[0]
    x_star = minimiser(problem.A.mean(0), problem.b.mean(0), weight)
    own = torch.stack([minimiser(A, b, weight) for A, b in zip(problem.A, problem.b, strict=True)])
    apart, end = (float((x - x_star).norm(dim=1).mean()) for x in (own, reached))
    if not end <= 0.7 * apart:
        raise Seen(
            f"after {LONG} iterations the agents were at {end:.2g} of the minimiser on average; "
            f"those of their own losses are at {apart:.2g}"
        )


# where it runs


@law(
    usually="the number of rows here (x.shape[1]), a mean over them, or a product whose order of sums depends on them; "
    "a process holds the rows of some agents only"
)
def processes(case: Case) -> None:
    """However agents are spread over one, two or three processes, exact runs have the same bits."""
    setup = case.setup(quadratic(noise=0.1), case.star, regularizer=case.regularizer, exact=True)

    def act(transport: Transport) -> Any:
        engine, algorithm = setup.engine(transport), setup.bound()
        try:
            with torch.no_grad(), engine.stepping():
                here = rows()[:, engine.agents.start : engine.agents.stop].clone()
                state = walk(algorithm, engine, algorithm.init(engine, here), stop=STEPS // 3)
                return type(state)(*(engine.gather(tensor) for tensor in state))
        except Exception as error:
            transport.fail(str(error))  # or the others would wait
            raise

    whole, *_ = in_threads(1, act)
    for size in (2, 3):
        spread, *_ = answers = in_threads(size, act)
        for answer in (whole, *answers):
            if isinstance(answer, Exception):
                raise answer
        if changed := _changed(whole, spread):
            raise Seen(f"over {size} processes {changed} had other bits than in one")


@law(usually="memory outside of the state, or variables that must be one and the same tensor")
def resuming(case: Case) -> None:
    """A run that goes on from a checkpoint has the same bits as one that was not interrupted."""
    setup = case.setup(quadratic(noise=0.1), case.star, regularizer=case.regularizer, x0=rows())

    def interrupt(k: int, _iterations: int, _rows: Any) -> None:
        if k == STEPS // 2:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        saving = Saving(Path(folder))
        setup.run(interrupt, saving)
        resumed, whole = setup.run(None, saving), setup.run()
    if changed := [name for name in whole.state if not torch.equal(whole.state[name], resumed.state[name])]:
        raise Seen(f"after going on from iteration {STEPS // 2} the run ended with another {', '.join(changed)}")


@law(usually="differences of large sums, tests such as x == 0, or numbers that are too small for single precision")
def precision(case: Case) -> None:
    """Single precision follows double precision: only rounding differs."""
    single, double = (
        case.setup(quadratic(noise=0.1), case.star, regularizer=case.regularizer, dtype=dtype, x0=rows()).run().x
        for dtype in (torch.float32, torch.float64)
    )
    if not _close(single.double(), double, 1e-3):
        raise Seen(f"after {STEPS} iterations x differs by {_largest(single.double() - double):.2g}")


@law(usually="a full gradient in a step but none in init, so that the refusal comes hours later")
def streams(case: Case) -> None:
    """It runs where samples stream and never repeat, or refuses at the start."""
    problem = PhaseRetrieval(agents=N, dim=4, sparsity=2, evaluation="population").to(torch.float64)
    setup = case.setup(problem, case.star, regularizer=case.regularizer)
    algorithm, agents = setup.bound(), Verbs(setup.engine())
    try:
        state = algorithm.init(agents, setup.start())
    except ValueError as error:
        if not agents.uses_full:
            raise
        raise LeftOut("it needs full gradients, which streams do not have") from error
    try:
        walk(algorithm, agents, state)
    except ValueError as error:
        if not agents.uses_full:
            raise
        raise Seen("init took the stream, and a later step refused it") from error


@law(usually="facts.averaging names another variable or step size, or z averages something else than gradients")
def averaging(case: Case) -> None:
    """With gradients that never change, z̄ leaves its start behind as declared: z̄ − ḡ shrinks by 1 − α_k in step k."""
    declared = case.algorithm.facts.averaging
    if declared is None:
        raise LeftOut("facts.averaging declares no variable that averages gradients")
    setup, g = case.setup(quadratic(), case.star, regularizer=case.regularizer), rows(seed=3)
    algorithm, engine = setup.bound(), setup.engine()
    agents, α, left = Verbs(engine, lambda _: g), declared.alpha(algorithm), 1.0
    state = algorithm.init(agents, rows())
    target, start = g.mean(1), declared.z(state).mean(1)
    for k in range(STEPS):
        state = algorithm.step(agents, k, state)
        left *= 1 - float(α(k))
        if not torch.allclose(declared.z(state).mean(1), target + left * (start - target), rtol=1e-9, atol=1e-9):
            raise Seen(f"after step {k} the mean of {declared.variable} was not what averaging by α gives")


@law(
    usually="nan_to_num, or a test that skips a broken step: the run would go on with wrong numbers instead of "
    "stopping with the agent and iteration named"
)
def divergence(case: Case) -> None:
    """A gradient that is not a number shows in the state of its agent."""

    def spoil(v: Tensor) -> Tensor:
        v = v.clone()
        v[:, 2] = torch.nan
        return v

    setup = case.setup(quadratic(), case.star, regularizer=case.regularizer)
    algorithm, engine = setup.bound(), setup.engine()
    state = walk(algorithm, Verbs(engine, spoil, apart=True), algorithm.init(engine, rows()))
    if all(bool(tensor[:, 2].isfinite().all()) for tensor in state):
        raise Seen(f"all gradients of agent 2 were NaN, and after {STEPS} steps its state was finite")


FOUNDATIONS = (contract, shapes, stable, verbs, inputs, replay)
"""Those without which the others have nothing to be checked on: the first that is broken ends the check."""
LAWS = (
    alone, alive, heard, costs, samples, tracking, averaging, relabelling, consensus, single, trials,
    solution, sparsity, together, processes, resuming, precision, streams, divergence,
)  # fmt: skip
