"""Networks: known spectra, the laws of a mixing matrix for every builder, refusals, recipes, and large sparse ones."""

import ast
import inspect
import json
import pickle
import tracemalloc
import typing
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxdasa import networks
from proxdasa.networks import (
    ALL,
    WEIGHTINGS,
    Network,
    Weights,
    best_constant,
    complete,
    constant,
    erdos_renyi,
    exponential,
    from_graph,
    from_matrix,
    grid,
    hypercube,
    ladder,
    max_degree,
    metropolis,
    paper,
    path,
    regular,
    ring,
    spectrum,
    star,
    torus,
)

EXAMPLES = [
    *(build(1) for build in (ring, path, star, complete, partial(grid, 1), partial(torus, 1))),
    *(hypercube(0), erdos_renyi(1, 0.5), regular(1, 0), from_matrix([[1.0]]), from_graph(nx.empty_graph(1))),
    *(path(1, weights=best_constant), path(1, weights=max_degree)),
    *(build(n) for build in (ring, path, star, complete) for n in (2, 3, 8)),
    *(grid(3, 4), grid(1, 5), torus(3, 4), torus(2, 2), torus(1, 5), torus(4, 4, weights=best_constant)),
    *(ladder(1), ladder(5), hypercube(1), hypercube(4), hypercube(3, weights=best_constant)),
    *(exponential(1), exponential(2), exponential(3), exponential(16), exponential(21, weights=best_constant)),
    *(erdos_renyi(20, 0.4), erdos_renyi(20, 0.3, seed=3, weights=max_degree), erdos_renyi(6, 1.0)),
    *(regular(12, 3), regular(12, 5, seed=4, weights=max_degree), paper()),
    *(path(6, weights=best_constant), star(6, weights=max_degree)),
]


CLOSED = (metropolis, max_degree, best_constant)  # the weights that need no solver; test_network_files has the others


def laws(network: Network) -> None:
    """Symmetric, doubly stochastic, non-negative, sparse and sorted, with the ρ that LAPACK finds."""
    assert isinstance(network.W, sp.csr_array)
    assert network.W.dtype == np.float64
    assert network.W.has_sorted_indices
    W = network.W.toarray()
    assert network.W.nnz == np.count_nonzero(W)
    np.testing.assert_array_equal(W, W.T)
    np.testing.assert_allclose(W.sum(axis=1), 1, rtol=0, atol=1e-14)
    assert W.min() >= 0
    # The eigenvalues of W − 11ᵀ/n are those of W with one replaced by zero.
    expected = np.abs(np.linalg.eigvalsh(W - 1 / network.n)).max()
    assert network.rho == pytest.approx(expected, abs=1e-13)
    assert 0 <= network.rho < 1


@pytest.mark.parametrize("network", EXAMPLES, ids=lambda network: network.label)
def test_every_builder_gives_a_mixing_matrix(network):
    laws(network)


@pytest.mark.parametrize("network", EXAMPLES, ids=lambda network: network.label)
def test_what_is_read_off_agrees_with_w(network):
    off = network.W.toarray() * (1 - np.eye(network.n))
    assert network.n == len(off)
    np.testing.assert_array_equal(network.degrees, (off > 0).sum(axis=1))
    assert network.degrees.dtype == np.int64
    for i in range(network.n):
        assert network.neighbours(i) == tuple(np.flatnonzero(off[i]).tolist())
    pairs = [(i, j) for i in range(network.n) for j in range(i + 1, network.n) if off[i, j] > 0]
    assert network.edges.shape == (len(pairs), 2)
    assert list(map(tuple, network.edges.tolist())) == pairs
    assert list(network.graph) == list(range(network.n))
    np.testing.assert_array_equal(nx.to_numpy_array(network.graph, weight="weight"), off)
    with pytest.raises(nx.NetworkXError):
        network.graph.add_edge(0, network.n)


