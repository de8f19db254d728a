"""Comparing runs at an equal budget: a table with paired tests, and a figure that fits a paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proxdasa.reports.axis_quantities import AXES, OWN_GAMMA, cost_text, measures, quantity, value
from proxdasa.reports.curves import Run, distinctions, spread
from proxdasa.reports.loading import Recorded, as_runs, brief, distinguishing, flatten
from proxdasa.reports.paired_tests import LEVEL, PairedTest, Verdict, choose_test, judge
from proxdasa.reports.ranking import RANKED, alike, hindrance, quantity_of
from proxdasa.reports.run_endings import divergences, loss_of
from proxdasa.reports.table_files import Cell, Sheet

BETTER = RANKED | {"stationarity": 1, "certificate": 1, "consensus": 1, "test_loss": 1, "lowest_accuracy": -1}
"""1 if less of a measure is better, -1 if more is; others are shown and not ranked."""
LOST = "every setting diverged"
EARLY = 0.05
"""A note names runs whose last observation is this share of the budget before it."""
DEFAULT_MEASURES = ("accuracy", "objective", "loss", "stationarity", "table_stationarity")


def compare(
    results: Sequence[Recorded | str | Path] | Mapping[str, Recorded],
    measures: Sequence[str] | None = None,
    axis: str = "gradients",
    by: str | None = None,
    budget: float | None = None,
) -> Comparison:
    """Compare runs after the same number of gradients, or of another cost: ``axis`` is one of `AXES`.

    ``results`` are results, by their names if it is a mapping, or results folders. The budget is by default the most
    that all runs have spent. ``by`` names what else differs, such as "network" or "algorithm.gamma"; methods are then
    compared for each of its values.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> methods = proxdasa.DPSGD(0.5), proxdasa.DeepStormV2(alpha=0.1, beta=0.1)
        >>> results = [proxdasa.run(method, problem, networks.ring(3), iterations=20) for method in methods]
        >>> comparison = proxdasa.compare(results)
        >>> comparison.budget
        20.0
        >>> [file.name for file in comparison.write("paper")]
        ['comparison.png', 'comparison.md', 'comparison.csv']
    """
    runs = as_runs(results)
    if axis not in AXES:
        raise ValueError(f"axis must be one of {', '.join(AXES)}; got {axis!r}")
    if budget is not None and not 0 < budget < math.inf:
        raise ValueError(f"budget must be a positive, finite number; got {budget!r}")
    if lacking := [run for run in runs if not run.has(axis)]:
        raise ValueError(f"the records of {lacking[0].title}, {lacking[0].label} have no {axis}; choose another axis")
    return Comparison(runs, _chosen(runs, measures), axis, by, _budget(runs, axis) if budget is None else budget)


def _chosen(runs: Sequence[Run], wanted: Sequence[str] | None) -> list[str]:
    recorded = measures(row for run in runs for row in run.rows)
    if wanted is None:
        chosen = default_measures(runs)
        if not chosen:
            raise ValueError(f"choose the measures; the records have {', '.join(recorded)}")
        return chosen
    if unknown := [name for name in wanted if name not in recorded]:
        raise ValueError(f"no run recorded {unknown[0]!r}; the records have {', '.join(recorded)}")
    return list(wanted)


def default_measures(runs: Sequence[Run]) -> list[str]:
    """The measures that are compared by default, as far as they were recorded."""
    recorded = measures(row for run in runs for row in run.rows)
    return [name for name in DEFAULT_MEASURES if name in recorded and (name not in OWN_GAMMA or alike(runs))]


def _budget(runs: Sequence[Run], axis: str) -> float:
    """The smallest amount that a run has spent by its end.

    Runs that stopped because they were done, or of which a trial diverged, set no limit.
    """
    ends = [run.final(axis).mean for run in runs if not _done(run) and not divergences(run)]
    return min(ends or [max(run.final(axis).mean for run in runs)])


def _done(run: Run) -> bool:
    return bool(run.config["ending"].get("stopped") == "stationary")


@dataclass(frozen=True)
class Comparison:
    """Runs next to each other at an equal budget.

    Examples:
        >>> problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
        >>> setting = dict(problem=problem, network=networks.ring(3), iterations=40, metrics=[metrics.loss])
        >>> results = [proxdasa.run(proxdasa.DPSGD(gamma), **setting) for gamma in (0.01, 0.5)]
        >>> print(proxdasa.compare(results))
        | method | run | trials | loss |
        | --- | --- | ---: | ---: |
        | D-PSGD | gamma = 0.01 | 1 | -0.5525 |
        | D-PSGD | gamma = 0.5 | 1 | **-1** |
        <BLANKLINE>
        After 40 gradients of an agent: one trial, so there is no interval and no test.
    """

    runs: Sequence[Run]
    measures: Sequence[str]
    axis: str
    by: str | None
    budget: float
    lost: Sequence[tuple[str, str]] = ()
    """Methods without a run because all of their settings diverged, each with its value of `by`; last in the table."""

    def __str__(self) -> str:
        return self.sheet().markdown().strip()

    @property
    def groups(self) -> list[str]:
        """For each run what `by` names; empty texts if it names nothing."""
        if self.by is None:
            return [""] * len(self.runs)
        groups = _groups(self.runs, self.by)
        seen: dict[tuple[str, str], Run] = {}
        for run, group in zip(self.runs, groups, strict=True):
            if (twin := seen.setdefault((run.title, group), run)) is not run:
                raise ValueError(
                    f"two runs of {run.title} have {self.by} = {group}: {twin.label}; and {run.label}. "
                    "Compare one of them, or by what they differ in"
                )
        return groups

    @property
    def _others(self) -> list[str]:
        """For each run, what distinguishes it from other runs of its method in the table."""
        return distinctions(self.runs) if self.by is None else self.groups

    @property
    def _names(self) -> list[str]:
        return [", ".join(filter(None, (run.title, more))) for run, more in zip(self.runs, self._others, strict=True)]

    def sheet(self) -> Sheet:
        """The table: each measure at the budget, mean over trials ± half the width of its 95% interval.

        The best mean of each group is bold, and so is what a paired test over the trials of the same seed does not find
        worse (`paired_tests`). A run with a trial that diverged is never bold.
        """
        others = self._others
        titles = [*(run.title for run in self.runs), *(title for title, _ in self.lost)]
        columns: dict[str, tuple[str, Sequence[Cell]]] = {"method": ("method", titles)}
        if any(others):
            columns["run"] = self.by or "run", [*others, *(group for _, group in self.lost)]
        columns["trials"] = "trials", [*map(_trials, self.runs), *[0] * len(self.lost)]
        bold: set[tuple[int, int]] = set()
        notes = self._early_ends()
        for measure in self.measures:
            ends = [self.at_budget(run, measure) for run in self.runs]
            if why := self._hindrance(measure):
                notes.append(f"{quantity(measure).name} is not ranked: {why}.")
            else:
                bold |= {(i, len(columns)) for i in self._best(measure, ends)}
            cells = [*(_cell(run, end) for run, end in zip(self.runs, ends, strict=True)), *[LOST] * len(self.lost)]
            columns[measure] = quantity_of(measure, self.runs).name, cells
        return Sheet(
            {name: heading for name, (heading, _) in columns.items()},
            list(zip(*(cells for _, cells in columns.values()), strict=True)),
            notes,
            frozenset(bold),
            self._caption(),
            short=True,
        )

    def _early_ends(self) -> list[str]:
        """Which runs have values from well before the budget, and did not stop because they were done."""
        found = []
        for run, name in zip(self.runs, self._names, strict=True):
            within = self.budget * (1 + 1e-9)
            ends = {row["trial"]: value(row, self.axis) for row in run.rows if value(row, self.axis) <= within}
            last = min(ends.values(), default=self.budget)
            if not _done(run) and not divergences(run) and last < (1 - EARLY) * self.budget:
                found.append(f"{name}: its last observation within the budget was after {cost_text(last, self.axis)}.")
        return found

    def at_budget(self, run: Run, measure: str) -> dict[int, float]:
        """For each trial the measure when it was last observed within the budget."""
        within = self.budget * (1 + 1e-9)
        rows = [row for row in run.rows if value(row, self.axis) <= within]
        if not rows:
            raise ValueError(
                f"{run.title}, {run.label} was never observed within {cost_text(self.budget, self.axis)}; "
                "choose a larger budget, or observe more often"
            )
        return {row["trial"]: value(row, measure) for row in rows}

    def _best(self, measure: str, ends: Sequence[Mapping[int, float]]) -> list[int]:
        """The rows with the best mean of each group, and those that are tied with it."""
        found = self._verdicts(measure, ends)
        tied = (i for others in found.values() for i, verdict in others.items() if verdict and not verdict.worse)
        return [*found, *tied]

    def _verdicts(self, measure: str, ends: Sequence[Mapping[int, float]]) -> dict[int, dict[int, Verdict | None]]:
        """For the best row of each group the tests of others against it; None for those without pairs of trials."""
        groups, found = self.groups, {}
        for group in dict.fromkeys(groups):
            members = [i for i, own in enumerate(groups) if own == group]
            rivals = [i for i in members if not _lost(self.runs[i], ends[i])] if self._rivalry(group) else []
            if rivals:
                means = {i: float(np.mean([*ends[i].values()])) for i in rivals}
                first = min(rivals, key=lambda i: BETTER[measure] * means[i])
                pairs = {i: self._pairs(first, i, ends) for i in rivals if i != first}
                tested = {i: [BETTER[measure] * d for d in own] for i, own in pairs.items() if len(own) > 1}
                verdicts = dict(zip(tested, judge(self._test, list(tested.values())), strict=True))
                found[first] = {i: verdicts.get(i) for i in pairs}
        return found

    def _rivalry(self, group: str) -> bool:
        """Whether a group has more than one run, so that one of them can be the best."""
        return self.groups.count(group) + [own for _, own in self.lost].count(group) > 1

    def _pairs(self, first: int, other: int, ends: Sequence[Mapping[int, float]]) -> list[float]:
        """The differences of a run from the best one in the trials of the same seed."""
        if self.runs[first].config.get("seed") != self.runs[other].config.get("seed"):
            return []
        return [ends[other][t] - ends[first][t] for t in sorted(ends[first].keys() & ends[other].keys())]

    @property
    def _test(self) -> PairedTest:
        """One test for the whole table, so that its caption can name it."""
        groups = self.groups
        trials = min((number for run in self.runs if (number := _trials(run)) > 1), default=1)
        return choose_test(trials, max(map(groups.count, groups)) - 1)

    def tests(self) -> Sheet:
        """The tests behind the bold cells: each run against the best of its group, by each measure that ranks them.

        ``p`` is two-sided, and ``corrected`` is p after Holm's correction for the tests of the group.
        """
        columns = ("measure", "method", "run", "best", "trials", "worse_in", "p", "corrected", "test")
        rows, others, named, test = list[list[Cell]](), self._others, self._names, self._test.name
        for measure, found in self._ranked().items():
            rows += [
                [measure, self.runs[i].title, others[i], named[first], *verdict[:-1], test]
                for first, tested in found.items()
                for i, verdict in tested.items()
                if verdict
            ]
        return Sheet({name: name.replace("_", " ") for name in columns}, rows)

    def _ranked(self) -> dict[str, dict[int, dict[int, Verdict | None]]]:
        """The verdicts by each measure that ranks the runs."""
        return {
            measure: self._verdicts(measure, [self.at_budget(run, measure) for run in self.runs])
            for measure in self.measures
            if not self._hindrance(measure)
        }

    def _hindrance(self, measure: str) -> str:
        """Why a measure cannot rank the runs of a group; empty if it can rank those of every group."""
        if measure not in BETTER:
            return "less of it is neither better nor worse"
        groups = self.groups
        for group in dict.fromkeys(groups):
            runs = [run for run, own in zip(self.runs, groups, strict=True) if own == group]
            if measure in OWN_GAMMA and not alike(runs):
                return "the runs differ in γ"
            if why := hindrance(measure, runs):
                return why
        return ""

    def _caption(self) -> str:
        """What the numbers are, for the caption of a table."""
        return f"After {cost_text(self.budget, self.axis)}: {self.statistics}"

    @property
    def statistics(self) -> str:
        """How many trials the means are over, and by which test cells are bold."""
        trials = {_trials(run) for run in self.runs}
        if trials == {1}:
            return "one trial, so there is no interval and no test."
        number = f"{min(trials)}" if len(trials) == 1 else f"{min(trials)} to {max(trials)}"
        means = f"means over {number} trials ± half the width of their 95% intervals."
        best = [others for found in self._ranked().values() for others in found.values()]
        if not best:
            return means
        verdicts = [verdict for others in best for verdict in others.values()]
        if not any(verdicts):
            return f"{means} Bold: the best{'; runs of different seeds are not tested' if verdicts else ''}."
        test = f"what {self._test.name} over the shared seeds does not find worse"
        text = f"{means} Bold: the best, and {test} (p ≥ {LEVEL:g} after Holm's correction)."
        rest = " Runs that do not share the seeds of the best are not tested, and not bold."
        return text + rest if None in verdicts else text

    def draw(self, path: str | Path, width: str = "page") -> Path:
        """Draw a panel for each measure against the axis: the colour shows the method, the dash what `by` names."""
        from proxdasa import reports  # noqa: PLC0415 - imports matplotlib, which is slow

        others = None if self.by is None else self.groups
        return reports.draw_runs(self.runs, Path(path), self.measures, self.axis, others, width)

    def write(
        self,
        folder: str | Path,
        pdf: bool = False,
        latex: bool = False,
        width: str = "page",
        name: str = "comparison",
    ) -> list[Path]:
        """Write the figure, as PNG or PDF, the table, as Markdown, CSV and LaTeX, and its tests to a folder."""
        stem, sheet, tests = Path(folder) / name, self.sheet(), self.tests()
        behind = stem.with_name(f"{name}-tests.csv")
        behind.unlink(missing_ok=True)  # there may be no tests this time
        return [
            self.draw(stem.with_suffix(".pdf" if pdf else ".png"), width),
            sheet.write_markdown(stem.with_suffix(".md")),
            sheet.write_csv(stem.with_suffix(".csv")),
            *([sheet.write_latex(stem.with_suffix(".tex"))] if latex else []),
            *([tests.write_csv(behind)] if tests.rows else []),
        ]


def _trials(run: Run) -> int:
    return len(run.began) or run.trials


def _lost(run: Run, ends: Mapping[int, float]) -> bool:
    return bool(divergences(run)) or not ends or not all(map(math.isfinite, ends.values()))


def _cell(run: Run, ends: Mapping[int, float]) -> Cell:
    return loss_of(run) or spread(list(ends.values()))


def _groups(runs: Sequence[Run], by: str) -> list[str]:
    """For each run the settings under a key, as far as they differ between runs."""
    own = [
        {key: setting for key, setting in flatten(run.config).items() if key == by or key.startswith(f"{by}.")}
        for run in runs
    ]
    if not any(own):
        raise ValueError(f"no run has a setting {by!r}; there are {', '.join(sorted(set(runs[0].config)))}")
    keys = list(dict.fromkeys(key for settings in own for key in settings))
    differing = distinguishing(keys, own) or keys[:1]
    names = {key: "" if key in (by, f"{by}.name") else f"{key.rpartition('.')[2]} = " for key in differing}
    return [
        ", ".join(f"{names[key]}{brief(settings[key])}" for key in differing if key in settings) for settings in own
    ]
