"""Any network: gradients, losses and scores of all copies against one module at a time by plain autograd."""

import copy
import functools
import itertools
import re
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import proxdasa
from proxdasa import data, networks
from proxdasa.problems import LoopWarning, Repeated, Supervised, copies, cross_entropy
from proxdasa.runs.setup import Setup
from proxdasa.samples import Samples
from tests import architectures
from tests.setups import in_threads

DOC = Path(__file__).parents[1] / "docs" / "own-model.md"
RANDOM = ["BatchNorm and dropout", "dropout layers", "functional dropout", "transformer with dropout"]
close = torch.testing.assert_close
TIGHT = {"rtol": 1e-9, "atol": 1e-11}


problem = functools.cache(architectures.problem)
"""Made once for all tests that ask for the same; nothing changes it."""


@functools.cache
def chosen(name):
    """A problem whose path is chosen for it, with a start of its own for each agent; and the warnings it gave."""
    with warnings.catch_warnings(record=True, action="always") as given:
        return architectures.problem(name, path=None, initial="each"), given


def plain(p, row, seed=None):
    """A module of its own with the parameters of a row, in training mode if there is a seed for its masks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # which names the constants of networks that a function makes
        module = copy.deepcopy(p.model) if isinstance(p.model, nn.Module) else p.model()
    module.double()
    start = 0
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = row[start : start + parameter.numel()].view(parameter.shape).clone()
            start += parameter.numel()
    assert start == len(row)
    return module


def first_statistics(p, trials=2):
    """The running statistics that the networks begin with, if they have any."""
    return p.first_buffers(trials) if p.running else None


def gradient(module, losses):
    module.zero_grad()
    losses.mean().backward()
    return torch.cat([each.grad.flatten() for each in module.parameters() if each.requires_grad])


def real(x):
    return x.double() if x.is_floating_point() else x


@pytest.mark.parametrize("name", architectures.ALL)
def test_gradients_are_those_of_each_network_alone(name):
    p, _ = chosen(name)
    x, sample = p.start(0, 2), Samples(p, 0, 2, range(3))(5)
    before = torch.get_rng_state()
    got = p.grad(x, sample, first_statistics(p))
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    for trial, agent in itertools.product(range(2), range(3)):
        rows, words = sample[trial, agent, :4], sample[trial, agent, 4:]
        module = plain(p, x[trial, agent])
        assert len(words) == (name in RANDOM)
        if name in RANDOM:
            torch.manual_seed(int(words) % 2**32)
        losses = p.loss(module(real(p.data.x[rows])), p.data.y[rows])
        close(got[trial, agent], gradient(module, losses), **TIGHT)
    torch.set_rng_state(before)


@pytest.mark.parametrize("name", architectures.ALL)
def test_losses_and_scores_are_those_of_each_network_alone(name, monkeypatch):
    p, _ = chosen(name)
    monkeypatch.setattr("proxdasa.problems.chunks.CHUNK", 16 * p._training.fit.width)  # several chunks
    x, r = p.start(0, 2), first_statistics(p)
    one = None if r is None else r[:, :1]
    own = None if r is None else r[:, 0]
    found, scores = p.evaluate(x, r), p.scores(x[:, 0], own)
    for trial, agent in itertools.product(range(2), range(3)):
        module, rows = plain(p, x[trial, agent]).eval(), p.parts[agent]
        losses = p.loss(module(real(p.data.x[rows])), p.data.y[rows])
        close(found.loss[trial, agent], losses.mean().detach(), **TIGHT)
        close(found.grad[trial, agent], gradient(module, losses), **TIGHT)
    shared = p.evaluate(x[:, :1], one)
    close(shared.grad[:, 0], p.evaluate(x[:, :1].expand(-1, 3, -1), r).grad.mean(1), **TIGHT)
    stacked = p.outputs(x[:, 0], p.data.test_x, own) if p._training.fit.tensor else None
    for trial in range(2):
        module = plain(p, x[trial, 0]).eval()
        with torch.no_grad():
            outputs = module(real(p.data.test_x))
        close(scores["test_loss"][trial], p.loss(outputs, p.data.test_y).mean(), **TIGHT)
        assert ("accuracy" in scores) == isinstance(outputs, torch.Tensor)
        if isinstance(outputs, torch.Tensor):
            close(stacked[trial], outputs, **TIGHT)
            close(scores["accuracy"][trial], (outputs.argmax(-1) == p.data.test_y).double().mean())
        else:
            with pytest.raises(ValueError, match=r"does not return a tensor.* call problem.module\(x\)"):
                p.outputs(x[:, 0], p.data.test_x)


@pytest.mark.parametrize("name", architectures.ALL)
def test_a_vector_becomes_a_module_and_a_vector_again(name):
    p, _ = chosen(name)
    x = p.start(0, 1)[0, 0]
    r = first_statistics(p)
    made, expected = p.module(x, buffers=None if r is None else r[0, 0]), plain(p, x)
    assert type(made) is type(expected)
    assert made.state_dict().keys() == expected.state_dict().keys()
    for key, values in expected.state_dict().items():
        assert torch.equal(made.state_dict()[key], values), key
        assert made.state_dict()[key].dtype == values.dtype, key
    again = Supervised(made, p.data, 3, 4, loss=p.loss, path=p.path, buffers=p.buffers)
    assert torch.equal(again.start(0, 1), x)
    assert [each.training for each in made.modules()] == [each.training for each in expected.modules()]
    assert len({each.untyped_storage().data_ptr() for each in made.parameters()}) == len(list(made.parameters()))


@pytest.mark.parametrize("name", architectures.ALL)
def test_the_path_is_chosen_and_a_loop_announced_once(name, recwarn):
    p, given = chosen(name)
    assert p.path == architectures.ALL[name].path
    p.restrict(range(1, 2)), p.to(torch.float32)
    assert not recwarn
    assert [each.category for each in given] == [LoopWarning] * (p.path == "loop")
    if p.path == "loop":
        assert Path(given[0].filename).name == "architectures.py", "the line of the caller"
        assert re.search(r"cannot be stacked \(.+\), so .* trials × agents. Pass path=.loop", str(given[0].message))


@pytest.mark.parametrize(
    "name",
    ["perceptron", "ResNet block, GroupNorm", "ResNet block, BatchNorm", "two outputs, a custom loss"],
)
def test_a_loop_computes_what_the_faster_paths_do(name):
    fast, slow = problem(name), problem(name, path="loop")
    x, sample = fast.start(0, 1).expand(2, 3, -1), Samples(fast, 0, 2, range(3))(0)
    r = first_statistics(fast)
    close(slow.grad(x, sample, r), fast.grad(x, sample, r), **TIGHT)


def test_paths_that_are_not_possible_are_refused():
    for name, path, words in (
        ("LSTM", "vmap", 'Recurrent: path="vmap" is not possible: RuntimeError, Batching rule not implemented for'),
        ("LSTM", "chain", 'path="chain" is not possible: it is not a chain of layers'),
        ("dropout layers", "vmap", 'path="vmap" is not possible: it draws random numbers'),
        ("perceptron", "fast", 'path must be "chain", "vmap", "loop", or None to choose; got'),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            problem(name, path=path)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(7, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.utils.checkpoint.checkpoint(lambda h: torch.tanh(self.first(h)), x, use_reentrant=False))


def small(model, x=None, **settings):
    x = torch.randn(24, 7, generator=torch.Generator().manual_seed(0)) if x is None else x
    return Supervised(model, data.from_tensors(x, torch.arange(24) % 3), 3, 4, **settings)


def test_a_network_that_sees_other_parameters_in_its_backward_pass_is_refused():
    with pytest.raises(ValueError, match="Checkpointed: its copies cannot be computed: its gradients differ"):
        small(Checkpointed)


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_hooks_of_layers_change_gradients(kind):
    """On the chain they would be ignored, since its linear layers are never called."""
    chain = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))
    getattr(chain[2], kind)(lambda _layer, grads, *_: (3 * grads[0],))
    with pytest.warns(LoopWarning, match="its gradients differ under torch.func.vmap"):
        p = small(chain, dtype=torch.float64)
    x, sample = p.start(0, 1).expand(1, 3, -1), Samples(p, 0, 1, range(3))(0)
    module, rows = plain(p, x[0, 0]), sample[0, 1]
    close(p.grad(x, sample)[0, 1], gradient(module, cross_entropy(module(p._x[rows]), p._y[rows])), **TIGHT)


class Changing(nn.Module):
    """A network whose forward pass does something to itself or to its inputs first."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.change = nn.Linear(7, 3), change

    def forward(self, x):
        self.change(self.layer, x)
        return self.layer(x.abs())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _layer, x: x.mul_(2), "Changing changes its inputs in place, and with them the examples"),
        (lambda layer, _x: layer.weight.data.clamp_(min=0), "Changing changes its parameter layer.weight, as max_norm"),
        (lambda layer, _x: setattr(layer.bias, "data", 0 * layer.bias.data), "changes its parameter layer.bias"),
    ],
)
def test_forward_passes_that_change_what_they_are_given_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        small(Changing(change))


