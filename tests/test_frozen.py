"""What is frozen is constant: no part of x, the same for everybody, back in the network unchanged."""

import copy
import itertools
import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import proxdasa
from proxdasa import networks, regularizers
from proxdasa.data import from_tensors
from proxdasa.descriptions import describe
from proxdasa.problems import Supervised, models
from proxdasa.problems.stacked import chain_forward, is_chain, vmap_forward
from proxdasa.runs.checkpoints import fingerprint
from proxdasa.runs.setup import Setup
from proxdasa.samples import Samples
from tests.laws import FEWER
from tests.setups import in_threads

RNG = np.random.default_rng(0)
ROWS = from_tensors(
    RNG.normal(size=(40, 2, 4, 4)), RNG.integers(0, 3, 40), RNG.normal(size=(9, 2, 4, 4)), [0, 1, 2] * 3
)


class Skipping(nn.Module):
    """Not a chain."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 5), nn.Linear(5, 3)
        self.mask = nn.Parameter(torch.tensor([1, 0, 1, 1, 1]), requires_grad=False)  # always frozen
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        h = torch.tanh(self.first(x.flatten(1)))
        return self.last(h + h * self.mask) * self.scale


def chain():
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 4), nn.ReLU(), nn.Linear(4, 3))


def tied(made):
    """Two layers of a chain with one weight, or one bias."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(32, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    setattr(module[5], made, getattr(module[3], made))
    return module


MODELS = {
    "chain": chain,
    "skipping": Skipping,
    "tied weights": partial(tied, "weight"),
    "tied biases": partial(tied, "bias"),
}


def forward(module):
    return chain_forward(module, {}) if is_chain(module) else vmap_forward(module)


def problem(model, **settings):
    return Supervised(model, ROWS, **{"agents": 3, "batch_size": 4, "dtype": torch.float64} | settings)


def first_frozen():
    module = chain()
    module[0].requires_grad_(False)
    return module


def values(module):
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def train(p, **settings):
    method = proxdasa.ProxDASAGT(gamma=0.5, alpha=proxdasa.schedules.constant(0.3))
    settings = {"regularizer": regularizers.L1(1e-2), "iterations": 12, "observe_every": 12, "trials": 2} | settings
    return Setup(method, p, networks.ring(3), **settings)


@FEWER
@given(st.data())
def test_a_frozen_problem_is_the_whole_one_with_some_coordinates_held(data):
    """Losses, gradients and scores, whichever parameters are frozen, in stacked chains and in any other module."""
    name = data.draw(st.sampled_from(sorted(MODELS)))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    whole = MODELS[name]()
    names = [key for key, parameter in whole.named_parameters() if parameter.requires_grad]
    kept = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    part = copy.deepcopy(whole)
    for key, parameter in part.named_parameters():
        parameter.requires_grad_(key in kept)
    all_of_it, some_of_it = problem(whole), problem(part)
    sizes = {key: parameter.numel() for key, parameter in whole.named_parameters() if key in names}
    held = torch.cat([torch.full((size,), key in kept) for key, size in sizes.items()])
    assert some_of_it.dim == int(held.sum())
    assert torch.equal(some_of_it.start(0, 1), all_of_it.start(0, 1)[held])
    x = all_of_it.start(0, 1).expand(2, 3, -1).clone()
    x[..., held] += 0.3 * torch.randn(2, 3, some_of_it.dim, dtype=torch.float64)
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)
    sample = Samples(all_of_it, 0, 2, range(3))(7)
    close(some_of_it.grad(x[..., held], sample), all_of_it.grad(x, sample)[..., held])
    for mine, theirs in zip(some_of_it.evaluate(x[..., held]), all_of_it.evaluate(x), strict=True):
        close(mine, theirs[..., held] if mine.ndim == 3 else theirs)
    for score, value in some_of_it.scores(x[:, 0, held]).items():
        close(value, all_of_it.scores(x[:, 0])[score])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("make", [first_frozen, Skipping])
def test_a_frozen_layer_does_not_move(make, exact):
    module = make()
    before = values(module)
    result = train(problem(module), exact=exact).run()
    made = problem(module).module(result.mean[1])
    assert values(module).keys() == before.keys()
    for name, parameter in made.named_parameters():
        assert parameter.requires_grad == module.get_parameter(name).requires_grad
        assert torch.equal(parameter, before[name].to(parameter)) != parameter.requires_grad, name
        assert torch.equal(module.get_parameter(name), before[name]), "nor is the network that was given touched"
    outputs = problem(module).outputs(result.mean, ROWS.x)[1]
    torch.testing.assert_close(made(ROWS.x.double()).detach(), outputs, rtol=1e-12, atol=1e-12)


