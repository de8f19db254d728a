"""Large states: steps in slices do what whole steps do, in little memory, and lose nothing when they are stopped."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import proxdasa
from proxdasa import compressors, conditions, contracts, memory_budget, networks, problems, regularizers, schedules
from proxdasa.engines import sliced_agents
from proxdasa.runs import compiling, steps_in_place
from proxdasa.runs.setup import Setup
from tests import test_divergence
from tests.forks import FORKS
from tests.processes import LINUX
from tests.test_convergence import EXACT

NETWORK, D, K = networks.ring(5), 7, 6
L1 = regularizers.L1(0.05)
METHODS = [
    proxdasa.ProxDASA(0.3, schedules.constant(0.3)),
    proxdasa.ProxDASAGT(proxdasa.per_trial([0.2, 0.3]), schedules.horizon(0.3)),
    proxdasa.DPSGD(0.1),
    *EXACT,
]


def quadratic():
    random = torch.Generator().manual_seed(0)
    A = torch.diag(torch.linspace(1, 2, D)).expand(5, D, D)
    return problems.Quadratic(A, torch.randn(5, D, generator=random), noise=0.1)


def run(method=METHODS[1], **settings):
    settings = {"regularizer": L1 if method.facts.composite else regularizers.Zero(), **settings}
    return proxdasa.run(method, quadratic(), NETWORK, **{"iterations": K, "observe_every": 4, "trials": 2, **settings})


@pytest.fixture(scope="module")
def whole():
    """The usual run, in whole steps."""
    return run()


@pytest.fixture
def sliced(monkeypatch):
    """Slices of one to five coordinates, whatever the size; for each step in slices, into how many groups of agents."""
    made, write = [], steps_in_place.StepsInPlace._write

    def count(self, k, state, plan):
        made.append(len(plan.groups))
        write(self, k, state, plan)

    monkeypatch.setattr(sliced_agents, "LARGE", 1)
    monkeypatch.setattr(sliced_agents, "SLICE", 10)
    monkeypatch.setattr(steps_in_place.StepsInPlace, "_write", count)
    return made


def assert_same(mine, theirs):
    for name, rows in theirs.state.items():
        assert torch.allclose(mine.state[name], rows, rtol=1e-5, atol=1e-6, equal_nan=True), name
    for row, other in zip(mine.records, theirs.records, strict=True):
        assert row.keys() == other.keys()
        for name in row.keys() - {"seconds"}:
            assert row[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(method)[:40])
def test_slices_give_what_whole_steps_give(method, request):
    whole = run(method)
    made = request.getfixturevalue("sliced")
    assert_same(run(method), whole)
    at_x = method.facts.coordinatewise and not getattr(method, "momentum", None)
    mixes_last = type(method) in (proxdasa.ProxDASA, proxdasa.ProxDASAGT, proxdasa.NEXT, proxdasa.D2)
    assert made == ([5 if mixes_last else 1] * K if at_x else [])


@pytest.mark.parametrize(
    "settings",
    [
        {"mixing": proxdasa.Chebyshev(3)},
        {"mixing": proxdasa.Every(3)},
        {"random_iterate": True},
        {"stop": proxdasa.Stationary(1e-9, every=2)},
        {"regularizer": regularizers.Scaled(regularizers.ElasticNet(0.1, 0.2), 2.0)},
        {"regularizer": regularizers.L1(proxdasa.per_trial([0.1, 0.2]))},
        {"regularizer": regularizers.Zero()},
    ],
    ids=str,
)
def test_slices_with_other_settings(settings, request):
    whole = run(**settings)
    made = request.getfixturevalue("sliced")
    assert_same(run(**settings), whole)
    assert made == [5] * K


def test_agents_need_not_wait_for_others_where_a_step_rests(request):
    whole = run(METHODS[2], mixing=proxdasa.Every(3))
    made = request.getfixturevalue("sliced")
    assert_same(run(METHODS[2], mixing=proxdasa.Every(3)), whole)
    assert made == [5, 5, 1] * (K // 3)


def test_many_agents_take_steps_in_few_groups(whole, sliced, monkeypatch):
    monkeypatch.setattr(sliced_agents, "GROUPS", 2)
    assert_same(run(), whole)
    assert sliced == [2] * K


def after(what):
    """A method whose x and y are what a function makes of its agents and a gradient step."""

    class After(proxdasa.DPSGD):
        facts = proxdasa.DPSGD.facts

        class State(NamedTuple):
            x: Tensor
            y: Tensor

        def init(self, agents, x):
            return self.State(x, torch.zeros_like(x))

        def step(self, agents, k, state):
            return self.State(*what(agents, state.x - self.gamma * agents.grad(state.x, k)))

    return After(0.1)


def change_mixed(agents, y):
    x = agents.mix(y)
    return x.mul_(0.9), y


def change_after_mixing(agents, y):
    x = agents.mix(y)
    return x, y.mul_(0.9)


WEIGHTS = torch.linspace(0.5, 1, 5).unsqueeze(-1)


@pytest.mark.parametrize(
    ("what", "groups"),
    [
        (lambda agents, y: (agents.mix(y), y), 5),
        (lambda agents, y: (agents.mix(y), agents.degrees * y), 5),
        (lambda agents, y: (agents.mix(y, y + 1)[1], y), 5),
        (lambda agents, y: [agents.mix(y)] * 2, 5),
        (lambda agents, y: (agents.mix(agents.mix(y)), y), 1),
        (lambda agents, y: (agents.mix(y) * 0.9, y), 1),
        (lambda agents, y: (agents.mix(y)[..., :], y), 1),
        (lambda agents, y: (y, agents.neighbour_sum(y)), 1),
        (lambda agents, y: (agents.mix(y), WEIGHTS * y), 1),
        (change_mixed, 1),
        (change_after_mixing, 1),
    ],
)
def test_groups_only_where_nothing_is_done_to_what_was_mixed(what, groups, request):
    whole = run(after(what))
    made = request.getfixturevalue("sliced")
    assert_same(run(after(what)), whole)
    assert made == [groups] * K


def test_mixing_other_variables_in_some_slices_is_refused(sliced):
    def sometimes(agents, y):
        return (agents.mix(y), y) if y.shape[-1] == 5 else (y, agents.mix(y))

    with pytest.raises(RuntimeError, match="mixed other variables"):
        run(after(sometimes))


def test_a_problem_with_another_grad_than_its_class_is_asked_for_all_gradients_at_once(sliced):
    class Other(problems.Quadratic):
        def grad(self, x, sample):
            return 2 * super().grad(x, sample)

    class Both(Other):
        def grad_of(self, agents, x, sample):
            return 2 * super().grad_of(agents, x, sample)

    A, b = quadratic().A, quadratic().b
    for problem in (Other(A, b), problems.Repeated(Other(A, b), 1), Both(A, b), problems.Repeated(Both(A, b), 1)):
        proxdasa.run(METHODS[0], problem, NETWORK, iterations=1)
    assert sliced == [1, 1, 5, 5]


@pytest.mark.parametrize(
    "settings",
    [
        {"exact": True},
        {"conditions": [conditions.LinkLoss(0.1)]},
        {"mixing": proxdasa.CompressedGossip(compressors.TopK(0.5), step=0.3)},
        {"regularizer": regularizers.L2Ball(1.0)},
        {"regularizer": regularizers.GroupL2(0.1, groups=7)},
        {"regularizer": regularizers.L1([0.1] * D)},
        {"regularizer": regularizers.Blocks([(0, 3, L1)])},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::proxdasa.conditions.TrackerWarning")
def test_what_needs_all_coordinates_is_not_sliced(settings, sliced):
    run(**settings)
    assert not sliced


def test_a_class_does_not_inherit_the_claim(sliced):
    class Normalised(proxdasa.DPSGD):
        def step(self, agents, k, state):
            g = agents.grad(state.x, k)
            return self.State(agents.mix(state.x) - self.gamma * g / g.norm(dim=-1, keepdim=True))

    run(Normalised(0.1))
    assert not sliced


@pytest.mark.parametrize("when", ["init", "step"])
def test_a_tensor_of_the_problem_is_not_written_over(when, sliced):
    """A gradient may be a tensor that the problem keeps, and the method's variable after init or a whole step."""

    class Constant(problems.Quadratic):
        held = torch.ones(2, 5, D)

        def grad(self, x, sample):
            return self.held

    @dataclass(frozen=True, eq=False)
    class Last(proxdasa.D2):
        facts = proxdasa.D2.facts

        def init(self, agents, x):
            return self.State(x, x, agents.grad(x, 0)) if when == "init" else super().init(agents, x)

        def step(self, agents, k, state):
            if when == "step" and k == 2:
                agents.grad(state.x, k)  # a second one, so that this step is taken as a whole
            new = super().step(agents, k, state)
            return new if k == 2 else new._replace(g_prev=agents.degrees * state.x)

    proxdasa.run(Last(0.1), Constant(quadratic().A, quadratic().b), NETWORK, trials=2, iterations=6, metrics=())
    assert sliced
    assert torch.equal(Constant.held, torch.ones(2, 5, D))


