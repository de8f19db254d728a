"""Small files cannot cost much: what would take more memory than may be taken is refused before it is allocated."""

import bz2
import gzip
import lzma
import os
import tracemalloc
from contextlib import contextmanager
from functools import partial

import networkx as nx
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, data, memory_budget, networks, plans, problems, tuning
from proxdasa.configs import read
from proxdasa.runs.footprint import footprint
from proxdasa.runs.setup import Setup
from tests.setups import in_threads

ALLOWED = "50MB"
RUN = """
iterations = 10
[algorithm]
name = "ProxDASA"
gamma = 0.01
[problem]
name = "PhaseRetrieval"
agents = 4
dim = 5
evaluation = 10
[network]
name = "ring"
"""


@pytest.fixture
def little(monkeypatch):
    """A machine of 50 MB."""
    monkeypatch.setenv(memory_budget.VARIABLE, ALLOWED)


@contextmanager
def refused(words, most=20e6):
    """A refusal that says how much it would be and how to allow it, and costs hardly any memory itself."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=words) as refusal:
            yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most
    assert "raise the limit with the environment variable PROXDASA_MEMORY" in str(refusal.value)
    assert "50 MB" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1000", 1e3), ("500MB", 5e8), ("500 mb", 5e8), ("1.5G", 1.5e9), ("2TB", 2e12), ("7 KB", 7e3)],
)
def test_the_limit_is_what_the_environment_says(monkeypatch, text, expected):
    monkeypatch.setenv(memory_budget.VARIABLE, text)
    assert memory_budget.limit() == expected


@pytest.mark.parametrize("needed", [1e9, 8.2e14, 8.4e14, 1e30])
def test_an_example_of_a_limit_is_one(monkeypatch, needed):
    """Too large a number has an exponent, which is refused, so that there is no example."""
    monkeypatch.setenv(memory_budget.VARIABLE, "1MB")
    with pytest.raises(ValueError, match="raise the limit with the environment variable") as refusal:
        memory_budget.check(needed, "it", "less is less")
    _, given, example = str(refusal.value).partition(f", such as {memory_budget.VARIABLE}=")
    if given:
        monkeypatch.setenv(memory_budget.VARIABLE, example)
        memory_budget.check(needed, "it", "less is less")
    assert bool(given) == (needed < 8.3e14)


def test_the_limit_is_a_share_of_the_machine_by_default(monkeypatch):
    monkeypatch.delenv(memory_budget.VARIABLE, raising=False)
    assert memory_budget.limit() == memory_budget.SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(os, "sysconf_names", {})
    assert memory_budget.limit() == float("inf")


def test_what_torch_raises_for_lack_of_memory_is_recognised():
    """By its text, for it has no class of its own; here torch itself says it."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)
    assert memory_budget.is_exhausted(caught.value)
    assert memory_budget.is_exhausted(MemoryError())
    with pytest.raises(RuntimeError) as other:
        torch.ones(2) @ torch.ones(3)
    assert not memory_budget.is_exhausted(other.value)


