"""Whether a run can continue from a checkpoint: an intact one may still hold what this run cannot have written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from proxdasa.runs.checkpoints import Checkpoint
from proxdasa.runs.records import Row
from proxdasa.runs.results import EXTRA

LARGEST = 2**53
"""Floats hold counts up to this number exactly; no run comes near it."""


@dataclass(frozen=True)
class Expected:
    """The shapes, types and ranges of a run's checkpoints."""

    variables: Collection[str]
    """The names of the state's tensors."""
    shape: tuple[int, int, int]
    """The shape of each of them: ``[trials, agents, d]``."""
    dtype: torch.dtype
    iterations: int
    """K."""
    watched: int
    """How many numbers the stopping rule stores."""

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise a ValueError if this run cannot have written the checkpoint."""
        if not 0 <= checkpoint.k <= self.iterations:
            raise ValueError(f"it is of iteration {checkpoint.k}, but the run has only {self.iterations}")
        self._check_state(checkpoint)
        last = 0
        for number, row in enumerate(checkpoint.rows, start=1):
            self._check_row(number, row, last, checkpoint.k)
            last = row["k"]
        self._check_notes(checkpoint.notes, checkpoint.k)

    def _check_state(self, checkpoint: Checkpoint) -> None:
        beside = checkpoint.notes.get("extra_rows", {})
        shapes = dict.fromkeys(self.variables, self.shape)
        shapes |= {EXTRA + name: (*self.shape[:2], width) for name, width in beside.items()}
        found, expected = set(checkpoint.state), set(shapes)
        if found != expected:
            raise ValueError(f"its state has {_join(found)}, but that of the run has {_join(expected)}")
        for name, tensor in checkpoint.state.items():
            if (tuple(tensor.shape), tensor.dtype) != (shapes[name], self.dtype):
                given = f"{list(tensor.shape)} of {tensor.dtype}"
                raise ValueError(f"{name} is {given}, but in this run it is {list(shapes[name])} of {self.dtype}")

    def _check_row(self, number: int, row: Row, earliest: int, k: int) -> None:
        trials, _, _ = self.shape
        if not (_whole(row.get("trial"), 0, trials - 1) and _whole(row.get("k"), earliest, k)):
            raise ValueError(
                f"row {number} must have a trial from 0 to {trials - 1} and a k from {earliest} to {k}; "
                f"it has {row.get('trial')!r:.40} and {row.get('k')!r:.40}"
            )
        for name, value in row.items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ValueError(f"row {number} must have a number for {name!r:.40}; it has {value!r:.40}")

    def _check_notes(self, notes: Mapping[str, Any], k: int) -> None:
        trials, agents, _ = self.shape
        fits: dict[str, Callable[[Any], bool]] = {
            "observed": lambda value: _whole(value, -1, k),
            "seconds": _amount,
            "counts": lambda value: (
                isinstance(value, dict)
                and all(map(_amount, value.values()))
                and float(value.get("rounds", 0.5)).is_integer()  # events are named by it, so it must be known
            ),
            "diverged": lambda value: (
                isinstance(value, dict)
                and all(_whole_text(trial, trials - 1) for trial in value)
                and all(_pair(where, agents - 1, k) for where in value.values())
            ),
            "watch": lambda value: (
                isinstance(value, list)
                and len(value) == self.watched
                and all(_whole(number, -1, self.iterations) for number in value)
            ),
            "watched": lambda value: value is None or _whole(value, -1, k),  # checkpoints of earlier versions lack it
        }
        for name, fit in fits.items():
            if not fit(notes.get(name)):
                raise ValueError(f"its entry {name} cannot be of this run: {notes.get(name)!r:.60}")


def _whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _whole_text(value: str, most: int) -> bool:
    return value.isascii() and value.isdecimal() and len(value) < 16 and int(value) <= most


def _amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _pair(value: object, agent: int, k: int) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and _whole(value[0], 0, agent) and _whole(value[1], 0, k)


def _join(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