# Known spectra ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 4, 5, 8, 20, 33])
def test_ring_spectrum(n):
    values = 1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(1, n) / n)
    assert ring(n).rho == pytest.approx(np.abs(values).max(), abs=1e-14)
    np.testing.assert_allclose(ring(n).W.data, 1 / 3, rtol=1e-15)


def test_published_values():
    assert round(ring(8).rho, 4) == 0.8047
    assert paper().rho == pytest.approx(0.375, abs=1e-14)
    assert len(paper().edges) == 24
    assert set(paper().W.data[paper().W.indices != np.repeat(range(8), np.diff(paper().W.indptr))]) == {1 / 8}
    assert paper().neighbours(2) == (0, 1, 5, 6, 7)  # agent 3 of the paper: 2-3 3-6 1-3 3-7 3-8


def test_small_rings():
    np.testing.assert_array_equal(ring(1).W.toarray(), [[1.0]])
    np.testing.assert_allclose(ring(2).W.toarray(), [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])
    assert ring(2).rho == pytest.approx(1 / 3)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 600])
def test_complete_averages_at_once(n):
    assert complete(n).rho == 0.0
    assert complete(n).W.nnz == n * n


@pytest.mark.parametrize("n", [2, 3, 6, 11, 18, 21, 28])
def test_path_spectrum(n):
    # On a path from three agents on, Metropolis weights are all 1/3, and λ_k(L) = 2 − 2 cos(πk/n).
    weight = 1 / 3 if n > 2 else 1 / 2
    values = 1 - weight * (2 - 2 * np.cos(np.pi * np.arange(1, n) / n))
    assert path(n).rho == pytest.approx(np.abs(values).max(), abs=1e-14)
    # λ₁(L) + λ_{n−1}(L) = 4, so the best constant is 1/2 and leaves inner agents no self weight.
    best = path(n, weights=best_constant)
    assert best.rho == pytest.approx(np.cos(np.pi / n), abs=1e-12)
    assert np.count_nonzero(best.W.diagonal()) == 2


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("weights", CLOSED)
def test_hypercube_spectrum(d, weights):
    # Regular of degree d with λ_k(L) = 2k: all three weightings put 1/(d+1) on every edge.
    assert hypercube(d, weights=weights).rho == pytest.approx((d - 1) / (d + 1), abs=1e-12)


def test_star_spectrum():
    n = 7
    assert star(n).rho == pytest.approx(1 - 1 / n, abs=1e-14)
    assert star(n).neighbours(0) == tuple(range(1, n))


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (3, 5), (4, 6)])
def test_torus_spectrum(rows, columns):
    waves = [2 - 2 * np.cos(2 * np.pi * np.arange(side) / side) for side in (rows, columns)]
    values = (1 - np.add.outer(*waves) / 5).ravel()[1:]
    assert torus(rows, columns).rho == pytest.approx(np.abs(values).max(), abs=1e-14)


@pytest.mark.parametrize(
    ("n", "steps"), [(1, []), (2, [1]), (3, [1]), (4, [1, 2]), (7, [1, 2]), (8, [1, 2, 4]), (20, [1, 2, 4, 8])]
)
def test_exponential_spectrum(n, steps):
    # Circulant, so the eigenvectors of A are Fourier's; the step n/2 meets itself and is one neighbour, not two.
    neighbours = sorted({(sign * step) % n for step in steps for sign in (1, -1)})
    assert exponential(n).neighbours(0) == tuple(neighbours)
    assert set(exponential(n).degrees) == {len(neighbours)}
    waves = [sum(np.cos(2 * np.pi * k * j / n) for j in neighbours) for k in range(1, n)]
    rates = [abs(1 + wave) / (1 + len(neighbours)) for wave in waves]
    assert exponential(n).rho == pytest.approx(max(rates, default=0.0), abs=1e-14)


@pytest.mark.parametrize("j", [2, 3, 6, 9])
def test_exponential_mixes_in_logarithmic_time(j):
    assert exponential(2**j).rho == pytest.approx(1 - 2 / j, abs=1e-12)