def test_max_norm_is_refused_before_it_bites():
    """It would write into the rows of x, which are the state of the run."""
    words = torch.ones(24, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"Sequential changes its parameter 0\.weight, as max_norm of"):
        small(nn.Sequential(nn.Embedding(5, 2, max_norm=1e6), nn.Flatten(), nn.Linear(8, 3)), words)


class ComplexScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.phase = nn.Linear(7, 3), nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x):
        return (self.layer(x) * self.phase).real


def with_hook(layer):
    layer.weight.register_hook(lambda grad: 0 * grad)
    return layer


def with_graph(layer):
    """As torch.nn.utils.weight_norm leaves a layer."""
    layer.scaled = 2 * layer.weight
    return layer


def test_parameters_that_fit_into_no_vector_are_refused():
    words = torch.ones(24, 4, dtype=torch.int64)
    for model, x, message in (
        (
            nn.LazyLinear(3),
            None,
            r"LazyLinear: the shape of its parameter weight is not known yet; call the network once",
        ),
        (
            nn.Sequential(nn.Linear(7, 3), nn.LazyBatchNorm1d(affine=False)),
            None,
            r"Sequential: the shape of its buffer 1.running_mean is not known yet; call the network once",
        ),
        (
            with_hook(nn.Linear(7, 3)),
            None,
            r"Linear: its parameter weight has a hook, which copies of the network would lose; change the gradient",
        ),
        (
            with_graph(nn.Linear(7, 3)),
            None,
            r"Linear must be copied for the agents, but cannot be: Only Tensors created explicitly",
        ),
        (
            ComplexScale(),
            None,
            "ComplexScale: its parameter phase is torch.complex64, but x is a real vector",
        ),
        (
            nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Flatten(), nn.Linear(8, 3)),
            words,
            "the parameter 0.weight has a sparse gradient; nn.Embedding has sparse=False",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            small(model, x)


@pytest.mark.parametrize(("what", "words"), [("grads", "gradients"), ("statistics", "running statistics")])
def test_a_path_that_computes_something_else_is_not_taken(what, words, monkeypatch):
    """As if vmap forgot a part of the gradient, or of the statistics."""
    right = copies.Copies.losses_and_grads

    def wrong(self, *arguments):
        found = right(self, *arguments)
        return found if self.path == "loop" else found._replace(**{what: 0.9 * getattr(found, what)})

    monkeypatch.setattr(copies.Copies, "losses_and_grads", wrong)
    with pytest.warns(LoopWarning, match=f"its {words} differ under torch.func.vmap"):
        assert small(lambda: nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 3)), buffers="local").path == "loop"


