"""Estimators: scikit-learn's own checks, the same minima as scikit-learn's solvers, and models in their own units."""

import pickle
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from proxdasa import networks
from proxdasa.estimators import DecentralizedClassifier, DecentralizedRegressor, solver
from proxdasa.plans.smoothness import estimate_lipschitz
from proxdasa.samples import Samples
from proxdasa.tuning import default_range

ring = cache(networks.ring)
ROUGH = {"max_iter": 4, "tol": 1e-2, "agents": 2}


@pytest.fixture
def short_search(monkeypatch):
    """A search of 60 iterations, or of a tenth of the run."""
    monkeypatch.setattr(solver, "SEARCHED", 60)


@pytest.mark.filterwarnings("ignore")  # scikit-learn warns of what its own checks do
@parametrize_with_checks([DecentralizedClassifier(**ROUGH), DecentralizedRegressor(**ROUGH)])
def test_scikit_learns_checks(estimator, check, monkeypatch):
    def first(_, settings):  # searches have tests of their own, and the slow tests do these checks with them
        return SimpleNamespace(best=settings[0], ranking=[SimpleNamespace(mean=float("inf"))])

    monkeypatch.setattr(solver, "halve", first)
    monkeypatch.setattr(networks, "ring", ring)
    monkeypatch.setattr(default_range, "STEPS", (0.25,))
    monkeypatch.setattr(default_range, "estimate_lipschitz", partial(estimate_lipschitz, steps=2))
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([DecentralizedClassifier(), DecentralizedRegressor(), DecentralizedClassifier(hidden=(5,))])
def test_scikit_learns_checks_with_the_defaults(estimator, check):
    check(estimator)


# the same minima as scikit-learn's solvers


def standardised(X):
    return (X - X.mean(0)) / X.std(0)


def saga(X, y, weight):
    """The minimum of the L1-penalised logistic risk, and its coefficients."""
    model = LogisticRegression(C=1 / (len(y) * weight), l1_ratio=1.0, solver="saga", tol=1e-9, max_iter=100_000)
    model.fit(X, y)
    return objective(model.coef_[0], model.intercept_[0], X, y, weight), model.coef_[0]


def objective(coef, intercept, X, y, weight):
    outputs = X @ coef + intercept
    return np.mean(np.logaddexp(0, outputs) - y * outputs) + weight * np.abs(coef).sum()


