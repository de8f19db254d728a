"""Prepares what products need in each round for several rounds at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from proxdasa.conditions import Weather
from proxdasa.conditions.weather import Spell

AT_ONCE = 2**18
"""How many entries are computed at once: many, because each operation has a fixed cost of some microseconds, but not
more than fit into a processor's cache."""


class RoundsAhead:
    """Prepares a tensor for each round of a product, for several rounds of a spell at once.

    ``make`` returns the tensors, given the links that are up ``[trials, links, times]`` and the first of the times.
    ``size`` is the number of entries that it computes for each trial and time.
    """

    def __init__(self, make: Callable[[Tensor, int], Sequence[Tensor]], size: int) -> None:
        self._make, self._size = make, size
        self._spell: Spell | None = None
        self.first = 0
        """The place in the spell of the first round that is prepared."""
        self.made: Sequence[Tensor] = ()

    def at(self, weather: Weather, number: int) -> Tensor:
        """The tensor of the round with this number."""
        spell, place = weather.look(number)
        if spell is not self._spell or not 0 <= place - self.first < len(self.made):
            span = max(1, min(spell.length, AT_ONCE // (weather.trials * self._size or 1)))
            first = place - place % span
            self.made = self._make(spell.up[..., first : first + span], spell.first + first)
            self._spell, self.first = spell, first
        return self.made[place - self.first]
