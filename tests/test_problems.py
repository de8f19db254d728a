"""Problems: gradients against autograd, populations against samples, evaluation against plain loops."""

import itertools
import math

import numpy as np
import pytest
import torch

from proxdasa import problems
from proxdasa.problems import IDENTITY, SQUARE, TANH, Link, PhaseRetrieval, Quadratic, SingleIndex, single_index
from proxdasa.samples import Samples

LINKS = pytest.mark.parametrize("link", [SQUARE, IDENTITY, TANH], ids=lambda link: link.name)


def model(link=SQUARE, agents=3, **settings):
    return SingleIndex(agents=agents, dim=6, link=link, sparsity=3, dtype=torch.float64, **settings)


def points(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


@LINKS
def test_sample_gradient_is_the_gradient_of_the_sample_loss(link):
    problem = model(link)
    x, sample = points(2, 3, 6).requires_grad_(), Samples(problem, 0, 2, range(3))(0)
    X, Y = sample[..., :-1], sample[..., -1]
    loss = (Y - link.value((X * x).sum(-1))).square().sum()
    (expected,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(problem.grad(x.detach(), sample), expected, rtol=1e-12, atol=1e-12)


@LINKS
def test_samples_follow_the_model(link):
    """Y − g(Xᵀθ*) is noise of the given size, independent of X; X is standard normal."""
    problem = model(link, noise=0.3)
    samples = Samples(problem, 0, 40, range(3))
    drawn = torch.cat([samples(k).reshape(-1, 7) for k in range(64)])
    X, noise = drawn[:, :-1], drawn[:, -1] - link.value(drawn[:, :-1] @ problem.truth)
    assert float(noise.std()) == pytest.approx(0.3, rel=0.03)
    assert float(noise.mean()) == pytest.approx(0, abs=0.015)
    np.testing.assert_allclose(np.cov(X.T.numpy()), np.eye(6), atol=0.06)
    assert float((noise.unsqueeze(-1) * X).mean(0).abs().max()) < 0.02


@LINKS
def test_evaluation_is_the_mean_over_the_agents_points(link):
    problem = model(link, evaluation=37)
    x = points(2, 3, 6).requires_grad_()
    X, Y = problem._draw(range(3))
    losses = [[(Y[i, :, 0] - link.value(X[i] @ x[t, i])).square().mean() for i in range(3)] for t in range(2)]
    expected = torch.stack([torch.stack(row) for row in losses])
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    got = problem.evaluate(x.detach())
    torch.testing.assert_close(got.loss, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.grad, gradient, rtol=1e-12, atol=1e-12)


def test_evaluation_at_a_shared_point_covers_all_agents():
    problem = model(evaluation=50)
    shared = points(2, 1, 6)
    wide, narrow = problem.evaluate(shared.expand(2, 3, 6)), problem.evaluate(shared)
    assert narrow.grad.shape == (2, 3, 6)
    assert torch.equal(wide.loss, narrow.loss)
    quadratic = Quadratic(torch.eye(6).double().expand(3, 6, 6), points(3, 6))
    assert quadratic.evaluate(shared).grad.shape == (2, 3, 6)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("limits", [{"KEPT": 0}, {"MANY": 2, "ROWS": 40}, {"KEPT": 0, "MANY": 2, "ROWS": 1}])
def test_points_that_are_drawn_again_or_read_in_blocks_are_the_same(limits, shared, monkeypatch):
    """Many agents, or more points than are kept in memory: to the last digits, evaluations are those of all at once."""
    x = points(2, 1 if shared else 7, 6)
    whole = model(agents=7, evaluation=20).evaluate(x)
    for name, limit in limits.items():
        monkeypatch.setattr(single_index, name, limit)
    parts = model(agents=7, evaluation=20)
    assert len(parts._blocks) > 1 or "ROWS" not in limits
    assert bool(parts._held) == ("KEPT" not in limits)
    torch.testing.assert_close(parts.evaluate(x), whole, rtol=1e-12, atol=1e-12)


def test_evaluation_points_belong_to_their_agents():
    """Agent i has the same points whether 3 or 5 agents exist, and other points than agent j."""
    three, five = (model(agents=n, evaluation=20)._draw(range(n))[0] for n in (3, 5))
    assert torch.equal(three, five[:3])
    assert not torch.any(five[0] == five[1])


@pytest.mark.parametrize("link", [SQUARE, IDENTITY], ids=lambda link: link.name)
def test_population_is_the_limit_of_the_evaluation_sample(link):
    """A million points at random places; also exactly the formula's own derivative."""
    sampled = model(link, agents=4, evaluation=250_000, noise=0.5)
    exact = model(link, agents=4, evaluation="population", noise=0.5)
    x = 0.7 * points(3, 1, 6, seed=2)
    means = [part.mean(1) for part in sampled.evaluate(x)]
    loss, grad = exact.evaluate(x)
    torch.testing.assert_close(means[0], loss[:, 0], rtol=0.03, atol=0)
    torch.testing.assert_close(means[1], grad[:, 0], rtol=0, atol=0.03 * float(grad.norm(dim=-1).max()))
    x.requires_grad_()
    (slope,) = torch.autograd.grad(exact.evaluate(x).loss.sum(), x)
    torch.testing.assert_close(exact.evaluate(x).grad, slope, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [0.5, 1.0, 3.0])
def test_population_of_the_square_link_is_that_of_a_gaussian_quadratic_form(size):
    """E (XᵀMX)² = 2 tr M² + (tr M)² for symmetric M, here θ*θ*ᵀ − θθᵀ, whatever the norm of θ*."""
    x, truth = points(4, 6).requires_grad_(), size * points(6, seed=1)
    M = torch.outer(truth, truth) - x.unsqueeze(-1) * x.unsqueeze(-2)
    trace, of_square = (torch.diagonal(m, dim1=-2, dim2=-1).sum(-1) for m in (M, M @ M))
    loss = 2 * of_square + trace**2 + 0.3**2
    (grad,) = torch.autograd.grad(loss.sum(), x)
    found = SQUARE.population(x.detach(), truth, 0.3)
    torch.testing.assert_close(found.loss, loss.detach())
    torch.testing.assert_close(found.grad, grad)


def test_truth_is_the_stated_minimiser_and_zero_is_stationary():
    problem = model(evaluation="population", noise=0.1)
    truth = problem.truth
    assert float(truth.norm()) == pytest.approx(1)
    assert int((truth != 0).sum()) == 3
    for sign in (1, -1):
        loss, grad = problem.evaluate((sign * truth).reshape(1, 1, 6))
        assert float(loss) == pytest.approx(0.01)
        assert float(grad.norm()) < 1e-12
    assert float(problem.evaluate(torch.zeros(1, 1, 6).double()).grad.norm()) == 0


def test_the_model_does_not_depend_on_n_or_type():
    assert torch.equal(model(agents=2).truth, model(agents=9).truth)
    assert torch.equal(model().to(torch.float32).truth, model().truth.float())
    assert not torch.equal(model(seed=1).truth, model(seed=2).truth)


def test_start_is_on_the_sphere_shared_by_agents_and_different_by_trial():
    start = model().start(seed=3, trials=4)
    assert start.shape == (4, 1, 6)
    torch.testing.assert_close(start.norm(dim=-1), torch.ones(4, 1).double())
    assert not torch.equal(start[0], start[1])
    assert torch.equal(start[:2], model(agents=7).start(seed=3, trials=2))


def test_phase_retrieval_is_the_square_link():
    problem = PhaseRetrieval(agents=20, dim=100)
    assert (problem.link, problem.agents, problem.dim) == (SQUARE, 20, 100)
    assert problem.epoch == math.inf
    assert problem.words == 101


def test_a_link_of_ones_own():
    cube = Link("cube", lambda s: s**3, lambda s: 3 * s**2)
    problem = model(cube, evaluation=10)
    assert problem.evaluate(points(1, 3, 6)).grad.shape == (1, 3, 6)
    with pytest.raises(ValueError, match="population loss of the link 'cube' is not known"):
        model(cube, evaluation="population")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": 0}, "agents must be a whole number of at least 1"),
        ({"agents": 2, "sparsity": 0}, "sparsity must be a whole number from 1 to dim = 100"),
        ({"agents": 2, "sparsity": 101}, "sparsity must be a whole number from 1 to dim = 100"),
        ({"agents": 2, "noise": -0.1}, "noise must be a finite number of at least 0"),
        ({"agents": 2, "noise": math.nan}, "noise must be a finite number of at least 0"),
        ({"agents": 2, "evaluation": 0}, "evaluation must be a number of points"),
        ({"agents": 2, "evaluation": "exact"}, "evaluation must be a number of points"),
    ],
)
def test_single_index_refuses(settings, message):
    with pytest.raises(ValueError, match=message):
        PhaseRetrieval(**settings)


