"""Tuning: a method's parameters, many settings of them in one run.

Trials are stacked anyway and parameters may differ by trial, so S settings with R trials each are one run of S · R
trials. All settings see the same samples and starting points (`problems.Repeated`): each block of R trials is the run
that `proxdasa.run` would make of its setting, and settings are compared by nothing but themselves.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxdasa import memory_budget, metrics
from proxdasa.checks import check_count, check_positive
from proxdasa.contracts import Algorithm, Problem
from proxdasa.networks import Network
from proxdasa.problems import Repeated
from proxdasa.regularizers import Zero
from proxdasa.runs.divergence import DivergenceWarning
from proxdasa.runs.loop import Saving
from proxdasa.runs.progress import Progress
from proxdasa.runs.results import Result
from proxdasa.runs.setup import Setup
from proxdasa.schedules import Number, Schedule, is_annotated, per_trial

Setting = Mapping[str, float]
"""Values of parameters, by the names that `tunable` gives them."""

SWEEP = "sweep"
"""The folder with the run, within that of the tuning."""
LARGER = ("accuracy", "lowest_accuracy")
"""Measures of which more is better."""
SMALLER = (*(metric.name if isinstance(metric, metrics.Metric) else metric.__name__ for metric in metrics.ALL),
           "test_loss")  # fmt: skip
"""Measures of which less is better, but for those of `LARGER`."""
SETTING = 500
"""Bytes of memory for a setting."""
MOST_SAMPLES = 100_000
"""Settings that are drawn at a time."""
OF_GAMMA = ("stationarity", "certificate", "per_agent")
"""Measures that depend on the method's own γ unless Ψ = 0; the merit function does in any case."""


@dataclass(frozen=True)
class Outcome:
    """What became of one setting."""

    parameters: Setting
    values: Sequence[float]
    """The measure at the end of each trial that got there."""
    fault: str = ""
    """Why it cannot be ranked, such as "diverged"; empty if it can."""

    @property
    def mean(self) -> float:
        """The mean over trials, by which settings are ranked; NaN for those that cannot be."""
        return math.nan if self.fault else sum(self.values) / len(self.values)


