"""Ranking the settings of a stacked run by a measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proxdasa import metrics
from proxdasa.runs.results import Result
from proxdasa.tuning.settings import Setting

LARGER = ("accuracy", "lowest_accuracy")
"""Measures of which larger values are better."""
SMALLER = (*(metric.name if isinstance(metric, metrics.Metric) else metric.__name__ for metric in metrics.ALL),
           "test_loss")  # fmt: skip
"""Measures of which smaller values are better, except for those in `LARGER`."""


@dataclass(frozen=True)
class Outcome:
    """The result of one setting.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> tuned = proxdasa.tune(
        ...     proxdasa.DPSGD(gamma=0.1), problem, networks.ring(3), grid={"gamma": [0.5, 5.0]}, iterations=80
        ... )
        >>> best, worst = tuned.ranking
        >>> best.parameters, f"{best.mean:.3f}"
        ({'gamma': 0.5}, '-1.000')
        >>> worst.parameters, worst.fault
        ({'gamma': 5.0}, 'diverged')
    """

    parameters: Setting
    values: Sequence[float]
    """The measure at the end of each trial that reached the end."""
    fault: str = ""
    """Why it cannot be ranked, such as "diverged"; empty if it can."""
    after: int | None = None
    """In a quick search, the iterations after which it was measured and, unless it is the best, dropped."""

    @property
    def mean(self) -> float:
        """The mean over trials, by which settings are ranked; NaN for a setting that cannot be ranked."""
        return math.nan if self.fault else sum(self.values) / len(self.values)


def rank(result: Result, settings: Sequence[Setting], measure: str, largest: bool = False) -> list[Outcome]:
    """The outcomes of a stacked run's settings, best mean first; those that cannot be ranked come last.

    The measure is taken at the last iteration, or at the last observation of an interrupted run.
    """
    last = result.records[-1]["k"] if result.stopped == "interrupted" and result.records else result.iterations
    ends = {row["trial"]: float(row.get(measure, math.nan)) for row in result.records if row["k"] == last}
    repetitions = result.config["trials"] // len(settings)
    outcomes = []
    for s, setting in enumerate(settings):
        trials = range(s * repetitions, (s + 1) * repetitions)
        values = tuple(ends[trial] for trial in trials if trial in ends)
        early = "" if result.records else "was interrupted before it was measured"
        outcomes.append(Outcome(setting, values, early or _fault(values, repetitions, measure)))
    return sorted(outcomes, key=lambda o: (bool(o.fault), 0.0 if o.fault else -o.mean if largest else o.mean))


def best_of(ranking: Sequence[Outcome], title: str, measure: str) -> Setting:
    """The first setting of a ranking, unless none can be ranked."""
    if ranking[0].fault:
        raise ValueError(f"{title} has no best setting by {measure}: every setting {ranking[0].fault}")
    return ranking[0].parameters


def notes_on_edges(ranking: Sequence[Outcome]) -> list[str]:
    """A note for each parameter whose best value is the smallest or largest that was tried."""
    notes: list[str] = []
    best = {} if ranking[0].fault else ranking[0].parameters
    for name, value in best.items():
        tried = {outcome.parameters[name] for outcome in ranking}
        ends = {min(tried): "smallest", max(tried): "largest"}
        if len(tried) > 1 and (end := ends.get(value)):
            notes.append(f"the best {name} is the {end} that was tried; beyond it may be better")
    return notes


def write_ranking(folder: Path, ranking: Sequence[Outcome], measure: str, notes: Sequence[str]) -> list[Path]:
    """Write a ranking as two tables and a figure, a heat map for a grid of two parameters; returns their paths.

    There is no figure of settings that were measured after different numbers of iterations.
    """
    from proxdasa.reports import tuning_results  # noqa: PLC0415 - matplotlib takes longer to import than all of ours

    sheet = tuning_results.ranking(ranking, measure, notes)
    tables = [sheet.write_csv(folder / "ranking.csv"), sheet.write_markdown(folder / "ranking.md")]
    if any(outcome.after is not None for outcome in ranking):
        return tables
    return [*tables, tuning_results.draw_search(ranking, measure, folder / "figure.png")]


def larger_is_better(measure: str) -> bool:
    """Whether larger values of a measure are better."""
    if measure not in (*LARGER, *SMALLER):
        raise ValueError(f"are larger or smaller values of {measure} better? pass largest=True or largest=False")
    return measure in LARGER


def _fault(values: Sequence[float], repetitions: int, measure: str) -> str:
    lost = repetitions - len(values)
    if lost:
        return "diverged" if lost == repetitions else f"diverged in {lost} of {repetitions} trials"
    return "" if all(map(math.isfinite, values)) else f"has no finite {measure}"
