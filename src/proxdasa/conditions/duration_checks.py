"""Checks of mean durations."""

from __future__ import annotations

from proxdasa.checks import check_positive_number


def check_means(mean_up: float, mean_down: float, unit: str) -> None:
    """Refuse durations that a chain with geometric lengths cannot have."""
    check_positive_number(mean_up, "mean_up")
    check_positive_number(mean_down, "mean_down")
    # `Chain` compares one number with both bounds: below 1/mean_up an item fails, above 1 − 1/mean_down it recovers.
    if 1 / mean_up + 1 / mean_down > 1:
        raise ValueError(
            f"mean_up = {mean_up:g} and mean_down = {mean_down:g} {unit} are too short: 1/mean_up + 1/mean_down must "
            "be at most 1, as for 2 and 2"
        )
