"""Blocks of iterations: what torch records of a method's steps, run without being translated, is the same run."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

import proxdasa
from proxdasa import compressors, conditions, contracts, networks, problems, regularizers, schedules
from proxdasa.data import from_tensors
from proxdasa.engines import compiled
from proxdasa.engines.fused_products import fused_product
from proxdasa.engines.iteration_numbers import Iteration
from proxdasa.problems import Supervised, models
from proxdasa.runs import checkpoints, compiling
from proxdasa.runs.compiling import CompileWarning, block_size
from proxdasa.runs.setup import Setup
from tests.test_algorithms import ALGORITHMS, made, some_regularizer

COSTS = ("samples", "gradients", "full_gradients", "rounds", "vectors", "bytes", "epochs")


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    """The recorded operations as they are; how often they are translated, and the number of trials in each call."""
    calls = []

    def translate(traced, _examples):
        calls.append(0)

        def call(*inputs):
            calls[-1] += 1
            return traced(*inputs)

        return call

    monkeypatch.setattr(compiled, "compile_graph", translate)
    return calls


def quadratic(method, **changes):
    """Five agents; blocks have two iterations, because recording takes nearly all of a test's time."""
    generator = torch.Generator().manual_seed(0)
    A = torch.eye(3, dtype=torch.float64) * torch.rand(5, 1, 1, generator=generator, dtype=torch.float64)
    problem = problems.Quadratic(A, torch.rand(5, 3, generator=generator, dtype=torch.float64), noise=0.3)
    settings = {"iterations": 8, "observe_every": 2, "regularizer": some_regularizer(type(method))}
    return Setup(method, problem, changes.pop("network", networks.ring(5)), **settings | changes)


def perceptron(method, **changes):
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(60, 5)), dtype=torch.float32)
    y = torch.tensor(rng.integers(0, 3, 60))
    problem = Supervised(lambda: models.mlp(5, 4, 3), from_tensors(x, y), agents=3, batch_size=2)
    settings = {"regularizer": regularizers.L1(1e-3), "iterations": 8, "observe_every": 2, "trials": 2}
    return Setup(method, problem, networks.ring(3), **settings | changes)


def compare(setup, calls, rtol=1e-9):
    """Both forms of a run; that with blocks must have used them."""
    plain, blocks = dataclasses.replace(setup, compile=False).run(), dataclasses.replace(setup, compile=True).run()
    assert calls
    assert calls[-1] > 1, "no block but the one that is compared with the steps"
    for name, rows in plain.state.items():
        torch.testing.assert_close(blocks.state[name], rows, rtol=rtol, atol=rtol * float(rows.abs().max() + 1))
    for ours, theirs in zip(blocks.records, plain.records, strict=True):
        assert {cost: ours.get(cost) for cost in COSTS} == {cost: theirs.get(cost) for cost in COSTS}
    assert blocks.config["facts"]["compiled"] is True
    assert "compiled" not in plain.config["facts"]
    return blocks


@ALGORITHMS
def test_blocks_are_the_steps(method, recorded):
    """Restarts, full gradients, batches and schedules among them; one recording serves all blocks."""
    compare(quadratic(made(method)), recorded)
    assert len(recorded) == 1


@pytest.mark.parametrize("method", [proxdasa.ProxDASA, pytest.param(proxdasa.DeepStormV2, marks=pytest.mark.slow)])
def test_blocks_of_networks_are_the_steps(method, recorded):
    compare(perceptron(made(method)), recorded, rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"network": networks.star(5)},
        pytest.param({"network": networks.erdos_renyi(5, 0.6, seed=1)}, marks=pytest.mark.slow),
        {"mixing": proxdasa.Gossip(3)},
        pytest.param({"mixing": proxdasa.Chebyshev(2)}, marks=pytest.mark.slow),
        pytest.param({"mixing": proxdasa.Every(4)}, marks=pytest.mark.slow),
        {"mixing": proxdasa.Every(5), "iterations": 20},
        {"trials": 3, "regularizer": regularizers.L1(proxdasa.per_trial([0.1, 0.2, 0.3]))},
        {"observe_every": 7, "iterations": 14},
        {"random_iterate": True, "trials": 3, "observe_every": 4, "iterations": 16},
    ],
    ids=str,
)
def test_blocks_with_other_parts(changes, recorded):
    compare(quadratic(made(proxdasa.ProxDASAGT), **changes), recorded)


def test_groups_of_trials_have_their_own_values(recorded, monkeypatch):
    monkeypatch.setattr("proxdasa.engines.simulator.CACHED", 2 * 5 * 3)
    values = [0.05, 0.1, 0.15, 0.2]
    method = proxdasa.ProxDASA(proxdasa.per_trial(values), schedules.diminishing(proxdasa.per_trial(values)))
    compare(quadratic(method, trials=4, iterations=6), recorded)
    assert recorded == [2 + 3 * 2]  # two calls for each of three blocks, and for that which is compared with the steps


