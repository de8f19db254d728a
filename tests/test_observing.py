"""What a run measures of perceptrons on many examples, against stacked copies; and how often, if it chooses."""

import math
import tracemalloc

import pytest
import torch
from torch import nn
from torch.nn import functional

import proxdasa
from proxdasa import configs, contracts, data, networks, problems
from proxdasa.problems import perceptrons
from proxdasa.problems.sparse_rows import SparseRows
from proxdasa.runs.observing import choose_pace
from proxdasa.runs.setup import Setup

MODELS = {
    "tanh": lambda: nn.Sequential(nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3)),
    "linear": lambda: nn.Sequential(nn.Linear(9, 3)),
    "no bias": lambda: nn.Sequential(nn.Linear(9, 20, bias=False), nn.Tanh(), nn.Linear(20, 3, bias=False)),
    "deep": lambda: nn.Sequential(
        nn.Linear(9, 20), nn.ReLU(inplace=True), nn.Linear(20, 4), nn.GELU(), nn.Identity(), nn.Linear(4, 17)
    ),
    "two tanh": lambda: nn.Sequential(
        nn.Linear(9, 20),
        nn.Tanh(),
        nn.Linear(20, 4, bias=False),
        nn.Tanh(),
        nn.Linear(4, 3),
        nn.Sigmoid(),
        nn.Linear(3, 3),
    ),
    "layers without weights in a row": lambda: nn.Sequential(
        nn.Linear(9, 20), nn.Sigmoid(), nn.Tanh(), nn.Tanh(), nn.Sigmoid(), nn.Linear(20, 3)
    ),
}


def mean_of_squares(outputs, targets):
    return (outputs.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)).square()


def examples(kind, count=60, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 9, generator=random, dtype=torch.float64)
    mask = torch.rand(count, 9, generator=random) < 0.1
    mask[0] = False  # an example without any
    mixed = x * mask
    mixed[shuffle(count)[:25]] = x[shuffle(count)[:25]]  # so that some chunks are sparse, and others are not
    inputs = {"dense": x, "sparse": x * mask, "binary": mask.double(), "mixed": mixed}[kind]
    return inputs, torch.randint(0, 3, (count,), generator=random)


def shuffle(count):
    return torch.randperm(count, generator=torch.Generator().manual_seed(3))


def uneven(y, agents, _sites=None):
    return list(torch.split(shuffle(len(y))[:50], [5, 15, 30]))


def problem(model="tanh", kind="sparse", tests=True, **settings):
    test = examples(kind, 25, seed=1) if tests else (None, None)
    made = data.from_tensors(*examples(kind), *test)
    return problems.Supervised(MODELS[model], made, agents=3, partition=uneven, **settings)


@pytest.fixture
def always(monkeypatch):
    """Perceptrons on a few examples, in several chunks."""
    monkeypatch.setattr(perceptrons, "MANY", 1)
    monkeypatch.setattr(perceptrons, "CHUNK", 7 * 20)
    monkeypatch.setattr(perceptrons, "PIECE", 1000)


def combinations():
    """Each model on each kind of examples; both weights for one model, and for the others in turn."""
    for place, model in enumerate(MODELS):
        for turn, kind in enumerate(["dense", "sparse", "binary", "mixed"]):
            for weights in ("agents", "examples"):
                taken = model == "tanh" or (weights == "agents") == ((place + turn) % 2 == 0)
                yield pytest.param(model, kind, weights, marks=[] if taken else [pytest.mark.slow])


