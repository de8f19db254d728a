"""Pruning: a smaller chain with the same outputs; whatever cannot be followed is refused."""

import copy
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import proxdasa
from proxdasa.problems import models

ACTIVATIONS = (
    nn.Tanh, nn.ReLU, lambda: nn.ReLU(inplace=True), nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus,
    nn.Identity,
)  # fmt: skip

POOLS = {
    nn.MaxPool2d(2, padding=1): True,
    nn.AvgPool2d(2): True,
    nn.AvgPool2d(3, ceil_mode=True): True,
    nn.AvgPool2d(2, padding=1, count_include_pad=False): True,
    nn.AvgPool2d(2, padding=1): False,
    nn.AvgPool2d(2, divisor_override=3): False,
}
"""Pooling layers, and whether they leave a constant as it is."""


def empty(layer, neurons, bias=True):
    """Set the incoming weights of some neurons to zero, and their biases if ``bias``."""
    with torch.no_grad():
        layer.weight[neurons] = 0.0
        if bias and layer.bias is not None:
            layer.bias[neurons] = 0.0


def sizes(chain):
    return [tuple(p.shape) for p in chain.parameters()]


def agree(chain, x):
    """The pruned chain, after checking that its outputs are equal and that the original is untouched."""
    before = copy.deepcopy(chain.state_dict())
    small = proxdasa.prune(chain)
    torch.testing.assert_close(small(x), chain(x), rtol=1e-10, atol=1e-10)
    assert all(torch.equal(before[name], now) for name, now in chain.state_dict().items())
    assert sum(p.numel() for p in small.parameters()) <= sum(p.numel() for p in chain.parameters())
    return small


