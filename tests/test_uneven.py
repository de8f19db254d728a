"""Agents with unequal numbers of examples: batches larger than a site, and losses that weight agents or examples."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import proxdasa
from proxdasa import data, networks, schedules
from proxdasa.problems import Repeated, Supervised, squared_error
from proxdasa.runs.setup import Setup
from proxdasa.samples import Samples
from tests.setups import digest, in_threads

SIZES = [2, 7, 12]


def examples():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(sum(SIZES), 3)), rng.normal(size=sum(SIZES))
    return data.from_tensors(x.astype(np.float32), y.astype(np.float32))


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def problem(batch_size, **changes):
    settings = {"partition": data.Sizes(SIZES), "loss": squared_error, "dtype": torch.float64} | changes
    return Supervised(net, settings.pop("data", examples()), 3, batch_size=batch_size, **settings)


def gradient(p, x, rows):
    """The gradient of the mean squared error over some rows, by autograd on one network, and that loss."""
    module = p.module(x)
    held = p.examples
    loss = (module(held.x[rows].double())[:, 0] - held.y[rows].double()).square().mean()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()]), loss.detach()


# batches


class Centred(nn.Module):
    """A network that looks at its whole batch, in training only, and has no layer or buffer that would tell."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x - x.mean(0) if self.training else x)


def test_networks_that_look_at_a_batch_must_not_see_repeated_examples():
    settings = {"partition": data.Sizes(SIZES), "loss": squared_error}
    assert Supervised(Centred, examples(), 3, batch_size=2, **settings).path == "vmap"
    message = "at most 2, the number of examples of agent 0, because Centred computes the loss of an example from its"
    with pytest.raises(ValueError, match=message):
        Supervised(Centred, examples(), 3, batch_size=3, **settings)


@pytest.mark.parametrize("weights", ["agents", "examples"])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 7, 9, 12, 40])
def test_a_site_with_fewer_examples_takes_all_of_them(batch_size, weights):
    p = problem(batch_size, weights=weights)
    x = torch.randn(2, 3, p.dim, dtype=torch.float64)
    sample = Samples(p, 0, 2, range(3))(5)
    got = p.grad(x, sample)
    for trial in range(2):
        for agent, size in enumerate(SIZES):
            rows = sample[trial, agent][: min(batch_size, size)]
            assert len(set(rows.tolist())) == min(batch_size, size), "no example twice"
            assert set(rows.tolist()) <= set(p.parts[agent].tolist())
            expected, _ = gradient(p, x[trial, agent], rows)
            expected *= 1 if weights == "agents" else 3 * size / sum(SIZES)
            torch.testing.assert_close(got[trial, agent], expected, rtol=1e-12, atol=1e-12)
            if size <= batch_size:
                assert sorted(rows.tolist()) == p.parts[agent].tolist()


@pytest.mark.parametrize("weights", ["agents", "examples"])
def test_the_sample_gradient_is_unbiased(weights):
    p = problem(4, weights=weights)
    x = torch.randn(1, 3, p.dim, dtype=torch.float64)
    draw = Samples(p, 0, 400, range(3))
    means = [p.grad(x.expand(400, -1, -1), draw(k)).mean(0) for k in range(10)]
    exact = p.evaluate(x).grad[0]
    spread = (torch.stack(means).std(0) / len(means) ** 0.5).clamp(min=1e-12)
    assert bool(((torch.stack(means).mean(0) - exact).abs() < 6 * spread).all())
    torch.testing.assert_close(means[0][0], exact[0])  # all of two examples


@pytest.mark.parametrize("weights", ["agents", "examples"])
def test_the_gradients_of_some_agents_have_their_weights(weights):
    p = problem(4, weights=weights)
    x, sample = torch.randn(2, 3, p.dim, dtype=torch.float64), Samples(p, 0, 2, range(3))(0)
    whole = p.grad(x, sample)
    for agents in (range(1), range(1, 3)):
        rows = slice(agents.start, agents.stop)
        torch.testing.assert_close(p.grad_of(agents, x[:, rows].contiguous(), sample[:, rows]), whole[:, rows])


def test_an_agents_sample_does_not_depend_on_the_others():
    """Exact mode and processes see the same examples, whichever agents are in the same place."""
    p = problem(9)
    whole = Samples(p, 0, 2, range(3))(4)
    for agent in range(3):
        alone = p.restrict(range(agent, agent + 1))
        rows = Samples(alone, 0, 2, range(agent, agent + 1))(4)
        assert torch.equal(rows[:, 0] + sum(SIZES[:agent]), whole[:, agent])


def test_where_everybody_takes_all_examples_no_words_are_drawn():
    assert [problem(size).words for size in (1, 11, 12, 40)] == [1, 11, 0, 0]
    alone = problem(7).restrict(range(1, 2))
    assert alone.words == 0  # and the rows come in the order that they have beside a larger site
    assert torch.equal(Samples(alone, 0, 2, range(1, 2))(4) + 2, Samples(problem(7), 0, 2, range(3))(4)[:, 1:2])


def test_an_epoch_has_at_least_one_batch():
    assert problem(1).epoch == 7
    assert problem(7).epoch == pytest.approx((1 + 1 + 12 / 7) / 3)
    assert problem(50).epoch == 1


def test_batches_that_are_filled_up_are_not_for_layers_that_normalise_over_them():
    model = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))  # noqa: E731
    sites = data.Sizes(SIZES)
    made = lambda size: Supervised(model, examples(), 3, size, sites, loss=squared_error, buffers="local")  # noqa: E731
    assert made(2).agents == 3
    with pytest.raises(ValueError, match="at most 2, the number of examples of agent 0, because the layer '1' norm"):
        made(3)


