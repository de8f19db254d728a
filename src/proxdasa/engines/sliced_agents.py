"""Agents that see a slice of their coordinates at a time, for states that are large.

Gradients need all coordinates of a point; mixing, the proximal step of a separable Ψ and, if it says so
(`contracts.Facts.coordinatewise`), the rest of a step take each coordinate by itself. So a step can be taken slice by
slice, with temporary tensors that fit the cache, once its gradient is known.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from proxdasa.contracts import Algorithm, Question, Regularizer, is_separable, unpack
from proxdasa.engines.agents import LocalAgents
from proxdasa.engines.recorded_steps import Verbs
from proxdasa.schedules import Number

LARGE = 2**23
"""Elements of a state variable from which on steps are taken in slices; a variable then takes tens of megabytes."""
SLICE = 2**17
"""Elements of a variable in a slice (measured)."""


def in_slices(algorithm: Algorithm, regularizer: Regularizer, elements: int) -> bool:
    """Whether the steps of a method on variables of so many elements may be taken in slices, and pay."""
    # Said by the class itself: one that inherits from it may do something else.
    method = "facts" in vars(type(algorithm)) and algorithm.facts.coordinatewise
    return elements >= LARGE and method and is_separable(regularizer)


@final
class SlicedAgents:
    """The verbs of all agents for a slice of coordinates, with gradients that are computed beforehand."""

    def __init__(self, engine: LocalAgents, verbs: Verbs, trials: int) -> None:
        self._engine, self._verbs = engine, verbs
        self.degrees = verbs.degrees
        rows = len(engine.agents) * trials
        self.width = max(1, SLICE // rows)
        self._answer: Tensor | None = None
        self._counted: Tensor | None = None
        self._questions: list[Question] = []

    def questions(self, step: Callable[[], object]) -> list[Question]:
        """What a step asks for; zeros stand in for the answers, and nothing is counted."""
        self._questions = []
        step()
        return self._questions

    def count(self, x: Tensor, step: Callable[[], object]) -> None:
        """Count the messages of a step, as those of a variable x."""
        self._counted = x
        step()
        self._counted = None

    def with_answer(self, answer: Tensor | None) -> SlicedAgents:
        """The agents of a slice whose gradient is known, if there is one."""
        own = copy.copy(self)
        own._answer, own._questions = answer, []
        return own

    def answer(self, question: Question, x: Tensor) -> Tensor:
        """The gradients of all agents at x, for a question that was asked at a slice of it."""
        found: Tensor = getattr(self._engine, question.verb)(x, *question.names)
        return found

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:
        """The slice of the gradient at a sample."""
        return self._ask(Question(x, "grad", (k, sample)))

    def full_grad(self, x: Tensor) -> Tensor:
        """The slice of the full gradient."""
        return self._ask(Question(x, "full_grad", ()))

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step."""
        return self._verbs.prox(x, gamma)

    def mix(self, *tensors: Tensor) -> Any:
        """The mixed slices, unless this iteration sends nothing."""
        if self._engine.rests:
            return unpack(tensors)
        if self._counted is not None:
            self._engine.count_mixing(*[self._counted] * len(tensors))
        return unpack(tuple(map(self._verbs.mix, tensors)))

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Sums over neighbours, or an agent's own row in their place if this iteration sends nothing."""
        if self._engine.rests:
            return self.degrees * x
        if self._counted is not None:
            self._engine.count_sum(self._counted)
        return self._verbs.neighbour_sum(x)

    def _ask(self, question: Question) -> Tensor:
        self._questions.append(question)
        if len(self._questions) > 1 and self._answer is not None:
            raise RuntimeError("a step asked for another gradient in one slice of its coordinates than in the first")
        return torch.zeros_like(question.x) if self._answer is None else self._answer
