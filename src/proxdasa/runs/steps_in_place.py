"""Steps of a large state in its own place, a slice of coordinates at a time.

An ordinary step holds the new state and several temporary tensors beside the old state, and the loop keeps the state of
the last observation, from which it would replay a run that has diverged. Steps in place hold the state, the gradient of
one agent or a few, and slices that fit the cache. If a method computes with what it has mixed, they hold the gradients
of all agents. Every slice is checked as it is computed, so that nothing has to be replayed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxdasa.contracts import Algorithm, Engine, Question, Sliced
from proxdasa.engines.launch import signals
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.divergence import CheckedAgents
from proxdasa.runs.results import Divergence
from proxdasa.thread_counts import threads


class _Plan(NamedTuple):
    """How a step is taken in slices."""

    groups: Sequence[Sliced]
    """Groups of agents; those of a group take the step together."""
    question: Question | None
    """The gradient that the step asks for."""
    mixed: list[int]
    """The places of the variables that are mixed afterwards."""


class StepsInPlace:
    """Steps that write the new state over the old one, and know where trials diverged as `Replay` does."""

    def __init__(self, engine: Engine, algorithm: Algorithm, sliced: Sliced, trials: int, first: int) -> None:
        self._engine, self._algorithm, self._sliced, self._first = engine, algorithm, sliced, first
        self._checked = CheckedAgents(engine, range(trials))
        self.k = 0
        """The iteration of the last observation."""
        self.asked_to_stop = False
        # A gradient may be a tensor that belongs to the problem, and init or a whole step may return it as a variable.
        # So if init has computed gradients, its state is copied before it is written over.
        spent = engine.counts()
        self._owned = not (spent["gradients"] or spent["full_gradients"])

    def uninterrupted(self) -> AbstractContextManager[None]:
        """Context manager in which signals wait for the end of the iteration: a half-written state would be useless."""
        return signals.heeding(self._stop, once=False)

    def remember(self, k: int, state: Any, costs: Mapping[str, float]) -> None:  # noqa: ARG002
        """Note an observation; what is not finite is looked for from here on."""
        self.k = k
        self._checked.forget()

    def locate(self, trials: Collection[int], k: int, broken: Any) -> dict[int, Divergence]:  # noqa: ARG002
        """The first agent and iteration of each of these trials."""
        return {trial: where for trial, where in self._checked.found().items() if trial in trials}

    def put_back(self) -> None:
        """Do nothing: nothing is replayed."""

    def step(self, k: int, state: Any) -> Any:
        """The state after iteration k, in the same tensors unless this step has to be taken as a whole."""
        self._engine.enter(self._first + k)
        self._checked.k, state = k, _apart(state, copied=not self._owned)
        plan = self._plan(k, state)
        self._owned = plan is not None
        if plan is None:
            new = self._algorithm.step(self._checked, k, state)
            for tensor in new:
                self._checked.check(tensor)
            return new
        try:
            self._write(k, state, plan)
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"iteration {k} failed amid its slices, so the state is lost ({why})") from error
        return state

    def _plan(self, k: int, state: Any) -> _Plan | None:
        """How to take step k in slices, by trying the first one; None if it takes more than a gradient at x."""
        for groups in filter(None, (self._sliced.groups, [self._sliced])):
            agents, rows = groups[0].with_answer(None), _slices(state, groups[0])[0]
            try:
                variables, mixed = agents.settle(self._algorithm.step(agents, k, rows))
            except Exception:  # torch may raise anything where a tensor without values is used
                if groups[0] is self._sliced:
                    raise
                continue
            if any(each.shape != rows.x.shape for each in variables) and groups[0] is not self._sliced:
                continue  # a parameter has a row for each agent
            questions = agents.questions
            fits = len(questions) <= 1 and all(question.x is rows.x for question in questions)
            return _Plan(groups, questions[0] if questions else None, mixed) if fits else None
        return None

    def _write(self, k: int, state: Any, plan: _Plan) -> None:
        """Write the state after iteration k over that before: group by group what agents do alone, then mixing."""
        began, first = self._checked.calls, _slices(state, self._sliced)
        self._sliced.count(state.x, lambda: self._algorithm.step(self._sliced.with_answer(None), k, first[0]))
        for group in plan.groups:
            self._write_alone(k, state, plan, group, began)
        # The last checks of a step are those of its variables. Mixed variables are checked now, under the same numbers
        # as in a whole step, so that the agent that broke first is found.
        after = self._checked.calls - len(state)

        def mix(checked: CheckedAgents, rows: Any) -> None:
            for place in plan.mixed:
                checked.calls = after + place
                rows[place].copy_(checked.check(self._sliced.mix(rows[place])))

        if plan.mixed:
            self._in_threads(mix, [(rows,) for rows in first], self._sliced)

    def _write_alone(self, k: int, state: Any, plan: _Plan, group: Sliced, began: int) -> None:
        """The part of `_write` for a group of agents, whose gradient is freed when this returns."""
        answers: Sequence[Tensor | None] = ()
        if plan.question:
            x = state.x[:, group.agents.start : group.agents.stop].contiguous()
            answers = torch.split(group.answer(plan.question, x), group.width, dim=-1)

        def take(checked: CheckedAgents, rows: Any, answer: Tensor | None) -> None:
            checked.agents = agents = group.with_answer(answer)
            checked.calls = began
            variables, mixed = agents.settle(self._algorithm.step(checked, k, rows))
            if mixed != plan.mixed:
                raise RuntimeError("a step mixed other variables in one slice of its coordinates than in the first")
            _overwrite(rows, variables, mixed, checked)

        self._in_threads(take, list(itertools.zip_longest(_slices(state, group), answers)), group)

    def _in_threads(self, act: Callable[..., None], slices: Sequence[tuple[Any, ...]], group: Sliced) -> None:
        """Act on slices of these agents: threads take them in turn, each with one core."""
        count = torch.get_num_threads()

        def work(number: int) -> CheckedAgents:
            checked = self._checked.fork(group.agents)
            with torch.no_grad(), flushed_denormals(), threads(1):  # each thread has its own such settings
                for each in slices[number::count]:
                    act(checked, *each)
            return checked

        if count == 1:  # a thread of its own would cost more than it does
            self._checked.join(work(0), group.agents)
            return
        with ThreadPoolExecutor(count) as pool:
            for checked in list(pool.map(work, range(count))):
                self._checked.join(checked, group.agents)

    def _stop(self) -> None:
        self.asked_to_stop = True


def _slices(state: Any, group: Sliced) -> list[Any]:
    """The slices of the rows of a group."""
    own = (variable[:, group.agents.start : group.agents.stop] for variable in state)
    parts = (torch.split(variable, group.width, dim=-1) for variable in own)
    return [type(state)(*rows) for rows in zip(*parts, strict=True)]


def _overwrite(old: Any, new: Sequence[Tensor], mixed: Collection[int], checked: CheckedAgents) -> None:
    """Write a slice of the new state over that of the old one; what is still to be mixed is checked after mixing."""
    held = {rows.untyped_storage().data_ptr() for rows in old}
    # A step may return an old variable as a new one, such as x as x₋; it must be read before it is written over.
    moved = [rows.clone() if rows.untyped_storage().data_ptr() in held else rows for rows in new]
    for place, (rows, values) in enumerate(zip(old, moved, strict=True)):
        if place in mixed:
            checked.calls += 1
        else:
            checked.check(values)
        rows.copy_(values)


def _apart(state: Any, copied: bool) -> Any:
    """The state in tensors that share no memory with each other or, if ``copied``, with the given ones.

    A method may begin with one tensor for several variables.
    """
    seen: set[int] = set()
    rows: list[Tensor] = []
    for variable in state:
        shared = copied or variable.untyped_storage().data_ptr() in seen or not variable.is_contiguous()
        rows.append(variable.clone(memory_format=torch.contiguous_format) if shared else variable)
        seen.add(rows[-1].untyped_storage().data_ptr())
    return type(state)(*rows)
