"""What the methods with one constant proximal step have in common."""

from __future__ import annotations

from dataclasses import dataclass

from proxdasa.checks import check_positive
from proxdasa.schedules import Number


@dataclass(frozen=True, eq=False)
class ProximalStep:
    """A method whose proximal step γ is constant; stationarity is measured at the same γ."""

    gamma: Number

    def __post_init__(self) -> None:
        check_positive(self.gamma, "gamma")

    @property
    def mapping_gamma(self) -> Number:
        """γ, the proximal step."""
        return self.gamma
