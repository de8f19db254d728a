"""Checks of a run's settings against each other, before anything is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from proxdasa import caller_warnings
from proxdasa import metrics as measures
from proxdasa.checks import check_count, check_seed
from proxdasa.conditions import Condition, TrackerWarning, Weather
from proxdasa.conditions.weather import longest_delay
from proxdasa.contracts import Algorithm, Compression, Mixing, Problem, Regularizer, parameters_of, running_of
from proxdasa.data.per_agent_files import PerAgent
from proxdasa.metrics import Metric
from proxdasa.mixing.mixing_checks import check_mixing
from proxdasa.networks import Network
from proxdasa.regularizers import Zero
from proxdasa.runs.results import SOLUTION
from proxdasa.runs.stopping import Stationary

MOST_ITERATIONS = 10**12
"""More iterations would take years, and reports do not read larger numbers."""
ROUNDING = 1e-9
"""The smallest eigenvalue of an even ring is −1/3 only up to rounding."""


def check_kinds(settings: Any) -> None:
    """Refuse a setting that is not the kind of object it should be."""
    kinds = {
        "algorithm": (dataclasses.is_dataclass, "a method that is a dataclass, such as ProxDASA(gamma=0.01)"),
        "problem": (lambda given: callable(getattr(given, "evaluate", None)), "a problem, such as Quadratic(A, b)"),
        "network": (lambda given: isinstance(given, Network), "a network, such as networks.ring(8)"),
        "regularizer": (lambda given: callable(getattr(given, "prox", None)), "a regularizer, such as L1(0.01)"),
        "mixing": (lambda given: callable(getattr(given, "rounds_for", None)), "a mixing, such as Gossip(1)"),
        "metrics": (
            lambda given: isinstance(given, Sequence) and all(isinstance(each, Metric) for each in given),
            "a list of proxdasa.metrics",
        ),
        "stop": (lambda given: given is None or isinstance(given, Stationary), "a rule, such as Stationary(1e-4)"),
        "random_iterate": (lambda given: isinstance(given, bool), "True or False"),
        "exact": (lambda given: isinstance(given, bool), "True or False"),
        "note": (lambda given: given is None or isinstance(given, str), "a text"),
        "compile": (lambda given: given is True or given is False or given == "auto", 'True, False or "auto"'),
        "dtype": (lambda given: given in (None, torch.float32, torch.float64), "torch.float32 or torch.float64"),
    }
    for name, (fits, expected) in kinds.items():
        given = getattr(settings, name)
        if isinstance(given, type) or not fits(given):
            raise TypeError(f"{name} must be {expected}; got {given!r}")


def check_counts(settings: Any) -> None:
    """Refuse invalid numbers of iterations and trials, and invalid seeds."""
    check_count(settings.iterations, "iterations")
    if settings.iterations > MOST_ITERATIONS:
        raise ValueError(f"iterations must be at most {MOST_ITERATIONS:,}; got {settings.iterations:,}")
    check_count(settings.trials, "trials")
    check_seed(settings.seed)


def check_problem(problem: Any) -> None:
    """Refuse numbers of half precision, and files that are named for more or fewer agents than there are."""
    if problem.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"problem: its numbers are {problem.dtype}, too coarse to add up small steps; choose float32 or float64, "
            "for example by dtype=torch.float32"
        )
    data = getattr(problem, "data", None)
    if isinstance(data, PerAgent) and data.names is not None and len(data.names) != problem.agents:
        raise ValueError(
            f"problem: the data have names of {len(data.names)} agents ({', '.join(data.names)}), but there are "
            f"{problem.agents}; give as many agents as names"
        )


def check_use_of_device(setup: Any) -> None:
    """Refuse settings that a device other than the CPU does not support."""
    device, problem = setup.device, setup.problem
    if device == "cpu":
        return
    if setup.exact:
        raise ValueError(
            f'exact and device = "{device}" exclude each other: the order of sums is known on the CPU only; leave one '
            "of them out"
        )
    if device == "mps" and problem.dtype == torch.float64:
        raise ValueError('device = "mps" has no float64, the type of this problem; give dtype = "float32" as well')
    if not callable(getattr(problem, "to_device", None)):
        raise ValueError(
            f"device: {type(problem).__name__} has no method to_device, which moves its data there "
            '(contracts.Problem); write one, or use device = "cpu"'
        )


def check_processes(device: str) -> None:
    """Refuse agents in several processes on a device other than the CPU."""
    if device != "cpu":
        raise ValueError(
            f'processes exchange rows of the CPU, but device = "{device}" is for runs in one process; leave one of '
            "them out"
        )


def check_method(
    algorithm: Algorithm, network: Network, regularizer: Regularizer, mixing: Mixing, metrics: Sequence[Metric]
) -> None:
    """Refuse settings that the method's theory excludes but the method itself cannot check."""
    method = algorithm.facts
    check_mixing(mixing, network)
    if SOLUTION in algorithm.State._fields:
        raise ValueError(f"{method.title}: no variable may be called {SOLUTION}, the name of the result; rename it")
    _check_averaging(algorithm, metrics)
    if not method.composite and not isinstance(regularizer, Zero):
        raise ValueError(
            f"{method.title} is for Ψ = 0 only, but the regularizer is {type(regularizer).__name__}; "
            "leave it out, or choose a proximal method"
        )
    if method.eigenvalues_above > -1 and network.rounds:
        raise ValueError(
            f"{method.title} needs eigenvalues of mixing above {method.eigenvalues_above:.4g}, but {network.label} has "
            "a different matrix in each round; choose a network that does not change"
        )
    rests = getattr(mixing, "rests", None)
    if method.eigenvalues_above > -1 and rests and any(map(rests, range(100))):
        raise ValueError(
            f"{method.title} needs eigenvalues of mixing above {method.eigenvalues_above:.4g} in every iteration, and "
            f"may diverge if some do not mix, as with {mixing}; leave that out, or choose another method"
        )
    if method.eigenvalues_above > -1:
        # Mixing is a polynomial in W, so applied to numbers λ instead of W it gives its own eigenvalues. Between two
        # eigenvalues of W it may dip below both, and only the ends of the spectrum are known: try the whole range.
        λ = torch.linspace(network.smallest_eigenvalue, 1.0, 1001, dtype=torch.float64)
        least = float(mixing(lambda x: λ * x, torch.ones_like(λ), network.rho).min())
        if least <= method.eigenvalues_above + ROUNDING:
            raise ValueError(
                f"{method.title} needs eigenvalues of mixing above {method.eigenvalues_above:.4g}, but those of "
                f"{mixing} on the network {network.label} reach down to {least:.4g}; an even number of "
                "gossip rounds has none below 0"
            )


