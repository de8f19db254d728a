"""The floating-point type in which a problem is computed, and a check whether its data have more digits."""

from __future__ import annotations

import torch

from proxdasa import caller_warnings
from proxdasa.data import Dataset, Examples
from proxdasa.data.per_agent_files import PerAgent


def default_dtype(data: Examples) -> torch.dtype:
    """float64 if the data have it, or are declared to, otherwise torch's default."""
    if isinstance(data, Dataset):
        double = torch.float64 in (data.x.dtype, data.y.dtype)
    else:
        double = isinstance(data, PerAgent) and data.dtype == "float64"
    return torch.float64 if double else torch.get_default_dtype()


def check_precision(data: Dataset, dtype: torch.dtype) -> None:
    """Warn if numbers that were just read from files are rounded when they are cast to this type.

    Raises:
        ValueError: if one of them is too large for the type.
    """
    rounded = []
    for name, part in (("x", data.x), ("y", data.y)):
        same = part.to(dtype).to(part.dtype) == part if part.is_floating_point() else torch.ones(1, dtype=torch.bool)
        if not bool(same.all()):
            rounded.append(name)
            if bool((large := part.to(dtype).isinf()).any()):
                raise ValueError(
                    f"{data.name}: {name} has {part[large][0]:g}, which is too large for {_name(dtype)}, in which the "
                    f'problem is computed; per_agent(..., dtype="{_name(part.dtype)}") computes in {_name(part.dtype)}'
                )
    if rounded:
        computed, kind = _name(dtype), _name(torch.float64)
        caller_warnings.warn(
            f"{data.name}: {' and '.join(rounded)} in {kind} {'are' if rounded[1:] else 'is'} rounded to {computed}, "
            f'in which the problem is computed; per_agent(..., dtype="{kind}") computes in {kind}, dtype="{computed}" '
            "says that rounding is fine"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