def quadratic(noise=0.0):
    rng = np.random.default_rng(1)
    A = rng.normal(size=(3, 4, 4))
    return Quadratic(torch.tensor(A + A.transpose(0, 2, 1)), torch.tensor(rng.normal(size=(3, 4))), noise=noise)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_quadratics_have_the_bits_of_einsum(dtype):
    """However rows lie in memory, and if one point is given for all agents."""
    for trials, n, d in itertools.product((1, 2, 5), (1, 3, 8), (1, 5, 20, 64)):
        A, X = points(n, d, d).to(dtype), points(trials, n, d, seed=1).to(dtype)
        for x in (X, X.mT.contiguous().mT, X[:1].expand(trials, n, d), X[:, :1]):
            for matrices in (A + A.mT, torch.eye(d, dtype=dtype).expand(n, d, d)):
                found = Quadratic(matrices, torch.zeros(n, d, dtype=dtype)).grad(x, None)
                assert torch.equal(found, torch.einsum("nij,tnj->tni", matrices, x))


def test_quadratic_is_its_formula():
    problem = quadratic()
    x = points(2, 3, 4)
    A, b = problem.A.numpy(), problem.b.numpy()
    for t in range(2):
        for i in range(3):
            row = x[t, i].numpy()
            loss, grad = problem.evaluate(x)
            assert float(loss[t, i]) == pytest.approx(0.5 * row @ A[i] @ row - b[i] @ row)
            np.testing.assert_allclose(grad[t, i].numpy(), A[i] @ row - b[i], atol=1e-12)
    assert torch.equal(problem.grad(x, torch.empty(2, 3, 0)), problem.evaluate(x).grad)


