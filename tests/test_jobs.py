"""Runs in several processes: the same numbers as in one, whatever happens to the processes."""

import dataclasses
import functools
import os
import signal
import time
import warnings

import pytest
import torch

import proxdasa
from proxdasa import data, networks, problems, regularizers
from proxdasa.contracts import PeerError
from proxdasa.engines import compiled, simulator
from proxdasa.experiments import run_series
from proxdasa.metrics import Metric
from proxdasa.runs import jobs, worker_pool
from proxdasa.runs import trial_parts as parts
from proxdasa.runs.compiling import CompileWarning
from proxdasa.runs.jobs import run_setup
from proxdasa.runs.pending_run import PendingRun
from proxdasa.runs.saving import Saving
from proxdasa.runs.setup import Setup
from proxdasa.runs.worker_pool import WorkerPool, _Worker

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="jobs are forks, which are safe on Linux only")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Runs of a few numbers have parts too."""
    monkeypatch.setattr(parts, "SIZE", 40)


def as_ours(measure):
    """The measure, taken for one of the library's: a run with those of a user is not divided."""
    measure.__module__ = "proxdasa.metrics"
    return measure


def setup(**settings):
    problem = problems.PhaseRetrieval(agents=4, dim=10, sparsity=3, evaluation=50)
    method = proxdasa.ProxDASA(gamma=proxdasa.per_trial([0.01, 0.02, 0.03, 0.04]))
    settings = {"trials": 4, "iterations": 20, "observe_every": 5, "regularizer": regularizers.L1(0.01), **settings}
    return Setup(settings.pop("algorithm", method), settings.pop("problem", problem), networks.ring(4), **settings)


def numbers(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def assert_same(one, other):
    assert one.state.keys() == other.state.keys()
    for name in one.state:
        torch.testing.assert_close(one.state[name], other.state[name], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(one.solution, other.solution, rtol=0, atol=0, equal_nan=True)
    assert numbers(one.records) == numbers(other.records)
    assert (one.config, one.iterations, one.stopped) == (other.config, other.iterations, other.stopped)
    assert one.diverged == other.diverged


def test_a_run_is_divided_by_its_sizes_alone():
    assert parts.divide(setup()) == [range(i, i + 1) for i in range(4)]
    assert parts.divide(setup(trials=3, algorithm=proxdasa.ProxDASA(gamma=0.1))) == [range(i, i + 1) for i in range(3)]
    rule = proxdasa.Stationary(tolerance=1e-3)
    assert parts.divide(setup(stop=rule)) == [range(4)]
    assert parts.divide(setup(exact=True)) == [range(4)]


def test_parts_of_one_size_are_preferred(monkeypatch):
    monkeypatch.setattr(parts, "SIZE", 130)  # room for three parts of 400 numbers
    ten = setup(trials=10, algorithm=proxdasa.ProxDASA(gamma=0.1))
    assert parts.divide(ten) == [range(5), range(5, 10)]


def test_parts_agree_with_the_stack_to_rounding():
    """The parts against one ordinary run of all trials, which knows nothing of parts."""
    made = setup(random_iterate=True, regularizer=regularizers.L1(proxdasa.per_trial([0.1, 0.2, 0.0, 0.4])))
    whole, divided = made.run(), run_setup(made, None, None, 1)
    assert whole.state.keys() == divided.state.keys()
    for name in whole.state:
        torch.testing.assert_close(whole.state[name], divided.state[name])
    assert [(row["trial"], row["k"]) for row in whole.records] == [(row["trial"], row["k"]) for row in divided.records]
    for one, other in zip(whole.records, divided.records, strict=True):
        assert numbers([one])[0] == pytest.approx(numbers([other])[0], rel=1e-4, abs=1e-6)


def test_any_number_of_processes_gives_the_same_numbers_and_progress():
    made, seen = setup(random_iterate=True), {}

    def listen(count):
        seen[count] = []
        return lambda k, iterations, rows: seen[count].append((k, iterations, numbers(rows)))

    one, two, three = (run_setup(made, listen(count), None, count) for count in (1, 2, 3))
    assert_same(one, two)
    assert_same(one, three)
    observations = [[entry for entry in seen[count] if entry[2]] for count in (1, 2, 3)]
    assert observations[0] == observations[1] == observations[2]
    assert [entry[0] for entry in observations[0]] == list(range(0, 21, 5))
    assert all(len(entry[2]) == 4 for entry in observations[0])


@functools.cache
def uninterrupted():
    """The result of the run of the next tests."""
    return run_setup(setup(iterations=200, observe_every=20), None, None, 1)


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)])
def test_an_interrupted_run_resumes_in_any_number_of_processes(first, then, tmp_path):
    made, asked = setup(iterations=200, observe_every=20), []

    def interrupt(k, _iterations, _rows):
        if k >= 20 and not asked:
            asked.append(k)
            os.kill(os.getpid(), signal.SIGINT)

    stopped = run_setup(made, interrupt, Saving(tmp_path), first)
    assert stopped.stopped == "interrupted"
    assert 20 <= stopped.iterations < 200
    assert {row["trial"] for row in stopped.last} == {0, 1, 2, 3}
    assert (tmp_path / "config.json").is_file()
    with pytest.raises(ValueError, match="computed in parts"):
        made.run(None, Saving(tmp_path))
    assert_same(run_setup(made, None, Saving(tmp_path), then), uninterrupted())
    assert not list(tmp_path.iterdir())


