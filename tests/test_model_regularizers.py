"""Regularisers by the names of parameters, and with neurons as groups, against sums over a module's parameters."""

import pytest
import torch
from torch import nn

import proxdasa
from proxdasa import data, networks
from proxdasa.problems import Supervised, models
from proxdasa.regularizers import (
    L1,
    Blocks,
    ElasticNet,
    NuclearNorm,
    RowL2,
    SquaredL2,
    Zero,
    by_parameter,
    group_neurons,
)
from proxdasa.schedules import per_trial


class Branches(nn.Module):
    """Two layers in parallel, of which the output is not the last."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 4)
        self.out = nn.Linear(4, 2)
        self.skip = nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.left(x).tanh() * self.right(x)) + self.skip(x)


def problem(model):
    return Supervised(model, data.from_tensors(torch.randn(20, 3), torch.arange(20) % 2), agents=2)


def test_values_are_sums_over_parameters_and_frozen_ones_are_no_part_of_x():
    model = Branches().double()
    model.left.requires_grad_(False)
    x = torch.randn(problem(model).dim, dtype=torch.float64)
    psi = by_parameter(
        model, {"out.*": SquaredL2(0.3), "right.weight": NuclearNorm(0.2, (4, 3)), "*.weight": L1(0.1), "*": Zero()}
    )
    filled = problem(model).module(x)
    right = torch.linalg.svdvals(filled.right.weight).sum()
    ridge = filled.out.weight.square().sum() + filled.out.bias.square().sum()
    expected = 0.15 * ridge + 0.2 * right + 0.1 * filled.skip.weight.abs().sum()
    torch.testing.assert_close(psi.value(x), expected.detach())
    stepped = problem(model).module(psi.prox(x, 0.7))
    torch.testing.assert_close(stepped.skip.weight, L1(0.1).prox(filled.skip.weight, 0.7))
    torch.testing.assert_close(stepped.skip.bias, filled.skip.bias)
    torch.testing.assert_close(stepped.right.bias, filled.right.bias)
    torch.testing.assert_close(stepped.out.bias, filled.out.bias / 1.21)


def test_functions_that_make_modules_are_called_without_a_trace_in_the_generator():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    psi = by_parameter(lambda: models.mlp(3, 4, 2), {"*": L1(0.1)})
    assert torch.equal(torch.rand(2), expected)
    assert psi == by_parameter(models.mlp(3, 4, 2), {"*": L1(0.1)})


def test_parameters_without_regularizer_are_left_alone():
    assert by_parameter(models.mlp(3, 4, 2), {"*": Zero()}) == Zero()
    assert by_parameter(models.mlp(3, 4, 2), {"2.weight": L1(1.0), "*": Zero()}) == Blocks([(16, 24, L1(1.0))])


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({"*.weight": L1(1.0)}, "no pattern matches 0.bias, 2.bias"),
        ({"*": L1(1.0), "*.bias": Zero()}, r"'\*\.bias' matches no trained parameter .* 0.weight, 0.bias, 2.weight"),
        ({"*": L1(1.0), "conv*": Zero()}, "'conv"),
        ({"*": 0.1}, r"the regularizer of '\*'"),
        (L1(1.0), "patterns must be regularizers by name"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(patterns, message):
    with pytest.raises((ValueError, TypeError), match=message):
        by_parameter(models.mlp(3, 4, 2), patterns)


def test_neurons_of_hidden_layers_are_groups():
    model = models.lenet()
    psi = group_neurons(model, 0.5)
    assert [part[2].shape for part in psi.parts] == [(6, 25), (16, 150), (84, 256)]
    x = torch.cat([p.detach().flatten() for p in model.parameters()])
    layers = [model[0], model[3], model[7]]
    norms = [torch.cat([layer.weight.flatten(1), layer.bias[:, None]], 1).norm(dim=1).sum() for layer in layers]
    torch.testing.assert_close(psi.value(x), 0.5 * sum(norms).detach())
    assert torch.equal(psi.prox(x, 1.0)[-850:], x[-850:])  # the outputs


def test_layers_without_bias_or_with_a_frozen_one_have_groups_of_weights():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    model[2].bias.requires_grad_(False)
    assert group_neurons(model, 1.0) == Blocks([(0, 12, RowL2(1.0, (4, 3))), (12, 32, RowL2(1.0, (5, 4)))])
    model[0].requires_grad_(False)
    assert group_neurons(model, 1.0) == Blocks([(0, 20, RowL2(1.0, (5, 4)))])


def test_layers_of_other_modules_are_named():
    psi = group_neurons(Branches, per_trial([0.1, 0.2]), layers=["left", "right"])
    assert psi == Blocks(
        [(0, 16, RowL2(per_trial([0.1, 0.2]), (4, 3), True)), (16, 32, RowL2(per_trial([0.1, 0.2]), (4, 3), True))]
    )


def frozen():
    model = models.mlp(3, 4, 2)
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: group_neurons(Branches, 0.1), r"known only for a chain.* give layers=.* left, right, out, skip"),
        (lambda: group_neurons(Branches, 0.1, layers=["lefty"]), "'lefty' is not a Linear or Conv2d .* left, right"),
        (lambda: group_neurons(frozen(), 0.1), "no hidden Linear or Conv2d layer whose weights are trained"),
        (lambda: group_neurons(frozen(), 0.1, layers=["0"]), "the weights of '0' are frozen"),
        (lambda: group_neurons(nn.Linear(2, 2), 0.1), "known only for a chain"),
        (lambda: group_neurons(nn.Sequential(nn.Linear(2, 2)), 0.1), "no hidden"),
        (lambda: group_neurons(models.mlp(3, 4, 2), -1.0), "RowL2.weight must be"),
        (lambda: group_neurons(3, 0.1), "model must be a network or a function that makes one; got 3"),
        (lambda: by_parameter(lambda: 3, {"*": Zero()}), "it makes 3"),
    ],
)
def test_groups_that_do_not_fit_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_group_lasso_prunes_neurons_in_three_lines():
    """The labels depend on one of three inputs: most of 16 neurons are not needed."""
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    examples = data.from_tensors(x, (x[:, 0] > 0).long())
    problem = Supervised(lambda: models.mlp(3, 16, 2), examples, agents=4, batch_size=20)
    psi = group_neurons(problem.model, 0.03)
    settings = {"regularizer": psi, "iterations": 200, "observe_every": 200}
    result = proxdasa.run(proxdasa.ProxDASAGT(1.0, 0.3), problem, networks.ring(4), **settings)
    model = problem.module(result)
    small = proxdasa.prune(model)
    assert 1 <= small[0].out_features <= 8
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)
    assert (small(x).argmax(1) == examples.y).float().mean() > 0.9


def test_elastic_nets_by_name_take_weights_per_trial():
    psi = by_parameter(models.mlp(3, 4, 2), {"*.weight": ElasticNet(per_trial([0.1, 0.4]), 0.2), "*": Zero()})
    x = torch.randn(2, 3, 26)
    torch.testing.assert_close(
        psi.value(x)[1, 2], Blocks([(0, 12, ElasticNet(0.4, 0.2)), (16, 24, ElasticNet(0.4, 0.2))]).value(x[1, 2])
    )