def test_a_run_that_is_saved_often_has_the_same_bits(recorded, tmp_path):
    setup = dataclasses.replace(quadratic(made(proxdasa.ProxDASA)), compile=True)
    plain = setup.run()
    often = setup.run(saving=proxdasa.runs.loop.Saving(tmp_path, every=3))
    assert torch.equal(plain.x, often.x)
    assert torch.equal(plain.state["z"], often.state["z"])


def test_a_resumed_run_has_the_same_bits(recorded, tmp_path):
    setup = dataclasses.replace(quadratic(made(proxdasa.ProxGTSRO), iterations=12), compile=True)

    def stop(k, *_):
        if k >= 5:
            raise KeyboardInterrupt

    saving = proxdasa.runs.loop.Saving(tmp_path)
    assert setup.run(progress=stop, saving=saving).stopped == "interrupted"
    resumed, plain = setup.run(saving=saving), setup.run()
    assert torch.equal(resumed.x, plain.x)
    assert resumed.records[-1]["samples"] == plain.records[-1]["samples"]
    setup.run(saving=dataclasses.replace(saving, every=12))
    assert setup.run(saving=saving).config["facts"] == plain.config["facts"], "nothing is left to compile"


@dataclass(frozen=True, eq=False)
class Own(proxdasa.DPSGD):
    """D-PSGD with a step that a test chooses."""

    facts: ClassVar = contracts.Facts("own", vectors=1, gradients=1)
    kind: str = "k"

    class State(NamedTuple):
        x: Tensor

    def step(self, agents, k, state):
        x = agents.mix(state.x)
        g = agents.grad(state.x, k)
        if self.kind == "k":
            return self.State(x - self.gamma / (k + 1) * g)
        if self.kind == "table":
            return self.State(x - [0.1, 0.2, 0.3][k % 3] * g)
        if self.kind == "value":
            return self.State(x - self.gamma * g if float(g.norm()) > 1 else x)
        if self.kind == "noise":
            return self.State(x - self.gamma * g + 0 * torch.rand_like(x))
        if self.kind == "numpy":
            return self.State(x - self.gamma * torch.from_numpy(np.asarray(g.numpy())))
        return self.State(torch.add(x, g, alpha=-self.gamma))


class Strided(Own):
    """The same with a state whose coordinates are not next to each other in memory."""

    def init(self, agents, x):
        return self.State(x.mT.contiguous().mT)

    def step(self, agents, k, state):
        return self.init(agents, agents.mix(state.x) - self.gamma * agents.grad(state.x, k))


def test_compiled_code_gets_every_state_in_one_layout(recorded, monkeypatch):
    """It refuses any other than that for which it was compiled, which would end the run."""
    traced, layouts = compiled.compile_graph, []

    def translate(graph, examples):
        function = traced(graph, examples)
        recorded_with = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        layouts.extend(each.is_contiguous() for each in recorded_with)

        def call(*inputs):
            layouts.extend(each.is_contiguous() for each in inputs)
            return function(*inputs)

        return call

    monkeypatch.setattr(compiled, "compile_graph", translate)
    compare(quadratic(Strided(0.1), regularizer=regularizers.Zero(), iterations=14, observe_every=7), recorded)
    assert layouts
    assert all(layouts)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("k", "computes with k itself"), ("table", "computes with k"), ("value", ""), ("noise", "random"), ("numpy", "")],
)
def test_steps_that_cannot_be_compiled_run_as_they_are(kind, reason):
    setup = quadratic(Own(0.1, kind=kind), regularizer=regularizers.Zero())
    plain = setup.run()
    with pytest.warns(CompileWarning, match=reason):
        found = dataclasses.replace(setup, compile=True).run()
    assert torch.equal(found.x, plain.x)
    assert found.config["facts"]["compiled"] is False


def test_a_step_that_takes_a_plain_number_only_is_compiled_with_it(recorded):
    compare(quadratic(Own(0.1, kind="alpha"), regularizer=regularizers.Zero()), recorded)


def test_wrong_code_is_found_out(monkeypatch):
    def translate(traced, _examples):
        return lambda *inputs: [1.01 * rows for rows in traced(*inputs)]

    monkeypatch.setattr(compiled, "compile_graph", translate)
    with pytest.warns(CompileWarning, match="compute a different x"):
        quadratic(made(proxdasa.ProxDASA), compile=True).run()


def test_errors_of_the_compiler_do_not_cost_the_run(monkeypatch):
    def translate(_traced, _examples):
        raise RuntimeError("no C++ compiler\nand much more")

    monkeypatch.setattr(compiled, "compile_graph", translate)
    setup = quadratic(made(proxdasa.ProxDASA))
    with pytest.warns(CompileWarning, match="not compiled, and take longer: torch says RuntimeError: no C"):
        found = dataclasses.replace(setup, compile=True).run()
    assert torch.equal(found.x, setup.run().x)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"conditions": [conditions.LinkLoss(0.1)]}, "W differs"),
        ({"mixing": proxdasa.CompressedGossip(compressors.TopK(0.5), step=0.3)}, "compressed"),
    ],
)
def test_runs_that_are_never_compiled_say_so(changes, reason):
    setup = quadratic(made(proxdasa.ProxDASA), **changes)
    with pytest.warns(CompileWarning, match=reason):
        found = dataclasses.replace(setup, compile=True).run()
    assert torch.equal(found.x, setup.run().x)


