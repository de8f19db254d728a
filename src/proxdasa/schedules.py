"""Step sizes α_k: functions of the iteration k, counted from 0.

A schedule may depend on the number n of agents and the number K of iterations, which an algorithm does not know; `run`
binds them. Any callable ``k -> number`` works in place of a schedule, and a number is `constant`. A number, here and in
the algorithms, is one for all trials or one per trial (`per_trial`), so that a sweep is one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from proxdasa.checks import check_positive, invalid

Number = float | Tensor
"""A parameter: one number for all trials, or one per trial as a tensor ``[trials, 1, 1]``."""
Alpha = Callable[[int], Number]
"""A step size: a function from the iteration k, counted from 0, to a number."""


def is_annotated(annotation: object, kind: object, name: str) -> bool:
    """Whether an annotation is this type, perhaps as the text that ``from __future__ import annotations`` leaves."""
    return bool(annotation == kind) or (isinstance(annotation, str) and annotation.rpartition(".")[2] == name)


def per_trial(values: Sequence[float]) -> Tensor:
    """One value per trial, shaped ``[trials, 1, 1]`` so that it broadcasts over agents and coordinates.

    With it a sweep is one run: ``ProxDASA(gamma=per_trial([0.01, 0.03, 0.1]), ...)`` with ``trials=3``.

    Examples:
        >>> proxdasa.per_trial([0.01, 0.03, 0.1]).shape
        torch.Size([3, 1, 1])
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> method = proxdasa.DPSGD(gamma=proxdasa.per_trial([0.01, 0.03, 0.1]))
        >>> result = proxdasa.run(method, problem, networks.ring(3), iterations=50, trials=3)
        >>> [f"{row['loss']:.2f}" for row in result.last]
        ['-0.63', '-0.95', '-1.00']
    """
    tensor = torch.as_tensor(values, dtype=torch.float64)  # `run` casts to its own type
    if tensor.ndim != 1 or len(tensor) == 0:
        raise ValueError(f"per_trial takes a plain list of numbers, one per trial; got shape {list(tensor.shape)}")
    return tensor.reshape(-1, 1, 1)


@dataclass(frozen=True, eq=False)
class Schedule:
    """A rule (k, n, K, parameters) → α_k with the values of its parameters and, once bound, n and K.

    Examples:
        >>> schedule = schedules.diminishing(0.5)
        >>> schedule.describe(), schedule.needs
        ({'name': 'diminishing', 'alpha': 0.5}, ('agents',))
        >>> schedule.bind(agents=4, iterations=None, dtype=torch.float32)(99)
        0.1
    """

    name: str
    parameters: Mapping[str, Number]
    rule: Callable[..., Number]
    needs: Sequence[str] = ("agents", "iterations")
    """Which of n and K the rule uses; a rule that uses neither can be called before `bind`."""
    agents: int | None = None
    iterations: int | None = None

    @property
    def own(self) -> bool:
        """Whether the rule is a user's own, whose values are checked when it is called."""
        return getattr(self.rule, "__module__", None) != __name__

    def bind(self, agents: int, iterations: int | None, dtype: torch.dtype) -> Schedule:
        """The schedule of a run with n agents and K iterations; K may be None if the rule does not use it."""
        cast = {k: v.to(dtype) if isinstance(v, Tensor) else v for k, v in self.parameters.items()}
        return replace(self, parameters=cast, agents=agents, iterations=iterations)

    def describe(self) -> dict[str, object]:
        """Name and parameters, as a configuration file writes them."""
        plain = {k: v.flatten().tolist() if isinstance(v, Tensor) else v for k, v in self.parameters.items()}
        return {"name": self.name, **plain}

    def __call__(self, k: int) -> Number:
        """The step size α_k."""
        if missing := [name for name in self.needs if getattr(self, name) is None]:
            raise ValueError(
                f"schedules.{self.name} depends on the run's {' and '.join(missing)}: "
                "call .bind(agents, iterations, dtype) first"
            )
        return self.rule(k, self.agents, self.iterations, **self.parameters)


def as_schedule(value: Alpha | Number, name: str) -> Alpha:
    """The value, if it is a schedule or another callable k -> number; a number, or one per trial, as `constant`.

    Examples:
        >>> schedules.as_schedule(0.1, "alpha")(5)
        0.1
        >>> schedules.as_schedule(lambda k: 1 / (k + 1), "alpha")(4)
        0.2
    """
    if isinstance(value, int | float | Tensor):
        return constant(check_positive(value, name))
    if not callable(value) or isinstance(value, type):
        wanted = "a positive number, per_trial([...]), one of proxdasa.schedules or a callable k -> number"
        raise invalid(name, wanted, value)
    return value


