"""An algorithm made ready for one run: schedules bound to n and K, numbers in the run's type, x^R drawn."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxdasa import samples
from proxdasa.checks import InvalidArgumentError, check_finite, check_not_negative, invalid
from proxdasa.contracts import Algorithm, parameters_of, replace_unchecked
from proxdasa.descriptions import describe
from proxdasa.devices import CPU
from proxdasa.regularizers.penalty_weights import weights_within
from proxdasa.schedules import Alpha, Number, Schedule


def bind(
    algorithm: Algorithm, n: int, iterations: int, trials: int, dtype: torch.dtype, device: torch.device = CPU
) -> Algorithm:
    """The algorithm with its schedules bound to n and K, and its per-trial parameters in the run's type."""
    changes: dict[str, Any] = {}
    for name, value in parameters_of(algorithm).items():
        for given in value.parameters.values() if isinstance(value, Schedule) else (value,):
            _check_range(name, given, trials, dtype)
        if isinstance(value, Schedule):
            schedule = value.bind(n, iterations, dtype)
            changes[name] = _convert_values(schedule, name, trials, dtype) if value.own else schedule
        elif isinstance(value, Tensor):
            changes[name] = value.to(dtype)
        elif callable(value):
            changes[name] = _convert_values(value, name, trials, dtype)
    bound: Algorithm = dataclasses.replace(algorithm, **changes)  # type: ignore[type-var]
    return bound if device == CPU else _move(bound, device)


def as_rows(x0: Any, dtype: torch.dtype) -> Tensor:
    """A starting point as a tensor of the run's type; a list is not rounded to another type on the way."""
    try:
        rows = torch.as_tensor(x0) if isinstance(x0, Tensor | np.ndarray) else torch.as_tensor(x0, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"x0 must be a tensor, or a list of numbers: {error}") from None
    if rows.is_complex():
        raise InvalidArgumentError(f"x0 must be real; got {describe(rows.dtype)}")
    return rows.to(dtype)


def _move(bound: Algorithm, device: torch.device) -> Algorithm:
    """The algorithm with its per-trial parameters on a device; they were checked on the host."""
    return replace_unchecked(bound, {name: _move_value(value, device) for name, value in parameters_of(bound).items()})


def _move_value(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Schedule):
        given = {name: _move_value(number, device) for name, number in value.parameters.items()}
        return dataclasses.replace(value, parameters=given)
    return (lambda k: _move_value(value(k), device)) if callable(value) else value


def check_trial_weights(thing: Any, name: str, trials: int, dtype: torch.dtype) -> None:
    """Refuse weights per trial of a regularizer, or of another object that has one, that do not fit the run."""
    for path, weight in weights_within(thing, name):
        _check_range(path, weight.tensor, trials, dtype)


def draw_random_iterates(algorithm: Algorithm, iterations: int, trials: int, seed: int) -> dict[int, list[int]]:
    """For each iterate, the trials whose x^R it is. R is drawn before the run begins, so only these iterates are kept.

    P(R = k) ∝ α_k for k = 1..K; uniform for methods that average no gradients.
    """
    averaging = algorithm.facts.averaging
    α = averaging.alpha(algorithm) if averaging else (lambda _k: 1.0)
    weights = torch.stack([torch.as_tensor(α(k)).flatten() for k in range(1, iterations + 1)])
    cumulated = weights.cpu().to(torch.float64).cumsum(0).expand(iterations, trials)
    chosen: dict[int, list[int]] = {}
    for trial in range(trials):
        u = float(samples.uniforms(samples.words(seed, samples.RANDOM_ITERATE, trial, 0, 1)))
        R = 1 + int(np.searchsorted(cumulated[:, trial].numpy(), u * float(cumulated[-1, trial])))
        chosen.setdefault(min(R, iterations), []).append(trial)
    return chosen


def _check_range(name: str, value: Any, trials: int, dtype: torch.dtype) -> None:
    if isinstance(value, Tensor) and len(value) != trials:
        raise ValueError(f"{name} has {len(value)} per-trial values, but the run has {trials} trials")
    largest = float(value.max()) if isinstance(value, Tensor) else value
    if isinstance(largest, float) and largest > torch.finfo(dtype).max:
        raise ValueError(f"{name} = {largest:g} is too large for {describe(dtype)}")


def _convert_values(schedule: Alpha, name: str, trials: int, dtype: torch.dtype) -> Alpha:
    """A user's own function as a schedule whose values have the run's type.

    Values may be 0, as in a step that only mixes, but not negative: such a step goes uphill, and may still converge.
    """

    def convert(k: int) -> Number:
        value = schedule(k)
        if not isinstance(value, Tensor):
            return check_not_negative(value, f"{name}({k})")
        if value.shape != (trials, 1, 1):
            raise ValueError(f"{name}({k}) must be a number or per_trial([...]) of {trials} numbers; got {value!r}")
        check_finite(value, f"{name}({k})")
        if bool((value < 0).any()):
            raise invalid(f"{name}({k})", "at least 0 in every trial", value.flatten().tolist())
        return value.to(dtype)

    return convert
