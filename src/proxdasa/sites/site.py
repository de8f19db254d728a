"""One site: its agent, its iterations, its checkpoints and its results."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from proxdasa import disk
from proxdasa.contracts import Problem
from proxdasa.engines import Task
from proxdasa.engines.agents import LocalAgents
from proxdasa.runs.checkpoints import Checkpoint, Checkpoints, fingerprint
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.loop import CHECKPOINTS
from proxdasa.runs.records import RECORDS, Row, read_config
from proxdasa.runs.results import Result
from proxdasa.sites.links import UNKNOWN, Links
from proxdasa.sites.post import Credentials, Post
from proxdasa.sites.rounds import Rounds, combine
from proxdasa.sites.study import Study, own_problem

FORM = "columns or types of the data"
"""What sites must have in common besides the study; they compare a digest of it."""
STATUS = "status.json"
"""The file in a site's folder that says how far it is."""
PACE = 1.0
"""Seconds between two versions of it."""

log = logging.getLogger("proxdasa.sites")


@final
class SiteAgent(LocalAgents):
    """The verbs of the one agent that a site is."""

    def __init__(self, task: Task, here: int, rounds: Rounds, numbers: dict[str, int]) -> None:
        super().__init__(task, range(here, here + 1), exact=True)
        self._exchange, self._here, self._numbers = rounds.exchange, here, numbers
        row = task.network.W[[here]].tocoo()
        self._weights = {int(j): float(w) for j, w in zip(row.col, row.data, strict=True)}
        self._weights.setdefault(here, 0.0)

    def _mix(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Rows mixed with those of the neighbours that are there."""
        self._count_messages(self._rounds, *tensors)
        mixed = self._task.mixing(self._round, torch.cat(tensors, dim=-1), self._task.network.rho)
        return torch.split(mixed, [x.shape[-1] for x in tensors], dim=-1)

    def gather(self, x: Tensor) -> Tensor:
        """The rows of this site: it knows no others."""
        return x

    def neighbour_sum(self, x: Tensor) -> Tensor:  # noqa: ARG002
        """Refuse, as `study` does for methods that say so: a sum lacks something when a neighbour is away."""
        raise ValueError("methods that sum over neighbours cannot go on without one; choose one that mixes")

    def _round(self, x: Tensor) -> Tensor:
        rows = {self._numbers[name]: row for name, row in self._exchange(x.contiguous()).items()}
        return combine(x, rows, self._weights, self._here)


@dataclass(eq=False)
class Site:
    """A site of a study, from its start to its results."""

    study: Study
    name: str
    credentials: Credentials
    folder: Path
    listen: str | None = None
    checkpoint_every: float = 60.0
    """Seconds between two checkpoints."""
    watch: Callable[[int, int], None] = lambda _k, _K: None
    """Called after each iteration."""
    rows: list[Row] = field(default_factory=list, init=False)
    _halt: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        study, setup = self.study, self.study.setup
        self._refuse_finished()
        here, own = study.number(self.name), own_problem(study, self.name)
        self._algorithm, self._K = setup.bound(), setup.iterations
        widest = max(3, len(self._algorithm.State._fields)) * own.dim * own.dtype.itemsize
        weights = study.weights(self.name)
        neighbours = {name: study.addresses[name] for name in weights}
        shared = {**study.shared, FORM: _form(own)}
        self.post = Post(self.name, neighbours, self.listen, self.credentials, shared, widest)
        self.links = Links(self.post, weights, len(study.names), study.patience)
        self.rounds = Rounds(self.links, study.patience, study.wait)
        task = Task(own, setup.network, setup.regularizer, setup.mixing, 1, setup.seed)
        self.agent = SiteAgent(task, here, self.rounds, {name: study.number(name) for name in weights})
        self._start = setup.start(range(here, here + 1))
        self._config = {**setup.config(), "site": self.name}
        self._checkpoints = Checkpoints(self.folder / CHECKPOINTS, fingerprint({**setup.config(), "site": self.name}))
        self._saved = self._told = time.monotonic()
        self._seen = -1

    def halt(self) -> None:
        """Stop before the next iteration, with a checkpoint."""
        self._halt = True

    def run(self) -> Result:
        """Iterate with whoever is there, mix for some rounds at the end, and save what there is."""
        with torch.no_grad(), flushed_denormals():
            try:
                k, state = self._begin()
                k, state = self._iterate(k, state)
                stopped = "interrupted" if self._halt else None
                if stopped:
                    self._save(k, state)
                else:
                    state = self._agree(state) if k == self._K else state
                    self.rounds.finish(state.x)
            finally:
                self.post.close()
        result = Result(
            config=self._config, records=self.rows, state=state._asdict(), iterations=k, stopped=stopped,
            proximal_point=self._proximal_point(state),
        )  # fmt: skip
        result.save(self.folder, overwrite=True)
        alone = not stopped and not any(link.last_x or link.since is not None for link in self.links.all.values())
        self._tell(k, "stopped" if stopped else "finished alone" if alone else "finished", always=True)
        if alone:
            log.warning("no neighbour was there at the end: the model of this site may differ from that of the others")
        return result

    def _refuse_finished(self) -> None:
        """Refuse to begin again where the study has ended: alone, the site would end with another model."""
        if not (self.folder / RECORDS).exists():
            return
        ending = read_config(self.folder).get("ending", {})
        if ending.get("stopped") is None:
            raise FileExistsError(
                f"{self.folder} holds the results of this site, which has finished; to take part again, choose another "
                "--output"
            )

    def _begin(self) -> tuple[int, Any]:
        found = self._checkpoints.latest()
        if not found:
            state = self._algorithm.init(self.agent, self._start)
            self._observe(0, state)
            self.rounds.assemble(everybody=True)
            return 0, state
        self.rows = found.rows
        self.agent.restore(found.notes["counts"])
        self.post.spent.update(found.notes["spent"])
        self._seen = found.notes["observed"]
        # The neighbours may have counted rounds with us that we do not remember.
        self.links.epoch = self.links.higher = found.notes["epoch"]
        for link in self.links.all.values():
            link.since, link.last, link.dropped = None, UNKNOWN, time.monotonic()
        log.info("going on from iteration %d", found.k)
        self.rounds.assemble(everybody=False)
        return found.k, self._algorithm.State(**found.state)

    def _iterate(self, k: int, state: Any) -> tuple[int, Any]:
        while k < self._K and not self._halt:
            k = min(self.links.begin(k), self._K)
            if k == self._K:
                break
            if (x := self.rounds.ended(state.x)) is not None:
                log.info("the others have finished; their x is taken over at iteration %d", k)
                return k, state._replace(x=x)
            if self.links.adopt():
                state = self._reset(state)
            self.agent.enter(k)
            state = self._algorithm.step(self.agent, k, state)
            if not all(bool(torch.isfinite(rows).all()) for rows in state):
                raise ArithmeticError(f"{self.name} met a value that is not finite in iteration {k}; try a smaller γ")
            k += 1
            if k % (self.study.setup.observe_every or 1) == 0 or k == self._K:
                self._observe(k, state)
            if time.monotonic() - self._saved > self.checkpoint_every:
                self._save(k, state)
            self._tell(k, "running")
            self.watch(k, self._K)
        return k, state

    def _agree(self, state: Any) -> Any:
        """Bring the sites together by rounds of mixing alone, as many as leave a given share of their disagreement."""
        rho = self.study.setup.network.rho
        rounds = math.ceil(math.log(self.study.agreement) / math.log(rho)) if rho > 0 else 1
        self._tell(self._K, "bringing the sites together", always=True)
        x = state.x
        self.agent.leave()  # these rounds belong to no iteration, in which a method might send nothing
        for r in range(rounds):
            self.links.begin(self._K + r)
            self.links.adopt()  # trackers do not matter any more
            x = self.agent.mix(x)
        return state._replace(x=x)

    def _reset(self, state: Any) -> Any:
        """Set the tracker anew: u = v, so that their means over all sites that do so agree."""
        tracking = self._algorithm.facts.tracking
        return state._replace(**{tracking.tracker: getattr(state, tracking.tracked)}) if tracking else state

    def _observe(self, k: int, state: Any) -> None:
        """Measures of this site alone: its own loss and scores at its own x, and how stationary it looks from here."""
        if k <= self._seen:
            return
        row: Row = {"trial": 0, "k": k, "loss": float(self.agent.evaluate(state.x).loss)}
        row |= {name: float(value) for name, value in self.agent.scores(state.x[:, 0]).items()}
        averaging, γ = self._algorithm.facts.averaging, self._algorithm.mapping_gamma
        if averaging:
            y = self.agent.prox(state.x - γ * averaging.z(state), γ)
            row["certificate"] = float(((state.x - y) / γ).square().sum())
        row |= {"epoch": self.links.epoch, "missed": self.rounds.missed, "wire_bytes": self.post.spent["bytes"]}
        costs = {name: spent for name, spent in self.agent.counts().items() if name != "bytes"}  # as if nothing failed
        self.rows.append(row | costs)
        self._seen = k

    def _save(self, k: int, state: Any) -> None:
        notes = {"epoch": self.links.epoch, "counts": self.agent.counts(), "observed": self._seen}
        notes["spent"] = dict(self.post.spent)
        try:
            self._checkpoints.write(Checkpoint(k, state._asdict(), self.rows, notes))
        except OSError as error:
            log.warning("%s; the site goes on", error)
        self._saved = time.monotonic()

    def _tell(self, k: int, doing: str, always: bool = False) -> None:
        """Write how far the site is, for `proxdasa site status`."""
        if not always and time.monotonic() - self._told < PACE:
            return
        self._told = time.monotonic()
        neighbours = {
            name: "counts" if link.since is not None else "there" if self.post.connected(name) else "away"
            for name, link in self.links.all.items()
        }
        last = self.rows[-1] if self.rows else {}
        status: dict[str, Any] = {
            "site": self.name, "doing": doing, "iteration": k, "of": self._K, "neighbours": neighbours,
            "epoch": self.links.epoch, "at": time.time(), **self.post.spent,
            **{name: last[name] for name in ("loss", "certificate") if name in last},
        }  # fmt: skip
        try:
            disk.make(self.folder)
            disk.replace(self.folder / STATUS, json.dumps(status, indent=1).encode())
        except OSError as error:
            log.warning("%s; the site goes on", disk.reason(error))

    def _proximal_point(self, state: Any) -> Tensor:
        γ, averaging = self._algorithm.mapping_gamma, self._algorithm.facts.averaging
        point = state.x - γ * averaging.z(state) if averaging else state.x
        return self.agent.prox(point, γ)[:, 0]


def _form(problem: Problem) -> str:
    """A digest of the form of a site's data, which must be the same at all sites, or x would mean different things."""
    data = getattr(problem, "examples", None)
    form = [problem.dim, str(problem.dtype)]
    form += [list(data.columns or ()), str(data.x.dtype), list(data.x.shape[1:]), str(data.y.dtype)] if data else []
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()
