"""The solution of a run: y = prox_γ(x̄ − γ z̄) or prox_γ(x̄), exactly sparse, stored, and put back into a module."""

import dataclasses
import json
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import proxdasa
from proxdasa import data, networks, regularizers, reports
from proxdasa.configs import read
from proxdasa.problems import PhaseRetrieval, Quadratic, Repeated, Supervised
from proxdasa.regularizers import L1, Box, Zero
from proxdasa.reports import ranking
from proxdasa.runs.records import read_tensors
from proxdasa.schedules import per_trial
from tests.setups import in_threads, setup
from tests.test_algorithms import ALGORITHMS, made

AGENTS, D = 3, 6


def quadratic(dtype=torch.float64):
    """F(x) = ½‖x − b̄‖² with agents that differ; half of b̄ is below 0.3."""
    b = torch.tensor([3.0, 0.2, -2.0, 0.1, 1.0, -0.1]) + torch.tensor([[0.5], [0.0], [-0.5]])
    return Quadratic(torch.eye(D).expand(AGENTS, D, D), b).to(dtype)


def run(method, psi=L1(0.3), **settings):  # noqa: B008 - a frozen value
    settings = {"iterations": 60, "trials": 2} | settings
    return proxdasa.run(method, quadratic(), networks.ring(AGENTS), regularizer=psi, **settings)


@ALGORITHMS
def test_every_method_has_the_solution_that_the_equations_say(method):
    algorithm = made(method)
    psi = L1(0.05) if algorithm.facts.composite else Zero()
    result = proxdasa.run(algorithm, quadratic(), networks.complete(AGENTS), regularizer=psi, iterations=5, trials=2)
    γ, x = algorithm.mapping_gamma, result.state["x"].mean(dim=1)
    if algorithm.facts.averaging:
        x = x - γ * result.state[algorithm.facts.averaging.variable].mean(dim=1)
    expected = (x.abs() - γ * 0.05).clamp(min=0) * x.sign() if algorithm.facts.composite else x
    torch.testing.assert_close(result.solution, expected)
    assert result.solution.shape == (2, D)
    assert [row["solution_density"] for row in result.last] == result.density.tolist()


def test_it_has_exact_zeros_where_the_mean_has_small_values():
    result = run(proxdasa.ProxDASAGT(gamma=0.5, alpha=0.1), x0=torch.ones(D), iterations=150)
    assert (result.mean != 0).all()
    torch.testing.assert_close(
        result.solution[0], torch.tensor([2.7, 0, -1.7, 0, 0.7, 0], dtype=torch.float64), rtol=0, atol=1e-3
    )
    assert result.solution[0].nonzero().flatten().tolist() == [0, 2, 4]
    assert result.density.tolist() == [0.5, 0.5]
    assert [row["solution_density"] for row in result.last] == [0.5, 0.5]
    assert any((row["density"], row["solution_density"]) == (1.0, 0.5) for row in result.records)  # long before the end


def test_without_regularizer_it_is_the_mean():
    result = run(proxdasa.DPSGD(0.1), Zero())
    assert torch.equal(result.solution, result.mean)
    assert result.density.tolist() == [1.0, 1.0]


def test_it_is_feasible_for_constraints():
    result = run(proxdasa.ProxDASA(gamma=0.5, alpha=0.3), Box(-0.5, 0.5), x0=torch.full((D,), 9.0), iterations=3)
    assert bool((result.mean.abs() > 0.5).any())
    assert result.solution.abs().max() <= 0.5


@pytest.mark.filterwarnings("ignore::proxdasa.DivergenceWarning")
def test_diverged_trials_have_none():
    result = run(proxdasa.DPSGD(per_trial([0.1, 1e200])), iterations=10)
    assert list(result.diverged) == [1]
    assert result.solution[0].isfinite().all()
    assert result.solution[1].isnan().all()
    assert result.density[0] == 0.5
    assert result.density[1].isnan()


