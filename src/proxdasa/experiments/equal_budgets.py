"""Equal budgets for all methods: the number of settings to try, and of gradients to evaluate or messages to send.

An agent evaluates g(k) sample gradients in k iterations, including those of its start. A full gradient counts as one
sample gradient for each sample of a pass over the agent's data. With a budget of G gradients a method makes

    K = max { k : g(k) ≤ G }

iterations, both in the search for its settings and in its runs; likewise with a budget of rounds, or of vectors that an
agent sends to each neighbour. All are counted on a stand-in for the agents that computes nothing, so the counts include
batches, restarts and snapshots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from proxdasa.contracts import unpack
from proxdasa.runs.setup import Setup
from proxdasa.tuning import Search, Setting, Tuning, choose

LOOKS = 4
"""Observations of a search after its start. Settings are ranked by the last; each may take longer than many
iterations."""
IDLE = 1_000
"""After this many iterations in a row that spend nothing, a method is assumed never to spend anything."""


class _Counting:
    """Agents that compute nothing, but count the operations that a method asks for."""

    def __init__(self, setup: Setup) -> None:
        self.spent = {"gradients": 0.0, "rounds": 0.0, "vectors": 0.0}
        self.degrees = torch.ones(2, 1)
        self._epoch, self._rounds = setup.problem.epoch, setup.mixing.rounds_for(setup.network.rho)
        self._rests_in: Callable[[int], bool] | None = getattr(setup.mixing, "rests", None)
        self._rests = False

    def enter(self, k: int) -> None:
        """Begin iteration k."""
        self._rests = self._rests_in is not None and self._rests_in(k)

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:  # noqa: ARG002 - methods may call them by name
        self.spent["gradients"] += 1
        return torch.zeros_like(x)

    def full_grad(self, x: Tensor) -> Tensor:
        self.spent["gradients"] += self._epoch
        return torch.zeros_like(x)

    def prox(self, x: Tensor, gamma: Any) -> Tensor:  # noqa: ARG002
        return x

    def mix(self, *tensors: Tensor) -> Any:
        self._send(self._rounds, len(tensors))
        return unpack(tensors)

    def neighbour_sum(self, x: Tensor) -> Tensor:
        self._send(1, 1)
        return x

    def _send(self, rounds: int, vectors: int) -> None:
        if not self._rests:
            self.spent["rounds"] += rounds
            self.spent["vectors"] += rounds * vectors


def affordable(setup: Setup, budget: int, axis: str = "gradients") -> int:
    """The most iterations in which an agent stays within the budget of ``gradients``, ``rounds`` or ``vectors``."""
    agents = _Counting(setup)
    method = dataclasses.replace(setup, iterations=budget, device="cpu").bound()
    title = setup.algorithm.facts.title
    state, k, last = method.init(agents, torch.zeros(1, 2, 1)), 0, 0
    while (before := agents.spent[axis]) <= budget:
        agents.enter(k)
        state, k = method.step(agents, k, state), k + 1
        last = k if agents.spent[axis] > before else last
        if k - last > IDLE:
            raise ValueError(f"{title} takes no {axis}, so a budget of {axis} does not limit it")
    if k < 2:
        raise ValueError(
            f"{axis}: {budget} are too few for one iteration of {title}, after which an agent has spent {before:g}"
        )
    return k - 1


def plan_searches(
    setups: Mapping[tuple[str, str], Setup],
    ranges: Mapping[str, Mapping[str, list[float] | tuple[float, float]]],
    measure: str,
    settings: int | None,
    budget: int,
    seed: int,
    trials: int,
    axis: str = "gradients",
) -> dict[tuple[str, str], Search]:
    """Plan a search for the settings of each method on each network, with equal numbers of settings and equal budgets.

    ``ranges`` has a list of values or a pair (low, high) for each parameter of each method. From pairs, ``settings``
    values are drawn, the same ones for methods with the same ranges.
    """
    chosen = {method: _settings(method, own, settings, seed) for method, own in ranges.items()}
    (first, wanted), *_ = [(method, settings or len(own)) for method, own in chosen.items()]
    for method, own in chosen.items():
        if len(own) != wanted:
            other = f"settings = {wanted}" if settings else f"{first} has {wanted}"
            raise ValueError(
                f"tuning: {method} has {len(own)} settings to try, and {other}; every method gets the same number, so "
                "change the values"
            )
    searches = {}
    for (method, network), setup in setups.items():
        K = affordable(setup, budget, axis)
        base = dataclasses.replace(
            setup, iterations=K, observe_every=max(1, K // LOOKS), seed=seed, trials=trials, stop=None
        )
        try:
            search = Search(base, chosen[method])
            search.check(measure)
        except ValueError as error:
            raise ValueError(f"tuning: {error}") from error
        searches[method, network] = search
    return searches


def _settings(
    method: str, ranges: Mapping[str, list[float] | tuple[float, float]], settings: int | None, seed: int
) -> Sequence[Setting]:
    grid = {name: values for name, values in ranges.items() if isinstance(values, list)}
    drawn = {name: values for name, values in ranges.items() if isinstance(values, tuple)}
    if drawn and settings is None:
        raise ValueError(f"tuning.settings is missing; it says how many settings are drawn from the ranges of {method}")
    try:
        return choose(grid, drawn, settings if drawn else None, seed)
    except ValueError as error:
        raise ValueError(f"tuning: {method}: {error}") from error


def tuned_setup(
    setup: Setup, tuned: Tuning, budget: int, observe_every: int | Literal["auto"] | None, axis: str = "gradients"
) -> Setup:
    """The run of a method with its best setting, as long as its budget allows."""
    iterations = affordable(setup, budget, axis)
    return dataclasses.replace(setup, algorithm=tuned.algorithm, iterations=iterations, observe_every=observe_every)
