"""Products with W_r, the matrix of the links that are up in a round: the weight of a missing link stays at its ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor

from proxdasa.conditions import Weather
from proxdasa.conditions.events import BLOCK
from proxdasa.conditions.weather import Spell
from proxdasa.devices import CPU, Movable, send
from proxdasa.engines.late_rows import Aged
from proxdasa.engines.products import Product, dense_pays
from proxdasa.engines.rounds_ahead import AT_ONCE, RoundsAhead
from proxdasa.engines.substitutes import Substitutes
from proxdasa.engines.sum_noise import SumNoise


class LateTables(NamedTuple):
    """What a product needs for rounds whose messages are late, from one round on."""

    spell: Spell
    place: int
    """The place of the first round in its spell."""
    number: int
    """The number of the first round."""
    newest: int
    """The place of the newest rows in that round; in each of the next it is one further."""
    span: int
    tables: Sequence[Tensor]

    def find(self, spell: Spell, place: int, number: int, newest: int, span: int) -> int:
        """Which of the tables is for this round, or −1 if none is."""
        at = number - self.number
        known = 0 <= at < len(self.tables) and spell is self.spell and place - self.place == at
        return at if known and span == self.span and (self.newest + at) % span == newest else -1


class VaryingProduct:
    """x ``[batch, columns, d]`` ↦ W_r x ``[batch, rows, d]``, for rows of a symmetric matrix that live here.

    ``matrix`` has the rows of the agents here on the columns of a table of agents (see `Halo`); ``edges`` are the links
    of the network, in ascending order. If the graph changes, ``rounds`` has the same rows of each round's matrix, and
    ``matrix`` those of a matrix with all links. In exact mode each row's sum has its terms in ascending order of
    columns, as in `ExactProduct`, and equals its result bit by bit while all links are up. Tables of events are made on
    the host, those of many rounds at once, and sent to the device.
    """

    def __init__(
        self,
        matrix: csr_array,
        here: range,
        columns: np.ndarray,
        edges: np.ndarray,
        dtype: torch.dtype,
        exact: bool,
        rounds: Sequence[csr_array] = (),
        device: torch.device = CPU,
    ) -> None:
        # The diagonal is stored even where it is zero, because the weight of missing links goes there.
        own = csr_array(eye_array(len(columns)).tocsr()[np.searchsorted(columns, np.arange(here.start, here.stop))])
        places = csr_array(abs(matrix) + own)
        places.sort_indices()
        rows = np.repeat(np.arange(len(here)), np.diff(places.indptr))
        left, right = rows + here.start, columns[places.indices]
        across = left != right
        # A link as one number, low · n + high: edges ascend, so a binary search finds it, with no n × n table.
        n = int(edges.max(initial=0)) + 1
        low, high = np.minimum(left, right)[across], np.maximum(left, right)[across]
        numbers = np.searchsorted(edges[:, 0] * n + edges[:, 1], low * n + high)
        links, first, link = np.unique(numbers, return_index=True, return_inverse=True)
        entries = [each[rows, places.indices] for each in rounds or (matrix,)]
        weights = np.stack([np.asarray(each).ravel() for each in entries], axis=1)
        self._shape, self._dtype, self._device = (len(here), len(columns)), dtype, device
        self._indptr, self._dense = places.indptr, not exact and dense_pays(places, 1)
        self._columns = torch.from_numpy(places.indices.astype(np.int64))
        self._links = None if len(links) == len(edges) else torch.from_numpy(links)
        self._link_weights = torch.from_numpy(weights[across][first]).to(dtype)  # [links here, rounds]
        self._self_weights = torch.from_numpy(weights[~across]).to(dtype)  # [rows, rounds]
        self._incident = torch.from_numpy(link.astype(np.int64)), torch.from_numpy(_starts(rows[across], len(here)))
        # Where the entries of W_r are in a list of link weights, self weights and a zero.
        source = np.empty(len(rows), dtype=np.int64)
        source[across], source[~across] = link, len(links) + np.arange(len(here))
        if self._dense:
            full = np.full(self._shape, len(links) + len(here))
            full[rows, places.indices] = source
            source = full.ravel()
        self._source = torch.from_numpy(source)
        # The messages to the rows here: their receivers, where their weights are in W_r, and their numbers.
        flat = rows * len(columns) + places.indices if self._dense else np.arange(len(rows))
        listed = (rows[across], flat[across].astype(np.int64))
        self._receivers, self._weighted = (Movable(torch.from_numpy(each)) for each in listed)
        self._firsts = Movable(self._incident[1])
        earlier = int((edges < here.start).sum())
        self._messages = range(earlier, earlier + len(self._receivers))
        self._substitutes = None
        if not (exact or self._dense):
            numbers, all_links = np.full(len(rows), -1), np.zeros(len(rows), dtype=np.int64)
            numbers[across], all_links[across] = self._messages, links[link]
            receivers = places.indices[~across][rows]
            self._substitutes = Substitutes(places.indices, receivers, all_links, numbers, len(columns), device)
        self._values = torch.from_numpy(weights.T).to(dtype).to(device)  # [rounds, entries]
        # For each size of a batch: where sums begin among its terms, and their weights in each of the rounds.
        self._bags: dict[int, tuple[Tensor, Sequence[Tensor]]] = {}
        self._late: LateTables | None = None
        self._terms = self._order() if exact else []
        self._matrices = RoundsAhead(self.matrices, len(self._source))
        self.sum_noise = SumNoise(here, RoundsAhead(self.spreads, len(rows)), dtype, exact, device)

    def in_weather(self, x: Tensor | Aged, weather: Weather, number: int) -> Tensor:
        """The product of a round with this number; if messages are late, x has rows of several ages."""
        rows = x.table if isinstance(x, Aged) else x
        copies = len(rows) // weather.trials
        apply = self.at_ages(weather, number, x, copies) if isinstance(x, Aged) else self.at(weather, number, copies)
        product = apply(rows)
        if weather.disturbs_sums:
            product = self.sum_noise.add(product, weather, number)
        return self._add_to_messages(product, weather, number) if weather.disturbs_messages else product

    def at(self, weather: Weather, number: int, copies: int = 1) -> Product:
        """The product of a round, if messages arrive as they were sent, for ``copies`` tensors of one kind, stacked."""
        if self._substitutes:
            places = self._substitutes.places(weather, number)
            return lambda x: self._sum_bags(x, places, number)
        matrix = _repeat(self.matrix(weather, number), copies)
        if self._dense:
            return partial(torch.bmm, matrix)  # without a function of Python around it, which would take as long
        return lambda x: self(x, matrix)

    def at_ages(self, weather: Weather, number: int, x: Aged, copies: int = 1) -> Product:
        """The product of a round in which each message carries a row of its own age; an agent's own row is current.

        It applies to tables like that of x, whose newest rows are in the same place.
        """
        if self._substitutes:
            places = self._substitutes.late_places(weather, number, x.newest, x.span)
            return lambda table: self._sum_bags(table, places, number)
        late = _repeat(self._look_late(weather, number, x.newest, x.span), copies)
        if self._dense:
            return partial(torch.bmm, late)
        weights = _repeat(self.matrix(weather, number), copies)

        def in_order(table: Tensor) -> Tensor:
            batch, rows, d = table.shape
            places = late + torch.arange(0, batch * rows, rows).unsqueeze(-1)
            return self._sum_in_order(table.reshape(-1, d), places, weights)

        return in_order

    def _look_late(self, weather: Weather, number: int, newest: int, span: int) -> Tensor:
        """W_r for a table of rows of several ages, ``[trials, rows, span · columns]``, whose newest are in this place.

        In exact mode these are the places of all entries in such a table, ``[trials, entries]``.
        """
        spell, place = weather.look(number)
        made = self._late
        # The newest rows usually move by one place in each round, so those of the next rounds are made together.
        if made is None or (at := made.find(spell, place, number, newest, span)) < 0:
            self.matrix(weather, number)
            matrices = self._matrices.made[place - self._matrices.first :]
            tables = self._make_late(weather, number, newest, span, matrices)
            made, at = LateTables(spell, place, number, newest, span, tables), 0
            self._late = made
        return made.tables[at]

    def _make_late(
        self, weather: Weather, number: int, newest: int, span: int, matrices: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """The same for this round and for those of the next ones whose matrices and ages are known already."""
        place, entries = number % BLOCK, len(self._source)
        most = AT_ONCE // (weather.trials * entries * (span if self._dense else 1))
        matrices = matrices[: max(1, min(most, BLOCK - place))]
        slots = self._late_slots(weather, number, newest, span, len(matrices))
        if not self._dense:
            return (slots * self._shape[1] + self._columns).unbind()
        weights = torch.stack([*matrices]).unsqueeze(3)
        late = weights.new_zeros(*weights.shape[:3], span, self._shape[1])
        return late.scatter_(3, slots.view_as(weights), weights).flatten(3).unbind()

    def _late_slots(self, weather: Weather, number: int, newest: int, span: int, rounds: int) -> Tensor:
        """Which of the ages in a table each entry's row has in these rounds, ``[rounds, trials, entries]``."""
        block, place = divmod(number, BLOCK)
        ages = weather.ages(block)[place : place + rounds, :, self._messages.start : self._messages.stop]
        newest_of_each = torch.arange(newest, newest + rounds).remainder_(span).view(-1, 1, 1)
        slots = newest_of_each.repeat(1, weather.trials, len(self._source))
        slots.index_copy_(2, self._weighted.beside(slots), (newest_of_each - ages).remainder_(span))
        return send(slots, self._device)

    def _add_to_messages(self, product: Tensor, weather: Weather, number: int) -> Tensor:
        """Add Σ_j W_ij ε_ij to each row, in ascending order of senders; a link that is down has no weight."""
        (batch, rows, d), trials, links = product.shape, weather.trials, len(self._messages)
        noise = self._draw_noise(weather, number, batch // trials * d)
        if self._substitutes:
            weights = self._substitutes.up(weather, number) * self._values[number % len(self._values)]
            # The messages to a row are consecutive, so their sum is a bag of embedding_bag.
            trial = torch.arange(trials, device=product.device).unsqueeze(-1)
            starts = self._firsts.beside(product) + trial * links
            sums = torch.nn.functional.embedding_bag(
                torch.arange(trials * links, device=product.device), noise.flatten(0, 1), starts.flatten(),
                mode="sum",
                per_sample_weights=weights.index_select(1, self._weighted.beside(weights)).flatten(),
            ).view(trials, rows, -1, d)  # fmt: skip
            return product.add_(sums.permute(2, 0, 1, 3).reshape(batch, rows, d))
        # Each term is rounded before it is added, as exact mode requires.
        weights = self.matrix(weather, number).flatten(1)
        weighted = noise * weights.index_select(1, self._weighted.beside(weights)).unsqueeze(-1)
        weighted = weighted.view(trials, -1, batch // trials, d).permute(2, 0, 1, 3).reshape(batch, -1, d)
        return product.index_add_(1, self._receivers.beside(product), weighted)

    def _draw_noise(self, weather: Weather, number: int, width: int) -> Tensor:
        """The noise ε of the messages of a round, ``[trials, messages, width]``."""
        return send(weather.noise(number, self._messages, width).to(self._dtype), self._device)

    def matrix(self, weather: Weather, number: int) -> Tensor:
        """W_r of the round with this number, in the form that products take."""
        return self._matrices.at(weather, number)

    def matrices(self, up: Tensor, first: int) -> Sequence[Tensor]:
        """W_r for links that are up ``[trials, links, times]``, in the form that products take.

        That is ``[trials, rows, columns]``, or the entries ``[trials, entries]``. ``first`` is the round of the first
        time, if the graph changes.
        """
        trials, _, times = up.shape
        weights, own = (_in_turn(each, first, times) for each in (self._link_weights, self._self_weights))
        carried = self._carry(up, weights)
        # Adding zero changes no bit, so that W_r is W itself while all links are up.
        own = own + self._per_row(weights - carried)
        listed = torch.cat([carried, own, carried.new_zeros(trials, 1, times)], dim=1)
        entries = send(listed.index_select(1, self._source).permute(2, 0, 1).contiguous(), self._device)
        return entries.view(times, trials, *(self._shape if self._dense else (-1,))).unbind()

    def spreads(self, up: Tensor, first: int) -> Sequence[Tensor]:
        """√(Σ_j W_ij²) over the messages of a round that arrive, ``[trials, rows, 1]`` for each time."""
        squares = self._per_row(self._carry(up, _in_turn(self._link_weights, first, up.shape[-1])).square())
        roots = torch.from_numpy(np.sqrt(squares.numpy()))  # by NumPy, which rounds all roots correctly
        return send(roots.permute(2, 0, 1).unsqueeze(-1).contiguous(), self._device).unbind()

    def _carry(self, up: Tensor, weights: Tensor) -> Tensor:
        """The weights of links here, ``[trials, links here, times]``, which are zero while a link is down."""
        up = up if self._links is None else up.index_select(1, self._links)
        return up.to(self._dtype) * weights

    def _per_row(self, weights: Tensor) -> Tensor:
        """The sums ``[trials, rows, times]`` over the links of each row, in ascending order of neighbours."""
        trials, links, times = weights.shape
        steps, (numbers, starts) = torch.arange(trials).unsqueeze(-1), self._incident
        indices, offsets = numbers + steps * links, starts + steps * len(numbers)
        table = weights.reshape(-1, times)
        sums = torch.nn.functional.embedding_bag(indices.flatten(), table, offsets.flatten(), mode="sum")
        return sums.view(trials, -1, times)

    def __call__(self, x: Tensor, values: Tensor) -> Tensor:
        """Each row becomes the weighted sum of its neighbours' rows; ``values`` are a round's, from `matrices`."""
        if self._dense:
            return torch.bmm(values, x)
        batch, columns, d = x.shape
        places = self._columns + torch.arange(0, batch * columns, columns).unsqueeze(-1)
        return self._sum_in_order(x.reshape(batch * columns, d), places, values)

    def _sum_in_order(self, table: Tensor, places: Tensor, values: Tensor) -> Tensor:
        """Sums ``[batch, rows, d]`` of rows of a table, whose places and weights are ``[batch, entries]``."""
        total = table.new_zeros(len(places), self._shape[0], table.shape[-1])
        for rows, terms in self._terms:
            total[:, rows] += values[:, terms].unsqueeze(-1) * table[places[:, terms]]
        return total

    def _sum_bags(self, table: Tensor, places: Tensor, number: int) -> Tensor:
        """The same sums with the weights that all links have in a round; places are those of each trial."""
        (trials, entries), batch, d = places.shape, table.shape[0], table.shape[-1]
        if batch not in self._bags:
            starts = torch.from_numpy(self._indptr[:-1]) + torch.arange(batch).unsqueeze(-1) * entries
            offsets = starts.flatten().to(places.dtype).to(self._device)
            self._bags[batch] = offsets, [each.repeat(batch) for each in self._values]
        offsets, weights = self._bags[batch]
        rows = table.reshape(-1, d)
        if batch > trials:  # tensors that are stacked
            step = len(rows) * trials // batch
            places = places + torch.arange(0, len(rows), step, dtype=places.dtype, device=places.device).view(-1, 1, 1)
        sums = torch.nn.functional.embedding_bag(
            places.flatten(), rows, offsets, mode="sum", per_sample_weights=weights[number % len(weights)]
        )
        return sums.view(batch, -1, d)

    def _order(self) -> list[tuple[Tensor, Tensor]]:
        """For each s, the rows with an s-th term, and where that term's entry is."""
        counts = np.diff(self._indptr)
        rows = [np.flatnonzero(counts > s) for s in range(int(counts.max(initial=0)))]
        return [(torch.from_numpy(some), torch.from_numpy(self._indptr[some] + s)) for s, some in enumerate(rows)]


def _starts(rows: np.ndarray, count: int) -> np.ndarray:
    """Where each row begins in an ascending list of rows."""
    return np.searchsorted(rows, np.arange(count)).astype(np.int64)


def _in_turn(weights: Tensor, first: int, times: int) -> Tensor:
    """Weights ``[items, rounds]`` of a graph that may change, in the rounds of these times."""
    period = weights.shape[1]
    return weights[:, torch.arange(first, first + times) % period] if period > 1 else weights


def _repeat(values: Tensor, copies: int) -> Tensor:
    """Values of each trial for tensors that are stacked: they travel in the same messages and meet the same events."""
    return values.expand(copies, *values.shape).flatten(0, 1) if copies > 1 else values
