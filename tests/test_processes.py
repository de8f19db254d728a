"""Agents spread over processes do what they do in one: the same bits in exact mode, the same numbers otherwise."""

import dataclasses
import functools
import math
import sys

import hypothesis.strategies as st
import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given

import proxdasa
from proxdasa import metrics, networks, problems, regularizers, schedules
from proxdasa.contracts import PeerError
from proxdasa.engines import Processes, blocks
from proxdasa.engines.messages.halo import Halo
from proxdasa.engines.products import ExactProduct, SparseProduct, product
from proxdasa.runs.checkpoints import CheckpointWarning
from proxdasa.runs.compiling import CompileWarning
from proxdasa.runs.loop import Saving
from tests.processes import LINUX, commands, fork_together, program, with_tests
from tests.setups import METHODS, N, digest, in_threads, light, main, run_until, runs, setup

SHORT = {"iterations": 8, "observe_every": 4}
"""Runs in which every method does all that it ever does, with time to stop and to go on."""
ALONE = {}
"""The hashes of runs in one process, made when they are first needed."""
MADE = [("prox-gt", setup), *((name, light) for name in METHODS if name != "prox-gt")]
"""Every method: on images the one with batches and full gradients, the others on quadratics, which take less time."""
OTHERS = [pytest.param(name, setup, marks=pytest.mark.slow) for name in METHODS if name != "prox-gt"]


def alone(name: str, make=setup, **changes) -> str:
    key = (name, make, *changes.items())
    if key not in ALONE:
        ALONE[key] = digest(make(name, **changes).run().x)
    return ALONE[key]


# the same bits


@pytest.mark.parametrize(
    ("size", "name", "make"),
    [
        *((3, *made) for made in MADE),
        *((size, "sppdm", light) for size in (1, 2, 8)),
        (8, "deepstorm", setup),
        *(pytest.param(3, *other.values, marks=other.marks) for other in OTHERS),
    ],
)
def test_exact_runs_have_the_same_bits_in_any_number_of_processes(name, make, size):
    results = in_threads(size, lambda transport: make(name, **SHORT).run(processes=transport))
    assert digest(results[0].x) == alone(name, make, **SHORT)
    assert not torch.equal(results[0].x[:, 0], results[0].x[:, 1]), "agents differ, so rows could be mixed up"


@LINUX
@pytest.mark.parametrize(
    ("size", "interface"),
    [(4, None), (3, "lo"), *(pytest.param(size, None, marks=pytest.mark.slow) for size in (1, 2, 8))],
)
def test_the_same_bits_over_unix_sockets_and_gloo(size, interface, tmp_path):
    """Forked processes, which have torch already; what torchrun adds is tested below, with two."""
    assert fork_together(tmp_path, size, main, tmp_path / "hashes", interface)[0] == [0] * size
    check_hashes(tmp_path / "hashes")


@LINUX
@pytest.mark.parametrize(
    ("launcher", "size", "fork"),
    [
        ("torchrun", 2, True),
        pytest.param("torchrun", 2, False, marks=pytest.mark.slow),
        pytest.param("mpiexec", 3, False, marks=pytest.mark.slow),
    ],
)
def test_the_same_bits_under_a_launcher(launcher, size, fork, tmp_path):
    """``fork=False``: in fresh interpreters, as a user has it; `test_launching` always has one.

    `test_exits` also compares the bits of a run under mpiexec.
    """
    if launcher == "mpiexec":
        pytest.importorskip("mpi4py", reason="the tests of MPI need mpi4py and mpiexec: pip install mpi4py mpich")
        program("mpiexec")
    words = {
        "torchrun": ("--standalone", "--nproc-per-node", size, "-m"),
        "mpiexec": ("-n", size, sys.executable, "-m"),
    }[launcher]
    with commands(tmp_path) as start:
        command = (launcher, *words, "tests.setups", tmp_path / "hashes")
        start(*command, env={"PYTHONPATH": with_tests()}, fork=fork).ended()
    check_hashes(tmp_path / "hashes")


@functools.cache
def hashes():
    """What `main` writes, by runs in one process."""
    return "".join(f"{name} {digest(made.run().x)}\n" for name, made in runs().items())


