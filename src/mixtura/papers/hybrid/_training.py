"""How the mixtures of the hybrid paper are trained: what all its cells have in common."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
from sklearn.base import clone

from mixtura.data.given import Parameters
from mixtura.densities import Diagonal, Full, LowRank, Structure, VectorDensity
from mixtura.estimators import MixtureClassifier
from mixtura.exceptions import DegenerateDataWarning
from mixtura.models.mixture import Mixture
from mixtura.objectives import Conditional, Likelihood, Margin, tradeoff_of_share
from mixtura.papers.report import Report
from mixtura.solvers import EM, Adam

OBJECTIVES: dict[str, Parameters] = {
    "LL": {"objective": Likelihood(), "solver": EM(), "solver__max_iter": 100},
    "LL+LM": {"objective": Margin()},
    "LL+CLL": {"objective": Conditional()},
    "LM": {"objective": Margin(), "tradeoff": 0.0},
    "CLL": {"objective": Conditional(), "tradeoff": 0.0},
}
STRUCTURES = ("full", "diagonal")

#: What every model of the paper has in common.
COMMON: Parameters = {
    "class_prior": "uniform",
    "marginals": "raw",
    "prior_rows": 0,
    "density__rank": 25,
    "solver": Adam(),
    "solver__batch_size": 100,
    "solver__max_iter": 20,
    "solver__validation_fraction": 1 / 6,
    "solver__averaging": 0.999,
    "calibrate": False,  # only probabilities need it
}


class Fit(NamedTuple):
    """A fitted model and the seconds it took."""

    model: MixtureClassifier
    seconds: float


def density(structure: str, objective: str) -> Structure:
    """What the paper calls full is diagonal plus low rank, but for the likelihood alone."""
    if structure == "diagonal":
        return Diagonal()
    return Full() if objective == "LL" else LowRank()


def layered(settings: dict[str, Parameters], part: str) -> Parameters:
    """The settings of a part: those of all names that lead to it, the more exact ones last."""
    words = part.split("/")
    merged: Parameters = {}
    for depth in range(1, len(words) + 1):
        merged |= settings.get("/".join(words[:depth]), {})
    return merged


def train(report: Report, X: np.ndarray, y: np.ndarray, chosen: Parameters) -> Fit:
    """Fit a classifier with the chosen parameters; the best validation epoch of all is kept."""
    defaults = {"solver__patience": chosen["solver__max_iter"], "random_state": report.seed}
    if "tradeoff" in chosen:  # the paper weighs the whole likelihood, the classifier that per value
        chosen = {**chosen, "tradeoff": tradeoff_of_share(chosen["tradeoff"], X.shape[1])}
    model = build(defaults | chosen).set_params(device=report.device)
    began = time.perf_counter()
    with warnings.catch_warnings():
        # Pixels at the rim are black in every image, and a draw of few labels may lack rows.
        warnings.simplefilter("ignore", DegenerateDataWarning)
        model.fit(X, y)
    return Fit(model, time.perf_counter() - began)


def from_whole(
    report: Report, X: np.ndarray, y: np.ndarray, chosen: Parameters
) -> tuple[MixtureClassifier, Mixture]:
    """EM for whole covariances, and its mixture with as many eigenpairs as the rank says."""
    model = train(report, X, y, {**chosen, "density": Full()}).model
    mixture, low_rank = model.mixture_, LowRank(chosen["density__rank"])
    low_rank.parameterization = chosen.get("density__parameterization", "covariance")
    if chosen["density__rank"] < X.shape[1]:
        whole = cast("VectorDensity", mixture.density)
        mixture = replace(mixture, density=low_rank.finish(whole))
    return model, mixture


def build(chosen: Parameters) -> MixtureClassifier:
    """The classifier of these parameters; those that its parts do not have are left aside."""
    own = {name: value for name, value in chosen.items() if "__" not in name}
    model = clone(MixtureClassifier(**own))  # the objects of the tables stay as they are
    nested = model.get_params().keys() - own.keys()
    return model.set_params(**{name: chosen[name] for name in chosen if name in nested})


def error_rate(model: MixtureClassifier, X: np.ndarray, y: np.ndarray) -> float:
    """Error in percent."""
    return 100 * float(np.mean(model.predict(X) != y))