def test_numbering():
    assert grid(3, 4).neighbours(5) == (1, 4, 6, 9)  # row by row
    assert torus(3, 4).neighbours(0) == (1, 3, 4, 8)
    assert ladder(4).neighbours(1) == (0, 2, 5)
    assert hypercube(3).neighbours(5) == (1, 4, 7)  # one binary digit apart
    assert exponential(8).neighbours(1) == (0, 2, 3, 5, 7)
    assert set(regular(30, 4).degrees) == {4}


# Weights ------------------------------------------------------------------------------------------------------


@st.composite
def connected_graphs(draw):
    n = draw(st.integers(1, 12))
    graph = nx.empty_graph(n)
    parents = draw(st.binary(min_size=n - 1, max_size=n - 1))  # bytes are drawn at once
    graph.add_edges_from((byte % i, i) for i, byte in enumerate(parents, start=1))
    ends = [byte % n for byte in draw(st.binary(max_size=40))]
    graph.add_edges_from(zip(ends[::2], ends[1::2], strict=False))  # self-loops included: they must not matter
    return graph


def laplacian(graph):
    simple = nx.Graph((a, b) for a, b in graph.edges if a != b)
    return nx.laplacian_matrix(simple, nodelist=range(len(graph))).toarray().astype(float)


@given(connected_graphs())
def test_metropolis_on_any_graph(graph):
    network = from_graph(graph)
    laws(network)
    W = network.W.toarray()
    for i, j in network.edges:
        assert W[i, j] == 1 / (1 + max(network.degrees[i], network.degrees[j]))
    assert {frozenset(edge) for edge in network.edges.tolist()} == {
        frozenset(edge) for edge in graph.edges if edge[0] != edge[1]
    }


@given(connected_graphs())
def test_max_degree_on_any_graph(graph):
    network = from_graph(graph, weights=max_degree)
    laws(network)
    if network.n > 1:
        L = laplacian(graph)
        np.testing.assert_allclose(network.W.toarray(), np.eye(len(L)) - L / (L.diagonal().max() + 1), atol=1e-15)


@given(connected_graphs())
def test_best_constant_is_best_or_refused_for_a_reason(graph):
    if len(graph) == 1:
        assert from_graph(graph, weights=best_constant).rho == 0
        return
    L = laplacian(graph)
    values = np.linalg.eigvalsh(L)
    best = 2 / (values[1] + values[-1])
    if (1 - best * L.diagonal()).min() < -1e-12:
        with pytest.raises(ValueError, match=r"negative self weight.*metropolis"):
            from_graph(graph, weights=best_constant)
        return
    network = from_graph(graph, weights=best_constant)
    laws(network)
    np.testing.assert_allclose(network.W.toarray(), np.eye(len(L)) - best * L, atol=1e-13)
    scan = np.linspace(0, 2 / values[-1], 400)
    rates = np.abs(1 - np.outer(scan, values[1:])).max(axis=1)
    assert network.rho <= rates.min() + 1e-12


@pytest.mark.parametrize("weights", CLOSED)
def test_weights_look_at_neither_self_loops_nor_attributes(weights):
    graph = nx.cycle_graph(5)
    plain = weights(graph).toarray()
    graph.add_edges_from([(1, 1), (3, 3)])
    nx.set_edge_attributes(graph, 7.0, "weight")
    np.testing.assert_array_equal(weights(graph).toarray(), plain)


def test_weights_of_a_user_may_be_dense():
    network = from_graph(nx.complete_graph(3), weights=lambda graph: np.full((len(graph),) * 2, 1 / len(graph)))
    laws(network)
    assert network.describe()["graph"]["edges"] == 3


def test_constant_as_weights():
    network = path(5, weights=partial(constant, weight=0.25))
    np.testing.assert_allclose(network.W.diagonal(), [0.75, 0.5, 0.5, 0.5, 0.75])
    json.dumps(network.describe())


# Large sparse networks ----------------------------------------------------------------------------------------


