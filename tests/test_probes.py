"""Functions and objects of the user's own: a run goes on from checkpoints only if they compute what they did."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import proxdasa
from proxdasa import data, metrics, networks, problems, regularizers, schedules
from proxdasa.contracts import Evaluation, PeerError
from proxdasa.metrics import Metric
from proxdasa.problems import Link
from proxdasa.runs import identity, loop
from proxdasa.runs.loop import Saving
from proxdasa.runs.setup import Setup
from tests.setups import in_threads, run_until

DATA = data.from_tensors(
    np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.random.default_rng(1).integers(0, 3, 60)
)
PHASES = problems.PhaseRetrieval(agents=4, dim=5, sparsity=2, evaluation=20)


def setup(**changes):
    given = {"algorithm": proxdasa.ProxDASA(0.1), "problem": PHASES, "network": networks.ring(4), "iterations": 6}
    return Setup(**given | {"observe_every": 2, "metrics": [metrics.loss]} | changes)


def supervised(**changes):
    given = {"model": torch.nn.Linear, "data": DATA, "agents": 4} | changes
    return {"problem": problems.Supervised(**given)}


def stop(made, folder, k=4):
    def interrupt(now, _iterations, _rows):
        if now >= k:
            raise KeyboardInterrupt

    assert made.run(interrupt, Saving(folder)).iterations == k


# What is ours and what is not, each in two versions that have one description


def linear(bias):
    def model():
        return torch.nn.Linear(5, 3, bias=bias)

    return model


def activated(activation):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.outer(activation(self.inner(x)))

    return Model


def weighted(weight):
    def loss(outputs, targets):
        return weight * problems.cross_entropy(outputs, targets)

    return loss


def network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Linear(5, 3)


class Bent(torch.nn.Module):
    def __init__(self, bend):
        super().__init__()
        self.inner, self.bend = torch.nn.Linear(5, 3), bend

    def forward(self, x):
        return self.inner(x) * self.bend


def bent(bend):
    return lambda: Bent(bend)


class Shrink:
    """Ψ = weight/2 ‖x‖², without a description."""

    def __init__(self, weight):
        self.weight = weight

    def value(self, x):
        return 0.5 * self.weight * x.square().sum(-1)

    def prox(self, x, gamma):
        return x / (1 + gamma * self.weight)


class Lazy:
    """A mixing that goes only part of the way."""

    def __init__(self, share):
        self.share = share

    def rounds_for(self, rho):
        return 1

    def __call__(self, apply, x, rho):
        return self.share * x + (1 - self.share) * apply(x)


class Every:
    """A partition."""

    def __init__(self, first):
        self.first = first

    def __call__(self, y, agents):
        return list(torch.arange(len(y)).roll(self.first).tensor_split(agents))


class Wells:
    """F_i = Σ_j (x_j² − depth)², whose gradients are exact."""

    agents, dim, dtype, epoch, words = 4, 5, torch.float32, 1.0, 0

    def __init__(self, depth):
        self.depth = depth

    def to(self, dtype):
        return self

    def restrict(self, agents):
        part = Wells(self.depth)
        part.agents = len(agents)
        return part

    def start(self, seed, trials):
        return torch.linspace(-1, 1, 5)

    def sample(self, words):
        return words

    def grad(self, x, sample):
        return 4 * x * (x.square() - self.depth)

    def evaluate(self, x):
        return Evaluation((x.square() - self.depth).square().sum(-1), self.grad(x, None))

    def scores(self, x):
        return {}


def method(power):
    """Two methods of one name, of which one does a little more."""

    @dataclass(frozen=True)
    class Mine(proxdasa.ProxDASA):
        def step(self, agents, k, state):
            state = super().step(agents, k, state)
            return state._replace(x=power * state.x)

    return Mine(0.1)


@dataclass(frozen=True)
class Pulled:
    """A regularizer whose field is a function."""

    pull: object

    def value(self, x):
        return torch.zeros(x.shape[:-1])

    def prox(self, x, gamma):
        return self.pull(x)


def measure(factor):
    return Metric("mine", lambda view: factor * view.x_mean.square().sum(dim=(-2, -1)))


def curve(factor):
    return Link("square", lambda s: factor * s.square(), lambda s: 2 * factor * s)


def lean(share):
    def weights(graph):
        n = len(graph)
        return (1 - share) * np.full((n, n), 1 / n) + share * np.eye(n)

    return weights


PAIRS = {
    "a step size": [{"algorithm": proxdasa.ProxDASA(0.1, lambda k, a=a: a)} for a in (0.1, 0.9)],
    "a step size that changes late": [
        {"algorithm": proxdasa.ProxDASA(0.1, lambda k, last=last: 0.1 if k < 5 else last)} for last in (0.1, 0.2)
    ],
    "one step size per trial": [
        {"algorithm": proxdasa.ProxDASA(0.1, lambda k, a=a: proxdasa.per_trial([a, 0.1])), "trials": 2}
        for a in (0.1, 0.9)
    ],
    "a method of ours bound to other numbers": [
        {"algorithm": proxdasa.ProxDASA(0.1, schedules.constant(a).bind(4, 6, torch.float32).__call__)}
        for a in (0.1, 0.9)
    ],
    "a rule of one's own": [
        {"algorithm": proxdasa.ProxDASA(0.1, schedules.Schedule("mine", {}, lambda k, n, K, a=a: a))}
        for a in (0.1, 0.9)
    ],
    "a loss": [supervised(model=linear(True), loss=weighted(w)) for w in (1.0, 2.0)],
    "a function that makes a network": [supervised(model=activated(a)) for a in (torch.tanh, torch.sin)],
    "a network of the same form that computes something else": [supervised(model=bent(b)) for b in (1.0, 1.1)],
    "a network's parameters": [supervised(model=network(seed)) for seed in (0, 1)],
    "a partition": [supervised(model=network(0), partition=Every(f)) for f in (0, 20)],
    "a link": [{"problem": problems.SingleIndex(4, 5, curve(c), 2, evaluation=20)} for c in (1.0, 1.5)],
    "a regularizer": [{"regularizer": Shrink(w)} for w in (0.1, 0.2)],
    "a regularizer in a regularizer": [{"regularizer": regularizers.Scaled(Shrink(w), 2.0)} for w in (0.1, 0.2)],
    "a function in a regularizer": [{"regularizer": Pulled(lambda x, c=c: c * x)} for c in (0.5, 0.6)],
    "a mixing": [{"mixing": Lazy(share)} for share in (0.1, 0.3)],
    "a measure": [{"metrics": [metrics.loss, measure(c)]} for c in (1.0, 2.0)],
    "a problem": [{"problem": Wells(d)} for d in (1.0, 1.5)],
    "a method": [{"algorithm": method(p)} for p in (1.0, 0.99)],
    "weights of a network": [{"network": networks.erdos_renyi(4, 1.0, weights=lean(s))} for s in (0.1, 0.3)],
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_run_does_not_go_on_with_another(name, tmp_path):
    one, other = (setup(**changes) for changes in PAIRS[name])
    stop(one, tmp_path)
    with pytest.raises(ValueError, match=r"comput|belongs to a run with other settings") as refused:
        other.run(None, Saving(tmp_path))
    assert "choose another folder, or move this one away to start again" in str(refused.value)
    again, whole = setup(**PAIRS[name][0]).run(None, Saving(tmp_path)), one.run()
    assert torch.equal(again.x, whole.x), "and the run itself does"
    assert [row["samples"] for row in again.records] == [row["samples"] for row in whole.records]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a step size", "belongs to a run in which algorithm.alpha computed something else"),
        ("a loss", r"z after one step was \[.*\], and now is \[.*\]; .* changed: problem.model or problem.loss;"),
        ("a regularizer", r"the proximal step at 0.01 was .* has changed: regularizer;"),
        ("a measure", r"the measure mine was .*: metrics\[1\].of;"),
    ],
)  # fmt: skip
def test_it_is_said_what_is_another(name, said, tmp_path):
    one, other = (setup(**changes) for changes in PAIRS[name])
    stop(one, tmp_path)
    with pytest.raises(ValueError, match=said):
        other.run(None, Saving(tmp_path))


@pytest.mark.parametrize("name", ["a step size", "a loss", "a regularizer"])
def test_agents_in_several_processes_see_it_too(name, tmp_path):
    one, other = (setup(exact=True, **changes) for changes in PAIRS[name])

    assert {result.stopped for result in run_until(one, 2, 2, Saving(tmp_path))} == {"interrupted"}
    for told in run_until(other, 2, None, Saving(tmp_path)):
        assert isinstance(told, ValueError | PeerError)
        assert "computed something else" in str(told)
    assert torch.equal(one.run(None, Saving(tmp_path)).x, one.run().x), "and one process goes on from two"


def test_processes_with_other_step_sizes_do_not_begin():
    def part(transport):
        return setup(algorithm=proxdasa.ProxDASA(0.1, lambda k: 0.1 * (1 + transport.rank))).run(processes=transport)

    for told in in_threads(2, part):
        assert isinstance(told, ValueError)
        assert "do not have the same values of functions" in str(told)


def test_a_step_size_that_is_no_function_of_k_is_refused_where_it_would_have_to_be(tmp_path):
    calls = []

    def alpha(k):
        calls.append(k)
        return 0.1 / len(calls)

    made = setup(algorithm=proxdasa.ProxDASA(0.1, alpha))
    assert made.run().iterations == 6
    with pytest.raises(ValueError, match=r"algorithm.alpha is not a function of k alone: for k = 0 it was .* and then"):
        made.run(None, Saving(tmp_path))


def test_a_checkpoint_that_does_not_say_what_functions_computed_is_refused(tmp_path, monkeypatch):
    """Those of earlier versions do not."""
    made = setup(algorithm=proxdasa.ProxDASA(0.1, lambda k: 0.1))
    with monkeypatch.context() as patch:
        patch.setattr(identity.Identity, "digests", lambda _: {})
        stop(made, tmp_path)
    with pytest.raises(ValueError, match=r"does not say what algorithm.alpha computed in its run"):
        made.run(None, Saving(tmp_path))


def test_a_checkpoint_of_an_earlier_version_with_a_method_of_ones_own_is_not_refused(tmp_path, monkeypatch):
    made = setup(algorithm=method(1.0))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "first_results", lambda *_: {})
        stop(made, tmp_path)
    assert torch.equal(made.run(None, Saving(tmp_path)).x, made.run().x)


MLP = functools.partial(problems.models.mlp, inputs=2, hidden=3, outputs=2)


def from_network_file(folder, version):
    (folder / "edges.txt").write_text("0 1\n1 2\n2 3\n" + "3 0\n" * version)
    return setup(network=networks.from_file(folder / "edges.txt"))


def from_data_file(folder, version):
    """The versions differ in examples that the first step does not see."""
    lines = [f"{i % 2} 1:{i / 40} 2:{1 + version * (i % 10 > 4)}\n" for i in range(40)]
    (folder / "rows.svm").write_text("".join(lines))
    rows = data.libsvm(folder / "rows.svm")
    return setup(problem=problems.Supervised(MLP, rows, 4, partition=data.Contiguous()))


def from_agents_files(folder, version):
    for agent in range(4):
        (folder / f"{agent}.svm").write_text(f"1 1:{agent} 2:{1 + version}\n0 1:2 2:{1 + version}\n")
    rows = data.per_agent(folder / "{agent}.svm", features=2, labels=[0, 1])
    return setup(problem=problems.Supervised(MLP, rows, 4))


def from_hand(_folder, version):
    W = networks.ring(4).W if version else networks.complete(4).W
    return setup(network=networks.Network(W, "mine", {"name": "mine"}))


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (from_network_file, "network"),
        (from_data_file, "problem.data"),
        (from_agents_files, "problem.data"),
        (from_hand, "network"),
    ],
)
def test_files_that_have_changed_are_noticed(made, what, tmp_path):
    """A description has only their names."""
    one, saving = made(tmp_path, 0), Saving(tmp_path / "checkpoints")
    assert not one.loop().identity.strangers, "no code of the user's, so that several processes are still the default"
    stop(one, saving.folder)
    other = made(tmp_path, 1)
    assert other.config()["problem"] == one.config()["problem"]
    assert other.config()["network"] == one.config()["network"]
    with pytest.raises(ValueError, match=f"something of your own has changed: {what}; choose another folder"):
        other.run(None, saving)
    assert torch.equal(made(tmp_path, 0).run(None, saving).x, one.run().x), "and the run itself continues"


def test_checkpoints_that_do_not_store_the_loss_are_still_read(tmp_path, monkeypatch):
    """Those of earlier versions, with something of the user's own beside the files."""
    one, compute = from_data_file(tmp_path, 0), loop.first_results

    def without_loss(*given):
        return {name: values for name, values in compute(*given).items() if name != identity.LOSS}

    with monkeypatch.context() as earlier:
        earlier.setattr(loop, "first_results", without_loss)
        stop(one, tmp_path / "checkpoints")
    assert torch.equal(one.run(None, Saving(tmp_path / "checkpoints")).x, one.run().x)


def test_runs_of_our_own_parts_need_no_more_than_their_description(tmp_path):
    """So that their checkpoints are as they were, and no step is made to look at them."""
    model = functools.partial(problems.models.mlp, inputs=5, hidden=4, outputs=3)
    learning = problems.Supervised(model, DATA, 4, partition=data.partitions.Dirichlet(1.0))
    for changes in (
        {"problem": learning},
        *({"problem": problems.SingleIndex(4, 5, link, 2, evaluation=20)} for link in problems.LINKS),
        {"algorithm": proxdasa.ProxDASA(0.1, schedules.diminishing(0.3))},
        {"algorithm": proxdasa.SPPDM(2.0, 1.0, 0.1, 0.9, 0.01, momentum=schedules.nesterov())},
        {"regularizer": regularizers.Blocks([(0, 2, regularizers.L1(0.1))]), "mixing": proxdasa.Chebyshev(2)},
        {"metrics": [metrics.loss, metrics.table_stationarity(regularizers.L1(0.1)), metrics.merit(1.0)]},
        {"problem": problems.Repeated(PHASES, 1), "stop": proxdasa.Stationary(1e-4)},
    ):
        identity = setup(**changes).loop().identity
        assert (identity.own_schedules, identity.only_named) == ({}, [])
