"""A search: many settings of a method's parameters in one run, and what came of them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from proxdasa.contracts import Algorithm, Problem, Regularizer
from proxdasa.networks import Network
from proxdasa.problems import Repeated
from proxdasa.regularizers import Zero
from proxdasa.regularizers.penalty_weights import PerTrial
from proxdasa.runs.divergence import DivergenceWarning
from proxdasa.runs.loop import Saving
from proxdasa.runs.progress import Progress
from proxdasa.runs.results import Result
from proxdasa.runs.setup import Setup
from proxdasa.tuning.method_parameters import tunable, with_parameters
from proxdasa.tuning.ranked_settings import Outcome, larger_is_better, rank
from proxdasa.tuning.regularizer_weights import searchable_weights, split, with_weights
from proxdasa.tuning.settings import Setting, choose, stack

SWEEP = "sweep"
"""The folder of the run, within the folder of the search."""
OF_PSI = ("objective", "stationarity", "certificate", "per_agent", "merit", "table_stationarity")
"""Measures that contain Ψ; the last one may have a Ψ of its own instead."""
OF_GAMMA = ("stationarity", "certificate", "per_agent")
"""Measures that depend on the method's own γ unless Ψ = 0; the merit function always does."""


@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of a search: settings ranked best first, those with a diverged trial last.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> tuned = proxdasa.tune(
        ...     proxdasa.DPSGD(gamma=0.1), problem, networks.ring(3), grid={"gamma": [0.01, 0.1]}, iterations=50
        ... )
        >>> tuned.algorithm
        DPSGD(gamma=0.1)
        >>> tuned.notes
        ['the best gamma is the largest that was tried; beyond it may be better']
    """

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
            raise ValueError(f"{title} has no best setting by {self.measure}: every setting {self.ranking[0].fault}")
        return self.ranking[0].parameters

    @property
    def algorithm(self) -> Algorithm:
        """The method with the best setting, ready to run."""
        return with_parameters(self.search.base.algorithm, split(self.best)[0])

    @property
    def regularizer(self) -> Regularizer:
        """The regularizer with the best setting, for a search over its weights."""
        return with_weights(self.search.base.regularizer, split(self.best)[1])

    @property
    def notes(self) -> list[str]:
        """What to know before trusting the ranking."""
        notes = []
        for name in () if self.ranking[0].fault else self.best:
            tried = {outcome.parameters[name] for outcome in self.ranking}
            ends = {min(tried): "smallest", max(tried): "largest"}
            if len(tried) > 1 and (end := ends.get(self.best[name])):
                notes.append(f"the best {name} is the {end} that was tried; beyond it may be better")
        return notes

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Write the run to ``sweep``, the ranking as CSV and Markdown, and a figure: a heat map for two parameters."""
        folder = Path(folder)
        self.result.save(folder / SWEEP, overwrite)
        self.write(folder)
        return folder

    def write(self, folder: Path) -> list[Path]:
        """Write the ranking as two tables and a figure; returns their paths."""
        from proxdasa.reports import tuning_results  # noqa: PLC0415 - matplotlib takes longer to import than all of ours

        sheet = tuning_results.ranking(self.ranking, self.measure, self.notes)
        figure = tuning_results.draw_search(self.ranking, self.measure, folder / "figure.png")
        return [sheet.write_csv(folder / "ranking.csv"), sheet.write_markdown(folder / "ranking.md"), figure]


