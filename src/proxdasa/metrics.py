"""Measures of a run: functions of a `View` that return one number per trial.

Everything is taken at the mean x̄ over agents with exact gradients (over all data, or the evaluation sample of a
streaming problem), never with the run's own samples. Paper: Definition 1, the merit function (Section 4.3) and the
last appendix.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from proxdasa.checks import check_not_negative, check_number, check_positive_number
from proxdasa.contracts import Evaluation, Observer, Regularizer, is_separable
from proxdasa.schedules import Number
from proxdasa.thread_counts import threads

AT_ONCE, SLICE = 2**22, 2**17
"""Temporary tensors of up to ``AT_ONCE`` elements are computed as a whole, larger ones in slices of ``SLICE``."""


class View:
    """A run at one moment; the costly evaluation at x̄ is computed once and shared by all measures.

    Examples:
        >>> largest = metrics.Metric("largest", lambda view: view.x.abs().amax(dim=(1, 2)))
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(
        ...     proxdasa.ProxDASA(gamma=0.5, alpha=0.3), problem, networks.ring(3), iterations=50, metrics=[largest]
        ... )
        >>> f"{result.records[-1]['largest']:.2f}"
        '1.00'
    """

    def __init__(self, engine: Observer, gamma: Number, state: Any, z: Tensor | None = None) -> None:
        self.engine, self.gamma, self.state, self._z = engine, gamma, state, z

    @property
    def x(self) -> Tensor:
        """The agents' iterates ``[trials, agents here, d]``."""
        x: Tensor = self.state.x
        return x

    @property
    def z(self) -> Tensor:
        """The agents' averaged gradients, for methods that declare them (`contracts.Averaging`)."""
        if self._z is None:
            raise ValueError("this method declares no variable that averages gradients (facts.averaging)")
        return self._z

    @cached_property
    def x_mean(self) -> Tensor:
        """The mean x̄ of the iterates ``[trials, 1, d]``."""
        return self.engine.mean(self.x)

    @cached_property
    def z_mean(self) -> Tensor:
        """The mean z̄ of the averaged gradients ``[trials, 1, d]``."""
        return self.engine.mean(self.z)

    @property
    def y(self) -> Tensor:
        """The proximal point ``[trials, 1, d]`` that `Result.solution` gives at the end of a run."""
        return self._proximal_point(*self._means)

    @property
    def _means(self) -> tuple[Tensor, ...]:
        return (self.x_mean,) if self._z is None else (self.x_mean, self.z_mean)

    def _proximal_point(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        return self.engine.prox(x if z is None else x - self.gamma * z, self.gamma)

    def total_of_y(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The sum over coordinates of a function of y, which gives one number per trial."""
        part = lambda *means: function(self._proximal_point(*means))  # noqa: E731
        return add_up(part, *self._means, separable=self.engine.separable)

    @cached_property
    def at_mean(self) -> Evaluation:
        """The loss F(x̄) ``[trials, 1, 1]`` and gradient ∇F(x̄) ``[trials, 1, d]``."""
        return self.whole(self.x_mean)

    def whole(self, point: Tensor, buffers: Tensor | None = None) -> Evaluation:
        """F and ∇F of the whole network at one point ``[trials, 1, d]``.

        Running statistics, if the problem has any, are r̄ unless others ``[trials, 1, s]`` are given.
        """
        local = self.engine.evaluate(point, buffers)
        return Evaluation(self.engine.mean(local.loss.unsqueeze(-1)), self.engine.mean(local.grad))

    def gather(self) -> tuple[Tensor, Tensor | None]:
        """The iterates of all agents ``[trials, n, d]``, and their running statistics if the problem has any."""
        r = self.engine.buffers
        return self.engine.gather(self.x), None if r is None else self.engine.gather(r)

    def mapping(self, x: Tensor, z: Tensor, gamma: Number, regularizer: Regularizer | None = None) -> Tensor:
        """The proximal gradient mapping G(x, z, γ) = (x − prox_γ(x − γ z)) / γ, of the run's Ψ or another one."""
        return (x - (regularizer or self.engine).prox(x - gamma * z, gamma)) / gamma

    @cached_property
    def x_spread(self) -> Tensor:
        """The consensus error (1/n) Σ_i ‖x_i − x̄‖² ``[trials]``."""
        return self.spread(self.x, self.x_mean)

    def mapping_norm(self, z: Tensor, gamma: Number, regularizer: Regularizer | None = None) -> Tensor:
        """‖G(x̄, z, γ)‖² ``[trials]``."""
        separable = self.engine.separable if regularizer is None else is_separable(regularizer)
        squares = lambda x, z: _squared_norm(self.mapping(x, z, gamma, regularizer))  # noqa: E731
        return add_up(squares, self.x_mean, z, separable=separable)

    def spread(self, x: Tensor, mean: Tensor) -> Tensor:
        """The mean squared distance from the mean, (1/n) Σ_i ‖x_i − x̄‖² ``[trials]``."""
        # A few agents at a time if rows are long, because the differences of all agents take as much memory as x.
        count = max(1, AT_ONCE // (x.shape[0] * x.shape[-1]))
        squares = lambda rows, mean: (rows - mean).square_().sum(-1, keepdim=True)  # noqa: E731
        each = [add_up(squares, rows, mean) for rows in torch.split(x, count, dim=-2)]
        return self.engine.mean(torch.cat(each, dim=-2)).flatten()


def add_up(function: Callable[..., Tensor], *vectors: Tensor, separable: bool = True) -> Tensor:
    """The sum over slices of coordinates of a function of vectors ``[trials, any, d]``; one slice unless they are long.

    The function must be a sum over coordinates; if it is not ``separable``, it is called with all of them.
    """
    # Slices must not depend on how many agents are here: sums would then be rounded differently in other processes.
    trials, _, d = vectors[0].shape
    if trials * d <= AT_ONCE or not separable:
        return function(*vectors)
    slices = zip(*(torch.split(each, max(1, SLICE // trials), dim=-1) for each in vectors), strict=True)
    with threads(1):  # a slice stays in the cache of one core; sharing it among several would take longer
        return functools.reduce(torch.add, itertools.starmap(function, slices))


@dataclass(frozen=True)
class Metric:
    """A named measure: ``of`` maps a `View` to a tensor ``[trials]``.

    ``needs_z`` marks measures of methods that declare an averaged gradient.

    Examples:
        >>> distance = metrics.Metric("distance", lambda view: (view.x_mean - 1).norm(dim=-1).flatten())
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(
        ...     proxdasa.ProxDASA(gamma=0.5, alpha=0.3), problem, networks.ring(3), iterations=50, metrics=[distance]
        ... )
        >>> result.records[-1]["distance"] < 1e-3
        True
    """

    name: str
    of: Callable[[View], Tensor]
    needs_z: bool = False
    parameters: Mapping[str, object] = field(default_factory=dict)

    def describe(self) -> object:
        """The name, with the parameters if it has any, as a configuration file writes it."""
        return {"name": self.name, **self.parameters} if self.parameters else self.name


def _squared_norm(vector: Tensor) -> Tensor:
    return _sum(vector.square())


def _sum(vector: Tensor) -> Tensor:
    return vector.sum(dim=(-2, -1))


def _loss(view: View) -> Tensor:
    return view.at_mean.loss.flatten()


def _objective(view: View) -> Tensor:
    return _loss(view) + add_up(view.engine.value, view.x_mean, separable=view.engine.separable).flatten()


def _stationarity(view: View) -> Tensor:
    return view.mapping_norm(view.at_mean.grad, view.gamma)


def _consensus(view: View) -> Tensor:
    return view.x_spread


def _density(view: View) -> Tensor:
    return add_up(lambda x: _sum((x.abs() > 1e-6).to(x.dtype)), view.x_mean) / view.x.shape[-1]


def _solution_density(view: View) -> Tensor:
    return view.total_of_y(lambda y: _sum((y != 0).to(y.dtype))) / view.x.shape[-1]


def _dual_gap(view: View) -> Tensor:
    return add_up(lambda z, grad: _squared_norm(z - grad), view.z_mean, view.at_mean.grad)


def _z_consensus(view: View) -> Tensor:
    return view.spread(view.z, view.z_mean)


def _certificate(view: View) -> Tensor:
    return view.mapping_norm(view.z_mean, view.gamma)


def _lowest_accuracy(view: View) -> Tensor:
    agents, r = view.gather()
    scores = view.engine.scores(agents.flatten(0, 1), None if r is None else r.flatten(0, 1))
    if "accuracy" not in scores:
        raise ValueError("lowest_accuracy needs a problem with test examples and classes")
    return scores["accuracy"].view(agents.shape[:2]).amin(1)


def _edge_consensus(view: View) -> Tensor:
    x = view.x - view.x_mean  # centred first: the sum below subtracts nearly equal numbers
    laplacian = view.engine.degrees * x - view.engine.observe_neighbours(x)
    return view.engine.n * view.engine.mean((x * laplacian).sum(-1, keepdim=True)).flatten()


loss = Metric("loss", _loss)
"""F(x̄)."""
objective = Metric("objective", _objective)
"""F(x̄) + Ψ(x̄)."""
stationarity = Metric("stationarity", _stationarity)
"""‖G(x̄, ∇F(x̄), γ)‖²."""
consensus = Metric("consensus", _consensus)
"""(1/n) ‖X − X̄‖²; the consensus error of Definition 1 is L² times this, and a run does not know L = L_∇F."""
density = Metric("density", _density)
"""The share of coordinates with |x̄_j| > 1e-6: nearly always 1 before a run has converged, since x̄ is an average."""
solution_density = Metric("solution_density", _solution_density)
"""The share of nonzeros in y, the proximal point that is the run's answer (`Result.solution`, `Result.density`)."""
dual_gap = Metric("dual_gap", _dual_gap, needs_z=True)
"""‖z̄ − ∇F(x̄)‖²."""
z_consensus = Metric("z_consensus", _z_consensus, needs_z=True)
"""(1/n) ‖Z − Z̄‖²."""
certificate = Metric("certificate", _certificate, needs_z=True)
"""‖G(x̄, z̄, γ)‖², the stationarity that agents can compute without ∇F (remark "Dual convergence")."""
edge_consensus = Metric("edge_consensus", _edge_consensus)
"""SPPDM's g_W = Σ_{i~j, i<j} ‖x_i − x_j‖²."""
lowest_accuracy = Metric("lowest_accuracy", _lowest_accuracy)
"""The lowest test accuracy of any agent's own x_i; takes n evaluations on test data."""


def table_stationarity(regularizer: Regularizer | None = None) -> Metric:
    """‖G(x̄, ∇F(x̄), 1)‖² + ‖X − X̄‖², the "stationarity" of the paper's table (γ = 1, consensus not divided by n).

    Ψ is that of the run, or ``regularizer`` if it is given.

    Examples:
        >>> metrics.table_stationarity().describe()
        'table_stationarity'
        >>> metrics.table_stationarity(regularizers.L1(0.1)).parameters
        {'regularizer': L1(weight=0.1)}
    """

    def of(view: View) -> Tensor:
        return view.mapping_norm(view.at_mean.grad, 1.0, regularizer) + view.engine.n * view.x_spread

    return Metric("table_stationarity", of, parameters={} if regularizer is None else {"regularizer": regularizer})


def per_agent(lipschitz: float) -> Metric:
    """The earlier papers' mean_i ‖G(x_i, ∇F(x_i), γ)‖² + L² ‖x_i − x̄‖²; takes n evaluations, so not in `STANDARD`.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(
        ...     proxdasa.ProxDASA(gamma=0.5, alpha=0.3),
        ...     problem,
        ...     networks.ring(3),
        ...     iterations=60,
        ...     metrics=[metrics.per_agent(lipschitz=1.0)],
        ... )
        >>> result.records[-1]["per_agent"] < 1e-6
        True
    """
    check_not_negative(lipschitz, "lipschitz")

    def of(view: View) -> Tensor:
        points, r = view.gather()
        mappings = []
        for agent, point in enumerate(torch.split(points, 1, dim=-2)):
            own = None if r is None else r[:, agent : agent + 1]
            mappings.append(_squared_norm(view.mapping(point, view.whole(point, own).grad, view.gamma)))
        total = sum(mappings[1:], start=mappings[0])
        return total / len(mappings) + lipschitz**2 * view.x_spread

    return Metric("per_agent", of, parameters={"lipschitz": lipschitz})


def merit(lipschitz: float, optimum: float = 0.0) -> Metric:
    """The merit function of the proof, W(x̄, z̄) = Φ(x̄) − Φ* + Ψ(x̄) − η(x̄, z̄) + λ ‖∇F(x̄) − z̄‖².

    η(x, z) = min_y ⟨z, y − x⟩ + ‖y − x‖²/(2γ) + Ψ(y), and λ = 1/(8 γ L²) as in the appendix.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> result = proxdasa.run(
        ...     proxdasa.ProxDASA(gamma=0.5, alpha=0.3),
        ...     problem,
        ...     networks.ring(3),
        ...     iterations=50,
        ...     metrics=[metrics.merit(lipschitz=1.0, optimum=-1.0)],
        ... )
        >>> f"{result.records[0]['merit']:.2f}", result.records[-1]["merit"] < 1e-5
        ('1.50', True)
    """
    check_positive_number(lipschitz, "lipschitz")
    check_number(optimum, "optimum")

    def of(view: View) -> Tensor:
        γ, x, z, value = view.gamma, view.x_mean, view.z_mean, view.engine.value
        y = view.y
        move = y - x
        η = ((z * move + move.square() / (2 * γ)).sum(-1) + value(y)).flatten()
        λ = (1 / (8 * γ * lipschitz**2) * view.x.new_ones(1)).flatten()
        return _objective(view) - optimum + value(x).flatten() - η + λ * _dual_gap(view)

    return Metric("merit", of, needs_z=True, parameters={"lipschitz": lipschitz, "optimum": optimum})


STANDARD = (
    loss, objective, stationarity, consensus, table_stationarity(), density, solution_density, dual_gap, z_consensus,
    certificate,
)  # fmt: skip
"""What `run` records by default; measures that need a z are left out for methods without one."""
ALL = (
    loss, objective, stationarity, consensus, table_stationarity, density, solution_density, dual_gap, z_consensus,
    certificate, edge_consensus, lowest_accuracy, per_agent, merit,
)  # fmt: skip
