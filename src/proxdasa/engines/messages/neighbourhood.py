"""The agents of one process among all others: what they send to their neighbours, and what everybody must agree on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor

from proxdasa.contracts import Mixing, Network, PeerError
from proxdasa.engines.messages.halo import Halo, blocks
from proxdasa.engines.messages.transport import LostError, Transport
from proxdasa.engines.products import ExactProduct, adjacency, product

TURNS = 2**16
"""Rounds are numbered modulo this in messages, which every floating-point type can hold."""

MEETING = -1
"""Stands in place of the round where agents meet between two steps."""


@final
class Neighbourhood:
    """The agents of one process and those that they exchange rows with.

    All tensors of a mixing step travel together, in one message to each neighbouring process and round. Each message
    also says in which round it was sent, and how many iterations are left if somebody has asked to stop: as a step has
    at least one round, everybody knows before it is time, and all stop before the same iteration.
    """

    def __init__(
        self,
        network: Network,
        mixing: Mixing,
        transport: Transport,
        dtype: torch.dtype,
        exact: bool = False,
        remedy: str = "",
    ) -> None:
        self._network, self._mixing, self._transport = network, mixing, transport
        self._remedy = f"; {remedy}" if remedy else ""  # for those who miss a message
        self.parts = blocks(network.n, transport.size)
        self.agents = self.parts[transport.rank]
        self._halo = Halo.of(network.W, self.parts, transport.rank, transport.device)
        made = ExactProduct if exact else product
        self._weights = made(self._halo.block(network.W, self.agents), dtype)
        self._graph = made(self._halo.block(adjacency(network.W), self.agents), dtype)
        self.spent = {"bytes": 0.0, "computation": 0.0, "communication": 0.0, "waiting": 0.0}
        self.k, self._asked, self._stop, self._turn = 0, False, None, 0

    k: int
    """The iteration that is being made."""
    _stop: int | None
    """The iteration before which to stop, once somebody has asked."""

    def mix(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """All rounds of mixing, for rows ``[company, agents here, d]``, which may live where no message leaves from."""
        home, together = tensors[0].device, torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        sent = together.to(self._transport.device)
        mixed = self._mixing(lambda x: self._weights(self._table(x)), sent, self._network.rho)
        return torch.split(mixed.to(home), len(tensors[0]))

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """Σ_{j~i} x_j."""
        return self._graph(self._table(x))

    def meet(self, like: Tensor) -> None:
        """Exchange messages with the neighbours that look like those of a step and say that none is made.

        So an agent that waits for the rows of one that has made its last step learns it at once.
        """
        self._table(torch.zeros_like(like, device=self._transport.device), meeting=True)

    def ask_to_stop(self) -> None:
        """Stop soon; may come at any time, such as before it is known with which iteration a run goes on."""
        self._asked = True

    def proceed(self, k: int) -> bool:
        """Whether iteration k is to be made: false from the iteration on that all have agreed to stop at.

        That is when everybody can know: a message needs at most one iteration for each process on its way.
        """
        self.k = k
        if self._asked and self._stop is None:
            self._stop = k + self._transport.size
        return self._stop is None or k < self._stop

    def fail(self, reason: str) -> None:
        """Tell the others why the agents here stop."""
        self._transport.fail(reason)

    def agree(self, what: Mapping[str, str]) -> None:
        """Compare with the others the network and what else all must have alike.

        A message of another size or type would be garbage.
        """
        W = self._network.W
        weights = hashlib.sha256(W.indptr.tobytes() + W.indices.tobytes() + W.data.tobytes()).hexdigest()
        what = {"number of agents": str(self._network.n), "network": weights, **what}
        own = torch.stack([_digest(text) for text in what.values()])
        if self._transport.rank:
            verdict = torch.empty(2, dtype=torch.int64)
            self.exchange({0: own}, {})
            self.exchange({}, {0: verdict})
        else:
            theirs = {peer: torch.empty_like(own) for peer in range(1, self._transport.size)}
            self.exchange({}, theirs)
            other = [(peer, int((own != digests).any(dim=1).nonzero()[0])) for peer, digests in theirs.items()
                     if not torch.equal(own, digests)]  # fmt: skip
            verdict = torch.tensor(other[0] if other else (0, 0))
            self.exchange(dict.fromkeys(theirs, verdict), {})
        peer, which = verdict.tolist()
        if peer:
            raise ValueError(
                f"{self._named(peer)} and {self._named(0)} do not have the same {[*what][which]}; "
                "start all processes with the same file and options"
            )

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> float:
        """Messages to and from processes; the seconds spent waiting."""
        with self._losses():
            return self._transport.exchange(out, into)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        with self._losses():
            return self._transport.sum(x)

    def _table(self, x: Tensor, meeting: bool = False) -> Tensor:
        """The rows here and those of neighbours elsewhere, fresh from them."""
        if not self._halo.sends:
            return x
        began = time.perf_counter()
        out, into, table = self._halo.buffers(x)
        self._turn = (self._turn + 1) % TURNS
        turn = MEETING if meeting else self._turn
        left = 0 if self._stop is None else max(1, self._stop - self.k)
        for peer, message in out.items():
            torch.index_select(x, 1, self._halo.sends[peer], out=message.rows)
            message.header[0], message.header[1] = turn, left
            self.spent["bytes"] += message.buffer.nbytes
        waiting = self.exchange(
            {peer: message.buffer for peer, message in out.items()},
            {peer: message.buffer for peer, message in into.items()},
        )
        table[:, self._halo.own] = x
        for peer, message in into.items():
            self._read_header(peer, turn, *message.header.tolist())
            table[:, self._halo.receives[peer]] = message.rows
        self.spent["waiting"] += waiting
        self.spent["communication"] += time.perf_counter() - began - waiting
        return table

    def _read_header(self, peer: int, due: int, turn: float, left: float) -> None:
        if turn != due:
            words = f"{self._named(peer)} sent message number {turn:.0f} where number {due} was due"
            if MEETING in (due, turn):
                pair = [self._named(peer), self._named(self._transport.rank)]
                ready, busy = pair if turn == MEETING else reversed(pair)
                words = f"{ready} stopped after {self.k} steps, and {busy} makes another"
            raise self._missed(f"{words}; all agents must make the same steps")
        if left:
            self._stop = min(self.k + int(left), self._stop or self.k + int(left))

    @contextmanager
    def _losses(self) -> Iterator[None]:
        try:
            yield
        except LostError as error:
            raise self._lost(error) from error

    def _lost(self, error: LostError) -> PeerError:
        """Which agent misses which, or whatever was noticed first anywhere."""
        here, there = self.agents.start, self.parts[error.peer].start
        if error.peer in self._halo.receives:
            there = int(self._halo.columns[self._halo.receives[error.peer]][0])
            here = next(i for i in self.agents if self._network.W[i, there])
        missed = "the other agents" if error.peer == self._transport.rank else f"agent {there}"
        return self._missed(f"agent {here} has no message of {missed} in iteration {self.k}: {error.why}")

    def _missed(self, what: str) -> PeerError:
        words = what + self._remedy
        reason = self._transport.fail(words)
        return PeerError(reason, reason == words)

    def _named(self, peer: int) -> str:
        part = self.parts[peer]
        return f"agents {part.start} to {part.stop - 1}" if len(part) > 1 else f"agent {part.start}"


def _digest(text: str) -> Tensor:
    return torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.int64)
