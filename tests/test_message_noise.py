"""Messages that arrive with noise."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.special import ndtr

import proxdasa
from proxdasa import networks, problems
from proxdasa.conditions import LinkLoss, MessageNoise, Outages, Weather, normal_sums
from proxdasa.conditions.events import Draws
from proxdasa.engines import sum_noise
from proxdasa.engines.varying_products import VaryingProduct
from proxdasa.runs.footprint import noise_rows
from proxdasa.runs.loop import Saving
from tests.setups import in_threads, light

BAD = [LinkLoss(0.3), MessageNoise(0.5), Outages(8, 4), MessageNoise(0.1)]
SHORT = {"iterations": 7, "observe_every": 7, "metrics": ()}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("network", [networks.star(6), networks.ring(40), networks.base_graph(6)], ids=str)
def test_each_message_that_arrives_has_noise_of_its_own(network, exact):
    """Against the equation, with loops, for two tensors that travel together, in calm weather and in bad.

    The noise of a receiver's sum has the variance σ² Σ_j W_ij² over the messages that arrive.
    """
    n, d, trials, number = network.n, 3, 2, 7
    matrices = network.W, range(n), np.arange(n), network.edges, torch.float64, exact, network.rounds
    W = (network.rounds or (network.W,))[number % max(len(network.rounds), 1)].toarray()
    x = torch.randn(2, trials, n, d, dtype=torch.float64)
    for conditions in (BAD, [MessageNoise(0.5), MessageNoise(0.1)]):
        weather = Weather(conditions, network, trials, seed=4)
        weather.enter(3)
        noise = [weather.noise_of_sums(range(number, number + 1), i, range(n), d)[0].double() for i in range(2)]
        expected = torch.zeros_like(x)
        for t in range(trials):
            up = {
                tuple(edge)
                for edge, works in zip(network.edges.tolist(), weather.links(number)[t], strict=True)
                if works
            }
            for i in range(n):
                arrived = [j for j in range(n) if (min(i, j), max(i, j)) in up]
                expected[:, t, i] += W[i, i] * x[:, t, i]
                for j in set(np.flatnonzero(W[i]).tolist()) - {i}:
                    expected[:, t, i] += W[i, j] * (x[:, t, j] if j in arrived else x[:, t, i])
                for tensor in range(2):
                    expected[tensor, t, i] += noise[tensor][t, i] * sum(W[i, j] ** 2 for j in arrived) ** 0.5
        found = VaryingProduct(*matrices).in_weather(x.view(2 * trials, n, d), weather, number).view_as(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


LAYOUTS = {
    "one for all trials": lambda noise: noise[:1].expand(2, -1, -1),
    "one for all links": lambda noise: noise[:, :1].expand(-1, noise.shape[1], -1),
    "broadcast": lambda noise: noise[:1, :1],
    "transposed": lambda noise: noise.mT.contiguous().mT,
}


@dataclasses.dataclass(frozen=True)
class OwnNoise:
    """Noise that lies in memory as a user has made it."""

    lay: Callable[[torch.Tensor], torch.Tensor]
    concerns: ClassVar[str] = "messages"

    def begin(self, draws):
        return lambda number, links, width: self.lay(draws.normals(number, links, width).double())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_noise_of_ones_own_may_lie_in_memory_as_it_likes(layout, n, exact):
    """Against the sum over messages; dense, sparse and exact products take it in ways of their own."""
    network, trials, d, condition = networks.ring(n), 2, 3, OwnNoise(LAYOUTS[layout])
    weather = Weather([condition], network, trials, seed=4)
    W = VaryingProduct(network.W, range(n), np.arange(n), network.edges, torch.float64, exact)
    found = W.in_weather(torch.zeros(2 * trials, n, d, dtype=torch.float64), weather, 7).view(2, trials, n, d)
    events = condition.begin(Draws(4, 0, trials, 2 * n))
    noise = events(7, range(2 * n), 2 * d).broadcast_to(trials, 2 * n, 2 * d).view(trials, 2 * n, 2, d)
    expected, weights = torch.zeros_like(found), network.W.toarray()
    directed = sorted((int(i), int(j)) for a, b in network.edges for i, j in ((a, b), (b, a)))
    for place, (i, j) in enumerate(directed):
        expected[:, :, i] += weights[i, j] * noise[:, place].transpose(0, 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_noise_is_named_and_as_large_as_declared():
    weather = Weather([MessageNoise(0.4), MessageNoise(0.3)], networks.ring(50), trials=2, seed=1)
    noise = torch.stack([weather.noise_of_sums(range(10), tensor, range(50), 20) for tensor in range(2)])
    assert abs(noise.std() - 0.5) < 0.01, "variances add up"
    assert abs(noise.mean()) < 0.01
    assert torch.corrcoef(noise.flatten(3).flatten(0, 2)).fill_diagonal_(0).abs().max() < 0.2, "tensors, rounds, trials"
    assert torch.corrcoef(noise[0, 0, 0]).fill_diagonal_(0).abs().max() < 0.95, "each agent its own"
    for agents, number in ((range(7, 12), 4), (range(49, 50), 9)):
        some = weather.noise_of_sums(range(number, number + 1), 1, agents, 20)
        assert torch.equal(some[0], noise[1, number][:, agents.start : agents.stop]), "whoever asks"
    wider = weather.noise_of_sums(range(10), 0, range(50), 40)
    assert not torch.isin(wider[:5].flatten()[:1000], noise[0].flatten()[:1000]).float().mean() > 0.1
    other = Weather([MessageNoise(0.5)], networks.ring(50), trials=2, seed=2)
    assert not torch.equal(other.noise_of_sums(range(10), 0, range(50), 20), noise[0])


def test_noise_does_not_depend_on_how_many_numbers_are_made_at_once(monkeypatch):
    """Large rounds are made in pieces, small ones together with later ones."""
    made = light("prox-dasa-gt", conditions=[MessageNoise(0.1)], mixing=proxdasa.Gossip(1), exact=False, **SHORT)
    expected = made.run().x
    for few, at_once in ((0, 48), (2**9, 2**17)):
        monkeypatch.setattr(sum_noise, "FEW", few)
        monkeypatch.setattr(normal_sums, "AT_ONCE", at_once)
        torch.testing.assert_close(made.run().x, expected, rtol=1e-3, atol=1e-6)


def test_normals_of_sixteen_bits_are_normal():
    numbers = normal_sums.quantile_means().astype(float)
    assert np.array_equal(numbers, -numbers[::-1])
    assert (np.diff(numbers) >= 0).all()
    assert numbers.var() == pytest.approx(1, abs=1e-6)
    assert (numbers**4).mean() == pytest.approx(3, abs=2e-3)
    assert numbers.max() == pytest.approx(4.4, abs=0.1)
    middles = (np.arange(2**16) + 0.5) / 2**16
    assert abs(ndtr(numbers) - middles).max() < 2**-16, "each in its part of the distribution"


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("prox-dasa-gt", 3),
        ("sppdm", 2),
        pytest.param("prox-dasa-gt", 2, marks=pytest.mark.slow),
        pytest.param("sppdm", 3, marks=pytest.mark.slow),
    ],
)
def test_the_same_bits_in_any_number_of_processes_and_near_the_simulator(name, size):
    made = light(
        name, conditions=[MessageNoise(0.01), LinkLoss(0.2), Outages(9, 3)], mixing=proxdasa.Gossip(2), **SHORT
    )
    alone = made.run().x
    first, *_ = in_threads(size, lambda transport: made.run(processes=transport))
    assert torch.equal(first.x, alone)
    torch.testing.assert_close(dataclasses.replace(made, exact=False).run().x, alone, rtol=1e-3, atol=1e-5)
    assert not torch.equal(dataclasses.replace(made, conditions=made.conditions[1:]).run().x, alone)


def test_an_interrupted_run_hears_the_same_noise(tmp_path):
    made = light("prox-dasa", conditions=[MessageNoise(0.1)], mixing=proxdasa.Gossip(1), **SHORT)

    def interrupt(k, _iterations, _rows):
        if k == 4:
            raise KeyboardInterrupt

    assert made.run(interrupt, Saving(tmp_path)).iterations == 4
    assert torch.equal(made.run(None, Saving(tmp_path)).x, made.run().x)


def test_no_noise_is_the_perfect_run_bit_by_bit():
    perfect = light("prox-dasa-gt", mixing=proxdasa.Gossip(2), **SHORT)
    assert torch.equal(dataclasses.replace(perfect, conditions=[MessageNoise(0.0)]).run().x, perfect.run().x)


def test_a_tracker_never_forgets_noise_and_an_average_does():
    """Without gradients, the mean of u is the sum of all noise so far: its variance grows with every round."""
    n, d, σ, trials, network = 4, 10, 0.1, 150, networks.ring(4)
    nothing = problems.Quadratic(torch.zeros(n, d, d).double(), torch.zeros(n, d).double())
    settings = {"conditions": [MessageNoise(σ)], "trials": trials, "observe_every": 100, "metrics": ()}
    W = network.W.toarray()
    each_round = σ**2 * (W**2 - np.diag(np.diag(W) ** 2)).sum() / n**2
    for K in (25, 100):
        tracked = proxdasa.run(proxdasa.ProxDASAGT(0.1, 0.3), nothing, network, iterations=K, **settings)
        walked = tracked.state["u"].mean(dim=1).var()
        assert walked == pytest.approx(K * each_round, rel=0.12)
        averaged = proxdasa.run(proxdasa.ProxDASA(0.1, 0.3), nothing, network, iterations=K, **settings)
        assert averaged.state["z"].mean(dim=1).var() == pytest.approx(each_round / (1 - 0.7**2), rel=0.12)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="std must be a finite number of at least 0; got -1"):
        MessageNoise(-1)


def test_noise_needs_memory_for_each_agent_or_each_message():
    network = networks.ring(8)

    @dataclasses.dataclass(frozen=True)
    class Own:
        concerns: ClassVar[str] = "messages"

    assert noise_rows([LinkLoss(0.1)], network, 3) == 0
    assert noise_rows([MessageNoise(0.1), LinkLoss(0.1), MessageNoise(0.2)], network, 3) == 8
    assert noise_rows([MessageNoise(0.1), Own()], network, 3) == 3 * network.W.nnz
