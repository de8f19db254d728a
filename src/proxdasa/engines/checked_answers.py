"""What a problem and a regularizer answer, refused if it has another shape than it should.

A user's own may give one: it would broadcast, and the run would end with other numbers, without a word.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from proxdasa.contracts import Evaluation, Problem, Regularizer, partial_grad_of


def gradients(problem: Problem, x: Tensor, sample: Tensor, agents: range | None = None) -> Tensor:
    """The sample gradients at x, of all agents or of some; x stays as it is."""
    partial = partial_grad_of(problem) if agents else None
    before, verb = writes(x), "grad_of" if partial else "grad"
    found = partial(agents, x, sample) if partial and agents else problem.grad(x, sample)
    if found.shape != x.shape:
        raise _wrong(problem, verb, "", [list(x.shape)], found)
    if writes(x) != before:
        raise ValueError(f"{type(problem).__name__}.{verb} writes into x; use operations that are not in place")
    return found


def evaluation(problem: Problem, x: Tensor) -> Evaluation:
    """Losses and gradients at x; of a point that all agents share, for each agent or their means."""
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


def writes(x: Tensor) -> int | None:
    """How often x was written to; torch does not count it in inference mode."""
    return None if x.is_inference() else x._version


def _wrong(whose: object, verb: str, part: str, wanted: list[list[int]], got: Tensor) -> ValueError:
    shapes, shape = " or ".join(map(str, wanted)), getattr(got, "shape", None)
    found = type(got).__name__ if shape is None else list(shape)
    return ValueError(f"{part}{type(whose).__name__}.{verb} must have the shape {shapes}; got {found}")