def test_quadratic_noise_has_its_size_and_mean_zero():
    problem = quadratic(noise=2.0)
    samples, x = Samples(problem, 0, 200, range(3)), points(200, 3, 4)
    errors = torch.cat([problem.grad(x, samples(k)) - problem.evaluate(x).grad for k in range(20)])
    assert float(errors.std()) == pytest.approx(2.0, rel=0.03)
    assert abs(float(errors.mean())) < 0.04


@pytest.mark.parametrize(
    ("A", "b", "message"),
    [
        (torch.zeros(2, 3, 3), torch.zeros(3), r"A of shape \[n, d, d\] and b \[n, d\]"),
        (torch.zeros(2, 3, 4), torch.zeros(2, 3), r"A of shape \[n, d, d\] and b \[n, d\]"),
        (torch.zeros(2, 3, 3), torch.zeros(2, 3).double(), "one floating-point type"),
        (torch.stack((torch.eye(2), torch.tensor([[1.0, 2], [0, 1]]))), torch.zeros(2, 2), "that of agent 1 is not"),
        (torch.full((2, 2, 2), torch.nan), torch.zeros(2, 2), "A must be finite; got nan in row 0"),
        (torch.zeros(2, 2, 2), torch.tensor([[0.0, 0], [torch.inf, 0]]), "b must be finite; got inf in row 1"),
    ],
)
def test_quadratic_refuses(A, b, message):
    with pytest.raises(ValueError, match=message):
        Quadratic(A, b)


def test_every_problem_is_listed():
    names = {"PhaseRetrieval", "SingleIndex", "Quadratic", "Supervised", "Repeated"}
    assert {thing.__name__ for thing in problems.ALL} == names
    assert math.isclose(quadratic().to(torch.float32).evaluate(torch.zeros(1, 3, 4)).loss.sum(), 0)