@dataclass(frozen=True, eq=False)
class Tuning:
    """The settings of a search, best first; those of which a trial diverged come last and are marked."""

    search: Search
    result: Result
    """The run of all settings: trial s · R + r is trial r of setting s."""
    measure: str
    ranking: list[Outcome]

    @property
    def best(self) -> Setting:
        """The setting with the best mean over trials."""
        if self.ranking[0].fault:
            title = self.search.base.algorithm.facts.title
            raise ValueError(f"{title} has no {self.measure} to choose by: every setting {self.ranking[0].fault}")
        return self.ranking[0].parameters

    @property
    def algorithm(self) -> Algorithm:
        """The method with the best setting, ready to run."""
        return with_parameters(self.search.base.algorithm, self.best)

    @property
    def notes(self) -> list[str]:
        """What to know before trusting the ranking."""
        told = []
        for name in () if self.ranking[0].fault else self.best:
            tried = {outcome.parameters[name] for outcome in self.ranking}
            ends = {min(tried): "smallest", max(tried): "largest"}
            if len(tried) > 1 and (end := ends.get(self.best[name])):
                told.append(f"the best {name} is the {end} that was tried; beyond it may be better")
        return told

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Write the run to ``sweep``, the ranking as CSV and Markdown, and a figure: a heat map for two parameters."""
        folder = Path(folder)
        self.result.save(folder / SWEEP, overwrite)
        self.write(folder)
        return folder

    def write(self, folder: Path) -> list[Path]:
        """The ranking as two tables and a figure."""
        from proxdasa.reports import tuning_results  # noqa: PLC0415 - matplotlib takes longer to import than all of ours

        sheet = tuning_results.ranking(self.ranking, self.measure, self.notes)
        figure = tuning_results.draw_search(self.ranking, self.measure, folder / "figure.png")
        return [sheet.write_csv(folder / "ranking.csv"), sheet.write_markdown(folder / "ranking.md"), figure]


@dataclass(frozen=True, eq=False)
class Search:
    """Settings to try on a run, whose trials are the repetitions of each."""

    base: Setup
    settings: Sequence[Setting]

    def __post_init__(self) -> None:
        if not self.settings:
            raise ValueError("there is no setting to try")
        self._check_base()

    @property
    def setup(self) -> Setup:
        """All settings stacked as one run."""
        base, count = self.base, len(self.settings)
        x0 = None if base.x0 is None else torch.as_tensor(base.x0)
        return dataclasses.replace(
            base,
            algorithm=stacked(base.algorithm, self.settings, base.trials),
            problem=Repeated(base.problem, base.trials),
            trials=count * base.trials,
            x0=x0.repeat(count, 1, 1) if x0 is not None and x0.ndim == 3 and len(x0) > 1 else x0,
        )

    def check(self, measure: str, largest: bool | None = None) -> bool:
        """Refuse what cannot be measured or does not fit into memory; whether more of the measure is better."""
        self.setup.check_memory(what=self.size)
        self._check_alike(measure)
        setup, method = self.base, self.base.algorithm
        recorded = [metric.name for metric in setup.metrics if method.facts.averaging or not metric.needs_z]
        recorded += setup.problem.scores(setup.start().mean(dim=1)[:1])
        if measure not in recorded:
            raise ValueError(
                f"measure: the run records no {measure!r}; accepted: {', '.join(recorded)}, and what metrics names"
            )
        return larger_is_better(measure) if largest is None else largest

    @property
    def trials(self) -> int:
        """How many trials the stack has."""
        return len(self.settings) * self.base.trials

    @property
    def size(self) -> str:
        """How large the stack is, in words."""
        settings, trials = len(self.settings), self.base.trials
        words = f"{settings} setting{'s' * (settings > 1)} × {trials} trial{'s' * (trials > 1)}"
        return f"{words} = {self.trials} stacked trials of {self.base.network.n} agents, d = {self.base.problem.dim}"

    def ranked(self, result: Result, measure: str, largest: bool | None = None) -> Tuning:
        """The settings by the measure at the end of the run that `setup` describes."""
        self._check_alike(measure)
        more = larger_is_better(measure) if largest is None else largest
        return Tuning(self, result, measure, rank(result, self.settings, measure, more))

    def _check_alike(self, measure: str) -> None:
        """Refuse to rank settings by what is another measure for each of them."""
        depends = measure == "merit" or (measure in OF_GAMMA and not isinstance(self.base.regularizer, Zero))
        if not depends:
            return
        methods = [with_parameters(self.base.algorithm, setting) for setting in self.settings]
        gammas = {float(method.mapping_gamma) for method in methods}
        if len(gammas) > 1:
            raise ValueError(
                f"measure: {measure} is measured with each setting's own γ, so that it cannot rank settings of "
                f"{len(gammas)} different γ; accepted: objective, table_stationarity and others that have no γ in them"
            )

    def _check_base(self) -> None:
        if self.base.random_iterate:
            raise ValueError("random_iterate has no part in a search, which ranks by the last iterate; leave it out")
        names = tunable(self.base.algorithm)
        searched = {names[name] for name in self.settings[0] if name in names}
        for name, (field, parameter) in names.items():
            value = getattr(self.base.algorithm, field)
            value = value.parameters[parameter] if parameter else value
            if isinstance(value, Tensor) and (field, parameter) not in searched:
                raise ValueError(f"{name} differs by trial already; give it one value, or search over it too")


def tune(
    algorithm: Algorithm,
    problem: Problem,
    network: Network,
    *,
    grid: Mapping[str, Sequence[float]] | None = None,
    random: Mapping[str, tuple[float, float]] | None = None,
    samples: int = 20,
    measure: str = "objective",
    largest: bool | None = None,
    progress: Progress | None = None,
    checkpoints: str | Path | None = None,
    checkpoint_every: int | None = None,
    **settings: Any,
) -> Tuning:
    """Try many settings of a method's parameters in one stacked run, and rank them.

    Args:
        algorithm: the method; parameters that are not searched keep their values.
        problem: as for `run`.
        network: as for `run`.
        grid: values by parameter, of which all combinations are tried. A parameter is a field of the method, such as
            ``gamma``, or one of a schedule in such a field, such as ``alpha.scale``; ``alpha`` is its first.
        random: in place of a grid, (low, high) by parameter. Settings are drawn log-uniformly, by the run's seed.
        samples: how many settings are drawn.
        measure: what to rank by at the end: any measure that the run records, averaged over trials. Settings of
            different γ are not ranked by a measure at a setting's own γ, such as ``stationarity``.
        largest: whether more of it is better; known of the library's own measures.
        progress: as for `run`.
        checkpoints: as for `run`; an interrupted search goes on from there.
        checkpoint_every: as for `run`.
        **settings: all other arguments of `run` but ``processes``; ``trials`` are repetitions of each setting.

    A setting of which a trial diverges is marked, and the others go on.
    """
    setup = Setup(algorithm, problem, network, **settings)
    search = Search(setup, choose(grid, random, samples, setup.seed))
    more = search.check(measure, largest)
    with divergence_expected():
        result = search.setup.run(progress, Saving.of(checkpoints, checkpoint_every))
    return search.ranked(result, measure, more)


def choose(
    grid: Mapping[str, Sequence[float]] | None,
    random: Mapping[str, tuple[float, float]] | None,
    samples: int,
    seed: int,
) -> list[Setting]:
    """The settings of a grid, or those drawn between bounds: exactly one of them is given."""
    if bool(grid) == bool(random):
        raise ValueError("a search needs either a grid of values or random ranges, and not both")
    return combinations(grid) if grid else draws(random or {}, samples, seed)


def combinations(grid: Mapping[str, Sequence[float]]) -> list[Setting]:
    """All combinations of values, the last parameter's changing fastest; repeated values count once."""
    for name, values in grid.items():
        if not isinstance(values, Sequence | np.ndarray):
            raise TypeError(f"{name} must be a list of values to try; got {values!r}")
        if not len(values):
            raise ValueError(f"{name} has no values to try")
    columns = [list(dict.fromkeys(map(float, values))) for values in grid.values()]
    count = math.prod(map(len, columns))
    memory_budget.check(SETTING * count, f"a grid of {count:,} settings", "random draws need less")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*columns)]


