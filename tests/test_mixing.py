"""Mixing keeps means, contracts as the theory says, and is the paper's polynomial."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import random_array

from proxdasa import DPSGD, Chebyshev, Every, Gossip, networks
from proxdasa.engines import Simulator, Task
from proxdasa.engines.products import SparseProduct, dense_pays
from proxdasa.problems import Quadratic
from proxdasa.regularizers import Zero
from proxdasa.runs.setup import Setup
from tests import transcription

NETWORKS = {
    "ring": networks.ring(12),
    "path": networks.path(9),
    "star": networks.star(8),
    "complete": networks.complete(6),
    "paper": networks.paper(),
    "pair": networks.ring(2),
    "alone": networks.ring(1),
}
GRAPH = pytest.mark.parametrize("graph", NETWORKS)
ROUNDS = pytest.mark.parametrize("m", [1, 2, 3, 7, 40])


def disagreement(x):
    return float((x - x.mean(0, keepdim=True)).norm())


def mixed(mixing, network, x):
    W = torch.tensor(network.W.toarray())
    return mixing(lambda rows: W @ rows, x, network.rho)


def rows(n, seed=0, d=5):
    return torch.tensor(np.random.default_rng(seed).normal(size=(n, d)))


@GRAPH
@ROUNDS
@pytest.mark.parametrize("protocol", [Gossip, Chebyshev])
def test_means_survive(graph, m, protocol):
    network = NETWORKS[graph]
    x = rows(network.n)
    torch.testing.assert_close(mixed(protocol(m), network, x).mean(0), x.mean(0), rtol=0, atol=1e-12)


@GRAPH
@ROUNDS
def test_gossip_contracts_by_rho_to_the_m(graph, m):
    network = NETWORKS[graph]
    for seed in range(5):
        x = rows(network.n, seed)
        assert disagreement(mixed(Gossip(m), network, x)) <= network.rho**m * disagreement(x) + 1e-12


@GRAPH
@ROUNDS
def test_chebyshev_keeps_the_lemmas_bound_and_beats_gossip_in_the_worst_case(graph, m):
    """‖A_m − Ā_m‖ ≤ 2 (1 − √(1−ρ))^m ‖A₀ − Ā₀‖; the worst case is the polynomial's norm on the mean-free space."""
    network = NETWORKS[graph]
    for seed in range(5):
        x = rows(network.n, seed)
        bound = 2 * (1 - math.sqrt(1 - network.rho)) ** m * disagreement(x)
        assert disagreement(mixed(Chebyshev(m), network, x)) <= bound + 1e-12
    mean_free = torch.eye(network.n, dtype=torch.float64) - 1 / network.n
    worst = {
        protocol: float(torch.linalg.matrix_norm(mixed(protocol(m), network, mean_free), ord=2))
        for protocol in (Gossip, Chebyshev)
    }
    assert worst[Chebyshev] <= worst[Gossip] + 1e-12
    if m > 1 and network.rho**m > 1e-9:
        assert worst[Chebyshev] < worst[Gossip]