def relative_gap(network, expected):
    return (1 - network.rho) / expected - 1


@pytest.fixture
def no_dense_route(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a dense matrix was formed")

    monkeypatch.setattr(np.linalg, "eigvalsh", refuse)
    monkeypatch.setattr(sp.csr_array, "toarray", refuse)


@pytest.mark.usefixtures("no_dense_route")
@pytest.mark.parametrize("n", [513, 3000, 4096])
def test_large_rings_and_paths(n):
    gap = 2 / 3 * (1 - np.cos(2 * np.pi / n))
    assert abs(relative_gap(ring(n), gap)) < 1e-8
    gap = 2 / 3 * (1 - np.cos(np.pi / n))
    assert abs(relative_gap(path(n), gap)) < 1e-8


@pytest.mark.usefixtures("no_dense_route")
def test_large_graphs_with_closed_forms():
    assert abs(relative_gap(torus(32, 32), 2 / 5 * (1 - np.cos(2 * np.pi / 32)))) < 1e-10
    assert abs(relative_gap(star(1000), 1 / 1000)) < 1e-10
    assert abs(relative_gap(hypercube(10), 2 / 11)) < 1e-12


@pytest.mark.usefixtures("no_dense_route")
def test_large_and_decided_by_the_smallest_eigenvalue():
    n = 3001  # odd, so not bipartite, but nearly: λ_n = −cos(π/n)
    W = nx.to_scipy_sparse_array(nx.cycle_graph(n), dtype=float) / 2
    assert abs(relative_gap(from_matrix(W), 1 - np.cos(np.pi / n))) < 1e-8


def test_one_large_self_weight_does_not_hide_the_smallest_eigenvalue(monkeypatch):
    """K_{60,60} without half the edges of agent 0, who alone keeps half its value: ρ = −λ_n, and λ₂ is far below."""
    monkeypatch.setattr(spectrum, "DENSE_LIMIT", 100)
    graph = nx.complete_bipartite_graph(60, 60)
    graph.remove_edges_from([(0, j) for j in range(60, 90)])
    network = from_graph(graph)
    assert network.n > spectrum.DENSE_LIMIT
    values = np.linalg.eigvalsh(network.W.toarray())
    assert values[-2] < 0.52 < 0.95 < -values[0]
    assert network.rho == pytest.approx(-values[0], abs=1e-12)


@pytest.mark.usefixtures("no_dense_route")
@pytest.mark.parametrize("n", [600, 601])
def test_best_constant_on_large_graphs(n):
    values = 4 * np.sin(np.pi * np.arange(1, n) / n) ** 2
    gap = 2 * values.min() / (values.min() + values.max())
    assert abs(relative_gap(from_graph(nx.cycle_graph(n), weights=best_constant), gap)) < 1e-6
    line = path(n, weights=best_constant)
    assert abs(relative_gap(line, 1 - np.cos(np.pi / n))) < 1e-6
    assert np.count_nonzero(line.W.diagonal()) == 2


@pytest.mark.parametrize(
    "build", [partial(regular, 520, 3), partial(erdos_renyi, 520, 0.03), partial(grid, 20, 26), partial(ladder, 260)],
    ids=lambda build: build.func.__name__,
)  # fmt: skip
def test_sparse_route_agrees_with_lapack(build):
    network = build()
    assert network.n > spectrum.DENSE_LIMIT
    values = np.linalg.eigvalsh(network.W.toarray())
    assert network.rho == pytest.approx(max(-values[0], values[-2]), abs=1e-13)


def test_rho_needs_memory_for_a_few_vectors_only():
    n = 3000
    for network in (ring(n), regular(n, 3)):
        tracemalloc.start()
        assert network.rho < 1
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < n * n * 8 / 20


@pytest.mark.parametrize("n", [1, 2, 5, 8, 1001, 1500])
def test_smallest_eigenvalue_of_rings(n):
    """Up to 512 agents by LAPACK, beyond by Lanczos; 1/3 + 2/3 cos(2πj/n) for the ring's weights."""
    expected = min(1 / 3 + 2 / 3 * np.cos(2 * np.pi * j / n) for j in range(n))
    assert ring(n).smallest_eigenvalue == pytest.approx(expected if n > 2 else {1: 1, 2: 1 / 3}[n], abs=1e-9)


def test_rho_is_deterministic():
    for build in (partial(ring, 700), partial(regular, 700, 3)):
        assert build().rho == build().rho


# Refusals -----------------------------------------------------------------------------------------------------

TWO_PAIRS = np.kron(np.eye(2), np.full((2, 2), 0.5))


@pytest.mark.parametrize(
    ("W", "words"),
    [
        (np.ones((2, 3)) / 3, ["square", "(2, 3)"]),
        (np.ones(4), ["square", "(4,)"]),
        (np.empty((0, 0)), ["square", "(0, 0)"]),
        ([[0.5, np.nan], [0.5, 0.5]], ["finite", "agents 0 and 1", "nan"]),
        ([[0.5, 0.5], [0.5, np.inf]], ["finite", "self weight of agent 1", "inf"]),
        (
            [[0.4, 0.6, 0.0], [0.4, 0.3, 0.3], [0.1, 0.2, 0.7]],
            ["symmetric", "agent 0 takes 0.6 of agent 1", "agent 1 takes 0.4 of agent 0"],
        ),
        ([[0.5, 0.5, 0], [0.5, 0.25, 0.15], [0, 0.15, 0.85]], ["sum to one", "row 1", "sums to 0.9", "self weight"]),
        ([[1.5, -0.5], [-0.5, 1.5]], ["negative", "weight between agents 0 and 1 is -0.5"]),
        (
            [[0.5, 0.5, 0], [0.5, -0.25, 0.75], [0, 0.75, 0.25]],
            ["negative", "self weight of agent 1 is -0.25", "metropolis"],
        ),
        (TWO_PAIRS, ["not connected", "2 parts", "agent 0 to agent 2", "add edges"]),
        (np.eye(3), ["not connected", "3 parts", "agent 0 to agent 1"]),
        ([[0, 1], [1, 0]], ["ρ = 1", "bipartite", "self weight", "(I + W)/2"]),
        (nx.to_numpy_array(nx.cycle_graph(6)) / 2, ["ρ = 1", "bipartite", "self weight", "(I + W)/2"]),
    ],
)
@pytest.mark.parametrize("kind", [np.array, sp.csr_array, sp.coo_matrix])
def test_refused_matrices(W, words, kind):
    if np.ndim(W) != 2:
        kind = np.array  # sparse ones may make two dimensions of it
    with pytest.raises(ValueError, match="from_matrix: ") as refusal:
        from_matrix(kind(W))
    for word in words:
        assert word in str(refusal.value)


def test_a_network_cannot_be_made_from_an_unchecked_matrix():
    with pytest.raises(ValueError, match="not connected"):
        Network(sp.csr_array(TWO_PAIRS), "two pairs", {})


@pytest.mark.parametrize("n", [4, 5])
def test_the_matrix_of_a_changing_network_is_the_mean_of_its_rounds(n):
    """Messages go along the edges of W: those of a round that W lacks would be lost, and means with them."""
    with pytest.raises(ValueError, match="W must be the mean of the matrices of all rounds"):
        Network(ring(4).W, "mine", {}, rounds=(star(n).W, complete(n).W))


def test_rho_below_one_is_recognised_without_self_weights():
    odd = from_matrix(nx.to_numpy_array(nx.cycle_graph(5)) / 2)
    assert odd.rho == pytest.approx(np.cos(np.pi / 5))
    lazy = from_matrix((np.eye(6) + nx.to_numpy_array(nx.cycle_graph(6)) / 2) / 2)
    assert lazy.rho == pytest.approx(0.75)
    one_self_weight = from_matrix([[0, 1 / 2, 1 / 2], [1 / 2, 1 / 2, 0], [1 / 2, 0, 1 / 2]])
    laws(one_self_weight)


def test_rounding_is_forgiven_and_removed():
    W = np.full((3, 3), 1 / 3)
    W[0, 1] += 1e-11
    W[2, 2] -= 1e-11
    given = W.copy()
    network = from_matrix(W)
    assert (network.W != network.W.T).nnz == 0
    np.testing.assert_array_equal(W, given)
    tiny = from_matrix([[0.5, 0.5, 0], [0.5, -1e-17, 0.5], [0, 0.5, 0.5]])
    assert tiny.W.nnz == 6
    swap = [[1e-13, 1 - 1e-13], [1 - 1e-13, 1e-13]]
    with pytest.raises(ValueError, match="bipartite"):
        from_matrix(swap)


LESS = [np.float32, np.float16, torch.float32, torch.float16]


def in_precision(W, dtype):
    return torch.from_numpy(W).to(dtype) if isinstance(dtype, torch.dtype) else W.astype(dtype)


@pytest.mark.parametrize("network", EXAMPLES, ids=lambda network: network.label)
def test_a_matrix_is_judged_by_its_own_precision_and_then_corrected(network):
    W = network.W.toarray()
    for dtype in LESS if network in EXAMPLES[::8] else LESS[:2]:  # tensors become arrays of NumPy
        found = from_matrix(in_precision(W, dtype))
        laws(found)
        np.testing.assert_allclose(found.W.toarray(), W, rtol=0, atol=1e-7 if "32" in str(dtype) else 1e-3)


def test_weights_of_a_third_in_single_precision_are_a_mixing_matrix():
    laws(from_matrix(torch.full((3, 3), 1 / 3)))
    laws(from_matrix(np.full((3, 3), np.float32(1 / 3))))
    laws(from_matrix(sp.csr_array(np.full((3, 3), 1 / 3, dtype=np.float32))))


@given(n=st.integers(3, 30), alone=st.booleans(), dtype=st.sampled_from(LESS[:2]), seed=st.integers(0, 2**32 - 1))
def test_any_mixing_matrix_survives_less_precision(n, alone, dtype, seed):
    """Also without self weights, where rounding may make the weights of an agent exceed one."""
    W = np.triu(np.random.default_rng(seed).uniform(1, 2, (n, n)) if alone else np.ones((n, n)), 1)
    W += W.T
    W /= W.sum(axis=1).max()
    laws(from_matrix((W + np.diag(1 - W.sum(axis=1))).astype(dtype)))


def test_what_is_more_than_rounding_is_refused_in_any_precision():
    for dtype, off in ((np.float32, 1e-5), (np.float16, 0.02)):
        W = np.full((3, 3), 1 / 3, dtype=dtype)
        W[1, 1] += dtype(off)
        with pytest.raises(ValueError, match="row 1, the weights of agent 1, sums to"):
            from_matrix(W)
        W[1, 1] -= dtype(off)
        W[0, 1] += dtype(off)
        with pytest.raises(ValueError, match="W must be symmetric"):
            from_matrix(W)
    bipartite = nx.to_numpy_array(nx.complete_bipartite_graph(3, 3)) / 3
    for dtype in LESS:
        with pytest.raises(ValueError, match="bipartite"):
            from_matrix(in_precision(bipartite, dtype))
    with pytest.raises(TypeError, match="from_matrix: W must hold real numbers; got complex ones"):
        from_matrix(np.full((2, 2), 0.5 + 0j))


def test_the_given_matrix_is_copied():
    given = sp.csr_array(np.full((2, 2), 0.5))
    network = from_matrix(given)
    given.data[:] = 7
    np.testing.assert_array_equal(network.W.data, 0.5)


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (partial(ring, 0), ValueError, ["ring: agents must be a whole number of at least 1; got 0"]),
        (partial(ring, 2.5), TypeError, ["ring: agents must be a whole number; got 2.5"]),
        (ring, TypeError, ["ring: ", "agents"]),
        (partial(path, -1), ValueError, ["path: agents"]),
        (partial(star, 0), ValueError, ["star: agents"]),
        (partial(complete, 0), ValueError, ["complete: agents"]),
        (partial(exponential, 0), ValueError, ["exponential: agents"]),
        (partial(grid, 3, 0), ValueError, ["grid: columns"]),
        (partial(torus, 0, 3), ValueError, ["torus: rows"]),
        (partial(ladder, 0), ValueError, ["ladder: rungs"]),
        (partial(hypercube, -1), ValueError, ["hypercube: dimension must be a whole number from 0 to 20; got -1"]),
        (partial(path, 4, weights="metropolis"), TypeError, ["weights must be a function", "'metropolis'"]),
        (partial(star, 8, weights=best_constant), ValueError, ["agent 0", "-0.5", "not fit", "metropolis"]),
        (partial(path, 4, weights=partial(constant, weight=0)), ValueError, ["positive", "got 0"]),
        (partial(erdos_renyi, 5, 1.5), ValueError, ["probability", "1.5"]),
        (partial(erdos_renyi, 5, "half"), TypeError, ["probability must be a number", "'half'"]),
        (partial(erdos_renyi, 0, 0.5), ValueError, ["erdos_renyi: agents"]),
        (
            partial(erdos_renyi, 20, 0.02, seed=5),
            ValueError,
            ["seed=5", "not connected", "another seed", "larger probability", "log(n)/n is 0.15"],
        ),
        (partial(regular, 5, 3), ValueError, ["no graph of 5 agents with 3 neighbours", "even"]),
        (partial(regular, 4, 4), ValueError, ["degree must be less than agents"]),
        (partial(regular, 4, -1), ValueError, ["regular: degree"]),
        (partial(regular, 6, 1), ValueError, ["not connected", "3 parts", "larger degree"]),
        (partial(from_graph, nx.DiGraph([(0, 1)])), ValueError, ["directed", "to_undirected"]),
        (partial(from_graph, nx.MultiGraph([(0, 1)])), ValueError, ["multigraph", "networkx.Graph(graph)"]),
        (partial(networks.metropolis, nx.MultiGraph([(0, 1), (0, 1)])), ValueError, ["multigraph"]),
        (partial(networks.constant, nx.DiGraph([(0, 1)]), 0.1), ValueError, ["directed"]),
        (partial(networks.from_links, []), ValueError, ["from_links: graph is empty"]),
        (partial(from_graph, nx.Graph()), ValueError, ["empty"]),
        (partial(from_graph, np.eye(2)), TypeError, ["networkx.Graph", "ndarray"]),
        (partial(from_graph, nx.Graph([(0, 1), (2, 3)])), ValueError, ["not connected", "agent 0 to agent 2"]),
        (partial(from_graph, nx.empty_graph(3), best_constant), ValueError, ["not connected", "3 parts"]),
        (partial(ring(4).neighbours, 4), ValueError, ["no agent 4", "from 0 to 3"]),
    ],
)
def test_refused_arguments(build, error, words):
    with pytest.raises(error) as refusal:
        build()
    for word in words:
        assert word in str(refusal.value)


