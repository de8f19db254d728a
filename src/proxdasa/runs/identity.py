"""Distinguish runs that have the same description: users' own functions and objects, by what they compute.

Two runs may both be described by ``alpha = <lambda>`` and still be different runs. Schedules are compared by their
values. Everything else, such as a loss or a regularizer, is compared by what the run computes first: one step from x⁰,
the proximal step and mixing of some fixed rows, and measures after that step. So are data and networks from files, of
which a description has only the names.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxdasa import networks
from proxdasa.contracts import Algorithm, Engine
from proxdasa.data import Dataset
from proxdasa.data.per_agent_files import PerAgent
from proxdasa.descriptions import describe
from proxdasa.metrics import Metric, View
from proxdasa.networks import Network
from proxdasa.problems import LINKS, Link
from proxdasa.schedules import Alpha, Schedule

FIRST, SPREAD = 300, 200
"""Schedules are compared at this many first iterations, and at this many more up to K."""
SCALES = (0.01, 1.0, 100.0)
"""Sizes of the rows to which Ψ is applied."""
LOSS = "the loss after one step"
FIRST_STEP = "by what it computes first"
"""Takes the place of a digest for objects that are compared by what the run computes first."""

Numbers = dict[str, list[Any]]
"""Computed figures by name, as plain values."""


@dataclass(frozen=True)
class Identity:
    """What distinguishes a run from others with the same description."""

    own_schedules: Mapping[str, Alpha]
    """Schedules that are the user's own functions, by name."""
    strangers: Mapping[str, bool]
    """Everything else that is not part of the library, and whether its description has all of its parameters."""
    iterations: int
    """K."""
    files: Sequence[str] = ()
    """The data and the network, if they are read from files."""

    @staticmethod
    def of(settings: Mapping[str, Any], bound: Algorithm, iterations: int) -> Identity:
        """The identity of a run with these settings and this algorithm, whose schedules are bound."""
        values = {entry.name: getattr(bound, entry.name) for entry in dataclasses.fields(bound)}  # type: ignore[arg-type]
        given = {name: getattr(settings["algorithm"], name) for name in values}
        own = {
            f"algorithm.{name}": values[name] for name in values if callable(given[name]) and not is_ours(given[name])
        }
        found = dict(item for name, thing in settings.items() for item in _strangers(thing, name))
        strangers = {name: told for name, told in found.items() if name not in own}
        return Identity(own, strangers, iterations, list(_files(settings["problem"], settings["network"])))

    @property
    def only_named(self) -> list[str]:
        """What is compared by what the run computes first."""
        return [*self.strangers, *self.files]

    def digests(self) -> dict[str, str]:
        """A digest for everything that the description only names."""
        values = {name: _digest(name, alpha, self.iterations) for name, alpha in self.own_schedules.items()}
        return values | {name: FIRST_STEP for name, told in self.strangers.items() if not told}

    def compare(self, theirs: object, ours: Numbers, dtype: torch.dtype) -> None:
        """Refuse the checkpoint of a run whose first results differ from ours by more than rounding."""
        if theirs is None:  # written by a version that did not store them
            return
        known: Mapping[str, Any] = theirs if isinstance(theirs, Mapping) else {}
        for name in ours:
            if name == LOSS and name not in known:  # written by a version that did not store it
                continue
            if not _close(known.get(name), ours[name], dtype):
                raise ValueError(
                    f"the run of these checkpoints computed something else: {name} was {_show(known.get(name))}, and "
                    f"now is {_show(ours[name])}; something of your own has changed: "
                    f"{' or '.join(self.only_named)}; choose another folder, or move this one away to start again"
                )


def first_results(engine: Engine, view: View, metrics: Sequence[Metric], from_files: bool = False) -> Numbers:
    """Figures of what a run computes first, after its first step; all agents take part.

    Those of a run ``from_files`` include the loss, because a step depends on few of the examples.
    """
    pattern = _pattern(engine, view.x)

    def distance(rows: Tensor) -> Tensor:  # to the pattern, so that signs and order of coordinates matter
        return engine.mean((rows - pattern).square().mean(dim=-1, keepdim=True)).flatten()

    seen: dict[str, Tensor] = {}
    for scale in SCALES:
        seen[f"the proximal step at {scale}"] = distance(engine.prox(scale * pattern, 1.0))
        seen[f"Ψ at {scale}"] = engine.mean(engine.value(scale * pattern).unsqueeze(-1)).flatten()
    with engine.stepping():
        seen["mixing"] = distance(engine.mix(pattern))
    seen |= {f"{name} after one step": distance(rows) for name, rows in view.state._asdict().items()}
    seen |= {LOSS: view.at_mean.loss.flatten()} if from_files else {}
    seen |= {f"the measure {metric.name}": metric.of(view) for metric in metrics if not is_ours(metric.of)}
    return {name: describe(values.cpu().to(torch.float64).tolist()) for name, values in seen.items()}


