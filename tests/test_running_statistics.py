"""Running statistics of networks: against modules that are trained one by one, in all engines, and what is refused."""

import copy
import dataclasses
import functools

import pytest
import torch
from torch import nn

import proxdasa
from proxdasa import compressors, conditions, configs, data, metrics, networks, plans
from proxdasa.problems import Supervised, cross_entropy
from proxdasa.runs.loop import Saving
from proxdasa.runs.setup import Setup
from proxdasa.samples import Samples
from tests.setups import in_threads

AGENTS, STEPS, BATCH = 4, 6, 5
GAMMA = 0.1
X = torch.randn(60, 2, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, 0, 0, 0] > 0).long()
EXAMPLES = data.from_tensors(X[:48], Y[:48], X[48:], Y[48:])
SITES = data.from_tensors(X[:48] + torch.arange(48)[:, None, None, None] // 12, Y[:48], X[48:], Y[48:])
close = torch.testing.assert_close
TIGHT = {"rtol": 1e-11, "atol": 1e-12}


def flat(momentum=0.1):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(18, 4), nn.BatchNorm1d(4, momentum=momentum), nn.Tanh(), nn.Linear(4, 2)
    )


class Residual(nn.Module):
    """Two kinds of statistics, and a constant between them."""

    def __init__(self):
        super().__init__()
        self.norm, self.conv, self.out = nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3, padding=1), nn.Linear(2, 2)
        self.register_buffer("share", torch.tensor(0.5))
        self.instance = nn.InstanceNorm2d(2, track_running_stats=True)

    def forward(self, x):
        return self.out((x + self.share * torch.relu(self.instance(self.conv(self.norm(x))))).mean((2, 3)))


class Meter(nn.Module):
    """A statistic of one's own, which is assigned anew and is part of the outputs, and a count."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(18, 2)
        self.register_buffer("level", torch.tensor(1.0))
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.level = 0.9 * self.level + 0.1 * x.square().mean()
            self.batches += 1
        return self.out(x.flatten(1)) / self.level


def spectral():
    """Its statistics, singular vectors, are part of the gradients."""
    return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(18, 4)), nn.Linear(4, 2))


MODELS = {
    "BatchNorm": (flat, "vmap"),
    "BatchNorm, loop": (flat, "loop"),
    "cumulative": (lambda: flat(None), "loop"),
    "several": (Residual, "vmap"),
    "own": (Meter, "vmap"),
    "spectral": (spectral, "loop"),
}


def problem(model=flat, buffers="average", **settings):
    settings = {"batch_size": BATCH, "partition": data.Contiguous(), "path": None, "examples": SITES} | settings
    return Supervised(model, settings.pop("examples"), AGENTS, buffers=buffers, **settings)


@functools.cache
def usual(buffers):
    """Made once; nothing changes it."""
    return problem(buffers=buffers)


def run(p, method=None, **settings):
    settings = {"iterations": STEPS, "trials": 2, "observe_every": STEPS} | settings
    return Setup(method or proxdasa.DPSGD(gamma=GAMMA), p, networks.path(AGENTS), **settings)


def trained(module):
    return [each for each in module.parameters() if each.requires_grad]


def one_by_one(p, trial, policy, steps):
    """D-PSGD with a module in training mode for each agent, parameters and statistics averaged by hand."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # names the constants and first statistics of networks that a function makes
        made = p.model().double()
    start, modules = p.start(0, 2)[trial, 0], [copy.deepcopy(made) for _ in range(AGENTS)]
    for module in modules:
        nn.utils.vector_to_parameters(start.clone(), trained(module))
    draw, W = Samples(p, 0, 2, range(AGENTS)), torch.from_numpy(networks.path(AGENTS).W.toarray())
    for k in range(steps):
        grads = []
        for rows, module in zip(draw(k)[trial], modules, strict=True):
            loss = cross_entropy(module(SITES.x[rows]), SITES.y[rows]).mean()
            grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained(module))]))
        with torch.no_grad():
            x = torch.stack([nn.utils.parameters_to_vector(trained(module)) for module in modules])
            for module, row in zip(modules, W @ x - GAMMA * torch.stack(grads), strict=True):
                nn.utils.vector_to_parameters(row, trained(module))
            for name, values in made.named_buffers():
                held = [dict(module.named_buffers())[name] for module in modules]
                if policy == "average" and values.is_floating_point():
                    rows = torch.stack([each.detach().flatten() for each in held])
                    for own, row in zip(held, W @ rows, strict=True):
                        own.data = row.view(own.shape)
    return modules


