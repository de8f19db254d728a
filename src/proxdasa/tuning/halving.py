"""Successive halving: many settings for a few iterations, a third of them for more, and so on; the best to the end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from proxdasa.contracts import Algorithm
from proxdasa.plans.smoothness import STEPS as ESTIMATES
from proxdasa.runs.progress import Progress
from proxdasa.runs.saving import Saving
from proxdasa.runs.setup import Setup
from proxdasa.tuning.continued_run import Continued
from proxdasa.tuning.method_parameters import with_parameters
from proxdasa.tuning.ranked_settings import Outcome, best_of, rank, write_ranking
from proxdasa.tuning.search import Search, expect_divergence
from proxdasa.tuning.settings import Setting

RUNS = 1.25
"""The cost of the rungs that compare settings, in runs of K iterations; the best is then followed to the end."""
KEPT = 3
"""One in this many settings advances to the next rung."""
FOLLOWED = 5
"""The most settings that are followed to the end, one after the other until one ends well."""
RUNGS = "rungs"
"""The folder of the rungs' checkpoints, within the folder of a search."""
LOOKS = 8
"""Observations of a setting that is followed, so that it ends early if it diverges."""


class Rung(NamedTuple):
    """A stacked run of the settings that are still in the race.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> found = proxdasa.tune(proxdasa.DPSGD(gamma=1.0), problem, networks.ring(3), quick=True, iterations=100)
        >>> found.rungs[0]
        Rung(settings=11, first=0, last=4)
    """

    settings: int
    """How many settings take part."""
    first: int
    """After how many iterations it begins."""
    last: int
    """After how many iterations it ends, and settings are compared."""