@pytest.mark.parametrize(("model", "kind", "weights"), list(combinations()))
def test_fast_measures_are_those_of_stacked_copies(model, kind, weights, always):
    p = problem(model, kind, weights=weights, loss=mean_of_squares if model == "linear" else problems.cross_entropy)
    x = p.start(0, 2)[:, :1] + 0.3
    assert p.observed is not None
    found = {chunk.sparse is not None for chunk in p.observed._training_chunks}
    assert found == {False} if kind == "dense" else True in found, "chunks of a few examples may be dense"
    assert kind != "mixed" or found == {False, True}
    count = sum(len(chunk.rows) for chunk in p.observed._training_chunks)
    assert count < 50 if kind == "binary" else count == 50 or kind != "dense", "examples that repeat others count once"
    for got, expected in zip(p.observed.evaluate(x), p.evaluate(x), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(p.observed.scores(x[:, 0]), p.scores(x[:, 0]), rtol=1e-12, atol=1e-12)
    assert p.observed.scores(x[:, 0]).keys() == {"test_loss", "accuracy"}


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_perceptron_whose_first_layer_is_zero_predicts_the_first_class(kind, always):
    """As L1 can make it: all classes have the same output, and rounding must not decide between them."""
    p = problem("no bias", kind, dtype=torch.float32)
    x = p.start(0, 5)[:, 0]
    x[:, : 9 * 20] = 0
    share = (p.data.test_y == 0).float().mean()
    assert torch.equal(p.observed.scores(x)["accuracy"], share.expand(5))


def one_hot(counts, rows):
    """Rows with one of so many columns for each attribute, some of which are missing."""
    random = torch.Generator().manual_seed(0)
    columns = [functional.one_hot(torch.randint(0, count, (rows,), generator=random), count) for count in counts]
    present = torch.rand(rows, len(counts), 1, generator=random) < 0.9
    return torch.cat([each * present[:, place] for place, each in enumerate(columns)], dim=1).double()


@pytest.mark.parametrize(
    ("matrix", "factors"),
    [
        (one_hot([3, 2, 4, 3, 2, 3, 2], 2000), {3, 4}),
        (one_hot([40] * 6, 50), {1}),  # hardly a pair occurs twice
        (2 * one_hot([3, 2, 4, 3], 2000), {1}),  # not only ones
        (torch.zeros(3, 4, dtype=torch.float64), {1}),
    ],
    ids=["few pairs", "many pairs", "numbers", "empty"],
)
def test_sparse_products_are_those_of_the_matrix(matrix, factors):
    """The tables hold whole numbers, so that sums in any order are equal."""
    sparse = SparseRows(matrix)
    assert len(sparse.factors) in factors
    random = torch.Generator().manual_seed(1)
    for product, factor in ((sparse.times, matrix), (sparse.transposed_times, matrix.T)):
        table = torch.randint(-9, 9, (factor.shape[1], 5), generator=random).double()
        assert torch.equal(product(table), factor @ table)
    ones = sum(len(rows.columns) for rows, _ in sparse.factors)
    assert ones <= matrix.count_nonzero()
    assert len(sparse.factors) == 1 or ones < 0.6 * matrix.count_nonzero()


@pytest.mark.parametrize(("inputs_only", "count"), [(False, 1500 + 250), (True, 1500)])
def test_examples_that_repeat_others_are_found_in_little_memory(inputs_only, count):
    """Against a dictionary; the weights are whole numbers, so that their sums are exact."""
    x = (torch.rand(4000, 1000, generator=torch.Generator().manual_seed(0)) < 0.1).float()
    x[3000:] = x[:1000]
    y, weights = torch.arange(4000) % 3000, torch.arange(4000.0)
    y[3500:] = 0  # the same inputs as those of 500 to 999, and other targets
    examples = perceptrons.Examples(x, y, torch.arange(0, 4000, 2), weights[::2])
    tracemalloc.start()
    rows, names = examples.distinct(inputs_only)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 2
    expected = {}
    for row in range(0, 4000, 2):
        expected.setdefault((x[row].numpy().tobytes(), inputs_only or int(y[row])), []).append(row)
    # In the order of the patterns of zeros, and examples with the same one in that of their first appearance.
    merged = sorted(expected.values(), key=lambda rows: (x[rows[0]] != 0).tolist())
    assert rows.tolist() == [rows[0] for rows in merged]
    assert examples.total_weights(names, len(rows)).tolist() == [sum(rows) for rows in merged]
    assert len(expected) == count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_that_numpy_may_not_know_are_measured_too(dtype, always):
    p = problem(kind="binary", dtype=dtype)
    x = p.start(0, 2)[:, :1] + 0.3
    assert p.observed is not None
    for got, expected in zip(p.observed.evaluate(x), p.evaluate(x), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(p.observed.scores(x[:, 0]), p.scores(x[:, 0]), rtol=0.02, atol=0.02)


def test_runs_measure_fast_unless_they_are_exact(always, monkeypatch):
    def records(exact):
        method = proxdasa.ProxDASA(gamma=0.5, alpha=0.3)
        made = Setup(method, problem(), networks.ring(3), iterations=6, trials=2, observe_every=2, exact=exact)
        names = ("k", "loss", "stationarity", "dual_gap", "test_loss", "accuracy")
        return [{name: row[name] for name in names} for row in made.run().records]

    fast, exact = records(False), records(True)
    for got, expected in zip(fast, exact, strict=True):
        assert got == pytest.approx(expected, rel=1e-9, abs=1e-12)
    monkeypatch.setattr(perceptrons.Perceptrons, "evaluate", None)
    monkeypatch.setattr(perceptrons.Perceptrons, "scores", None)
    assert records(True) == exact
    with pytest.raises(TypeError, match="not callable"):
        records(False)


def test_other_networks_and_few_examples_are_measured_as_before(monkeypatch):
    assert problem().observed is None, "few examples"
    monkeypatch.setattr(perceptrons, "MANY", 1)
    frozen = MODELS["tanh"]()
    frozen[0].weight.requires_grad_(False)
    for model in (frozen, nn.Sequential(nn.Tanh(), nn.Linear(9, 3)), nn.Linear(9, 3)):
        made = problems.Supervised(model.double(), data.from_tensors(*examples("dense")), agents=3)
        assert made.observed is None
    assert problem(tests=False).observed.scores(problem().start(0, 1)[:, 0]) == {}


def test_the_pace_follows_from_sizes():
    p = problem(batch_size=4)
    per_example = 2 * (2 * (9 * 5 + 5 * 3)) + 2 * 5 * 3  # forward, gradients of weights, and of the hidden layer
    counted = max(per_example, 6 * p.dim)
    assert p.work == pytest.approx((4 * counted, counted * (50 + 25 / 3) / 3))
    setup = lambda every, K=1_000, of=p: Setup(  # noqa: E731
        proxdasa.ProxDASA(0.1), of, networks.ring(3), iterations=K, observe_every=every
    )
    assert setup("auto").observe_every == setup("auto").config()["observe_every"] == 1
    repeated = problems.Repeated(problems.PhaseRetrieval(agents=3, dim=10, evaluation=10_000), 1)
    assert repeated.work == (60, 600_000)
    assert 4 * 600_000 / (60 + 5_000) < 500
    assert setup("auto", of=repeated).observe_every == 500
    assert setup("auto", K=300, of=repeated).observe_every == 300
    assert setup(7, of=repeated).observe_every == 7


def test_a_pace_is_not_guessed():
    class Unknown:
        dim, epoch = 3, math.inf

    with pytest.raises(ValueError, match='"auto" needs to know what an evaluation costs, but Unknown does not say'):
        choose_pace(Unknown(), 10)
    Unknown.epoch = 1_000.0
    assert choose_pace(Unknown(), 10**6) == 50
    with pytest.raises(ValueError, match="observe_every must be a whole number"):
        Setup(proxdasa.ProxDASA(0.1), problem(), networks.ring(3), observe_every="often")
    assert contracts.observed_of(Unknown()) is None


def test_files_may_say_auto(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'iterations = 40\nobserve_every = "auto"\n[algorithm]\nname = "ProxDASA"\ngamma = 0.01\n'
        '[problem]\nname = "PhaseRetrieval"\nagents = 3\ndim = 10\nevaluation = 100\n[network]\nname = "ring"\n'
    )
    assert configs.read(file).observe_every == 5