@pytest.mark.filterwarnings("ignore::proxdasa.DivergenceWarning")
def test_a_proximal_step_does_not_make_a_diverged_trial_finite():
    """The second trial's gradients overflow, and the box keeps its x finite."""
    steep = Quadratic(100 * torch.eye(2).expand(2, 2, 2), torch.ones(2, 2)).to(torch.float64)
    x0 = torch.tensor([0.0, 1e307], dtype=torch.float64).reshape(2, 1, 1)
    method, psi = proxdasa.ProxDASA(0.1, 0.3), Box(-1e307, 1e307)
    result = proxdasa.run(method, steep, networks.ring(2), regularizer=psi, iterations=1, trials=2, x0=x0)
    assert list(result.diverged) == [1]
    assert result.solution.isnan().all(dim=1).tolist() == [False, True]


@pytest.mark.parametrize("name", ["prox-dasa", "sppdm"])
def test_it_has_the_same_bits_wherever_agents_live(name):
    alone = setup(name, iterations=4).run().solution
    several = in_threads(2, lambda transport: setup(name, iterations=4).run(processes=transport))[0].solution
    assert torch.equal(alone, several)


def test_a_loaded_result_has_it(tmp_path):
    result = run(proxdasa.ProxDASA(gamma=0.5, alpha=0.3))
    loaded = proxdasa.load(result.save(tmp_path / "a"))
    assert torch.equal(loaded.solution, result.solution)
    assert list(loaded.state) == list(result.state) == ["x", "z"]
    again = proxdasa.load(loaded.save(tmp_path / "b"))
    assert torch.equal(again.solution, result.solution)


def test_folders_of_earlier_versions_can_be_read(tmp_path):
    folder = run(proxdasa.ProxDASA(gamma=0.5, alpha=0.3)).save(tmp_path / "a")
    tensors = read_tensors(folder)
    del tensors["solution"]
    save_file(tensors, folder / "final.safetensors")
    old = proxdasa.load(folder)
    assert old.mean.shape == (2, D)
    with pytest.raises(ValueError, match="written by a version that did not save it"):
        _ = old.solution
    assert "solution" not in read_tensors(old.save(tmp_path / "b"))


def test_a_run_that_was_stopped_at_once_has_none():
    def stop(*_):
        raise KeyboardInterrupt

    @dataclasses.dataclass(frozen=True, eq=False)
    class Stops(proxdasa.DPSGD):
        def init(self, agents, x):
            stop()

    with pytest.raises(ValueError, match="no solution: it has no iterates"):
        _ = run(Stops(0.1)).solution


def test_a_run_continued_from_a_checkpoint_has_the_same(tmp_path):
    method = proxdasa.ProxDASA(gamma=0.5, alpha=0.3)
    whole = run(method)
    run(method, checkpoints=tmp_path, checkpoint_every=20)
    assert torch.equal(run(method, checkpoints=tmp_path, checkpoint_every=20).solution, whole.solution)


def test_no_variable_of_a_method_may_take_its_name():
    @dataclasses.dataclass(frozen=True, eq=False)
    class Taken(proxdasa.DPSGD):
        class State(NamedTuple):
            x: Tensor
            solution: Tensor

    with pytest.raises(ValueError, match="no variable may be called solution"):
        run(Taken(0.1))


# ---------- back to a module


def model():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def supervised():
    torch.manual_seed(0)
    return Supervised(model, data.from_tensors(torch.randn(30, 3), torch.arange(30) % 2), agents=AGENTS, batch_size=3)


def test_a_result_becomes_a_module_with_the_solution_of_a_trial():
    problem = supervised()
    method = proxdasa.ProxDASA(gamma=0.5, alpha=0.3)
    result = proxdasa.run(method, problem, networks.ring(AGENTS), regularizer=L1(0.02), iterations=20, trials=2)
    for given, trial in [({}, 0), ({"trial": 1}, 1)]:
        values = torch.cat([p.detach().flatten() for p in problem.module(result, **given).parameters()])
        assert torch.equal(values, result.solution[trial])
        assert (values == 0).any()
    mean = torch.cat([p.detach().flatten() for p in problem.module(result.mean[1]).parameters()])
    assert torch.equal(mean, result.mean[1])
    for wrong, error, message in [
        ((result, 2), ValueError, "trial must be a whole number from 0 to 1; got 2"),
        ((result, -1), ValueError, "trial must be a whole number from 0 to 1; got -1"),
        ((result.mean[0], 0), ValueError, "trial is for the result of a run"),
        (("x",), TypeError, "x must be a vector, or the result of a run; got 'x'"),
        ((result.solution,), ValueError, r"\[26\]; got a tensor of shape \[2, 26\]"),
    ]:
        with pytest.raises(error, match=message):
            problem.module(*wrong)
    broken = dataclasses.replace(result, proximal_point=result.solution * torch.tensor([[1.0], [torch.nan]]))
    assert problem.module(broken)
    with pytest.raises(ValueError, match="trial 1 diverged, so it has no solution"):
        problem.module(broken, trial=1)