def test_only_large_states_of_few_long_rows_are_sliced():
    large, rows = sliced_agents.LARGE, sliced_agents.ROWS
    assert sliced_agents.in_slices(METHODS[0], L1, 1, large)
    assert not sliced_agents.in_slices(METHODS[0], L1, 1, large - 1)
    assert sliced_agents.in_slices(METHODS[0], L1, rows, large)
    assert not sliced_agents.in_slices(METHODS[0], L1, rows + 1, large)


def test_a_long_run_of_a_large_state_is_not_compiled_unless_asked_to(monkeypatch):
    def compiled(wish):
        return compiling.compiles(Setup(METHODS[0], quadratic(), NETWORK, iterations=10**7, compile=wish))

    assert compiled("auto")
    monkeypatch.setattr(sliced_agents, "LARGE", 1)
    assert not compiled("auto")
    assert compiled(True)


def test_a_run_in_slices_is_expected_to_need_less(monkeypatch):
    needed = []
    monkeypatch.setattr(memory_budget, "check", lambda size, *_: needed.append(size))
    for large in (2**60, 1):
        monkeypatch.setattr(sliced_agents, "LARGE", large)
        Setup(METHODS[0], quadratic(), NETWORK).check_memory()
    assert needed[0] - needed[1] == 2 * 5 * D * 4


