"""A network, a loss and examples that do not fit are refused in a sentence, before anything is trained."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

import proxdasa
from proxdasa import data, networks
from proxdasa.cli import app
from proxdasa.problems import Supervised, cross_entropy, squared_error
from tests.laws import FEWER
from tests.setups import in_threads

X = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
LABELS, TARGETS = torch.arange(24) % 3, torch.linspace(-1, 1, 24)


def labelled(model, loss=cross_entropy, y=LABELS, test_y=None, **settings):
    rows = data.from_tensors(X, y, *([] if test_y is None else [X, test_y]))
    return Supervised(model, rows, **{"agents": 3, "loss": loss, "batch_size": 2} | settings)


def regression(model, loss, y=TARGETS, **settings):
    return labelled(model, loss, y, **settings)


def broadcasting(outputs, targets):
    return (outputs - targets).square().mean(1)


def one():
    return nn.Linear(5, 1)


class Returning(nn.Module):
    """A layer whose outputs go through a function."""

    def __init__(self, change, outputs=1):
        super().__init__()
        self.layer, self.change = nn.Linear(5, outputs), change

    def forward(self, x):
        return self.change(self.layer(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", ["drawn", "zeros"])
def test_a_loss_that_broadcasts_is_refused(dtype, start):
    """[N, 1] − [N] is [N, N]: the mean over a row compares one output with the targets of all examples."""
    module = one()
    if start == "zeros":  # where outputs are all alike, and as far from −1 as from 1
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
    words = r"loss broadcasting of two examples is \[.*\] together and \[.*\] one by one; .* \[2, 1\] and .* \[2\] may"
    with pytest.raises(ValueError, match=words):
        regression(module, broadcasting, dtype=dtype)


@FEWER
@given(st.integers(0, 2**32), st.sampled_from([1e-6, 1.0, 1e6]), st.sampled_from([torch.float32, torch.float64]))
def test_a_loss_that_broadcasts_is_refused_and_one_that_does_not_is_not(seed, scale, dtype):
    """Whatever the network's values and the targets' scale; the wide one sums up in another order."""
    random = torch.Generator().manual_seed(seed)
    y = scale * torch.randn(24, generator=random)
    wide = scale * torch.randn(24, 300, generator=random)
    module, large = one(), nn.Linear(5, 300)
    for parameter in (*module.parameters(), *large.parameters()):
        nn.init.normal_(parameter, std=scale, generator=random)
    for loss in (broadcasting, lambda o, t: (o - t).abs().mean(1), lambda o, t: (o - t).square().mean(0)):
        with pytest.raises(ValueError, match="must not depend on the others"):
            regression(module, loss, y, dtype=dtype)
    regression(module, squared_error, y, dtype=dtype)
    regression(large, squared_error, wide, dtype=dtype)
    regression(large, lambda o, t: (o - t).abs().mean(1), wide, dtype=dtype)
    labelled(large, dtype=dtype)


def test_targets_of_equal_sums_are_told_apart():
    """The first and the last one-hot target are equal, and would not reveal that the loss looks at all of them."""
    y = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 1, 2, 0]]
    examples = data.from_tensors(torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), y)
    with pytest.raises(ValueError, match="that of an example must not depend on the others"):
        Supervised(lambda: nn.Linear(2, 3), examples, 2, loss=lambda o, t: (o - t.mean(0)).square().sum(1))


def test_other_losses_that_look_at_several_examples_are_refused():
    def relative(outputs, targets):
        return cross_entropy(outputs / outputs.abs().max(), targets)

    with pytest.raises(ValueError, match="the loss relative of two examples is"):
        labelled(nn.Linear(5, 3), relative)

    def divided(outputs, targets):
        return cross_entropy(outputs, targets) / len(outputs)

    with pytest.raises(ValueError, match="the loss divided of two examples is"):
        labelled(nn.Linear(5, 3), divided)


@pytest.mark.parametrize(
    "loss",
    [
        squared_error,
        nn.MSELoss(reduction="none"),  # [N, 1] is one number for each example too
        lambda outputs, targets: functional.smooth_l1_loss(outputs, targets, reduction="none").mean(1),
    ],
)
def test_losses_that_fit_are_what_they_were(loss):
    p = regression(one(), loss, TARGETS.unsqueeze(1), dtype=torch.float64)
    x = torch.randn(1, 3, 6, dtype=torch.float64)
    outputs = X.double() @ x[0, 1, :5] + x[0, 1, 5]
    each = loss(outputs[p.parts[1]].unsqueeze(1), TARGETS.double()[p.parts[1]].unsqueeze(1))
    torch.testing.assert_close(p.evaluate(x).loss[0, 1], each.mean())


def test_outputs_without_an_axis_of_their_own():
    """squeeze(-1) leaves [N], which squared_error takes as it takes [N, 1]."""
    module = Returning(lambda o: o.squeeze(-1))
    p, other = regression(module, squared_error), regression(module.layer, squared_error)
    x = torch.randn(1, 3, 6)
    torch.testing.assert_close(p.evaluate(x).grad, other.evaluate(x).grad)


def narrow():
    return nn.Linear(4, 3)


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.last = [nn.Linear(5, 5, bias=False)], nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.hidden[0](x))


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets):
        return functional.cross_entropy(self.scale * outputs, targets, reduction="none")


REFUSED = {
    "inputs": (lambda: labelled(narrow), r"Linear fails on two examples, inputs of shape \[2, 5\]: mat1 and mat2"),
    "labels": (
        lambda: labelled(nn.Linear(5, 2)),
        "the label 2 is among the examples, but the number of the network's outputs is 2, for labels 0, ..., 1; "
        "it needs at least 3",
    ),
    "labels of test examples": (
        lambda: labelled(nn.Linear(5, 3), test_y=LABELS + 7),
        "the label 9 is among the examples, but the number of the network's outputs is 3, for labels 0, ..., 2",
    ),
    "labels of a loss of one's own": (
        lambda: labelled(nn.Linear(5, 2), lambda o, t: functional.cross_entropy(o, t, reduction="none")),
        r"the loss <lambda> fails for outputs of shape \[2, 2\] and labels \[2, 0\]: Target 2 is out of bounds",
    ),
    "targets for labels": (
        lambda: labelled(nn.Linear(5, 3), y=TARGETS),
        r"the loss cross_entropy fails for outputs of shape \[2, 3\] and targets of shape \[2\] in float32: ",
    ),
    "outputs": (
        lambda: regression(nn.Linear(5, 3), squared_error),
        r"the loss squared_error fails for outputs of shape \[2, 3\] and targets of shape \[2\] in float32: shape",
    ),
    "tuple": (
        lambda: labelled(Returning(lambda o: (o, o), 3)),
        "the network returns a tuple, but the loss cross_entropy takes one tensor; give a loss of your own, loss=",
    ),
    "dict": (lambda: labelled(Returning(lambda o: {"logits": o}, 3)), "the network returns a dict, but the loss cross"),
    "rows": (
        lambda: labelled(Returning(lambda o: o.flatten(), 3)),
        r"Returning returns outputs of shape \[6\] for two examples, .* one row for each example, \[2, ...\]",
    ),
    "squeeze": (
        lambda: regression(Returning(lambda o: o.squeeze()), squared_error),
        r"outputs of shape \[2\] for two examples, but \[\] for one; it must .* with squeeze\(-1\), say, in place of",
    ),
    "mean": (
        lambda: labelled(nn.Linear(5, 3), functional.cross_entropy),
        r"the loss cross_entropy must return one number for each example, \[2\] for .*; got \[\]; .* reduction=.none",
    ),
    "every output": (lambda: regression(one(), lambda o, t: (o - t) ** 2), r"for each example, \[2\] .*; got \[2, 2\]"),
    "not a tensor": (lambda: regression(one(), lambda o, t: 0.5), "one number for each example.*; got float"),
    "no gradient": (
        lambda: labelled(nn.Linear(5, 3), lambda o, t: (o.argmax(1) != t).float()),
        "the loss <lambda> has no gradient: its result does not depend on the parameters",
    ),
    "unused": (
        lambda: labelled(Returning(lambda o: o.detach() * nn.Parameter(torch.ones(3)), 3)),
        r"the loss does not depend on the network's parameter layer.weight; use it, or freeze it by requires_grad_",
    ),
    "layers in a list": (
        lambda: labelled(Listed()),
        r"the loss depends on a parameter of shape \[5, 5\] that is not the network's, .* with nn.ModuleList for",
    ),
    "parameters of the loss": (
        lambda: labelled(nn.Linear(5, 3), Tempered()),
        r"the loss depends on a parameter of shape \[\] that is not the network's, so it would never be trained",
    ),
    "no network": (lambda: labelled(dict), "model must be a network or a function that makes one; it makes {}"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_a_sentence(case):
    make, words = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=words) as refused:
        make()
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None, "no traceback of torch's"
    assert "\n" not in str(refused.value)


def test_derivatives_with_respect_to_inputs_are_no_parameters():
    class Slope(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(self.layer(x).square().sum(), x, create_graph=True)[0][:, :3]

    assert labelled(Slope(), path="loop").dim == 18


def test_labels_that_nobody_holds_do_not_matter():
    """Rows that the partition gives to no agent, and classes that do not occur."""
    early = lambda y, n: list(torch.arange(12).chunk(n))  # noqa: E731
    assert labelled(nn.Linear(5, 3), y=torch.cat([LABELS[:12], LABELS[12:] + 5]), partition=early).dim == 18
    rows = data.Dataset("few", X, LABELS, classes=10)
    assert Supervised(nn.Linear(5, 3), rows, 3).dim == 18


def test_accuracy_is_measured_where_outputs_are_classes_and_nowhere_else():
    """One output for two classes has no largest: there is a test loss, and no accuracy that would be made up."""

    def logistic(outputs, targets):
        return functional.binary_cross_entropy_with_logits(outputs.view(-1), targets.to(outputs), reduction="none")

    y = LABELS % 2
    for module in (one(), Returning(lambda o: o.squeeze(-1))):
        p = labelled(module, logistic, y, y)
        assert p.scores(p.start(0, 1).view(1, -1)).keys() == {"test_loss"}
    p = labelled(nn.Linear(5, 4), cross_entropy, y, y)
    assert p.scores(p.start(0, 1).view(1, -1)).keys() == {"test_loss", "accuracy"}


@pytest.fixture
def sites(tmp_path):
    """Three agents' files, of which only the last has the label 2; the second has one example."""
    for agent, rows in enumerate((torch.arange(0, 8), torch.arange(8, 9), torch.arange(9, 24))):
        y = LABELS[rows] if agent == 2 else LABELS[rows] % 2
        save_file({"x": X[rows], "y": y}, tmp_path / f"{agent}.safetensors")
    return data.per_agent(tmp_path / "{agent}.safetensors", labels=[0, 1, 2])