@st.composite
def chains(draw):
    """A random chain, random neurons of which are empty or silent, and inputs for it."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    width = st.integers(1, 5)
    layers, images = [], draw(st.booleans())
    channels, side = draw(width), 12
    x = torch.randn(3, channels, side, side) if images else torch.randn(3, channels)
    for _ in range(draw(st.integers(1, 2)) if images else 0):
        padding, kernel = draw(st.sampled_from([0, 1])), draw(st.sampled_from([1, 3]))
        mode = draw(st.sampled_from(["zeros", "reflect"]))
        layers.append(
            nn.Conv2d(
                channels, channels := draw(width), kernel, padding=padding, padding_mode=mode, bias=draw(st.booleans())
            )
        )
        layers.append(draw(st.sampled_from(ACTIVATIONS))())
        if draw(st.booleans()):
            layers.append(draw(st.sampled_from(list(POOLS))))
    if images:
        layers += [nn.Flatten(), draw(st.sampled_from(ACTIVATIONS))()]
    features = nn.Sequential(*layers).double()(x.double()).shape[1] if layers else channels
    for _ in range(draw(st.integers(1, 3))):
        layers.append(nn.Linear(features, features := draw(width), bias=draw(st.booleans())))
        layers.append(draw(st.sampled_from(ACTIVATIONS))())
    layers.append(nn.Linear(features, 2, bias=draw(st.booleans())))
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            empty(layer, torch.rand(len(layer.weight)) < 0.4, bias=draw(st.booleans()))
            if draw(st.booleans()):
                with torch.no_grad():
                    layer.weight[:, torch.rand(layer.weight.shape[1]) < 0.3] = 0.0
    return nn.Sequential(*layers).double(), x.double()


@given(chains())
def test_outputs_are_equal_and_nothing_more_can_be_cut(case):
    chain, x = case
    small = agree(chain, x)
    assert sizes(proxdasa.prune(small)) == sizes(small)
    assert [type(layer) for layer in small] == [type(layer) for layer in chain]
    for layer in small:
        if isinstance(layer, nn.Linear):
            assert (layer.out_features, layer.in_features) == layer.weight.shape
        elif isinstance(layer, nn.Conv2d):
            assert (layer.out_channels, layer.in_channels) == layer.weight.shape[:2]


def test_a_perceptron_loses_its_empty_neurons():
    chain = models.mlp(4, 8, 3).double()
    empty(chain[0], [0, 3, 7])
    small = agree(chain, torch.randn(5, 4, dtype=torch.float64))
    assert sizes(small) == [(5, 4), (5,), (3, 5), (3,)]


def test_lenet_loses_channels_through_flatten():
    chain = models.lenet().double()
    empty(chain[0], [1, 2])
    empty(chain[3], [0, 5, 15])
    empty(chain[7], range(80))
    small = agree(chain, torch.randn(2, 1, 28, 28, dtype=torch.float64))
    assert [tuple(layer.weight.shape) for layer in small if hasattr(layer, "weight")] == [
        (4, 1, 5, 5), (13, 4, 5, 5), (4, 13 * 16), (10, 4),
    ]  # fmt: skip


def test_a_constant_moves_into_the_next_bias_even_if_there_was_none():
    chain = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2, bias=False)).double()
    empty(chain[0], [0, 1])
    small = agree(chain, torch.randn(5, 3, dtype=torch.float64))
    assert small[0].out_features == 2
    torch.testing.assert_close(small[2].bias.data, chain[2].weight.data[:, :2].sum(1) / 2)


@pytest.mark.parametrize(("activation", "left"), [(nn.Tanh, 1), (nn.Sigmoid, 3)])
def test_before_zero_padding_only_zeros_are_cut(activation, left):
    chain = nn.Sequential(nn.Conv2d(1, 3, 3), activation(), nn.Conv2d(3, 2, 3, padding=1)).double()
    empty(chain[0], [0, 2])
    assert agree(chain, torch.randn(2, 1, 8, 8, dtype=torch.float64))[0].out_channels == left


@pytest.mark.parametrize(("pool", "averages"), POOLS.items(), ids=str)
def test_constants_pass_through_pools_that_leave_them_as_they_are(pool, averages):
    chain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Sigmoid(), pool, nn.Conv2d(3, 2, 2)).double()
    empty(chain[0], [0, 2])
    assert agree(chain, torch.randn(2, 1, 10, 10, dtype=torch.float64))[0].out_channels == (1 if averages else 3)


@pytest.mark.parametrize(("activation", "left"), [(nn.Tanh, 2), (nn.Softplus, 4)])
def test_dropout_keeps_zeros_only(activation, left):
    chain = nn.Sequential(nn.Linear(3, 4), activation(), nn.Dropout(0.5), nn.Linear(4, 2)).double().eval()
    empty(chain[0], [1, 2])
    small = agree(chain, torch.randn(2, 3, dtype=torch.float64))
    assert small[0].out_features == left
    assert not small.training


def test_cuts_reach_the_layers_before_and_after():
    """Neuron 0 of the first layer is needed only by neuron 0 of the second, which nothing needs."""
    chain = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        chain[2].weight[1, 0] = 0.0
        chain[4].weight[0, 0] = 0.0
    small = agree(chain, torch.randn(5, 3, dtype=torch.float64))
    assert sizes(small) == [(1, 3), (1,), (1, 1), (1,), (1, 1), (1,)]


def test_a_layer_keeps_one_neuron_and_outputs_are_never_cut():
    chain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.LogSoftmax(-1)).double()
    empty(chain[0], range(4))
    empty(chain[2], [0])
    assert sizes(agree(chain, torch.randn(5, 3, dtype=torch.float64))) == [(1, 3), (1,), (2, 1), (2,)]


def test_linear_layers_on_sequences_are_followed_through_flatten():
    chain = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Flatten(), nn.Linear(4 * 5, 2)).double()
    empty(chain[0], [0, 2])
    assert agree(chain, torch.randn(6, 5, 3, dtype=torch.float64))[3].in_features == 10


def test_names_types_and_frozen_layers_are_kept():
    chain = nn.Sequential(OrderedDict(first=nn.Linear(3, 4), act=nn.Tanh(), second=nn.Linear(4, 2)))
    chain.first.requires_grad_(False)
    empty(chain.first, [0])
    small = proxdasa.prune(chain)
    assert list(dict(small.named_children())) == ["first", "act", "second"]
    assert not small.first.weight.requires_grad
    assert small.second.weight.requires_grad
    assert small.first.weight.dtype == torch.float32


def hooked():
    chain = models.mlp(3, 4, 2)
    chain[1].register_forward_hook(lambda *_: None)
    return chain


def replaced():
    chain = models.mlp(3, 4, 2)
    chain[1].forward = torch.cos
    return chain


def tied():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


class Twice(nn.Linear):
    """A layer that is not what its type says."""


REFUSED = {
    "module": (lambda: nn.Linear(2, 2), "prune takes a chain, an nn.Sequential of layers; got Linear"),
    "nested": (lambda: nn.Sequential(models.mlp(3, 4, 2), nn.Linear(2, 1)), "has layers of its own"),
    "tied": (tied, "some are shared"),
    "hooks": (hooked, r"Tanh \(layer '1'\) has hooks"),
    "forward": (replaced, r"Tanh \(layer '1'\) has hooks, or another forward method"),
    "subclass": (lambda: nn.Sequential(Twice(2, 2), nn.Linear(2, 2)), r"Twice \(layer '0'\) is a kind of layer"),
    "groups": (lambda: nn.Sequential(nn.Conv2d(2, 2, 1, groups=2), nn.Conv2d(2, 2, 1)), "2 groups of channels"),
    "norm": (lambda: nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2)), r"LayerNorm \(layer '1'\) lies"),
    "softmax": (lambda: nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1), nn.Linear(2, 2)), "Softmax"),
    "no flatten": (lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Linear(2, 2)), "does not follow"),
    "pooled vectors": (lambda: nn.Sequential(nn.Linear(4, 4), nn.MaxPool2d(2), nn.Linear(2, 2)), "MaxPool2d"),
    "back to images": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Conv2d(4, 4, 1)), "does not follow"),
    "other flatten": (lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(2), nn.Linear(4, 2)), "Flatten"),
    "sizes": (lambda: nn.Sequential(nn.Conv2d(1, 3, 1), nn.Flatten(), nn.Linear(4, 2)), "the sizes match"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_followed_is_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        proxdasa.prune(make())