# ---------------------------------------------------------------------------------------- dropout


def run(p, **settings):
    method = proxdasa.ProxDASAGT(gamma=0.5, alpha=proxdasa.schedules.constant(0.3))
    return Setup(method, p, networks.ring(3), **{"iterations": 20, "trials": 2, **settings})


@pytest.mark.parametrize("name", RANDOM)
def test_masks_belong_to_the_sample(name):
    p = problem(name)
    assert p.words == 5
    x, samples = p.start(0, 1).expand(2, 3, -1).clone(), Samples(p, 0, 2, range(3))
    r = first_statistics(p)
    first = p.grad(x, samples(0), r)
    torch.rand(7)
    assert torch.equal(p.grad(x, samples(0), r), first), "the same ξ has the same masks"
    masked = samples(0).clone()
    masked[..., -1] = samples(1)[..., -1]
    assert not torch.allclose(p.grad(x, masked, r), first), "the same examples under other masks"
    part = p.restrict(range(1, 2))
    assert torch.equal(part.sample(torch.zeros(1, 1, 5, dtype=torch.int32))[..., -1:], torch.zeros(1, 1, 1).long())
    mine = Samples(part, 0, 2, range(1, 2))(0)
    own = None if r is None else r[:, 1:2]
    assert torch.equal(part.grad(x[:, 1:2], mine, own), first[:, 1:2]), "wherever the agent lives"