def check_hashes(path):
    assert path.read_text() == hashes()


@dataclasses.dataclass(frozen=True)
class _Lazy:
    """x/2 + W x/2: a polynomial in W that does not begin with W x."""

    def rounds_for(self, rho):
        return 1

    def __call__(self, apply, x, rho):
        return x / 2 + apply(x / 2)


@pytest.mark.parametrize("name", ["prox-dasa-gt", "sppdm"])  # by mix, and by sums over neighbours too
def test_any_mixing_of_the_contract_gives_the_same_bits_in_several_processes(name):
    made = light(name, mixing=_Lazy(), **SHORT)
    assert digest(in_threads(2, lambda transport: made.run(processes=transport))[0].x) == digest(made.run().x)


PHASE = problems.PhaseRetrieval(N, dim=12, evaluation=40)
QUADRATIC = problems.Quadratic(torch.eye(7).expand(N, 7, 7), torch.arange(7.0 * N).view(N, 7), noise=0.3)


@pytest.mark.parametrize(
    ("problem", "dtype", "regularizer"),
    [
        (PHASE, torch.float32, regularizers.GroupL2(0.01, 2)),
        (PHASE, torch.float64, regularizers.Simplex(1.0)),
        (QUADRATIC, None, regularizers.GroupL2(0.01, 7)),
        pytest.param(PHASE, torch.float32, regularizers.Simplex(1.0), marks=pytest.mark.slow),
        pytest.param(PHASE, torch.float64, regularizers.GroupL2(0.01, 2), marks=pytest.mark.slow),
        pytest.param(QUADRATIC, None, regularizers.Simplex(1.0), marks=pytest.mark.slow),
    ],
)
def test_exact_for_other_problems_and_regularisers(problem, dtype, regularizer):
    made = proxdasa.runs.setup.Setup(
        proxdasa.ProxDASA(gamma=0.01),
        problem,
        networks.star(N),
        regularizer=regularizer,
        iterations=8,
        observe_every=8,
        trials=2,
        dtype=dtype,
        exact=True,
    )
    first, *_ = in_threads(3, lambda transport: made.run(processes=transport))
    assert digest(first.x) == digest(made.run().x)


@pytest.mark.parametrize(("name", "make"), [*MADE, *OTHERS])
def test_the_default_mode_agrees_up_to_rounding(name, make):
    made = make(name, exact=False, dtype=torch.float64, **SHORT)
    expected, exact = made.run(), dataclasses.replace(made, exact=True).run()
    results = in_threads(3, lambda transport: made.run(processes=transport))
    for result in (results[0], exact):
        for variable, rows in expected.state.items():
            assert torch.allclose(result.state[variable], rows, rtol=1e-9, atol=1e-11), variable


def test_records_are_those_of_one_process():
    chosen = (*metrics.STANDARD, metrics.edge_consensus, metrics.lowest_accuracy, metrics.per_agent(1.0))
    made = setup("prox-dasa-gt", exact=False, dtype=torch.float64, metrics=chosen)
    expected = made.run().records
    results = in_threads(3, lambda transport: made.run(processes=transport))
    assert len(results[0].records) == len(expected) == 2 * 3
    extra = {"wire_bytes", "communication", "waiting", "computation"}
    for row, other in zip(results[0].records, expected, strict=True):
        assert set(row) == set(other) | extra
        assert min(row["computation"], row["communication"], row["waiting"]) >= 0
        for name in set(other) - {"seconds"}:
            assert row[name] == pytest.approx(other[name], rel=1e-7, abs=1e-12), name


def test_bytes_are_those_of_the_messages():
    """Two agents on each side of a ring cut in two: two rows leave each process in every round."""
    problem = problems.Quadratic(torch.eye(3).expand(8, 3, 3), torch.ones(8, 3))
    made = proxdasa.runs.setup.Setup(proxdasa.ProxDASA(gamma=0.1), problem, networks.ring(8), iterations=5)
    first, _ = in_threads(2, lambda transport: made.run(processes=transport))
    numbers = 2 * 3 * 2 + 2  # two vectors of three numbers for two agents, and the header
    assert first.records[-1]["wire_bytes"] == 5 * 2 * numbers * 4 / 8
    assert first.records[-1]["rounds"] == 5