# ---------- a path over λ as one run


LAMBDAS = [0.05, 0.3, 1.5]


@pytest.mark.parametrize("exact", [False, True])
def test_a_path_over_the_weight_is_its_single_runs(exact):
    """`Repeated` gives all trials the samples of one, so only λ differs."""
    settings = {"iterations": 8, "seed": 3, "exact": exact, "dtype": torch.float64}
    network, problem, method = networks.ring(AGENTS), supervised(), proxdasa.ProxDASA(gamma=0.5, alpha=0.3)
    path = proxdasa.run(method, Repeated(problem, 1), network, regularizer=L1(per_trial(LAMBDAS)), trials=3, **settings)
    for trial, weight in enumerate(LAMBDAS):
        single = proxdasa.run(method, problem, network, regularizer=L1(weight), **settings)
        torch.testing.assert_close(path.x[trial], single.x[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(path.solution[trial], single.solution[0], rtol=1e-10, atol=1e-12)
        for measure in ("objective", "stationarity", "table_stationarity", "certificate"):
            own = [row[measure] for row in path.records if row["trial"] == trial]
            assert own == pytest.approx([row[measure] for row in single.records], rel=1e-8)
    assert path.density[0] > path.density[2]


def test_paths_have_the_same_bits_in_processes():
    psi = regularizers.Scaled(L1(1e-3), per_trial([1.0, 50.0]))
    made = setup("prox-dasa-gt", iterations=4, regularizer=psi)
    several = in_threads(2, lambda transport: made.run(processes=transport))[0]
    assert torch.equal(several.x, made.run().x)
    assert not torch.equal(several.solution, setup("prox-dasa-gt", iterations=4).run().solution)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"regularizer": L1(per_trial([0.1, 0.2, 0.3]))},
            "regularizer.weight has 3 per-trial values, but the run has 2",
        ),
        (
            {"regularizer": regularizers.Blocks([(0, 2, L1(0.1)), (2, 4, L1(per_trial([0.1])))])},
            r"regularizer.parts\[1\]\[2\].weight has 1 per-trial values, but the run has 2 trials",
        ),
        (
            {"metrics": [proxdasa.metrics.table_stationarity(L1(per_trial([0.1])))]},
            "metrics.table_stationarity.regularizer.weight has 1 per-trial values",
        ),
        ({"regularizer": L1(per_trial([1e39, 1.0])), "dtype": torch.float32}, "is too large for float32"),
    ],
)
def test_weights_that_do_not_fit_the_trials_are_refused(changes, message):
    settings = {"regularizer": L1(0.1), "trials": 2, "iterations": 3} | changes
    with pytest.raises(ValueError, match=message):
        proxdasa.run(proxdasa.ProxDASA(0.1), quadratic(), networks.ring(AGENTS), **settings)


def test_a_measure_may_have_a_path_of_its_own():
    def measured(weight):
        own = proxdasa.metrics.table_stationarity(L1(weight))
        return run(proxdasa.DPSGD(0.1), Zero(), metrics=[own], iterations=1).last

    path = measured(per_trial([0.1, 1.0]))
    for trial, weight in enumerate([0.1, 1.0]):
        assert path[trial]["table_stationarity"] == pytest.approx(measured(weight)[trial]["table_stationarity"])


def test_a_saved_path_is_described_so_that_it_can_be_repeated(tmp_path):
    psi = regularizers.Blocks([(0, 3, L1(per_trial([0.1, 0.2]))), (3, 5, L1([0.1, 0.2]))])
    problem = PhaseRetrieval(agents=AGENTS, dim=5, sparsity=2, evaluation=20)
    folder = proxdasa.run(
        proxdasa.DPSGD(0.1), problem, networks.ring(AGENTS), regularizer=psi, trials=2, iterations=2
    ).save(tmp_path / "a")
    described = json.loads((folder / "config.json").read_text())["regularizer"]
    assert described["parts"][0][2] == {"name": "L1", "weight": {"per_trial": [0.1, 0.2]}}
    assert described["parts"][1][2] == {"name": "L1", "weight": [0.1, 0.2]}
    assert read(folder / "config.json").regularizer == psi


