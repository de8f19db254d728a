"""What an observation measures, as columns of the records; refuses what would end in a wrong number there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proxdasa.engines.checked_answers import writes
from proxdasa.metrics import Metric, View


def measure(metrics: Iterable[Metric], view: View) -> list[tuple[str, list[float]]]:
    """The name of each measure, and one number for each trial; other shapes would mix up trials."""
    before, measured = _versions(view), list[tuple[str, list[float]]]()
    for metric in metrics:
        numbers = metric.of(view)
        if _versions(view) != before:
            raise ValueError(
                f"the measure {metric.name}, or what it calls of the problem or the regularizer, writes into the state "
                "of the run, which would go on from what it has left; use operations that are not in place, or a "
                "clone()"
            )
        if numbers.shape != (len(view.x),):
            wanted = f"[{len(view.x)}], a number for each trial"
            raise ValueError(f"the measure {metric.name} must be {wanted}; got {list(numbers.shape)}")
        measured.append((metric.name, numbers.tolist()))
    return measured


def unite(columns: Sequence[tuple[str, list[float]]], others: Iterable[str]) -> dict[str, list[float]]:
    """The columns by name; refuses two of one name, and one of those that a row has ``others`` for."""
    taken, united = set(others), dict[str, list[float]]()
    for name, numbers in columns:
        if name in taken:
            raise ValueError(
                f"metrics: two numbers of the records would be called {name}, and one of them would be lost; give the "
                "measure another name: dataclasses.replace(metric, name=...)"
            )
        taken.add(name)
        united[name] = numbers
    return united


def _versions(view: View) -> list[int | None]:
    """How often each tensor of the state, and x̄, was written to."""
    return [writes(each) for each in (*view.state, view.x_mean)]