@pytest.mark.parametrize("policy", ["average", "local"])
@pytest.mark.parametrize("name", MODELS)
def test_a_run_is_modules_trained_one_by_one(name, policy):
    model, path = MODELS[name]
    p = problem(model, policy, path=path)
    result = run(p, iterations=2).run()
    for trial in range(2):
        modules = one_by_one(p, trial, policy, steps=2)
        for agent, module in enumerate(modules):
            close(result.x[trial, agent], nn.utils.parameters_to_vector(trained(module)).detach(), **TIGHT)
            made = p.module(result.x[trial, agent], buffers=result.buffers[trial, agent])
            for (key, got), expected in zip(made.named_buffers(), module.buffers(), strict=True):
                assert got.dtype == expected.dtype
                close(got, expected.detach(), **TIGHT, msg=lambda text, key=key: f"{key}: {text}")
        with torch.no_grad():  # what is measured is the mean of parameters and of statistics
            mean, first = copy.deepcopy(modules[0]), result.last[trial]
            nn.utils.vector_to_parameters(result.mean[trial], trained(mean))
            for each, *others in zip(*(module.buffers() for module in modules), strict=True):
                target = next(
                    own for own, other in zip(mean.buffers(), modules[0].buffers(), strict=True) if other is each
                )
                stack = torch.stack([each, *others])
                target.copy_(stack.mean(0) if stack.is_floating_point() else stack.amax(0))
            outputs = mean.eval()(SITES.test_x)
            close(first["test_loss"], float(cross_entropy(outputs, SITES.test_y).mean()), rtol=1e-9, atol=1e-12)
            loss = torch.stack([cross_entropy(mean(SITES.x[rows]), SITES.y[rows]).mean() for rows in p.parts]).mean()
            close(first["loss"], float(loss), rtol=1e-9, atol=1e-12)
            again = p.module(result.mean[trial], buffers=result.buffers[trial]).eval()
            close(again(SITES.test_x), outputs, rtol=1e-9, atol=1e-12)