def test_agents_may_give_themselves_no_weight():
    """Agent 0 takes nothing of itself, nor of agent 1 beside it: no weight asks for the row that it keeps."""
    W = [[0, 0, 0.5, 0.5], [0, 0.5, 0.25, 0.25], [0.5, 0.25, 0.25, 0], [0.5, 0.25, 0, 0.25]]
    problem = problems.Quadratic(torch.eye(3).expand(4, 3, 3), torch.arange(12.0).view(4, 3))
    for algorithm in (proxdasa.ProxDASAGT(gamma=0.1), METHODS["sppdm"]):
        made = proxdasa.runs.setup.Setup(
            algorithm, problem, networks.from_matrix(W), iterations=8, observe_every=8, exact=True
        )
        first, _ = in_threads(2, lambda transport, made=made: made.run(processes=transport))
        assert digest(first.x) == digest(made.run().x)


# stopping and failing


@pytest.mark.parametrize("asks", [0, 2, 4])
def test_all_stop_before_the_same_iteration(asks):
    """On a path of five processes a word takes four iterations from end to end."""
    problem = problems.Quadratic(torch.eye(2).expand(5, 2, 2), torch.randn(5, 2))
    made = proxdasa.runs.setup.Setup(
        proxdasa.ProxDASA(gamma=0.1, alpha=schedules.constant(0.1)), problem, networks.path(5), iterations=1_000
    )

    results = run_until(made, 5, 40, asks=asks)
    assert {(result.iterations, result.stopped) for result in results} == {(results[0].iterations, "interrupted")}
    assert 40 < results[0].iterations <= 47
    whole = proxdasa.run(
        made.algorithm, problem, networks.path(5),
        iterations=results[0].iterations, observe_every=100,
    )  # fmt: skip
    assert torch.allclose(results[0].x, whole.x, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"seed": 6}, "configuration"),
        ({"dtype": torch.float64}, "floating-point type"),
        ({"trials": 3}, "configuration"),
    ],
)
def test_disagreeing_processes_stop(changes, what):
    answers = in_threads(
        3, lambda transport: setup("prox-dasa", **changes if transport.rank == 1 else {}).run(processes=transport)
    )
    for answer in answers:
        assert isinstance(answer, ValueError)
        assert str(answer).startswith(
            f"agents 2 to 4 and agents 0 to 1 do not have the same {what}; start all processes with"
        )


def test_another_network_is_noticed():
    other = networks.ring(N)
    answers = in_threads(2, lambda transport: _with_network(other if transport.rank else None).run(processes=transport))
    assert [str(answer).split(";")[0] for answer in answers] == [
        "agents 4 to 7 and agents 0 to 3 do not have the same network"
    ] * 2


def _with_network(network):
    made = setup("prox-dasa")
    return proxdasa.runs.setup.Setup(made.algorithm, made.problem, network, exact=True) if network else made


def test_a_lost_process_is_named():
    problem = problems.Quadratic(torch.eye(2).expand(6, 2, 2), torch.randn(6, 2))

    def act(transport):
        loop = proxdasa.runs.setup.Setup(proxdasa.ProxDASA(gamma=0.1), problem, networks.ring(6)).loop(transport)
        if transport.rank == 2:
            transport.fail("agent 4 went home")
            return None
        return loop.run()

    first, second, _ = in_threads(3, act)
    assert isinstance(first, PeerError)
    assert str(first) == str(second) == "agent 4 went home"


def test_agents_that_do_other_steps_are_noticed():
    network = networks.ring(4)
    problem = problems.Quadratic(torch.eye(1).expand(4, 1, 1), torch.zeros(4, 1))

    def act(transport):
        engine = proxdasa.runs.setup.Setup(proxdasa.ProxDASA(gamma=0.1), problem, network).engine(transport)
        assert isinstance(engine, Processes)
        engine._neighbourhood._turn += transport.rank
        return engine.mix(torch.ones(1, 2, 1))

    first, second = in_threads(2, act)
    words = (
        "agents 2 to 3 sent message number 2 where number 1 was due; all agents must take the same steps",
        "agents 0 to 1 sent message number 1 where number 2 was due; all agents must take the same steps",
    )
    assert str(first) == str(second)  # whoever noticed it first
    assert str(first) in words