@dataclass(frozen=True, eq=False)
class Search:
    """A run and the settings to try on it; the trials of the run are repetitions of each setting."""

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
        numbers, weights = split(stack(self.settings, base.trials))
        x0 = None if base.x0 is None else torch.as_tensor(base.x0)
        return dataclasses.replace(
            base,
            algorithm=with_parameters(base.algorithm, numbers),
            regularizer=with_weights(base.regularizer, weights),
            problem=Repeated(base.problem, base.trials),
            trials=count * base.trials,
            x0=x0.repeat(count, 1, 1) if x0 is not None and x0.ndim == 3 and len(x0) > 1 else x0,
        )

    def check(self, measure: str, largest: bool | None = None) -> bool:
        """Whether larger values of the measure are better.

        Raises:
            ValueError: if the run does not record the measure, or it cannot compare the settings.
            MemoryError: if the stack does not fit into memory.
        """
        self.setup.check_memory(what=self.size)
        self._check_alike(measure)
        setup, method = self.base, self.base.algorithm
        recorded = [metric.name for metric in setup.metrics if method.facts.averaging or not metric.needs_z]
        recorded += setup.problem.scores(setup.start().mean(dim=1)[:1])
        if measure not in recorded:
            raise ValueError(
                f"measure: the run records no {measure!r}; accepted: {', '.join(recorded)}, and those listed in metrics"
            )
        return larger_is_better(measure) if largest is None else largest

    @property
    def trials(self) -> int:
        """The number of trials in the stack."""
        return len(self.settings) * self.base.trials

    @property
    def size(self) -> str:
        """The size of the stack, as text."""
        settings, trials = len(self.settings), self.base.trials
        product = f"{settings} setting{'s' * (settings > 1)} × {trials} trial{'s' * (trials > 1)}"
        return f"{product} = {self.trials} stacked trials of {self.base.network.n} agents, d = {self.base.problem.dim}"

    def rank(self, result: Result, measure: str, largest: bool | None = None) -> Tuning:
        """Rank the settings by a measure at the end of the run that `setup` describes."""
        self._check_alike(measure)
        more = larger_is_better(measure) if largest is None else largest
        return Tuning(self, result, measure, rank(result, self.settings, measure, more))

    def _check_alike(self, measure: str) -> None:
        """Raise if the measure depends on γ or Ψ and the settings differ in it, so that it does not compare them."""
        own = any(metric.name == measure and "regularizer" in metric.parameters for metric in self.base.metrics)
        if measure in OF_PSI and not own and any(len({s[name] for s in self.settings}) > 1 for name in self._weights):
            raise ValueError(
                f"measure: {measure} contains Ψ, so it cannot rank settings with different weights of the regularizer; "
                "accepted: test_loss, accuracy and others without Ψ"
            )
        depends = measure == "merit" or (measure in OF_GAMMA and not isinstance(self.base.regularizer, Zero))
        if not depends:
            return
        methods = [with_parameters(self.base.algorithm, split(setting)[0]) for setting in self.settings]
        gammas = {float(method.mapping_gamma) for method in methods}
        if len(gammas) > 1:
            raise ValueError(
                f"measure: {measure} is measured with each setting's own γ, so it cannot rank settings with "
                f"{len(gammas)} different γ; accepted: objective, table_stationarity and others that do not depend on γ"
            )

    @property
    def _weights(self) -> list[str]:
        """The names of the regularizer's weights that are searched."""
        return list(split(self.settings[0])[1])

    def _check_base(self) -> None:
        for name, weight in searchable_weights(self.base.regularizer).items():
            if isinstance(weight, PerTrial) and name not in self._weights:
                raise ValueError(f"{name} differs by trial already; give it one value, or search over it too")
        if self.base.random_iterate:
            raise ValueError("random_iterate cannot be used in a search, which ranks by the last iterate; leave it out")
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
        grid: values by parameter; all combinations are tried. A parameter is a field of the method, such as ``gamma``,
            or a parameter of a schedule in a field, such as ``alpha.scale``; ``alpha`` means the schedule's first.
            ``regularizer.weight`` is the weight of the regularizer.
        random: instead of a grid, (low, high) by parameter. Settings are drawn log-uniformly, with the run's seed.
        samples: how many settings are drawn.
        measure: what to rank by at the end: any measure that the run records, averaged over trials. Settings with
            different γ cannot be ranked by a measure that uses a setting's own γ, such as ``stationarity``, and
            settings with different Ψ not by one that contains Ψ, such as ``objective``.
        largest: whether larger values are better; needed only for measures of your own.
        progress: as for `run`.
        checkpoints: as for `run`; an interrupted search continues from the last one.
        checkpoint_every: as for `run`.
        **settings: all other arguments of `run` except ``processes``; ``trials`` is the number of repetitions of each
            setting.

    A setting with a trial that diverges is marked; the others continue.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> tuned = proxdasa.tune(
        ...     proxdasa.DPSGD(gamma=0.1), problem, networks.ring(3), grid={"gamma": [0.01, 0.1, 0.5]}, iterations=50
        ... )
        >>> tuned.best
        {'gamma': 0.5}
        >>> [outcome.parameters["gamma"] for outcome in tuned.ranking]
        [0.5, 0.1, 0.01]
    """
    setup = Setup(algorithm, problem, network, **settings)
    search = Search(setup, choose(grid, random, samples, setup.seed))
    more = search.check(measure, largest)
    with expect_divergence():
        result = search.setup.run(progress, Saving.of(checkpoints, checkpoint_every))
    return search.rank(result, measure, more)


@contextmanager
def expect_divergence() -> Iterator[None]:
    """Context manager without divergence warnings: the ranking marks the settings that diverge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        yield
