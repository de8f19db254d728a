"""Laws about what a method declares: its costs, trackers and averages are as declared, and nothing is unused."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from proxdasa.conditions import StaleMessages, TrackerWarning
from proxdasa.contracts import Agents
from proxdasa.mixing import Gossip
from proxdasa.testing.case import STEPS, Case, Verbs, quadratic, random_state, rows, walk
from proxdasa.testing.law import NEAR, NotApplicable, Violation, close, largest, law


@law(usually="a variable that is kept, and perhaps sent, but not used; or one that only the equations use")
def alive(case: Case) -> None:
    """Every variable of the state influences a later x."""
    algorithm, engine, state, base = case.scattered
    for name in state._fields:
        nudged = state._replace(**{name: getattr(state, name) + rows(seed=99).abs()})
        if close(walk(algorithm, engine, nudged, 1).x, base.x, 1e-12):
            raise Violation(f"{name} was changed, but x after {STEPS} steps was the same")


@law(usually="x, _ = agents.mix(x, y) followed by the old y; the vector is sent but not used")
def heard(case: Case) -> None:
    """Every vector that mixing returns influences a later x."""
    algorithm, engine, state, base = case.scattered
    agents = Verbs(engine)
    walk(algorithm, agents, state, 1, 1 + algorithm.facts.interval(algorithm))  # one step of these sends
    if not agents.mixed:
        raise NotApplicable("it does not mix")
    for vector in range(agents.mixed):
        if close(walk(algorithm, Verbs(engine, stir=vector), state, 1).x, base.x, 1e-12):
            raise Violation(
                f"vector {vector + 1} of the {agents.mixed} that a step mixes was changed, but x was the same"
            )


@law(
    usually="two calls of mix where one message could carry both, a gradient that is evaluated and not used, local "
    "steps that facts.sends_every does not declare, or facts copied from another method"
)
def costs(case: Case) -> None:
    """The counts agree with facts: steps that send, vectors per round, gradients of an ordinary step, mixes."""
    facts, batch = case.algorithm.facts, getattr(case.algorithm, "batch", 1)
    interval = facts.interval(case.algorithm)
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
            if spent["vectors"] != rounds * facts.vectors * ((k + 1) % interval == 0):
                when = f", {facts.sends_every} = {interval}" if facts.sends_every else ""
                raise Violation(
                    f"step {k} sent {spent['vectors']:g} vectors to each neighbour in {spent['rounds']:g} rounds; "
                    f"facts have vectors={facts.vectors}, mixes={facts.mixes}{when}, and mixing takes {mixing.rounds}"
                )
        if (ordinary := statistics.mode(gradients)) != facts.gradients * batch:
            raise Violation(f"an ordinary step took {ordinary:g} gradients; facts have gradients={facts.gradients}"
                       + (f" for each of {batch} samples" if batch > 1 else ""))  # fmt: skip


@law(
    usually="agents.grad(x, 0), or a number that does not change with k: the noise of a sample then never averages out"
)
def samples(case: Case) -> None:
    """Every step uses a sample that no earlier step has used."""
    (_, before), *steps = case.recorded
    used = set(before)
    for k, (_, samples) in enumerate(steps):
        if samples and samples <= used:
            raise Violation(f"step {k} asked for samples {sorted(samples)} only, all of which were used before")
        used |= samples
    if not used:
        raise NotApplicable("it uses no sample gradients")


@law(usually="a tracker that does not start at what it tracks, or that adds the new value without subtracting the old")
def tracking(case: Case) -> None:
    """After every step, the mean over agents of a tracker equals that of what it tracks."""
    tracks = _trackers(case)
    for k, state in enumerate(case.course.states[1:]):
        _check_means(tracks, state._asdict(), f"after step {k}")


@law(
    usually="a value of the last iteration that is computed again from k − 1; the last iteration of an agent that was "
    "out is a different one, and what it needs from that must be in its state"
)
def pausing(case: Case) -> None:
    """The mean over agents of a tracker equals that of what it tracks also if links fail and agents pause."""
    tracks = _trackers(case)
    _check_means(tracks, case.stormy, f"after {STEPS} steps with links that fail and agents that pause")


def _trackers(case: Case) -> dict[str, str]:
    declared = case.algorithm.facts.tracking
    if not declared and not case.tracks:
        raise NotApplicable("facts.tracking declares no tracker")
    return {**dict([declared] if declared else []), **case.tracks}


def _check_means(tracks: Mapping[str, str], state: Mapping[str, Tensor], when: str) -> None:
    for tracker, tracked in tracks.items():
        u, v = state[tracker].mean(1), state[tracked].mean(1)
        if not close(u, v):
            raise Violation(f"{when} the means of {tracker} and {tracked} differ by {largest(u - v):.2g}")


@law(
    usually="differences between neighbours that are added up from the first iteration on; facts.keeps_errors=True "
    "declares them, so that a run whose messages are late begins with a warning"
)
def late(case: Case) -> None:
    """If messages are late, it ends where it ends without delays, unless facts declare that it keeps errors."""
    facts, x0 = case.algorithm.facts, rows()
    if facts.tracking or case.tracks:
        raise NotApplicable("it has a tracker, and a run whose messages are late begins with a warning")
    settings = {"regularizer": case.regularizer, "iterations": case.long, "x0": x0}
    with warnings.catch_warnings(action="ignore", category=TrackerWarning):
        punctual, delayed = (
            case.setup(quadratic(), case.star, conditions=chosen, **settings).run().x
            for chosen in ((), (StaleMessages(6),))
        )
    moved, apart = largest(x0 - punctual), largest(delayed - punctual)
    if (apart <= NEAR * moved) == facts.keeps_errors:
        raise Violation(
            f"after {case.long} iterations x differed by {apart:.2g} if messages were late, and had moved by "
            f"{moved:.2g}; facts have keeps_errors={facts.keeps_errors}"
        )


@law(usually="facts.averaging names another variable or step size, or z averages something other than gradients")
def averaging(case: Case) -> None:
    """With constant gradients, z̄ approaches them as declared: z̄ − ḡ shrinks by 1 − α_k in step k."""
    declared = case.algorithm.facts.averaging
    if declared is None:
        raise NotApplicable("facts.averaging declares no variable that averages gradients")
    setup, g = case.setup(quadratic(), case.star, regularizer=case.regularizer), rows(seed=3)
    algorithm, engine = setup.bound(), setup.engine()
    agents, α, left = Verbs(engine, lambda _: g), declared.alpha(algorithm), 1.0
    state = algorithm.init(agents, rows())
    target, start = g.mean(1), declared.z(state).mean(1)
    for k in range(STEPS):
        state = algorithm.step(agents, k, state)
        left *= 1 - float(α(k))
        if not torch.allclose(declared.z(state).mean(1), target + left * (start - target), rtol=1e-9, atol=1e-9):
            raise Violation(f"after step {k} the mean of {declared.variable} was not what averaging by α gives")


@law(usually="norms, sums or sorting over coordinates, or a step that depends on d; leave facts.coordinatewise out")
def slices(case: Case) -> None:
    """If facts declare that steps take each coordinate by itself, a part of them evolves as it does among all."""
    if not case.algorithm.facts.coordinatewise:
        raise NotApplicable("facts.coordinatewise does not declare it")
    setup = case.setup(quadratic(), case.star, regularizer=case.regularizer)
    algorithm, engine = setup.bound(), setup.engine()
    whole = some = random_state(algorithm, engine)
    for k in range(STEPS):
        whole = algorithm.step(_Given(engine, rows(seed=k)), k, whole)
        half = [variable[..., ::2] for variable in some]
        other = [variable[..., 1::2] for variable in some]
        parts = [
            algorithm.step(_Given(engine, rows(seed=k)[..., first::2]), k, type(some)(*part))
            for first, part in enumerate((half, other))
        ]
        some = type(some)(*(torch.stack(pair, dim=-1).flatten(-2) for pair in zip(*parts, strict=True)))
        for name, rows_of in whole._asdict().items():
            if not close(getattr(some, name), rows_of):
                error = largest(getattr(some, name) - rows_of)
                raise Violation(f"{name} after step {k} differed by {error:.2g} if half of the coordinates were alone")


class _Given(Verbs):
    """Agents whose gradients are given."""

    def __init__(self, agents: Agents, gradient: Tensor) -> None:
        super().__init__(agents)
        self._gradient = gradient

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:  # noqa: ARG002
        """The given gradient."""
        return self._gradient

    def full_grad(self, x: Tensor) -> Tensor:  # noqa: ARG002
        """The given gradient."""
        return self._gradient