@dataclass(frozen=True, eq=False)
class Halving:
    """The result of a quick search: settings ranked best first; those that went further come before the others.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> found = proxdasa.tune(proxdasa.ProxDASA(gamma=1.0), problem, networks.ring(3), quick=True, iterations=200)
        >>> [tuple(rung) for rung in found.rungs]
        [(33, 0, 2), (11, 2, 8), (4, 8, 24), (2, 24, 55), (1, 55, 200)]
        >>> f"the cost of {found.runs:.1f} runs"
        'the cost of 2.0 runs'
        >>> proxdasa.run(found.algorithm, problem, networks.ring(3), iterations=200).mean.round(decimals=3)
        tensor([[1., 1.]])
    """

    base: Setup
    measure: str
    ranking: list[Outcome]
    rungs: Sequence[Rung]

    @property
    def best(self) -> Setting:
        """The setting with the best mean over trials in the last rung."""
        return best_of(self.ranking, self.base.algorithm.facts.title, self.measure)

    @property
    def algorithm(self) -> Algorithm:
        """The method with the best setting, ready to run."""
        return with_parameters(self.base.algorithm, self.best)

    @property
    def runs(self) -> float:
        """The cost of all rungs in runs: the iterations of all settings, with a gradient each, over K."""
        return sum(rung.settings * (rung.last - rung.first) for rung in self.rungs) / self.base.iterations

    @property
    def passes(self) -> int:
        """The most passes over the data that estimate L and measure; a run makes about 100 to measure."""
        return ESTIMATES + 1 + sum(2 * rung.settings if rung.settings > 1 else LOOKS + 1 for rung in self.rungs)

    @property
    def cost(self) -> str:
        """The cost, as text."""
        rungs = ", ".join(f"{rung.settings} to iteration {rung.last}" for rung in self.rungs)
        return (
            f"{len(self.ranking)} settings at the cost of {self.runs:.1f} runs of {self.base.iterations} iterations "
            f"({rungs}) and {self.passes} passes over the data"
        )

    @property
    def notes(self) -> list[str]:
        """What the search cost, and what to know before trusting the ranking."""
        steps = [_product(outcome.parameters) for outcome in self.ranking]
        end = {min(steps): "smallest", max(steps): "largest"}.get(steps[0])
        alone = self.ranking[0].fault or min(steps) == max(steps) or end is None
        return (
            [self.cost] if alone else [self.cost, f"the best steps are the {end} that were tried; beyond may be better"]
        )

    def save(self, folder: str | Path) -> Path:
        """Write the ranking as CSV and Markdown."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.write(folder)
        return folder

    def write(self, folder: Path) -> list[Path]:
        """Write the ranking as two tables; returns their paths."""
        return write_ranking(folder, self.ranking, self.measure, self.notes)


def halve(
    base: Setup,
    settings: Sequence[Setting],
    measure: str = "objective",
    largest: bool | None = None,
    progress: Progress | None = None,
    saving: Saving | None = None,
) -> Halving:
    """Compare settings in rungs: stacked runs with ever fewer settings and ever more iterations.

    A rung continues from the states in which the one before it ended, and step sizes that depend on K have the K of the
    setup in all rungs. So what is compared is the beginning of the run that `proxdasa.run` would make with a setting,
    and nothing is computed twice. The best setting is followed to iteration K, since one that begins well may diverge
    later. If it does, or ends no better than the next one was in its last rung, that one is followed too, and so on.

    With ``saving`` the end of each rung is kept, in a folder of its own. The same search then skips finished rungs, and
    continues an interrupted one from its last checkpoint.
    """
    race = _Race(base, _lean(base, measure), measure, Search(base, settings).check(measure, largest), progress, saving)
    ranking: list[Outcome] = []
    for rung in plan_rungs(len(settings), base.iterations):
        if ranking and ranking[0].fault:
            break
        # Where many diverged, the next ones were dropped earlier, and have not come as far.
        alike = [each for each in ranking[: rung.settings] if not each.fault and each.after == ranking[0].after]
        going = [outcome.parameters for outcome in alike] or settings
        ranking = _faults_last(race.go(going, rung.last) + ranking[len(going) :])
    return Halving(base, measure, race.follow(ranking), race.rungs)


def plan_rungs(settings: int, iterations: int) -> list[Rung]:
    """The rungs that compare settings; all of them cost the same.

    A rung of S settings has RUNS · K / (rungs · S) iterations more than the one before it, and at least one.
    """
    counts = [settings]
    while counts[-1] > KEPT:
        counts.append(-(-counts[-1] // KEPT))
    rungs, first, end = [], 0, 0.0
    for count in counts:
        end += max(1.0, RUNS * iterations / (len(counts) * count))
        rungs.append(Rung(count, first, min(math.ceil(end), iterations)))
        first = rungs[-1].last
        if first == iterations:
            break
    return rungs


class _Place(NamedTuple):
    """How far a setting has come."""

    setting: Setting
    k: int
    """The iterations made with it."""
    state: dict[str, Tensor]
    """Its variables after these iterations."""
    rounds: int
    """The rounds of communication so far."""


@dataclass(eq=False)
class _Race:
    """The rungs so far, and how far each setting has come."""

    base: Setup
    lean: Setup
    measure: str
    more: bool
    progress: Progress | None
    saving: Saving | None
    rungs: list[Rung] = field(default_factory=list)
    _places: list[_Place] = field(default_factory=list)
    """How far settings have come; the last entry of a setting counts."""

    def go(self, settings: Sequence[Setting], last: int, looks: int = 1) -> list[Outcome]:
        """Continue settings that have come equally far, as one stack, and rank them after ``last`` iterations."""
        places = self._find(settings)
        first, rounds = (places[0].k, places[0].rounds) if places else (0, 0)
        stacked = Search(self.lean, settings).setup
        state = {name: torch.cat([each.state[name] for each in places]) for name in places[0].state} if places else {}
        rung = dataclasses.replace(
            stacked,
            algorithm=Continued.after(first, stacked.bound(), state, rounds),
            x0=state.get("x", stacked.x0),
            iterations=last - first,
            observe_every=-(-(last - first) // looks),
        )
        with expect_divergence():
            result = rung.loop(first=first).run(self._shift(first), self._next_saving(last - first))
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        self.rungs.append(Rung(len(settings), first, first + result.iterations))
        trials, rounds = self.base.trials, max(int(row["rounds"]) for row in result.records)
        for number, setting in enumerate(settings):
            rows = slice(number * trials, (number + 1) * trials)
            own = {name: variable[rows] for name, variable in result.state.items()}
            self._places.append(_Place(setting, last, own, rounds))
        return [dataclasses.replace(each, after=last) for each in rank(result, settings, self.measure, self.more)]

    def follow(self, ranking: Sequence[Outcome]) -> list[Outcome]:
        """The ranking with its best followed to iteration K, and the next if that ends no better than it was before.

        If a setting diverges, those whose steps are as large are passed over.
        """
        left, ended, K = [outcome for outcome in ranking if not outcome.fault], list[Outcome](), self.base.iterations
        while left and len(ended) < FOLLOWED:
            outcome = left.pop(0)
            if outcome.after != K:
                (outcome,) = self.go([outcome.parameters], K, LOOKS)
            ended.append(outcome)
            limit = min((_product(each.parameters) for each in ended if each.fault), default=math.inf)
            left = [each for each in left if _product(each.parameters) < 0.99 * limit]
            if not outcome.fault and not (left and self._order(left[0]) < self._order(outcome)):
                break
        followed = sorted(ended, key=self._order)
        others = [each for each in ranking if all(each.parameters != other.parameters for other in ended)]
        return _faults_last([*followed, *others])

    def _order(self, outcome: Outcome) -> tuple[bool, float]:
        return bool(outcome.fault), 0.0 if outcome.fault else -outcome.mean if self.more else outcome.mean

    def _find(self, settings: Sequence[Setting]) -> list[_Place]:
        """How far these settings have come, if they have begun."""
        known = [next((at for at in reversed(self._places) if at.setting == setting), None) for setting in settings]
        return [place for place in known if place]

    def _next_saving(self, iterations: int) -> Saving | None:
        """Where the next rung is saved: at least at its end, so that it need not be repeated."""
        if self.saving is None:
            return None
        pace = min(self.saving.every or iterations, iterations)
        return Saving(self.saving.folder / f"{len(self.rungs) + 1:02d}", pace)

    def _shift(self, first: int) -> Progress | None:
        """Reports the progress of a rung as that of the search, in iterations of the setting that is run to the end."""
        progress, K = self.progress, self.base.iterations
        if progress is None:
            return None
        return lambda k, _, rows: progress(first + k, K, [{**row, "k": first + row["k"]} for row in rows])


def _lean(base: Setup, measure: str) -> Setup:
    """The setup with only what a rung needs: the measure, unless it is a score, and no rule for stopping."""
    wanted = [metric for metric in base.metrics if metric.name == measure]
    return dataclasses.replace(base, metrics=wanted or base.metrics, stop=None)


def _faults_last(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda outcome: bool(outcome.fault))


def _product(setting: Setting) -> float:
    """How large the steps of a setting are, for example γα."""
    return math.prod(setting.values())
