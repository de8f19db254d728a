"""The agent of a site: what algorithms call, over links that may be down, and what a site can measure alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from proxdasa.contracts import Algorithm, running_of
from proxdasa.engines import Task
from proxdasa.engines.agents import BUFFERS, LocalAgents
from proxdasa.metrics import Metric, View
from proxdasa.sites.rounds import Combination, Rounds


@final
class SiteAgent(LocalAgents):
    """The only agent of a site."""

    def __init__(self, task: Task, here: int, rounds: Rounds, numbers: dict[str, int]) -> None:
        super().__init__(task, range(here, here + 1), exact=True)
        self._exchange, self._numbers = rounds.exchange, numbers
        row = task.network.W[[here]].tocoo()
        weights = {int(j): float(w) for j, w in zip(row.col, row.data, strict=True)}
        self._combine = Combination(weights, here)

    def _mix(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Mix rows with those of the neighbours that are there."""
        self._count_messages(self._rounds, *tensors)
        mixed = self._task.mixing(self.round, torch.cat(tensors, dim=-1), self._task.network.rho)
        return torch.split(mixed, [x.shape[-1] for x in tensors], dim=-1)

    def round(self, x: Tensor) -> Tensor:
        """Make one round: Σ_j W_ij x_j over the neighbours that are there, for rows of any width."""
        own = x.contiguous().numpy()
        rows = {self._numbers[name]: row for name, row in self._exchange(own, self._combine.begin).items()}
        return torch.from_numpy(self._combine.end(own, rows))

    def gather(self, x: Tensor) -> Tensor:
        """The rows of this site: it knows no others."""
        return x

    def mean(self, x: Tensor) -> Tensor:
        """The row of this site: it knows no others."""
        return x

    def total(self, x: Tensor) -> Tensor:
        """The values of this site: it knows no others."""
        return x

    def neighbour_sum(self, x: Tensor) -> Tensor:  # noqa: ARG002
        """Refuse, as `study` does for methods that declare it: the sum lacks a term when a neighbour is away."""
        raise ValueError("methods that sum over neighbours cannot go on without one; choose one that mixes")

    observe_neighbours = neighbour_sum

    def bring_together(self, x: Tensor) -> Tensor:
        """Mix x, and the running statistics that are averaged, without a step of the method."""
        return self.unpack(self._mix((self.pack(x),))[0])

    def pack(self, x: Tensor) -> Tensor:
        """A row with x and those of its running statistics that sites average."""
        return torch.cat([x, self.extra_rows[BUFFERS][..., : self.averaged]], dim=-1) if self.averaged else x

    def unpack(self, row: Tensor) -> Tensor:
        """The x of a row that `pack` made; its statistics replace our own."""
        x, averages = torch.split(row, [row.shape[-1] - self.averaged, self.averaged], dim=-1)
        if self.averaged:
            held = self.extra_rows[BUFFERS][..., self.averaged :]
            self.extra_rows[BUFFERS] = torch.cat([averages, held], dim=-1)
        return x.contiguous()

    @property
    def averaged(self) -> int:
        """How many running statistics are averaged between sites."""
        running = running_of(self._task.problem)
        return running.mixed_buffers if running else 0


def measure(agent: SiteAgent, algorithm: Algorithm, chosen: Sequence[Metric], state: Any) -> dict[str, float]:
    """What a site measures by itself: the chosen measures and the problem's own scores, at its own x."""
    averaging = algorithm.facts.averaging
    view = View(agent, algorithm.mapping_gamma, state, averaging.z(state) if averaging else None)
    found = {metric.name: float(metric.of(view)) for metric in chosen if averaging or not metric.needs_z}
    return found | {name: float(value) for name, value in agent.scores(view.x[:, 0]).items()}
