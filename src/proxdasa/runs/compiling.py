"""Whether the steps of a run are compiled, and in blocks of how many iterations.

Compiled steps agree with ordinary ones up to rounding. So that a run can be repeated to the last bit, the choice
depends on its settings alone, never on a clock or on how busy the machine is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxdasa import caller_warnings
from proxdasa.contracts import Algorithm, Block, Engine, NotCompilableError, Step, running_of
from proxdasa.engines.sliced_agents import in_slices
from proxdasa.problems.compile_benefit import fuses

SHORT, LONG = range(4, 6), range(4, 11)
"""How many iterations a block may have. Longer blocks take twice as long to compile, which only long runs earn back: an
iteration takes a third less time for one trial on a9a, and about the same for ten."""
STEP, ELEMENT = 1.5e-4, 3e-9
"""Seconds that compiling saves in an iteration: a fixed part, and a part for each element of each variable but one.

Rounded down from the time of one core: for ten trials on a9a compiling saves 2 to 3 ms for Prox-DASA (two variables), 7
for ProxGT-SR-E and DEEPSTORM v2 (three) and 10 for SPPDM (four), and for one trial of Prox-DASA 0.9 ms.
"""
WORTH = 20
"""Seconds that compiling must save, by an estimate that is rounded down; it takes about 15, and less once the code is
cached on disk."""
MUCH = 8 * WORTH
"""A run is long if compiling saves more than this many seconds."""
COMPILED = "compiled"
"""The name of the fact that says whether the steps of a run are compiled."""


class CompileWarning(UserWarning):
    """Steps that should be compiled are not; the run continues with ordinary ones, which take longer.

    Examples:
        >>> import warnings
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> method, loss = proxdasa.DPSGD(gamma=0.1), conditions.LinkLoss(0.1)
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     result = proxdasa.run(method, problem, networks.ring(3), conditions=[loss], iterations=5, compile=True)
        >>> print(caught[0].message)
        compile: steps are not compiled, and take longer: W differs from round to round
    """


def block_size(paces: Sequence[int], seconds: float) -> int:
    """How many iterations to compile together, given the paces of other work and the seconds that compiling saves."""
    distance, sizes = math.gcd(*paces), LONG if seconds > MUCH else SHORT
    return max((size for size in sizes if distance % size == 0), default=min(sizes[-1], *paces))


def saved_seconds(iterations: int, variables: int, elements: int) -> float:
    """An estimate of what compiling saves, given the number of variables of the method and the elements of each."""
    return iterations * (STEP + ELEMENT * (variables - 1) * elements)


def obstacle(setup: Any) -> str:
    """What excludes compiled steps, and those in slices, from the start, if anything does."""
    if setup.exact:
        return "exact mode fixes the order of sums, and compiled steps use another"
    if setup.device != "cpu":
        return f"blocks are compiled for the CPU, and this run computes on {setup.device}"
    if setup.conditions or setup.network.rounds:
        return "W differs from round to round"
    if getattr(setup.mixing, "compression", None) is not None:
        return "compressed messages are not compiled"
    if running_of(setup.problem) is not None:
        return "running statistics are not compiled"
    return ""


def compiles(setup: Any) -> bool:
    """Whether to compile the steps of a run: as its setting says or, with "auto", if it is long enough to gain.

    The gain is an estimate, for problems whose gradients are known to benefit.
    """
    if setup.compile != "auto":
        return setup.compile is True and not obstacle(setup)
    elements = setup.trials * setup.network.n * setup.problem.dim
    saved = saved_seconds(setup.iterations, len(setup.algorithm.State._fields), elements)
    return saved > WORTH and fuses(setup.problem) and not obstacle(setup) and not slices(setup)


def slices(setup: Any) -> bool:
    """Whether a run in one process, unless it is compiled, takes its steps in slices, which need less memory."""
    rows, dim = setup.trials * setup.network.n, setup.problem.dim
    return in_slices(setup.algorithm, setup.regularizer, rows, dim) and not obstacle(setup)


class Steps:
    """Advances a run by steps, ordinary or ``in_place``, or by compiled blocks where they fit."""

    def __init__(
        self,
        engine: Engine,
        algorithm: Algorithm,
        step: Step,
        keep: Mapping[int, Sequence[int]],
        in_place: Callable[[int, Any], Any] | None = None,
    ) -> None:
        self._engine, self._algorithm, self._keep = engine, algorithm, keep
        self._step = in_place or (lambda k, state: step(engine, k, state))
        self.block: Block | None = None
        self.refused = False
        """Whether steps that should be compiled are not."""

    def compile(self, state: Any, paces: Sequence[int], first: int, iterations: int) -> None:
        """Compile blocks that end where something is due; if that is impossible, continue without them."""
        size = block_size(paces, saved_seconds(iterations, len(state), state[0].numel()))
        try:
            self.block = self._engine.compile(self._algorithm, state, size, first)
        except NotCompilableError as error:
            self._do_without(error)

    def advance(self, k: int, state: Any, due: int) -> tuple[int, Any]:
        """The state after the next iteration or, compiled, after several, but not beyond iteration ``due``."""
        block = self.block
        # Iterates that are kept as x^R must not lie within a block.
        if block and k + block.size <= min([due, *(r for r in self._keep if r > k)]) and block.fits(k):
            try:
                return k + block.size, block(k, state)
            except NotCompilableError as error:
                self._do_without(error)
        return k + 1, self._step(k, state)

    def _do_without(self, error: NotCompilableError) -> None:
        self.block, self.refused = None, True
        if self._engine.writes:  # one process warns for all
            caller_warnings.warn(f"steps are not compiled, and take longer: {error}", CompileWarning)
