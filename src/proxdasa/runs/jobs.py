"""Runs, and parts of runs, spread over processes of this machine; the results are the same as in one process.

The processes are forks of this one, as the workers of torch's data loaders are: they start at once, share the memory of
the data, and need nothing to be pickled, so that functions of a script or a notebook work in them. Threads do not
survive a fork, so each process computes in a single one. Where forks are not safe (all systems but Linux), there are no
jobs.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from proxdasa.checks import check_count
from proxdasa.contracts import observed_of
from proxdasa.engines.launch.launcher import cores
from proxdasa.runs.compiling import compiles
from proxdasa.runs.identity import Identity
from proxdasa.runs.interleaved_runs import take_turns
from proxdasa.runs.pending_run import Listening, PendingRun
from proxdasa.runs.results import Result
from proxdasa.runs.saving import Saving
from proxdasa.runs.setup import Setup
from proxdasa.runs.trial_parts import Together
from proxdasa.runs.worker_pool import WorkerPool
from proxdasa.thread_counts import threads
from proxdasa.torch_internals import load_compiler

LONG = 2**29
"""The amount of work from which several processes are the default; a few seconds of one core."""
STEP = 2**16
"""The fixed cost of an iteration, in elements of the state."""


def run_setup(setup: Setup, progress: Listening, saving: Saving | None, jobs: int | None) -> Result:
    """Run in up to ``jobs`` processes."""
    (result,) = run_all([PendingRun(setup, saving, lambda: progress)], jobs, alone=True)
    return result


def run_all(works: Sequence[PendingRun], jobs: int | None, alone: bool = False) -> list[Result]:
    """Make all runs, in up to ``jobs`` processes; an interruption ends the series after those that have begun.

    ``alone`` says that there is no series: a run that stays whole then uses as many threads as torch chooses.
    """
    jobs = choose_jobs([work.setup for work in works], jobs)
    if jobs > 1 and (len(works) > 1 or any(len(work.parts) > 1 for work in works)):
        if any(compiles(work.setup) for work in works):
            load_compiler()
        first = works[0].setup
        if not first.exact and all(work.setup.problem is first.problem for work in works):
            observed_of(first.problem)  # so that it is prepared once, and not by each process
        return WorkerPool(jobs, works).run()
    results: list[Result] = []
    for work in works:
        with nullcontext() if alone and len(work.parts) == 1 else threads(1):
            results.append(_run_here(work))
        if results[-1].stopped == "interrupted":
            break
    return results


def choose_jobs(setups: Sequence[Setup], jobs: int | None = None, own_code: bool = False) -> int:
    """The number of processes: ``jobs`` or, by default, all cores if the work is long.

    A user's own functions may do more than compute, such as count their calls, which would be lost in another process.
    So a run with some stays in this process by default, unless ``own_code`` says that this does not matter.
    """
    able = sys.platform == "linux" and not multiprocessing.current_process().daemon
    elsewhere = next((each.device for each in setups if each.device != "cpu"), None)
    if jobs is not None:
        check_count(jobs, "jobs")
        if jobs > 1 and elsewhere:
            raise ValueError(
                f'jobs are processes on CPU cores, but device = "{elsewhere}" uses one process; leave one of them out'
            )
        if jobs > 1 and not able:
            raise ValueError(
                "jobs needs processes that are forks of this one, which are safe on Linux only; leave it out"
            )
        return jobs
    work = sum(each.iterations * (STEP + each.trials * each.network.n * each.problem.dim) for each in setups)
    if not able or elsewhere or work < LONG:
        return 1
    strange = not own_code and any(
        (identity := Identity.of(each.settings(), each.bound(), each.iterations)).strangers or identity.own_schedules
        for each in setups
    )
    return 1 if strange else cores()


def _run_here(work: PendingRun) -> Result:
    if len(work.parts) == 1:
        return work.finish([work.setup.run(work.begin(), work.saving)])
    work.setup.check_memory()
    together = Together(work.begin(), work.parts)
    courses = [work.course(number, partial(together.report, number)) for number in range(len(work.parts))]
    return work.finish(take_turns(courses, lambda number, result: together.end(number, result.stopped)))
