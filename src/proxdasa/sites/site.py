"""One site: its agent, its iterations, its checkpoints and its results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from proxdasa.contracts import running_of
from proxdasa.engines import Task
from proxdasa.runs.checkpoints import Checkpoint, Checkpoints, fingerprint
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.runs.records import CHECKPOINTS, RECORDS, Row, read_config
from proxdasa.runs.results import EXTRA, Divergence, Result
from proxdasa.runs.stopping import Watch
from proxdasa.sites.agreement import average, mixing_rounds, unanimous
from proxdasa.sites.connections import Connections, Credentials
from proxdasa.sites.links import UNKNOWN, Links
from proxdasa.sites.rounds import Rounds
from proxdasa.sites.site_agent import SiteAgent, measure
from proxdasa.sites.site_status import Status
from proxdasa.sites.study import FORM, Study, form, own_problem
from proxdasa.sites.wire_format import NEVER

MEAN, OVER = "mean_{}", "mean_over"
"""The names of means over sites in the records, and of the number of sites that they are over."""
TOGETHER, IN_PART, APART = "yes", "in part: a neighbour was missing in the last rounds", "no"
TAKEN_OVER = "taken over from {}"
"""Whether the model that a site saves was brought together with those of other sites."""
AGAIN = 5.0
"""Seconds between two attempts to save the results."""

log = logging.getLogger("proxdasa.sites")


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
    _together: str = field(default=TOGETHER, init=False)

    def __post_init__(self) -> None:
        study, setup = self.study, self.study.setup
        self._refuse_finished()
        here, own = study.number(self.name), own_problem(study, self.name)
        self._algorithm, self._K = setup.bound(), setup.iterations
        r = running_of(own)
        width = own.dim + (r.first_buffers(1).shape[-1] if r else 0)
        widest = max(3, len(self._algorithm.State._fields)) * width * own.dtype.itemsize
        weights = study.weights(self.name)
        neighbours = {name: study.addresses[name] for name in weights}
        shared = {**study.shared, FORM: form(own)}
        widest = max(widest, 8 * (len(study.share) + len(study.names)))
        self.connections = Connections(self.name, neighbours, self.listen, self.credentials, shared, widest)
        votes = setup.stop.every if setup.stop else 0
        self.links = Links(self.connections, weights, len(study.names), study.patience, self._K, votes)
        self.rounds = Rounds(self.links, study.patience, study.wait)
        task = Task(own, setup.network, setup.regularizer, setup.mixing, 1, setup.seed)
        self.agent = SiteAgent(task, here, self.rounds, {name: study.number(name) for name in weights})
        self._start = setup.start(range(here, here + 1))
        self._config = {**setup.config(), "site": self.name}
        self._checkpoints = Checkpoints(self.folder / CHECKPOINTS, fingerprint({**setup.config(), "site": self.name}))
        self._status = Status(self.folder, self.links, self._K)
        self._watch = Watch(setup.stop, self._algorithm, 1) if setup.stop else None
        self._last_rounds = mixing_rounds(setup.network.rho, study.agreement)
        self._saved, self._seen = time.monotonic(), -1

    def halt(self) -> None:
        """Stop before the next iteration, with a checkpoint."""
        self._halt = True

    def run(self) -> Result:
        """Iterate with the neighbours that are there, mix for some rounds at the end, and save the results."""
        try:
            with torch.no_grad(), flushed_denormals():
                k, state = self._begin()
                k, state = self._iterate(k, state)
                halted = self._halt and self.links.stop == NEVER
                if halted:
                    self._save(k, state)
                else:
                    k, state = self._end(k, state)
                    self.rounds.finish(self._last_row(state))
            result = self._leave(k, state, halted)
            if not halted:
                self.rounds.stay(self._last_row(state), lambda: self._halt)
        finally:
            self.connections.close()
        return result

    def _leave(self, k: int, state: Any, halted: bool) -> Result:
        """Save the results after k iterations, and report the end."""
        alone = not halted and not any(link.last_row or link.since is not None for link in self.links.all.values())
        if alone:
            self._together = APART
            log.warning("no neighbour was connected at the end; the model of this site may differ from the others")
        stop, together = self.links.stop, APART if halted else self._together
        self._config["facts"] |= {"links": self.links.history(), "brought_together": together}
        result = Result(
            config=self._config, records=self.rows, state=self._everything(state), iterations=k,
            stopped="interrupted" if halted else None if stop == NEVER else "stationary",
            stationary={} if stop == NEVER else {0: stop}, proximal_point=self._proximal_point(state),
        )  # fmt: skip
        self._store(result)
        self._write_status(k, "stopped" if halted else "finished alone" if alone else "finished", always=True)
        return result

    def _store(self, result: Result) -> None:
        """Save the results, and retry for a while if that fails: no other site can provide them any more."""
        until = time.monotonic() + (0.0 if result.stopped in ("interrupted", "diverged") else self.study.wait)
        while True:
            try:
                result.save(self.folder, overwrite=True)
                return
            except OSError as error:
                if time.monotonic() >= until or self._halt:
                    raise
                log.warning("%s; make room: the site tries again for %.0f s", error, until - time.monotonic())
                time.sleep(min(AGAIN, self.study.wait))

    def _refuse_finished(self) -> None:
        """Refuse to begin again in the folder of a finished run: alone, the site would end with another model."""
        if not (self.folder / RECORDS).exists():
            return
        ending = read_config(self.folder).get("ending", {})
        if ending.get("stopped") != "interrupted":
            how = "diverged" if ending.get("stopped") == "diverged" else "finished"
            raise FileExistsError(
                f"{self.folder} holds the results of this site, which has {how}; to take part again, choose another "
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
        self.connections.spent.update(found.notes["spent"])
        self._seen = found.notes["observed"]
        if self._watch:
            self._watch.skip(0, found.k)  # we do not know how much of z dates from before the last jump
        # The neighbours may have counted rounds with us that we do not remember.
        self.links.epoch = self.links.higher = found.notes["epoch"]
        self.links.pace = found.notes["pace"]
        self.links.restore(found.notes["links"])
        for link in self.links.all.values():
            link.since, link.last, link.dropped = None, UNKNOWN, time.monotonic()
            link.note_outage(found.k)
        log.info("going on from iteration %d", found.k)
        beside = {name: found.state.pop(name) for name in [*found.state] if name.startswith(EXTRA)}
        self.agent.extra_rows = {name.removeprefix(EXTRA): rows for name, rows in beside.items()}
        state = self._algorithm.State(**found.state)
        try:
            self.rounds.assemble(everybody=False)
        except TimeoutError as error:
            self._leave(found.k, state, halted=True)  # halted, so that the site can still resume
            raise TimeoutError(
                f"{error}. Until then {self.folder} has what this site computed by itself up to iteration {found.k}, "
                "not brought together with the models of others; if they have finished, ask one of them for the model"
            ) from None
        return found.k, state

    def _iterate(self, k: int, state: Any) -> tuple[int, Any]:
        """Iterate to the end, or until sites agree to stop; returns the number of iterations and the state."""
        while k < self._K and not self._halt:
            made, k = k, min(self.links.begin(k), self._K)
            if self._watch and k > made:
                self._watch.skip(made, k)
            if self.links.stop != NEVER:
                return made, state
            if k == self._K or self._is_over(state):
                break
            if self.links.adopt():
                state = self._reset(state)
            self.agent.enter(k)
            before, state = state, self._algorithm.step(self.agent, k, state)
            if not all(bool(torch.isfinite(rows).all()) for rows in state):
                self._diverge(k, before)
            k += 1
            if self._agree_to_stop(k, state):
                self.links.stop = k
            if k % int(self.study.setup.observe_every or 1) == 0 or k in (self._K, self.links.stop):
                self._observe(k, state)
            if self.links.stop != NEVER:
                break
            if time.monotonic() - self._saved > self.checkpoint_every:
                self._save(k, state)
            self._write_status(k, "running")
            self.watch(k, self._K)
        return k, state

    def _diverge(self, k: int, before: Any) -> NoReturn:
        """Save the records so far, with the last state that is finite, and say what happened."""
        self._config["facts"] |= {"links": self.links.history(), "brought_together": APART}
        where = {0: Divergence(self.agent.agents.start, k)}
        self._store(Result(self._config, self.rows, self._everything(before), k, "diverged", diverged=where))
        self._write_status(k, "diverged", always=True)
        raise ArithmeticError(f"{self.name} met a value that is not finite in iteration {k}; try a smaller γ")

    def _agree_to_stop(self, k: int, state: Any) -> bool:
        """Whether this site knows that the stopping rule holds at all sites."""
        if not self._watch or k % self._watch.rule.every:
            return False
        yes = bool(self._watch.note(self.agent, k, state))
        return unanimous(self.rounds.exchange, yes, self.agent.agents.start, self.agent.n)

    def _is_over(self, state: Any) -> bool:
        """Whether no neighbour is left, because they have finished."""
        return bool(self.rounds.final_rows(self._last_row(state)))

    def _end(self, k: int, state: Any) -> tuple[int, Any]:
        """Bring the sites together by rounds of mixing alone, or take over the final model of the others.

        Returns the iteration that the model belongs to, and the state.
        """
        self._write_status(k, "bringing the sites together", always=True)
        self.rounds.listen(self._K)
        missed = self.rounds.missed
        self.agent.leave()  # outside of iterations, in some of which a mixing may send nothing
        for r in range(self._last_rounds):
            self.links.begin(self._K + r)
            self.links.adopt()  # trackers do not matter any more
            if rows := self.rounds.final_rows(self._last_row(state)):
                log.info("the others have finished; their model is taken over at iteration %d", k)
                return self._take_over(rows, state)
            state = state._replace(x=self.agent.bring_together(state.x))
        if self.rounds.missed > missed:
            self._together = IN_PART
            log.warning("a neighbour was missing in the last rounds; the models of sites may differ more than agreed")
        return k, state

    def _last_row(self, state: Any) -> Tensor:
        """What neighbours that come too late need from us: x, its running statistics, and the solution's z."""
        averaging, row = self._algorithm.facts.averaging, self.agent.pack(state.x)
        return torch.cat([row, averaging.z(state)], dim=-1) if averaging else row

    def _take_over(self, rows: Mapping[str, Tensor], state: Any) -> tuple[int, Any]:
        """Jump to the end with the mean of the neighbours' last rows, which are given by name, and measure there."""
        self._together = TAKEN_OVER.format(", ".join(sorted(rows)))
        row = torch.stack([*rows.values()]).mean(dim=0)
        if averaging := self._algorithm.facts.averaging:
            d = state.x.shape[-1]
            row, z = row[..., :-d], row[..., -d:]
            state = state._replace(**{averaging.variable: z.contiguous()})
        state = state._replace(x=self.agent.unpack(row))
        end = self._K if self.links.stop == NEVER else self.links.stop
        self.rows, self._seen = [seen for seen in self.rows if seen["k"] < end], min(self._seen, end - 1)
        self._observe(end, state, share=False)  # the others have left
        return end, state

    def _reset(self, state: Any) -> Any:
        """Reset the tracker to u = v, so that the means of u and v over all sites that do so agree."""
        tracking = self._algorithm.facts.tracking
        return state._replace(**{tracking.tracker: getattr(state, tracking.tracked)}) if tracking else state

    def _observe(self, k: int, state: Any, share: bool = True) -> None:
        """Record what this site measures alone: its own loss and scores at its own x, and its local certificate."""
        if k <= self._seen:
            return
        row: Row = {"trial": 0, "k": k, **measure(self.agent, self._algorithm, self.study.metrics, state)}
        row |= self._share(row) if self.study.share and k and share else {}
        row |= {"epoch": self.links.epoch, "missed": self.rounds.missed, "wire_bytes": self.connections.spent["bytes"]}
        # The agent counts bytes as if nothing failed, so only those that were really sent are recorded.
        costs = {name: spent for name, spent in self.agent.counts().items() if name != "bytes"}
        self.rows.append(row | costs)
        self._seen = k

    def _share(self, own: Row) -> Row:
        """The means over sites of the numbers that the study shares."""
        numbers, here, n = [own[name] for name in self.study.share], self.agent.agents.start, self.agent.n
        means = average(self.agent.round, numbers, here, n, self._last_rounds)
        return dict(zip(map(MEAN.format, self.study.share), means.values, strict=True)) | {OVER: round(means.over, 3)}

    def _everything(self, state: Any) -> dict[str, Tensor]:
        """The state of the method, and the rows that the agent keeps beside it."""
        beside = {EXTRA + name: rows for name, rows in self.agent.extra_rows.items()}
        return {**state._asdict(), **beside}

    def _save(self, k: int, state: Any) -> None:
        notes = {"epoch": self.links.epoch, "counts": self.agent.counts(), "observed": self._seen}
        notes |= {"spent": dict(self.connections.spent), "pace": self.links.pace, "links": self.links.history()}
        try:
            self._checkpoints.write(Checkpoint(k, self._everything(state), self.rows, notes))
        except OSError as error:
            log.warning("%s; the site goes on", error)
        self._saved = time.monotonic()

    def _write_status(self, k: int, doing: str, always: bool = False) -> None:
        """Report the site's progress for `proxdasa site status`."""
        named = ("loss", "certificate", *map(MEAN.format, self.study.share), OVER)
        last = self.rows[-1] if self.rows else {}
        self._status.write(k, doing, {name: last[name] for name in named if name in last}, always)

    def _proximal_point(self, state: Any) -> Tensor:
        γ, averaging = self._algorithm.mapping_gamma, self._algorithm.facts.averaging
        point = state.x - γ * averaging.z(state) if averaging else state.x
        return self.agent.prox(point, γ)[:, 0]