@pytest.mark.filterwarnings("ignore::proxdasa.DivergenceWarning")
@pytest.mark.parametrize("every", [1, 7, 21])
def test_divergence_is_found_where_a_replay_finds_it(every, monkeypatch):
    settings = {"exact": False, "iterations": 21, "observe_every": every, "metrics": ()}
    whole = test_divergence.setup(**settings).run()
    monkeypatch.setattr(sliced_agents, "LARGE", 1)
    monkeypatch.setattr(sliced_agents, "SLICE", 18)
    in_slices = test_divergence.setup(**settings).run()
    assert set(in_slices.diverged) == {1, 2}
    assert in_slices.diverged == whole.diverged
    assert [(row["trial"], row["k"]) for row in in_slices.records] == [
        (row["trial"], row["k"]) for row in whole.records
    ]


@pytest.mark.filterwarnings("ignore::proxdasa.DivergenceWarning")
def test_of_agents_that_break_together_the_first_is_named_whatever_their_slices(request):
    class Broken(problems.Quadratic):
        def grad(self, x, sample):
            g = super().grad(x, sample).clone()
            g[:, 3, 0] = g[:, 1, 5] = torch.inf
            return g

    class Apart(Broken):
        def grad_of(self, agents, x, sample):
            return self.grad(x.expand(-1, 5, -1), sample)[:, agents.start : agents.stop]

    def diverged(kind):
        problem = kind(quadratic().A, quadratic().b)
        return proxdasa.run(METHODS[0], problem, NETWORK, iterations=4).diverged

    whole = diverged(Broken)
    assert whole[0].agent == 1
    made = request.getfixturevalue("sliced")
    assert diverged(Broken) == diverged(Apart) == whole
    assert made == [1, 5]


