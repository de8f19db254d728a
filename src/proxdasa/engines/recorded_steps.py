"""Record what the steps of a block ask their agents for, and play it back while torch traces the steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from proxdasa.contracts import Algorithm, NotCompilableError, parameters_of, replace_unchecked, unpack
from proxdasa.engines.agents import LocalAgents
from proxdasa.engines.iteration_numbers import Formula, Iteration, Test, formula_of
from proxdasa.engines.products import Product
from proxdasa.schedules import Number

GRADIENTS = 64
"""A step with more gradients than this is not compiled."""


class Verbs(NamedTuple):
    """What agents do, as functions that torch can record."""

    grad: Callable[[Tensor, Tensor], Tensor]
    """Takes rows and samples."""
    prox: Callable[[Tensor, Number], Tensor]
    mix: Product
    neighbour_sum: Product
    degrees: Tensor


@dataclass(eq=False)
class Script:
    """What the steps of a block ask for, in order."""

    steps: int = 0
    tests: list[Test] = dataclasses.field(default_factory=list)
    """What must be true of k for the steps to take the same branches."""
    samples: list[tuple[Formula, Formula]] = dataclasses.field(default_factory=list)
    """The iteration and the stream of each sample."""
    asked: list[tuple[Callable[[int], Number], Formula]] = dataclasses.field(default_factory=list)
    """Schedules, and the iterations for which they are asked."""
    per_trial: list[bool] = dataclasses.field(default_factory=list)
    """For each of those, whether the answer is one number per trial."""
    pauses: list[Test] = dataclasses.field(default_factory=list)
    """What must be true of k for the mixing, which may rest in some iterations, to rest in the same steps."""
    rests: list[bool] = dataclasses.field(default_factory=list)
    """For each step, whether it sends nothing."""
    counts: list[Callable[[int, Tensor], object]] = dataclasses.field(default_factory=list)
    """Functions that count the costs of a block, given k and a vector like those that are sent."""

    def fits(self, k: int) -> bool:
        """Whether a block that begins with iteration k takes the recorded branches."""
        return all(test(k) == answer for test, answer in (*self.tests, *self.pauses))


class _RefusedError(NotCompilableError):
    """A step asked for something that is not compiled."""

    def __init__(self, reason: str, step: int) -> None:
        super().__init__(reason)
        self.step = step


class _Recorder:
    """The agents of an engine, which record what they are asked for."""

    def __init__(self, engine: LocalAgents, begins: int) -> None:
        self._engine, self._begins, self.script, self._before = engine, begins, Script(), 0
        self.degrees = engine.degrees

    def begin_step(self, first: int) -> Iteration:
        """Begin the next step, which is iteration ``first`` + k for the engine and the mixing; returns its number k."""
        j, begins, script, mixing = self.script.steps, self._begins, self.script, self._engine.mixing
        script.steps, self._before = j + 1, len(script.samples)
        self._engine.enter(first + begins + j)
        rests = getattr(mixing, "rests", None)
        script.rests.append(bool(rests and rests(first + begins + j)))
        if rests:
            script.pauses.append((lambda k: bool(rests(first + k + j)), script.rests[-1]))
        return Iteration(lambda k: k + j, begins, script.tests)

    def schedule(self, alpha: Callable[[int], Number]) -> Callable[[Any], Number]:
        """The schedule, which records the iterations that it is asked for."""

        def ask(k: int | Iteration) -> Number:
            self.script.asked.append((alpha, formula_of(k)))
            value = alpha(formula_of(k)(self._begins))
            self.script.per_trial.append(isinstance(value, Tensor))
            return value

        return ask

    def grad(self, x: Tensor, k: Any, sample: Any = 0) -> Tensor:
        script, engine, name, stream = self.script, self._engine, formula_of(k), formula_of(sample)
        script.samples.append((name, stream))
        script.counts.append(lambda k, _: engine.count_gradient(name(k), stream(k)))
        if len(script.samples) - self._before > GRADIENTS:
            raise _RefusedError("a step takes many gradients", script.steps - 1)
        return engine.grad(x, name(self._begins), stream(self._begins))

    def full_grad(self, x: Tensor) -> Tensor:  # noqa: ARG002
        raise _RefusedError("a step takes full gradients", self.script.steps - 1)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        return self._engine.prox(x, gamma)

    def mix(self, *tensors: Tensor) -> Any:
        if not self.script.rests[-1]:
            self.script.counts.append(lambda _, x: self._engine.count_mixing(*[x] * len(tensors)))
        return self._engine.mix(*tensors)

    def neighbour_sum(self, x: Tensor) -> Tensor:
        if not self.script.rests[-1]:
            self.script.counts.append(lambda _, x: self._engine.count_sum(x))
        return self._engine.neighbour_sum(x)


class Player:
    """Agents that take samples and step sizes from inputs, for torch to record the arithmetic."""

    def __init__(self, verbs: Verbs, script: Script, begins: int, samples: Sequence[Tensor], answers: Sequence[Number]):
        self._verbs, self._script, self._begins = verbs, script, begins
        self._samples, self._answers, self._step = iter(samples), iter(answers), -1
        self.prox, self.degrees, self.tests = verbs.prox, verbs.degrees, list[Test]()

    def begin_step(self) -> Iteration:
        """Begin the next step; returns its number."""
        self._step += 1
        j = self._step
        return Iteration(lambda k: k + j, self._begins, self.tests)

    def answer(self, _k: Any) -> Number:
        """The next of the answers, as the value of a schedule."""
        return next(self._answers)

    def grad(self, x: Tensor, k: Any, sample: Any = 0) -> Tensor:  # noqa: ARG002
        """Gradients at the next of the samples."""
        return self._verbs.grad(x, next(self._samples))

    def full_grad(self, x: Tensor) -> Tensor:  # noqa: ARG002
        """Refuse."""
        raise NotCompilableError("a step takes full gradients")

    def mix(self, *tensors: Tensor) -> Any:
        """Mixed rows, unless the step rests."""
        return unpack(tensors if self._rests else tuple(map(self._verbs.mix, tensors)))

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Sums over neighbours, or an agent's own row in their place if the step rests."""
        return self.degrees * x if self._rests else self._verbs.neighbour_sum(x)

    @property
    def _rests(self) -> bool:
        return self._script.rests[self._step]