def test_exact_mode_and_compiled_steps_exclude_each_other():
    with pytest.raises(ValueError, match="compile and exact exclude each other"):
        quadratic(made(proxdasa.ProxDASA), compile=True, exact=True)
    with pytest.raises(TypeError, match='compile must be True, False or "auto"'):
        quadratic(made(proxdasa.ProxDASA), compile="always")


def test_auto_depends_on_the_settings_alone():
    short, long = quadratic(made(proxdasa.ProxDASA)), quadratic(made(proxdasa.ProxDASA), iterations=10**6)
    assert not compiling.compiles(short)
    assert compiling.compiles(long)
    for change in ({"exact": True}, {"conditions": [conditions.LinkLoss(0.1)]}, {"compile": False}):
        assert not compiling.compiles(dataclasses.replace(long, **change))
    # A checkpoint of a run that was free to choose goes on wherever it can.
    plain = dataclasses.replace(long, compile=False)
    assert checkpoints.fingerprint(plain.config()) == checkpoints.fingerprint(long.config())


def test_methods_with_more_variables_gain_more():
    two, three = (quadratic(made(method), trials=2_000) for method in (proxdasa.ProxDASA, proxdasa.NEXT))

    def first(setup):
        """The length, in thousands of iterations, from which the run is compiled."""
        lengths = (dataclasses.replace(setup, iterations=1_000 * thousands) for thousands in range(1, 200))
        return next(each.iterations for each in lengths if compiling.compiles(each))

    assert first(three) < first(two)


@pytest.mark.parametrize(
    ("paces", "short", "long"),
    [([100], 5, 10), ([64], 4, 8), ([7], 5, 7), ([13], 5, 10), ([3], 3, 3), ([100, 30], 5, 10), ([1], 1, 1)],
)
def test_blocks_end_where_something_is_due_and_are_longer_in_long_runs(paces, short, long):
    assert block_size(paces, seconds=100) == short
    assert block_size(paces, seconds=1000) == long


@pytest.mark.parametrize("network", [networks.ring(7), networks.star(6), networks.path(5), networks.complete(4)])
def test_fused_products(network):
    x = torch.randn(2, network.n, 3, dtype=torch.float64)
    product = fused_product(network.W, torch.float64)
    torch.testing.assert_close(product(x), torch.from_numpy(network.W.toarray()) @ x)


def test_a_product_of_many_weights_is_not_fused():
    assert fused_product(csr_array(np.full((20, 20), 0.05)), torch.float64) is None


def test_numbers_of_iterations_are_formulas():
    tests = []
    k = Iteration(lambda begins: begins + 2, 10, tests)
    number = (3 * (k + 1) - 1) // 2 % 100
    assert [number.formula(begins) for begins in (10, 0)] == [19, 4]
    assert (k + 1) % 13 == 0
    assert [test(begins) for test, _ in tests for begins in (10, 11)] == [True, False]
    for use in (float, int, range, hash, str, lambda k: 1 / k, lambda k: k**2, lambda k: [1, 2][k]):
        with pytest.raises(contracts.NotCompilableError, match="computes with k"):
            use(k)


@dataclass(frozen=True, eq=False)
class Odd:
    """Gradient steps of a user that use k, or their state, in ways that a recording cannot follow."""

    how: str
    gamma: float = 0.1
    facts: ClassVar[contracts.Facts] = contracts.Facts("odd", vectors=1, gradients=1, composite=False)

    class State(NamedTuple):
        """The iterate."""

        x: Tensor

    @property
    def mapping_gamma(self):
        return self.gamma

    def init(self, agents, x):
        return self.State(x)

    def step(self, agents, k, state):
        g = agents.grad(state.x, k)
        if self.how == "in place":
            return self.State(state.x.sub_(self.gamma * g))
        factor = {
            "float": lambda: 1 + 0.001 * k,
            "bits": lambda: 1 + (k & 1),
            "tensor": lambda: torch.ones(1, dtype=g.dtype) * k,
            "type": lambda: 0.5 if isinstance(k, int) else 1.0,
        }[self.how]()
        return self.State(agents.mix(state.x - self.gamma * factor * g))


@pytest.mark.parametrize("how", ["float", "bits", "tensor", "type", "in place"])
def test_steps_that_a_recording_cannot_follow_run_as_they_are(how):
    setup = quadratic(Odd(how), regularizer=regularizers.Zero())
    with pytest.warns(CompileWarning, match="computes with k itself|compute a different x|changes its state in place"):
        ours = dataclasses.replace(setup, compile=True).run()
    assert torch.equal(ours.x, dataclasses.replace(setup, compile=False).run().x)
    assert ours.config["facts"]["compiled"] is False
