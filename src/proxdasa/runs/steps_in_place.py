"""Steps of a large state in its own place, a slice of coordinates at a time.

An ordinary step has the new state and several temporary tensors beside the old state, and the loop keeps the state of
the last observation, from which it would replay a run that has diverged. Here there are the state, one gradient, and
slices that fit the cache. Every slice is checked as it is computed, so that nothing has to be replayed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from proxdasa.contracts import Algorithm, Engine, Sliced
from proxdasa.engines.launch import signals
from proxdasa.engines.thread_counts import threads
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.divergence import CheckedAgents
from proxdasa.runs.results import Divergence


class StepsInPlace:
    """Steps that write the new state over the old one, and know where trials diverged as `Replay` does."""

    def __init__(self, engine: Engine, algorithm: Algorithm, sliced: Sliced, trials: int, first: int) -> None:
        self._engine, self._algorithm, self._sliced, self._first = engine, algorithm, sliced, first
        self._checked = CheckedAgents(engine, range(trials))
        self.k = 0
        """The iteration of the last observation."""
        self.asked_to_stop = False
        # A gradient may be a tensor of the problem's own, and a variable after a whole step or init.
        spent = engine.counts()
        self._owned = not (spent["gradients"] or spent["full_gradients"])

    def uninterrupted(self) -> AbstractContextManager[None]:
        """Context manager in which signals wait for the end of the iteration: half a state would be none."""
        return signals.heeding(self._stop, once=False)

    def remember(self, k: int, state: Any, costs: Mapping[str, float]) -> None:  # noqa: ARG002
        """Note an observation; what is not finite is looked for from here on."""
        self.k = k
        self._checked.forget()

    def locate(self, trials: Collection[int], k: int, broken: Any) -> dict[int, Divergence]:  # noqa: ARG002
        """The first agent and iteration of each of these trials."""
        return {trial: where for trial, where in self._checked.found().items() if trial in trials}

    def step(self, k: int, state: Any) -> Any:
        """The state after iteration k, in the same tensors unless this step has to be taken as a whole."""
        self._engine.enter(self._first + k)
        self._checked.k, state = k, _apart(state, copied=not self._owned)
        slices = self._slices(state)
        questions = self._sliced.questions(lambda: self._algorithm.step(self._sliced, k, slices[0]))
        self._owned = len(questions) <= 1 and all(question.x is slices[0].x for question in questions)
        if not self._owned:
            new = self._algorithm.step(self._checked, k, state)
            for tensor in new:
                self._checked.check(tensor)
            return new
        gradient = self._sliced.answer(questions[0], state.x) if questions else None
        try:
            self._write(k, state, slices, gradient)
        except BaseException as error:
            raise RuntimeError(f"iteration {k} ended amid its slices, so that there is no state to keep") from error
        return state

    def _slices(self, state: Any) -> list[Any]:
        parts = (torch.split(variable, self._sliced.width, dim=-1) for variable in state)
        return [type(state)(*rows) for rows in zip(*parts, strict=True)]

    def _write(self, k: int, state: Any, slices: Sequence[Any], gradient: Tensor | None) -> None:
        """Write the state after iteration k over that before: threads take slices in turn, each with one core."""
        count = torch.get_num_threads()
        answers = [None] * len(slices) if gradient is None else torch.split(gradient, self._sliced.width, dim=-1)
        self._sliced.count(state.x, lambda: self._algorithm.step(self._sliced, k, slices[0]))

        def work(number: int) -> CheckedAgents:
            checked = self._checked.fork()
            with torch.no_grad(), flushed_denormals(), threads(1):  # which are settings of a thread
                for rows, answer in list(zip(slices, answers, strict=True))[number::count]:
                    checked.agents, checked.calls = self._sliced.with_answer(answer), self._checked.calls
                    _overwrite(rows, self._algorithm.step(checked, k, rows), checked)
            return checked

        with ThreadPoolExecutor(count) as pool:
            for checked in list(pool.map(work, range(count))):
                self._checked.join(checked)

    def _stop(self) -> None:
        self.asked_to_stop = True


def _overwrite(old: Any, new: Any, checked: CheckedAgents) -> None:
    """Write a slice of the new state over that of the old one."""
    held = {rows.untyped_storage().data_ptr() for rows in old}
    # A variable may become another one, which must not be written over before it is read.
    moved = [checked.check(rows.clone() if rows.untyped_storage().data_ptr() in held else rows) for rows in new]
    for rows, values in zip(old, moved, strict=True):
        rows.copy_(values)


def _apart(state: Any, copied: bool) -> Any:
    """The state in tensors that share no memory, not even with the former ones if they are to be copied.

    A method may begin with one tensor for several variables.
    """
    seen: set[int] = set()
    rows: list[Tensor] = []
    for variable in state:
        shared = copied or variable.untyped_storage().data_ptr() in seen or not variable.is_contiguous()
        rows.append(variable.clone(memory_format=torch.contiguous_format) if shared else variable)
        seen.add(rows[-1].untyped_storage().data_ptr())
    return type(state)(*rows)