def test_a_command_that_lacks_memory_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr(cli.plan_command.plans, "plan", lambda *_, **__: torch.empty(2**55))
    result = CliRunner().invoke(cli.app, ["plan", "ring", "-n", "4"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: this does not fit into the memory of this machine; try fewer agents")


@pytest.mark.parametrize("text", ["much", "-1", "1e9", "GB", "1 PB", "nan"])
def test_a_limit_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv(memory_budget.VARIABLE, text)
    with pytest.raises(ValueError, match="PROXDASA_MEMORY must be a number of bytes, such as 500MB or 16GB; got"):
        networks.ring(3)


# files


def test_a_node_with_a_large_number_costs_nothing(tmp_path):
    """Agents are counted, not made room for up to the largest number."""
    place = tmp_path / "edges.txt"
    place.write_text("0 1\n1 3000000\n", encoding="utf-8")
    tracemalloc.start()
    with pytest.raises(ValueError, match="agent 2 has no edge, though there is an agent 3000000; number agents from 0"):
        networks.from_file(place)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_what_unpacks_to_too_much_is_refused(tmp_path, little, suffix):
    place = tmp_path / f"bomb{suffix}"
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix]
    place.write_bytes(pack(b"1 1:1\n" + b"\n" * 1_800_000))
    assert place.stat().st_size < 1e5
    with refused(f"bomb{suffix}, uncompressed, holds more than 1.25 MB, which would take more than the limit of 50 MB"):
        data.libsvm(place)


@pytest.mark.parametrize(
    ("name", "read_it"),
    [
        ("rows.svm", data.libsvm),
        ("edges.txt", networks.from_file),
        ("W.csv", networks.from_file),
        ("run.toml", read),
        ("config.json", read),
    ],
)
def test_a_file_that_is_too_large_is_refused(tmp_path, little, name, read_it):
    place = tmp_path / name
    place.write_bytes(b"1 1\n" * 1_000_000)
    with refused("holds more than .* of memory; if you trust it"):
        read_it(place)


def test_what_never_ends_is_refused(tmp_path, little):
    place = tmp_path / "endless.svm"
    place.symlink_to("/dev/zero")
    with refused("endless.svm holds more than"):
        data.libsvm(place)


def test_an_array_larger_than_its_file_is_refused(tmp_path, little):
    place = tmp_path / "W.npy"
    np.save(place, np.eye(2))
    place.write_bytes(place.read_bytes().replace(b"(2, 2), }    ", b"(90000, 90000), }")[:200])
    with pytest.raises(ValueError, match=r"W\.npy: not an array of numbers as numpy\.save writes it"):
        networks.from_file(place)
    np.save(place, np.eye(1_500))
    with refused("W with 2,250,000 entries would take about 135 MB of memory, but the limit is 50 MB"):
        networks.from_file(place)


def test_features_that_nobody_has_room_for_are_refused(tmp_path, little):
    place = tmp_path / "wide.svm"
    place.write_text("1 900000000:1\n", encoding="utf-8")
    with refused("wide.svm: 1 rows of 900000000 features as a dense array would take about 7.2 GB of memory"):
        data.libsvm(place)


# networks


@pytest.mark.parametrize(
    "build",
    [
        lambda: networks.ring(10**6),
        lambda: networks.ring(10**400),
        lambda: networks.path(10**6),
        lambda: networks.star(10**6),
        lambda: networks.complete(10**5),
        lambda: networks.complete(10**200),
        lambda: networks.grid(10**3, 10**3),
        lambda: networks.torus(10**3, 10**3),
        lambda: networks.ladder(10**6),
        lambda: networks.hypercube(17),
        lambda: networks.exponential(10**5),
        lambda: networks.erdos_renyi(10**4, 0.5),
        lambda: networks.erdos_renyi(10**200, 0.5),
        lambda: networks.regular(10**5, 10),
        lambda: networks.one_peer_hypercube(2**17),
        lambda: networks.base_graph(10**5, 3),
        lambda: networks.base_graph(10**200, 10**300),
    ],
)
def test_large_graphs_are_refused_before_they_are_made(little, build):
    with refused("(a graph of .* edges|W with .* entries) would take about .* of memory, but the limit is 50 MB", 1e6):
        build()


def test_every_builder_is_asked(little):
    """Those that take numbers: from_file has its own tests, from_links is as large as its list, paper() is small."""
    asked = {"ring", "path", "star", "complete", "grid", "torus", "ladder", "hypercube", "exponential", "erdos_renyi",
             "regular", "one_peer_hypercube", "base_graph"}  # fmt: skip
    assert asked == {build.__name__ for build in networks.ALL} - {"from_file", "from_links", "paper"}


@pytest.mark.parametrize(
    "build", [partial(networks.ring, 3_000), partial(networks.regular, 1_000, 6), partial(networks.complete, 300)],
    ids=lambda build: build.func.__name__,
)  # fmt: skip
def test_estimates_of_networks_are_not_too_small(build):
    """Nor many times too large."""
    build.func(8, *build.args[1:])  # whatever is imported or kept once is not of this network
    tracemalloc.start()
    network = build()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    dense = network.recipe["name"] == "complete"
    estimate = 60 * network.n**2 if dense else 600 * network.n + 500 * len(network.edges)
    assert 0.7 * peak < estimate < 4 * peak


def test_fastest_weights_of_large_graphs_are_refused(little):
    pytest.importorskip("cvxpy")
    with refused("the fastest weights of 3000 agents and 3000 edges would take about 288 MB"):
        networks.from_graph(nx.cycle_graph(3_000), weights=networks.fastest)


# runs


def quadratic(n=4, d=5):
    return problems.Quadratic(torch.eye(d).expand(n, d, d), torch.ones(n, d), noise=0.1)


CHANGES = {
    "trials": ("iterations = 10", "trials = 10_000_000", "memory: trials = 10,000,000 of 4 agents, d = 5, and"),
    "agents": ("agents = 4", "agents = 1_000_000", "problem: evaluation = 10 points at each of 1,000,000 agents"),
    "evaluation": (
        "evaluation = 10",
        "evaluation = 10_000_000",
        "problem: evaluation = 10,000,000 points at each of 4",
    ),
    "dimension": ("dim = 5", "dim = 10_000_000_000", "problem: evaluation = 10 points"),
    "records": ("iterations = 10", "iterations = 1_000_000\nobserve_every = 1", "and 1,000,002 records would take"),
}


@pytest.mark.parametrize(
    ("command", "change"),
    [
        *((command, change) for command in ("run", "tune") for change in CHANGES),
        *(("plan", change) for change in ("agents", "evaluation", "dimension")),  # it makes no trials and records
    ],
)
def test_files_of_runs_that_do_not_fit_are_refused(tmp_path, little, change, command):
    old, new, words = CHANGES[change]
    file = tmp_path / "run.toml"
    file.write_text(RUN.replace(old, new), encoding="utf-8")
    options = {"run": ("-o", tmp_path / "out"), "tune": ("-o", tmp_path / "out", "--grid", "gamma=0.1,0.2"), "plan": ()}
    result = CliRunner().invoke(cli.app, [command, str(file), *map(str, options[command])])
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert "of memory, but the limit is 50 MB" in result.stderr


def test_runs_that_do_not_fit_are_refused_in_python(little):
    def run(problem=None, **settings):
        settings = {"iterations": 10} | settings
        return proxdasa.run(proxdasa.ProxDASA(0.1), problem or quadratic(), networks.ring(4), **settings)

    assert run().iterations == 10
    with refused("trials = 1,000,000 of 4 agents, d = 5, and .* records would take about", 1e6):
        run(trials=10**6)
    with refused("1,000,001 records", 1e6):
        run(iterations=999_999, observe_every=1)
    with refused("1,000,102 records", 1e6):
        run(iterations=10**6, random_iterate=True)
    with refused("d = 200,000, and 12 records", 5e6):
        run(problems.SingleIndex(4, dim=200_000, evaluation="population"))


def test_a_process_counts_its_own_agents_only(monkeypatch):
    """Four machines hold what one does not."""
    setup = Setup(proxdasa.DPSGD(0.1), quadratic(), networks.ring(4), trials=300, iterations=3)
    whole, part = (footprint(setup.algorithm, setup.problem, setup.network, setup.mixing, 300, agents)
                   for agents in (None, range(1)))  # fmt: skip
    assert part < whole / 2
    monkeypatch.setenv(memory_budget.VARIABLE, str(part + 1_000 * 300 * 6))
    with pytest.raises(ValueError, match="but the limit is"):
        setup.run()
    for result in in_threads(4, lambda transport: setup.run(processes=transport)):
        assert getattr(result, "iterations", result) == 3
    monkeypatch.setenv(memory_budget.VARIABLE, "1KB")
    for error in in_threads(4, lambda transport: setup.run(processes=transport)):
        assert "would take about" in str(error)  # and nobody waits for the others


def test_searches_that_do_not_fit_are_refused(little):
    setup = Setup(proxdasa.ProxDASA(0.1), quadratic(), networks.ring(4), iterations=10, trials=50)
    search = tuning.Search(setup, tuning.combinations({"gamma": np.geomspace(0.1, 1, 100)}))
    with refused("100 settings × 50 trials = 5000 stacked trials of 4 agents, d = 5 and 60,000 records"):
        search.check("loss")
    with refused("a grid of 1,000,000 settings would take about 500 MB", 1e6):
        tuning.combinations({name: np.arange(1, 101) for name in "abc"})


def test_an_estimate_of_L_that_does_not_fit_is_refused(little):
    with refused("an estimate of L for 4 agents, d = 500,000,", 1e6):
        plans.plan(networks.ring(4), problem=problems.SingleIndex(4, dim=500_000, evaluation="population"))


def test_a_perceptron_that_does_not_fit_is_refused(little):
    with refused("a perceptron 1000000 → 64 → 2 would take about 512 MB", 1e6):
        problems.models.mlp(inputs=10**6)


@pytest.mark.parametrize("method", [proxdasa.DPSGD, proxdasa.ProxDASAGT])
def test_estimates_of_runs_are_not_too_small(method):
    """Nor many times too large. torch's memory is not traced, so its tensors are counted when they are made."""
    setup = Setup(method(0.1), quadratic(20, 30), networks.ring(20), trials=200, iterations=3)
    estimate = footprint(setup.algorithm, setup.problem, setup.network, setup.mixing, setup.trials)
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        setup.run()
    held, peak = 0, 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert 0.7 * peak < estimate < 6 * peak