def record(engine: LocalAgents, algorithm: Algorithm, state: Any, size: int, first: int) -> tuple[Script, Any]:
    """What the first iterations, as many as can be compiled, ask for, and the state after them."""
    engine.proceed(0)
    try:
        recorder = _Recorder(engine, 0)
        schedules = {
            name: recorder.schedule(value) for name, value in parameters_of(algorithm).items() if callable(value)
        }
        method, begin = replace_unchecked(algorithm, schedules), _copy(state)
        now = begin
        for _ in range(size):
            now = method.step(recorder, recorder.begin_step(first), now)  # type: ignore[arg-type]
        if not all(map(_same, begin, state)):
            raise NotCompilableError("its step changes its state in place")
        # Run again with plain numbers k, because a step may treat a recorded k differently.
        after = _copy(state)
        for k in range(size):
            engine.enter(first + k)
            after = algorithm.step(engine, k, after)
    except _RefusedError as refusal:
        if refusal.step == 0:
            raise
        engine.rewind(0)
        return record(engine, algorithm, state, refusal.step, first)
    except NotCompilableError:
        raise
    except Exception as error:  # if the mistake is the method's own, ordinary steps will show it
        raise NotCompilableError(f"{type(error).__name__}: {error}") from None
    finally:
        engine.rewind(0)
        engine.leave()
    return recorder.script, after


def _copy(state: Any) -> Any:
    return type(state)(*(rows.clone() for rows in state))


def _same(rows: Tensor, others: Tensor) -> bool:
    return bool(((rows == others) | (rows.isnan() & others.isnan())).all())
