"""The laws of proximal operators, for every regulariser; then what is particular to each.

`CASES` drives the laws. A new class joins by one row: an instance over `D` coordinates, what another
implementation answers for one vector, and the proximal operator of the conjugate, derived by hand.
"""

from __future__ import annotations

import dataclasses
import pickle
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, nan

import numpy as np
import pyproximal
import pytest
import torch
from hypothesis import given, note
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from proxdasa.contracts import Regularizer, is_separable
from proxdasa.regularizers import (
    ALL,
    L1,
    Blocks,
    Box,
    ElasticNet,
    GroupL2,
    L1Ball,
    L2Ball,
    NonNegative,
    NuclearNorm,
    RowL2,
    Scaled,
    Simplex,
    SquaredL2,
    Zero,
)
from proxdasa.regularizers.norms import soft_threshold
from proxdasa.regularizers.penalty_weights import PerTrial, Weight, weights_within
from proxdasa.schedules import per_trial
from tests.laws import HALF

Vector = NDArray[np.float64]
Operator = Callable[[Vector, float], Vector]

D = 12
WEIGHTS = np.linspace(0.0, 1.1, D)
LABELS = [7, 0, 7, 7, -2, 0, 0, 7, 3, -2, 7, 0]


@dataclass(frozen=True)
class Case:
    """A regulariser Ψ, its prox_γ(x) by other means, and prox_s(Ψ*)(v), the same for its conjugate."""

    name: str
    psi: Regularizer
    reference: Operator
    conjugate: Operator


# ---------- references: pyproximal, one vector at a time


def groups_by_label(x: Vector, operator: Callable[[Vector], Vector]) -> Vector:
    y = np.empty_like(x)
    for label in set(LABELS):
        members = np.array(LABELS) == label
        y[members] = operator(x[members])
    return y


def consecutive_groups(x: Vector, gamma: float) -> Vector:
    """L21 groups the columns of a matrix that it reads row by row."""
    size = 3
    y = pyproximal.L21(size, sigma=0.4).prox(x.reshape(-1, size).T.ravel(), gamma)
    return y.reshape(size, -1).T.ravel()


def neurons(x: Vector, operator: Callable[[Vector], Vector]) -> Vector:
    """Three rows of three weights, then their biases; one neuron is a row and its bias."""
    y = np.empty_like(x)
    for members in ([0, 1, 2, 9], [3, 4, 5, 10], [6, 7, 8, 11]):
        y[members] = operator(x[members])
    return y


def elastic_net(x: Vector, gamma: float) -> Vector:
    """Completing the square turns the ridge into a lasso with a shorter step from a nearer point."""
    shrink = 1 + gamma * 0.5
    return pyproximal.L1(0.3).prox(x / shrink, gamma / shrink)


def side_by_side(x: Vector, gamma: float) -> Vector:
    parts = [pyproximal.L1(0.6), pyproximal.Box(), pyproximal.Box(-0.2, 0.3), pyproximal.Box()]
    return pyproximal.VStack(parts, nn=[5, 2, 3, 2]).prox(x, gamma)


# ---------- conjugates: prox_s(Ψ*)(v), by hand


def clip(bound: float | Vector) -> Operator:
    """Ψ a weighted ℓ₁ norm: Ψ* is the indicator of |v| ≤ w."""
    return lambda v, s: np.clip(v, -bound, bound)


def interval(lower: float, upper: float) -> Operator:
    """Ψ the indicator of an interval: Ψ*(v) = max(lower v, upper v)."""
    return lambda v, s: np.where(v > s * upper, v - s * upper, np.where(v < s * lower, v - s * lower, 0.0))


def into_ball(v: Vector, radius: float) -> Vector:
    return v if np.linalg.norm(v) <= radius else radius * v / np.linalg.norm(v)


def spectral_ball(v: Vector, radius: float) -> Vector:
    """Ψ the nuclear norm: Ψ* is the indicator of σ_max ≤ w."""
    u, singular, vt = np.linalg.svd(v.reshape(3, 4), full_matrices=False)
    return ((u * np.minimum(singular, radius)) @ vt).ravel()


def elastic_net_dual(v: Vector, s: float) -> Vector:
    """Ψ*(v) = max(|v| − l1, 0)²/(2 l2)."""
    return np.where(np.abs(v) <= 0.3, v, np.sign(v) * (np.abs(v) + s * 0.3 / 0.5) / (1 + s / 0.5))