@pytest.mark.parametrize(
    ("weight", "uneven", "every", "most"),
    [
        (0.05, True, 3, 1_500),
        pytest.param(0.05, True, 1, 5_000, marks=pytest.mark.slow),
        pytest.param(0.01, False, 1, 5_000, marks=pytest.mark.slow),
    ],
)
def test_sparse_logistic_regression_reaches_saga_with_the_automatic_step_size(weight, uneven, every, most):
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, ::every]  # all of them are so correlated that they take three times as many iterations
    sites = np.minimum(np.arange(len(y)) // 40, 5) if uneven else None  # five of 40 and one of 369, sorted by time
    minimum, coef = saga(standardised(X), y, weight)
    model = DecentralizedClassifier(penalty="l1", weight=weight, tol=1e-7, max_iter=most).fit(X, y, groups=sites)
    own = model.coef_[0] * X.std(0)  # of the standardised features
    reached = objective(own, model.intercept_[0] + model.coef_[0] @ X.mean(0), standardised(X), y, weight)
    assert reached == pytest.approx(minimum, abs=1e-9)
    assert model.objective_ == pytest.approx(reached, abs=1e-12)
    assert (own != 0).tolist() == (np.abs(coef) > 1e-9).tolist()  # exactly sparse
    assert model.n_sites_ == (6 if uneven else 8)


@pytest.mark.usefixtures("short_search")
@pytest.mark.parametrize(
    ("penalty", "reference"),
    [
        ({"penalty": "l1", "weight": 2.0}, Lasso(alpha=2.0, tol=1e-10)),
        ({"penalty": "elastic", "weight": 2.0, "l1_ratio": 0.3}, ElasticNet(alpha=2.0, l1_ratio=0.3, tol=1e-10)),
        ({"penalty": "l2", "weight": 1.0}, Ridge(alpha=442.0)),
    ],
)
def test_regressions_are_those_of_scikit_learn(penalty, reference):
    X, y = load_diabetes(return_X_y=True)
    X = standardised(X)
    settings = {"standardize": False, "tol": 1e-6, "max_iter": 600, "agents": 4, "network": networks.complete}
    model = DecentralizedRegressor(**penalty, **settings).fit(X, y)
    reference.fit(X, y)
    np.testing.assert_allclose(model.coef_, reference.coef_, rtol=1e-5, atol=1e-5)
    assert model.intercept_ == pytest.approx(reference.intercept_, rel=1e-6)
    assert model.coef_.shape == (10,)
    np.testing.assert_allclose(model.predict(X), reference.predict(X), rtol=1e-5)


def test_several_classes_are_a_softmax():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = DecentralizedClassifier(weight=0.1, tol=1e-7, max_iter=2_000, agents=3).fit(X, names)
    reference = LogisticRegression(C=1 / (0.1 * len(y)), tol=1e-12, max_iter=10_000).fit(standardised(X), names)
    np.testing.assert_allclose(model.coef_ * X.std(0), reference.coef_, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(X), reference.predict_proba(standardised(X)), atol=1e-6)
    assert model.predict(X).tolist() == reference.predict(standardised(X)).tolist()
    assert (model.coef_.shape, model.intercept_.shape) == ((3, 4), (3,))


def test_the_risk_is_the_pooled_one_and_its_gradients_are_autograds():
    torch.manual_seed(0)
    x, y, sites = torch.randn(9, 2).double(), torch.arange(9) % 2, [torch.tensor([3, 0]), torch.tensor([8, 7, 6, 1])]
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
    problem = solver.pooled_risk(module, x, y, sites, solver.logistic)
    assert (problem.words, problem.epoch, problem.dtype) == (0, 1, torch.float64)
    rows = torch.randn(3, 2, problem.dim).double()
    found = problem.grad(rows, Samples(problem, 0, 3, range(2))(5))
    for trial in range(3):
        for site, own in enumerate(sites):
            torch.nn.utils.vector_to_parameters(rows[trial, site], module.parameters())
            outputs, targets = module(x[own])[:, 0], y[own].double()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
            grads = torch.autograd.grad(loss * 2 / 6, list(module.parameters()))
            torch.testing.assert_close(found[trial, site], torch.cat([grad.flatten() for grad in grads]))


# what is fitted


@pytest.mark.usefixtures("short_search")
def test_a_perceptron_learns_what_a_line_cannot_and_is_drawn_by_the_random_state(monkeypatch):
    X = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    settings = {"hidden": [8], "max_iter": 100, "tol": 1e-3, "weight": 1e-5, "agents": 3}
    with pytest.warns(ConvergenceWarning, match=r"has not reached tol = 0.001 in max_iter = 100 iterations"):
        model = DecentralizedClassifier(**settings, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    settings["max_iter"] = 5
    monkeypatch.setattr(solver, "SEARCHED", 15)
    with pytest.warns(ConvergenceWarning, match="in max_iter = 5 iterations"):
        early, again, other = (DecentralizedClassifier(**settings, random_state=seed).fit(X, y) for seed in (0, 0, 1))
    assert np.array_equal(early.decision_function(X), again.decision_function(X))
    assert not np.array_equal(early.decision_function(X), other.decision_function(X))
    with pytest.raises(AttributeError, match="it has hidden layers: see module_"):
        _ = model.coef_
    outputs = model.module_(torch.from_numpy(X))[:, 0]  # in the units of X
    np.testing.assert_allclose(outputs.numpy(), model.decision_function(X))
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copy.predict_proba(X), model.predict_proba(X))


@pytest.mark.usefixtures("short_search")
def test_units_do_not_matter_and_constant_features_get_no_weight():
    X, y = load_diabetes(return_X_y=True)
    X = np.c_[X[:, :3], np.full(len(y), 7.0)]
    settings = {"penalty": "l1", "weight": 0.05, "tol": 1e-7, "max_iter": 500, "agents": 3}
    plain = DecentralizedRegressor(**settings).fit(X, y)
    scaled = DecentralizedRegressor(**settings).fit(1000 * X + 5, 10 * y - 3)
    np.testing.assert_allclose(scaled.coef_, plain.coef_ / 100, atol=1e-7)
    np.testing.assert_allclose(scaled.predict(1000 * X + 5), 10 * plain.predict(X) - 3, rtol=1e-6)
    assert plain.coef_[3] == 0


def test_a_step_that_is_too_large_for_the_rest_of_the_way_is_replaced(monkeypatch):
    X, y = load_iris(return_X_y=True)
    settings = {"weight": 0.5, "tol": 1e-5, "max_iter": 100, "agents": 3}
    halve, searches = solver.halve, []

    def search(*arguments):
        """The first time, an ordinary one; the second time, the same with a step that is too large."""
        if searches:
            best = searches[0].ranking[0]
            searches[0].ranking[0] = type(best)({"gamma": 10 * best.parameters["gamma"]}, best.values)
        else:
            searches.append(halve(*arguments))
        return searches[0]

    monkeypatch.setattr(solver, "SEARCHED", 50)
    monkeypatch.setattr(solver, "halve", search)
    right = DecentralizedClassifier(**settings).fit(X, y)
    model = DecentralizedClassifier(**settings).fit(X, y)
    assert model.gamma_ < 10 * right.gamma_
    np.testing.assert_allclose(model.coef_, right.coef_, atol=1e-3)


# what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": "l0"}, r"penalty must be \"l1\", \"l2\", \"elastic\" or None; got 'l0'"),
        ({"weight": -1.0}, "weight must be a finite number of at least 0"),
        ({"agents": 0}, "agents must be a whole number of at least 1"),
        ({"hidden": (3, 0)}, "hidden must be a whole number of at least 1"),
        ({"tol": 0.0}, "tol must be a positive, finite number"),
        ({"l1_ratio": 2.0}, "l1_ratio must be a number between 0 and 1"),
        ({"network": networks.ring(5)}, "ring.* has 5 agents, but there are 8 sites; give a network of that size"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match=message):
        DecentralizedClassifier(**settings).fit(X, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_whole_numbers_of_numpy_as_searches_give_them(monkeypatch):
    monkeypatch.setattr(solver, "SEARCHED", 15)
    X, y = load_iris(return_X_y=True)
    agents, most, units = np.array([3, 10, 2])
    model = DecentralizedClassifier(agents=agents, max_iter=most, hidden=[units], tol=1e-6, random_state=0).fit(X, y)
    assert (model.n_sites_, model.n_iter_, model.module_[0].out_features) == (3, 10, 2)


def test_groups_classes_and_order_of_calls():
    X, y = load_iris(return_X_y=True)
    model = DecentralizedClassifier()
    with pytest.raises(ValueError, match=r"groups must have one entry for each of 150 examples; got shape \[3\]"):
        model.fit(X, y, groups=[1, 2, 3])
    with pytest.raises(ValueError, match="groups must name the site of every example; that of row 7 is missing"):
        model.fit(X, y, groups=np.where(np.arange(len(y)) % 50 == 7, np.nan, 1.0))
    for gap in (None, float("nan"), pd.NA):  # NumPy would make a site 'nan' of a list with texts
        with pytest.raises(ValueError, match="groups must name the site of every example; that of row 149 is missing"):
            model.fit(X, y, groups=["north", *["south"] * 148, gap])
    with pytest.raises(ValueError, match="groups must be of one kind, to be sorted; they are int and str"):
        model.fit(X, y, groups=["1", *[1] * 149])  # which NumPy would make one site
    with pytest.raises(ValueError, match="needs at least two classes; y has 1 class"):
        model.fit(X, np.zeros(150, dtype=int))
    with pytest.raises(ValueError, match="numbers so large that their variance is infinite; divide them first"):
        DecentralizedRegressor().fit(X, 1e200 * y)
    with pytest.raises(NotFittedError):
        clone(model).predict(X)
    with pytest.raises(AttributeError, match="it is not fitted yet"):
        _ = clone(model).coef_


@pytest.mark.usefixtures("short_search")
def test_groups_are_routed_to_the_folds():
    X, y = load_breast_cancer(return_X_y=True)
    model = DecentralizedClassifier(max_iter=100, tol=5e-2)
    scores = cross_val_score(model, X, y, cv=GroupKFold(2), groups=np.arange(len(y)) % 4)
    assert scores.min() > 0.9