@pytest.mark.parametrize("graph", [name for name, network in NETWORKS.items() if network.rho > 0])
@pytest.mark.parametrize("m", [1, 2, 5, 9])
def test_chebyshev_is_the_papers_recursion(graph, m):
    network = NETWORKS[graph]
    x = rows(network.n)
    expected = transcription.chebyshev(network.W.toarray(), list(x.numpy()), m)
    np.testing.assert_allclose(mixed(Chebyshev(m), network, x).numpy(), np.array(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("graph", ["complete", "alone"])
@ROUNDS
def test_one_round_is_exact_where_rho_is_zero(graph, m):
    network = NETWORKS[graph]
    assert network.rho == 0.0
    x = rows(network.n)
    for protocol in (Gossip(m), Chebyshev(m)):
        torch.testing.assert_close(mixed(protocol, network, x), x.mean(0).expand_as(x), rtol=0, atol=1e-12)


def test_chebyshev_never_overflows():
    """μ_m passes the largest float long before m = 5,000; the ratios do not."""
    network = networks.ring(8)
    x = rows(8)
    out = mixed(Chebyshev(5_000), network, x)
    assert bool(torch.isfinite(out).all())
    torch.testing.assert_close(out, x.mean(0).expand_as(x), rtol=0, atol=1e-9)
    nearly_exact = Chebyshev(50)(lambda a: a.mean(0).expand_as(a), torch.ones(2, 1), 1e-300)
    assert bool(torch.isfinite(nearly_exact).all())


@given(rho=st.floats(0, 1 - 1e-12, exclude_max=True))
def test_automatic_rounds_are_the_papers_rules(rho):
    for m, wanted in (
        (Gossip("auto").rounds_for(rho), 1 / (1 - rho)),
        (Chebyshev("auto").rounds_for(rho), 1 / math.sqrt(1 - rho)),
    ):
        assert m >= max(1, wanted * (1 - 1e-6)), "enough rounds"
        assert m - 1 < wanted, "and not one too many"
    assert Gossip(4).rounds_for(rho) == Chebyshev(4).rounds_for(rho) == 4


def test_automatic_rounds_of_known_graphs():
    assert Gossip("auto").rounds_for(networks.complete(9).rho) == 1
    assert Gossip("auto").rounds_for(networks.ring(20).rho) == 31
    assert Chebyshev("auto").rounds_for(networks.ring(20).rho) == 6
    assert Gossip("auto").rounds_for(0.5) == 2  # not 3: 1/(1 − ρ) is a whole number


@pytest.mark.parametrize("rho", [2 / 3, np.nextafter(2 / 3, 1), networks.ring(6).rho, 2 / 3 + 1e-12])
def test_rounding_in_rho_costs_no_round(rho):
    """1/(1 − ρ) is 3 on a ring of six, up to what an eigenvalue in double precision is off by."""
    assert 1 / (1 - np.nextafter(2 / 3, 1)) > 3
    assert Gossip("auto").rounds_for(rho) == 3
    assert Chebyshev("auto").rounds_for(1 - (1 - rho) ** 2) == 3
    assert Gossip("auto").rounds_for(2 / 3 + 1e-6) == 4


@pytest.mark.parametrize("rounds", [0, -1, 1.5, True, "all"])
def test_refuses_bad_rounds(rounds):
    for protocol in (Gossip, Chebyshev):
        with pytest.raises(ValueError, match="rounds must be a whole number"):
            protocol(rounds)


@given(
    n=st.integers(1, 9),
    trials=st.integers(1, 3),
    d=st.integers(1, 6),
    probability=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_sparse_product_is_the_dense_product(n, trials, d, probability, seed):
    """Rows without a single entry included, as in the adjacency of one agent alone."""
    rng = np.random.default_rng(seed)
    matrix = random_array((n, n), density=probability, format="csr", rng=rng)
    matrix.sort_indices()
    x = torch.tensor(rng.normal(size=(trials, n, d)))
    expected = torch.tensor(matrix.toarray()) @ x
    torch.testing.assert_close(SparseProduct(matrix, torch.float64)(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixing", [Gossip(1), Gossip(6), Chebyshev(5)], ids=repr)
@pytest.mark.parametrize("n", [4, 200])
def test_simulator_mixes_dense_or_sparse_alike(mixing, n):
    network = networks.ring(n)
    assert dense_pays(network.W, mixing.rounds_for(network.rho)) == (n == 4)
    problem = Quadratic(torch.eye(3).double().expand(n, 3, 3), torch.zeros(n, 3).double())
    agents = Simulator(Task(problem, network, Zero(), mixing, trials=2, seed=0))
    x = torch.tensor(np.random.default_rng(0).normal(size=(2, n, 3)))
    for trial, got in enumerate(agents.mix(x)):
        torch.testing.assert_close(got, mixed(mixing, network, x[trial]), rtol=0, atol=1e-12)


def test_no_dense_matrix_for_many_agents():
    network = networks.ring(5000)
    assert not dense_pays(network.W, rounds=10**9)
    assert dense_pays(networks.complete(1100).W, rounds=1), "which has as many entries as a dense one"


def test_many_rounds_are_cheap_to_prepare():
    """ρ of a ring of 300 asks for 6,840 rounds; their polynomial is made from the eigenvalues."""
    network, mixing = networks.ring(300), Gossip("auto")
    assert mixing.rounds_for(network.rho) > 6_000
    problem = Quadratic(torch.eye(1).double().expand(300, 1, 1), torch.zeros(300, 1).double())
    x = torch.tensor(np.random.default_rng(0).normal(size=(1, 300, 1)))
    got = Simulator(Task(problem, network, Zero(), mixing, trials=1, seed=0)).mix(x)
    W = np.linalg.matrix_power(network.W.toarray(), mixing.rounds_for(network.rho))
    np.testing.assert_allclose(got[0].numpy(), W @ x[0].numpy(), rtol=0, atol=1e-11)


def test_neighbour_sum_uses_the_unweighted_graph():
    network = networks.star(5)
    problem = Quadratic(torch.eye(2).double().expand(5, 2, 2), torch.zeros(5, 2).double())
    agents = Simulator(Task(problem, network, Zero(), Gossip(1), trials=1, seed=0))
    x = torch.arange(10.0, dtype=torch.float64).reshape(1, 5, 2)
    expected = x[:, :1].expand(1, 5, 2).clone()
    expected[:, 0] = x[:, 1:].sum(1)
    assert torch.equal(agents.neighbour_sum(x), expected)
    assert torch.equal(agents.degrees, torch.tensor([[4.0], [1], [1], [1], [1]], dtype=torch.float64))
    assert agents.counts()["rounds"] == agents.counts()["vectors"] == 1
    agents.observe_neighbours(x)
    assert agents.counts()["rounds"] == 1


class Own(Gossip):
    """As somebody may write one; ``rule`` is what it computes."""

    def __init__(self, rule, rounds=1):
        object.__setattr__(self, "rounds", rounds)
        object.__setattr__(self, "rule", rule)

    def __call__(self, apply, x, rho):
        return self.rule(apply, x)


NOT_A_POLYNOMIAL = "mixing must be a polynomial in W"


@pytest.mark.parametrize(
    ("mixing", "words"),
    [
        (Own(lambda apply, x: x + (apply(x) - x).clamp(-0.1, 0.1)), NOT_A_POLYNOMIAL),
        (Own(lambda apply, x: apply(x).clamp(-1e6, 1e6)), NOT_A_POLYNOMIAL),
        (Own(lambda apply, x: apply(x) * torch.linspace(0.5, 1.5, x.shape[-2])[:, None].to(x)), NOT_A_POLYNOMIAL),
        (Own(lambda apply, x: apply(x)[..., :1]), NOT_A_POLYNOMIAL),
        (Own(lambda apply, x: 2 * apply(x)), "must preserve means, but .* turns rows that are all 1 into 2"),
        (Own(lambda apply, x: apply(apply(x))), "applies W 2 times, but rounds_for, .* gives 1"),
        (Own(lambda apply, x: apply(x), rounds=1.5), "a whole number of at most 100,000, but .* asks for 1.5"),
        (Every(2, Own(lambda apply, x: 2 * apply(x))), "must preserve means"),
    ],
)
@pytest.mark.parametrize("n", [4, 64])
def test_a_mixing_that_is_not_what_it_should_be_is_refused(n, mixing, words):
    """Whether or not the simulator would compute it as one product, which it does for few agents."""
    problem = Quadratic(torch.eye(2).expand(n, 2, 2), torch.ones(n, 2))
    with pytest.raises(ValueError, match=words):
        Setup(DPSGD(0.1), problem, networks.ring(n), mixing=mixing)


@pytest.mark.parametrize(
    "mixing", [Gossip("auto"), Chebyshev("auto"), Every(2, Gossip("auto")), Gossip(100_001)], ids=str
)
def test_rounds_without_an_end_are_refused(mixing):
    slow = networks.from_matrix([[1 - 1e-14, 1e-14], [1e-14, 1 - 1e-14]])
    problem = Quadratic(torch.eye(2).expand(2, 2, 2), torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"mixing: the rounds .* at most 100,000, but .* 1 − ρ is 2e-14"):
        Setup(DPSGD(0.1), problem, slow, mixing=mixing)


@pytest.mark.parametrize("given", [Gossip, 3, None])
def test_every_takes_a_mixing(given):
    with pytest.raises(ValueError, match=r"mixing must be a mixing, such as Gossip\(1\)"):
        Every(2, given)