METHODS = [
    proxdasa.DPSGD(gamma=0.1),
    proxdasa.ProxDASA(gamma=0.1, alpha=0.3),
    proxdasa.ProxDASAGT(gamma=0.1, alpha=0.3),
    proxdasa.ProxGTSRO(gamma=0.1, batch=2, restart_batch=3, period=3),
    proxdasa.DeepStormV2(alpha=0.1, beta=0.5, initial_batch=3),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_every_method_counts_one_batch_in_each_iteration_and_keeps_the_mean(method):
    average, local = (run(usual(policy), method).run() for policy in ("average", "local"))
    close(average.x, local.x, rtol=1e-10, atol=1e-12)  # in training, BatchNorm does not look at them
    assert (average.buffers[..., -1] == STEPS).all()
    assert (local.buffers[..., -1] == STEPS).all()
    close(average.buffers.mean(1), local.buffers.mean(1), **TIGHT)
    apart = [result.buffers.var(dim=1).sum() for result in (average, local)]
    assert apart[0] < 0.7 * apart[1], "the sites differ, and mixing brings them together"


OWN = metrics.Metric("own", lambda view: view.engine.mean(view.engine.evaluate(view.x).loss.unsqueeze(-1)).flatten())


@functools.cache
def exact_runs(policy):
    """The same run in one process and in three, one of which has two agents."""
    made = run(usual(policy), METHODS[2], exact=True, iterations=4, observe_every=4, metrics=(*metrics.STANDARD, OWN))
    return made.run(), in_threads(3, lambda transport: made.run(processes=transport))[0]


def test_statistics_make_no_message_more():
    costs = {policy: exact_runs(policy)[0].last[0] for policy in ("average", "local")}
    assert [costs["average"][name] for name in ("rounds", "vectors", "samples", "gradients")] == [4, 12, 4, 4]
    assert all(costs["average"][name] == costs["local"][name] for name in ("rounds", "vectors", "gradients"))
    sent = {policy: exact_runs(policy)[1].last[0]["wire_bytes"] for policy in ("average", "local")}
    more = 8 * 3 * 3 * 2 * 4 * 4 / AGENTS  # bytes: 8 numbers are three in each of 3 vectors, 2 trials, 4 messages
    assert sent["average"] - sent["local"] == pytest.approx(more)


def test_a_measure_at_own_rows_uses_the_mean_statistics_wherever_agents_live():
    """One agent in a process is no shared point: without statistics of its own choice, a measure gets r̄."""
    alone, three = exact_runs("local")
    assert [row["own"] for row in three.records] == pytest.approx([row["own"] for row in alone.records], rel=1e-12)


@pytest.mark.parametrize("policy", ["average", "local"])
def test_engines_agree_to_the_bit(policy):
    whole, three = exact_runs(policy)
    assert torch.equal(three.x, whole.x)
    assert torch.equal(three.buffers, whole.buffers)
    assert [row["test_loss"] for row in three.records] == pytest.approx([row["test_loss"] for row in whole.records])
    fast = run(usual(policy), METHODS[2], iterations=4).run()
    close(fast.buffers, whole.buffers, rtol=1e-9, atol=1e-11)


def test_a_run_resumes_and_is_loaded_with_its_statistics(tmp_path):
    def interrupt(k, *_):
        if k == 4:
            raise KeyboardInterrupt

    made = run(usual("average"), METHODS[2], observe_every=1)
    whole = made.run()
    part = made.run(interrupt, Saving(tmp_path / "points", 3))
    assert (part.stopped, part.iterations) == ("interrupted", 4)
    assert not torch.equal(part.buffers, whole.buffers)
    again = made.run(None, Saving(tmp_path / "points", 3))
    assert torch.equal(again.buffers, whole.buffers)
    assert [row["loss"] for row in again.records] == [row["loss"] for row in whole.records]
    loaded = proxdasa.load(again.save(tmp_path / "result"))
    first, second = (problem().module(result, trial=1).eval() for result in (loaded, whole))
    assert torch.equal(first(SITES.test_x), second(SITES.test_x))
    assert int(second[2].num_batches_tracked) == STEPS


def test_agents_that_are_out_keep_their_statistics():
    out = conditions.Downtimes([(2, 0, STEPS), (0, 2, 4)])
    for policy in ("average", "local"):
        p = usual(policy)
        result = run(p, conditions=[out]).run()
        assert torch.equal(result.buffers[:, 2], p.first_buffers(2)[:, 2])
        assert result.buffers[0, :, -1].tolist() == [4, 6, 0, 6]
        assert int(p.module(result)[2].num_batches_tracked) == 6, "the maximum"
        lost = run(p, conditions=[conditions.LinkLoss(1.0)]).run()
        alone = run(usual("local"), conditions=[conditions.LinkLoss(1.0)]).run()
        close(lost.buffers, alone.buffers, **TIGHT)


def test_statistics_rest_where_mixing_does():
    rare = run(usual("average"), mixing=proxdasa.Every(4), iterations=3).run()
    alone = run(usual("local"), mixing=proxdasa.Every(4), iterations=3).run()
    close(rare.buffers, alone.buffers, **TIGHT)
    assert not torch.allclose(run(usual("average"), iterations=3).run().buffers, alone.buffers)


def test_agents_are_measured_with_their_own():
    p = usual("local")
    own = [metrics.lowest_accuracy, metrics.per_agent(lipschitz=1.0)]
    result = run(p, trials=1, metrics=own, iterations=20, observe_every=20).run()
    scores, squares = [], []
    for agent in range(AGENTS):
        module = p.module(result.x[0, agent], buffers=result.buffers[0, agent]).eval()
        scores.append(float((module(SITES.test_x).argmax(1) == SITES.test_y).double().mean()))
        losses = torch.stack([cross_entropy(module(SITES.x[rows]), SITES.y[rows]).mean() for rows in p.parts])
        grad = torch.cat([each.flatten() for each in torch.autograd.grad(losses.mean(), trained(module))])
        squares.append(float(grad.square().sum()))
    spread = float((result.x[0] - result.mean[0]).square().sum(-1).mean())
    assert result.last[0]["lowest_accuracy"] == pytest.approx(min(scores))
    assert result.last[0]["per_agent"] == pytest.approx(sum(squares) / AGENTS + spread)
    rows = p.evaluate(result.x, result.buffers)
    module = p.module(result.x[0, 1], buffers=result.buffers[0, 1]).eval()
    close(rows.loss[0, 1], cross_entropy(module(SITES.x[p.parts[1]]), SITES.y[p.parts[1]]).mean().detach(), **TIGHT)


def test_a_quick_search_goes_on_with_the_statistics():
    p = usual("average")
    found = proxdasa.tune(
        proxdasa.DPSGD(gamma=1.0), p, networks.path(AGENTS), quick=True, iterations=12, measure="test_loss"
    )
    again = proxdasa.run(found.algorithm, p, networks.path(AGENTS), iterations=12)
    assert found.ranking[0].mean == pytest.approx(again.last[0]["test_loss"], rel=1e-9)
    assert plans.estimate_lipschitz(p, steps=1) > 0


def test_examples_may_count_alike():
    p = problem(weights="examples", partition=data.Sizes([6, 6, 12, 24]))
    plain = problem(partition=data.Sizes([6, 6, 12, 24]))
    x, r, sample = p.start(0, 1).expand(1, AGENTS, -1), p.first_buffers(1), Samples(p, 0, 1, range(AGENTS))(0)
    (weighted, after), (grads, same) = p.grad_and_buffers(x, r, sample), plain.grad_and_buffers(x, r, sample)
    assert torch.equal(after, same)
    close(weighted, grads * torch.tensor([0.5, 0.5, 1.0, 2.0], dtype=torch.float64)[:, None])
    assert torch.equal(r, p.first_buffers(1)), "nothing is changed in place"


FILE = """
import torch
from torch import nn
from proxdasa import data

def net():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

def rows():
    return data.from_tensors(torch.eye(3).repeat(8, 1), torch.arange(24) % 2)
"""


def test_a_policy_in_a_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "normal_nets.py").write_text(FILE)
    table = {"name": "Supervised", "agents": 4, "batch_size": 4}
    table |= {"model": "normal_nets:net", "data": "normal_nets:rows"}
    settings = {"iterations": 2, "algorithm": {"name": "DPSGD", "gamma": 0.1}, "network": {"name": "ring"}}
    made = configs.build({**settings, "problem": {**table, "buffers": "local"}})
    assert made.problem.buffers == made.config()["problem"]["buffers"] == "local"
    assert made.run().buffers.shape == (1, 4, 9)
    with pytest.raises(ValueError, match=r"problem\.buffers must be 'average' or 'local'; got 'mean'"):
        configs.build({**settings, "problem": {**table, "buffers": "mean"}})


