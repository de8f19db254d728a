"""Iterations that send nothing, by the choice of a mixing or of a method."""

import dataclasses

import pytest
import torch

import proxdasa
from proxdasa import networks, optim, problems
from proxdasa.conditions import LinkLoss
from proxdasa.runs.loop import Saving
from proxdasa.runs.setup import Setup
from tests.setups import METHODS, LocalSteps, digest, in_threads, light, run_until, setup

UNSEEN = {"observe_every": 100, "metrics": ()}


@pytest.mark.parametrize("name", METHODS)
def test_every_first_is_the_mixing_itself(name):
    plain = light(name, iterations=6, **UNSEEN)
    assert digest(dataclasses.replace(plain, mixing=proxdasa.Every(1, plain.mixing)).run().x) == digest(plain.run().x)


def test_what_it_does_is_transcribed():
    network, γ, K = networks.ring(5), 0.1, 17
    A = torch.diag_embed(torch.linspace(0.5, 1.5, 10, dtype=torch.float64).view(5, 2))
    b = torch.arange(10.0, dtype=torch.float64).view(5, 2)
    result = proxdasa.run(
        proxdasa.DPSGD(γ), problems.Quadratic(A, b), network, mixing=proxdasa.Every(4, proxdasa.Gossip(2)), iterations=K
    )
    W, x = torch.from_numpy(network.W.toarray()), torch.zeros(5, 2, dtype=torch.float64)
    method = proxdasa.DPSGD(γ)
    for k in range(K):
        g = torch.einsum("nij,nj->ni", A, x) - b

        class Agents:
            def grad(self, *_):
                return g  # noqa: B023

            def prox(self, x, _gamma):
                return x

            def mix(self, x):
                return W @ W @ x if k in (3, 7, 11, 15) else x  # noqa: B023

        (x,) = method.step(Agents(), k, method.State(x))
    torch.testing.assert_close(result.x[0], x)
    assert result.records[-1]["rounds"] == 4 * 2


def test_one_within_another_sends_where_both_do():
    one, both = (
        light("prox-dasa", mixing=mixing) for mixing in (proxdasa.Every(6), proxdasa.Every(2, proxdasa.Every(3)))
    )
    assert digest(dataclasses.replace(both, iterations=13).run().x) == digest(
        dataclasses.replace(one, iterations=13).run().x
    )


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 3 if name == "prox-dasa-gt" else 2) for name in METHODS),
        *(pytest.param(name, 2 if name == "prox-dasa-gt" else 3, marks=pytest.mark.slow) for name in METHODS),
    ],
)
def test_the_same_bits_in_any_number_of_processes(name, size):
    made = light(name, mixing=proxdasa.Every(3), conditions=[LinkLoss(0.2)], iterations=7, **UNSEEN)
    alone = made.run()
    first, *_ = in_threads(size, lambda transport: made.run(processes=transport))
    assert digest(first.x) == digest(alone.x)
    assert first.records[-1]["rounds"] == alone.records[-1]["rounds"]


@pytest.mark.parametrize(
    ("method", "mixing", "interval"),
    [
        (METHODS["prox-dasa"], proxdasa.Every(3), 3),
        (METHODS["sppdm"], proxdasa.Every(3), 3),
        (LocalSteps(local_steps=3), proxdasa.Gossip(1), 3),
        (LocalSteps(local_steps=4), proxdasa.Every(6, proxdasa.Gossip(2)), 12),
    ],
    ids=["Every", "SPPDM with Every", "local steps", "both"],
)
@pytest.mark.parametrize("asks", [0, 3])
def test_all_stop_before_the_same_iteration_though_most_send_nothing(method, mixing, interval, asks, tmp_path):
    """On a path of four processes a word takes three iterations that send from end to end."""
    problem = problems.Quadratic(torch.eye(2).expand(4, 2, 2), torch.arange(8.0).view(4, 2))
    K = 4 * interval
    made = Setup(method, problem, networks.path(4), mixing=mixing, iterations=K, exact=True, **UNSEEN)

    results = run_until(made, 4, 2, Saving(tmp_path), asks)
    sends = [k for k in range(2, K) if (k + 1) % interval == 0]
    assert {(result.stopped, result.iterations) for result in results} == {("interrupted", sends[2] + 1)}
    resumed, *_ = in_threads(2, lambda transport: made.run(None, Saving(tmp_path), transport))
    whole = made.run()
    assert digest(resumed.x) == digest(whole.x)
    rounds = mixing.rounds_for(made.network.rho) if method.facts.mixes else 1
    assert resumed.records[-1]["rounds"] == whole.records[-1]["rounds"] == 4 * rounds


@pytest.mark.parametrize("exact", [False, True])
def test_a_sum_over_neighbours_that_rests_is_one_of_an_agents_own_rows(exact):
    """As if every link were down."""
    made = setup("sppdm", mixing=proxdasa.Every(3), exact=exact)
    engine, x = made.engine(), torch.randn(2, 8, 5)
    engine.enter(0)
    torch.testing.assert_close(engine.neighbour_sum(x), torch.from_numpy(made.network.degrees).view(8, 1) * x)
    assert engine.counts()["rounds"] == 0
    engine.enter(2)
    torch.testing.assert_close(engine.neighbour_sum(x), engine.observe_neighbours(x))
    assert engine.counts()["rounds"] == 1


def test_d2_refuses_iterations_without_mixing():
    """With Every(p) it is stable if the eigenvalues of W lie above (p − 2)/(p + 2), which those of few networks do."""
    problem, network = problems.Quadratic(torch.eye(2).expand(5, 2, 2), torch.ones(5, 2)), networks.ring(5)
    proxdasa.run(proxdasa.D2(0.1), problem, network, mixing=proxdasa.Every(1), iterations=3)
    with pytest.raises(ValueError, match=r"D² needs .* in every iteration, and may diverge if some do not mix, as w"):
        proxdasa.run(proxdasa.D2(0.1), problem, network, mixing=proxdasa.Every(2), iterations=3)


def test_optimizers_refuse_it_and_networks_that_change():
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"Every\(.*\) sends nothing in some iterations"):
        optim.ProxDASA(model.parameters(), networks.ring(1), gamma=0.1, alpha=0.1, mixing=proxdasa.Every(2))
    with pytest.raises(ValueError, match="changes from round to round"):
        optim.ProxDASA(model.parameters(), networks.one_peer_hypercube(4), gamma=0.1, alpha=0.1)


def test_a_method_that_mixes_at_its_start_does_so_after_a_trial_step_too():
    """A run with checkpoints makes a first step to know itself, and then begins."""
    engine = setup("prox-dasa", mixing=proxdasa.Every(3)).engine()
    x = torch.randn(2, 8, 5)
    expected, counts = engine.mix(x), engine.counts()
    assert not torch.equal(expected, x)
    engine.enter(0)
    assert torch.equal(engine.mix(x), x), "iteration 0 rests"
    engine.restore(counts)
    assert torch.equal(engine.mix(x), expected)