def test_masks_average_to_the_network_without_them():
    """For a linear network E g(x, ξ) over masks is not ∇F, but the mean output is: a share 1 − p of inputs, scaled."""
    p = small(lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(7, 3)), path="loop", dtype=torch.float64,
              loss=lambda outputs, targets: outputs[:, 0] + 0 * targets)  # fmt: skip
    x, samples = p.start(0, 1).expand(300, 3, -1), Samples(p, 0, 300, range(3))
    rows, grads = samples(0)[..., :4], p.grad(x, samples(0))[..., :7]  # of the weight: the mean of masked inputs
    expected = p._x[rows].mean(2)
    noise = (p._x[rows].square().sum(2) / 16 * 0.3 / 0.7).sqrt()
    z = (grads - expected) / noise
    assert abs(float(z.mean())) < 4 / 6300**0.5
    assert abs(float(z.std()) - 1) < 0.05


@pytest.mark.parametrize("name", ["functional dropout", "LSTM", "transformer, embedding, positions"])
def test_engines_agree_to_the_bit(name):
    p, few = problem(name), {"iterations": 2, "metrics": (), "observe_every": 2}
    whole = run(p, exact=True, **few).run()
    first, *_ = in_threads(3, lambda transport: run(p, exact=True, **few).run(processes=transport))
    assert torch.equal(first.x, whole.x)
    close(run(p, **few).run().x, whole.x, rtol=1e-7, atol=1e-9)
    assert not torch.allclose(run(p, seed=1, **few).run().x, whole.x)


def test_an_interrupted_run_resumes_with_the_same_masks(tmp_path):
    p = problem("dropout layers")
    setup = run(p, exact=True, iterations=8, observe_every=3, metrics=())
    whole = setup.run()
    saving = proxdasa.runs.loop.Saving(tmp_path, 3)

    def interrupt(k, *_):
        if k == 6:
            raise KeyboardInterrupt

    assert setup.run(progress=interrupt, saving=saving).iterations == 6
    torch.rand(3)
    assert torch.equal(setup.run(saving=saving).x, whole.x)


def test_threads_do_not_disturb_each_others_masks():
    p = problem("functional dropout")
    x, sample = p.start(0, 1).expand(2, 3, -1), Samples(p, 0, 2, range(3))(0)
    expected, found = p.grad(x, sample), []
    threads = [threading.Thread(target=lambda: found.extend(p.grad(x, sample) for _ in range(15))) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 45
    assert all(torch.equal(each, expected) for each in found)


def test_repeated_trials_have_the_same_masks():
    p = Repeated(problem("dropout layers"), 1)
    result = run(p, iterations=6, metrics=()).run()
    assert torch.equal(result.x[0], result.x[1])


def test_a_method_that_needs_full_gradients_refuses_dropout():
    p = problem("dropout layers")
    with pytest.raises(ValueError, match="an agent has no full gradient; choose a method that uses sample gradients"):
        proxdasa.run(proxdasa.ProxGTSRE(gamma=0.1, period=5), p, networks.ring(3), iterations=2)


def always(x):
    return nn.functional.dropout(x, 0.5)


def by_python(x):
    import random  # noqa: PLC0415

    return x * random.random()


def by_numpy(x):
    import numpy as np  # noqa: PLC0415

    return x * np.random.rand()  # noqa: NPY002


class Through(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(7, 3), function

    def forward(self, x):
        return self.function(self.layer(x))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (always, r"Through draws random numbers in evaluation mode too, .*training=self.training\)"),
        (by_python, "draws from the generator of Python or NumPy, which cannot be named"),
        (by_numpy, "draws from the generator of Python or NumPy, which cannot be named"),
    ],
)
def test_random_numbers_without_a_name_are_refused(function, words):
    with pytest.raises(ValueError, match=words):
        small(lambda: Through(function), path="loop")


# ---------------------------------------------------------------------------------------- buffers and types


