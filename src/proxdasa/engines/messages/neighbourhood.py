"""The agents of one process among all others: what they send to their neighbours, and what all must agree on."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from scipy.sparse import csr_array
from torch import Tensor

from proxdasa.conditions import Weather
from proxdasa.conditions.events import BLOCK
from proxdasa.contracts import Mixing, Network, PeerError
from proxdasa.engines.late_rows import Aged
from proxdasa.engines.messages.halo import Halo, Late, blocks
from proxdasa.engines.messages.transport import LostError, Transport
from proxdasa.engines.products import ExactProduct, Product, adjacency, product
from proxdasa.engines.varying_products import VaryingProduct

TURNS = 2**16
"""Exchanges are numbered modulo this, so that a header in single precision holds their numbers exactly."""

APART = 101
"""The offset between the first exchanges of two neighbourhoods. With two models, an agent that steps them in another
order than the others then notices, and does not mix one model with the other."""
_made: WeakKeyDictionary[Transport, int] = WeakKeyDictionary()
"""How many neighbourhoods have been made of the same processes; all processes make them in the same order."""

MEETING = -1
"""Stands in the header for the number of the exchange if agents meet between two steps."""

Age = Callable[[Tensor], Aged | None]
"""Maps the rows of a round to these and those sent in their place in earlier iterations, if messages may be late."""


@final
class Neighbourhood:
    """The agents of one process and those that they exchange rows with.

    All tensors of a mixing step travel together, in one message to each neighbouring process and round. The header of
    each message holds the number of the exchange, which must be the same at both ends, and, if somebody has asked to
    stop, how many iterations that send are left. All processes send in the same iterations, whichever these are, so the
    request reaches all of them before it takes effect, and all stop before the same iteration.
    """

    def __init__(
        self,
        network: Network,
        mixing: Mixing,
        transport: Transport,
        dtype: torch.dtype,
        exact: bool = False,
        remedy: str = "",
        weather: Weather | None = None,
    ) -> None:
        self._network, self._mixing, self._transport = network, mixing, transport
        self._remedy = f"; {remedy}" if remedy else ""  # the end of the error message if a process is missing
        self.parts = blocks(network.n, transport.size)
        self.agents = self.parts[transport.rank]
        self.halo = Halo.of(network.W, self.parts, transport.rank, transport.device)
        self._exact, self._dtype = exact, dtype
        self.weigh = self._product(network.W)
        self._weather = weather
        if weather is not None:
            self._varying = self._varying_product(network.W, network.rounds)
            self._crossings = self.halo.crossings(network.edges, self.parts, self.agents)
        self.spent = {"wire_bytes": 0.0, "computation": 0.0, "communication": 0.0, "waiting": 0.0}
        # A request to stop is only noted, since a signal may come between any two lines; the next iteration acts on it.
        self.k, self._asked, self._stop, self._turn = 0, False, None, _made.get(transport, 0) * APART % TURNS
        _made[transport] = _made.get(transport, 0) + 1
        self._talks, self._talked = 0, False

    def _product(self, matrix: csr_array) -> Product:
        make = ExactProduct if self._exact else product
        return make(self.halo.block(matrix, self.agents), self._dtype)

    def _varying_product(self, matrix: csr_array, rounds: Sequence[csr_array] = ()) -> VaryingProduct:
        own, *changing = (self.halo.block(each, self.agents) for each in (matrix, *rounds))
        edges = self._network.edges
        return VaryingProduct(own, self.agents, self.halo.columns, edges, self._dtype, self._exact, changing)

    # Few methods need sums over neighbours.

    @cached_property
    def _graph(self) -> Product:
        return self._product(adjacency(self._network.W))

    @cached_property
    def _varying_graph(self) -> VaryingProduct:
        return self._varying_product(adjacency(self._network.W))

    k: int
    """The current iteration."""
    _talks: int
    """The number of iterations so far in which messages were exchanged."""
    _talked: bool
    """Whether the current one is among them."""
    _stop: int | None
    """The number of such iterations after which to stop, once somebody has asked."""

    def mix(self, tensors: tuple[Tensor, ...], first: int = 0, age: Age | None = None) -> tuple[Tensor, ...]:
        """All rounds of mixing, for rows ``[batch, agents here, d]`` on any device; ``first`` numbers the first round.

        If messages are late, ``age`` gives the rows that may be sent in a round.
        """
        # Stacked along the batch axis, so that a neighbour gets one message per round, however many tensors there are.
        home, together = tensors[0].device, torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        sent, rounds = together.to(self._transport.device), itertools.count(first)

        def apply(x: Tensor) -> Tensor:
            if self._weather is None:
                return self.weigh(self.table(x))
            return self._in_weather(self._varying, x, next(rounds), age)

        mixed = self._mixing(apply, sent, self._network.rho)
        return torch.split(mixed.to(home), len(tensors[0]))

    def neighbour_sum(self, x: Tensor, number: int | None = None, age: Age | None = None) -> Tensor:
        """Σ_{j~i} x_j; in a numbered round an agent's own row stands in for one that is missing."""
        if self._weather is None or number is None:
            return self._graph(self.table(x))
        return self._in_weather(self._varying_graph, x, number, age)

    def _in_weather(self, weigh: VaryingProduct, x: Tensor, number: int, age: Age | None) -> Tensor:
        """The product of a round in which rows travel over the links that are up, and over no others."""
        assert self._weather is not None
        up, aged = self._weather.links(number), age and age(x)
        if not aged:
            return weigh.in_weather(self.table(x, up=up), self._weather, number)
        late = Late(self._weather.ages(number // BLOCK)[number % BLOCK], aged.span)
        table = self.table(aged.in_line(), up=up, late=late)
        return weigh.in_weather(Aged.of_lines(table, late.span), self._weather, number)

    def meet(self, like: Tensor) -> None:
        """Exchange messages as large as those of a step, which say that no step follows.

        An agent that has begun another step, and waits for our rows, then learns at once that we have stopped.
        """
        self.table(torch.zeros_like(like, device=self._transport.device), meeting=True)

    def ask_to_stop(self) -> None:
        """Stop soon. This may be called at any time, even before the first iteration is known (a resumed run)."""
        self._asked = True

    def proceed(self, k: int) -> bool:
        """Whether to run iteration k; false once all have agreed to stop before it.

        The request travels at least one hop in each iteration that sends, so after as many of these as there are other
        processes everybody knows it. Only these are counted: an iteration may send nothing.
        """
        self.k, self._talks, self._talked = k, self._talks + self._talked, False
        if self._asked and self._stop is None:
            self._stop = self._talks + self._transport.size - 1
        return self._stop is None or self._talks < self._stop

    def fail(self, reason: str) -> None:
        """Let the other processes know why the agents here stop."""
        self._transport.fail(reason)

    def agree(self, claims: Mapping[str, str]) -> None:
        """Compare the network, and whatever else must be the same for all, with the other processes.

        Without this, a message of another size or type would be read as garbage.
        """
        weights = hashlib.sha256()
        for W in (self._network.W, *self._network.rounds):
            weights.update(W.indptr.tobytes() + W.indices.tobytes() + W.data.tobytes())
        claims = {"number of agents": str(self._network.n), "network": weights.hexdigest(), **claims}
        # Digests all have one size, so that processes whose texts differ can still read each other's message.
        own = torch.stack([_digest(text) for text in claims.values()])
        theirs = {peer: torch.empty_like(own) for peer, _ in self.others()}
        if self._transport.rank:
            self.exchange({0: own}, {})
        else:
            self.exchange({}, theirs)
        # The first process that differs from process 0, and the number of the first claim in which it does.
        differences = [
            [peer, int((own != digests).any(dim=1).nonzero()[0])]
            for peer, digests in theirs.items()
            if self._transport.rank == 0 and not torch.equal(own, digests)
        ]
        if verdict := self.broadcast(differences[:1]):
            peer, number = verdict[0]
            raise ValueError(
                f"{self._name_of(peer)} and {self._name_of(0)} do not have the same {[*claims][number]}; "
                "start all processes with the same file and options"
            )

    def broadcast(self, value: Any) -> Any:
        """The plain JSON value that process 0 passes, in every process."""
        # The size goes ahead: a receiver must have a buffer of the right length before it can receive anything.
        size = torch.zeros(1, dtype=torch.int64)
        if self._transport.rank:
            self.exchange({}, {0: size})
            text = torch.empty(int(size), dtype=torch.uint8)
            self.exchange({}, {0: text})
            return json.loads(bytes(text.numpy()))
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        size[0] = len(text)
        for message in (size, text):
            self.exchange({peer: message for peer, _ in self.others()}, {})
        return value

    def others(self) -> list[tuple[int, range]]:
        """The other processes and their agents."""
        return [(peer, part) for peer, part in enumerate(self.parts) if peer != self._transport.rank]

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:
        """Exchange messages with processes; returns the seconds spent waiting."""
        try:
            return self._transport.exchange(out, into)
        except LostError as error:
            raise self._loss_error(error) from error

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        try:
            return self._transport.sum(x)
        except LostError as error:
            raise self._loss_error(error) from error

    def table(self, x: Tensor, meeting: bool = False, up: Tensor | None = None, late: Late | None = None) -> Tensor:
        """The rows here and those that neighbours elsewhere send now, in a buffer that is reused.

        If only some links are ``up``, ``[trials, links]``, rows that none of them carries are not sent, and are zero.
        If messages are late, each row is followed by older ones, and only those of the ages that links carry are sent.
        """
        # No neighbour lives elsewhere, as in a lone process, so the table is x itself.
        if not self.halo.sends:
            return x
        began = time.perf_counter()
        some = None if up is None else self.halo.some_buffers(x, self._crossings, up, late)
        out, into, table, own, theirs = some or self.halo.buffers(x)
        self._turn = (self._turn + 1) % TURNS
        turn = MEETING if meeting else self._turn
        # How many are left, rather than where to stop, which a float32 header could not hold exactly. At least 1, since
        # 0 means that nobody has asked.
        left = 0 if self._stop is None else max(1, self._stop - self._talks)
        for peer, message in out.items():
            if up is None:
                torch.index_select(x, 1, self.halo.sends[peer], out=message.rows)
            message.header[0], message.header[1] = turn, left
            self.spent["wire_bytes"] += message.buffer.nbytes
        waiting = self.exchange(
            {peer: message.buffer for peer, message in out.items()},
            {peer: message.buffer for peer, message in into.items()},
        )
        self._talked = True
        own.copy_(x)
        for peer, message in into.items():
            self._read_header(peer, turn, *message.header.tolist())
            if up is None:
                theirs[peer].copy_(message.rows)
            else:
                theirs[peer].view(len(x), -1, message.rows.shape[-1])[message.travelling] = message.rows
        self.spent["waiting"] += waiting
        self.spent["communication"] += time.perf_counter() - began - waiting
        return table

    def _read_header(self, peer: int, due: int, turn: float, left: float) -> None:
        if turn != due:
            problem = f"{self._name_of(peer)} sent message number {turn:.0f} where number {due} was due"
            if MEETING in (due, turn):
                pair = [self._name_of(peer), self._name_of(self._transport.rank)]
                done, busy = pair if turn == MEETING else reversed(pair)
                problem = f"{done} stopped after {self.k} steps, and {busy} takes another"
            raise self._peer_error(f"{problem}; all agents must take the same steps")
        # The numbers of the exchanges agree, so the sender is in our iteration, and as many iterations are left for us
        # as for the sender. If several have asked, all end up with the earliest stop.
        if left:
            told = self._talks + int(left)
            self._stop = told if self._stop is None else min(told, self._stop)

    def _loss_error(self, error: LostError) -> PeerError:
        """The loss of a process as an error that says which agent misses which."""
        here, there = self.agents.start, self.parts[error.peer].start
        if error.peer in self.halo.receives:
            there = int(self.halo.columns[self.halo.receives[error.peer]][0])
            here = next(i for i in self.agents if self._network.W[i, there])
        # A sum involves everybody: if it fails and nobody knows why, the transport names this process itself.
        lost = "the other agents" if error.peer == self._transport.rank else f"agent {there}"
        return self._peer_error(f"agent {here} has no message from {lost} in iteration {self.k}: {error.why}")

    def _peer_error(self, what: str) -> PeerError:
        """The error to raise here: for this cause, or for the one that another process reported before."""
        # The first cause counts: those who miss a dead process stop, and are missed by their own neighbours in turn.
        own = what + self._remedy
        first = self._transport.fail(own)
        return PeerError(first, noticed_here=first == own)

    def _name_of(self, peer: int) -> str:
        part = self.parts[peer]
        return f"agents {part.start} to {part.stop - 1}" if len(part) > 1 else f"agent {part.start}"


def _digest(text: str) -> Tensor:
    return torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.int64)