# ---------------------------------------------------------------------------------------- what is refused


class Flagged(Meter):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor(False))

    def forward(self, x):
        self.seen = torch.tensor(True)
        return super().forward(x)


def synchronised():
    return nn.Sequential(nn.SyncBatchNorm(2), nn.Flatten(), nn.Linear(18, 2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"buffers": None}, r"BatchNorm1d \(layer '2'\) keeps running .* buffers=\"average\" .* buffers=\"local\""),
        ({"buffers": "mean"}, 'buffers must be "average" or "local"; got'),
        ({"batch_size": 1}, "must be at least 2, because Sequential fails on a batch of one example: Expected more"),
        ({"batch_size": 13}, "at most 12, the number of examples of agent 0, because the layer '2' normalises over a"),
        ({"batch_size": 13, "model": Meter}, "at most 12, .* because the layer '' keeps statistics of its batches"),
        ({"model": Flagged}, "changes the buffer seen of Flagged, which is torch.bool; running statistics must be"),
        ({"model": synchronised}, "the layer '0' is SyncBatchNorm, which would mix the batches of all agents"),
        ({"path": "chain"}, "is not a chain of layers"),
        ({"path": "vmap", "model": lambda: flat(None)}, 'path="vmap" is not possible'),
    ],
)
def test_what_cannot_be_kept_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        problem(**settings)