def test_more_processes_than_agents():
    assert [len(part) for part in blocks(7, 3)] == [2, 2, 3]
    with pytest.raises(ValueError, match="3 agents can live in 1 to 3 processes; got 4"):
        blocks(3, 4)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_plain_values_reach_every_process(size):
    value = {"k": 2**60 + 1, "seconds": 0.1, "nothing": None, "diverged": {"0": [1, 2]}, "Ψ": [math.inf, -0.0]}

    def act(transport):
        engine = setup("prox-dasa").engine(transport)
        others = torch.tensor([transport.rank, 1])
        return engine.broadcast(value if engine.writes else None), engine.total(others).tolist()

    for told, total in in_threads(size, act):
        assert told == value
        assert math.copysign(1, told["Ψ"][1]) == -1
        assert total == [size * (size - 1) // 2, size]


def test_compiling_is_for_one_process():
    with pytest.raises(ValueError, match="exclude each other"):
        setup("prox-dasa", compile=True)
    made = setup("prox-dasa", compile=True, exact=False)
    with pytest.warns(CompileWarning, match="messages between processes"):
        first, _ = in_threads(2, lambda transport: made.run(processes=transport))
    assert "compiled" not in first.config["facts"]


# checkpoints


@pytest.mark.parametrize(("name", "make"), [*MADE, *OTHERS])
def test_a_resumed_run_has_the_same_bits_with_another_number_of_processes(name, make, tmp_path):
    saving, made = Saving(tmp_path, 3), make(name, random_iterate=True, **SHORT)

    stopped, *_ = run_until(made, 3, 4, saving)
    assert stopped.stopped == "interrupted"
    assert 4 < stopped.iterations < 8
    result, _ = in_threads(2, lambda transport: made.run(None, saving, transport))
    expected = made.run()
    assert digest(result.x) == digest(expected.x) == alone(name, make, **SHORT)
    assert digest(result.random_iterate) == digest(expected.random_iterate)
    timed = ("seconds", "communication", "waiting", "computation", "wire_bytes")
    for row, other in zip(result.records, expected.records, strict=True):
        for key in set(other) - set(timed):
            assert row[key] == pytest.approx(other[key], rel=1e-4, abs=1e-6), key


def test_bytes_go_on_counting_with_another_number_of_processes(tmp_path):
    """Each iteration costs what it costs with the processes of its time."""
    problem = problems.Quadratic(torch.eye(3).expand(8, 3, 3), torch.ones(8, 3))
    made = proxdasa.runs.setup.Setup(
        proxdasa.ProxDASA(gamma=0.1), problem, networks.ring(8), iterations=12, observe_every=12
    )
    whole = {
        size: in_threads(size, lambda transport: made.run(processes=transport))[0].records[-1]["wire_bytes"]
        for size in (2, 4)
    }

    stopped, *_ = run_until(made, 4, 3, Saving(tmp_path))
    assert stopped.stopped == "interrupted"
    result, _ = in_threads(2, lambda transport: made.run(None, Saving(tmp_path), transport))
    k = stopped.iterations
    assert result.records[-1]["wire_bytes"] == pytest.approx(whole[4] * k / 12 + whole[2] * (12 - k) / 12)
    assert whole[4] > 2 * whole[2], "two processes send fewer rows, and fewer headers"


def test_the_simulator_resumes_too(tmp_path):
    made = light("prox-dasa-gt", exact=False)
    whole = made.run()

    def interrupt(k, _iterations, _rows):
        if k == 7:
            raise KeyboardInterrupt

    assert made.run(interrupt, Saving(tmp_path)).iterations == 7
    result = made.run(None, Saving(tmp_path))
    assert torch.equal(result.x, whole.x)
    assert [row["k"] for row in result.records] == [row["k"] for row in whole.records]
    assert [row["samples"] for row in result.records] == [row["samples"] for row in whole.records]


def test_a_damaged_checkpoint_falls_back(tmp_path):
    made = light("prox-dasa")
    made.run(None, Saving(tmp_path, 4))
    newest = sorted(tmp_path.glob("0*"))[-1]
    data = bytearray((newest / "state.safetensors").read_bytes())
    data[-5] ^= 1
    (newest / "state.safetensors").write_bytes(data)
    with pytest.warns(CheckpointWarning, match="continues from 000000008"):
        result = made.run(None, Saving(tmp_path, 4))
    assert digest(result.x) == alone("prox-dasa", light)


# parts


@pytest.mark.parametrize(
    "problem",
    [
        problems.PhaseRetrieval(6, dim=5, evaluation=30),
        problems.PhaseRetrieval(6, dim=5, evaluation="population"),
        problems.Quadratic(torch.randn(6, 3, 1) * torch.eye(3), torch.randn(6, 3), noise=0.1),
        setup("prox-dasa").problem,
    ],
    ids=["sample", "population", "quadratic", "supervised"],
)
def test_a_part_of_a_problem_is_its_rows(problem):
    whole = problem.to(torch.float64)
    part, rows = whole.restrict(range(2, 5)), slice(2, 5)
    assert (part.agents, part.dim, part.dtype) == (3, whole.dim, torch.float64)
    n, d = whole.agents, whole.dim
    inner = whole.restrict(range(1, n)).restrict(range(1, 4))
    words = torch.from_numpy(np.random.default_rng(0).integers(-(2**31), 2**31, (2, n, whole.words), dtype=np.int32))
    x = torch.randn(2, n, d, dtype=torch.float64)
    expected = whole.grad(x, whole.sample(words))[:, rows]
    by_whole = whole.grad_of(range(2, 5), x[:, rows].clone(), whole.sample(words)[:, rows])
    assert torch.allclose(by_whole, expected, rtol=1e-12)
    for some in (part, inner):
        got = some.grad(x[:, rows].clone(), some.sample(words[:, rows].clone()))
        assert torch.allclose(got, expected, rtol=1e-12)
        assert torch.allclose(some.evaluate(x[:, rows].clone()).grad, whole.evaluate(x).grad[:, rows], rtol=1e-12)
        begin, start = whole.start(3, 2).expand(2, n, d)[:, rows], some.start(3, 2).expand(2, 3, d)
        assert torch.equal(start, begin)


def test_a_part_of_the_data_is_no_more_than_that():
    whole = setup("prox-dasa").problem
    part = whole.restrict(range(3, 5))
    assert len(part.data.x) == len(whole.parts[3]) + len(whole.parts[4])
    assert torch.equal(part.data.x, whole.data.x[torch.cat(whole.parts[3:5])])
    loop = setup("prox-dasa").loop(None)
    assert not any(isinstance(value, problems.Supervised) for value in vars(loop).values()), "the whole can be freed"


@given(n=st.integers(2, 12), size=st.integers(1, 12), seed=st.integers(0, 99))
def test_a_halo_has_what_a_block_needs(n, size, seed):
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(n, 0.3, seed=seed)
    nx.add_path(graph, rng.permutation(n).tolist())  # agents of one process need not be neighbours
    W = networks.from_graph(graph).W.toarray()
    kept = W.diagonal().min()
    if kept < W.diagonal().max():  # the agents that keep least keep nothing
        W = (W - kept * np.eye(n)) / (1 - kept)
    network = networks.from_matrix(W)
    parts = blocks(n, min(size, n))
    x = torch.from_numpy(rng.normal(size=(2, n, 3)))
    expected = torch.from_numpy(network.W.toarray()) @ x
    halos = [Halo.of(network.W, parts, rank, torch.device("cpu")) for rank in range(len(parts))]
    for rank, (halo, here) in enumerate(zip(halos, parts, strict=True)):
        table = x[:, halo.columns]
        for kind in (SparseProduct, ExactProduct, product):
            rows = kind(halo.block(network.W, here), torch.float64)(table)
            assert torch.allclose(rows, expected[:, here.start : here.stop])
        assert torch.equal(table[:, halo.own], x[:, here.start : here.stop])
        for peer, rows in halo.receives.items():
            sent = torch.tensor(list(parts[peer]))[halos[peer].sends[rank]]
            assert torch.equal(sent, torch.from_numpy(halo.columns[rows]))
        assert set(halo.sends) == set(halo.receives)
