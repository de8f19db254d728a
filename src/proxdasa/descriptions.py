"""Descriptions of a run's objects as plain values for JSON."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NAMES: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Classes and functions that a file has named as MODULE:NAME."""


def remember_name(thing: Any, name: str) -> None:
    """Describe a class or function by this name from now on, so that what is saved can be read again."""
    _NAMES[thing] = name


def describe(thing: Any) -> Any:
    """A JSON-able description: plain values as they are, objects as {"name": ..., parameters ...}."""
    if isinstance(thing, float) and not math.isfinite(thing):
        return str(float(thing))  # "inf" or "nan", which JSON cannot express as numbers
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, np.ndarray | np.generic):
        return describe(torch.as_tensor(thing))
    if isinstance(thing, Tensor):
        if thing.numel() <= 64:
            return describe(thing.tolist())
        digest = hashlib.sha256(thing.detach().contiguous().cpu().numpy().tobytes()).hexdigest()
        return {"shape": list(thing.shape), "dtype": str(thing.dtype), "sha256": digest}
    if isinstance(thing, torch.dtype):
        return str(thing).removeprefix("torch.")
    if isinstance(thing, functools.partial):
        return {"name": describe(thing.func), **describe(thing.keywords)}
    if isinstance(thing, Mapping):
        return {str(key): describe(value) for key, value in thing.items()}
    if isinstance(thing, Sequence):
        return [describe(value) for value in thing]
    if callable(getattr(thing, "describe", None)):
        described = describe(thing.describe())
        return {**described, "name": _NAMES[type(thing)]} if type(thing) in _NAMES else described
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        # Fields left out of repr are not settings; an example is the first agent of a part of a problem.
        return {
            "name": _name_of(type(thing)),
            **{field.name: _value(thing, field) for field in dataclasses.fields(thing) if field.repr},
        }
    return _name_of(thing)


def _name_of(thing: Any) -> str:
    if (own := _NAMES.get(thing) if callable(thing) else None) is not None:
        return own
    # Without the address in memory, which differs between processes.
    return str(getattr(thing, "__name__", re.sub(r" at 0x[0-9a-f]+", "", repr(thing))))


def _value(thing: Any, field: dataclasses.Field[Any]) -> Any:
    """The description of a field; numbers by trial, ``[trials, 1, 1]``, become the plain list they were made from."""
    value = getattr(thing, field.name)
    data = field.type in (Tensor, "Tensor")  # as opposed to a parameter, which may be one number too
    if isinstance(value, Tensor) and value.shape[1:] == (1, 1) and not data:
        return describe(value.flatten().tolist())
    return describe(value)
