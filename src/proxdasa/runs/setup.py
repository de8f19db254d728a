"""A run: its settings, checked, and the loop that makes it from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxdasa import memory_budget, samples
from proxdasa import metrics as measures
from proxdasa.contracts import Algorithm, Mixing, Problem, Regularizer
from proxdasa.descriptions import describe
from proxdasa.engines import Alone, Processes, Simulator, Transport, blocks
from proxdasa.metrics import Metric
from proxdasa.mixing import Gossip
from proxdasa.networks import Network
from proxdasa.regularizers import Zero
from proxdasa.runs.checkpoints import fingerprint
from proxdasa.runs.footprint import RECORD, footprint
from proxdasa.runs.identity import Identity
from proxdasa.runs.loop import Loop, Progress, Saving
from proxdasa.runs.results import Result
from proxdasa.runs.stopping import Stationary, Watch
from proxdasa.schedules import Alpha, Number, Schedule, check_count

NOTED_EDGES = 2_000
"""Edges up to which a network has them noted in the configuration, for reports to draw."""


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that determines a run; the arguments of `run`, which explains them."""

    algorithm: Algorithm
    problem: Problem
    network: Network
    _: dataclasses.KW_ONLY
    regularizer: Regularizer = field(default_factory=Zero)
    mixing: Mixing = field(default_factory=Gossip)
    iterations: int = 1_000
    trials: int = 1
    seed: int = 0
    observe_every: int | None = None
    x0: Tensor | Sequence[float] | None = None
    dtype: torch.dtype | None = None
    metrics: Sequence[Metric] = measures.STANDARD
    random_iterate: bool = False
    compile: bool = False
    exact: bool = False
    stop: Stationary | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
        check_count(self.iterations, "iterations")
        check_count(self.trials, "trials")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be a whole number from 0 to 2^64 - 1; got {self.seed!r}")
        if self.observe_every is None:
            object.__setattr__(self, "observe_every", max(1, self.iterations // 100))
        check_count(self.observe_every, "observe_every")
        if self.dtype is not None:
            object.__setattr__(self, "problem", self.problem.to(self.dtype))
        problem, network = self.problem, self.network
        if problem.agents != network.n:
            raise ValueError(
                f"network: {network.label} has {network.n} agents, but the problem {problem.agents}; accepted: as many"
            )
        self._check_method()
        if self.stop is not None:
            self.stop.check(self.algorithm)
        if self.compile and self.exact:
            raise ValueError("compile and exact exclude each other: compiled sums have an order of their own")

    def config(self) -> dict[str, Any]:
        """The run as plain values, in the form of a configuration file, with facts about it under "facts"."""
        settings = {entry.name: describe(getattr(self, entry.name)) for entry in dataclasses.fields(self)}
        settings["dtype"] = describe(self.problem.dtype)
        facts = {
            "title": self.algorithm.facts.title,
            "agents": self.network.n,
            "dim": self.problem.dim,
            "rho": self.network.rho,
            "rounds": self.mixing.rounds_for(self.network.rho),
            "proxdasa": version("proxdasa"),
            "torch": torch.__version__,
        }
        gamma, edges = self.algorithm.mapping_gamma, self.network.edges
        facts["gamma"] = describe(gamma.flatten().tolist() if isinstance(gamma, Tensor) else gamma)
        facts |= {"edges": edges.tolist()} if len(edges) <= NOTED_EDGES else {}
        return {name: value for name, value in settings.items() if value is not None} | {"facts": facts}

    def check_memory(self, agents: range | None = None, what: str | None = None) -> None:
        """Refuse a run that does not fit into memory where these agents live, or all, before any of it is allocated."""
        assert self.observe_every is not None
        what = what or f"trials = {self.trials:,} of {self.network.n:,} agents, d = {self.problem.dim:,},"
        records = self.trials * (self.iterations // self.observe_every + 2) + self.random_iterate * self.iterations
        needed = footprint(self.algorithm, self.problem, self.network, self.mixing, self.trials, agents)
        remedy = "fewer trials, agents or dimensions need less, and so do fewer records (observe_every)"
        memory_budget.check(needed + RECORD * records, f"{what} and {records:,} records", remedy)

    def run(
        self, progress: Progress | None = None, saving: Saving | None = None, processes: Transport | None = None
    ) -> Result:
        """Run it, in this process or, with ``processes``, as one of several that all do the same."""
        return self.loop(processes).run(progress, saving)

    def loop(self, processes: Transport | None = None) -> Loop:
        """The run, about to begin; it holds no more of the problem than the agents of this process need."""
        config, engine, algorithm = self.config(), self.engine(processes), self.bound()
        own = fingerprint(config)
        settings = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        identity = Identity.of(settings, algorithm, self.iterations)
        if isinstance(engine, Processes):
            parts = {"dimension": str(self.problem.dim), "floating-point type": str(self.problem.dtype)}
            engine.agree(
                {**parts, "configuration": own, "values of functions": str(sorted(identity.digests().items()))}
            )
        assert self.observe_every is not None
        epoch = engine.mean(torch.full((1, len(engine.agents), 1), engine.epoch, dtype=torch.float64))
        return Loop(
            config,
            own,
            identity,
            algorithm,
            engine,
            self.start(engine.agents),
            self.metrics,
            float(epoch),
            self.iterations,
            self.observe_every,
            _random_indices(algorithm, self) if self.random_iterate else {},
            self.compile,
            Watch(self.stop, algorithm, self.trials) if self.stop else None,
        )

    def engine(self, transport: Transport | None = None) -> Simulator | Processes:
        """The place where the agents' rows live."""
        parts = (self.network, self.regularizer, self.mixing, self.trials, self.seed)
        if transport is None and not self.exact:
            self.check_memory()
            return Simulator(self.problem, *parts)
        transport = transport or Alone()
        here = blocks(self.network.n, transport.size)[transport.rank]
        try:
            self.check_memory(here)
            own = self.problem.restrict(here)
        except (ValueError, OSError) as error:
            transport.fail(str(error))  # the others would miss us and not know why
            raise
        return Processes(own, *parts, transport, self.exact)

    def _check_kinds(self) -> None:
        """Refuse what is not the kind of object it should be, before anything is computed."""
        kinds = {
            "algorithm": (dataclasses.is_dataclass, "a method that is a dataclass, such as ProxDASA(gamma=0.01)"),
            "problem": (lambda thing: callable(getattr(thing, "evaluate", None)), "a problem, such as Quadratic(A, b)"),
            "network": (lambda thing: isinstance(thing, Network), "a network, such as networks.ring(8)"),
            "regularizer": (lambda thing: callable(getattr(thing, "prox", None)), "a regularizer, such as L1(0.01)"),
            "mixing": (lambda thing: callable(getattr(thing, "rounds_for", None)), "a mixing, such as Gossip(1)"),
            "metrics": (lambda thing: all(isinstance(m, Metric) for m in thing), "a list of proxdasa.metrics"),
            "stop": (lambda thing: thing is None or isinstance(thing, Stationary), "a rule, such as Stationary(1e-4)"),
            "dtype": (lambda thing: thing in (None, torch.float32, torch.float64), "torch.float32 or torch.float64"),
        }
        for name, (fits, words) in kinds.items():
            thing = getattr(self, name)
            if isinstance(thing, type) or not fits(thing):
                raise TypeError(f"{name} must be {words}; got {thing!r}")

    def _check_method(self) -> None:
        """Refuse what the method's theory excludes and the method itself cannot see."""
        method, network = self.algorithm.facts, self.network
        if method.averaging is None:
            # The standard measures come as a whole, "what there is"; one that was asked for by name is not left out.
            standard = {metric.name for metric in measures.STANDARD if metric.needs_z}
            asked = [metric.name for metric in self.metrics if metric.needs_z]
            if refused := [name for name in asked if not standard <= set(asked) or name not in standard]:
                raise ValueError(f"metrics: {refused[0]} needs averaged gradients, and {method.title} declares none")
        else:
            names = (*self.algorithm.State._fields, *_parameters(self.algorithm))
            if missing := [name for name in method.averaging if name not in names]:
                raise ValueError(f"{method.title} declares that it averages by {missing[0]}, which it does not have")
        if not method.composite and not isinstance(self.regularizer, Zero):
            raise ValueError(
                f"{method.title} is for Ψ = 0 only, but the regularizer is {type(self.regularizer).__name__}; "
                "leave it out, or choose a proximal method"
            )
        if method.eigenvalues_above > -1:
            # Mixing is a polynomial in W, so on numbers λ in place of W it gives its own eigenvalues. Between those of
            # W it may dip lower than at any of them; the whole range is asked, since only its ends are known.
            λ = torch.linspace(network.smallest_eigenvalue, 1.0, 1001, dtype=torch.float64)
            least = float(self.mixing(lambda x: λ * x, torch.ones_like(λ), network.rho).min())
            if least <= method.eigenvalues_above + 1e-9:  # those of even rings are −1/3 but for rounding
                raise ValueError(
                    f"{method.title} needs eigenvalues of mixing above {method.eigenvalues_above:.4g}, but those of "
                    f"{self.mixing} on the network {network.label} reach down to {least:.4g}; an even number of "
                    "gossip rounds has none below 0"
                )

    def bound(self) -> Algorithm:
        """The algorithm with its schedules bound to n and K and its per-trial parameters in the run's type."""
        algorithm, trials, dtype = self.algorithm, self.trials, self.problem.dtype
        changes: dict[str, Any] = {}
        for name, value in _parameters(algorithm).items():
            for given in value.parameters.values() if isinstance(value, Schedule) else (value,):
                if isinstance(given, Tensor) and len(given) != trials:
                    raise ValueError(f"{name} has {len(given)} per-trial values, but the run has {trials} trials")
                largest = float(given.max()) if isinstance(given, Tensor) else given
                if isinstance(largest, float) and largest > torch.finfo(dtype).max:
                    raise ValueError(f"{name} = {largest:g} is beyond the numbers of {describe(dtype)}")
            if isinstance(value, Schedule):
                changes[name] = value.bind(self.network.n, self.iterations, dtype)
            elif isinstance(value, Tensor):
                changes[name] = value.to(dtype)
            elif callable(value):
                changes[name] = _fitted(value, name, trials, dtype)
        bound: Algorithm = dataclasses.replace(algorithm, **changes)  # type: ignore[type-var]
        return bound

    def start(self, agents: range | None = None) -> Tensor:
        """x⁰ of these agents, or all, ``[trials, agents, d]``."""
        problem, shape = self.problem, (self.trials, self.problem.agents, self.problem.dim)
        given = problem.start(self.seed, self.trials) if self.x0 is None else torch.as_tensor(self.x0)
        try:
            x = given.to(problem.dtype).expand(shape)
        except RuntimeError:
            raise ValueError(
                f"x0 of shape {list(given.shape)} does not broadcast to [trials, agents, d] = {list(shape)}"
            ) from None
        if not bool(x.isfinite().all()):
            raise ValueError("the starting point is not finite")
        return x[:, agents.start : agents.stop].clone() if agents else x.clone()


def run(
    algorithm: Algorithm,
    problem: Problem,
    network: Network,
    *,
    regularizer: Regularizer = Zero(),  # noqa: B008 - a frozen value
    mixing: Mixing = Gossip(),  # noqa: B008 - a frozen value
    iterations: int = 1_000,
    trials: int = 1,
    seed: int = 0,
    observe_every: int | None = None,
    x0: Tensor | Sequence[float] | None = None,
    dtype: torch.dtype | None = None,
    metrics: Sequence[Metric] = measures.STANDARD,
    random_iterate: bool = False,
    compile: bool = False,  # noqa: A002 - torch's word for it
    exact: bool = False,
    stop: Stationary | None = None,
    progress: Progress | None = None,
    checkpoints: str | Path | None = None,
    checkpoint_every: int | None = None,
    processes: Transport | None = None,
) -> Result:
    """Minimise (1/n) Σ F_i(x) + Ψ(x) with n agents that talk to their neighbours only.

    Args:
        algorithm: the method, for example ``ProxDASA(gamma=0.01)``.
        problem: the local losses F_i.
        network: the graph and its weights W; it must have as many agents as the problem.
        regularizer: Ψ; nothing by default.
        mixing: how W is applied in each iteration; one round of gossip by default.
        iterations: K.
        trials: independent repetitions, run as one stacked computation; parameters given with
            `per_trial` take one value in each.
        seed: names the samples; the sample of a trial, agent and iteration depends on nothing else.
        observe_every: measure and record every so many iterations, at the start and at the end; by default
            about a hundred times in all.
        x0: where to start, broadcastable to ``[trials, agents, d]``; the problem's own choice by default.
        dtype: floating-point type; the problem's own by default.
        metrics: what to record.
        random_iterate: keep the theory's output x^R, P(R = k) ∝ α_k (uniform for methods that average no
            gradients), beside the last iterate.
        compile: translate the steps by torch's compiler first. Pays for long runs of problems whose gradients are
            cheap, and least for methods with restarts; needs a C++ compiler, and agrees with the ordinary steps up
            to rounding.
        exact: compute agent by agent, in one thread and one order of sums, so that the final state has the same bits
            however the agents are spread over processes. Slower; agrees with the ordinary steps up to rounding.
        stop: when to end before K iterations, such as ``Stationary(tolerance=1e-4)``.
        progress: called from time to time with the iterations made, K, and the latest rows.
        checkpoints: a folder for checkpoints. If it has some of this run, the run goes on from the last. Schedules of
            your own are compared by their values, other functions and objects by what the run computes first.
        checkpoint_every: iterations from one to the next; by default only an interruption leaves one.
        processes: the other processes that hold agents of this run (`engines.connect`); all agents here by default.

    Ctrl-C ends the run; the result then says ``stopped="interrupted"`` and holds the records so far. A trial that
    meets a non-finite value is stopped with a `DivergenceWarning` that names agent and iteration; the others go on.
    """
    setup = Setup(
        algorithm,
        problem,
        network,
        regularizer=regularizer,
        mixing=mixing,
        iterations=iterations,
        trials=trials,
        seed=seed,
        observe_every=observe_every,
        x0=x0,
        dtype=dtype,
        metrics=metrics,
        random_iterate=random_iterate,
        compile=compile,
        exact=exact,
        stop=stop,
    )
    if processes is not None and not callable(getattr(processes, "exchange", None)):
        raise TypeError(
            f"processes must be what engines.connect() returns in each of them; got {processes!r}. To start several on "
            "this machine: proxdasa run FILE --processes 4, or a script by torchrun"
        )
    return setup.run(progress, saving(checkpoints, checkpoint_every), processes)


def saving(checkpoints: str | Path | None, every: int | None) -> Saving | None:
    """Where checkpoints go and when they are left, if anywhere."""
    if every is not None and checkpoints is None:
        raise ValueError("checkpoint_every needs a folder for the checkpoints: checkpoints=...")
    return None if checkpoints is None else Saving(Path(checkpoints), every)


def _fitted(schedule: Alpha, name: str, trials: int, dtype: torch.dtype) -> Alpha:
    """A callable of the user's own, its values in the run's type."""

    def fitted(k: int) -> Number:
        value = schedule(k)
        if not isinstance(value, Tensor):
            return float(value)
        if value.shape != (trials, 1, 1):
            raise ValueError(f"{name}({k}) must be a number or per_trial([...]) of {trials} numbers; got {value!r}")
        return value.to(dtype)

    return fitted


def _parameters(algorithm: Algorithm) -> dict[str, Any]:
    return {entry.name: getattr(algorithm, entry.name) for entry in dataclasses.fields(algorithm)}  # type: ignore[arg-type]


def _random_indices(algorithm: Algorithm, setup: Setup) -> dict[int, list[int]]:
    """For each iterate the trials whose R it is, drawn before the run begins.

    P(R = k) ∝ α_k for k = 1..K; uniform for methods that average no gradients.
    """
    iterations, trials, averaging = setup.iterations, setup.trials, algorithm.facts.averaging
    α = averaging.alpha(algorithm) if averaging else (lambda _k: 1.0)
    weights = torch.stack([torch.as_tensor(α(k)).flatten() for k in range(1, iterations + 1)])
    cumulated = weights.to(torch.float64).cumsum(0).expand(iterations, trials)
    chosen: dict[int, list[int]] = {}
    for trial in range(trials):
        u = float(samples.uniforms(samples.words(setup.seed, samples.RANDOM_ITERATE, trial, 0, 1)))
        R = 1 + int(np.searchsorted(cumulated[:, trial].numpy(), u * float(cumulated[-1, trial])))
        chosen.setdefault(min(R, iterations), []).append(trial)
    return chosen
