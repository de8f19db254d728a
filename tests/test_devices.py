"""Computing on another device. There is none here, so it is tried in three ways.

On the meta device, which has shapes and no numbers, a step may make no tensor elsewhere, and look at none. On a device
that the CPU plays (`tests.pretend_device`) whole runs give the bits of the CPU. Tests marked ``gpu`` compare a real
device with the CPU, where there is one.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

import proxdasa
from proxdasa import (
    algorithms,
    compressors,
    conditions,
    devices,
    engines,
    metrics,
    mixing,
    networks,
    problems,
    regularizers,
)
from proxdasa.cli import app
from proxdasa.compressors import selections
from proxdasa.conditions import Weather
from proxdasa.engines.compressed_rounds import CompressedRounds
from proxdasa.engines.rounds_ahead import RoundsAhead
from proxdasa.engines.substitutes import Substitutes
from proxdasa.engines.sum_noise import SumNoise
from proxdasa.engines.varying_products import VaryingProduct
from proxdasa.exit_codes import Code
from proxdasa.metrics import View
from proxdasa.problems.site_batches import SiteBatches
from proxdasa.runs.setup import Setup
from proxdasa.samples import Samples
from tests import architectures, pretend_device
from tests.test_algorithms import made
from tests.test_regularizers import BY_TRIAL, CASES, D

N, TRIALS = 6, 2
HOST = (
    (Samples, "__call__"), (CompressedRounds, "draw"), (Weather, "enter"), (Weather, "look"), (Weather, "links_up"),
    (Weather, "active_rows"),
    (RoundsAhead, "at"), (VaryingProduct, "_late_slots"), (VaryingProduct, "_draw_noise"), (SumNoise, "_draw"),
    (Substitutes, "_look"), (Substitutes, "_ages_of"), (SiteBatches, "full_weights"),
)  # fmt: skip
"""What works on the host: it makes tables of named random numbers, of many rounds or iterations at once where it can,
and sends them; or looks at the sizes of a problem."""


class MisplacedError(AssertionError):
    pass


class Guard(TorchDispatchMode):
    """Raises where an operation mixes devices and, if it is strict, where it has anything to do with the host.

    Numbers without an axis are no matter: torch makes them of Python's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.strict, self.on_host = False, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        used = pretend_device.tensors_in((*args, *(kwargs or {}).values(), made))
        found = {each.device.type for each in used if each.ndim}
        moves = operation in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if not self.on_host and "cpu" in found and (self.strict or (len(found) > 1 and not moves)):
            raise MisplacedError(f"{operation} has tensors on {' and '.join(sorted(found))}")
        return made


@pytest.fixture
def guard(monkeypatch) -> Iterator[Guard]:
    guard = Guard()

    def on_host(verb):
        @functools.wraps(verb)
        def call(*args, **kwargs):
            guard.on_host += 1
            try:
                return verb(*args, **kwargs)
            finally:
                guard.on_host -= 1

        return call

    for owner, name in HOST:
        monkeypatch.setattr(owner, name, on_host(getattr(owner, name)))
    monkeypatch.setitem(devices.CHOICES, "meta", lambda: True)
    with torch.no_grad():
        yield guard


def quadratic() -> problems.Quadratic:
    A = torch.eye(D).expand(N, D, D) * torch.linspace(0.5, 1.5, N).view(N, 1, 1)
    return problems.Quadratic(A, torch.arange(N * D, dtype=torch.float32).view(N, D) / 10, noise=0.1)


def walk(guard: Guard, setup: Setup, steps: int = 3) -> View:
    """Some steps as the loop makes them, the first lenient: what is made once may be sent then."""
    loop = setup.loop()
    engine, algorithm, state = loop.engine, loop.algorithm, None
    with guard:
        guard.strict = False
        with engine.stepping():
            state = loop._check(algorithm.init(engine, loop.start), "init")
            for k in range(steps):
                state = loop._check(loop._step(engine, k, state), "step")
                guard.strict = True
    assert {rows.device.type for rows in (*state, *engine.extra_rows.values())} == {setup.device}
    return loop._view(state)