def _schedule(name: str, needs: Sequence[str], rule: Callable[..., Number], **parameters: Number) -> Schedule:
    return Schedule(name, {key: check_positive(value, key) for key, value in parameters.items()}, rule, needs)


def constant(value: Number) -> Schedule:
    """The constant step size α_k = value.

    Examples:
        >>> schedules.constant(0.1)(7)
        0.1
    """
    return _schedule("constant", (), lambda _k, _n, _K, value: value, value=value)


def horizon(scale: Number = 1.0) -> Schedule:
    """α_k = min{scale √(n/K), 1}: constant, as in the paper's theory and synthetic experiment.

    Examples:
        >>> alpha = schedules.horizon().bind(agents=4, iterations=400, dtype=torch.float32)
        >>> alpha(0), alpha(399)
        (0.1, 0.1)
    """
    return _schedule("horizon", ("agents", "iterations"), lambda _k, n, K, scale: _cap(scale, n / K), scale=scale)


def diminishing(alpha: Number) -> Schedule:
    """α_k = min{alpha √(n/k), 1} with k counted from 1; as in the paper's experiments on real data.

    Examples:
        >>> alpha = schedules.diminishing(0.5).bind(agents=4, iterations=None, dtype=torch.float32)
        >>> alpha(0), alpha(15), alpha(99)
        (1.0, 0.25, 0.1)
    """
    return _schedule("diminishing", ("agents",), lambda k, n, _K, alpha: _cap(alpha, n / (k + 1)), alpha=alpha)


def uncapped(alpha: Number) -> Schedule:
    """α_k = alpha min{√(n/k), 1} with k counted from 1; as in the authors' script of Prox-DASA-GT.

    Examples:
        >>> alpha = schedules.uncapped(0.5).bind(agents=4, iterations=None, dtype=torch.float32)
        >>> alpha(0), alpha(15), alpha(99)
        (0.5, 0.25, 0.1)
    """
    return _schedule(
        "uncapped", ("agents",), lambda k, n, _K, alpha: alpha * min(math.sqrt(n / (k + 1)), 1.0), alpha=alpha
    )


def cube_root(a: Number, k0: Number = 1.0) -> Schedule:
    """α_k = a / (k + k₀)^{1/3}, the diminishing steps of DEEPSTORM; not capped, since they scale proximal steps.

    Examples:
        >>> alpha = schedules.cube_root(0.5)
        >>> f"{alpha(0):.3f}, {alpha(7):.3f}"
        '0.500, 0.250'
    """
    return _schedule("cube_root", (), lambda k, _n, _K, a, k0: a / (k + k0) ** (1 / 3), a=a, k0=k0)


def cube_root_horizon(a: Number) -> Schedule:
    """α_k = a / K^{1/3}: constant, DEEPSTORM's other rule.

    Examples:
        >>> alpha = schedules.cube_root_horizon(0.5).bind(agents=4, iterations=1000, dtype=torch.float32)
        >>> f"{alpha(0):.3f}"
        '0.050'
    """
    return _schedule("cube_root_horizon", ("iterations",), lambda _k, _n, K, a: a / K ** (1 / 3), a=a)


def nesterov() -> Schedule:
    """η_k = (θ_k − 1) / θ_{k+1} with θ₀ = 1 and θ_{k+1} = (1 + √(1 + 4 θ_k²)) / 2: Nesterov's momentum, from 0 to 1.

    Examples:
        >>> [f"{schedules.nesterov()(k):.2f}" for k in (0, 1, 10, 100)]
        ['0.00', '0.28', '0.78', '0.97']
    """
    return _schedule("nesterov", (), lambda k, _n, _K: (_theta(k) - 1) / _theta(k + 1))


HORIZON = horizon()
"""The default step size: √(n/K)."""

ALL = (constant, horizon, diminishing, uncapped, cube_root, cube_root_horizon, nesterov)

_THETAS = [1.0]  # θ_0, θ_1, … computed so far, so that the recursion runs once, whatever the order of k


def _theta(k: int) -> float:
    while (known := len(_THETAS)) <= k:
        # Another thread may have put it there already; appending would then repeat it.
        _THETAS[known : known + 1] = [(1 + math.sqrt(1 + 4 * _THETAS[known - 1] ** 2)) / 2]
    return _THETAS[k]


def _cap(scale: Number, ratio: float) -> Number:
    size = scale * math.sqrt(ratio)
    return size.clamp(max=1.0) if isinstance(size, Tensor) else min(size, 1.0)
