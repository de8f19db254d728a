"""A search: many settings of a method's parameters in one run, and their outcomes."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from proxdasa.contracts import Algorithm, Regularizer, running_of
from proxdasa.problems import Repeated
from proxdasa.regularizers import Zero
from proxdasa.regularizers.penalty_weights import PerTrial
from proxdasa.runs.binding import as_rows
from proxdasa.runs.divergence import DivergenceWarning
from proxdasa.runs.results import Result
from proxdasa.runs.setup import Setup
from proxdasa.tuning.method_parameters import tunable, with_parameters
from proxdasa.tuning.ranked_settings import (
    Outcome,
    best_of,
    larger_is_better,
    notes_on_edges,
    rank,
    write_ranking,
)
from proxdasa.tuning.regularizer_weights import searchable_weights, split, with_weights
from proxdasa.tuning.settings import Setting, stack

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
        return best_of(self.ranking, self.search.base.algorithm.facts.title, self.measure)

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
        return notes_on_edges(self.ranking)

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Write the run to ``sweep``, the ranking as CSV and Markdown, and a figure: a heat map for two parameters."""
        folder = Path(folder)
        self.result.save(folder / SWEEP, overwrite)
        self.write(folder)
        return folder

    def write(self, folder: Path) -> list[Path]:
        """Write the ranking as two tables and a figure; returns their paths."""
        return write_ranking(folder, self.ranking, self.measure, self.notes)


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
        x0 = None if base.x0 is None else as_rows(base.x0, base.problem.dtype)
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
        problem, running, x = setup.problem, running_of(setup.problem), setup.start().cpu().mean(dim=1)[:1]
        recorded += running.scores(x, running.first_buffers(1)[:, 0]) if running else problem.scores(x)
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


@contextmanager
def expect_divergence() -> Iterator[None]:
    """Context manager without divergence warnings: the ranking marks the settings that diverge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        yield
