"""Checks of what a problem, a regularizer, a compressor and a method return.

A user's own code may return a tensor of the wrong shape. It would broadcast, and the run would end with wrong numbers
and no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from proxdasa.contracts import Algorithm, Compressor, Evaluation, Problem, Regularizer, partial_grad_of
from proxdasa.devices import form
from proxdasa.schedules import Number
from proxdasa.torch_internals import write_count


def gradients(problem: Problem, x: Tensor, sample: Tensor, agents: range | None = None) -> Tensor:
    """The sample gradients at x, of all agents or of some; x stays as it is."""
    partial = partial_grad_of(problem) if agents else None
    before, verb = write_count(x), "grad_of" if partial else "grad"
    found = partial(agents, x, sample) if partial and agents else problem.grad(x, sample)
    if found.shape != x.shape:
        raise _wrong(problem, verb, "", [list(x.shape)], found)
    if write_count(x) != before:
        raise ValueError(f"{type(problem).__name__}.{verb} writes into x; use operations that are not in place")
    return found


def evaluation(problem: Problem, x: Tensor) -> Evaluation:
    """Losses and gradients at x; at a point that all agents share, those of each agent or their means."""
    found, trials = problem.evaluate(x), x.shape[0]
    rows = list(dict.fromkeys([x.shape[1], problem.agents]))
    for part, answer, more in (("loss", found.loss, []), ("grad", found.grad, [x.shape[2]])):
        wanted = [[trials, count, *more] for count in rows]
        if list(answer.shape) not in wanted:
            raise _wrong(problem, "evaluate", f"{part} of ", wanted, answer)
    return found


def scores(problem: Problem, x: Tensor) -> Mapping[str, Tensor]:
    """The problem's own measures of each point."""
    found = problem.scores(x)
    for name, answer in found.items():
        if not isinstance(answer, Tensor) or answer.shape != x.shape[:1]:
            raise _wrong(problem, "scores", f"{name!r} of ", [list(x.shape[:1])], answer)
    return found


def value(regularizer: Regularizer, x: Tensor) -> Tensor:
    """Ψ of each row."""
    found = regularizer.value(x)
    if found.shape != x.shape[:-1]:
        raise _wrong(regularizer, "value", "", [list(x.shape[:-1])], found)
    return found


def proximal_step(regularizer: Regularizer, x: Tensor, gamma: Number) -> Tensor:
    """The proximal points of the rows of x, which stays as it is: a method may use it again."""
    before, found, verb = write_count(x), regularizer.prox(x, gamma), f"{type(regularizer).__name__}.prox"
    if not isinstance(found, Tensor) or found.shape != x.shape or found.dtype != x.dtype:
        got = form(found) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"{verb} must be {form(x)}, as x is; got {got}")
    if write_count(x) != before:
        raise ValueError(f"{verb} writes into x; use operations that are not in place")
    return found


def restored_rows(compressor: Compressor, parts: tuple[Tensor, ...], like: Tensor, words: Tensor | None) -> Tensor:
    """C(x) of rows like these from its parts, whose form must be as declared: the count of bytes relies on that."""
    name, d = type(compressor).__name__, like.shape[-1]
    wanted = [([*like.shape[:-1], part.numbers], part.dtype) for part in compressor.parts(d, like.dtype)]
    if [(list(part.shape), part.dtype) for part in parts] != wanted:
        said = ", ".join(f"{shape} of {dtype}" for shape, dtype in wanted)
        got = ", ".join(map(form, parts))
        raise ValueError(f"{name}.reduce must give {said}, as {name}.parts says; got {got}")
    found = compressor.restore(parts, d, words)
    if found.shape != like.shape or found.dtype != like.dtype:
        raise ValueError(f"{name}.restore must be {form(like)}, as x is; got {form(found)}")
    return found


def check_state(algorithm: Algorithm, state: Any, x: Tensor, verb: str) -> Any:
    """Return the state if it is valid: a mistake in a user's own method would surface far from its cause."""
    what = f"{verb} of {type(algorithm).__name__}"
    if not isinstance(state, algorithm.State):
        raise TypeError(f"{what} must return its State; got {type(state).__name__}")
    for name, given in state._asdict().items():
        found = form(given) if isinstance(given, Tensor) else type(given).__name__
        if found != form(x):
            raise TypeError(f"{what}: {name} must be {form(x)}, as x is; got {found}")
    return state


def _wrong(whose: object, verb: str, part: str, wanted: list[list[int]], got: Tensor) -> ValueError:
    shapes, shape = " or ".join(map(str, wanted)), getattr(got, "shape", None)
    found = type(got).__name__ if shape is None else list(shape)
    return ValueError(f"{part}{type(whose).__name__}.{verb} must have the shape {shapes}; got {found}")