def level(v: Vector, excess: float) -> float:
    """The t with Σ max(v − t, 0) = excess."""
    return brentq(lambda t: np.maximum(v - t, 0).sum() - excess, v.max() - 2 * excess, v.max(), xtol=1e-14)


def largest(total: float) -> Operator:
    """Ψ the indicator of a simplex: Ψ*(v) = total · max(v), whose prox cuts the peaks."""
    return lambda v, s: np.minimum(v, level(v, s * total))


def largest_magnitude(radius: float) -> Operator:
    """Ψ the indicator of an ℓ₁ ball: Ψ*(v) = r ‖v‖_∞."""

    def operator(v: Vector, s: float) -> Vector:
        t = max(level(np.abs(v), s * radius), 0.0)
        return np.clip(v, -t, t)

    return operator


def side_by_side_dual(v: Vector, s: float) -> Vector:
    free = np.zeros(2)
    return np.concatenate([clip(0.6)(v[:5], s), free, interval(-0.2, 0.3)(v[7:10], s), free])


CASES = [
    Case("zero", Zero(), lambda x, g: x, lambda v, s: 0 * v),
    Case("l1", L1(0.3), pyproximal.L1(0.3).prox, clip(0.3)),
    Case("l1, free", L1(0), lambda x, g: x, clip(0.0)),
    Case("l1, weights", L1(torch.as_tensor(WEIGHTS)), pyproximal.L1(WEIGHTS).prox, clip(WEIGHTS)),
    Case("ridge", SquaredL2(0.7), pyproximal.L2(sigma=0.7).prox, lambda v, s: v / (1 + s / 0.7)),
    Case("elastic net", ElasticNet(0.3, 0.5), elastic_net, elastic_net_dual),
    Case(
        "groups, size",
        GroupL2(0.4, 3),
        consecutive_groups,
        lambda v, s: np.concatenate([into_ball(block, 0.4) for block in v.reshape(-1, 3)]),
    ),
    Case(
        "groups, labels",
        GroupL2(0.8, LABELS),
        lambda x, g: groups_by_label(x, lambda block: pyproximal.Euclidean(0.8).prox(block, g)),
        lambda v, s: groups_by_label(v, lambda block: into_ball(block, 0.8)),
    ),
    Case("non-negative", NonNegative(), pyproximal.Box(lower=0).prox, lambda v, s: np.minimum(v, 0)),
    Case("box", Box(-0.5, 0.8), pyproximal.Box(-0.5, 0.8).prox, interval(-0.5, 0.8)),
    Case("box, below", Box(-inf, 0.3), pyproximal.Box(upper=0.3).prox, interval(-inf, 0.3)),
    Case("l1 ball", L1Ball(1.5), pyproximal.L1Ball(D, 1.5, xtol=1e-13).prox, largest_magnitude(1.5)),
    Case(
        "l2 ball",
        L2Ball(1.2),
        pyproximal.EuclideanBall(0.0, 1.2).prox,
        lambda v, s: v - into_ball(v, s * 1.2),
    ),
    Case("simplex", Simplex(), pyproximal.Simplex(D, 1.0, xtol=1e-13).prox, largest(1.0)),
    Case("simplex, 2.5", Simplex(2.5), pyproximal.Simplex(D, 2.5, xtol=1e-13).prox, largest(2.5)),
    Case(
        "nuclear",
        NuclearNorm(0.9, (3, 4)),
        pyproximal.Nuclear((3, 4), 0.9).prox,
        lambda v, s: spectral_ball(v, 0.9),
    ),
    Case(
        "rows, with biases",
        RowL2(0.8, (3, 3), bias=True),
        lambda x, g: neurons(x, lambda block: pyproximal.Euclidean(0.8).prox(block, g)),
        lambda v, s: neurons(v, lambda block: into_ball(block, 0.8)),
    ),
    Case(
        "rows",
        RowL2(0.4, (4, 3)),
        consecutive_groups,
        lambda v, s: np.concatenate([into_ball(block, 0.4) for block in v.reshape(-1, 3)]),
    ),
    Case("scaled l1", Scaled(L1(0.3), 2.5), pyproximal.L1(0.75).prox, clip(0.75)),
    Case("scaled simplex", Scaled(Simplex(), 3.0), pyproximal.Simplex(D, 1.0, xtol=1e-13).prox, largest(1.0)),
    Case("blocks", Blocks([(7, 10, Box(-0.2, 0.3)), (0, 5, L1(0.6))]), side_by_side, side_by_side_dual),
]


