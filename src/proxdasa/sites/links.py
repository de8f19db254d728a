"""The links of a site: which of them count, and from which iteration on.

**When a link counts.** Both ends must count the same rounds, or the mean over sites changes. A link counts from an
iteration that both ends have agreed on (at the start: 0). In a round each end sends its row and waits for the other's;
if that does not come in time, the end drops the link: its weight goes back to the site itself, in this round and until
the link is taken up again. Each end remembers how many rounds it has counted. If the numbers differ when the link is
taken up again, one end counted a round that the other did not, and trackers must be reset.

**Epochs.** Every site resets its trackers under an epoch number that spreads with the messages: a site that sees a
higher number resets its own before the next iteration, and a link counts a round only between sites of the same epoch.
So among the sites of an epoch the mean of the trackers equals that of the gradients.

**Iterations.** Parts of the network that were separated may be at different iterations. The part that is behind jumps:
the jump is announced as many iterations ahead as there are sites, so that all sites of the part jump together.

**Stopping early** is a jump to the end: sites that agree to stop after an iteration go on with the last rounds, which
are numbered from K on, and say so in their messages; a site that missed the agreement follows when it hears of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxdasa.sites.connections import Connections
from proxdasa.sites.wire_format import NEVER, Kind, Message

NEAR = 50
"""Two sites whose iterations differ by more than this do not take up their link until one of them has jumped."""
BEAT = 1.0
"""Seconds between two messages in which a waiting site says that it is waiting."""
FAREWELL = 3.0
"""After this many times its patience a site no longer expects a lost neighbour back, and resets the trackers."""
LEAP = 1_000_000
"""A message whose epoch is further ahead of ours than this is refused as implausible: no site is away for so many
resets, and a neighbour that lies cannot use up the numbers, which have 64 bits."""
KEPT = 4
"""The most rows of a neighbour that are kept for later rounds; an honest one is at most one round ahead."""
OUTAGES = 100
"""How many outages of a link are remembered for the report."""
MARGIN = 2
"""How many iterations ahead the first proposal is; this doubles each time that the answer comes too late."""

NOTHING, UNKNOWN = (NEVER, 0), (NEVER - 1, 0)
"""Values of `Link.last`: there are no rounds left to compare, or, after a restart, the site does not know its count."""

log = logging.getLogger("proxdasa.sites")


@dataclass(eq=False)
class Link:
    """What a site knows about one of its links."""

    name: str
    weight: float
    since: int | None = 0
    """The iteration from which the link counts; None while it is dropped."""
    counted: int = 0
    """Rounds counted since then, modulo `TURNS`."""
    last: tuple[int, int] = NOTHING
    """``since`` and ``counted`` when the link was dropped, until both ends have compared them."""
    dropped: float = 0.0
    """When the link was dropped, on the monotonic clock; 0 while it counts, or once trackers were reset for it."""
    k: int = NEVER
    """The neighbour's iteration, as of its last message."""
    usual: float = 0.0
    """How long the neighbour's rows usually take, in seconds."""
    proposed: int = NEVER
    """The iteration from which we proposed to count the link."""
    margin: int = MARGIN
    last_row: bytes = b""
    """The x and z of the neighbour, once it has made its last round."""
    rows: dict[tuple[int, int], Message] = field(default_factory=dict)
    """Rows that have arrived, by iteration and round."""
    alive: float = 0.0
    """When the neighbour last said that it waits for others, on the monotonic clock."""
    made: int = 0
    """Rounds made with this neighbour since the study began."""
    missed: int = 0
    """Rounds made without it."""
    outages: list[list[int]] = field(default_factory=list)
    """The latest outages: the iterations at which the link stopped and began to count; the second is missing if it has
    not begun again."""

    def note_outage(self, k: int) -> None:
        """Note that the link does not count from iteration k on."""
        if not self.outages or len(self.outages[-1]) == 2:
            self.outages = [*self.outages[1 - OUTAGES :], [max(k, 0)]]


