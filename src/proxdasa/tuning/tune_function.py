"""The function `proxdasa.tune`: tries all settings of a grid in one run, or makes a quick search without a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from proxdasa.contracts import Algorithm, Problem
from proxdasa.networks import Network
from proxdasa.runs.jobs import run_setup
from proxdasa.runs.progress import Progress
from proxdasa.runs.saving import Saving
from proxdasa.runs.setup import Setup
from proxdasa.tuning.default_range import default_settings
from proxdasa.tuning.halving import Halving, halve
from proxdasa.tuning.search import Search, Tuning, expect_divergence
from proxdasa.tuning.settings import choose


@overload
def tune(
    algorithm: Algorithm,
    problem: Problem,
    network: Network,
    *,
    quick: Literal[False] = False,
    grid: Mapping[str, Sequence[float]] | None = None,
    random: Mapping[str, tuple[float, float]] | None = None,
    samples: int | None = None,
    measure: str = "objective",
    largest: bool | None = None,
    progress: Progress | None = None,
    checkpoints: str | Path | None = None,
    checkpoint_every: int | None = None,
    jobs: int | None = None,
    **settings: Any,
) -> Tuning: ...


@overload
def tune(
    algorithm: Algorithm,
    problem: Problem,
    network: Network,
    *,
    quick: Literal[True],
    measure: str = "objective",
    largest: bool | None = None,
    progress: Progress | None = None,
    checkpoints: str | Path | None = None,
    checkpoint_every: int | None = None,
    **settings: Any,
) -> Halving: ...


def tune(
    algorithm: Algorithm,
    problem: Problem,
    network: Network,
    *,
    quick: bool = False,
    grid: Mapping[str, Sequence[float]] | None = None,
    random: Mapping[str, tuple[float, float]] | None = None,
    samples: int | None = None,
    measure: str = "objective",
    largest: bool | None = None,
    progress: Progress | None = None,
    checkpoints: str | Path | None = None,
    checkpoint_every: int | None = None,
    jobs: int | None = None,
    **settings: Any,
) -> Tuning | Halving:
    """Try many settings of a method's parameters as stacked runs, and rank them.

    Args:
        algorithm: the method; parameters that are not searched keep their values.
        problem: as for `run`.
        network: as for `run`.
        quick: search the method's step sizes over a default range by successive halving, at the cost of about two
            runs. No range is needed, and the step sizes in ``algorithm`` do not matter. Returns a `Halving`.
        grid: values by parameter; all combinations are tried. A parameter is a field of the method, such as ``gamma``,
            or a parameter of a schedule in a field, such as ``alpha.scale``; ``alpha`` means the schedule's first.
            ``regularizer.weight`` is the weight of the regularizer.
        random: instead of a grid, (low, high) by parameter. Settings are drawn log-uniformly, with the run's seed.
        samples: how many settings are drawn; 20 by default.
        measure: what to rank by at the end: any measure that the run records, averaged over trials. Settings with
            different γ cannot be ranked by a measure that uses a setting's own γ, such as ``stationarity``, and
            settings with different Ψ not by one that contains Ψ, such as ``objective``.
        largest: whether larger values are better; needed only for measures of your own.
        progress: as for `run`.
        checkpoints: as for `run`; an interrupted search continues from the last one. A quick search keeps a folder for
            each rung there.
        checkpoint_every: as for `run`.
        jobs: as for `run`; not for a quick search.
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
        >>> proxdasa.tune(proxdasa.DPSGD(gamma=0.1), problem, networks.ring(3), quick=True, iterations=50).best
        {'gamma': 1.0}
    """
    setup = Setup(algorithm, problem, network, **settings)
    if quick:
        if jobs is not None:
            raise ValueError("jobs: a quick search makes short runs one after the other, in one process; leave it out")
        if grid or random or samples is not None:
            raise ValueError("quick=True has its own settings; leave out grid, random and samples, or quick")
        saving = Saving.of(checkpoints, checkpoint_every)
        return halve(setup, default_settings(setup), measure, largest, progress, saving)
    search = Search(setup, choose(grid, random, samples, setup.seed))
    more = search.check(measure, largest)
    with expect_divergence():
        result = run_setup(search.setup, progress, Saving.of(checkpoints, checkpoint_every), jobs)
    return search.rank(result, measure, more)