def test_statistics_that_evaluating_changes_are_refused():
    class Restless(Meter):
        def forward(self, x):
            self.batches += 1
            return super().forward(x)

    with pytest.raises(
        ValueError, match=r"its buffer batches changes in evaluation mode too, .* self.training is True"
    ):
        problem(Restless)


class Selective(Meter):
    """Statistics of large examples only: whether a buffer changes depends on the examples of a process."""

    def forward(self, x):
        return super().forward(x) if x.abs().max() > 100 else self.out(x.flatten(1))


def test_processes_whose_examples_tell_of_other_statistics_do_not_start():
    x, y = X[:48].clone(), torch.zeros(48, dtype=torch.int64)
    x[36:] *= 1000
    y[36:] = 1  # so that one of these is among the two examples
    made = run(problem(Selective, examples=data.from_tensors(x, y), path="loop"))
    for error in in_threads(2, lambda transport: made.run(processes=transport)):
        assert str(error).startswith("agents 2 to 3 and agents 0 to 1 do not have the same running statistics; start")
    with pytest.raises(
        ValueError, match="changes different buffers for examples of agent 0 than for those of others; a run"
    ):
        dataclasses.replace(made, exact=True).run()


def test_statistics_that_two_examples_do_not_show_are_refused_in_the_run():
    x, y = X[:48].clone(), torch.zeros(48, dtype=torch.int64)
    x[36:] *= 1000
    y[0] = 1  # the two examples are the first of each label
    p = problem(Selective, examples=data.from_tensors(x, y), path="loop")
    assert p.running is None
    with pytest.raises(ValueError, match="changes the buffer level of Selective for some batches, but did not for two"):
        run(p).run()


SUMS = proxdasa.SPPDM(gamma=2.0, c=1.0, kappa=0.1, beta=0.9, alpha=0.01)
FULL = proxdasa.ProxGTSRE(gamma=0.1, batch=2, period=3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mixing": proxdasa.Chebyshev(3)}, r'not possible: Chebyshev.* may have negative weights.* or buffers="local'),
        (
            {"mixing": proxdasa.CompressedGossip(compressors.Float16(), step=1.0)},
            r'not possible: .* compresses what agents send.* or buffers="local"',
        ),
        (
            {"conditions": [conditions.MessageNoise(0.1)]},
            r'not possible: noise in messages may make a variance negative; leave it out, or buffers="local"',
        ),
        ({"random_iterate": True}, r"random_iterate and running statistics exclude each other: those of x\^R"),
        ({"method": SUMS}, "not possible: SPPDM sums over neighbours and averages nothing"),
        ({"method": FULL}, "dropout or running statistics.* no full gradient"),
    ],
)
def test_runs_that_cannot_carry_them_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        run(usual("average"), **settings).run()
    if "mixing" in settings:
        assert run(usual("local"), iterations=1, **settings).run().buffers is not None


def test_a_vector_without_its_statistics_is_refused():
    p, words = (
        problem(),
        r"buffers must be the running statistics that belong to x, 9 numbers .* result.buffers .*; got",
    )
    x, r = p.start(0, 1), p.first_buffers(1)
    calls = [
        lambda: p.module(x[0, 0]),
        lambda: p.module(x[0, 0], buffers=r[0, 0, 1:]),
        lambda: p.evaluate(x),
        lambda: p.scores(x[0]),
        lambda: p.outputs(x[0], SITES.test_x),
        lambda: p.grad(x.expand(1, AGENTS, -1), Samples(p, 0, 1, range(AGENTS))(0)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=words):
            call()
    plain = problem(lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 2)))
    assert plain.running is None
    with pytest.raises(ValueError, match="the network has no running statistics; leave them out"):
        plain.evaluate(plain.start(0, 1), r)
    assert plain.epoch < float("inf")