def check_conditions(conditions: Sequence[Condition], network: Network, mixing: Mixing) -> None:
    """Refuse objects that are not conditions, and mixings that need the same W in every round."""
    listed = isinstance(conditions, Sequence) and not any(isinstance(each, type) for each in conditions)
    if not listed or not all(callable(getattr(each, "begin", None)) for each in conditions):
        raise TypeError(f"conditions must be a list of proxdasa.conditions, such as LinkLoss(0.1); got {conditions!r}")
    if not conditions and not network.rounds:
        return
    Weather(conditions, network, trials=1, seed=0)  # refuses agents that do not exist
    cause = "conditions" if conditions else f"the network {network.label}"
    if not getattr(mixing, "varies", False) and mixing.rounds_for(network.rho) > 1:
        raise ValueError(f"{mixing} is a polynomial of one W, but with {cause} W differs by round; choose Gossip")
    if longest_delay(conditions) and (rounds := mixing.rounds_for(network.rho)) > 1:
        raise ValueError(
            f"messages that are late and {rounds} rounds of mixing exclude each other: a round mixes what the last one "
            f"has left, which a late message does not contain; choose Gossip(1) instead of {mixing}"
        )


def warn_of_delays(conditions: Sequence[Condition], algorithm: Algorithm) -> None:
    """Warn if messages are late and the method relies on means over agents, which they change permanently."""
    facts = algorithm.facts
    if not longest_delay(conditions) or not (facts.tracking or facts.keeps_errors):
        return
    if facts.tracking:
        tracker, tracked = facts.tracking
        why = (
            f"has a tracker, {tracker}, and messages that are late change its mean, which then differs from that of "
            f"{tracked} forever"
        )
    else:
        why = (
            "adds up differences between neighbours from the first iteration on, and messages that are late change "
            "their mean over agents, which should be 0, forever"
        )
    caller_warnings.warn(
        f"{facts.title} {why}: the method will end away from the solution. Methods that forget such errors, such as "
        "Prox-DASA, are not affected",
        TrackerWarning,
    )


