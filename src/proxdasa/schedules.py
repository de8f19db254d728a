"""Step sizes α_k: functions of the iteration k, counted from 0.

A schedule may depend on the number n of agents and the number K of iterations, which an algorithm does not know; `run`
binds them. Any callable ``k -> number`` works in place of a schedule. A number, here and in the algorithms, is one
for all trials or one per trial (`per_trial`), so that a sweep is one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Number = float | Tensor
"""A parameter: one number for all trials, or one per trial as a tensor ``[trials, 1, 1]``."""
Alpha = Callable[[int], Number]
"""What an algorithm needs of a step size."""


def per_trial(values: Sequence[float]) -> Tensor:
    """One value per trial, shaped ``[trials, 1, 1]`` so that it broadcasts over agents and coordinates.

    With it a sweep is one run: ``ProxDASA(gamma=per_trial([0.01, 0.03, 0.1]), ...)`` with ``trials=3``.
    """
    tensor = torch.as_tensor(values, dtype=torch.float64)  # `run` casts to its own type
    if tensor.ndim != 1 or len(tensor) == 0:
        raise ValueError(f"per_trial takes a plain list of numbers, one per trial; got shape {list(tensor.shape)}")
    return tensor.reshape(-1, 1, 1)


def check_positive(value: Number, name: str) -> Number:
    """The value, if it is a positive number or one per trial; otherwise an error that says so."""
    if isinstance(value, Tensor):
        fine = value.ndim == 3 and bool((value > 0).all())
    else:
        fine = isinstance(value, int | float) and 0 < value < math.inf
    if not fine:
        given = value.flatten().tolist() if isinstance(value, Tensor) else value
        raise ValueError(f"{name} must be a positive number, or per_trial([...]) of positive numbers; got {given!r}")
    return value


def check_alpha(alpha: object) -> None:
    """Refuse a bare number where a step-size schedule belongs."""
    if not callable(alpha):
        raise TypeError(f"alpha must be a schedule, such as schedules.constant({alpha!r}), or a callable k -> number")


@dataclass(frozen=True, eq=False)
class Schedule:
    """A rule (value, k, n, K) → α_k with the value of its one parameter and, once bound, n and K."""

    name: str
    parameter: str
    value: Number
    rule: Callable[[Number, int, int, int], Number]
    agents: int | None = None
    iterations: int | None = None

    def bind(self, agents: int, iterations: int, dtype: torch.dtype) -> Schedule:
        """The schedule of a run with n agents and K iterations."""
        value = self.value.to(dtype) if isinstance(self.value, Tensor) else self.value
        return replace(self, value=value, agents=agents, iterations=iterations)

    def describe(self) -> dict[str, object]:
        """Name and parameter, as a configuration file writes them."""
        value = self.value.flatten().tolist() if isinstance(self.value, Tensor) else self.value
        return {"name": self.name, self.parameter: value}

    def __call__(self, k: int) -> Number:
        """α_k."""
        if self.agents is None or self.iterations is None:
            raise ValueError(f"schedules.{self.name} depends on the run: call .bind(agents, iterations, dtype) first")
        return self.rule(self.value, k, self.agents, self.iterations)


def constant(value: Number) -> Schedule:
    """α_k = value."""
    return Schedule("constant", "value", check_positive(value, "value"), lambda value, _k, _n, _K: value)


def horizon(scale: Number = 1.0) -> Schedule:
    """α_k = min{scale √(n/K), 1}: constant, known once n and K are; the paper's theory and synthetic experiment."""
    return Schedule("horizon", "scale", check_positive(scale, "scale"), lambda scale, _k, n, K: _capped(scale, n / K))


def diminishing(alpha: Number) -> Schedule:
    """α_k = min{alpha √(n/k), 1} with k counted from 1; the paper's experiments on real data."""
    return Schedule(
        "diminishing",
        "alpha",
        check_positive(alpha, "alpha"),
        lambda alpha, k, n, _K: _capped(alpha, n / (k + 1)),
    )


HORIZON = horizon()
"""The default step size: √(n/K)."""

ALL = (constant, horizon, diminishing)


def _capped(scale: Number, ratio: float) -> Number:
    size = scale * math.sqrt(ratio)
    return size.clamp(max=1.0) if isinstance(size, Tensor) else min(size, 1.0)
