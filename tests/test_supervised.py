"""Networks as problems: stacked gradients against one network at a time, batches, evaluation, refusals."""

import itertools
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import proxdasa
from proxdasa import networks, regularizers
from proxdasa.data import from_tensors
from proxdasa.problems import Supervised, cross_entropy, models, squared_error
from proxdasa.problems.stacked import chain_forward, is_chain, vmap_forward
from proxdasa.samples import Samples


def uneven(y, agents):
    """Agent i owns a block of size growing with i; some rows belong to nobody."""
    bounds = np.cumsum([0, *(5 + 3 * i for i in range(agents))])
    return [torch.arange(a, b) for a, b in itertools.pairwise(bounds)]


class Invented(nn.Module):
    """Not a chain: a skip connection, a shared layer, a norm, a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(7, 5)
        self.shared = nn.Linear(5, 5, bias=False)
        self.norm = nn.LayerNorm(5)
        self.scale = nn.Parameter(torch.ones(3))
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        h = h + torch.relu(self.shared(self.norm(h)))
        return self.last(self.shared(h)) * self.scale


def perceptron():
    return nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 3))


def pooled():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )


def images_throughout():
    """Pooling first, a linear layer on the columns of images, a convolution after it."""
    return nn.Sequential(
        nn.MaxPool2d(2), nn.Conv2d(2, 4, 2), nn.Linear(3, 4), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten(),
        nn.Linear(12, 3),
    )  # fmt: skip


def named():
    """A chain whose layers have names, here numbers that are not their places."""
    return nn.Sequential(OrderedDict({"2": nn.Linear(7, 7), "tanh": nn.Tanh(), "0": nn.Linear(7, 7)}))


def constant_bias():
    """A chain with a buffer in place of a parameter."""
    layer = nn.Linear(7, 3)
    del layer.bias
    layer.register_buffer("bias", torch.arange(3.0))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 3))


def pooled_without_channels():
    return nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3))


MODELS = {
    "mlp": (models.mlp, (123,), 2),
    "lenet": (models.lenet, (1, 28, 28), 10),
    "perceptron": (perceptron, (7,), 3),
    "pooled": (pooled, (2, 8, 8), 3),
    "images throughout": (images_throughout, (2, 10, 8), 3),
    "named": (named, (7,), 3),
    "constant bias": (constant_bias, (7,), 3),
    "pooled without channels": (pooled_without_channels, (6, 8), 3),
    "invented": (Invented, (7,), 3),
}


def problem(name="perceptron", agents=3, batch=4, **settings):
    factory, shape, classes = MODELS[name]
    rng = np.random.default_rng(0)
    data = from_tensors(
        torch.tensor(rng.normal(size=(60, *shape)), dtype=torch.float32), torch.tensor(rng.integers(0, classes, 60))
    )
    settings = {"model": factory, "data": data, "partition": uneven, "batch_size": batch} | settings
    return Supervised(agents=agents, **settings)


def one_at_a_time(p, x, inputs, targets):
    """Loss and gradient of one network by plain autograd."""
    module = p.model() if not isinstance(p.model, nn.Module) else p.model
    parameters, start = {}, 0
    leaf = x.clone().requires_grad_()
    for name, parameter in module.named_parameters():
        parameters[name] = leaf[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    outputs = functional_call(module.to(x.dtype), parameters, (inputs.to(x.dtype),))
    loss = nn.functional.cross_entropy(outputs, targets)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_stacked_gradients_are_those_of_each_network(name, dtype, tolerance, monkeypatch):
    p = problem(name, dtype=dtype, initial="each")
    x = p.start(0, 2)
    sample = Samples(p, 0, 2, range(3))(5)
    got = p.grad(x, sample)
    monkeypatch.setattr("proxdasa.problems.chunks.CHUNK", 12 * p._training.fit.width)
    in_groups = p.grad(x, sample)  # of three networks
    for trial in range(2):
        for agent in range(3):
            rows = sample[trial, agent]
            _, expected = one_at_a_time(p, x[trial, agent], p.data.x[rows], p.data.y[rows])
            torch.testing.assert_close(got[trial, agent], expected, rtol=10 * tolerance, atol=tolerance)
            torch.testing.assert_close(in_groups[trial, agent], expected, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["perceptron", "lenet", "invented"])
def test_evaluation_is_exact_for_uneven_agents(name, monkeypatch):
    p = problem(name, dtype=torch.float64, initial="each")
    monkeypatch.setattr("proxdasa.problems.chunks.CHUNK", 7 * p._training.fit.width)  # chunks of three, then less
    x = p.start(1, 2)
    loss, grad = p.evaluate(x)
    for trial in range(2):
        for agent, part in enumerate(p.parts):
            expected = one_at_a_time(p, x[trial, agent], p.data.x[part], p.data.y[part])
            torch.testing.assert_close(loss[trial, agent], expected[0], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(grad[trial, agent], expected[1], rtol=1e-12, atol=1e-12)
    shared = x[:, :1]
    at_shared = p.evaluate(shared)
    everywhere = p.evaluate(shared.expand(-1, 3, -1))
    torch.testing.assert_close(at_shared.loss[:, 0], everywhere.loss.mean(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(at_shared.grad[:, 0], everywhere.grad.mean(1), rtol=1e-12, atol=1e-12)


def test_sizes_are_the_papers():
    assert problem("mlp").dim == 8_066
    assert problem("lenet").dim == 25_010


def test_outputs_are_the_networks_answers():
    p = problem(dtype=torch.float64, initial="each")
    x = p.start(0, 1)[0]
    module = perceptron().double()
    for row, answer in zip(x, p.outputs(x, p.data.x), strict=True):
        nn.utils.vector_to_parameters(row, module.parameters())
        torch.testing.assert_close(answer, module(p.data.x.double()).detach(), rtol=1e-12, atol=1e-12)


def test_regression():
    data = from_tensors(torch.randn(40, 7), torch.randn(40))
    p = Supervised(lambda: nn.Linear(7, 1), data, 2, 3, uneven, loss=squared_error, dtype=torch.float64)
    x = torch.randn(1, 2, 8, dtype=torch.float64)
    rows = p.parts[1]
    residual = data.x[rows].double() @ x[0, 1, :7] + x[0, 1, 7] - data.y[rows].double()
    loss, grad = p.evaluate(x)
    torch.testing.assert_close(loss[0, 1], residual.square().mean())
    torch.testing.assert_close(grad[0, 1, 7], 2 * residual.mean())


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_batches_are_subsets_of_the_agents_own_examples(batch):
    p = problem(batch=batch)
    samples = Samples(p, 0, 50, range(3))
    counts = [torch.zeros(60) for _ in range(3)]
    for k in range(40):
        drawn = samples(k)
        assert drawn.shape == (50, 3, batch)
        for agent in range(3):
            rows = drawn[:, agent]
            assert all(len(set(row.tolist())) == batch for row in rows)
            counts[agent] += torch.bincount(rows.flatten(), minlength=60)
    for agent, part in enumerate(p.parts):
        assert counts[agent].sum() == counts[agent][part].sum() == 2_000 * batch
        expected = 2_000 * batch / len(part)
        assert (counts[agent][part] - expected).abs().max() < 6 * expected**0.5, "every example is as likely"


def test_pairs_in_a_batch_are_equally_likely():
    """Agent 0 owns five examples, so a batch of two has ten equally likely values."""
    p = problem(batch=2)
    samples = Samples(p, 3, 100, range(3))
    pairs = [tuple(sorted(row.tolist())) for k in range(100) for row in samples(k)[:, 0]]
    values, counts = np.unique(pairs, axis=0, return_counts=True)
    assert len(values) == 10
    assert np.abs(counts - 1_000).max() < 6 * 1_000**0.5


def test_starting_points():
    shared, each = problem(), problem(initial="each")
    assert shared.start(0, 2).shape == (2, 1, shared.dim)
    start = each.start(0, 2)
    assert start.shape == (2, 3, each.dim)
    assert len({tuple(row.tolist()) for row in start.flatten(0, 1)}) == 6
    assert torch.equal(start[:1], each.start(0, 1)), "named by seed, trial and agent"
    assert not torch.equal(start, each.start(1, 2))
    bound = 1 / 7**0.5
    assert 0.8 * bound < float(start[..., :42].abs().max()) <= bound, "PyTorch's default for a layer of 7 inputs"
    assert not problem(initial="zeros").start(0, 2).any()
    before = torch.get_rng_state()
    each.start(0, 1)
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"


def test_a_network_of_ones_own_is_the_start():
    module = perceptron()
    p = problem(model=module)
    assert torch.equal(p.start(0, 3), torch.cat([w.detach().flatten() for w in module.parameters()]))
    with pytest.raises(ValueError, match="needs a function that makes the network"):
        problem(model=module, initial="each")


def test_a_network_that_changes_later_does_not_change_the_problem():
    network = nn.Sequential(nn.Linear(7, 4).requires_grad_(False), nn.Linear(4, 3))
    p = problem(model=network)
    x, inputs = torch.ones(p.dim), torch.ones(2, 7)
    before = p.start(0, 1), p.module(x)(inputs), p.describe()
    with torch.no_grad():
        for values in network.parameters():
            values.fill_(5.0)
    assert torch.equal(p.start(0, 1), before[0])
    assert torch.equal(p.to(torch.float64).start(0, 1).float(), before[0])
    assert torch.equal(p.module(x)(inputs), before[1]), "the constants are those with which gradients are taken"
    assert p.describe() == before[2]


def test_running_statistics_need_a_policy():
    model = lambda: nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3))  # noqa: E731
    words = (
        r"BatchNorm1d \(layer '1'\) keeps running statistics: its buffer running_mean changes .*"
        'buffers="average" averages .* buffers="local" leaves each agent its own. GroupNorm and LayerNorm'
    )
    with pytest.raises(ValueError, match=words):
        problem(model=model)


def test_layers_that_look_at_the_whole_batch():
    """In evaluation too: F would then depend on how examples are divided into batches."""
    normalised = lambda: nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3, track_running_stats=False))  # noqa: E731
    with pytest.raises(ValueError, match=r"from its whole batch.* BatchNorm needs track_running_stats=True"):
        problem(model=normalised)

    class Centred(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(dim=0))

    with pytest.raises(ValueError, match="Centred computes the loss of an example from its whole batch"):
        problem(model=lambda: Centred(7, 3))


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="no parameters to train"):
        problem(model=nn.Sequential(nn.Tanh()))


def forward(module):
    return chain_forward(module, {}) if is_chain(module) else vmap_forward(module)


class Halved(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) / 2


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def hooked():
    chain = nn.Sequential(nn.Linear(3, 3))
    chain[0].register_forward_hook(lambda *arguments: 2 * arguments[-1])
    return chain


def hooked_before():
    chain = nn.Sequential(nn.Linear(3, 3))
    chain[0].register_forward_pre_hook(lambda _layer, inputs: (2 * inputs[0],))
    return chain


def replaced():
    chain = nn.Sequential(nn.Linear(3, 3))
    chain[0].forward = lambda x: x.sin()
    return chain


class Double(nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrised():
    chain = nn.Sequential(nn.Linear(3, 3))
    nn.utils.parametrize.register_parametrization(chain[0], "weight", Double())
    return chain


def twice():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (lambda: nn.Sequential(Halved(1, 2, 2), nn.Flatten()), (1, 4, 4)),
        (lambda: Residual(nn.Linear(3, 3)), (3,)),
        (hooked, (3,)),
        (hooked_before, (3,)),
        (replaced, (3,)),
        (twice, (3,)),
        (parametrised, (3,)),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten()), (1, 4, 4)),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten()), (1, 4, 4)),
        (lambda: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten()), (2, 4, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(1, 2)), (2, 4, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(2)), (2, 4, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(1, -2), nn.Linear(3, 2)), (2, 4, 4)),
    ],
)
def test_chains_that_do_more_than_their_layers_say(made, shape):
    module = made()
    x = torch.randn(2, 5, *shape)
    parameters = {name: torch.stack([p.detach(), p.detach()]) for name, p in module.named_parameters()}
    expected = torch.stack([module(rows).detach() for rows in x])
    torch.testing.assert_close(forward(module)(parameters, x), expected)


def test_a_subclass_of_a_known_layer_is_not_taken_for_it():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    p = problem(model=lambda: nn.Sequential(Doubled(7, 3)), dtype=torch.float64)
    x = p.start(0, 1).expand(1, 3, -1)
    sample = Samples(p, 0, 1, range(3))(0)
    torch.testing.assert_close(
        p.grad(x, sample)[0, 2],
        one_at_a_time(p, x[0, 2], p.data.x[sample[0, 2]], p.data.y[sample[0, 2]])[1],
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "batch_size must be a whole number of at least 1; got 0"),
        ({"weights": "rows"}, 'weights must be "agents" or "examples"'),
        ({"initial": "ones"}, 'initial must be "shared", "each" or "zeros"'),
        ({"partition": lambda y, n: [torch.arange(3)] * 2}, "each of 3 agents at least one example"),
        ({"partition": lambda y, n: [y == c for c in range(n)]}, "must give agent 0 row numbers from 0 to"),
        ({"partition": lambda y, n: [torch.tensor([0, 1 - c]) for c in range(n)]}, "must give agent 2 row numbers"),
        ({"partition": lambda y, n: [torch.tensor([len(y) * c]) for c in range(n)]}, "must give agent 1 row numbers"),
        ({"partition": lambda y, n: [[c] for c in range(n)]}, "must give agent 0 row numbers"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(ValueError, match=message):
        problem(**settings)


def test_learns_a_sparse_model():
    """Labels that depend on two of twenty features: decentralised training finds them, and the L1 norm drops others."""
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(400, 20)), dtype=torch.float32)
    data = from_tensors(x, (x[:, 3] - x[:, 11] > 0).long())
    blocks = lambda y, n: list(torch.arange(len(y)).chunk(n))  # noqa: E731
    p = Supervised(lambda: nn.Linear(20, 2), data, 4, 8, blocks)
    result = proxdasa.run(
        proxdasa.ProxDASAGT(gamma=1.0, alpha=proxdasa.schedules.constant(0.1)), p, networks.ring(4),
        regularizer=regularizers.L1(0.02), iterations=200, observe_every=200, trials=2,
    )  # fmt: skip
    first, last = result.records[0], result.records[-1]
    assert last["objective"] < 0.7 * first["objective"]
    weights = result.mean[0, :40].view(2, 20)
    assert set(weights.abs().sum(0).topk(2).indices.tolist()) == {3, 11}
    accuracy = (p.outputs(result.mean, x).argmax(-1) == data.y).float().mean(1)
    assert accuracy.min() > 0.9


def test_full_gradients_are_the_agents_own():
    p = problem(dtype=torch.float64)
    agents = proxdasa.runs.setup.Setup(proxdasa.ProxDASA(0.1), p, networks.ring(3)).engine()
    x = p.start(0, 1).expand(1, 3, -1)
    assert torch.equal(agents.full_grad(x), p.evaluate(x).grad)


@pytest.mark.parametrize("name", ["perceptron", "invented"])
def test_a_part_is_not_tried_again_and_has_a_network_of_its_own(name):
    tried = []

    def loss(outputs, targets):
        tried.append(len(targets))
        return cross_entropy(outputs, targets)

    whole = problem(name, loss=loss)
    tried.clear()
    parts = [whole.restrict(range(i, i + 1)) for i in range(3)]
    assert not tried
    x = torch.randn(1, 3, whole.dim, generator=torch.Generator().manual_seed(0))
    agents = [(p, range(i, i + 1), x[:, i : i + 1]) for i, p in enumerate(parts)]
    alone = [p.grad(row, Samples(p, 0, 1, agent)(0)) for p, agent, row in agents]
    torch.testing.assert_close(torch.cat(alone, dim=1), whole.grad(x, Samples(whole, 0, 1, range(3))(0)))
    losses = torch.cat([p.evaluate(row).loss for p, _, row in agents], dim=1)
    torch.testing.assert_close(losses, whole.evaluate(x).loss.expand_as(losses))
    made = [p._training.module for p in (whole, *parts)]
    made += [p._evaluating.module for p in (whole, *parts) if p._evaluating is not p._training]
    assert len(made) == len({id(module) for module in made}), "threads put parameters of their rows into modules"
    assert all(p._evaluating is p._training or not p._evaluating.module.training for p in parts)


def test_losses_are_per_example():
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    assert cross_entropy(outputs, targets).shape == (5,)
    assert squared_error(torch.randn(5, 1), torch.randn(5)).shape == (5,)
    assert squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]])).tolist() == [5.0]


def test_targets_that_are_no_class_numbers_or_lie_in_another_order_are_refused():
    """Torch takes the first for probabilities, and a view of the second would pair the wrong numbers."""
    outputs = torch.arange(12.0).view(2, 2, 3)
    with pytest.raises(ValueError, match=r"class numbers are needed, but the targets are float.* squared_error"):
        cross_entropy(torch.zeros(2, 3), torch.tensor([[-5.0, 1.0, 9.0], [1.0, 2.0, 3.0]]))
    for targets in (outputs.mT, outputs.view(2, 6)):
        with pytest.raises(
            ValueError, match=r"shapes \[2, 2, 3\] of outputs and .* differ in more than axes of length"
        ):
            squared_error(outputs, targets.contiguous())
    assert squared_error(outputs, outputs.view(2, 2, 1, 3)).tolist() == [0.0, 0.0]


def test_scores_of_the_test_examples():
    rng = np.random.default_rng(1)
    x, y = torch.tensor(rng.normal(size=(50, 7)), dtype=torch.float32), torch.tensor(rng.integers(0, 3, 50))
    p = Supervised(perceptron, from_tensors(x[:30], y[:30], x[30:], y[30:]), 2, 2, initial="each", dtype=torch.float64)
    points = p.start(0, 4)[:, 0]
    scores = p.scores(points)
    module = perceptron().double()
    for trial in range(4):
        nn.utils.vector_to_parameters(points[trial], module.parameters())
        outputs = module(x[30:].double()).detach()
        assert float(scores["accuracy"][trial]) == pytest.approx(float((outputs.argmax(1) == y[30:]).double().mean()))
        assert float(scores["test_loss"][trial]) == pytest.approx(float(nn.functional.cross_entropy(outputs, y[30:])))
    result = proxdasa.run(proxdasa.DPSGD(0.1), p, networks.ring(2), iterations=2)
    assert {"accuracy", "test_loss"} <= set(result.records[0])
    assert result.records[-1]["epochs"] == 2 / (15 / 2)
    assert problem().scores(points) == {}