FILE = """
iterations = 3
trials = 2
algorithm = { name = "ProxDASA", gamma = [0.1, 0.2] }
problem = { name = "PhaseRetrieval", agents = 3, dim = 4, sparsity = 2, evaluation = 20 }
network = "ring"
regularizer = REGULARIZER
"""


@pytest.mark.parametrize(
    ("written", "psi"),
    [
        ('{ name = "L1", weight = { per_trial = [0.1, 1] } }', L1(per_trial([0.1, 1.0]))),
        ('{ name = "L1", weight = [0.1, 1, 2, 3] }', L1([0.1, 1.0, 2.0, 3.0])),
        (
            '{ name = "ElasticNet", l1 = 1, l2 = { per_trial = [0.1, 1] } }',
            regularizers.ElasticNet(1.0, per_trial([0.1, 1.0])),
        ),
        (
            '{ name = "RowL2", weight = { per_trial = [0.1, 1] }, shape = [1, 3], bias = true }',
            regularizers.RowL2(per_trial([0.1, 1.0]), (1, 3), bias=True),
        ),
        (
            '{ name = "Scaled", regularizer = "NonNegative", factor = { per_trial = [0.1, 1] } }',
            regularizers.Scaled(regularizers.NonNegative(), per_trial([0.1, 1.0])),
        ),
    ],
)
def test_files_have_weights_per_trial(tmp_path, written, psi):
    (tmp_path / "run.toml").write_text(FILE.replace("REGULARIZER", written))
    assert read(tmp_path / "run.toml").regularizer == psi


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            '{ name = "L1", weight = { per_trial = [0.1, 1, 2] } }',
            "run.toml: regularizer.weight has 3 per-trial values, but the run has 2 trials",
        ),
        (
            '{ name = "SquaredL2", weight = [0.1, 1] }',
            r"SquaredL2.weight must be .* in a file { per_trial = ",
        ),
        (
            '{ name = "L1", weight = { per_trial = 1 } }',
            r"weight must be a number or .*{ per_trial = \[...\]",
        ),
        ('{ name = "L1", weight = { per_trial = [0.1, -1] } }', "L1.weight of trial 1 must be a finite number"),
        ('{ name = "L1", weight = { by_trial = [0.1, 1] } }', "regularizer.weight must be a number or"),
    ],
)
def test_weights_in_files_that_do_not_fit_are_refused(tmp_path, written, message):
    (tmp_path / "run.toml").write_text(FILE.replace("REGULARIZER", written))
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "run.toml")


def test_reports_show_the_runs_of_a_path_apart(tmp_path):
    """Runs with different Ψ are not ranked by what contains Ψ; a measure with one Ψ for all ranks them."""
    common = proxdasa.metrics.table_stationarity(L1(0.1))
    settings = {"trials": 2, "metrics": [proxdasa.metrics.loss, proxdasa.metrics.objective, common]}
    path = run(proxdasa.DPSGD(0.1), L1(per_trial([0.1, 0.2])), **settings).save(tmp_path / "path")
    runs = reports.load_runs([path])
    assert [each.label for each in runs] == ["weight = 0.1", "weight = 0.2"]
    assert [each.config["regularizer"]["weight"] for each in runs] == [0.1, 0.2]
    assert ranking.hindrance("objective", runs) == "the runs differ in their regularizer"
    assert not ranking.hindrance("loss", runs)
    assert not ranking.hindrance("table_stationarity", runs)
    own = proxdasa.metrics.table_stationarity(L1(per_trial([0.1, 0.2])))
    apart = run(proxdasa.DPSGD(0.1), L1(0.1), trials=2, metrics=[own]).save(tmp_path / "own")
    assert ranking.hindrance("table_stationarity", reports.load_runs([apart])) == "the runs differ in their regularizer"
    coordinates = run(proxdasa.DPSGD(0.1), L1([0.1] * 5 + [0.2]), trials=6).save(tmp_path / "coordinates")
    assert len(reports.load_runs([coordinates])) == 1
