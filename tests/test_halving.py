"""The quick search: rungs are beginnings of runs, the default range, what it costs, and gamma = "auto" in files."""

import dataclasses
import functools
import json
import re
from contextlib import contextmanager

import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, configs, engines, metrics, networks, schedules, tuning
from proxdasa.conditions import Bursts, LinkLoss, MessageNoise, Outages, Participation, StaleMessages
from proxdasa.configs import read
from proxdasa.problems import PhaseRetrieval, Quadratic
from proxdasa.regularizers import L1
from proxdasa.runs.loop import Saving
from proxdasa.runs.setup import Setup
from proxdasa.tuning.default_range import STEPS
from proxdasa.tuning.halving import plan_rungs
from tests.setups import RETRIEVAL
from tests.test_algorithms import ALGORITHMS, made

FILE = f"""
iterations = 20
observe_every = 10
[algorithm]
name = "ProxDASA"
gamma = "auto"
{RETRIEVAL}"""


def quadratic(noise=0.0, curvature=4.0):
    """F_i = 2‖x‖² − b_iᵀx with other b_i for each of three agents; the mean of b_i/4 is (1, 2)."""
    b = torch.tensor([[4.0, 0.0], [8.0, 8.0], [0.0, 16.0]])
    return Quadratic(curvature * torch.eye(2).expand(3, 2, 2), b, noise=noise)


def setup(algorithm, **changes):
    chosen = {"iterations": 90, "trials": 2, "dtype": torch.float64, "seed": 3} | changes
    return Setup(algorithm, quadratic(noise=0.1), networks.ring(3), **chosen)


# rungs


def assert_beginnings(base, found):
    """Each setting has the objective that its own run has after as many iterations; the rest is not run."""
    for outcome in found.ranking:

        def end(k, _iterations, _rows, last=outcome.after):
            if k == last:
                raise KeyboardInterrupt

        method = tuning.with_parameters(base.algorithm, outcome.parameters)
        changes = {"observe_every": outcome.after, "metrics": [metrics.objective]}
        alone = dataclasses.replace(base, algorithm=method, **changes).run(end)
        then = [row["objective"] for row in alone.records if row["k"] == outcome.after]
        assert outcome.values == pytest.approx(then, rel=1e-9)


@ALGORITHMS
def test_what_a_rung_compares_is_the_beginning_of_the_run_with_a_setting(method):
    algorithm = made(method)
    base, name = setup(algorithm, iterations=15), next(iter(tuning.tunable(algorithm)))
    value = getattr(algorithm, name)
    value = next(iter(value.parameters.values())) if isinstance(value, schedules.Schedule) else value
    settings = [{name: value * factor} for factor in (0.3, 0.5, 0.7, 0.9, 1.0)]
    found = tuning.halve(base, settings)
    assert [rung.settings for rung in found.rungs][:2] == [5, 2]
    assert_beginnings(base, found)


@pytest.mark.parametrize(
    "changes",
    [
        {"mixing": proxdasa.Every(7)},
        {"network": networks.one_peer_hypercube(4)},
        {"conditions": [LinkLoss(0.3), Outages(9, 3)]},
        {"conditions": [Bursts(5, 3), MessageNoise(0.01)]},
        {"conditions": [StaleMessages(2), Participation(0.7)]},
        {"mixing": proxdasa.CompressedGossip(proxdasa.compressors.RandK(0.5), step=0.5)},
    ],
    ids=["every", "changing", "outages", "noise", "late", "compressed"],
)
@pytest.mark.filterwarnings("ignore::proxdasa.conditions.TrackerWarning")
def test_rungs_have_the_rests_graphs_and_events_of_their_true_iterations(changes):
    b = torch.tensor([[4.0, 0.0], [8.0, 8.0], [0.0, 16.0], [1.0, 1.0]])
    curvatures = torch.tensor([1.0, 2.0, 4.0, 8.0]).view(4, 1, 1)  # different, so that the mean depends on mixing
    problem = Quadratic(curvatures * torch.eye(2), b, noise=0.1)
    settings = {"network": networks.ring(4), "iterations": 24, "trials": 2, "dtype": torch.float64} | changes
    base = Setup(proxdasa.ProxDASAGT(0.1), problem, **settings)
    found = tuning.halve(base, [{"gamma": g} for g in (0.02, 0.03, 0.05, 0.07, 0.1)])
    assert found.rungs[1].first % 7, "not by chance"
    assert_beginnings(base, found)


