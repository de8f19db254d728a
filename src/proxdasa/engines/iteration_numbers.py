"""The number of an iteration while a block of steps is recorded: a formula in the number at which the block begins."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

from proxdasa.contracts import NotCompilableError

Formula = Callable[[int], int]
"""Maps the number of a block's first iteration to a whole number."""
Test = tuple[Callable[[int], Any], Any]
"""A question about the number of a block's first iteration, and the answer for which a recording is valid."""


def formula_of(number: int | Iteration) -> Formula:
    """The formula of a number that a step has computed, or of a constant."""
    return number.formula if isinstance(number, Iteration) else lambda _: number


class Iteration:  # noqa: PLW1641 - it refuses to be hashed
    """k as a step sees it while it is recorded.

    Sums, products and remainders of it are formulas too. Comparisons are answered and their answers recorded: the
    recording is valid for blocks that give the same answers. Any other use is refused, because it would turn k into the
    number of a single block.
    """

    def __init__(self, formula: Formula, begins: int, tests: list[Test]) -> None:
        self.formula, self._begins, self._tests = formula, begins, tests

    @property
    def value(self) -> int:
        """The number in the block that is recorded."""
        return self.formula(self._begins)

    def _combine(self, operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        if not all(isinstance(each, int | Iteration) for each in (left, right)):
            self._refuse()
        a, b = formula_of(left), formula_of(right)
        return Iteration(lambda k: operation(a(k), b(k)), self._begins, self._tests)

    def _answer(self, operation: Callable[[Any, Any], Any], other: Any) -> Any:
        if not isinstance(other, int | float | Iteration):
            return NotImplemented
        mine, theirs = self.formula, formula_of(other)  # type: ignore[arg-type]

        def test(k: int) -> Any:
            return operation(mine(k), theirs(k))

        self._tests.append((test, test(self._begins)))
        return self._tests[-1][1]

    def __add__(self, other: Any) -> Any:
        return self._combine(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self._combine(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return self._combine(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._combine(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self._combine(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._combine(operator.mul, other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._combine(operator.floordiv, self, other)

    def __mod__(self, other: Any) -> Any:
        return self._combine(operator.mod, self, other)

    def __eq__(self, other: object) -> Any:
        return self._answer(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._answer(operator.ne, other)

    def __lt__(self, other: Any) -> Any:
        return self._answer(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._answer(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._answer(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._answer(operator.ge, other)

    def __bool__(self) -> bool:
        return bool(self._answer(operator.ne, 0))

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotCompilableError("its step computes with k itself; a step size that depends on k must be a schedule")

    __hash__ = __index__ = __int__ = __float__ = __pow__ = __rpow__ = __truediv__ = __rtruediv__ = _refuse
    __neg__ = __abs__ = __divmod__ = __rfloordiv__ = __rmod__ = __round__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = __invert__ = _refuse
    __str__ = __repr__ = __format__ = _refuse  # such as a name in a table
