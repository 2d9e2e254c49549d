"""Spaces of parameters, one for each type of estimator.

The ranges follow Roth, Peharz, Tschiatschek and Pernkopf (2018), "Hybrid
generative-discriminative training of Gaussian mixture models", section 4.2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import optuna

from mixtura.data.given import ArrayLike, Parameters
from mixtura.data.labels import labeled_mask, read_labels
from mixtura.densities import CHAINS, Diagonal, Full, LowRank, Spherical, Structure
from mixtura.estimators import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    MixtureRegressor,
    SequenceDensity,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.estimators.channels import SequenceEstimator
from mixtura.estimators.plan import choose_solver
from mixtura.objectives import Margin
from mixtura.parts import resolve
from mixtura.solvers import Adam, LinkedEM, Solver

#: What spaces ask of: a trial that runs, or a finished one that repeats its answers.
Trial = optuna.Trial | optuna.trial.FrozenTrial
#: Structures whose only setting is the floor, by the names that studies store.
_GAUSSIANS: dict[str, Callable[[float], Structure]] = {
    "spherical": Spherical,
    "diag": Diagonal,
    "full": Full,
}


def plain(y: np.ndarray) -> np.ndarray:
    """Labels in an array of their own type: scikit-learn takes objects for an unknown target."""
    return np.array(y.tolist())


def classifier_space(
    trial: Trial,
    estimator: MixtureClassifier,
    X: ArrayLike,
    y: ArrayLike,
    *,
    per_class: bool = False,
) -> Parameters:
    """The space of `MixtureClassifier`; parameters without effect in a trial are left alone.

    `tradeoff_odds` is the likelihood's share against the rest, so that both ends of `tradeoff`
    are searched closely. With `per_class` every class has its own number of components:

        tune(model, X, y, space=lambda trial: classifier_space(trial, model, X, y, per_class=True))
    """
    y = read_labels(y)
    labeled = labeled_mask(y, estimator.unlabeled)
    classes, counts = np.unique(plain(y[labeled]), return_counts=True)
    chosen: Parameters = {"density": _density(trial, X.shape[1], estimator.density)}
    if per_class:
        chosen["n_components"] = [
            _components(trial, count, f"n_components_{label}")
            for label, count in zip(classes.tolist(), counts, strict=True)
        ]
    else:
        chosen["n_components"] = _components(trial, counts.min())
    if not labeled.all():
        chosen["unlabeled_weight"] = trial.suggest_float("unlabeled_weight", 0.05, 0.95)
    solver = choose_solver(estimator.solver, len(y), by_em=False)
    if len(classes) > 1 and not solver.likelihood_only:
        chosen |= _discriminative(trial, solver)
    return chosen


def density_space(trial: Trial, estimator: object, X: ArrayLike, y: ArrayLike) -> Parameters:
    """The space of `MixtureDensity`."""
    return {"n_components": _components(trial, X.shape[0]), "density": _density(trial, X.shape[1])}


def sparse_space(trial: Trial, estimator: object, X: ArrayLike, y: ArrayLike) -> Parameters:
    """The space of `SparseMixtureClassifier`: what its components are made of, and how many."""
    chosen: Parameters = {"n_components": trial.suggest_int("n_components", 1, 6), "form": "auto"}
    kernel = trial.suggest_categorical("kernel", ["poly2", "rbf"])
    if kernel == "rbf":
        gamma = trial.suggest_float("gamma", 0.05, 5.0, log=True) / X.shape[1]
        return {
            **chosen,
            "kernel": "rbf",
            "features": "quadratic",
            "kernel_params": {"gamma": gamma},
        }
    features = trial.suggest_categorical("features", ["quadratic", "diagonal", "linear"])
    return {**chosen, "kernel": "poly2", "features": features, "kernel_params": None}


def boosted_space(trial: Trial, estimator: object, X: ArrayLike, y: ArrayLike) -> Parameters:
    """The space of `BoostedMixtureClassifier`: what a stage is; their number is not searched."""
    return {
        "n_components": trial.suggest_int("n_components", 1, 4),
        "prior_rows": trial.suggest_float("prior_rows", 0.1, 10.0, log=True),
        "density": _density(trial, X.shape[1]),
    }


def sequence_space(
    trial: Trial, estimator: SequenceEstimator, X: ArrayLike, y: ArrayLike
) -> Parameters:
    """The space of `SequenceMixtureClassifier`: what its hidden Markov models are."""
    chosen: Parameters = {"n_states": trial.suggest_int("n_states", 2, 16, log=True)}
    kind = trial.suggest_categorical("density", ["diag", "full"])
    topology = trial.suggest_categorical("topology", sorted(CHAINS))
    chosen["chain"] = replace(resolve(estimator.chain, CHAINS), topology=topology)
    floor = trial.suggest_float("floor", 1e-3, 0.5, log=True)
    return {**chosen, "density": _GAUSSIANS[kind](floor)}


def sequence_density_space(
    trial: Trial, estimator: SequenceEstimator, X: ArrayLike, y: ArrayLike
) -> Parameters:
    """The space of `SequenceDensity`: the same, and how many components."""
    n_components = trial.suggest_int("n_components", 1, 8, log=True)
    return {"n_components": n_components, **sequence_space(trial, estimator, X, y)}


def network_space(
    trial: Trial,
    estimator: MixtureNetworkClassifier | MixtureNetworkRegressor,
    X: ArrayLike,
    y: ArrayLike,
) -> Parameters:
    """The space of `MixtureNetworkClassifier` and `MixtureNetworkRegressor`."""
    linked = estimator.solver if isinstance(estimator.solver, LinkedEM) else LinkedEM()
    chosen: Parameters = {
        "embedding": trial.suggest_categorical("embedding", ["posterior", "log_density"]),
        "n_components": trial.suggest_int("n_components", 1, 30, log=True),
        "solver": replace(
            linked,
            l1=trial.suggest_float("l1", 1e-5, 1e-1, log=True),
            l2=trial.suggest_float("l2", 1e-5, 1e-1, log=True),
        ),
        "prior_rows": trial.suggest_float("prior_rows", 1.0, 100.0, log=True),
        "density": _density(trial, X.shape[1]),
    }
    if linked.end_to_end:
        chosen["tradeoff"] = trial.suggest_float("tradeoff", 1e-3, 1.0, log=True)
    else:
        link = trial.suggest_float("link", 1e-2, 1e4, log=True)
        chosen["solver"] = replace(chosen["solver"], link=link)
    return chosen


def regressor_space(
    trial: Trial, estimator: MixtureRegressor, X: ArrayLike, y: ArrayLike
) -> Parameters:
    """The space of `MixtureRegressor`: one mixture."""
    return {
        "n_components": _components(trial, X.shape[0]),
        "tradeoff": trial.suggest_float("tradeoff", 1e-2, 1.0, log=True),
        "marginals": trial.suggest_categorical("marginals", ["linear", "power", "ranks"]),
        "prior_rows": trial.suggest_float("prior_rows", 0.1, 30.0, log=True),
        "density": _density(trial, X.shape[1] + 1),
    }


#: The space of each type of estimator and its subclasses: a function of (trial, estimator, X, y),
#: with the rows of one training part, that returns parameters.
SPACES: dict[type, Callable[..., Parameters]] = {
    MixtureClassifier: classifier_space,
    SparseMixtureClassifier: sparse_space,
    BoostedMixtureClassifier: boosted_space,
    SequenceMixtureClassifier: sequence_space,
    SequenceDensity: sequence_density_space,
    MixtureDensity: density_space,
    MixtureNetworkClassifier: network_space,
    MixtureNetworkRegressor: network_space,
    MixtureRegressor: regressor_space,
}


def _components(trial: Trial, n_rows: int, name: str = "n_components") -> int:
    """At most 20, and two rows for each."""
    return trial.suggest_int(name, 1, int(np.clip(n_rows // 2, 1, 20)), log=True)


def _density(trial: Trial, n_features: int, given: str | Structure = "auto") -> Structure:
    """A Gaussian structure; one of low rank keeps what else was said of the one that is given."""
    floor = trial.suggest_float("floor", 1e-4, 1e-1, log=True)
    if n_features == 1:
        return Full(floor)
    low_rank, kind = given if isinstance(given, LowRank) else LowRank(), "low_rank"
    if low_rank.closed_form:  # precisions come in low rank alone
        kind = trial.suggest_categorical("density", [*_GAUSSIANS, kind])
    if kind != "low_rank":
        return _GAUSSIANS[kind](floor)
    rank = trial.suggest_int("rank", 1, min(25, n_features - 1))
    return replace(low_rank, rank=rank, floor=floor)


def _discriminative(trial: Trial, solver: Solver) -> Parameters:
    objective = trial.suggest_categorical("objective", ["margin", "conditional"])
    odds = trial.suggest_float("tradeoff_odds", 1e-3, 1e3, log=True)
    chosen = {"objective": objective, "tradeoff": odds / (1.0 + odds)}
    if objective == "margin":
        chosen["objective"] = Margin(trial.suggest_float("margin", 1e-2, 1e2, log=True))
    if isinstance(solver, Adam):
        rate = trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
        chosen["solver"] = replace(solver, learning_rate=rate)
    return chosen
