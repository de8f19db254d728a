"""What an observation measures, as columns of the records; refuses measures that would record wrong numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proxdasa.metrics import Metric, View
from proxdasa.torch_internals import write_count


def measure(metrics: Iterable[Metric], view: View) -> list[tuple[str, list[float]]]:
    """The name of each measure, and one number for each trial; other shapes would mix up trials."""
    before, measured = _write_counts(view), list[tuple[str, list[float]]]()
    for metric in metrics:
        numbers = metric.of(view)
        if _write_counts(view) != before:
            raise ValueError(
                f"the measure {metric.name}, or what it calls of the problem or the regularizer, writes into the state "
                "of the run, which would continue from the changed state; use operations that are not in place, or a "
                "clone()"
            )
        if getattr(numbers, "shape", None) != (len(view.x),):
            wanted, got = f"[{len(view.x)}], a number for each trial", getattr(numbers, "shape", None)
            found = type(numbers).__name__ if got is None else list(got)
            raise ValueError(f"the measure {metric.name} must be {wanted}; got {found}")
        measured.append((metric.name, numbers.tolist()))
    return measured


def unite(columns: Sequence[tuple[str, list[float]]], others: Iterable[str]) -> dict[str, list[float]]:
    """The columns by name; refuses two of the same name, and the names of ``others``, which a row has already."""
    taken, united = set(others), dict[str, list[float]]()
    for name, numbers in columns:
        if not all(isinstance(number, int | float) for number in numbers):
            raise ValueError(f"metrics: {name} must be a real number for each trial; got {numbers[0]!r}")
        if name in taken:
            raise ValueError(
                f"metrics: two numbers of the records would be called {name}, and one of them would be lost; give the "
                "measure another name: dataclasses.replace(metric, name=...)"
            )
        taken.add(name)
        united[name] = numbers
    return united


def _write_counts(view: View) -> list[int | None]:
    """How often each tensor of the state, and x̄, was written to."""
    return [write_count(each) for each in (*view.state, view.x_mean)]