def every_case() -> Iterator[Case]:
    """All cases, for laws that see each on the same examples: Hypothesis takes longer to make them than the laws do.

    The last name that a failure notes is that of the case.
    """
    for case in CASES:
        note(case.name)
        yield case


each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
constraint = pytest.mark.parametrize(
    "psi",
    [NonNegative(), Box(-0.5, 0.8), Box(1e6, 1e6 + 1), L1Ball(0.01), L2Ball(50.0), Simplex(), Simplex(300.0)],
    ids=repr,
)


def rows(*shape: int) -> st.SearchStrategy[Tensor]:
    """Vectors of several sizes, half of them on a grid, so that zeros and ties are common."""

    def make(seed: int, scale: float, grid: bool) -> Tensor:
        x = normal(*shape, D, seed=seed) * scale
        return (2 * x).round() / 2 if grid else x

    return st.builds(make, st.integers(0, 2**32 - 1), st.sampled_from([0.3, 1.0, 3.0]), st.booleans())


stacks = st.sampled_from([(), (3,), (2, 3)]).flatmap(lambda shape: rows(*shape))
gammas = st.floats(0.05, 3.0)


def close(actual: Tensor, expected: Tensor | Vector, tolerance: float = 1e-9) -> None:
    expected = torch.as_tensor(expected)
    within = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    alike = (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if not (alike and torch.allclose(actual, expected, **within)):
        torch.testing.assert_close(actual, expected, **within)  # which says where they differ, but is slower
        pytest.fail("torch.testing.assert_close contradicts torch.allclose")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# ---------- the laws


BY_TRIAL = [
    L1,
    SquaredL2,
    lambda w: ElasticNet(w, 0.4),
    lambda w: ElasticNet(0.4, w),
    lambda w: GroupL2(w, 3),
    lambda w: GroupL2(w, LABELS),
    lambda w: NuclearNorm(w, (3, 4)),
    lambda w: RowL2(w, (3, 3), bias=True),
    lambda w: Scaled(ElasticNet(0.2, 0.3), w),
    lambda w: Blocks([(0, 4, L1(w)), (6, None, Scaled(L1(0.5), w))]),
]
"""Every penalty as a function of a weight that may differ by trial."""
LAMBDAS = [0.1, 0.7, 2.0]


@HALF
@given(x=rows(3, 2), gamma=st.one_of(gammas, st.just(per_trial([0.3, 1.0, 2.0]))))
def test_weights_per_trial_are_the_weights_of_the_trials(x: Tensor, gamma: float | Tensor) -> None:
    steps = [gamma] * 3 if isinstance(gamma, float) else gamma.flatten().tolist()
    for make in BY_TRIAL:
        together, own = make(per_trial(LAMBDAS)), [make(w) for w in LAMBDAS]
        note(repr(together))
        alone = [psi.prox(trial, g) for psi, trial, g in zip(own, x, steps, strict=True)]
        close(together.prox(x, gamma), torch.stack(alone), 1e-12)
        close(together.value(x), torch.stack([psi.value(trial) for psi, trial in zip(own, x, strict=True)]), 1e-12)
        assert together.prox(x.float(), gamma).dtype == together.value(x.float()).dtype == torch.float32


@pytest.mark.parametrize("make", BY_TRIAL)
def test_penalties_with_weights_per_trial_are_values(make: Callable[[object], Regularizer]) -> None:
    psi = make(per_trial(LAMBDAS))
    psi.prox(torch.zeros(3, 1, D), 1.0)
    assert psi == make(per_trial(LAMBDAS)) == pickle.loads(pickle.dumps(psi)) == dataclasses.replace(psi)
    assert hash(psi) == hash(make(per_trial(LAMBDAS)))
    assert psi != make(per_trial([0.1, 0.7, 2.1]))
    assert {weight for _, weight in weights_within(psi, "Ψ")} == {PerTrial((0.1, 0.7, 2.0))}
    for shape in [(D,), (3, D), (1, D), (2, 4, D), (1, 3, D), (3, 3, 2, D)]:
        with pytest.raises(ValueError, match=r"weights for 3 trials, so x must be \[3, agents, d\]; got .* shape"):
            psi.prox(torch.zeros(shape), 1.0)
        with pytest.raises(ValueError, match="weights for 3 trials"):
            psi.value(torch.zeros(shape))


@pytest.mark.parametrize(
    "weight", [per_trial([0.1, -0.1]), PerTrial((0.1, nan)), torch.ones(2, 1), torch.ones(2, 1, 2)]
)
def test_bad_weights_per_trial_are_refused(weight: Tensor | PerTrial) -> None:
    for make in BY_TRIAL:
        with pytest.raises(ValueError, match=r"(weight|l1|l2|factor)( of trial 1)? must be "):
            make(weight)


def test_every_class_is_among_the_cases() -> None:
    assert {type(case.psi) for case in CASES} == set(ALL)


@HALF
@given(x=stacks, gamma=gammas)
def test_prox_minimises_its_objective(x: Tensor, gamma: float) -> None:
    """The objective is 1/γ-strongly convex: objective(y) ≥ objective(p) + ‖y − p‖²/(2γ) for every y."""
    noise = normal(8, *x.shape)
    fixed = [x + noise, noise, noise.abs(), 0 * noise, 0.1 * noise, noise.softmax(-1), 2.5 * noise.softmax(-1)]
    for case in every_case():
        psi = case.psi

        def objective(y: Tensor, psi: Regularizer = psi) -> Tensor:
            return (y - x).square().sum(-1) / (2 * gamma) + psi.value(y)

        p = psi.prox(x, gamma)
        assert p.shape == x.shape
        best = objective(p)
        assert best.shape == x.shape[:-1]
        assert best.isfinite().all()
        rivals = [p + 1e-3 * noise, p + 0.1 * noise, *fixed, psi.prox(3 * noise, gamma), psi.prox(x + noise, gamma)]
        rivals += [p + 0.01 * (rival - p) for rival in rivals]
        y = torch.cat(rivals)
        bound, reached = best + (y - p).square().sum(-1) / (2 * gamma), objective(y)
        assert (reached >= bound - 1e-6 * (1 + bound)).all()
        # the bound is empty where the objective is infinite
        assert reached.isfinite().sum() >= 16 * best.numel()


@HALF
@given(x=rows(), gamma=gammas)
def test_prox_agrees_with_another_implementation(x: Tensor, gamma: float) -> None:
    for case in every_case():
        close(case.psi.prox(x, gamma), case.reference(x.numpy(), gamma))


@HALF
@given(x=rows(2, 3), y=rows(2, 3), gamma=gammas)
def test_prox_is_firmly_non_expansive(x: Tensor, y: Tensor, gamma: float) -> None:
    for case in every_case():
        difference = case.psi.prox(x, gamma) - case.psi.prox(y, gamma)
        assert (difference.square().sum(-1) <= (difference * (x - y)).sum(-1) + 1e-9).all()


@HALF
@given(x=rows(), gamma=gammas)
def test_moreau_decomposes_x(x: Tensor, gamma: float) -> None:
    """x = prox_γ(Ψ)(x) + γ prox_{1/γ}(Ψ*)(x/γ)."""
    for case in every_case():
        dual = torch.as_tensor(case.conjugate(x.numpy() / gamma, 1 / gamma))
        close(case.psi.prox(x, gamma) + gamma * dual, x)


@HALF
@given(x=rows(2, 2), gamma=st.lists(gammas, min_size=2, max_size=2))
def test_a_stack_is_the_stack_of_its_rows(x: Tensor, gamma: list[float]) -> None:
    for case in every_case():
        alone = [case.psi.prox(row, g) for trial, g in zip(x, gamma, strict=True) for row in trial]
        together = case.psi.prox(x, per_trial(gamma))
        close(together.flatten(0, 1), torch.stack(alone), 1e-12)
        close(case.psi.prox(x[0], torch.tensor(gamma[0])), case.psi.prox(x[0], float(np.float32(gamma[0]))), 1e-12)
        values = [case.psi.value(row) for row in together.flatten(0, 1)]
        close(case.psi.value(together).flatten(), torch.stack(values), 1e-12)


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bad_rows_stay_bad_and_alone(case: Case, dtype: torch.dtype) -> None:
    clean = normal(6, D, dtype=dtype)
    x = clean.clone()
    x[1, 0], x[2, -1], x[3], x[4, 0] = nan, nan, nan, inf
    bad = [1, 2, 3]
    fine = [0, 5]
    for gamma in (0.4, torch.full((6, 1), 0.4)):
        p, expected = case.psi.prox(x, gamma), case.psi.prox(clean, gamma)
        close(p[fine], expected[fine], 0)
        assert p[bad].isnan().any(-1).all()
        if not isinstance(case.psi, Box):  # which may rightly clamp infinity
            assert not p[4].isfinite().all()
        values = case.psi.value(torch.where(x.isfinite(), expected, x))
        assert values[fine].isfinite().all()
        assert values[bad].isnan().all()
        assert not values[4].isfinite()


@each_case
def test_single_precision_stays_single(case: Case) -> None:
    x = normal(3, 2, D)
    double = case.psi.prox(x, 0.4)
    for gamma in (0.4, per_trial([0.4] * 3), per_trial([0.4] * 3).float()):
        p = case.psi.prox(x.float(), gamma)
        assert p.dtype == torch.float32
        close(p.double(), double, 1e-5)
        value = case.psi.value(p)
        assert value.dtype == torch.float32
        close(value.double(), case.psi.value(double), 1e-4)


@each_case
def test_x_is_left_as_it_was(case: Case) -> None:
    x = normal(3, 2, D)
    case.psi.prox(x, 0.4)
    case.psi.prox(x, per_trial([0.4] * 3))
    case.psi.value(x)
    assert torch.equal(x, normal(3, 2, D))


@each_case
def test_empty_stacks_are_allowed(case: Case) -> None:
    x = torch.zeros(3, 0, D)
    assert case.psi.prox(x, 0.4).shape == (3, 0, D)
    assert case.psi.value(x).shape == (3, 0)


@each_case
@pytest.mark.parametrize("gamma", [0, -0.1, nan, inf])
def test_gamma_is_positive(case: Case, gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma must be a positive, finite number"):
        case.psi.prox(torch.zeros(D), gamma)


@each_case
@pytest.mark.parametrize("shape", [(D,), (2,), (2, 1), (3, 1), (4, 1, 1), (3, 2, D), (1, 3, 1, 1)], ids=str)
def test_gamma_never_reaches_across_coordinates_nor_adds_rows(case: Case, shape: tuple[int, ...]) -> None:
    x = torch.zeros(3, 2, D)
    if shape == (2, 1):  # one per agent is fine
        assert case.psi.prox(x, torch.ones(shape)).shape == x.shape
        return
    with pytest.raises(ValueError, match=r"gamma of shape .* does not fit x of shape \[3, 2, 12\]"):
        case.psi.prox(x, torch.ones(shape))


@each_case
def test_regularisers_are_values(case: Case) -> None:
    """They compare, hash, copy and travel to other processes, also after use."""
    case.psi.prox(torch.zeros(D), 1.0)
    twin = dataclasses.replace(case.psi)
    assert twin == case.psi == pickle.loads(pickle.dumps(case.psi))
    assert hash(twin) == hash(case.psi)
    assert {other.name for other in CASES if other.psi == case.psi} == {case.name}


@pytest.mark.parametrize("cls", ALL)
def test_annotations_can_be_read(cls: type) -> None:
    fields = {field.name for field in dataclasses.fields(cls)}
    assert set(typing.get_type_hints(cls)) == fields
    assert cls.__dataclass_params__.frozen


@pytest.mark.parametrize("case", [case for case in CASES if is_separable(case.psi)], ids=lambda case: case.name)
def test_what_claims_to_be_separable_takes_each_coordinate_by_itself(case):
    x = torch.randn(2, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(case.psi.prox(x, 0.7)[:, ::2], case.psi.prox(x[:, ::2], 0.7))


def test_annotations_name_what_a_config_reader_builds() -> None:
    assert typing.get_type_hints(Scaled) == {"regularizer": Regularizer, "factor": Weight}
    assert float in typing.get_args(typing.get_type_hints(L1)["weight"])
    assert typing.get_type_hints(NuclearNorm)["shape"] == tuple[int, int]


# ---------- values


@pytest.mark.parametrize(
    ("psi", "x", "value"),
    [
        (Zero(), [3, -4], 0),
        (L1(2), [3, -4], 14),
        (L1([1, 0.5]), [3, -4], 5),
        (SquaredL2(3), [3, -4], 37.5),
        (ElasticNet(2, 3), [3, -4], 51.5),
        (GroupL2(2, 2), [3, -4, 0, 0, 5, 12], 36),
        (GroupL2(2, [1, 0, 9, 0, 1, 9]), [3, 5, 0, 12, -4, 0], 36),
        (NuclearNorm(2, (2, 3)), [3, 0, 0, 0, -4, 0], 14),
        (NuclearNorm(2, (2, 2)), [1, 1, 1, 1], 4),
        (Scaled(L1(2), 0.5), [3, -4], 7),
        (Blocks([(1, 2, L1(1)), (2, None, SquaredL2(2))]), [100, -4, 1, 2], 9),
        (NonNegative(), [3, 0], 0),
        (NonNegative(), [3, -1e-4], inf),
        (Box(-1, 2), [-1, 2], 0),
        (Box(-1, 2), [-1, 2.0001], inf),
        (Box(-inf, 2), [-1e9, 2], 0),
        (Box(-inf, inf), [-1e9, 2], 0),
        (Box(1, 1), [1, 1], 0),
        (Box(0, 0), [1e-4, 0], inf),
        (L1Ball(7), [3, -4], 0),
        (L1Ball(7), [3.001, -4], inf),
        (L2Ball(5), [3, -4], 0),
        (L2Ball(5), [3.001, -4], inf),
        (Simplex(), [0.25, 0.75], 0),
        (Simplex(), [0.25, 0.7501], inf),
        (Simplex(), [0.25, 0.7499], inf),
        (Simplex(), [-0.25, 1.25], inf),
        (Simplex(4), [1, 3], 0),
        (Scaled(Simplex(), 4), [1, 3], inf),
        (Scaled(Simplex(4), 4), [1, 3], 0),
    ],
    ids=str,
)
def test_values(psi: Regularizer, x: list[float], value: float) -> None:
    close(psi.value(torch.tensor(x, dtype=torch.float64)), torch.tensor(value, dtype=torch.float64), 1e-12)


@constraint
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rounding_does_not_make_points_infeasible(psi: Regularizer, dtype: torch.dtype) -> None:
    """Projections, their means over agents, and mixtures are inside, in many dimensions too."""
    p = psi.prox(normal(4, 8, 1000, dtype=dtype) * 3, 1.0)
    for points in (p, p.mean(1), 0.3 * p + 0.7 * p.roll(1, 1)):
        assert (psi.value(points) == 0).all()


@constraint
@pytest.mark.parametrize("size", [1e4, 1e18, 1e30], ids=str)
def test_diverging_rows_are_projected_all_the_same(psi: Regularizer, size: float) -> None:
    """Single precision overflows when 1e30 is squared, and has no digits below 1 left at 1e18."""
    x = normal(20, D, dtype=torch.float32) * size
    p = psi.prox(x, 1.0)
    assert (psi.value(p) == 0).all()
    if isinstance(psi, L2Ball):
        close(torch.linalg.vector_norm(p, dim=-1), torch.full((20,), psi.radius), 1e-5)


def test_slack_follows_the_size_of_the_set() -> None:
    for size in (1e-9, 1e9):
        edge = torch.tensor([size, 0.0], dtype=torch.float64)
        for psi in (Box(0, size), L1Ball(size), L2Ball(size), Simplex(size)):
            assert psi.value(edge * (1 + 1e-9)) == 0
            assert psi.value(edge * (1 + 1e-6)) == inf


# ---------- particulars


@given(x=rows(2), gamma=gammas)
def test_the_two_ways_to_soft_threshold_are_equal(x: Tensor, gamma: float) -> None:
    """A sweep over γ in one run gives the numbers of single runs."""
    assert torch.equal(soft_threshold(x, gamma), soft_threshold(x, torch.tensor(gamma, dtype=torch.float64)))


@given(x=rows(2), gamma=gammas)
def test_special_cases_agree(x: Tensor, gamma: float) -> None:
    for special, general in [
        (L1(0.3), L1([0.3] * D)),
        (L1(0.3), ElasticNet(0.3, 0)),
        (L1(0.3), GroupL2(0.3, 1)),
        (L1(0.3), Blocks([(4, None, L1(0.3)), (0, 4, L1(0.3))])),
        (SquaredL2(0.3), ElasticNet(0, 0.3)),
        (GroupL2(0.3, 4), GroupL2(0.3, [0] * 4 + [1] * 4 + [2] * 4)),
        (GroupL2(0.3, D), NuclearNorm(0.3, (D, 1))),
        (NonNegative(), Box(0, inf)),
        (Zero(), Box(-inf, inf)),
    ]:
        close(special.prox(x, gamma), general.prox(x, gamma), 1e-12)
        close(special.value(x), general.value(x), 1e-12)


def test_shrinking_gives_exact_zeros() -> None:
    x = torch.tensor([0.1, -0.1, 0.05, 3.0])
    assert L1(1).prox(x, 0.2).count_nonzero() == 1
    assert GroupL2(1, 2).prox(x, 0.2).count_nonzero() == 2
    assert L1Ball(1).prox(x, 0.2).count_nonzero() == 1
    assert Simplex().prox(x, 0.2).count_nonzero() == 1


def test_points_of_a_set_are_not_moved() -> None:
    x = 0.01 * normal(50, D)
    for psi in (Box(-1, 1), L1Ball(1), L2Ball(1)):
        assert torch.equal(psi.prox(x, 1.0), x)


@pytest.mark.parametrize("kind", [L1Ball, L2Ball, Simplex])
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_projections_do_not_depend_on_the_unit(kind: type, size: float) -> None:
    """The squares of such coordinates have no float32."""
    x = normal(50, D).float()
    unit, scaled = kind(1.0).prox(x, 1.0), kind(size).prox(x * size, 1.0) / size
    assert not torch.equal(unit, x)
    close(scaled, unit, 1e-5)


def test_zero_groups_without_weight_stay_zero() -> None:
    x = torch.zeros(4)
    for groups in (2, [0, 0, 1, 1]):
        assert torch.equal(GroupL2(0, groups).prox(x, 1.0), x)
        assert torch.equal(GroupL2(1, groups).prox(x, 1.0), x)


def test_infinity_keeps_its_company() -> None:
    """A coordinate at infinity says nothing about the others where Ψ is separable."""
    x = torch.tensor([inf, -inf, 1.0, -0.1])
    for gamma in (0.5, torch.tensor([0.5])):
        assert L1(1).prox(x, gamma).tolist() == [inf, -inf, 0.5, 0.0]
    assert Box(-1, 2).prox(x, 1.0).tolist() == pytest.approx([2, -1, 1, -0.1])
    assert Simplex().prox(torch.tensor([-inf, 1.0, 1.0]), 1.0).tolist() == [0.0, 0.5, 0.5]


def test_parameters_are_kept_as_plain_numbers() -> None:
    assert L1(1) == L1(1.0)
    assert L1([0.1, 1]) == L1((0.1, 1.0)) == L1(np.array([0.1, 1])) == L1(torch.tensor([0.1, 1], dtype=torch.float64))
    assert L1([0.1, 1]) != L1([0.1, 2])
    assert GroupL2(1, [0, 1]) == GroupL2(1, torch.tensor([0, 1]))
    assert NuclearNorm(1, [2, 3]) == NuclearNorm(1, (2, 3))
    assert Blocks([[0, 2, L1(1)], (3, 4, Zero())]) == Blocks(((3, 4, Zero()), (0, 2, L1(1))))
    assert Simplex() == Simplex(1)
    assert L1(0.1) != SquaredL2(0.1)


# ---------- refusals


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: L1(-0.1), ValueError, r"L1.weight must be a finite number of at least 0; got -0.1"),
        (lambda: L1(inf), ValueError, r"L1.weight must be a finite number of at least 0; got inf"),
        (lambda: L1(nan), ValueError, r"L1.weight must be a finite number of at least 0; got nan"),
        (lambda: L1("0.1"), TypeError, r"L1.weight\[0\] must be a finite number of at least 0; got '0'"),
        (lambda: L1(True), TypeError, r"L1.weight must be one number, or a list .* got True"),
        (lambda: L1(None), TypeError, r"L1.weight must be one number, or a list .* got None"),
        (lambda: L1([1, -2]), ValueError, r"L1.weight\[1\] must be a finite number of at least 0; got -2"),
        (lambda: L1([]), ValueError, r"L1.weight must be one number, or a list .* got \[\]"),
        (lambda: L1(torch.ones(2, 3)), ValueError, r"L1.weight must be .* got a tensor of shape \[2, 3\]"),
        (
            lambda: L1([[1, 2], [3, 4]]),
            TypeError,
            r"L1.weight\[0\] must be a finite number of at least 0; got \[1, 2\]",
        ),
        (lambda: SquaredL2(-1), ValueError, r"SquaredL2.weight"),
        (lambda: ElasticNet(-1, 0), ValueError, r"ElasticNet.l1"),
        (lambda: ElasticNet(1, -1), ValueError, r"ElasticNet.l2"),
        (lambda: GroupL2(-1, 2), ValueError, r"GroupL2.weight"),
        (lambda: GroupL2(1, 0), ValueError, r"GroupL2.groups must be a whole number of at least 1; got 0"),
        (lambda: GroupL2(1, 2.0), TypeError, r"GroupL2.groups must be a whole number of at least 1; got 2.0"),
        (lambda: GroupL2(1, [0, 0.5]), TypeError, r"GroupL2.groups\[1\] must be a whole number; got 0.5"),
        (lambda: GroupL2(1, []), ValueError, r"GroupL2.groups must be one number, or a list .* got \[\]"),
        (lambda: Box(1, 0), ValueError, r"Box: no number lies between lower = 1.0 and upper = 0.0"),
        (lambda: Box(inf, inf), ValueError, r"Box: no number lies between"),
        (lambda: Box(-inf, -inf), ValueError, r"Box: no number lies between"),
        (lambda: Box(nan, 1), ValueError, r"Box.lower must be a number; got nan"),
        (lambda: Box(0, "1"), TypeError, r"Box.upper must be a number; got '1'"),
        (lambda: L1Ball(0), ValueError, r"L1Ball.radius must be a positive, finite number; got 0"),
        (lambda: L2Ball(-1), ValueError, r"L2Ball.radius must be a positive, finite number; got -1"),
        (lambda: Simplex(inf), ValueError, r"Simplex.total must be a positive, finite number; got inf"),
        (lambda: NuclearNorm(-1, (2, 3)), ValueError, r"NuclearNorm.weight"),
        (
            lambda: NuclearNorm(1, (2, 0)),
            ValueError,
            r"NuclearNorm.shape\[1\] must be a whole number of at least 1; got 0",
        ),
        (lambda: NuclearNorm(1, (6,)), ValueError, r"NuclearNorm.shape must be a pair \(rows, columns\)"),
        (
            lambda: NuclearNorm(1, 6),
            ValueError,
            r"NuclearNorm.shape must be a pair \(rows, columns\); got 6",
        ),
        (lambda: Scaled(L1(1), 0), ValueError, r"Scaled.factor must be a positive, finite number; got 0"),
        (lambda: Scaled(L1, 1), TypeError, r"Scaled.regularizer must be a regulariser such as L1\(0.1\)"),
        (lambda: Scaled("l1", 1), TypeError, r"Scaled.regularizer must be a regulariser .* got 'l1'"),
        (lambda: Blocks([]), ValueError, r"Blocks.parts is empty"),
        (
            lambda: Blocks([(0, L1(1))]),
            ValueError,
            r"Blocks.parts\[0\] must be \(start, stop, regulariser\)",
        ),
        (
            lambda: Blocks([(0, 2, L1(1)), (-1, 2, Zero())]),
            ValueError,
            r"start of Blocks.parts\[1\] must be a whole number of at least 0",
        ),
        (
            lambda: Blocks([(3, 3, L1(1))]),
            ValueError,
            r"stop of Blocks.parts\[0\] must be a whole number of at least 4; got 3",
        ),
        (
            lambda: Blocks([(0, 2.5, L1(1))]),
            TypeError,
            r"stop of Blocks.parts\[0\] must be a whole number of at least 1; got 2.5",
        ),
        (lambda: Blocks([(0, 2, 0.1)]), TypeError, r"last entry of Blocks.parts\[0\] must be a regulariser .* got 0.1"),
        (lambda: Blocks([(4, 6, L1(1)), (0, 5, L1(1))]), ValueError, r"overlap: 0:5 and .* starts at 4"),
        (lambda: Blocks([(0, None, L1(1)), (4, 5, L1(1))]), ValueError, r"overlap: 0:end and .* starts at 4"),
    ],
)
def test_bad_parameters_are_refused(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("d", [1, 11, 13])
@pytest.mark.parametrize(
    ("psi", "message"),
    [
        (L1(WEIGHTS.tolist()), "L1 is over 12 coordinates, but x has {d}"),
        (GroupL2(1, LABELS), "GroupL2 is over 12 coordinates, but x has {d}"),
        (GroupL2(1, 6), "GroupL2: {d} coordinates of x do not divide into groups of 6"),
        (NuclearNorm(1, (3, 4)), "NuclearNorm of a 3 × 4 matrix is over 12 coordinates, but x has {d}"),
        (Blocks([(0, 14, L1(1))]), "Blocks: the part 0:14 is beyond x, which has {d} coordinates"),
        (Blocks([(0, 1, L1(1)), (13, None, L1(1))]), "Blocks: the part 13:end is beyond x, which has {d}"),
        (Scaled(L1(WEIGHTS.tolist()), 2), "L1 is over 12 coordinates, but x has {d}"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_vectors_of_another_length_are_refused(psi: Regularizer, message: str, d: int) -> None:
    x = torch.zeros(2, d)
    with pytest.raises(ValueError, match=message.format(d=d)):
        psi.prox(x, 1.0)
    with pytest.raises(ValueError, match=message.format(d=d)):
        psi.value(x)