def on_meta(method, problem=None, network=None, **settings) -> Setup:
    settings = {"trials": TRIALS, "iterations": 50, "device": "meta"} | settings
    return Setup(method, problem or quadratic(), network or networks.star(N), **settings)


@pytest.mark.parametrize("method", algorithms.ALL)
def test_steps_of_every_method_stay_on_the_device(guard, method):
    penalty = regularizers.L1(0.1) if method.facts.composite else regularizers.Zero()
    walk(guard, on_meta(made(method), regularizer=penalty, mixing=mixing.Gossip(2)))


@pytest.mark.parametrize("method", [algorithms.ProxDASA, algorithms.NEXT, algorithms.DPSGD])
def test_parameters_by_trial_move_with_their_method(guard, method):
    steps = {
        "gamma": proxdasa.per_trial([0.1, 0.2]),
        "alpha": proxdasa.schedules.diminishing(proxdasa.per_trial([0.3, 0.4])),
    }
    given = {name: steps[name] for name in steps if name in method.__dataclass_fields__}
    view = walk(guard, on_meta(made(method, **given), regularizer=regularizers.L1(proxdasa.per_trial([0.1, 0.2]))))
    assert proxdasa.metrics.stationarity.of(view).device.type == "meta"
    own = {"alpha": lambda k: proxdasa.per_trial([0.3, 0.4]) / (k + 1)}
    if "alpha" in given:
        walk(guard, on_meta(made(method, **own)), steps=1)  # a function makes them on the host


@pytest.mark.parametrize(
    "psi", [*(case.psi for case in CASES), *(make(proxdasa.per_trial([0.1, 0.7])) for make in BY_TRIAL)], ids=repr
)
def test_proximal_steps_stay_on_the_device(guard, psi):
    x, gamma = torch.zeros(TRIALS, N, D, device="meta"), torch.ones(TRIALS, 1, 1, device="meta")
    psi.prox(x, 0.1), psi.value(x)  # moves its weights
    with guard:
        guard.strict = True
        found = psi.prox(x, 0.1), psi.prox(x, gamma), psi.value(x)
    assert {each.device.type for each in found} == {"meta"}


COMPRESSORS = [
    compressors.TopK(0.3), compressors.RandK(0.3), compressors.QSGD(4), compressors.SignNorm(), compressors.Float16(),
    compressors.BFloat16(),
]  # fmt: skip
MIXINGS = [
    mixing.Gossip(1), mixing.Gossip(3), mixing.Chebyshev(3), mixing.Every(2, mixing.Chebyshev(2)),
    *(mixing.CompressedGossip(each, 0.5) for each in COMPRESSORS),
]  # fmt: skip


def test_all_mixings_and_compressors_are_tried():
    assert {type(each) for each in MIXINGS} == set(mixing.ALL)
    assert {type(each) for each in COMPRESSORS} == set(compressors.ALL)


DENSE, SPARSE = networks.complete(N), networks.ring(40)


@pytest.mark.parametrize(
    ("protocol", "network"),
    [
        *((protocol, DENSE) for protocol in MIXINGS),
        *((protocol, SPARSE) for protocol in MIXINGS[1:5]),  # how a product is computed does not depend on it
        *(pytest.param(protocol, SPARSE, marks=pytest.mark.slow) for protocol in (MIXINGS[0], *MIXINGS[5:])),
    ],
    ids=repr,
)
def test_mixing_stays_on_the_device(guard, protocol, network):
    problem = problems.Quadratic(torch.eye(D).expand(network.n, D, D), torch.ones(network.n, D))
    walk(guard, on_meta(made(algorithms.ProxDASAGT), problem, network, mixing=protocol))


