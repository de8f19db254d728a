"""A run: its settings, checked, and the loop built from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from proxdasa import caller_warnings, memory_budget
from proxdasa import metrics as measures
from proxdasa.checks import check_count
from proxdasa.conditions import Condition
from proxdasa.conditions.weather import longest_delay
from proxdasa.contracts import Algorithm, Engine, Mixing, Problem, Regularizer
from proxdasa.descriptions import describe
from proxdasa.devices import check_device
from proxdasa.engines import Alone, Processes, Simulator, Task, Transport, blocks
from proxdasa.metrics import Metric
from proxdasa.mixing import Gossip
from proxdasa.networks import Network
from proxdasa.problems.repeated import periods_of
from proxdasa.regularizers import Zero
from proxdasa.runs import observing
from proxdasa.runs.binding import as_rows, bind, check_trial_weights, draw_random_iterates
from proxdasa.runs.checkpoints import fingerprint
from proxdasa.runs.compiling import COMPILED, CompileWarning, compiles, obstacle, slices
from proxdasa.runs.facts import facts_of
from proxdasa.runs.footprint import RECORD, footprint, noise_rows
from proxdasa.runs.identity import Identity
from proxdasa.runs.loop import Loop
from proxdasa.runs.progress import Progress
from proxdasa.runs.results import Result
from proxdasa.runs.saving import Saving
from proxdasa.runs.setup_checks import (
    check_buffers,
    check_compression,
    check_conditions,
    check_counts,
    check_kinds,
    check_method,
    check_problem,
    check_processes,
    check_use_of_device,
    warn_of_delays,
)
from proxdasa.runs.signatures import with_parameters_of
from proxdasa.runs.stopping import Stationary, Watch


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that determines a run: the arguments of `run`, except those that do not change the iterates."""

    algorithm: Algorithm
    problem: Problem
    network: Network
    _: dataclasses.KW_ONLY
    regularizer: Regularizer = field(default_factory=Zero)
    mixing: Mixing = field(default_factory=Gossip)
    iterations: int = 1_000
    trials: int = 1
    seed: int = 0
    observe_every: int | Literal["auto"] | None = None
    x0: Tensor | Sequence[float] | None = None
    dtype: torch.dtype | None = None
    device: Literal["cpu", "cuda", "mps"] = "cpu"
    metrics: Sequence[Metric] = measures.STANDARD
    random_iterate: bool = False
    compile: bool | Literal["auto"] = "auto"
    exact: bool = False
    stop: Stationary | None = None
    conditions: Sequence[Condition] = ()
    note: str | None = None

    def __post_init__(self) -> None:
        check_device(self.device)
        check_kinds(self)
        check_counts(self)
        if self.observe_every is None:
            object.__setattr__(self, "observe_every", max(1, self.iterations // 100))
        if self.dtype is not None:
            object.__setattr__(self, "problem", self.problem.to(self.dtype))
        if self.observe_every == observing.AUTO:
            object.__setattr__(self, "observe_every", observing.choose_pace(self.problem, self.iterations))
        check_count(self.observe_every, "observe_every")
        problem, network = self.problem, self.network
        if problem.agents != network.n:
            raise ValueError(
                f"network: {network.label} has {network.n} agents, but the problem has {problem.agents}; they must "
                "match"
            )
        check_problem(problem)
        check_method(self.algorithm, network, self.regularizer, self.mixing, self.metrics)
        if self.stop is not None:
            self.stop.check(self.algorithm)
        check_compression(self.algorithm, self.mixing, self.conditions, self.network)
        check_conditions(self.conditions, self.network, self.mixing)
        if self.compile is True and self.exact:
            raise ValueError("compile and exact exclude each other: compiled code sums in another order")
        check_use_of_device(self)

    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(Setup)}

    def config(self) -> dict[str, Any]:
        """The run as plain values, in the form of a configuration file, with facts about it under "facts"."""
        settings = {name: describe(value) for name, value in self.settings().items()}
        settings["dtype"] = describe(self.problem.dtype)
        for name, usual in (("conditions", not self.conditions), ("device", self.device == "cpu")):
            if usual:
                del settings[name]  # so that runs from before this setting existed keep their description
        return {name: value for name, value in settings.items() if value is not None} | {"facts": facts_of(self)}

    def check_memory(self, agents: range | None = None, what: str | None = None, own: Problem | None = None) -> None:
        """Refuse a run that does not fit into the memory of the process of these agents (default: all), beforehand.

        ``own`` is the problem of these agents: a process may be unable to read the files of all.
        """
        assert isinstance(self.observe_every, int)
        what = what or f"trials = {self.trials:,} of {self.network.n:,} agents, d = {self.problem.dim:,},"
        records = self.trials * (self.iterations // self.observe_every + 2) + self.random_iterate * self.iterations
        varies, problem = bool(self.conditions), own or self.problem
        noise = noise_rows(self.conditions, self.network, self.algorithm.facts.vectors)
        needed = footprint(
            self.algorithm, problem, self.network, self.mixing, self.trials, agents, varies, noise,
            oldest=longest_delay(self.conditions), sliced=agents is None and self.compile is not True and slices(self),
        )  # fmt: skip
        remedy = "fewer trials, agents or dimensions need less, and so do fewer records (observe_every)"
        memory_budget.check(needed + RECORD * records, f"{what} and {records:,} records", remedy)

    def run(
        self,
        progress: Progress | Sequence[Progress] | None = None,
        saving: Saving | None = None,
        processes: Transport | None = None,
    ) -> Result:
        """Run it, in this process or, with ``processes``, as one of several that all do the same."""
        return self.loop(processes).run(progress, saving)

    def loop(self, transport: Transport | None = None, first: int = 0) -> Loop:
        """The loop, ready to begin; it holds no more of the problem than the agents of this process need.

        ``first`` is the number of its first iteration, if it continues where another loop has ended.
        """
        assert isinstance(self.observe_every, int)
        config, engine, algorithm = self.config(), self.engine(transport), self.bound()
        compiled = transport is None and compiles(self)
        config["facts"] |= {COMPILED: True} if compiled else {}
        own, identity = fingerprint({**config, **self.place}), Identity.of(self.settings(), algorithm, self.iterations)
        engine.agree(
            lambda: {
                "dimension": str(self.problem.dim),
                "floating-point type": str(self.problem.dtype),
                "configuration": own,
                "values of functions": str(sorted(identity.digests().items())),
                "running statistics": "" if engine.buffers is None else str(engine.buffers.shape[-1]),
            }
        )
        if engine.writes:  # one process warns for all
            warn_of_delays(self.conditions, algorithm)
            if self.compile is True and not compiled:
                why = obstacle(self) or "messages between processes interrupt a compiled step"
                caller_warnings.warn(f"compile: steps are not compiled, and take longer: {why}", CompileWarning)
        return Loop(
            config=config,
            fingerprint=own,
            identity=identity,
            algorithm=algorithm,
            engine=engine,
            start=self.start(engine.agents),
            metrics=self.metrics,
            iterations=self.iterations,
            observe_every=self.observe_every,
            keep=self.random_iterates() if self.random_iterate else {},
            compile=compiled,
            watch=Watch(self.stop, algorithm, self.trials) if self.stop else None,
            first=first,
            first_trial=self.first_trial,
        )

    def engine(self, transport: Transport | None = None) -> Engine:
        """The engine in which the agents' rows live."""
        self.check_weights()
        task = Task(
            self.problem, self.network, self.regularizer, self.mixing, self.trials, self.seed, self.conditions,
            self.first_named, periods_of(self.problem), torch.device(self.device),
        )  # fmt: skip
        if transport is None and not self.exact:
            self.check_memory()
            self._check_buffers(self.problem)
            return Simulator(task)
        check_processes(self.device)
        transport = transport or Alone()
        here = blocks(self.network.n, transport.size)[transport.rank]
        try:
            own = self.problem.restrict(here)
            self.check_memory(here, own=own)
            self._check_buffers(own)
        except (ValueError, OSError) as error:
            transport.fail(str(error))  # otherwise the others would miss this process and not know why
            raise
        return Processes(task._replace(problem=own), transport, self.exact)

    def _check_buffers(self, own: Problem) -> None:
        """Refuse running statistics that other settings exclude; a problem knows of them once it has its own data."""
        course = self.conditions, self.random_iterate
        check_buffers(own, self.algorithm, self.network, self.mixing, *course)

    def check_weights(self) -> None:
        """Refuse per-trial weights, of the regularizer or of one in a measure, unless there is one for each trial."""
        measured = {metric.name: metric.parameters for metric in self.metrics}
        for name, thing in (("regularizer", self.regularizer), ("metrics", measured)):
            check_trial_weights(thing, name, self.trials, self.problem.dtype)

    first_trial: ClassVar[int] = 0
    """The number of the first trial."""
    first_named: ClassVar[int] = 0
    """The trial by which the samples of the first trial are named."""

    @property
    def place(self) -> dict[str, Any]:
        """What distinguishes the checkpoints of this setup from those of others with the same configuration."""
        periods, compression = periods_of(self.problem), getattr(self.mixing, "compression", None)
        random = self.conditions or (compression and compression.compressor.words(self.problem.dim))
        # In earlier versions events did not repeat with the samples; a run that began like that cannot be continued.
        return {"events": periods} if random and min(periods, default=self.trials) < self.trials else {}

    def random_iterates(self) -> dict[int, list[int]]:
        """For each iterate, the trials that keep it as x^R."""
        return draw_random_iterates(self.bound(), self.iterations, self.trials, self.seed)

    def bound(self) -> Algorithm:
        """The algorithm with its schedules bound to n and K and its per-trial parameters in the run's type."""
        device = torch.device(self.device)
        return bind(self.algorithm, self.network.n, self.iterations, self.trials, self.problem.dtype, device)

    def start(self, agents: range | None = None) -> Tensor:
        """x⁰ of these agents (default: all), ``[trials, agents, d]``."""
        problem, shape = self.problem, (self.trials, self.problem.agents, self.problem.dim)
        given = problem.start(self.seed, self.trials) if self.x0 is None else as_rows(self.x0, problem.dtype)
        try:
            x = (given := given.to(problem.dtype)).expand(shape)
        except RuntimeError:
            raise ValueError(
                f"x0 of shape {list(given.shape)} does not broadcast to [trials, agents, d] = {list(shape)}"
            ) from None
        if not bool(given.isfinite().all()):
            raise ValueError("the starting point is not finite")
        return (x[:, agents.start : agents.stop] if agents else x).clone().to(self.device)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Call(Setup):
    """The arguments of `run`: the settings, and what does not change the iterates."""

    progress: Progress | None = None
    checkpoints: str | Path | None = None
    checkpoint_every: int | None = None
    processes: Transport | None = None
    jobs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes is not None and not callable(getattr(self.processes, "exchange", None)):
            raise TypeError(
                f"processes must be what engines.connect() returns in each of them; got {self.processes!r}. To start "
                "several on this machine: proxdasa run FILE --processes 4, or a script with torchrun"
            )
        if self.processes is not None:
            check_processes(self.device)
        if self.processes is not None and self.jobs is not None:
            raise ValueError("jobs divides trials among processes, processes divides agents; leave one of them out")


@with_parameters_of(_Call)
def run(*args: Any, **settings: Any) -> Result:  # noqa: D417 - their names are those of the settings
    """Minimise (1/n) Σ F_i(x) + Ψ(x) with n agents that talk to their neighbours only.

    Args:
        algorithm: the method, for example ``ProxDASA(gamma=0.01)``.
        problem: the local losses F_i.
        network: the graph and its weights W; it must have as many agents as the problem.
        regularizer: Ψ; zero by default.
        mixing: how W is applied in each iteration; one round of gossip by default.
        iterations: K.
        trials: independent repetitions, run as one stacked computation; parameters given with
            `per_trial` take one value in each.
        seed: names the samples; the sample of a trial, agent and iteration depends on nothing else.
        observe_every: the number of iterations between two observations; the start and the end are always observed.
            By default there are about a hundred. With "auto" it is the smallest of 1, 2, 5, 10, 20, 50, ... for which
            measuring takes about a fifth of the run or less. This is estimated from the sizes of the problem, not from
            the clock, so that a run has the same records on every machine; the number is in the configuration.
        x0: where to start, broadcastable to ``[trials, agents, d]``; the problem's own choice by default.
        dtype: floating-point type; the problem's own by default.
        device: where to compute, "cpu", "cuda" or "mps": data, rows of all agents, mixing, measuring. Samples are the
            same on every device, and results come back to the CPU. Devices other than the CPU are for runs in one
            process, without ``exact``, whose steps are not compiled.
        metrics: what to record.
        random_iterate: keep the theory's output x^R, P(R = k) ∝ α_k (uniform for methods that average no
            gradients), beside the last iterate.
        compile: run blocks of iterations through torch's compiler: True, False, or "auto", which does it for runs that
            are long enough for it to pay. They agree with the ordinary steps up to rounding. The choice depends on the
            settings alone; if steps are compiled, the facts in the result's configuration say so. Needs a C++ compiler;
            where steps cannot be compiled, a `CompileWarning` says why, and ordinary steps are taken.
        exact: compute agent by agent, in one thread and one order of sums, so that the final state has the same bits
            however the agents are spread over processes. Slower; agrees with the ordinary steps up to rounding.
        stop: when to end before K iterations, for example ``Stationary(tolerance=1e-4)``.
        conditions: what goes wrong in the network (`proxdasa.conditions`); nothing by default.
        note: a remark that is kept in the configuration of the results; it changes nothing else.
        progress: called from time to time with the iterations made, K, and the latest rows.
        checkpoints: a folder for checkpoints. If it holds some of this run, the run continues from the last. Your own
            schedules are compared by their values, other functions and objects by what the run computes first.
        checkpoint_every: iterations between two checkpoints; by default only an interruption writes one.
        processes: the other processes that hold agents of this run (`engines.connect`); by default all agents live in
            this process.
        jobs: how many processes of this machine compute the trials of a large run; the results do not depend on it. By
            default it is the number of cores if the run is long and has no functions or objects of your own, otherwise
            one. Linux only.

    Ctrl-C ends the run; the result then says ``stopped="interrupted"`` and holds the records so far. A trial that
    meets a non-finite value is stopped with a `DivergenceWarning` that names agent and iteration; the others continue.

    Examples:
        >>> A, b = torch.eye(3).expand(4, 3, 3), torch.arange(12.0).view(4, 3)  # F_i(x) = ½‖x‖² − b_iᵀx
        >>> result = proxdasa.run(
        ...     proxdasa.ProxDASAGT(gamma=0.5, alpha=0.3),
        ...     problems.Quadratic(A, b),
        ...     networks.ring(4),
        ...     regularizer=regularizers.L1(0.5),
        ...     iterations=100,
        ... )
        >>> result.mean.round(decimals=3)  # the mean of the b_i, less the weight of the L1 norm
        tensor([[4., 5., 6.]])
        >>> result.stopped is None, result.iterations
        (True, 100)
    """
    from proxdasa.runs.jobs import run_setup  # noqa: PLC0415 - it imports this module

    call = _Call(*args, **settings)
    saving = Saving.of(call.checkpoints, call.checkpoint_every)
    if call.processes is not None:
        return call.run(call.progress, saving, call.processes)
    return run_setup(call, call.progress, saving, call.jobs)