def draws(ranges: Mapping[str, tuple[float, float]], samples: int, seed: int) -> list[Setting]:
    """Settings with log-uniform values, to four digits, that are worth no more and easier to write down."""
    check_count(samples, "samples")
    if samples > MOST_SAMPLES:
        raise ValueError(f"samples must be at most {MOST_SAMPLES:,}; got {samples:,}")
    for name, (low, high) in ranges.items():
        if not 0 < low < high < math.inf:
            raise ValueError(f"the range of {name} must be from one positive number to a larger one; got {low}..{high}")
    bounds = np.log(np.array(list(ranges.values()), dtype=float))
    drawn = np.exp(np.random.default_rng(seed).uniform(bounds[:, 0], bounds[:, 1], (samples, len(ranges))))
    return [{name: float(f"{v:.4g}") for name, v in zip(ranges, row, strict=True)} for row in drawn]


def tunable(algorithm: Algorithm) -> dict[str, tuple[str, str | None]]:
    """What a search may change in a method: names, each with the field and the parameter of a schedule in it.

    These are the fields that take one number per trial. A schedule's first parameter goes by its field's name too.
    """
    names: dict[str, tuple[str, str | None]] = {}
    for entry in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, entry.name)
        if isinstance(value, Schedule):
            first = {entry.name: (entry.name, next(iter(value.parameters)))} if value.parameters else {}
            names |= first | {f"{entry.name}.{parameter}": (entry.name, parameter) for parameter in value.parameters}
        elif is_annotated(entry.type, Number, "Number") and value is not None:
            names[entry.name] = entry.name, None
    return names


def with_parameters(algorithm: Algorithm, values: Mapping[str, Number]) -> Algorithm:
    """The method with other values of its parameters, each a number or one per trial."""
    names, fields = tunable(algorithm), [entry.name for entry in dataclasses.fields(algorithm)]  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    places: dict[tuple[str, str | None], str] = {}
    for name, value in values.items():
        if name not in names:
            why = "is the same for all trials of a run" if name in fields else "is none of its parameters"
            raise ValueError(
                f"{name} cannot be searched for {algorithm.facts.title}, it {why}; accepted: {', '.join(names)}"
            )
        field, parameter = place = names[name]
        if places.setdefault(place, name) != name:
            raise ValueError(f"{places[place]} and {name} are the same parameter; give one of them")
        if parameter:
            schedule = changes.get(field, getattr(algorithm, field))
            parameters = {**schedule.parameters, parameter: check_positive(value, name)}
            changes[field] = dataclasses.replace(schedule, parameters=parameters)
        else:
            changes[field] = value
    made: Algorithm = dataclasses.replace(algorithm, **changes)  # type: ignore[type-var]
    return made


def stacked(algorithm: Algorithm, settings: Sequence[Setting], repetitions: int = 1) -> Algorithm:
    """The method with all settings at once: trial s · R + r has setting s."""
    columns = {name: [setting[name] for setting in settings for _ in range(repetitions)] for name in settings[0]}
    return with_parameters(algorithm, {name: per_trial(values) for name, values in columns.items()})


def rank(result: Result, settings: Sequence[Setting], measure: str, largest: bool = False) -> list[Outcome]:
    """The settings of a stacked run by the mean of a measure at the end, best first, and then those without one.

    Of an interrupted run the end is its last observation.
    """
    last = result.records[-1]["k"] if result.stopped == "interrupted" and result.records else result.iterations
    ends = {row["trial"]: float(row.get(measure, math.nan)) for row in result.records if row["k"] == last}
    repetitions = result.config["trials"] // len(settings)
    outcomes = []
    for s, setting in enumerate(settings):
        trials = range(s * repetitions, (s + 1) * repetitions)
        values = tuple(ends[trial] for trial in trials if trial in ends)
        outcomes.append(Outcome(setting, values, _fault(values, repetitions, measure)))
    return sorted(outcomes, key=lambda o: (bool(o.fault), 0.0 if o.fault else -o.mean if largest else o.mean))


def larger_is_better(measure: str) -> bool:
    """Whether more of a measure is better."""
    if measure not in (*LARGER, *SMALLER):
        raise ValueError(f"is more or less of {measure} better? say largest=True or largest=False")
    return measure in LARGER


@contextmanager
def divergence_expected() -> Iterator[None]:
    """Settings that diverge are marked in the ranking; no warning for each of their trials."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        yield


def _fault(values: Sequence[float], repetitions: int, measure: str) -> str:
    lost = repetitions - len(values)
    if lost:
        return "diverged" if lost == repetitions else f"diverged in {lost} of {repetitions} trials"
    return "" if all(map(math.isfinite, values)) else f"has no finite {measure}"