def _strangers(thing: Any, name: str) -> Iterator[tuple[str, bool]]:
    """The names of the user's own objects in a setting, and whether each is described in full."""
    if thing is None or isinstance(thing, bool | int | float | str | Tensor | np.ndarray | np.generic | torch.dtype):
        return
    if isinstance(thing, Network) or (isinstance(thing, Link) and thing in LINKS):
        return
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from _strangers(value, f"{name}.{key}")
    elif isinstance(thing, Sequence):
        for number, value in enumerate(thing):
            yield from _strangers(value, f"{name}[{number}]")
    elif isinstance(thing, functools.partial) and not thing.args:
        yield from _strangers(thing.func, name)
        yield from _strangers(thing.keywords, name)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        loaded_by_user = isinstance(thing, Dataset) and ":" in thing.name
        if not is_ours(thing) or loaded_by_user:
            yield name, True
        for entry in dataclasses.fields(thing):
            yield from _strangers(getattr(thing, entry.name), f"{name}.{entry.name}")
    elif not is_ours(thing):
        yield name, callable(getattr(thing, "describe", None))


def _files(problem: Any, network: Network) -> Iterator[str]:
    """The names of settings whose values come from files, or are otherwise not part of their descriptions."""
    data = getattr(getattr(problem, "problem", problem), "data", None)  # that of `problems.Repeated` is further in
    if isinstance(data, PerAgent) or (isinstance(data, Dataset) and "path" in (data.origin or ())):
        yield "problem.data"
    recipe = network.recipe.get("name")
    if recipe == networks.from_file.__name__ or recipe not in networks.__all__:  # such as one made by hand
        yield "network"


def is_ours(thing: Any) -> bool:
    """Whether a function, or the class of an object, is part of the library; name and parameters then identify it."""
    if isinstance(thing, Schedule):
        return is_ours(thing.rule)
    if inspect.ismethod(thing):  # its name does not say what it is bound to
        return False
    named = thing if isinstance(thing, type) or hasattr(thing, "__qualname__") else type(thing)
    return str(named.__module__).startswith("proxdasa.")


def _digest(name: str, alpha: Alpha, iterations: int) -> str:
    """The SHA-256 of a schedule's values, which must be the same when computed twice."""
    ks = sorted({*range(min(FIRST, iterations)), *np.linspace(0, iterations - 1, SPREAD).astype(np.int64).tolist()})
    first, second = ([describe(alpha(k)) for k in ks] for _ in range(2))
    if first != second:
        k, one, two = next(entry for entry in zip(ks, first, second, strict=True) if entry[1] != entry[2])
        raise ValueError(
            f"{name} is not a function of k alone: for k = {k} it was {_show(one)} and then {_show(two)}; "
            "a run with checkpoints or several processes needs one that is"
        )
    return hashlib.sha256(json.dumps([ks, first]).encode()).hexdigest()


def _pattern(engine: Engine, like: Tensor) -> Tensor:
    """Rows without structure that a method could exploit; the same for an agent wherever it lives."""
    agents, d = torch.arange(engine.agents.start, engine.agents.stop), torch.arange(like.shape[-1])
    angles = 1 + agents.unsqueeze(-1).to(torch.float64) * 2.4 + d * 1.7
    return angles.cos().to(like.dtype).to(like.device).expand(like.shape).clone()


def _close(theirs: object, ours: list[Any], dtype: torch.dtype) -> bool:
    """Whether numbers agree up to rounding: another number of processes adds in another order."""
    if not isinstance(theirs, list) or len(theirs) != len(ours):
        return False
    rounding = torch.finfo(dtype).eps
    for one, other in zip(theirs, ours, strict=True):
        try:
            a, b = float(one), float(other)
        except (TypeError, ValueError, OverflowError):
            return False
        if not (math.isclose(a, b, rel_tol=math.sqrt(rounding), abs_tol=rounding) or (math.isnan(a) and math.isnan(b))):
            return False
    return True


def _show(value: object) -> str:
    return "not stored" if value is None else f"{value!r:.60}"