def test_a_search_for_gamma_auto_meets_the_conditions_of_the_command_line(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    options = ["--condition", "LinkLoss(0.9)", "--mixing", "Gossip(2)"]
    done = CliRunner().invoke(cli.app, ["run", str(file), "-o", str(tmp_path / "out"), *options])
    assert done.exit_code == 0, done.output
    base = dataclasses.replace(read(file, auto=1.0), conditions=[LinkLoss(0.9)], mixing=proxdasa.Gossip(2))
    best = tuning.halve(base, tuning.default_settings(base)).best
    config = proxdasa.load(tmp_path / "out").config
    assert config["algorithm"]["gamma"] == best["gamma"]
    assert config["conditions"] == [{"name": "LinkLoss", "probability": 0.9}]
    assert config["mixing"]["rounds"] == 2


@dataclasses.dataclass(frozen=True)
class Counted:
    """A problem that knows how often its gradients were taken."""

    problem: Quadratic
    calls: list = dataclasses.field(repr=False)

    def __getattr__(self, name):
        return getattr(self.problem, name)

    def grad(self, x, sample):
        self.calls.append(len(x))
        return self.problem.grad(x, sample)

    def to(self, dtype):
        return dataclasses.replace(self, problem=self.problem.to(dtype))


def counted(calls):
    """A search that counts its gradients: the run, and the settings to try."""
    base = Setup(
        proxdasa.ProxDASAGT(1.0), Counted(quadratic(noise=0.1), calls), networks.ring(3), iterations=90, trials=2,
        dtype=torch.float64,
    )  # fmt: skip
    return base, [{"gamma": g} for g in (0.01, 0.02, 0.05, 0.1, 1e200)]


@functools.cache
def uninterrupted():
    """The search that nothing interrupts, and how often it takes gradients."""
    calls: list[int] = []
    return tuning.halve(*counted(calls)), len(calls)


@pytest.mark.parametrize("at", [1, 7, 30, 60])
def test_an_interrupted_search_goes_on_and_ends_like_one_that_was_not(tmp_path, at):
    """``at``: in the first rung, in the second, and on the way to the end; every iteration is made once."""
    calls: list[int] = []
    base, settings = counted(calls)
    whole, once = uninterrupted()

    def interrupt(k, _end, _rows):
        if k >= at:
            raise KeyboardInterrupt

    saving = Saving(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        tuning.halve(base, settings, progress=interrupt, saving=saving)
    resumed = tuning.halve(base, settings, saving=saving)
    assert len(calls) <= once + 2 + 3 * 2  # a rung compares its first step with that of its checkpoints
    assert resumed.ranking == whole.ranking
    assert resumed.rungs == whole.rungs
    calls.clear()
    assert tuning.halve(base, settings, saving=saving).ranking == whole.ranking
    assert len(calls) <= 2 * len(whole.rungs)
    with pytest.raises(ValueError, match="other"):
        tuning.halve(dataclasses.replace(base, seed=1), settings, saving=saving)


def test_rungs_have_ever_fewer_settings_and_cost_about_two_runs_together():
    assert plan_rungs(33, 2500) == [(33, 0, 24), (11, 24, 95), (4, 95, 291), (2, 291, 681)]
    for settings in (2, 3, 4, 11, 33, 100):
        for iterations in (1, 2, 7, 50, 1000, 10_000):
            rungs = plan_rungs(settings, iterations)
            ends = [rung.last for rung in rungs]
            assert rungs[0].settings == settings
            assert ends == sorted(set(ends))
            assert [rung.first for rung in rungs] == [0, *ends[:-1]]
            made = sum(rung.settings * (rung.last - rung.first) for rung in rungs) + iterations - ends[-1]
            assert made <= 2.25 * iterations + 2 * settings  # a rung has whole iterations, and at least one


def test_one_that_diverges_late_is_found_out_and_the_next_is_followed():
    """Curvatures 4 and 0.01: γ = 0.505 is unstable along the first, which shows late if x⁰ is right there."""
    A = torch.diag(torch.tensor([4.0, 0.01], dtype=torch.float64)).expand(1, 2, 2)
    problem, x0 = Quadratic(A, torch.zeros(1, 2, dtype=torch.float64)), torch.tensor([1e-9, 1.0])
    base = Setup(proxdasa.DPSGD(1.0), problem, networks.complete(1), iterations=1200, x0=x0)
    found = tuning.halve(base, [{"gamma": 0.505}, {"gamma": 1e-3}])
    assert [rung.settings for rung in found.rungs] == [2, 1, 1]
    assert found.best == {"gamma": 1e-3}
    assert [outcome.after for outcome in found.ranking] == [1200, 1200]
    assert found.ranking[1].mean > 100


def test_the_ranking_puts_those_that_went_further_first_and_faults_last():
    found = tuning.halve(setup(proxdasa.DPSGD(1.0)), [{"gamma": 10.0**power} for power in (-3, -2, -1, 3, 250)])
    assert found.best == {"gamma": 0.1}
    assert [outcome.fault for outcome in found.ranking] == ["", "", "", "", "diverged"]
    assert [outcome.after for outcome in found.ranking] == sorted((o.after for o in found.ranking), reverse=True)
    assert found.algorithm.gamma == 0.1
    assert found.runs == pytest.approx(2, abs=0.3)
    assert found.passes == 21 + 2 * (5 + 2) + 9
    assert f"5 settings at the cost of {found.runs:.1f} runs of 90 iterations (5 to iteration" in found.notes[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Mortal(proxdasa.DPSGD):
    """DPSGD that diverges after ``life`` iterations."""

    life: schedules.Number = 1e9

    def step(self, agents, k, state):
        new = super().step(agents, k, state)
        return new._replace(x=torch.where(torch.as_tensor(k < self.life), new.x, torch.inf))


@pytest.mark.filterwarnings("ignore::proxdasa.DivergenceWarning")
def test_where_most_of_a_rung_diverge_those_that_were_dropped_earlier_do_not_go_on_in_their_place():
    """They have made fewer iterations, and would be compared, and go on, as if they had made as many."""
    settings = [{"gamma": 0.01 + i / 1000, "life": 1e9} for i in range(7)]
    settings += [{"gamma": 0.1 + i / 100, "life": 6.0} for i in range(3)]
    base = setup(Mortal(1.0))
    found = tuning.halve(base, settings)
    assert [rung.settings for rung in found.rungs] == [10, 4, 1, 1]
    assert found.best == settings[6]
    assert_beginnings(base, found)


def test_if_every_setting_diverges_there_is_no_best():
    found = tuning.halve(setup(proxdasa.DPSGD(1.0)), [{"gamma": 1e200}, {"gamma": 1e250}])
    assert len(found.rungs) == 1
    with pytest.raises(ValueError, match="no best setting by objective: every setting diverged"):
        _ = found.algorithm


def test_progress_is_that_of_the_whole_search_and_an_interruption_ends_it():
    seen = []
    found = tuning.halve(setup(proxdasa.DPSGD(1.0)), [{"gamma": g} for g in (0.01, 0.02, 0.05, 0.1)],
                         progress=lambda k, end, rows: seen.append((k, end, {row["k"] for row in rows})))  # fmt: skip
    ends = {rung.last for rung in found.rungs}
    assert ends <= {k for k, *_ in seen}
    assert {end for _, end, _ in seen} == {max(ends)}
    assert all(rows <= {k} for k, _, rows in seen)

    def interrupt(k, _end, _rows):
        if k:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning.halve(setup(proxdasa.DPSGD(1.0)), [{"gamma": 0.1}, {"gamma": 0.2}], progress=interrupt)


# the default range


def test_the_default_range_spans_decades_of_the_step_around_one_over_l():
    settings = tuning.default_settings(setup(proxdasa.ProxDASA(1.0), iterations=300))
    assert {setting["alpha"] for setting in settings} == {0.1, 1.0, 5.0}  # 0.5 = 5 √(3/300) is the largest α
    for setting in settings:
        product = setting["gamma"] * setting["alpha"] * 0.1 * 4  # γ α L with α = scale √(n/K) and L = 4
        assert any(product == pytest.approx(step, rel=0.01) for step in STEPS)
    assert len(settings) == 3 * len(STEPS)


@pytest.mark.parametrize(
    ("alpha", "mean"),
    [
        (schedules.constant(0.2), 0.2),
        (schedules.diminishing(1.0), None),
        (lambda k: 0.1, 0.1),
    ],
)
def test_a_given_alpha_counts_with_its_mean(alpha, mean):
    base = setup(proxdasa.ProxDASA(1.0, alpha))
    settings = tuning.default_settings(base, fixed=["alpha"])
    mean = mean or sum(min((3 / (k + 1)) ** 0.5, 1.0) for k in range(90)) / 90
    assert [setting["gamma"] * mean * 4 for setting in settings] == pytest.approx(STEPS, rel=0.01)
    searched = tuning.default_settings(base)[0]
    assert ("alpha" in searched) == isinstance(alpha, schedules.Schedule)


def test_other_methods_have_one_step_or_none_declared():
    deep = tuning.default_settings(setup(proxdasa.DeepStormV2(schedules.cube_root(1.0), beta=1.0)))
    mean = sum((k + 1) ** (-1 / 3) for k in range(90)) / 90
    assert [setting["alpha"] * mean * 4 for setting in deep] == pytest.approx(STEPS, rel=0.01)
    with pytest.raises(ValueError, match="SPPDM does not declare which of its parameters is the step"):
        tuning.default_settings(setup(proxdasa.SPPDM(1.0, 1.0, 1.0, 0.5, 1.0)))


def test_a_problem_without_a_scale_is_refused_in_a_sentence():
    flat = Quadratic(torch.zeros(3, 2, 2), torch.zeros(3, 2))
    with pytest.raises(
        ValueError, match=r"quick: no scale for the default range: L cannot be estimated.*; give a grid"
    ):
        proxdasa.tune(proxdasa.ProxDASA(1.0), flat, networks.ring(3), quick=True)


@ALGORITHMS
def test_every_method_that_declares_a_step_gets_close_to_the_minimum_without_a_range(method):
    algorithm = made(method)
    if algorithm.facts.step is None:
        pytest.skip("it declares none")
    problem, settings = quadratic(), {"iterations": 120, "dtype": torch.float64}
    found = proxdasa.tune(algorithm, problem, networks.ring(3), quick=True, **settings)
    assert found.runs < 3
    assert found.ranking[0].after == 120
    assert found.ranking[0].mean + 10 < 2 * 0.02**2, "‖x̄ − x*‖ < 0.02, because F = 2‖x − x*‖² − 10"


@pytest.mark.parametrize("curvature", [1e-6, 1.0, 1e6])
def test_the_range_follows_the_scale_of_the_problem(curvature):
    found = proxdasa.tune(
        proxdasa.ProxDASA(1.0), quadratic(curvature=curvature), networks.ring(3), quick=True, iterations=400
    )
    assert 0.1 <= found.best["gamma"] * curvature <= 100
    assert not found.ranking[0].fault


def test_quick_has_no_place_for_ranges_and_measures_at_a_settings_own_gamma():
    with pytest.raises(ValueError, match="quick=True has its own settings; leave out grid, random and samples"):
        proxdasa.tune(proxdasa.DPSGD(1.0), quadratic(), networks.ring(3), quick=True, grid={"gamma": [1.0]})
    with pytest.raises(ValueError, match="merit is measured with each setting's own γ"):
        proxdasa.tune(proxdasa.ProxDASA(1.0), quadratic(), networks.ring(3), quick=True, measure="merit",
                      metrics=[metrics.merit(1.0)])  # fmt: skip


def test_it_ranks_by_scores_and_by_other_measures_too():
    problem = PhaseRetrieval(agents=3, dim=4, sparsity=2, evaluation=20)
    found = proxdasa.tune(
        proxdasa.ProxDASAGT(1.0), problem, networks.ring(3), quick=True, iterations=60, regularizer=L1(0.01),
        measure="table_stationarity", stop=proxdasa.Stationary(1.0, 1, 1),
    )  # fmt: skip
    assert found.measure == "table_stationarity"
    assert found.rungs[-1].last == 60  # the rule for stopping ends no rung


# the commands


def call(*words):
    return CliRunner().invoke(cli.app, [*map(str, words)])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def config(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """What a quick search prints, and its ranking."""
    folder = tmp_path_factory.mktemp("searched")
    (folder / "run.toml").write_text(FILE, encoding="utf-8")
    result = call("tune", folder / "run.toml", "--quick", "-o", folder / "out")
    return result, folder / "out", (folder / "out" / "ranking.csv").read_text(encoding="utf-8")


def test_tune_quick_writes_a_ranking_and_prints_what_to_paste(file, tmp_path, searched):
    result, out, _ = searched
    assert result.exit_code == 0, result.output
    assert "33 settings × 1 trial = 33 stacked trials of 3 agents, d = 4" in result.stderr
    assert "quick search: " in result.stderr
    assert "iterations\n" in result.stderr  # nothing after it
    assert re.search(r"33 settings at the cost of \d\.\d runs of 20 iterations \(33 to iteration 1, ", result.stdout)
    assert "gamma = " in result.stdout.partition("[algorithm]")[2]
    assert sorted(path.name for path in out.iterdir()) == [".lock", "ranking.csv", "ranking.md"]
    again = call("tune", file, "--quick", "-o", out)
    assert (again.exit_code, "holds a search already" in again.stderr) == (2, True)
    assert call("tune", file, "--quick", "-o", out, "--overwrite", "--quiet").exit_code == 0
    kept = (out / "ranking.csv").read_bytes()
    refused = call("tune", file, "--quick", "-o", out, "--overwrite", "--measure", "stationarity")
    assert (refused.exit_code, (out / "ranking.csv").read_bytes()) == (2, kept)
    both = call("tune", file, "--quick", "--grid", "gamma=1,2", "-o", tmp_path / "b")
    assert (both.exit_code, "or --quick" in both.stderr) == (2, True)


@pytest.fixture
def interrupted(monkeypatch):
    """Commands whose quick search is interrupted after a quarter of its iterations."""

    @contextmanager
    def progress(**_):
        def listen(k, _end, _rows):
            if k > 5:
                raise KeyboardInterrupt

        yield lambda _name, _setup: listen

    with monkeypatch.context() as patch:
        yield lambda: patch.setattr("proxdasa.cli.auto_gamma.progress", progress), patch.undo


def test_a_quick_search_that_overwrites_another_leaves_nothing_of_it(file, tmp_path, interrupted):
    """What is left of it would keep the next command from continuing this one."""
    begin, end = interrupted
    out, tune = tmp_path / "out", ("tune", file, "--quick", "-o", tmp_path / "out")
    (out / "sweep").mkdir(parents=True)
    for name in ("ranking.csv", "figure.png", "sweep/config.json"):
        (out / name).write_text("of another search")
    begin()
    assert call(*tune, "--overwrite").exit_code == 130
    end()
    assert call(*tune).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == [".lock", "ranking.csv", "ranking.md"]


def test_after_an_interruption_the_same_command_goes_on(file, tmp_path, interrupted, searched):
    begin, end = interrupted
    tune, run = ("tune", file, "--quick", "-o", tmp_path / "out"), ("run", file, "-o", tmp_path / "run", "-q")
    begin()
    for command in (tune, run):
        stopped = call(*command)
        assert (stopped.exit_code, "the same command, without --overwrite, continues" in stopped.stderr) == (130, True)
        rungs = command[3 if command is run else 4] / "rungs"
        assert (
            sorted(path.name for path in rungs.iterdir())
            == ["01", "02", "03", "04", "05"][: len(list(rungs.iterdir()))]
        )
    end()
    assert call(*tune).exit_code == 0
    assert (tmp_path / "out" / "ranking.csv").read_text(encoding="utf-8") == searched[-1]
    assert not (tmp_path / "out" / "rungs").exists()
    assert call(*run).exit_code == 0
    assert not (tmp_path / "run" / "rungs").exists()


@pytest.mark.usefixtures("drawn")
def test_auto_is_found_before_the_run_which_stores_numbers_and_how_they_were_found(file, tmp_path):
    out = tmp_path / "out"
    result = call("run", file, "-o", out, "--checkpoint-every", 10)
    assert result.exit_code == 0, result.output
    saved = config(out)
    quick = proxdasa.tune(**{**read(file, auto=1.0).settings(), "quick": True})
    assert saved["algorithm"]["gamma"] == quick.best["gamma"]
    assert saved["algorithm"]["alpha"] == {"name": "horizon", "scale": quick.best["alpha"]}
    told = f"33 settings at the cost of {quick.runs:.1f} runs of 20 iterations"
    assert saved["note"].startswith(f'gamma = "auto": gamma and alpha by a quick search, {told}')
    torch.testing.assert_close(read(out / "config.json").run().x, proxdasa.load(out).x)
    assert call("resume", out).exit_code == 0
    assert config(out)["note"] == saved["note"]
    report = call("report", out)
    assert report.exit_code == 0, report.output
    again = call("run", file, "-o", out)
    assert (again.exit_code, "holds results already" in again.stderr) == (2, True)


def test_an_alpha_in_the_file_stays_as_it_is(file, tmp_path):
    file.write_text('note = "mine"\n' + FILE.replace('"auto"', '"auto"\nalpha = 0.2'), encoding="utf-8")
    assert call("run", file, "-o", tmp_path / "out", "--quiet").exit_code == 0
    saved = config(tmp_path / "out")
    assert saved["algorithm"]["alpha"] == {"name": "constant", "value": 0.2}
    assert saved["note"].startswith('mine; gamma = "auto": gamma by a quick search, 11 settings')


def test_the_processes_of_a_run_read_the_number(file, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr("proxdasa.cli.run_commands.launch", lambda command, *_: commands.append(command) or 0)
    assert call("run", file, "-o", tmp_path / "out", "--processes", 2).exit_code == 0
    filled = tmp_path / "out" / "auto.json"
    assert str(filled) in commands[0]
    assert str(file) not in commands[0]
    assert isinstance(read(filled).algorithm.gamma, float)


def test_under_torchrun_auto_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "several", lambda: True)
    monkeypatch.setattr(engines, "end", lambda *_: None)
    result = call("run", file, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert '"auto" is searched for by one process; use --processes in place of torchrun' in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("drawn")
def test_where_nothing_is_searched_auto_is_refused_or_unknown(file, tmp_path):
    with pytest.raises(configs.ConfigError, match=r'algorithm\.gamma: "auto" is for proxdasa run'):
        read(file)
    other = call("tune", file, "--grid", "alpha=1,2", "-o", tmp_path / "out")
    assert (other.exit_code, 'has gamma = "auto": search over gamma too, or use --quick' in other.stderr) == (2, True)
    assert call("tune", file, "--grid", "gamma=0.01,0.02", "-o", tmp_path / "out", "-q").exit_code == 0
    planned = call("plan", file)
    assert planned.exit_code == 0, planned.output
    assert "α ≤ 1/(8γC_γ) < 1/16" in planned.stdout  # γ is not known
    assert "are guarantees of the theory, not advice" in planned.stdout
    assert "proxdasa tune FILE --quick finds such steps" in planned.stdout


def test_if_nothing_converges_the_run_says_so(file, tmp_path):
    file.write_text(FILE.replace('name = "ProxDASA"', 'name = "SPPDM"\nc = 1.0\nkappa = 1.0\nbeta = 0.5\nalpha = 1.0'),
                    encoding="utf-8")  # fmt: skip
    result = call("run", file, "-o", tmp_path / "out")
    assert (result.exit_code, "SPPDM does not declare" in result.stderr) == (2, True)


def test_a_note_is_kept_and_changes_nothing(tmp_path):
    plain, noted = (setup(proxdasa.ProxDASA(0.1), note=note, iterations=5) for note in (None, "a remark"))
    assert "note" not in plain.config()
    assert noted.config()["note"] == "a remark"
    assert plain.loop().fingerprint == noted.loop().fingerprint
    with pytest.raises(TypeError, match="note must be a text"):
        setup(proxdasa.ProxDASA(0.1), note=3)