@pytest.mark.parametrize("verb", ["grad", "prox", "mix"])
@pytest.mark.parametrize("call", [30, 33])
def test_a_signal_within_a_step_waits_for_its_end(verb, call, whole, sliced, tmp_path, monkeypatch):
    calls, original = [], getattr(sliced_agents.SlicedAgents, verb)

    def interrupted(self, *args):
        calls.append(verb)
        if call <= len(calls) < call + 3:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(sliced_agents.SlicedAgents, verb, interrupted)
        first = run(checkpoints=tmp_path)
    assert first.stopped == "interrupted"
    assert 0 < first.iterations < K
    assert_same(run(checkpoints=tmp_path), whole)


def test_an_error_amid_slices_leaves_no_state(sliced, tmp_path, monkeypatch):
    calls, original = [], sliced_agents.SlicedAgents.prox

    def fail(self, *args):
        calls.append(None)
        if len(calls) == 33:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(sliced_agents.SlicedAgents, "prox", fail)
    with pytest.raises(RuntimeError, match="failed amid its slices"):
        run(checkpoints=tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_gradient_that_only_some_slices_ask_for_is_refused(sliced):
    class Once(proxdasa.DPSGD):
        facts = proxdasa.DPSGD.facts

        def step(self, agents, k, state):
            g = agents.grad(state.x, k)
            return self.State(state.x - (agents.grad(state.x, k) if float(g.abs().max()) else g))

    with pytest.raises(RuntimeError, match="failed amid its slices"):
        run(Once(0.1))


class Centres:
    """The agents' losses ½‖x − 1‖², whose gradients need no more memory than themselves."""

    agents, dtype, epoch, words = 8, torch.float32, 1.0, 0

    def __init__(self, dim):
        self.dim = dim

    def start(self, seed, trials):
        return torch.zeros(self.dim)

    def sample(self, words):
        return words

    def grad(self, x, sample):
        return x - 1

    def grad_of(self, agents, x, sample):
        return x - 1

    def evaluate(self, x):
        return contracts.Evaluation((x - 1).square_().sum(-1) / 2, x - 1)

    def scores(self, x):
        return {}


def memory(kind):
    """What the kernel says of this process now, in bytes."""
    return int(Path("/proc/self/status").read_text().partition(kind + ":")[2].split()[0]) * 2**10


def weigh(file):
    """Write what a run of a large state takes, relative to the state."""
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(-3, 2**20)  # M_MMAP_THRESHOLD: what is freed goes back at once
    method, psi = proxdasa.ProxDASA(gamma=1e-3, alpha=0.1), regularizers.L1(1e-5)
    settings = {"regularizer": psi, "iterations": 1, "compile": False}
    proxdasa.run(method, Centres(10), networks.ring(8), **settings)  # what a run loads is no part of it
    before = memory("VmRSS")
    result = proxdasa.run(method, Centres(2**22 + 1), networks.ring(8), **settings)
    file.write_text(str((memory("VmHWM") - before) / sum(rows.nbytes for rows in result.state.values())))


@LINUX
def test_a_large_state_takes_little_more_memory_than_itself(tmp_path):
    """With the gradients of all agents at once it would take 1.6 times its size, with whole steps four times."""
    measured = FORKS.Process(target=weigh, args=(tmp_path / "share",))
    measured.start()
    measured.join()
    assert measured.exitcode == 0
    assert float((tmp_path / "share").read_text()) < 1.4
