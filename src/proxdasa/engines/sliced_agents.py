"""Agents that see a slice of their coordinates at a time, for states that are large.

Gradients need all coordinates of a point; mixing, the proximal step of a separable Ψ and, if it says so
(`contracts.Facts.coordinatewise`), the rest of a step take each coordinate by itself. So a step can be taken slice by
slice, with temporary tensors that fit the cache, once its gradient is known.

Only mixing crosses rows. If a step returns what it has mixed and computes nothing with it, agents can take the step
group by group, with the gradients of one group at a time, and mix when all have done so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from proxdasa.contracts import Algorithm, Question, Regularizer, is_separable, unpack
from proxdasa.engines.agents import LocalAgents
from proxdasa.engines.messages.halo import blocks
from proxdasa.engines.recorded_steps import Verbs
from proxdasa.schedules import Number
from proxdasa.torch_internals import write_count

LARGE = 2**23
"""The number of elements of a state variable from which steps are taken in slices; it then takes tens of megabytes."""
SLICE = 2**17
"""Elements of a variable in a slice (measured)."""
ROWS = 128
"""The most rows of a variable for which steps are taken in slices: slices of more rows are so narrow that they take
longer than whole steps (measured: twice as long with 4,096 agents, five times with 131,072)."""
GROUPS = 16
"""The most groups of agents: with more of them, gradients would take longer and hardly less memory."""


def in_slices(algorithm: Algorithm, regularizer: Regularizer, rows: int, dim: int) -> bool:
    """Whether steps on variables of this size can be taken in slices, and gain from it; rows are trials × agents."""
    # The class itself must declare it: a class that inherits the claim may have another step.
    method = "facts" in vars(type(algorithm)) and algorithm.facts.coordinatewise
    return rows <= ROWS and rows * dim >= LARGE and method and is_separable(regularizer)


@final
class SlicedAgents:
    """The methods of all agents, or of a group of them, for a slice of coordinates; gradients are computed beforehand.

    A group cannot mix before all groups have taken their step. Until then meta tensors, which have no values, stand in
    for what it mixes, so a step that computes with it is noticed.
    """

    def __init__(self, engine: LocalAgents, verbs: Verbs, trials: int, group: range | None = None) -> None:
        self._engine, self._verbs, self._trials, self._waits = engine, verbs, trials, group is not None
        self.agents = group or engine.agents
        self.degrees = verbs.degrees[self.agents.start : self.agents.stop]
        self.width = max(1, SLICE // (len(self.agents) * trials))
        self.questions: list[Question] = []
        self._answer: Tensor | None = None
        self._counted: Tensor | None = None
        self._waiting: list[tuple[Tensor, Tensor, int | None]] = []
        """For each tensor to be mixed: its stand-in, the tensor, and how often it had been changed in place."""

    @cached_property
    def groups(self) -> Sequence[SlicedAgents]:
        """The same agents in groups; none if the problem computes only the gradients of all of them."""
        if self._engine.partial_grad is None:
            return []
        parts = blocks(len(self.agents), min(len(self.agents), GROUPS))
        return [SlicedAgents(self._engine, self._verbs, self._trials, part) for part in parts]

    def count(self, x: Tensor, step: Callable[[], object]) -> None:
        """Call a step on a slice, and count its messages as if whole rows like x were sent."""
        self._counted = x
        step()
        self._counted = None

    def with_answer(self, answer: Tensor | None) -> SlicedAgents:
        """Agents for one slice, with the slice of the gradient; None if it is not known or not needed."""
        own = copy.copy(self)
        own._answer, own.questions, own._waiting = answer, [], []
        return own

    def answer(self, question: Question, x: Tensor) -> Tensor:
        """The gradients of these agents at x, for a question that was asked at a slice of it."""
        if self._waits:
            return self._engine.grad_of(self.agents, x, *question.names)
        found: Tensor = getattr(self._engine, question.verb)(x, *question.names)
        return found

    def settle(self, state: Any) -> tuple[list[Tensor], list[int]]:
        """The variables after a step, and the places of those that are still to be mixed."""
        variables, places = [], []
        for place, found in enumerate(state):
            waiting = [x for stand_in, x, _ in self._waiting if stand_in is found and not write_count(stand_in)]
            places += [place] if waiting else []
            variables.append(waiting[0] if waiting else found)
        if any(each.is_meta for each in variables) or any(write_count(x) != then for _, x, then in self._waiting):
            raise RuntimeError("a step computes with what it has mixed")
        return variables, places

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """The slice of the gradient at a sample."""
        return self._ask(Question(x, "grad", (k, sample)))

    def full_grad(self, x: Tensor) -> Tensor:
        """The slice of the full gradient."""
        if self._waits:
            raise RuntimeError("full gradients are those of all agents")
        return self._ask(Question(x, "full_grad", ()))

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step."""
        return self._verbs.prox(x, gamma)

    def mix(self, *tensors: Tensor) -> Any:
        """The mixed slices, unless this iteration sends nothing."""
        if self._engine.rests:
            return unpack(tensors)
        if self._waits:
            stand_ins = tuple(torch.empty_like(x, device="meta") for x in tensors)
            self._waiting += [(stand_in, x, write_count(x)) for stand_in, x in zip(stand_ins, tensors, strict=True)]
            return unpack(stand_ins)
        if self._counted is not None:
            self._engine.count_mixing(*[self._counted] * len(tensors))
        return unpack(tuple(map(self._verbs.mix, tensors)))

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Sums over neighbours, or an agent's own row in their place if this iteration sends nothing."""
        if self._engine.rests:
            return self.degrees * x
        if self._waits:
            return torch.empty_like(x, device="meta")
        if self._counted is not None:
            self._engine.count_sum(self._counted)
        return self._verbs.neighbour_sum(x)

    def _ask(self, question: Question) -> Tensor:
        self.questions.append(question)
        if len(self.questions) > 1 and self._answer is not None:
            raise RuntimeError("a step asked for another gradient in one slice of its coordinates than in the first")
        return torch.zeros_like(question.x) if self._answer is None else self._answer
