"""Rounds: a site sends its row over the links that count, waits for its neighbours' rows for a while, and mixes them.

Rows are NumPy arrays; received rows are read-only views of their messages. A library call takes several times as long
after a wait as it does in a loop, so rounds make few and cheap calls, and NumPy's are cheaper than torch's.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxdasa.sites.links import BEAT, Link, Links
from proxdasa.sites.wire_format import NEVER, TURNS, Kind, Message

USUAL = 20.0
"""A row may take this many times as long as rows of its link usually do; at least a quarter of the patience is
allowed."""

Row = npt.NDArray[Any]

log = logging.getLogger("proxdasa.sites")


class Rounds:
    """The rounds of one site."""

    def __init__(self, links: Links, patience: float, wait: float) -> None:
        """Wait up to ``patience`` seconds for a row, and up to ``wait`` seconds for neighbours at the start."""
        self.links, self._patience, self._wait = links, patience, wait

    @property
    def missed(self) -> int:
        """The number of missed rounds, summed over the links."""
        return sum(link.missed for link in self.links.all.values())

    def assemble(self, everybody: bool) -> None:
        """Wait for all neighbours, or for at least one, up to the time limit; drop the links to those that do not come.

        A site does not begin alone, because it would only fit its own data.
        """
        until, said = time.monotonic() + self._wait, 0.0
        while missing := [name for name in self.links.all if not self.links.connections.connected(name)]:
            left = until - time.monotonic()
            if left <= 0 or (not everybody and len(missing) < len(self.links.all)):
                break
            if time.monotonic() - said > 10 * BEAT:
                log.info("waiting for %s", ", ".join(missing))
                said = time.monotonic()
            self.links.beat()
            self.links.connections.news.wait(min(left, BEAT))
        if len(missing) == len(self.links.all):
            raise TimeoutError(
                f"no neighbour of {self.links.connections.me} connected within {self._wait:g} seconds; "
                "start again once one of them is running"
            )
        for name in missing:
            self.links.drop(self.links.all[name], "it is not connected")

    def exchange(self, row: Row, meanwhile: Callable[[Row], None] | None = None) -> dict[str, Row]:
        """Make one round: send our row over the links that count; returns the rows of neighbours that count it too.

        ``meanwhile`` is called with our row while the other rows are on their way.
        """
        links, place = self.links, (self.links.k, self.links.round)
        links.round = (links.round + 1) % TURNS
        payload, jump = row.data.cast("B"), links.planned_jump()
        active = []
        for link in links.all.values():
            if links.counts(link):
                message = Message(Kind.ROWS, links.epoch, *place, link.since or 0, link.counted, *jump, payload=payload)
                if links.connections.send(link.name, message):
                    active.append(link)
                else:
                    links.drop(link, "it cannot be reached")
        if meanwhile:
            meanwhile(row)
        found = self._collect(active, place)
        rows: dict[str, Row] = {}
        for name, link in links.all.items():
            if link in found and (values := self._values(link, found[link], row)) is not None:
                rows[name] = values
                link.counted = (link.counted + 1) % TURNS
                link.made += 1
            else:
                link.missed += 1
        return rows

    def listen(self, k: int) -> None:
        """Let a site that is alone hear from its neighbours before the last rounds, which are numbered from k on.

        A site that comes back this late may get here before it has heard that they have finished.
        """
        until, links = time.monotonic() + self._patience, self.links.all.values()
        while not any(link.since is not None or link.last_row for link in links) and time.monotonic() < until:
            if not any(self.links.connections.connected(link.name) for link in links):
                break
            self.links.begin(k)
            self.links.connections.news.wait(BEAT / 10)

    def finish(self, row: Tensor) -> None:
        """Say that we have made our last round, and wait until the neighbours have too, or patience ends.

        The message carries our last row, for neighbours that were too far behind to take part in the last rounds.
        """
        self._hand_out(row, self._expected)

    def stay(self, row: Tensor, leave: Callable[[], bool]) -> None:
        """Hand our last row to neighbours lost shortly before the end, if they come back while patience lasts.

        ``leave`` says that we must not stay any longer.
        """
        if lost := [name for name, link in self.links.all.items() if self._missing(link)]:
            log.info("finished; staying up to %g s in case these return: %s", self._patience, ", ".join(lost))
            self._hand_out(row, lambda link: self._missing(link) and not leave())

    def _hand_out(self, row: Tensor, expected: Callable[[Link], bool]) -> None:
        """Send our last row to each connected neighbour, as long as one is expected and patience lasts."""
        until, connections = time.monotonic() + self._patience, self.links.connections
        stop = self.links.agreed_stop()
        done = Message(Kind.DONE, self.links.epoch, self.links.k, 0, NEVER, 0, *stop, payload=row.numpy().tobytes())
        told: set[str] = set()
        while (left := until - time.monotonic()) > 0:
            here = [name for name in self.links.all if connections.connected(name)]
            told = {name for name in here if name in told or connections.send(name, done)}
            self.links.read()
            if not any(map(expected, self.links.all.values())):
                break
            connections.news.wait(min(left, BEAT))
        self.links.read()  # a neighbour that has just left may have sent a last message

    def final_rows(self, like: Tensor) -> dict[str, Tensor]:
        """The last rows of neighbours that have finished, if no other neighbour is left; otherwise empty."""
        if any(
            (link.since is not None and not link.last_row) or self._expected(link) for link in self.links.all.values()
        ):
            return {}
        size = like.numel() * like.element_size()
        rows = {
            name: torch.frombuffer(bytearray(link.last_row), dtype=like.dtype).view_as(like)
            for name, link in self.links.all.items()
            if len(link.last_row) == size
        }
        return {name: row for name, row in rows.items() if bool(torch.isfinite(row).all())}

    def _expected(self, link: Link) -> bool:
        """Whether a neighbour is connected and has not finished."""
        return self.links.connections.connected(link.name) and not link.last_row

    def _missing(self, link: Link) -> bool:
        """Whether a neighbour has not finished, as far as we know, and is connected or was until recently."""
        lost = link.since is not None or link.dropped > 0
        return not link.last_row and (lost or self.links.connections.connected(link.name))

    def _collect(self, missing: list[Link], place: tuple[int, int]) -> dict[Link, Message]:
        """The rows of a round that come in time."""
        began, found = time.monotonic(), dict[Link, Message]()
        while missing:
            gone = [link for link in missing if not self.links.connections.connected(link.name)]
            self.links.read()  # after finding who is gone, so that their last messages are read
            waited, waiting = time.monotonic() - began, missing
            missing = []
            for link in waiting:
                if (message := link.rows.pop(place, None)) is not None:
                    found[link] = message
                    link.usual += 0.1 * (waited - link.usual)
                elif self._comes(link, place[0], waited, link in gone):
                    missing.append(link)
            if missing:
                self.links.connections.news.wait(BEAT)
                self.links.beat()
        return {link: message for link, message in found.items() if self.links.counts(link)}

    def _comes(self, link: Link, k: int, waited: float, gone: bool) -> bool:
        """Whether the row of iteration k that we wait for may still come; if not, the link stops counting."""
        if link.last_row:  # it has finished, and sends no more
            link.since = None
        elif not self.links.counts(link):  # it was dropped while we waited, and perhaps taken up for later
            pass
        elif link.k > k:  # messages come in order, so it has not sent the row
            self.links.drop(link, f"it is in iteration {link.k} already")
        elif gone or not self._may_wait(link, waited):
            self.links.drop(link, f"its row of iteration {k} did not come")
        else:
            return True
        return False

    def _may_wait(self, link: Link, waited: float) -> bool:
        """Whether it is too early to give up on a neighbour.

        A neighbour that says that it is waiting itself is given longer: otherwise a site would give up on it at the
        moment when it gives up on a third site.
        """
        usual = (
            self._patience if link.counted < 10 else min(self._patience, max(USUAL * link.usual, self._patience / 4))
        )
        if time.monotonic() - link.alive < 3 * BEAT:
            at_the_start = link.k == NEVER and not link.made
            usual = self._wait + self._patience if at_the_start else self.links.n * self._patience
        return waited < usual

    def _values(self, link: Link, message: Message, like: Row) -> Row | None:
        """The row in a message, or None if it does not count."""
        if message.epoch != self.links.epoch:
            return None  # both ends see the difference, and neither counts the round
        fault = ""
        if (message.since, message.counted) != (link.since, link.counted):
            fault = "it counts other rounds than we do"
            self.links.reset_everywhere(f"{link.name} and we counted different rounds")
        elif len(message.payload) != like.nbytes:
            fault = f"its row has {len(message.payload)} bytes"
        else:
            values = np.frombuffer(message.payload, like.dtype)
            if bool(np.isfinite(values).all()):
                return values.reshape(like.shape)
            fault = "its row is not finite"
        self.links.connections.refuse(f"{link.name}: {fault}")
        self.links.drop(link, fault)
        return None


class Combination:
    """Σ_j W_ij x_j over the rows that came; the weights of missing rows are added to the site's own weight."""

    def __init__(self, weights: Mapping[int, float], here: int) -> None:
        self._weights, self._here = {here: 0.0, **weights}, here
        self._came: Set[int] = weights.keys() - {here}
        # The weights of neighbours whose terms come before and after our own in the sum, by their numbers.
        self._before: list[tuple[int, Any]] = []
        self._after: list[tuple[int, Any]] = []
        self._own_weight: Any = None
        self._own: Row | None = None
        self._sum = self._term = np.empty(0)

    def begin(self, own: Row) -> None:
        """Compute our own term while other rows are on their way, assuming that the same neighbours' rows come again.

        The sum is stored in this term's memory: allocating memory for a large row costs more than computing the row.
        """
        if own.shape != self._term.shape or own.dtype != self._term.dtype:
            self._prepare(own, self._came)
        self._own = np.multiply(own, self._own_weight)
        np.add(self._own, 0.0, self._own)  # −0 becomes 0, and so does every sum with it

    def end(self, own: Row, rows: Mapping[int, Row]) -> Row:
        """The sum in ascending order of agents, each term rounded before it is added: see `ExactProduct`.

        No sum is −0, just as if each began with 0. The two operands of an addition may be swapped.
        """
        if self._own is None or rows.keys() != self._came:
            self._prepare(own, rows.keys())
            self.begin(own)
        assert self._own is not None
        total, self._own = self._own, None
        if self._before:
            (first, weight), *others = self._before
            np.multiply(rows[first], weight, self._sum)
            for j, weight in others:
                np.add(self._sum, np.multiply(rows[j], weight, self._term), self._sum)
            np.add(self._sum, total, total)
        for j, weight in self._after:
            np.add(total, np.multiply(rows[j], weight, self._term), total)
        return total

    def _prepare(self, like: Row, came: Set[int]) -> None:
        """Round the weights to the type of the rows; the next round usually has rows from the same neighbours."""
        missing = math.fsum(w for j, w in self._weights.items() if j != self._here and j not in came)
        self._own_weight = like.dtype.type(self._weights[self._here] + missing)
        rounded = [(j, like.dtype.type(self._weights[j])) for j in sorted(came)]
        self._before = [(j, weight) for j, weight in rounded if j < self._here]
        self._after = [(j, weight) for j, weight in rounded if j > self._here]
        self._came, self._sum, self._term = {*came}, np.empty_like(like), np.empty_like(like)
