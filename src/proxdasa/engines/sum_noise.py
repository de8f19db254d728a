"""Gaussian noise of messages, added to the sums of their receivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from proxdasa.conditions import Weather
from proxdasa.devices import CPU, send
from proxdasa.engines.rounds_ahead import RoundsAhead

FEW = 2**17
"""If a round needs fewer numbers than this, several rounds are drawn at once: the time for few numbers does not depend
on how many they are."""

NOTHING: tuple[range, Sequence[Tensor]] = range(0), ()


@final
class SumNoise:
    """Adds the noise of all messages that arrive in a round to the products of their receivers, which live here.

    ``spreads`` has √(Σ_j W_ij²) over these messages, for each round.
    """

    def __init__(
        self, here: range, spreads: RoundsAhead, dtype: torch.dtype, exact: bool, device: torch.device = CPU
    ) -> None:
        self._here, self._spreads = here, spreads
        self._dtype, self._exact, self._device = dtype, exact, device
        # For each tensor and dimension, some rounds and their noise.
        self._held: dict[tuple[int, int], tuple[range, Sequence[Tensor]]] = {}

    def add(self, product: Tensor, weather: Weather, number: int, first: int = 0) -> Tensor:
        """Add noise, in place, to the products of stacked tensors, the first of which has this number in its round."""
        batch, _, d = product.shape
        parts = (product,) if batch == weather.trials else torch.split(product, weather.trials)
        for tensor, part in enumerate(parts, first):
            noise, spread = self._look(weather, number, tensor, d)
            if spread is None:
                part.add_(noise)
            elif self._exact:  # a fused multiply-add would round once where others round twice
                part.add_(noise * spread)
            else:
                part.addcmul_(noise, spread)
        return product

    def _look(self, weather: Weather, number: int, tensor: int, d: int) -> tuple[Tensor, Tensor | None]:
        """The noise of a tensor in a round, and the factor by which it is still to be multiplied, if any."""
        ahead = FEW // (weather.trials * weather.n * d or 1) if len(self._here) == weather.n else 1
        if ahead <= 1:  # this noise is not used again, so it is not kept
            return self._draw(weather, range(number, number + 1), tensor, d)[0], self._spreads.at(weather, number)
        rounds, noise = self._held.get((tensor, d), NOTHING)
        if number not in rounds:
            rounds = range(number - number % ahead, number - number % ahead + ahead)
            drawn = self._draw(weather, rounds, tensor, d)
            if weather.calm:  # then all rounds have the same spread
                drawn.mul_(self._spreads.at(weather, number))
            noise = drawn.unbind()
            self._held[tensor, d] = rounds, noise
        return noise[number - rounds.start], None if weather.calm else self._spreads.at(weather, number)

    def _draw(self, weather: Weather, rounds: range, tensor: int, d: int) -> Tensor:
        return send(weather.noise_of_sums(rounds, tensor, self._here, d).to(self._dtype), self._device)