class Links:
    """The links of one site, as part of a network of ``n``, in a study of ``end`` iterations."""

    def __init__(
        self, connections: Connections, weights: Mapping[str, float], n: int, patience: float, end: int, votes: int = 0
    ) -> None:
        """``votes`` is the number of iterations between two votes on whether to stop; 0 if there are none."""
        self.connections, self.n, self.epoch, self._patience, self.end = connections, n, 0, patience, end
        self._votes = votes
        self.all = {name: Link(name, weight) for name, weight in weights.items()}
        self.k, self.round = NEVER, 0
        self.higher = 0
        """The highest epoch that we have heard of or started."""
        self.jump: tuple[int, int] | None = None
        """The planned jump: at the first iteration, continue with the second."""
        self.stop = NEVER
        """The number of iterations after which sites have agreed to stop, if we know of an agreement."""
        self._beaten = 0.0
        self.pace = BEAT / 10
        """How long an iteration with neighbours takes, in seconds; the initial guess is on the slow side."""
        self._began = 0.0
        """When the last iteration began."""

    def begin(self, k: int) -> int:
        """Begin iteration k, or a later one if it is time to jump; returns the iteration."""
        self.round, self.k = 0, k
        self.read()
        self._keep_pace()
        for link in self.all.values():
            if link.last_row:
                link.since = None
        if self.jump and k >= self.jump[0]:
            (_, to), self.jump = self.jump, None
            if to > k:
                log.info("jumping from iteration %d to %d, where others are", k, to)
                self.k = k = to
        for link in self.all.values():
            if link.rows:
                self._forget(link)
            if link.since is None:
                self._farewell(link)
                self._approach(link)
        return k

    def adopt(self) -> bool:
        """Move to the highest known epoch; returns whether trackers must be reset."""
        new = self.higher > self.epoch
        self.epoch = self.higher
        return new

    def counts(self, link: Link) -> bool:
        """Whether a link counts in this iteration."""
        return link.since is not None and link.since <= self.k

    def reset_everywhere(self, why: str) -> None:
        """Have the trackers reset at all sites that this one reaches."""
        if self.higher == self.epoch:
            self.higher += 1
            log.info("trackers are reset (epoch %d): %s", self.higher, why)

    def _keep_pace(self) -> None:
        """Keep a site that is alone from running ahead: its iterations take as long as those with neighbours did."""
        now = time.monotonic()
        if any(link.since is not None for link in self.all.values()):
            self.pace += 0.1 * (now - self._began - self.pace) if self._began else 0.0
        elif self._began:
            until = self._began + self.pace
            while (left := until - time.monotonic()) > 0 and not any(map(_ends_pause, self.all.values())):
                self.connections.news.wait(left)
                self.read()
        self._began = time.monotonic()

    def read(self) -> None:
        """Read the messages that have arrived."""
        for name, box in self.connections.boxes.items():
            for _ in range(len(box)):  # and not those that a flood adds meanwhile
                self._take(self.all[name], box.popleft())

    def _take(self, link: Link, message: Message) -> None:
        if message.epoch > self.higher + LEAP:
            self.connections.refuse(f"{link.name} is in epoch {message.epoch}, and we are in {self.epoch}")
            return
        self.higher = max(self.higher, message.epoch)
        self._hear_of_stop(message)
        match message.kind:
            case Kind.ROWS:
                self._keep(link, message)
            case Kind.WHERE:
                link.k, link.alive = message.k, time.monotonic()
            case Kind.DROP:
                link.k = message.k
                if link.since is not None and link.since == message.since:
                    self.drop(link, "it no longer counts the link", tell=False)
            case Kind.PROPOSE:
                self._consider(link, message)
            case Kind.ACCEPT:
                if link.since is None and NEVER != message.k == link.proposed:
                    self._compare(link, message)
                    if self.k < message.k:
                        self._take_up(link, message.k)
            case Kind.DONE:
                link.last_row = bytes(message.payload)  # the row of its last round may still be unread

    def _hear_of_stop(self, message: Message) -> None:
        """Plan a jump to the end if the sender is already there because sites have agreed to stop."""
        at, to = message.jump_at, message.jump_to
        if not self._votes or at % self._votes:
            return
        if self.stop == NEVER and self.k < self.end == to and 0 < at < self.end <= message.k:
            log.info("sites have agreed to stop after iteration %d", at)
            self.stop, self.jump = at, (self.k, self.end)

    def _keep(self, link: Link, message: Message) -> None:
        """Keep a row until its round comes."""
        link.k = message.k
        if link.since is None:  # the neighbour need not wait for our row, and its own counts in no round of ours
            self.connections.send(link.name, Message(Kind.DROP, self.epoch, self.k, since=message.since))
        elif self._expects(message.k) and len(link.rows) < KEPT:
            link.rows[message.k, message.round] = message
        at, to = message.jump_at, min(message.jump_to, self.end)
        # A jump that is announced too far ahead would only keep us from others.
        if to > (self.jump[1] if self.jump else self.k) and at - self.k <= NEAR + self.n:
            self.jump = at, to

    def _expects(self, k: int) -> bool:
        """Whether rows of iteration k will be needed: a neighbour may have jumped, or gone to the end, before we do."""
        if 0 <= k - self.k <= 2 * NEAR or 0 <= k - self.end <= 2 * NEAR:
            return True
        return self.jump is not None and 0 <= k - self.jump[1] <= 2 * NEAR

    def drop(self, link: Link, why: str, tell: bool = True) -> None:
        """Go on without a neighbour until the link is taken up again."""
        if link.since is None:
            return
        before, link.since = (link.since, link.counted), None
        if link.counted:
            link.last, link.counted = before, 0
        link.dropped, link.proposed = time.monotonic(), NEVER
        link.rows.clear()
        link.note_outage(self.k)
        log.warning("iteration %d: going on without %s: %s", self.k, link.name, why)
        if tell:
            self.connections.send(link.name, Message(Kind.DROP, self.epoch, self.k, since=before[0], counted=before[1]))

    def _approach(self, link: Link) -> None:
        """Try to take up a link again: the end whose name sorts first proposes an iteration to start from."""
        if not self.connections.connected(link.name) or link.last_row:
            return
        ahead = link.k - self.k
        if ahead > NEAR and not self.jump and self.k < self.end:
            alone = all(other.since is None for other in self.all.values())
            wait = 1 if alone else self.n
            self.jump = self.k + wait, min(link.k + wait, self.end)
        if self.connections.me < link.name and link.proposed < self.k and abs(ahead) <= NEAR:
            if link.proposed != NEVER:
                link.margin = min(2 * link.margin, NEAR)
            link.proposed = max(self.k, link.k) + link.margin
            since, counted = link.last
            self.connections.send(
                link.name, Message(Kind.PROPOSE, self.epoch, link.proposed, since=since, counted=counted)
            )
        else:
            self._say_where(link)

    def _consider(self, link: Link, message: Message) -> None:
        """Answer a proposal."""
        if link.since is not None:
            self.drop(link, "it wants to take up the link again", tell=False)
        link.k = max(link.k, message.k - MARGIN)
        if not self.k < message.k <= self.k + 2 * NEAR:
            self._say_where(link)
            return
        since, counted = link.last
        accept = Message(Kind.ACCEPT, self.epoch, message.k, since=since, counted=counted)
        self._compare(link, message)
        if self.connections.send(link.name, accept):
            self._take_up(link, message.k)

    def _compare(self, link: Link, message: Message) -> None:
        """Compare what both ends counted before the link was dropped."""
        theirs = (message.since, message.counted)
        if theirs != link.last or theirs == UNKNOWN:  # two unknown counts may differ
            self.reset_everywhere(f"{link.name} and we counted different rounds")
        link.last = NOTHING

    def _take_up(self, link: Link, k: int) -> None:
        link.since, link.counted, link.margin, link.dropped, link.proposed = k, 0, MARGIN, 0.0, NEVER
        if link.outages and len(link.outages[-1]) == 1:
            link.outages[-1].append(k)
        link.k = min(link.k, k)  # the neighbour may have been further ahead before it restarted
        log.info("%s takes part again from iteration %d on", link.name, k)

    def _farewell(self, link: Link) -> None:
        if link.dropped and time.monotonic() - link.dropped > FAREWELL * self._patience:
            link.dropped = 0.0
            self.reset_everywhere(f"{link.name} has been away for a long time")

    def _forget(self, link: Link) -> None:
        """Forget rows of earlier iterations."""
        for place in [place for place in link.rows if place[0] < self.k]:
            del link.rows[place]

    def beat(self) -> None:
        """Tell all neighbours that we are waiting, but at most once per beat."""
        if time.monotonic() - self._beaten >= BEAT:
            self._beaten = time.monotonic()
            for link in self.all.values():
                self._say_where(link)

    def _say_where(self, link: Link) -> None:
        self.connections.send(
            link.name, Message(Kind.WHERE, self.epoch, self.k, self.round, NEVER, 0, *self.agreed_stop())
        )

    def history(self) -> dict[str, dict[str, Any]]:
        """What happened on each link so far, for checkpoints and the report."""
        return {
            name: {
                "rounds": link.made,
                "missed": link.missed,
                "sent": self.connections.sent[name],
                "down": link.outages,
            }
            for name, link in self.all.items()
        }

    def restore(self, history: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from what `history` returned."""
        for name, link in self.all.items():
            if not (before := history.get(name)):  # the neighbour had another name
                continue
            link.made, link.missed, self.connections.sent[name] = before["rounds"], before["missed"], before["sent"]
            link.outages = before["down"]

    def planned_jump(self) -> tuple[int, int]:
        """The jump that our rows announce."""
        return self.agreed_stop() if self.stop != NEVER else self.jump or (NEVER, NEVER)

    def agreed_stop(self) -> tuple[int, int]:
        """The jump to the end that sites have agreed on, if we know of one; ROWS, WHERE and DONE announce it."""
        return (self.stop, self.end) if self.stop != NEVER else (NEVER, NEVER)


def _ends_pause(link: Link) -> bool:
    """Whether this neighbour ends the pause of a site that is alone: it takes part again, or has finished."""
    return link.since is not None or bool(link.last_row)