# Graphs of others, recipes and names --------------------------------------------------------------------------


def test_from_graph_numbers_agents_in_sorted_order():
    network = from_graph(nx.Graph([("c", "a"), ("b", "c"), ("b", "d"), ("d", "d")]))
    assert network.edges.tolist() == [[0, 2], [1, 2], [1, 3]]
    laws(network)
    unsortable = from_graph(nx.Graph([("b", 1), (1, (0, 0))]))
    assert unsortable.edges.tolist() == [[0, 1], [1, 2]]
    weighted = nx.Graph([(0, 1, {"weight": 5.0})])
    np.testing.assert_array_equal(from_graph(weighted).W.toarray(), np.full((2, 2), 0.5))


@pytest.mark.parametrize(
    "network",
    [network for network in EXAMPLES if not network.label.startswith("from_")],
    ids=lambda network: network.label,
)
def test_recipes_make_the_same_network(network):
    recipe = json.loads(json.dumps(network.describe()))
    builders = {build.__name__: build for build in ALL}
    name = recipe.pop("name")
    if "weights" in recipe:
        recipe["weights"] = {weights.__name__: weights for weights in WEIGHTINGS}[recipe["weights"]]
    again = builders[name](**recipe)
    assert again.label == network.label
    assert again.describe() == network.describe()
    assert (again.W != network.W).nnz == 0