def test_a_vector_goes_back_in_its_own_type_and_nothing_else_does():
    p = problem(first_frozen(), dtype=torch.float32)
    for dtype in (torch.float32, torch.float64):
        made = p.module(torch.arange(float(p.dim), dtype=dtype) / 7)
        assert {parameter.dtype for parameter in made.parameters()} == {dtype}
        assert torch.equal(nn.utils.parameters_to_vector(made[3:].parameters()), torch.arange(p.dim, dtype=dtype) / 7)
        assert torch.equal(made[0].weight, p.model[0].weight.to(dtype))
    for wrong in (torch.zeros(p.dim + 26), torch.zeros(1, p.dim)):
        with pytest.raises(ValueError, match=rf"x must be a vector of shape \[{p.dim}\]; got a tensor of shape"):
            p.module(wrong)


def test_a_network_of_frozen_parameters_alone_is_refused():
    module = chain().requires_grad_(False)
    for model in (module, lambda: module):
        with pytest.raises(
            ValueError, match="Sequential has no parameters to train: all are frozen, with requires_grad"
        ):
            problem(model)


@pytest.mark.parametrize("initial", ["shared", "each", "zeros"])
def test_what_a_function_freezes_is_the_same_for_all(initial):
    p = problem(first_frozen, initial=initial)
    x = p.start(3, 2)
    assert x.shape[-1] == p.dim == problem(chain).dim - 27
    torch.manual_seed(0)
    expected = first_frozen()
    whole = Setup(proxdasa.DPSGD(0.1), p, networks.ring(3), trials=2).start()
    for trial, agent in itertools.product(range(2), range(3)):
        assert torch.equal(p.module(whole[trial, agent])[0].weight, expected[0].weight.double())
        assert torch.equal(
            p.restrict(range(agent, agent + 1)).module(x.flatten()[: p.dim])[0].weight, expected[0].weight.double()
        )


def test_frozen_values_that_no_generator_of_torch_gives_are_refused():
    draws = np.random.default_rng(0)

    def unlike():
        module = first_frozen()
        nn.init.constant_(module[0].weight, draws.normal())
        return module

    with pytest.raises(
        ValueError, match=r"gives its frozen parameter 0.weight different values in every call; pass the net"
    ):
        problem(unlike)


def test_processes_train_what_one_does():
    made = train(problem(first_frozen()), exact=True)
    first, *_ = in_threads(2, lambda transport: made.run(processes=transport))
    assert torch.equal(first.x, made.run().x)


def settled(make):
    """The run of such a network as its files describe it."""
    config = train(problem(make)).config()
    return fingerprint(json.loads(json.dumps(config)))


def namesake():
    """Another function of the same name, whose frozen values are others."""

    def unlike():
        module = first_frozen()
        nn.init.ones_(module[0].bias)
        return module

    unlike.__name__ = first_frozen.__name__
    return unlike


def test_runs_of_other_values_are_other_runs(tmp_path):
    """Frozen or not, the values of a network that is given decide what is computed; no checkpoint confuses them."""
    module, other, start = first_frozen(), first_frozen(), first_frozen()
    other.load_state_dict(module.state_dict())
    with torch.no_grad():
        other[0].bias[1] += 1e-3
        start.load_state_dict(module.state_dict())
        start[5].bias[1] += 1e-3
    assert settled(module) == settled(copy.deepcopy(module))
    assert settled(first_frozen) == settled(first_frozen)
    assert len({settled(made) for made in (module, other, start, first_frozen, namesake())}) == 5
    whole = proxdasa.runs.loop.Saving(tmp_path, 10)
    train(problem(module)).run(saving=whole)
    with pytest.raises(ValueError, match="belongs to a run with other settings"):
        train(problem(other)).run(saving=whole)


def test_networks_by_name_are_described_by_name():
    rows = from_tensors(torch.ones(6, 5), [0, 1] * 3)
    described = describe(Supervised(partial(models.mlp, inputs=5), rows, 3))
    assert described["name"] == "Supervised"
    assert described["model"] == {"name": "mlp", "inputs": 5}


@pytest.mark.parametrize("made", ["weight", "bias"])
def test_layers_that_share_a_weight_or_a_bias_share_it_in_stacked_copies(made):
    module, x = tied(made), torch.randn(2, 5, 2, 4, 4)
    parameters = {name: torch.stack([p.detach(), p.detach()]) for name, p in module.named_parameters()}
    expected = torch.stack([module(rows).detach() for rows in x])
    torch.testing.assert_close(forward(module)(parameters, x), expected)
