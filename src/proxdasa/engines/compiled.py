"""Blocks of iterations compiled by torch.

A block is recorded twice. The first time its steps run as they are, on agents that note what each step asks for:
samples, schedules and messages, as formulas in the number k of the block's first iteration. The second time torch
records the arithmetic, for which samples and step sizes are inputs. The result serves every block whose steps take the
same branches, without being compiled again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from proxdasa.contracts import Algorithm, NotCompilableError, parameters_of, replace_unchecked
from proxdasa.engines.agents import LocalAgents
from proxdasa.engines.recorded_steps import Player, Script, Verbs, record
from proxdasa.schedules import Number
from proxdasa.torch_internals import compile_graph

OPERATIONS = 4_000
"""The most operations that a compiled block may have: compiling takes about 10 ms for each."""
CLOSE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""Differences between a compiled block and its steps, relative to the largest number, that may come from rounding."""


@dataclass(frozen=True, eq=False)
class CompiledBlock:
    """``size`` iterations as one function, called for a few trials at a time so that their rows stay in the cache."""

    size: int
    algorithm: Algorithm
    script: Script
    fields: tuple[str, ...]
    """Parameters of the method that are numbers; like step sizes, they are inputs."""
    draw: Callable[[int, int], Tensor]
    group: int
    """Trials in a call."""
    function: Callable[..., Sequence[Tensor]]
    constants: Sequence[Tensor]
    """Data, weights and the like, which are inputs too: the code is cached on disk and must not depend on them."""

    def fits(self, k: int) -> bool:
        """Whether the block may begin with iteration k."""
        return self.script.fits(k)

    def __call__(self, k: int, state: Any) -> Any:
        """The state after iterations k, …, k + size − 1; counts their costs."""
        new = self.compute(k, state)
        for count in self.script.counts:
            count(k, state[0])
        return new

    def compute(self, k: int, state: Any) -> Any:
        """The same state, without counting costs."""
        parts = [self.function(*arguments) for arguments in self.arguments(k, state)]
        if len(parts) == 1:
            return type(state)(*parts[0])
        return type(state)(*(torch.cat(rows) for rows in zip(*parts, strict=True)))

    def arguments(self, k: int, state: Any) -> Iterator[list[Tensor]]:
        """The arguments of the function for each group of trials, always in one layout: it refuses others."""
        numbers, stacked = self.inputs(k, state[0])
        for first in range(0, len(state[0]), self.group):
            own = slice(first, first + self.group)
            rows, others = ([each[own].contiguous() for each in some] for some in (state, stacked))
            yield [*rows, numbers, *others, *self.constants]

    def inputs(self, k: int, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The numbers of a block, one after another, and what differs by trial: step sizes, then samples."""
        numbers, stacked = [], []
        given: list[tuple[Number, bool]] = [
            (value := getattr(self.algorithm, name), isinstance(value, Tensor)) for name in self.fields
        ]
        asked = zip(self.script.asked, self.script.per_trial, strict=True)
        for value, per_trial in (*given, *((alpha(formula(k)), several) for (alpha, formula), several in asked)):
            if isinstance(value, Tensor) != per_trial:
                raise NotCompilableError("a schedule gives one number in some iterations and several in others")
            if isinstance(value, Tensor):
                stacked.append(value)
            else:
                numbers.append(value)
        samples = [self.draw(name(k), stream(k)).contiguous() for name, stream in self.script.samples]
        return torch.tensor(numbers, dtype=x.dtype), [*stacked, *samples]


def compile_block(
    engine: LocalAgents,
    verbs: Callable[[int], Verbs],
    algorithm: Algorithm,
    state: Any,
    size: int,
    group: int,
    first: int,
) -> CompiledBlock:
    """Compile at most ``size`` iterations of a method into one function; NotCompilableError says why that fails.

    The block is recorded from the first iterations, even in a resumed run, so that it uses the same code. ``verbs``
    returns the methods of the agents for a number of trials; ``first`` is the number of the run's first iteration.
    """
    script, after = record(engine, algorithm, state, size, first)
    trials, problems = len(state[0]), []
    # Groups of trials fail if something that is not known here has a value for each trial. The method's numbers cannot
    # be inputs if it uses them where torch takes no tensor.
    for count, inputs in dict.fromkeys([(group, True), (trials, True), (trials, False)]):
        try:
            block = _trace(verbs(count), algorithm, state, script, count, inputs, engine.draw)
        except NotCompilableError:
            raise
        except Exception as error:  # from torch, or from user code that was not written for a compiler
            problems.append(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
            continue
        if block.size < script.steps:  # too long for the compiler
            return compile_block(engine, verbs, algorithm, state, block.size, group, first)
        block, computed = _compile(block, state)
        _compare(computed, after)
        return block
    raise NotCompilableError(problems[0])


def _trace(
    verbs: Verbs, algorithm: Algorithm, state: Any, script: Script, group: int, inputs: bool, draw: Any
) -> CompiledBlock:
    """The block as torch records it, not compiled yet: its function is the graph."""
    from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415 - takes time to import

    trials = len(state[0])
    fields = tuple(name for name, value in parameters_of(algorithm).items() if inputs and _is_number(value, trials))
    per_trial = [isinstance(getattr(algorithm, name), Tensor) for name in fields] + script.per_trial
    block = CompiledBlock(script.steps, algorithm, script, fields, draw, group, _nothing, ())

    def play(rows: Sequence[Tensor], numbers: Tensor, stacked: Sequence[Tensor]) -> tuple[Tensor, ...]:
        single, several = iter(numbers.unbind()), iter(stacked)
        answers: Iterator[Number] = iter([next(several if own else single) for own in per_trial])
        changes: dict[str, Any] = {name: next(answers) for name in fields}
        player = Player(verbs, script, 0, list(several), list(answers))
        changes |= {name: player.answer for name, value in parameters_of(algorithm).items() if callable(value)}
        method, now = replace_unchecked(algorithm, changes), type(state)(*rows)
        for _ in range(script.steps):
            now = method.step(player, player.begin_step(), now)  # type: ignore[arg-type]
        if [answer for _, answer in player.tests] != [answer for _, answer in script.tests]:
            raise NotCompilableError("its steps take other branches when they are recorded")
        return tuple(now)

    numbers, stacked = block.inputs(0, state[0])
    # In the layout of `arguments`: torch compiles for that of the tensors with which it records.
    rows, stacked = ([each[:group].contiguous() for each in some] for some in (state, stacked))
    traced = make_fx(play, tracing_mode="fake", _allow_non_fake_inputs=True)(rows, numbers, stacked)
    nodes = list(traced.graph.nodes)
    _check_operations(nodes)
    _check_shapes(nodes[-1], rows)
    if len(nodes) > OPERATIONS and script.steps > 1:
        return dataclasses.replace(block, size=max(1, script.steps * OPERATIONS // (2 * len(nodes))))
    if len(nodes) > OPERATIONS:
        raise NotCompilableError(f"a step has {len(nodes):,} operations")
    constants = _lift_constants(traced)
    return dataclasses.replace(block, function=traced, constants=constants)


def _check_operations(nodes: Sequence[fx.Node]) -> None:
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotCompilableError(f"it draws random numbers of its own ({node.target})")


def _check_shapes(output: fx.Node, rows: Sequence[Tensor]) -> None:
    """Raise ValueError if the state has another shape after the block, as when something has a value per trial."""
    for node, before in zip(output.args[0], rows, strict=True):  # type: ignore[arg-type]
        after = node.meta["val"]
        if (after.shape, after.dtype) != (before.shape, before.dtype):
            raise ValueError(f"the state has shape {list(after.shape)} after a block, and {list(before.shape)} before")


def _lift_constants(traced: fx.GraphModule) -> list[Tensor]:
    """Turn tensors that the graph holds, such as data, into inputs after the others, and return them."""
    graph, lifted = traced.graph, dict[int, tuple[fx.Node, Tensor]]()
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        held = getattr(traced, node.target)
        if id(held) not in lifted:
            with graph.inserting_after(last):
                last = graph.placeholder(f"constant_{len(lifted)}")
            last.meta = dict(node.meta)
            lifted[id(held)] = last, held
        node.replace_all_uses_with(lifted[id(held)][0])
        graph.erase_node(node)
    graph.set_codegen(fx.graph.CodeGen())  # inputs and outputs as plain lists
    for name in {name for name, value in vars(traced).items() if isinstance(value, Tensor)}:
        delattr(traced, name)
    for name in [name for name, _ in traced.named_buffers(recurse=False, remove_duplicate=False)]:
        delattr(traced, name)
    graph.lint()
    traced.recompile()
    return [held for _, held in lifted.values()]


def _compile(block: CompiledBlock, state: Any) -> tuple[CompiledBlock, Any]:
    """The block with its operations compiled, and the state after its first iterations."""
    try:
        function = compile_graph(cast("fx.GraphModule", block.function), next(block.arguments(0, state)))
        made = dataclasses.replace(block, function=function)
        return made, made.compute(0, state)
    except Exception as error:
        # A failure here, such as a missing C++ compiler, must not end the run.
        line = next((line for line in reversed(str(error).splitlines()) if line.strip()), "")
        raise NotCompilableError(
            f"torch says {type(error).__name__}: {str(error).strip().partition(chr(10))[0] or line} (if this "
            "happens again, delete torch's cache, in TORCHINDUCTOR_CACHE_DIR or in its folder for temporary files)"
        ) from None


def _compare(ours: Any, theirs: Any) -> None:
    for name, a, b in zip(theirs._fields, ours, theirs, strict=True):
        scale = max(float(b.nan_to_num(0, 0, 0).abs().max()), torch.finfo(b.dtype).tiny)
        if not torch.allclose(a, b, rtol=0, atol=CLOSE[b.dtype] * scale, equal_nan=True):
            raise NotCompilableError(f"the compiled steps compute a different {name}")


def _nothing(*_: Tensor) -> Sequence[Tensor]:
    raise AssertionError("not compiled yet")


def _is_number(value: Any, trials: int) -> bool:
    return type(value) is float or (isinstance(value, Tensor) and value.shape == (trials, 1, 1))