def test_a_killed_process_costs_its_own_part_only(tmp_path):
    victim = tmp_path / "victim"

    def killing(view):
        if float(view.gamma.flatten()[0]) == pytest.approx(0.02) and victim.exists() and bool((view.z != 0).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        return view.x.sum(dim=(1, 2))

    made = setup(metrics=[Metric("killing", as_ours(killing))])
    victim.touch()
    saving = Saving(tmp_path / "checkpoints", every=10)
    with pytest.raises(PeerError, match=r"trial 1 of Prox-DASA ended with signal SIGKILL \(was there not enough mem"):
        run_setup(made, None, saving, 4)
    kept = sorted(str(path.relative_to(saving.folder)) for path in saving.folder.glob("*/000000020"))
    assert kept == [f"trials-00{i}-00{i}/000000020" for i in (0, 2, 3)]
    with pytest.raises(PeerError, match="SIGKILL"):
        run_setup(made, None, None, 2)
    victim.unlink()
    assert_same(run_setup(made, None, saving, 2), run_setup(made, None, None, 1))


def test_warnings_and_divergence_are_as_in_one_process():
    made = setup(algorithm=proxdasa.DPSGD(gamma=proxdasa.per_trial([0.01, 1e6, 0.01, 1e6])))
    told = []
    for count in (1, 2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            told.append(run_setup(made, None, None, count))
        assert sorted(str(entry.message)[:16] for entry in caught) == ["trial 1 diverged", "trial 3 diverged"]
        assert {entry.category for entry in caught} == {proxdasa.DivergenceWarning}
    assert_same(*told)
    assert told[0].stopped is None
    assert sorted(told[0].diverged) == [1, 3]


def test_an_error_in_a_process_is_raised_with_its_place():
    def failing(_view):
        raise ZeroDivisionError("my own mistake")

    with pytest.raises(ZeroDivisionError, match="my own mistake") as raised:
        run_setup(setup(metrics=[Metric("failing", as_ours(failing))]), None, None, 2)
    assert "in failing" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("exact", [False, True])
def test_what_processes_measure_with_is_prepared_before_they_fork(exact):
    """Unless the run is exact, which does not use it."""
    x, y = torch.eye(2).repeat(8, 1), torch.arange(16) % 2
    network = torch.nn.Sequential(torch.nn.Linear(2, 2))
    problem = problems.Supervised(network, data.from_tensors(x, y), agents=4)
    run_setup(setup(problem=problem, iterations=2, exact=exact), None, None, 2)
    assert ("observed" in vars(problem)) is not exact


def test_a_search_has_the_same_ranking_with_jobs():
    made = setup(trials=2, algorithm=proxdasa.ProxDASA(gamma=0.1))
    given = made.algorithm, made.problem, made.network
    settings = {"trials": 2, "iterations": 20, "regularizer": made.regularizer}
    one, two = (
        proxdasa.tune(*given, grid={"gamma": [0.001, 0.002, 0.005]}, jobs=count, **settings) for count in (1, 2)
    )
    assert parts.divide(one.search.setup) == [range(2), range(2, 4), range(4, 6)]
    assert_same(one.result, two.result)
    assert one.ranking == two.ranking
    with pytest.raises(ValueError, match="quick search"):
        proxdasa.tune(*given, quick=True, jobs=2, **settings)


def test_a_series_is_spread_and_each_run_is_saved(tmp_path):
    method = proxdasa.ProxDASA(gamma=proxdasa.per_trial([0.01, 0.02]))
    changes = {"first": {}, "second": {"seed": 1}, "whole": {"stop": proxdasa.Stationary(tolerance=1e-3)}}
    series = {name: setup(trials=2, algorithm=method, **change) for name, change in changes.items()}
    made = {}
    for count in (1, 2):
        ended = []
        silent = lambda _name, _setup: lambda _k, _iterations, _rows: None  # noqa: E731
        made[count] = run_series(
            series, tmp_path / str(count), silent, ended=lambda name, *_, ended=ended: ended.append(name), jobs=count
        )
        assert sorted(ended) == sorted(series)
        assert list(made[count]) == list(series)
    for name in series:
        assert_same(made[1][name], made[2][name])
        assert_same(proxdasa.load(tmp_path / "2" / name), made[1][name])
        assert not (tmp_path / "2" / name / "checkpoints").exists()


@pytest.fixture
def began(monkeypatch):
    """The processes that are started: the names of their runs and the numbers of their parts."""
    began = []

    class Recorded(_Worker):
        def __init__(self, work, own):
            began.append((work.name, list(own)))
            super().__init__(work, own)

    monkeypatch.setattr(worker_pool, "_Worker", Recorded)
    return began


def test_whole_runs_begin_first_and_parts_fill_the_gaps(began):
    """Three runs in two processes: no process takes both parts of a run while the other has nothing to do."""
    divided = setup(trials=2, algorithm=proxdasa.ProxDASA(gamma=0.01))
    whole = dataclasses.replace(divided, stop=proxdasa.Stationary(tolerance=1e-9))
    works = [PendingRun(divided, title="divided"), PendingRun(whole, title="a"), PendingRun(whole, title="b")]
    results = WorkerPool(2, works).run()
    assert began == [("a", [0]), ("b", [0]), ("divided", [0]), ("divided", [1])]
    for work, result in zip(works, results, strict=True):
        assert_same(result, run_setup(work.setup, None, None, 1))


def test_a_run_with_a_part_that_never_began_resumes(tmp_path):
    """It is interrupted while another run has the process that its second part waits for."""
    begun, folder, asked = tmp_path / "begun", tmp_path / "checkpoints", []

    def measure(view):
        if not begun.exists():
            begun.touch()
            time.sleep(60)  # until it is interrupted
        return view.x.sum(dim=(1, 2))

    def interrupt(k, _iterations, _rows):
        if begun.exists() and not asked:
            asked.append(k)
            os.kill(os.getpid(), signal.SIGINT)

    one = setup(trials=2, algorithm=proxdasa.ProxDASA(gamma=0.01))
    endless = dataclasses.replace(one, stop=proxdasa.Stationary(tolerance=1e-30), iterations=10**6, compile=False)
    divided = dataclasses.replace(one, metrics=[Metric("slow", as_ours(measure))])
    works = [
        PendingRun(endless, None, lambda: interrupt),
        PendingRun(dataclasses.replace(endless, iterations=5)),
        PendingRun(divided, Saving(folder)),
    ]
    stopped = WorkerPool(2, works).run()
    assert [result.stopped for result in stopped] == ["interrupted", None, "interrupted"]
    assert sorted(path.name for path in folder.glob("trials-*")) in ([], ["trials-000-000"])
    assert_same(run_setup(divided, None, Saving(folder), 2), run_setup(divided, None, None, 1))


def test_notes_of_a_process_are_passed_on(monkeypatch):
    heard = []

    def listen(_k, _iterations, _rows):
        """Progress."""

    listen.note = heard.append
    monkeypatch.setattr(compiled, "compile_graph", lambda graph, _examples: graph)  # which takes no time
    made = setup(trials=2, algorithm=proxdasa.ProxDASA(gamma=0.01), iterations=5, compile=True)
    assert parts.divide(made) == [range(2)]
    (result,) = WorkerPool(2, [PendingRun(made, None, lambda: listen)]).run()
    assert result.config["facts"]["compiled"]
    assert [text.partition(" steps")[0] for text in heard] == ["compiling the", "compiling the"]


def test_progress_while_a_part_waits_is_that_of_all_parts():
    seen = []
    together = parts.Together(lambda *report: seen.append(report), [range(1), range(1, 2)])
    together.incomplete = True
    for k in (0, 50, 100):
        together.report(0, k, 100, [{"trial": 0, "k": k, "seconds": 2 * k}])
    together.end(0, None)
    assert seen == [(25, 100, []), (50, 100, []), (50, 100, [])]
    seen.clear()
    together.incomplete = False
    for k in (0, 50, 100):
        together.report(1, k, 100, [{"trial": 0, "k": k, "seconds": k}])
    assert seen == [(k, 100, [{"trial": i, "k": k, "seconds": 3 * k} for i in (0, 1)]) for k in (0, 50, 100)]


@pytest.mark.filterwarnings("ignore::proxdasa.DivergenceWarning")
def test_progress_goes_on_where_a_part_diverges(monkeypatch):
    """Every observation is reported, in time: parts 0 and 2 share a process, and 2 diverges long before 0 ends."""
    made = setup(algorithm=proxdasa.ProxDASA(gamma=proxdasa.per_trial([0.01, 0.02, 1e30, 0.04])))
    events = []

    class Logged(parts.Together):
        def report(self, number, k, iterations, rows):
            events.append((number, k))
            super().report(number, k, iterations, rows)

        def end(self, number, how):
            events.append((number, how))
            super().end(number, how)

    monkeypatch.setattr(worker_pool, "Together", Logged)
    for count in (1, 2):
        seen = []
        run_setup(made, lambda k, _iterations, rows, seen=seen: seen.append((k, len(rows))), None, count)
        assert [entry for entry in seen if entry[1]] == [(0, 4), *((k, 3) for k in range(5, 21, 5))]
    assert events.index((2, "diverged")) < events.index((0, 20))


@pytest.mark.filterwarnings("ignore::proxdasa.DivergenceWarning")
def test_seconds_are_those_of_all_trials_as_in_a_whole_run():
    """Also after a part has diverged, which takes no more time; progress shows what the records have."""
    made = setup(algorithm=proxdasa.ProxDASA(gamma=proxdasa.per_trial([0.01, 0.02, 1e30, 0.04])))
    ranges, seen = parts.divide(made), []
    alone = [parts.Part.of(made, chosen).run() for chosen in ranges]
    assert alone[2].stopped == "diverged"
    for row in parts.merge(made, ranges, alone).records:
        spent = [max(own["seconds"] for own in part.records if own["k"] <= row["k"]) for part in alone]
        assert row["seconds"] == pytest.approx(sum(spent))
    records = run_setup(made, lambda _k, _iterations, rows: seen.extend(rows), None, 1).records
    assert [row["seconds"] for row in seen] == [row["seconds"] for row in records]


@pytest.fixture
def uncompiled(monkeypatch):
    """Code that is recorded and not compiled, which takes no time; two trials in a call."""
    monkeypatch.setattr(compiled, "compile_graph", lambda graph, _examples: graph)
    monkeypatch.setattr(jobs, "load_compiler", lambda: None)
    monkeypatch.setattr(simulator, "CACHED", 2 * 4 * 10)


@pytest.mark.usefixtures("uncompiled")
def test_compiled_runs_have_parts_of_whole_calls_and_the_same_numbers_in_any_number_of_processes(monkeypatch):
    made = setup(compile=True, iterations=8, observe_every=2)
    assert parts.divide(made) == [range(2), range(2, 4)]
    one, two = (run_setup(made, None, None, count) for count in (1, 2))
    assert_same(one, two)
    assert one.config["facts"]["compiled"] is True
    torch.testing.assert_close(one.state["x"], made.run().state["x"])

    def fail(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiled, "compile_graph", fail)
    with pytest.warns(CompileWarning, match="no compiler"):
        assert run_setup(made, None, None, 2).config["facts"]["compiled"] is False


@pytest.mark.usefixtures("uncompiled")
def test_the_second_part_of_a_compiled_run_waits_for_the_code_of_the_first(began):
    made = setup(compile=True, iterations=4, observe_every=2)
    WorkerPool(2, [PendingRun(made, title=title) for title in "ab"]).run()
    assert began[:2] == [("a", [0]), ("b", [0])]
    assert sorted(began[2:]) == [("a", [1]), ("b", [1])]
    began.clear()
    WorkerPool(2, [PendingRun(made, title="alone")]).run()
    assert began == [("alone", [0]), ("alone", [1])]


def test_a_run_that_began_in_other_parts_goes_on_with_them_even_if_it_would_now_be_compiled(tmp_path, monkeypatch):
    made, ordinary = setup(), [range(i, i + 1) for i in range(4)]
    monkeypatch.setattr(parts, "compiles", lambda _: True)
    monkeypatch.setattr(simulator, "CACHED", 2 * 4 * 10)
    assert PendingRun(made, Saving(tmp_path)).parts == [range(2), range(2, 4)]
    assert parts.Part.of(made, range(2)).compile is True  # though alone it would be too short
    Saving(tmp_path).of_part(range(2), made.iterations).folder.mkdir(parents=True)
    assert PendingRun(made, Saving(tmp_path)).parts == [range(2), range(2, 4)]
    Saving(tmp_path).of_part(range(1), made.iterations).folder.mkdir()
    assert PendingRun(made, Saving(tmp_path)).parts == ordinary


def test_processes_are_the_default_for_long_work_of_our_own_code(monkeypatch):
    monkeypatch.setattr(jobs, "cores", lambda: 5)
    short, long = setup(), setup(iterations=100_000)
    assert jobs.choose_jobs([short]) == 1
    assert jobs.choose_jobs([long]) == 5
    assert jobs.choose_jobs([long], 2) == 2
    own = dataclasses.replace(long, metrics=[Metric("own", lambda view: view.x.sum(dim=(1, 2)))])
    assert jobs.choose_jobs([own]) == 1
    assert jobs.choose_jobs([own], own_code=True) == 5
    with pytest.raises(ValueError, match="jobs must be"):
        jobs.choose_jobs([short], 0)


def test_a_run_with_a_measure_of_a_user_stays_whole_and_gives_each_trial_its_own():
    """It may hold values by trial, which a part with one trial would take for those of others."""
    made = setup(metrics=[Metric("mine", lambda view: view.x.sum(dim=(1, 2)) + torch.arange(4))])
    assert parts.divide(made) == [range(4)]
    assert len(parts.divide(setup())) > 1
    with pytest.raises(ValueError, match=r"the measure mine must be \[4\], a number for each trial; got \[2\]"):
        setup(metrics=[Metric("mine", lambda view: view.x.sum(dim=(1, 2))[:2])]).run()