def test_recipes_of_graphs_and_matrices_are_fingerprints():
    graph = nx.cycle_graph(4)
    recipe = from_graph(graph, weights=max_degree).describe()
    assert recipe["name"] == "from_graph"
    assert recipe["weights"] == "max_degree"
    mark = recipe["graph"]
    assert (mark["agents"], mark["edges"], len(mark["sha256"])) == (4, 4, 64)
    W = ring(4).W
    marks = {from_matrix(form).describe()["W"]["sha256"] for form in (W, W.toarray(), sp.coo_matrix(W), W.tocsc())}
    assert len(marks) == 1
    for other in (path(4).W, (np.eye(4) + W) / 2):
        assert from_matrix(other).describe()["W"]["sha256"] not in marks
    alone = from_matrix(path(6, weights=best_constant).W)  # four of them give themselves no weight
    assert (alone.describe()["W"]["edges"], alone.label) == (5, "from_matrix(6 agents, 5 edges)")


def test_numbers_of_other_libraries_become_plain():
    network = erdos_renyi(np.int64(6), np.float32(0.75), seed=np.int32(1))
    assert json.loads(json.dumps(network.describe())) == {
        "name": "erdos_renyi",
        "agents": 6,
        "probability": 0.75,
        "seed": 1,
        "weights": "metropolis",
    }


