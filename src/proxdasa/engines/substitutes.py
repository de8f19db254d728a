"""Sparse products with W_r that keep the weights of W: the receiver's own row replaces a row that is missing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from proxdasa.conditions import Weather
from proxdasa.conditions.events import BLOCK
from proxdasa.conditions.weather import Spell
from proxdasa.devices import CPU, send

BYTE = 256
EIGHT = torch.arange(8, dtype=torch.uint8).view(8, 1, 1)
"""Shifts that unpack a byte, which says for one link in which of eight rounds it is up."""


class Substitutes:
    """Which row of a table each term of a product uses, in every round.

        (W_r x)_i = W_ii x_i + Σ_j W_ij (x_j if the link is up, else x_i)

    is the product with W_r, written with the weights of W. From round to round only the places of rows change, which
    costs less than to compute new weights and their sums. ``columns`` are the places of all terms if every link is up,
    ``own`` the places of their receivers, ``links`` the numbers of their links and ``messages`` those of their directed
    links. For an agent's own row the link is arbitrary and the message −1. Tables have ``width`` rows for each trial.
    """

    def __init__(
        self,
        columns: np.ndarray,
        own: np.ndarray,
        links: np.ndarray,
        messages: np.ndarray,
        width: int,
        device: torch.device = CPU,
    ) -> None:
        self._own, self._reach = (torch.from_numpy(each.astype(np.int32)) for each in (own, columns - own))
        self._links, self._width = torch.from_numpy(links), width
        self._messages = torch.from_numpy(messages)
        self._receivers: dict[int, Tensor] = {}
        self._device = device
        self._spell: Spell | None = None
        self._bytes, self._byte = torch.empty(0), -1
        self._up, self._places = torch.empty(0), torch.empty(0)
        self._block, self._ages = -1, torch.empty(0)
        self._pace = (-1, 0, 0)
        self._late = (0, torch.empty(0))  # which of the eight rounds late places begin with, and those places

    def places(self, weather: Weather, number: int) -> Tensor:
        """The places of all terms in a round, ``[trials, terms]``; the tables of all trials are stacked into one."""
        moment = self._look(weather, number)
        return self._places[moment]

    def up(self, weather: Weather, number: int) -> Tensor:
        """1 for terms whose link is up and 0 for others, ``[trials, terms]``; an agent's own term may have either."""
        moment = self._look(weather, number)
        return self._up[moment]

    def late_places(self, weather: Weather, number: int, newest: int, span: int) -> Tensor:
        """The places in tables with rows of several ages, ``span`` for each agent and trial (see `Aged`)."""
        moment = self._look(weather, number)
        # The newest rows usually move by one place in each round, so the places of the next rounds are made with these.
        pace = (number - moment, (newest - moment) % span, span)
        first, made = self._late
        if pace != self._pace or not 0 <= moment - first < len(made):
            self._pace, self._late = pace, (moment, self._make_late_places(weather, number, newest, span, moment))
        first, made = self._late
        return made[moment - first]

    def _make_late_places(self, weather: Weather, number: int, newest: int, span: int, moment: int) -> Tensor:
        """The late places of this round, and of the next ones for which `_look` has made places."""
        count = min(8 - moment, BLOCK - number % BLOCK)
        ages = self._ages_of(weather, number, span, count)
        ages = ages * self._up[moment : moment + count]  # a row that replaces a missing one has age 0
        # Slots are newest − age, modulo span. To stay positive, a span is added first. The minimum takes it off where
        # it was not needed: elsewhere subtracting it wraps around to a large unsigned number.
        slots = ((newest + torch.arange(count, device=ages.device)) % span + span).to(ages.dtype).view(-1, 1, 1) - ages
        slots = torch.minimum(slots, slots - span) if slots.dtype == torch.uint8 else slots % span
        places = torch.add(self._places[moment : moment + count], slots.to(torch.int32), alpha=self._width)
        if weather.trials > 1:
            places += self._steps(weather.trials, span, self._device) * (span - 1)
        return places

    def _look(self, weather: Weather, number: int) -> int:
        """Make the places of the eight rounds that include this one; returns which of the eight it is."""
        spell, place = weather.look(number)
        byte, moment = divmod(place, 8)
        if spell is not self._spell:
            # Eight rounds fit into a byte and all rounds of a spell into a 64-bit word, so that looking up the link of
            # a term moves a single number.
            packed = np.packbits(spell.up.numpy(), axis=-1, bitorder="little")
            words = np.zeros((*packed.shape[:2], BLOCK // 8), dtype=np.uint8)
            words[..., : packed.shape[-1]] = packed
            terms = torch.from_numpy(words.view(np.int64)).index_select(1, self._links)
            self._bytes = terms.view(torch.uint8).permute(2, 0, 1).contiguous()
            self._spell, self._byte = spell, -1
        # If the same links are up as in the eight rounds before, their places are reused.
        if byte != self._byte and (self._byte < 0 or not torch.equal(self._bytes[byte], self._bytes[self._byte])):
            up = (self._bytes[byte] >> EIGHT).bitwise_and_(1)
            self._late = (0, torch.empty(0))
            trials = weather.trials
            if trials not in self._receivers:
                self._receivers[trials] = self._own + self._steps(trials)
            places = torch.addcmul(self._receivers[trials], self._reach, up.to(torch.int32))
            self._up, self._places = send(up, self._device), send(places, self._device)
        self._byte = byte
        return moment

    def _steps(self, trials: int, span: int = 1, device: torch.device = CPU) -> Tensor:
        """Where the table of each trial begins."""
        if trials * span * self._width > np.iinfo(np.int32).max:
            raise ValueError(
                f"{trials} trials of {self._width} rows and {span} ages are more rows than conditions can number; "
                "run fewer trials at a time"
            )
        return torch.arange(0, trials * self._width, self._width, dtype=torch.int32, device=device).unsqueeze(-1)

    def _ages_of(self, weather: Weather, number: int, span: int, count: int) -> Tensor:
        """The ages of the rows of all terms in some rounds of a block, ``[count, trials, terms]``."""
        block, place = divmod(number, BLOCK)
        if self._block != block:
            ages = weather.ages(block).permute(1, 2, 0).to(torch.uint8 if span < BYTE // 2 else torch.int32)
            # One more row of zeros, at the place −1 of agents' own rows. The ages of eight rounds are one 64-bit word.
            words = torch.cat([ages, ages.new_zeros(weather.trials, 1, BLOCK)], dim=1).view(torch.int64)
            own = words.shape[1] - 1
            terms = words.index_select(1, torch.where(self._messages < 0, own, self._messages))
            self._block, self._ages = block, terms.view(ages.dtype)
        # NumPy moves the rounds of single bytes to the front faster than torch does (measured).
        some = self._ages[..., place : place + count].permute(2, 0, 1).numpy()
        return send(torch.from_numpy(np.ascontiguousarray(some)), self._device)