# weights


@pytest.mark.parametrize("weights", ["agents", "examples"])
def test_losses_and_gradients_against_autograd(weights):
    p = problem(4, weights=weights)
    x = torch.randn(2, 3, p.dim, dtype=torch.float64)
    loss, grad = p.evaluate(x)
    for trial in range(2):
        for agent, size in enumerate(SIZES):
            scale = 1 if weights == "agents" else 3 * size / sum(SIZES)
            expected, value = gradient(p, x[trial, agent], p.parts[agent])
            torch.testing.assert_close(grad[trial, agent], scale * expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(loss[trial, agent], scale * value, rtol=1e-12, atol=1e-12)
    shared = p.evaluate(x[:, :1])
    everywhere = p.evaluate(x[:, :1].expand(-1, 3, -1))
    torch.testing.assert_close(shared.grad[:, 0], everywhere.grad.mean(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(shared.loss[:, 0], everywhere.loss.mean(1), rtol=1e-12, atol=1e-12)
    if weights == "examples":  # the mean over all examples
        expected, value = gradient(p, x[0, 0], torch.arange(sum(SIZES)))
        torch.testing.assert_close(shared.grad[0, 0], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(shared.loss[0, 0], value, rtol=1e-12, atol=1e-12)


class Level(nn.Module):
    """One number for all examples: the least squares fit is the mean of the targets."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.level.expand(len(x), 1)


Y = np.concatenate([np.full(10, 10.0), np.zeros(1_000)]).astype(np.float32)
X = np.zeros((1_010, 1), dtype=np.float32)


def level_setup(held, partition, weights, **changes):
    p = Supervised(Level, held, 2, 12, partition, loss=squared_error, initial="zeros", weights=weights)
    method = proxdasa.ProxDASAGT(gamma=0.15, alpha=schedules.constant(0.9))
    settings = {"iterations": 35, "observe_every": 35, "dtype": torch.float64} | changes
    return Setup(method, p, networks.complete(2), **settings)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("weights", "expected"), [("agents", 5.0), ("examples", Y.mean(dtype=np.float64))])
def test_ten_rows_against_a_thousand(weights, expected, exact):
    """Ten rows of 10 and a thousand of 0: agents that count alike fit 5, examples that do 0.099."""
    result = level_setup(data.from_tensors(X, Y), data.Sizes([10, 1_000]), weights, exact=exact).run()
    assert float(result.mean) == pytest.approx(expected, abs=1e-6)
    fit = (Y - expected) ** 2
    pooled = fit.mean() if weights == "examples" else (fit[:10].mean() + fit[10:].mean()) / 2
    assert result.records[-1]["loss"] == pytest.approx(pooled, rel=1e-5)
    assert result.records[-1]["stationarity"] < 1e-8


def site_files(folder):
    for agent, rows in enumerate((slice(10), slice(10, None))):
        save_file({"x": torch.from_numpy(X[rows]), "y": torch.from_numpy(Y[rows])}, folder / f"{agent}.safetensors")
    return data.per_agent(folder / "{agent}.safetensors", regression=True)


@pytest.mark.parametrize(("exact", "repeated"), [(True, False), (False, True)])
def test_processes_tell_each_other_how_many_examples_they_have(tmp_path, exact, repeated):
    """Neither has read the other's file."""
    expected = level_setup(data.from_tensors(X, Y), data.Sizes([10, 1_000]), "examples", exact=exact).run()
    made = level_setup(site_files(tmp_path), None, "examples", exact=exact)
    if repeated:
        made = Setup(**made.settings() | {"problem": Repeated(made.problem, 1)})
    alone = made.run()
    first, _ = in_threads(2, lambda transport: made.run(processes=transport))
    assert float(first.mean) == pytest.approx(Y.mean(dtype=np.float64), abs=1e-6)
    for result in (alone, first):
        assert result.records[-1]["loss"] == pytest.approx(expected.records[-1]["loss"], rel=1e-12)
        assert torch.allclose(result.x, expected.x, rtol=1e-12)
        assert not exact or digest(result.x) == digest(expected.x)


def test_in_memory_a_part_knows_the_size_of_the_whole(tmp_path):
    p = problem(4, weights="examples")
    x = torch.randn(1, 3, p.dim, dtype=torch.float64)
    whole = p.evaluate(x)
    for agents in (range(1, 3), range(2, 3)):
        part = p.restrict(agents)
        for again in (part, part.restrict(range(len(agents))), part.to(torch.float64)):
            got = again.evaluate(x[:, agents.start :])
            torch.testing.assert_close(got.loss, whole.loss[:, agents.start :], rtol=1e-12, atol=0)
    read = Supervised(Level, site_files(tmp_path), 2, loss=squared_error, weights="examples")
    with pytest.raises(ValueError, match=r'weights = "examples" needs the numbers of examples of all agents, but this'):
        read.restrict(range(1, 2)).evaluate(torch.zeros(1, 1, 1))
    given = Supervised(Level, site_files(tmp_path), 1, loss=squared_error, weights="examples", first=1, mean_size=505)
    here, there = (p.evaluate(torch.ones(1, n, 1)).loss[0, -1] for p, n in ((read, 2), (given, 1)))
    assert float(here) == pytest.approx(float(there), rel=1e-6)


def test_the_choice_is_part_of_the_description():
    one, other = (problem(4, weights=weights).describe() for weights in ("agents", "examples"))
    assert ("weights" in one, other.pop("weights")) == (False, "examples"), "the paper's choice goes without saying"
