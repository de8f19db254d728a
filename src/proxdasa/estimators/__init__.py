"""Estimators for scikit-learn: linear models and small perceptrons whose data stay at their sites.

    classifier = DecentralizedClassifier(penalty="l1", weight=0.01).fit(X, y, groups=hospital)

The sites are the agents of a network. Together they minimise the pooled risk (1/N) Σ_j ℓ_j + Ψ by Prox-DASA-GT with all
their examples at every step, and send nothing but model parameters and averaged gradients to their neighbours. There is
no step size to choose: a quick search (`proxdasa.tune`) finds one.
"""

try:
    import sklearn  # type: ignore[import-untyped]  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "proxdasa.estimators needs scikit-learn, which is missing: pip install 'proxdasa[data]'"
    ) from error

from proxdasa.estimators.decentralized import DecentralizedClassifier, DecentralizedRegressor

__all__ = ["DecentralizedClassifier", "DecentralizedRegressor"]
