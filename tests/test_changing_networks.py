"""Networks whose graph changes from round to round."""

import math

import hypothesis.strategies as st
import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given

import proxdasa
from proxdasa import networks, problems, regularizers
from proxdasa.conditions import LinkLoss, Outages
from proxdasa.configs import network_expressions
from proxdasa.engines import Simulator, Task
from tests.setups import METHODS, N, in_threads, light, setup

GRAPHS = {
    "hypercube": networks.one_peer_hypercube(8),
    "matchings": networks.random_matchings(nx.cycle_graph(8), rounds=12, seed=1),
    "base": networks.base_graph(8, k=2),
    "alternating": networks.alternating([networks.ring(8), networks.star(8), networks.path(8)]),
}
assert N == 8


def simulator(network, rounds=1, conditions=()):
    problem = problems.Quadratic(torch.eye(3).double().expand(network.n, 3, 3), torch.zeros(network.n, 3).double())
    return Simulator(Task(problem, network, regularizers.Zero(), proxdasa.Gossip(rounds), 1, 0, conditions))


@pytest.mark.parametrize("name", GRAPHS)
def test_every_round_has_its_own_matrix(name):
    network = GRAPHS[name]
    engine, x = simulator(network), torch.randn(1, 8, 3, dtype=torch.float64)
    expected = x[0].numpy()
    for r in range(30):
        W = network.rounds[r % len(network.rounds)]
        expected = W @ expected
        x = engine.mix(x)
        np.testing.assert_allclose(x[0].numpy(), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(network.W.toarray(), np.mean([W.toarray() for W in network.rounds], axis=0))


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_the_hypercube_reaches_the_mean_in_log_n_rounds_with_one_peer_each(n):
    network = networks.one_peer_hypercube(n)
    assert network.rho == 0
    assert all((np.diff(W.indptr) == 2).all() for W in network.rounds)
    x = torch.randn(1, n, 3, dtype=torch.float64)
    mixed = simulator(network, rounds=n.bit_length() - 1).mix(x)
    torch.testing.assert_close(mixed, x.mean(dim=1, keepdim=True).expand_as(x))


@given(st.integers(1, 40), st.integers(1, 4))
def test_base_graphs_reach_the_mean_with_at_most_k_neighbours(n, k):
    network = networks.base_graph(n, k)
    product = np.eye(n)
    for matrix in network.rounds or (network.W,):
        W = matrix.toarray()
        np.testing.assert_array_equal(W, W.T)
        np.testing.assert_allclose(W.sum(axis=0), 1, rtol=0, atol=1e-14)
        assert W.min() >= 0
        assert np.count_nonzero(W - np.diag(W.diagonal()), axis=1).max() <= k
        product = W @ product
    np.testing.assert_allclose(product, 1 / n, rtol=0, atol=1e-12)
    assert network.rho == 0
    assert len(network.rounds) <= 2 * math.log(n, k + 1) + 2 + 1e-9


@pytest.mark.parametrize(
    ("n", "k", "rounds"),
    [
        (2, 1, 1), (8, 1, 3), (16, 3, 2), (12, 3, 2), (5, 4, 1), (5, 9, 1),  # products of factors up to k + 1
        (3, 1, 3),  # 2 + 1: the pair's mean; the third exchanges; the pair's mean
        (5, 1, 5),  # 4 + 1: two rounds, an exchange, two rounds
        (6, 1, 4),  # twice 3, and then pairs; 4 + 2 would take five
        (7, 1, 5),  # 4 + 2 + 1: two rounds, an exchange of four, and two rounds, in which 2 and 1 exchange too
        (12, 1, 5),  # four times 3, and then 4
        (7, 2, 4),  # 2·3 + 1: 6 = 2·3 takes two, an exchange, and one for the threes
        (25, 2, 6),  # 2·9 + 2·3 + 1: 18 = 2·3·3 takes three, an exchange, and two for the nines
        (25, 1, 9),  # 16 + 8 + 1: four rounds, an exchange, four rounds
    ],
)  # fmt: skip
def test_the_number_of_rounds_of_base_graphs(n, k, rounds):
    assert (len(networks.base_graph(n, k).rounds) or 1) == rounds


def test_a_graph_with_a_single_round_does_not_change():
    network = networks.base_graph(5, k=4)
    assert network.rounds == ()
    np.testing.assert_allclose(network.W.toarray(), 0.2)
    assert networks.alternating([networks.ring(5)]).rounds == ()


def test_with_one_neighbour_and_a_power_of_two_the_base_graph_is_the_hypercube():
    for one, other in zip(networks.base_graph(16).rounds, networks.one_peer_hypercube(16).rounds, strict=True):
        np.testing.assert_array_equal(one.toarray(), other.toarray())


def test_a_base_graph_in_a_file_and_as_an_expression():
    written = network_expressions.graph("base_graph(7, k=2)")
    assert written.recipe == networks.base_graph(7, 2).recipe == {"name": "base_graph", "agents": 7, "k": 2}
    assert network_expressions.graph("base_graph", 5).n == 5


@pytest.mark.parametrize("name", GRAPHS)
def test_rho_is_that_of_the_product(name):
    network = GRAPHS[name]
    product = np.eye(8)
    for W in network.rounds:
        product = W @ product
    norm = np.linalg.norm(product - np.full((8, 8), 1 / 8), 2)
    assert network.rho ** len(network.rounds) == pytest.approx(norm, abs=1e-12)


def test_rho_of_large_networks_agrees_with_the_dense_one(monkeypatch):
    network = networks.random_matchings(nx.cycle_graph(60), rounds=8)
    dense = network.rho
    monkeypatch.setattr(networks.spectrum, "DENSE_LIMIT", 10)
    assert networks.spectrum.rho_of_rounds(network.rounds) == pytest.approx(dense, rel=1e-6)
    assert networks.spectrum.rho_of_rounds(networks.one_peer_hypercube(64).rounds) == 0


@pytest.mark.parametrize(
    ("method", "name", "size"),
    [
        *(("prox-dasa-gt", name, size) for name, size in zip(GRAPHS, (2, 4, 2, 3), strict=True)),
        *((method, "matchings", 2) for method in METHODS if method != "prox-dasa-gt"),
        *(
            pytest.param(method, "matchings", 3, marks=pytest.mark.slow)
            for method in METHODS
            if method != "prox-dasa-gt"
        ),
        *(
            pytest.param("prox-dasa-gt", name, size, marks=pytest.mark.slow)
            for name, size in zip(GRAPHS, (4, 2, 4, 4), strict=True)
        ),
    ],
)
def test_the_same_bits_in_any_number_of_processes(method, name, size):
    chosen = [LinkLoss(0.2), Outages(9, 3)] if method == "prox-dasa-gt" else ()
    base = light(method, mixing=proxdasa.Gossip(2), iterations=7, observe_every=7, metrics=())
    made = proxdasa.runs.setup.Setup(
        base.algorithm, base.problem, GRAPHS[name], **{k: v for k, v in base.settings().items()
        if k not in ("algorithm", "problem", "network", "_")} | {"conditions": chosen},
    )  # fmt: skip
    alone = made.run().x
    first, *_ = in_threads(size, lambda transport: made.run(processes=transport))
    assert torch.equal(first.x, alone)


def test_links_that_a_round_does_not_have_carry_nothing():
    d, K, network = 5, 6, networks.one_peer_hypercube(4)
    problem = problems.Quadratic(torch.eye(d).expand(4, d, d).double(), torch.ones(4, d).double())
    made = proxdasa.runs.setup.Setup(proxdasa.DPSGD(0.1), problem, network, iterations=K)
    first, *_ = in_threads(4, lambda transport: made.run(processes=transport))
    rows, headers = K * d, 2 * K * 2  # one row in each round; two neighbours in all get a header of two numbers
    assert first.records[-1]["wire_bytes"] == 8 * (rows + headers)
    assert first.records[-1]["bytes"] == 8 * rows


def test_gradient_tracking_converges_on_matchings():
    b = torch.arange(16.0, dtype=torch.float64).view(8, 2)
    problem = problems.Quadratic(torch.eye(2).double().expand(8, 2, 2), b)
    result = proxdasa.run(
        proxdasa.ProxDASAGT(0.3, 0.3), problem, GRAPHS["matchings"], iterations=1_200, observe_every=1_200
    )
    assert (result.x - b.mean(dim=0)).abs().max() < 1e-9


def test_it_is_described_by_its_matrices():
    one, other = (
        networks.alternating([networks.ring(4), networks.star(4)]),
        networks.alternating([networks.star(4), networks.ring(4)]),
    )
    assert one.recipe != other.recipe, "the order matters"
    assert networks.one_peer_hypercube(4).recipe == {"name": "one_peer_hypercube", "agents": 4}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: networks.one_peer_hypercube(6), "agents must be a power of two"),
        (lambda: networks.base_graph(0), "base_graph: agents must be a whole number of at least 1; got 0"),
        (lambda: networks.base_graph(4, k=0), "base_graph: k must be a whole number of at least 1; got 0"),
        (lambda: networks.base_graph(4, k=1.5), "k must be a whole number"),
        (lambda: networks.alternating([networks.ring(4), networks.ring(5)]), "networks of one size"),
        (lambda: networks.random_matchings(nx.path_graph(["a", "b"])), "nodes 0, …, n−1"),
        (lambda: networks.alternating([networks.ring(8), networks.one_peer_hypercube(8)]),
         r"must not change themselves, but one_peer_hypercube\(8\) has"),
        (lambda: networks.random_matchings(nx.empty_graph(3)), "random_matchings: the graph is not connected"),
        (lambda: networks.random_matchings(nx.MultiGraph([(0, 1)])), "graph is a multigraph"),
        (lambda: networks.random_matchings(nx.DiGraph([(0, 1)])), "graph is directed"),
        (lambda: proxdasa.plan(networks.one_peer_hypercube(4), mixing=proxdasa.Chebyshev(3)),
         "is a polynomial of one W, but one_peer_hypercube"),
        (lambda: proxdasa.run(proxdasa.D2(0.1), setup("prox-dasa").problem, GRAPHS["hypercube"]),
         "has a different matrix in each round"),
        (lambda: proxdasa.run(proxdasa.ProxDASA(0.1, 0.1), setup("prox-dasa").problem, GRAPHS["hypercube"],
                              mixing=proxdasa.Chebyshev(3)), "is a polynomial of one W"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises((ValueError, TypeError), match=said):
        make()


def test_matchings_of_one_agent_are_a_network_of_one():
    assert networks.random_matchings(nx.empty_graph(1)).n == 1