def check_compression(
    algorithm: Algorithm,
    mixing: Mixing,
    conditions: Sequence[Condition],
    network: Network,
) -> None:
    """Refuse compressed messages where copies would differ between neighbours, or where nothing is compressed."""
    compression: Compression | None = getattr(mixing, "compression", None)
    if compression is None:
        return
    method, steps = algorithm.facts, getattr(compression, "steps", ())
    if not method.mixes:
        what = f"{method.title} sends its vectors without mixing"
        raise ValueError(f"{what}, so {mixing} would compress nothing; leave it out")
    if len(steps) > 1 and len(steps) != method.vectors:
        raise ValueError(
            f"{mixing} has {len(steps)} steps, but a step of {method.title} mixes {method.vectors} "
            f"{'vectors' if method.vectors > 1 else 'vector'}; give one for each, or a single one for all"
        )
    if conditions:
        raise ValueError(
            f"{mixing} and conditions exclude each other: after a lost message neighbours would hold different copies; "
            "choose Gossip"
        )
    if network.rounds:
        raise ValueError(
            f"{mixing} needs the same neighbours in all rounds, but those of {network.label} change; choose Gossip, "
            "or a network that does not change"
        )


def check_buffers(
    problem: Problem,
    algorithm: Algorithm,
    network: Network,
    mixing: Mixing,
    conditions: Sequence[Condition],
    random_iterate: bool,
) -> None:
    """Refuse running statistics where they would not be updated, or could not be averaged with the neighbours'."""
    running = running_of(problem)
    if running is None:
        return
    if random_iterate:
        raise ValueError("random_iterate and running statistics exclude each other: those of x^R would not be kept")
    if not running.mixed_buffers:
        return
    why = ""
    if not algorithm.facts.mixes:
        why = f"{algorithm.facts.title} sums over neighbours and averages nothing; choose another method"
    elif getattr(mixing, "compression", None) is not None:
        why = f"{mixing} compresses what agents send, and a compressed variance may be negative; choose Gossip"
    elif not getattr(mixing, "varies", False) and mixing.rounds_for(network.rho) > 1:
        why = f"{mixing} may have negative weights, and so give a negative variance; choose Gossip"
    elif any(condition.concerns == "messages" for condition in conditions):
        why = "noise in messages may make a variance negative; leave it out"
    if why:
        raise ValueError(f'buffers="average" is not possible: {why}, or buffers="local"')


def _check_averaging(algorithm: Algorithm, metrics: Sequence[Metric]) -> None:
    method = algorithm.facts
    if method.averaging is None:
        # The standard measures are a default, of which each method records those it can. A measure that was asked for
        # by name is not dropped silently.
        standard = {metric.name for metric in measures.STANDARD if metric.needs_z}
        asked = [metric.name for metric in metrics if metric.needs_z]
        if refused := [name for name in asked if not standard <= set(asked) or name not in standard]:
            raise ValueError(f"metrics: {refused[0]} needs averaged gradients, and {method.title} declares none")
        return
    names = (*algorithm.State._fields, *parameters_of(algorithm))
    if missing := [name for name in method.averaging if name not in names]:
        raise ValueError(f"{method.title} declares that it averages by {missing[0]}, but has no such name")
