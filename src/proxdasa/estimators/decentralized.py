"""The estimators: scikit-learn's conventions around `solver.solve`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from torch import Tensor, nn

from proxdasa import caller_warnings, networks
from proxdasa.checks import check_not_negative, check_positive_number, check_probability, check_whole, invalid
from proxdasa.contracts import Regularizer
from proxdasa.estimators.solver import half_squared_error, logistic, pooled_risk, solve
from proxdasa.modules import torch_generator
from proxdasa.networks import Network
from proxdasa.problems import Loss, cross_entropy
from proxdasa.regularizers import L1, Blocks, ElasticNet, SquaredL2, Zero

Array = NDArray[np.float64]
PENALTIES = ("l1", "l2", "elastic", None)
SEEDS = 2**31 - 1


class _Decentralized(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share."""

    def __init__(
        self,
        *,
        hidden: Sequence[int] = (),
        penalty: str | None = "l2",
        weight: float = 1e-3,
        l1_ratio: float = 0.5,
        agents: int = 8,
        network: Network | Callable[[int], Network] | None = None,
        standardize: bool = True,
        max_iter: int = 5_000,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.penalty = penalty
        self.weight = weight
        self.l1_ratio = l1_ratio
        self.agents = agents
        self.network = network
        self.standardize = standardize
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    @property
    def coef_(self) -> Array:
        """The coefficients of a linear model, in the units of X: ``[outputs, features]``, or ``[features]``."""
        weight = self._layer.weight.detach().numpy()
        return weight if self._layered else weight[0]

    @property
    def intercept_(self) -> Any:
        """The intercepts of a linear model, which no penalty shrinks."""
        bias = self._layer.bias.detach().numpy()
        return bias if self._layered else bias[0]

    @property
    def _layer(self) -> nn.Linear:
        """The only layer of a linear model."""
        if "module_" not in vars(self) or len(self.module_) > 1:
            reason = "is not fitted yet" if "module_" not in vars(self) else "has hidden layers: see module_"
            raise AttributeError(f"this {type(self).__name__} has no coef_ and intercept_: it {reason}")
        return cast(nn.Linear, self.module_[0])

    _layered = True
    """Whether coef_ has a row for each output."""

    def _fit(self, given: Array, y: Tensor, groups: ArrayLike | None, outputs: int, loss: Loss) -> Self:
        """Fit a network with these outputs to targets y, and keep it as a function of X as it was given."""
        self._check_parameters()
        sites = _sites(len(given), groups, int(self.agents))
        x = torch.from_numpy(np.ascontiguousarray(given))
        shift, scale = _standards(x) if self.standardize else (torch.zeros(x.shape[1]).double(), torch.ones(1).double())
        seed = int(check_random_state(self.random_state).randint(SEEDS)) if len(self.hidden) else 0
        module = _network([x.shape[1], *map(int, self.hidden), outputs], seed)
        problem = pooled_risk(module, (x - shift) / scale, y, sites, loss)
        network = self._network(len(sites))
        found = solve(problem, network, self._regularizer(module), int(self.max_iter), self.tol)
        if not found.converged:
            caller_warnings.warn(
                f"{type(self).__name__} has not reached tol = {self.tol:g} in max_iter = {self.max_iter} iterations; "
                "more iterations, a larger tol or standardize=True may help",
                ConvergenceWarning,
            )
        nn.utils.vector_to_parameters(found.x, module.parameters())
        with torch.no_grad():  # the first layer of (x − shift)/scale is a layer of x
            first = cast(nn.Linear, module[0])
            first.weight.div_(scale)
            first.bias.sub_(first.weight @ shift)
        self.module_ = module.requires_grad_(False)
        self.n_iter_, self.gamma_, self.objective_ = found.iterations, found.gamma, found.objective
        self.n_sites_ = len(sites)
        return self

    def _outputs(self, X: ArrayLike) -> Array:
        """The outputs ``[N, outputs]`` of the network."""
        check_is_fitted(self, "module_")
        given = validate_data(self, X, reset=False, dtype=np.float64)
        outputs: Array = self.module_(torch.from_numpy(np.ascontiguousarray(given))).numpy()
        return outputs

    def _check_parameters(self) -> None:
        check_whole(self.agents, "agents", least=1)  # of NumPy too, as searches over parameters give them
        check_whole(self.max_iter, "max_iter", least=1)
        check_positive_number(self.tol, "tol")
        check_not_negative(self.weight, "weight")
        check_probability(self.l1_ratio, "l1_ratio")
        if self.penalty not in PENALTIES:
            raise invalid("penalty", '"l1", "l2", "elastic" or None', self.penalty)
        for units in self.hidden:
            check_whole(units, "hidden", least=1)

    def _regularizer(self, module: nn.Sequential) -> Regularizer:
        """The penalty on all weights and on no bias."""
        penalties: dict[str | None, Regularizer] = {
            "l1": L1(self.weight),
            "l2": SquaredL2(self.weight),
            "elastic": ElasticNet(self.l1_ratio * self.weight, (1 - self.l1_ratio) * self.weight),
        }
        if self.penalty is None:
            return Zero()
        parts, end = [], 0
        for name, values in module.named_parameters():
            if name.endswith("weight"):
                parts.append((end, end + values.numel(), penalties[self.penalty]))
            end += values.numel()
        return Blocks(parts)

    def _network(self, sites: int) -> Network:
        network = networks.ring(sites) if self.network is None else self.network
        network = network if isinstance(network, Network) else network(sites)
        if network.n != sites:
            raise ValueError(
                f"network: {network.label} has {network.n} agents, but there are {sites} sites; give a network of that "
                "size, or a function of the size, such as networks.complete"
            )
        return network

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Fit the model."""


class DecentralizedClassifier(ClassifierMixin, _Decentralized):  # type: ignore[misc]
    """A linear classifier, or a small perceptron, whose training examples stay at their sites.

        min over w, b:   (1/N) Σ_j ℓ(f(a_j; w, b), y_j) + Ψ(w)

    ℓ is the logistic loss for two classes and the cross entropy of a softmax for more; f is linear, or a perceptron
    with tanh units. Ψ is ``weight`` times ‖w‖₁ ("l1"), ½‖w‖² ("l2"), or r‖w‖₁ + ½(1 − r)‖w‖² with r = ``l1_ratio``
    ("elastic"). It applies to all weights and to no bias. With ``standardize`` features are shifted and scaled to mean
    0 and variance 1 over all examples, and Ψ to the weights of these; `coef_` and `module_` have the units of X.

    Scikit-learn's LogisticRegression minimises the same with C = 1 / (weight · N), on standardised features.

    Args:
        hidden: the numbers of units of hidden layers; none for a linear model.
        penalty: "l1", "l2", "elastic" or None.
        weight: the weight of the penalty.
        l1_ratio: the share r of the L1 norm in "elastic".
        agents: how many sites the examples are dealt to if `fit` gets no ``groups``; at most one per example.
        network: the graph of the sites, with agent i the i-th of the sorted groups; or a function of the number of
            sites that makes it, such as ``networks.complete``. A ring by default.
        standardize: whether to fit to standardised features.
        max_iter: the most iterations.
        tol: iterations end once every agent has ‖G(x_i, z_i, γ)‖ ≤ tol, the norm of the proximal gradient mapping.
        random_state: draws the initial weights of hidden layers; a linear model starts at 0 and uses no randomness.

    Attributes:
        classes_: the class labels.
        coef_: the coefficients ``[1 or classes, features]`` of a linear model; exactly sparse with "l1".
        intercept_: its intercepts ``[1 or classes]``.
        module_: the network as a torch module, which takes X in its own units.
        n_iter_: the iterations.
        gamma_: the γ that the quick search found.
        objective_: the minimum found.
        n_sites_: the number of sites.

    Examples:
        >>> from proxdasa.estimators import DecentralizedClassifier
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> hospital = torch.arange(len(y)) % 5
        >>> model = DecentralizedClassifier(penalty="l1", weight=0.1, tol=0.01, max_iter=500)
        >>> model = model.fit(X, y, groups=hospital)
        >>> int((model.coef_ != 0).sum()), model.coef_.shape
        (5, (1, 30))
        >>> f"{model.score(X, y):.2f}"
        '0.94'
    """

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Fit the model to examples X ``[N, features]`` with labels y ``[N]``.

        ``groups`` ``[N]`` names the site of each example; without it, example j goes to site j mod ``agents``.
        """
        x, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        count = len(self.classes_)
        if count < 2:
            raise ValueError(f"{type(self).__name__} needs at least two classes; y has 1 class, {self.classes_[0]!r}")
        outputs, loss = (1, logistic) if count == 2 else (count, cross_entropy)
        return self._fit(x, torch.from_numpy(numbers), groups, outputs, loss)

    def decision_function(self, X: ArrayLike) -> Array:
        """The outputs of the model: ``[N]`` for two classes, positive for the second; ``[N, classes]`` for more."""
        outputs = self._outputs(X)
        return outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each class ``[N, classes]``."""
        outputs = torch.from_numpy(self._outputs(X))
        if len(self.classes_) == 2:
            outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
        probabilities: Array = outputs.softmax(dim=1).numpy()
        return probabilities

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The label of the most probable class."""
        outputs = self._outputs(X)
        best = (outputs[:, 0] > 0).astype(int) if len(self.classes_) == 2 else outputs.argmax(1)
        labels: NDArray[Any] = self.classes_[best]
        return labels


class DecentralizedRegressor(RegressorMixin, _Decentralized):  # type: ignore[misc]
    """A linear regression, or a small perceptron, whose training examples stay at their sites.

        min over w, b:   (1/N) Σ_j ½ (f(a_j; w, b) − y_j)² + Ψ(w)

    Everything is as for `DecentralizedClassifier`. With ``standardize`` the targets are shifted and scaled too, so the
    penalty has the same meaning whatever the units of X and y; without it the model is scikit-learn's Lasso ("l1"),
    Ridge with alpha = weight · N ("l2") or ElasticNet ("elastic") with alpha = weight.

    Args:
        hidden: the numbers of units of hidden layers; none for a linear model.
        penalty: "l1", "l2", "elastic" or None.
        weight: the weight of the penalty.
        l1_ratio: the share of the L1 norm in "elastic".
        agents: how many sites the examples are dealt to if `fit` gets no ``groups``; at most one per example.
        network: the graph of the sites, or a function of their number that makes it; a ring by default.
        standardize: whether to fit to standardised features and targets.
        max_iter: the most iterations.
        tol: iterations end once every agent has ‖G(x_i, z_i, γ)‖ ≤ tol.
        random_state: draws the initial weights of hidden layers.

    Attributes:
        coef_: the coefficients ``[features]`` of a linear model; exactly sparse with "l1".
        intercept_: its intercept.
        module_: the network as a torch module, which takes X and gives y in their own units.
        n_iter_: the iterations.
        gamma_: the γ that the quick search found.
        objective_: the minimum found.
        n_sites_: the number of sites.

    Examples:
        >>> from proxdasa.estimators import DecentralizedRegressor
        >>> X = torch.arange(40.0).view(20, 2) % 7
        >>> model = DecentralizedRegressor(penalty=None, tol=1e-6, max_iter=500).fit(X, 3 * X[:, 0] - 2 * X[:, 1] + 1)
        >>> model.coef_.round(4), round(float(model.intercept_), 4)
        (array([ 3., -2.]), 1.0)
    """

    _layered = False

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Fit the model to examples X ``[N, features]`` with targets y ``[N]``.

        ``groups`` ``[N]`` names the site of each example; without it, example j goes to site j mod ``agents``.
        """
        x, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        targets = torch.from_numpy(np.ascontiguousarray(y, dtype=np.float64))
        shift, scale = _standards(targets) if self.standardize else (torch.zeros(()), torch.ones(()))
        self._fit(x, (targets - shift) / scale, groups, 1, half_squared_error)
        with torch.no_grad():
            last = cast(nn.Linear, self.module_[-1])
            last.weight.mul_(scale)
            last.bias.mul_(scale).add_(shift)
        return self

    def predict(self, X: ArrayLike) -> Array:
        """The predicted targets ``[N]``."""
        return self._outputs(X)[:, 0]


def _network(sizes: Sequence[int], seed: int) -> nn.Sequential:
    """A perceptron with tanh units in double precision; a linear model starts at 0."""
    layers: list[nn.Module] = []
    with torch_generator() as generator:  # layers are made on the CPU
        generator.manual_seed(seed)
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs, dtype=torch.float64), nn.Tanh()]
    module = nn.Sequential(*layers[:-1])
    if len(sizes) == 2:
        nn.init.zeros_(module[0].weight)  # type: ignore[arg-type]
        nn.init.zeros_(module[0].bias)  # type: ignore[arg-type]
    return module


def _standards(x: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations; 1 for a feature that is constant."""
    std, mean = torch.std_mean(x, dim=0, correction=0)
    if not bool(std.isfinite().all()):
        raise ValueError("X or y has numbers so large that their variance is infinite; divide them first")
    return mean, torch.where(std > 10 * torch.finfo(x.dtype).eps * mean.abs(), std, 1.0)


def _sites(rows: int, groups: ArrayLike | None, agents: int) -> list[Tensor]:
    """The row numbers at each site."""
    if groups is None:
        count = min(agents, rows)
        return [torch.arange(site, rows, count) for site in range(count)]
    names = np.asarray(groups)
    if names.dtype.kind in "US" and isinstance(groups, list | tuple):
        names = np.asarray(groups, dtype=object)  # NumPy would turn numbers and NaN among texts into texts
    if names.shape != (rows,):
        raise ValueError(f"groups must have one entry for each of {rows} examples; got shape {list(names.shape)}")
    missing = np.array([*map(_is_missing, names)]) if names.dtype.kind == "O" else names != names  # noqa: PLR0124
    if missing.any():
        raise ValueError(f"groups must name the site of every example; that of row {missing.argmax()} is missing")
    try:
        places = np.unique(names, return_inverse=True)[1]
    except TypeError:
        kinds = sorted({type(name).__name__ for name in names})
        raise ValueError(f"groups must be of one kind, to be sorted; they are {' and '.join(kinds)}") from None
    return [torch.from_numpy(np.flatnonzero(places == site)) for site in range(places.max() + 1)]


def _is_missing(name: object) -> bool:
    """Whether this is None, NaN or NaT, which do not equal themselves, or pandas' NA, which compares to NA."""
    same = name == name  # noqa: PLR0124
    return name is None or not (isinstance(same, bool | np.bool_) and bool(same))