CONDITIONS = [
    conditions.LinkLoss(0.3), conditions.Bursts(10, 3), conditions.Outages(10, 3), conditions.Downtimes([(0, 0, 2)]),
    conditions.Participation(0.5), conditions.Stragglers([(0, 2)]), conditions.MessageNoise(0.1),
    conditions.StaleMessages(2),
]  # fmt: skip


def test_all_conditions_are_tried():
    assert {type(each) for each in CONDITIONS} == set(conditions.ALL)


@pytest.mark.parametrize("network", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("given", [*([each] for each in CONDITIONS), [CONDITIONS[0], *CONDITIONS[5:]]], ids=repr)
def test_conditions_stay_on_the_device(guard, given, network):
    problem = problems.Quadratic(torch.eye(D).expand(network.n, D, D), torch.ones(network.n, D))
    method = algorithms.DPSGD if len(given) > 1 else algorithms.ProxDASA
    walk(guard, on_meta(made(method), problem, network, conditions=given), steps=5)


def test_graphs_that_change_stay_on_the_device(guard):
    network = networks.one_peer_hypercube(8)
    problem = problems.Quadratic(torch.eye(D).expand(8, D, D), torch.ones(8, D))
    walk(guard, on_meta(made(algorithms.ProxDASA), problem, network, mixing=mixing.Gossip(2)))


def model(**settings) -> problems.SingleIndex:
    return problems.SingleIndex(agents=N, dim=D, sparsity=2, **{"evaluation": 50} | settings)


RECURRENT = re.compile("RNN|GRU|LSTM").search  # torch takes seconds for their shapes
PROBLEMS = {
    "quadratic": quadratic,
    "quadratic, no noise": lambda: problems.Quadratic(quadratic().A, quadratic().b),
    "repeated": lambda: problems.Repeated(quadratic(), 1),
    **{link.name: functools.partial(model, link=link) for link in problems.LINKS},
    "population": functools.partial(model, evaluation="population"),
    **{name: functools.partial(architectures.problem, name, 2) for name in architectures.ALL if not RECURRENT(name)},
    "loop": lambda: architectures.problem("perceptron", 2, path="loop"),
    "uneven": lambda: architectures.problem("perceptron", rows=30, batch_size=9, weights="examples"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_stay_on_the_device(guard, name):
    problem = PROBLEMS[name]()
    setup = on_meta(made(algorithms.ProxDASA), problem, networks.complete(problem.agents), metrics=metrics.STANDARD)
    looks = name.startswith("transformer")  # torch itself looks at its mask
    if getattr(problem, "_random", False) or looks:
        with pytest.raises(ValueError, match=r"device: \w+ (draws random numbers, .* use|.*item\(\).*) device=\"cpu\""):
            setup.engine()
        return
    view = walk(guard, setup, steps=2)
    engine = view.engine
    with guard:
        if not isinstance(problem, problems.Supervised):
            guard.strict = False  # evaluation points may be drawn now
            engine.evaluate(view.x_mean)
        guard.strict = True
        found = [*engine.evaluate(view.x), *engine.scores(view.x_mean[:, 0]).values()]
        found += [metric.of(view) for metric in setup.metrics]  # which evaluate x̄
    assert {each.device.type for each in found} == {"meta"}


@dataclass(frozen=True, eq=False)
class Wrong(proxdasa.DPSGD):
    """Makes a tensor on the host, sends one from there, or looks at a value, in every step."""

    fault: str = "makes"

    def step(self, agents, k, state):
        x = super().step(agents, k, state).x
        if self.fault == "makes":
            torch.zeros(3)
        elif self.fault == "sends":
            x = x + torch.ones(3).to(x.device).sum()
        elif self.fault == "mixes":
            x = x[:, torch.arange(N)]
        elif float(x.sum()) > 0:
            x = x + 1
        return self.State(x)


@pytest.mark.parametrize("fault", ["makes", "sends", "mixes", "looks"])
def test_what_is_wrong_is_noticed(guard, fault):
    with pytest.raises((MisplacedError, RuntimeError), match=r"has tensors on cpu|item\(\) cannot be called on meta"):
        walk(guard, on_meta(Wrong(gamma=0.1, fault=fault)))


def test_a_penalty_that_stays_on_the_host_is_noticed(guard):
    class Heavy:
        def value(self, x):
            return x.sum(-1)

        def prox(self, x, gamma):
            return x - torch.arange(N).unsqueeze(-1)

    with pytest.raises((MisplacedError, RuntimeError), match=r"cpu"):
        walk(guard, on_meta(made(algorithms.DPSGD), regularizer=Heavy()))


# ---------- whole runs on a device that the CPU plays


@pytest.fixture
def pretend(monkeypatch):
    monkeypatch.setitem(devices.CHOICES, pretend_device.NAME, lambda: True)
    return {"device": pretend_device.NAME}


def same(got: proxdasa.Result, expected: proxdasa.Result) -> None:
    """The same bits on the CPU, and the same records but for the time they took."""
    assert got.state.keys() == expected.state.keys()
    for name, rows in expected.state.items():
        assert type(got.state[name]) is torch.Tensor
        assert torch.equal(got.state[name].nan_to_num(), rows.nan_to_num())
    assert torch.equal(got.solution.nan_to_num(), expected.solution.nan_to_num())
    timeless = [[{**row, "seconds": 0} for row in result.records] for result in (got, expected)]
    assert timeless[0] == timeless[1]


def compare(pretend, method, problem=None, network=None, **settings) -> None:
    settings = {"iterations": 8, "trials": TRIALS, "observe_every": 8, "seed": 3} | settings
    run = functools.partial(proxdasa.run, method, problem or quadratic(), network or networks.star(N), **settings)
    expected = run()
    with pretend_device.Driver():
        got = run(**pretend)
    same(got, expected)
    assert got.config == expected.config | pretend


@pytest.mark.parametrize("method", algorithms.ALL)
def test_runs_of_every_method_have_the_bits_of_the_cpu(pretend, method):
    penalty = regularizers.L1(0.1) if method.facts.composite else regularizers.Zero()
    compare(pretend, made(method), regularizer=penalty, mixing=mixing.Gossip(2))


BY_TRIAL_TOO = {
    "algorithm": proxdasa.ProxDASA(
        proxdasa.per_trial([0.1, 0.2]), proxdasa.schedules.diminishing(proxdasa.per_trial([0.1, 0.2]))
    ),
    "regularizer": regularizers.L1(proxdasa.per_trial([0.1, 0.2])),
    "stop": proxdasa.Stationary(1.0, every=2),
    "random_iterate": True,
    "metrics": [*metrics.STANDARD, metrics.per_agent(1.0), metrics.merit(1.0), metrics.edge_consensus],
}
RUNS = {
    "by trial": BY_TRIAL_TOO,
    "one's own schedule": {"algorithm": proxdasa.ProxDASA(0.1, lambda k: proxdasa.per_trial([0.1, 0.2]) / (k + 1))},
    "divergence": {"algorithm": proxdasa.DPSGD(1e30)},
    "TopK": {"mixing": mixing.CompressedGossip(compressors.TopK(0.3), 0.5)},
    "RandK": {"mixing": mixing.CompressedGossip(compressors.RandK(0.3), 0.5)},
    "local steps": {"mixing": mixing.Every(3)},
    "failures": {"conditions": [conditions.LinkLoss(0.3), conditions.Outages(10, 3), conditions.MessageNoise(0.1)]},
    "delays": {"conditions": [conditions.StaleMessages(2), conditions.Participation(0.7)]},
    "repeated": {"problem": problems.Repeated(quadratic(), 1)},
    "single index": {"problem": model(), "algorithm": proxdasa.ProxDASA(0.001, 0.3)},
}


@pytest.mark.filterwarnings("ignore::proxdasa.DivergenceWarning")
@pytest.mark.parametrize("name", RUNS)
def test_runs_have_the_bits_of_the_cpu(pretend, name):
    settings = {"algorithm": made(algorithms.ProxDASA), **RUNS[name]}
    compare(pretend, settings.pop("algorithm"), settings.pop("problem", None), **settings)


@pytest.mark.parametrize("name", ["perceptron", "frozen layers", "perceptron, BatchNorm", "tied weights"])
def test_networks_have_the_bits_of_the_cpu(pretend, name):
    few = {"iterations": 3, "observe_every": 3}
    compare(pretend, made(algorithms.ProxDASA), architectures.problem(name), networks.complete(3), **few)


def test_evaluation_points_that_are_not_kept_are_sent(pretend, monkeypatch):
    monkeypatch.setattr("proxdasa.problems.single_index.KEPT", 0)
    compare(pretend, proxdasa.ProxDASA(0.001, 0.3), model())


def test_checkpoints_are_of_the_host_and_go_on_on_the_device(pretend, tmp_path):
    method, settings = made(algorithms.ProxDASAGT), {"trials": TRIALS, "observe_every": 4} | pretend
    settings["mixing"] = mixing.CompressedGossip(compressors.TopK(0.3), 0.5)
    with pretend_device.Driver():
        whole = proxdasa.run(method, quadratic(), networks.star(N), iterations=12, **settings)
        run = functools.partial(
            proxdasa.run, method, quadratic(), networks.star(N), iterations=12, checkpoints=tmp_path, **settings
        )

        def interrupt(k, _K, _rows):
            if k == 8:
                raise KeyboardInterrupt

        assert run(progress=interrupt).stopped == "interrupted"
        same(run(), whole)
    with pytest.raises(ValueError, match=r"other settings|another run|checkpoint"):
        proxdasa.run(
            method, quadratic(), networks.star(N), iterations=12, checkpoints=tmp_path, **settings | {"device": "cpu"}
        )


def test_searches_have_the_bits_of_the_cpu(pretend):
    for settings in ({"grid": {"gamma": [0.05, 0.1]}}, {"quick": True}):
        search = functools.partial(
            proxdasa.tune, made(algorithms.ProxDASA), quadratic(), networks.star(N), iterations=8, **settings
        )
        expected = search()
        with pretend_device.Driver():
            got = search(**pretend)
        assert got.ranking == expected.ranking


# ---------- what is refused


class Plain:
    """A problem that cannot move."""

    agents, dim, dtype, epoch, words = 3, 2, torch.float32, 1.0, 0

    def evaluate(self, x):
        pytest.fail("it must be refused before anything is computed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "gpu"}, "device must be 'cpu' or 'cuda' or 'mps'; got 'gpu'"),
        ({"device": 0}, "device must be 'cpu' or 'cuda' or 'mps'; got 0"),
        ({"device": "cuda", "exact": True}, 'exact and device = "cuda" exclude each other'),
        ({"device": "mps", "dtype": torch.float64}, 'device = "mps" has no float64'),
        ({"device": "cuda", "processes": engines.Alone()}, 'device = "cuda" is for runs in one process'),
        ({"device": "cuda", "jobs": 2}, 'device = "cuda" uses one process; leave one of them out'),
        ({"device": "cuda", "problem": Plain()}, "device: Plain has no method to_device"),
    ],
)
def test_what_a_device_cannot_do_is_refused(monkeypatch, settings, message):
    for name in ("cuda", "mps"):
        monkeypatch.setitem(devices.CHOICES, name, lambda: True)
    problem = settings.pop("problem", None) or quadratic()
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        proxdasa.run(made(algorithms.ProxDASA), problem, networks.star(problem.agents), iterations=3, **settings)


def test_a_device_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(devices.CHOICES, "cuda", lambda: False)
    message = r"this PyTorch has no CUDA device; that needs an NVIDIA GPU .* Here there is cpu"
    with pytest.raises(ValueError, match=message):
        proxdasa.run(made(algorithms.ProxDASA), quadratic(), networks.star(N), device="cuda")
    file = tmp_path / "run.toml"
    text = 'iterations = 3\nalgorithm = { name = "DPSGD", gamma = 0.1 }\nnetwork = "ring"\n'
    text += '[problem]\nname = "PhaseRetrieval"\nagents = 3\ndim = 5\nevaluation = "population"\n'
    file.write_text(text, encoding="utf-8")
    own = tmp_path / "own.toml"
    own.write_text('device = "cuda"\n' + text, encoding="utf-8")
    for words in (
        ["run", file, "-o", tmp_path / "out", "--device", "cuda"],
        ["run", own, "-o", tmp_path / "out"],
        ["tune", file, "-o", tmp_path / "out", "--quick", "--device", "cuda"],
        ["reproduce", "topology", "-o", tmp_path / "out", "--device", "cuda"],
    ):
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == Code.REFUSED
        assert re.search(message, " ".join(done.stderr.split()))
    assert not (tmp_path / "out").exists()
    done = CliRunner().invoke(app, ["run", str(file), "-o", str(tmp_path / "out"), "--device", "gpu"])
    assert done.exit_code == 2
    assert re.search("cpu.*cuda.*mps", " ".join(done.stderr.split()))
    well = CliRunner().invoke(app, ["run", str(own), "-o", str(tmp_path / "out"), "--device", "cpu"])
    assert well.exit_code == 0, "the option takes the place of the file's"


def test_blocks_are_not_compiled_elsewhere(pretend):
    with pretend_device.Driver(), pytest.warns(proxdasa.CompileWarning, match="blocks are compiled for the CPU"):
        proxdasa.run(made(algorithms.DPSGD), quadratic(), networks.star(N), iterations=2, compile=True, **pretend)


def test_a_network_with_a_tensor_that_does_not_move_is_refused(pretend):
    class Fixed(torch.nn.Linear):
        def __init__(self):
            super().__init__(7, 3)
            self.scale = torch.linspace(1, 2, 7)

        def forward(self, x):
            return super().forward(x * self.scale)

    problem = problems.Supervised(Fixed, architectures.problem("perceptron").data, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"device: Fixed or its loss fails on meta: .* register_buffer"):
        on_meta(made(algorithms.DPSGD), problem, networks.complete(3)).engine()


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_coordinates_are_chosen_alike_on_every_device(pretend, share):
    rows = torch.randint(-3, 4, (5, 4, 30), generator=torch.Generator().manual_seed(0)).float()
    with pretend_device.Driver():
        moved = selections._smallest(rows.to(pretend["device"]), share).cpu()
    assert torch.equal(moved, selections._smallest(rows, share))


# ---------- a real device


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("method", algorithms.ALL)
def test_a_real_device_agrees_with_the_cpu(method, device):
    if not devices.CHOICES[device]():
        pytest.skip(f"this PyTorch finds no {device} device on this machine")
    penalty = regularizers.L1(0.1) if method.facts.composite else regularizers.Zero()
    settings = {"regularizer": penalty, "mixing": mixing.Gossip(2), "iterations": 20, "trials": TRIALS, "seed": 3}
    for problem in (quadratic(), architectures.problem("perceptron", dtype=torch.float32)):
        network = networks.complete(problem.agents)
        run = functools.partial(proxdasa.run, made(method), problem, network, **settings)
        expected, got = run(), run(device=device)
        for name, rows in expected.state.items():
            assert got.state[name].device.type == "cpu"
            torch.testing.assert_close(got.state[name], rows, rtol=1e-3, atol=1e-4)
        assert got.records[-1]["loss"] == pytest.approx(expected.records[-1]["loss"], rel=1e-3)


def test_a_real_device_is_compared_for_every_method():
    marks = {mark.name: mark for mark in test_a_real_device_agrees_with_the_cpu.pytestmark if mark.name == "gpu"}
    tried = [m.args[1] for m in test_a_real_device_agrees_with_the_cpu.pytestmark if m.name == "parametrize"]
    assert marks
    assert [*algorithms.ALL] in [[*each] for each in tried]
    assert ["cuda", "mps"] in tried
