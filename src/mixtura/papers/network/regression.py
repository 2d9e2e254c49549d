"""Mixture networks beyond the paper: regression, which Caetano (2018) names as future work.

A column of a table is predicted from the others, five-fold, as it is given and with a fifth of the
entries missing at random. Beside the network: a radial basis function network of the usual kind
(k-means centers, each as wide as the distance to the nearest other one, ridge regression; number
of centers and ridge by cross-validation), ridge regression, and boosted trees. Where entries are
missing the first two see means instead, and most frequent categories.

Parts are named like "diabetes, given, network" and "diabetes, holes, network".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import Bunch

from mixtura import MixtureNetworkRegressor
from mixtura.data.given import Parameters, Predictor
from mixtura.papers.report import Report
from mixtura.papers.tables import fit, load, punch_at_random, spread, without_warnings

#: The set, and the column of it that is predicted; None is sklearn's own target.
TARGETS: dict[str, tuple[str, str] | None] = {
    "diabetes": None,
    "pima": ("pima_missing", "mass"),
    "wdbc": ("wdbc", "mean fractal dimension"),
    "wine": ("wine", "color_intensity"),
    "glass": ("glass", "RI"),
    "adult": ("adult", "age"),
}
STATES = {"given": 0.0, "holes": 0.2}
N_FOLDS = 5
_MOST_ROWS, _QUICK_ROWS = 5000, 200
_RIDGES = 10.0 ** np.arange(-3, 4)
_CENTERS = (5, 10, 20, 40, 80)
#: What the searched network may choose from; the other one has its defaults.
_GRID = {"n_components": [2, 5, 10, 20], "embedding": ["posterior", "density", "log_density"]}
_QUICK: Parameters = {"n_components": 2, "embedding": "log_density", "missingness": "ignore"}


def run(report: Report) -> None:
    """A row for each target, state of the rows and model."""
    for name in ("diabetes",) if report.quick else TARGETS:
        for state in STATES:
            for model in ("network", "RBF", "ridge", "trees") if report.quick else MODELS:
                if report.wants(f"{name}, {state}, {model}"):
                    _show(report, name, state, model)


def load_target(name: str, most: int) -> Bunch:
    """Features, target and which features are categories."""
    chosen = TARGETS[name]
    if chosen is None:
        data, target = load_diabetes(return_X_y=True)
        few = slice(most)
        return Bunch(data=data[few], target=target[few], categorical=np.zeros(10, dtype=bool))
    rows = load(chosen[0], most)
    column = rows.feature_names.index(chosen[1])
    known = ~np.isnan(rows.data[:, column])
    return Bunch(
        data=np.delete(rows.data[known], column, axis=1),
        target=rows.data[known, column],
        categorical=np.delete(np.asarray(rows.categorical, dtype=bool), column),
    )


def _show(report: Report, name: str, state: str, model: str) -> None:
    rows = load_target(name, _QUICK_ROWS if report.quick else _MOST_ROWS)
    X = punch_at_random(rows.data, STATES[state], report.seed)
    folds = KFold(2 if report.quick else N_FOLDS, shuffle=True, random_state=report.seed)
    scores, seconds = [], []
    for train, test in folds.split(X):
        fitted = MODELS[model](rows, report)
        seconds.append(fit(fitted, X[train], rows.target[train]))
        with without_warnings():
            scores.append(r2_score(rows.target[test], fitted.predict(X[test])))
    report.row(
        "R2",
        data=name,
        state=state,
        model=model,
        rows=len(X),
        **spread(scores),
        seconds=float(np.mean(seconds)),
    )


# -- models --------------------------------------------------------------------------------------


class RadialBasis(TransformerMixin, BaseEstimator):
    """Gaussians around k-means centers, each as wide as the distance to the nearest other one."""

    def __init__(self, n_centers: int = 10, random_state: int | None = None) -> None:
        self.n_centers = n_centers
        self.random_state = random_state

    def fit(self, X: np.ndarray, y: np.ndarray | None = None) -> RadialBasis:
        """Find the centers; no more than there are distinct rows."""
        count = min(self.n_centers, len(np.unique(X, axis=0)))
        means = KMeans(count, n_init=3, random_state=self.random_state).fit(X)
        self.centers_ = means.cluster_centers_
        apart = cdist(self.centers_, self.centers_)
        np.fill_diagonal(apart, np.inf)
        self.widths_ = apart.min(1)
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        """(n, centers)."""
        return np.exp(-0.5 * (cdist(X, self.centers_) / self.widths_) ** 2)


def _filled(rows: Bunch) -> ColumnTransformer:
    """Numbers in units of their deviation, categories as indicators, and no holes."""
    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    symbols = make_pipeline(
        SimpleImputer(strategy="most_frequent"),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    return ColumnTransformer(
        [("numbers", numbers, ~rows.categorical), ("symbols", symbols, rows.categorical)]
    )


def _radial(rows: Bunch, report: Report) -> GridSearchCV:
    model = make_pipeline(_filled(rows), RadialBasis(random_state=report.seed), Ridge())
    centers = _CENTERS[:2] if report.quick else _CENTERS
    grid = {"radialbasis__n_centers": centers, "ridge__alpha": _RIDGES}
    folds = KFold(2 if report.quick else 5, shuffle=True, random_state=report.seed)
    return GridSearchCV(model, grid, cv=folds)


def _trees(rows: Bunch, report: Report) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(
        categorical_features=rows.categorical, random_state=report.seed
    )


def _network(rows: Bunch, report: Report) -> MixtureNetworkRegressor:
    return MixtureNetworkRegressor(
        **(_QUICK if report.quick else {}),
        categorical_features=rows.categorical,
        device=report.device,
        random_state=report.seed,
    )


def _searched(rows: Bunch, report: Report) -> GridSearchCV:
    folds = KFold(3, shuffle=True, random_state=report.seed)
    return GridSearchCV(_network(rows, report), _GRID, cv=folds)


MODELS: dict[str, Callable[[Bunch, Report], Predictor]] = {
    "network": _network,
    "searched network": _searched,
    "RBF": _radial,
    "ridge": lambda rows, report: make_pipeline(_filled(rows), RidgeCV(_RIDGES)),
    "trees": _trees,
}