def test_constants_have_the_type_of_the_run_and_whole_ones_their_own():
    for dtype in (torch.float32, torch.float64):
        p = problem("transformer, embedding, positions", dtype=dtype)
        module = p._training.module
        assert (module.positions.dtype, module.mask.dtype) == (dtype, torch.bool)
        assert p.grad(p.start(0, 1).expand(1, 3, -1), Samples(p, 0, 1, range(3))(0)).dtype == dtype
        assert p.module(p.start(0, 1).flatten()).mask.dtype == torch.bool


def test_other_constants_make_another_run():
    first, second = (architectures.Encoder(0.0) for _ in range(2))
    second.load_state_dict(first.state_dict())
    inputs = torch.zeros(24, architectures.LENGTH, dtype=torch.int64)
    describe = lambda module: small(module, inputs).describe()["model"]  # noqa: E731
    described = describe(first)
    assert describe(second) == described
    second.positions[0, 0] += 1
    assert describe(second) != described


def test_constants_that_change_from_call_to_call_are_refused():
    count = itertools.count()

    def unlike():
        module = nn.Linear(7, 3)
        module.register_buffer("unused", torch.tensor(float(next(count))))
        return module

    with pytest.raises(ValueError, match="its buffer unused different values in every call; pass the network itself"):
        small(unlike)


class Power(nn.Module):
    """Any buffer that a forward pass changes is a running statistic, whatever its layer is called."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.layer(x)


def test_running_statistics_of_any_layer_are_refused():
    with pytest.raises(ValueError, match=r"Power \(layer ''\) keeps running statistics: its buffer seen changes"):
        small(Power)
    assert small(Power().eval()).dim == 24


def test_whole_numbers_stay_whole():
    inputs = torch.randint(5, (24, 4), dtype=torch.int32)
    p = small(lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(8, 3)), inputs)
    assert p._x.dtype == torch.int64
    with pytest.raises(
        ValueError, match=r"Linear fails on two examples, inputs of shape \[2, 4\] in int64 \(whole num"
    ):
        small(nn.Linear(4, 3), inputs)


def test_double_precision_stays_double():
    rows = torch.randn(24, 7, dtype=torch.float64)
    p = small(nn.Linear(7, 3), rows)
    assert p.dtype == p.data.x.dtype == torch.float64
    assert torch.equal(p._x, rows), "no digit is lost"
    assert small(nn.Linear(7, 3), rows, dtype=torch.float32)._x.dtype == torch.float32
    assert small(nn.Linear(7, 3)).dtype == torch.float32
    targets = Supervised(
        nn.Linear(7, 1), data.from_tensors(rows.float(), rows[:, 0]), 3, loss=lambda o, t: (o[:, 0] - t) ** 2
    )
    assert targets.dtype == torch.float64
    labels = torch.zeros(24, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"rows: x is torch\.float64 and test_x torch.float32; they must match"):
        data.Dataset("rows", rows, labels, rows.float(), labels, classes=1)


def test_a_layer_in_evaluation_mode_stays_in_it():
    """Batch normalisation with kept statistics: the gradient is that of an affine map, in training too."""
    module = architectures.kept_statistics()
    p = small(module, dtype=torch.float64)
    assert not p._training.module[0][1].training
    assert p._training.module[1].training


def test_losses_of_other_outputs_are_checked_one_by_one():
    def mixed(outputs, targets):
        return cross_entropy(outputs[0], targets) + outputs[1]["size"].mean()

    with pytest.raises(ValueError, match=r"the loss mixed of two examples is .* outputs \(tuple\) and targets"):
        small(architectures.TwoHeads, loss=mixed)
    with pytest.raises(ValueError, match="the loss <lambda> fails for a tuple and labels"):
        small(architectures.TwoHeads, loss=lambda outputs, targets: outputs.missing)


# ---------------------------------------------------------------------------------------- the table in the docs


def test_the_table_in_the_docs_is_of_these_architectures():
    """Paths and equality are what the tests above find; the costs are measured by benchmarks.architectures."""
    rows = re.findall(
        r"(?m)^\| (.+?) \| (chain|vmap|loop) \| (yes|no) \| ([\d.]+) \| ([\d.]+) \|$", DOC.read_text("utf-8")
    )
    assert [(name, path, equal) for name, path, equal, *_ in rows] == [
        (name, made.path, "yes") for name, made in architectures.ALL.items()
    ]