def test_files_of_sites_are_tried_where_they_are_read(sites):
    """Nothing is read when the problem is made; each process tries what its own agents hold."""
    p = Supervised(nn.Linear(5, 2), sites, 3)
    assert p.restrict(range(2)).dim == p.restrict(range(1, 2)).dim == 12
    for read in (lambda: p.restrict(range(2, 3)), lambda: p.parts, lambda: p.evaluate(torch.zeros(1, 3, 12))):
        with pytest.raises(ValueError, match="the label 2 is among the examples, but"):
            read()
    with pytest.raises(ValueError, match="fails on two examples"):
        Supervised(narrow, sites, 3).restrict(range(1, 2))


def test_all_processes_hear_what_does_not_fit_at_one(sites):
    made = proxdasa.runs.setup.Setup(proxdasa.DPSGD(0.1), Supervised(nn.Linear(5, 2), sites, 3), networks.ring(3))
    answers = in_threads(3, lambda transport: made.run(processes=transport, progress=None))
    assert all("the label 2 is among the examples" in str(answer) for answer in answers), answers


def test_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = """
    iterations = 3
    algorithm = { name = "DPSGD", gamma = 0.1 }
    network = "ring"
    [problem]
    name = "Supervised"
    agents = 3
    model = { name = "mlp", inputs = 64, outputs = 9 }
    data = "digits"
    """
    pytest.importorskip("sklearn")
    for old, new, words in (("", "", "the label 9 is among"), ("64", "65", "fails on two examples, inputs of shape")):
        (tmp_path / "run.toml").write_text(text.replace(old, new) if old else text)
        result = CliRunner().invoke(app, ["run", "run.toml", "--output", "results"])
        assert result.exit_code == 2, result.output
        assert len(result.stderr.splitlines()) == 1
        assert re.search(f"problem: .*{words}", result.stderr)
        assert not (tmp_path / "results").exists()