def test_seeds_matter_and_repeat():
    for build in (partial(erdos_renyi, 30, 0.3), partial(regular, 30, 3)):
        assert build(seed=1).edges.tolist() == build(seed=1).edges.tolist()
        assert build(seed=1).edges.tolist() != build(seed=2).edges.tolist()


def test_labels_and_repr():
    assert repr(ring(20)) == "ring(20): 20 agents, 20 edges, rho=0.9674"
    assert repr(path(1)) == "path(1): 1 agent, 0 edges, rho=0.0000"
    assert repr(ring(1000)) == "ring(1000): 1000 agents, 1000 edges, rho=1-1.32e-05"
    assert path(8, weights=best_constant).label == "path(8, weights=best_constant)"
    assert erdos_renyi(20, 0.3, seed=3).label == "erdos_renyi(20, 0.3, seed=3)"
    assert from_matrix(ring(5).W).label == "from_matrix(5 agents, 5 edges)"


def test_signatures_can_be_read():
    for build in (*ALL, from_graph, from_matrix):
        hints = typing.get_type_hints(build)
        parameters = inspect.signature(build).parameters
        assert hints.pop("return") is Network
        assert inspect.signature(build).return_annotation is Network
        assert hints == {name: parameter.annotation for name, parameter in parameters.items()}
        assert build.__doc__
        assert getattr(networks, build.__name__) is build
    for build in ALL:
        accepted = {int, float, Weights, Network, str | Path, Weights | None, Sequence[Sequence[str]]}
        assert set(typing.get_type_hints(build).values()) <= accepted
    assert metropolis in WEIGHTINGS


def test_networks_are_final_values():
    network = ring(4)
    with pytest.raises(AttributeError):
        network.label = "other"
    assert network != ring(4)
    copy = pickle.loads(pickle.dumps(network))
    assert (copy.W != network.W).nnz == 0
    assert copy.rho == network.rho


def test_the_room_knows_nothing_of_torch():
    for file in Path(networks.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert "torch" not in {name.split(".")[0] for name in names}
