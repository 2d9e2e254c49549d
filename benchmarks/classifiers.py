"""Classifiers that people use on tables with holes, categories and few labels."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import sklearn
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading
from sklearn.svm import SVC
from sklearn.utils import Bunch
from sklearn.utils.fixes import parse_version

from mixtura.papers.tables import boosted_trees, punch_at_random

GRID = {"C": [1, 10, 100], "gamma": ["scale", 0.01, 0.1]}
FOLDS = 3
#: One temperature calibrates many classes better than curves per class; scikit-learn 1.8 has it.
METHOD = "temperature" if parse_version(sklearn.__version__) >= parse_version("1.8") else "sigmoid"


class FilledIn(ClassifierMixin, BaseEstimator):
    """Numbers scaled, categories as indicators, an imputer, and a classifier of complete rows.

    Complete columns lose a third of their entries before the imputer learns from them: from
    complete rows an iterative imputer would learn nothing, and fill in means.
    """

    def __init__(self, model: Any, imputer: Any, categorical: np.ndarray) -> None:
        self.model, self.imputer, self.categorical = model, imputer, categorical

    def fit(self, X: np.ndarray, y: np.ndarray) -> FilledIn:
        self.scaler_ = StandardScaler().fit(X)
        columns = X[:, self.categorical].T
        self.levels_ = [np.unique(column[~np.isnan(column)]) for column in columns]
        rows = self._coded(X)
        punched = punch_at_random(rows, 1 / 3, 0)
        learned = np.where(np.isnan(rows).any(0), rows, punched)
        nearest = {"n_nearest_features": 10} if rows.shape[1] > 30 else {}
        iterative = isinstance(self.imputer, IterativeImputer)
        self.imputer_ = clone(self.imputer).set_params(**nearest if iterative else {})
        self.imputer_.fit(learned if iterative else rows)
        self.model_ = clone(self.model).fit(self.imputer_.transform(rows), y)
        self.classes_ = self.model_.classes_
        return self

    def _coded(self, X: np.ndarray) -> np.ndarray:
        """Scaled numbers and indicators; all indicators of a missing category are missing."""
        columns = X[:, self.categorical].T[..., None]
        indicators = [
            np.where(np.isnan(column), np.nan, column == levels)
            for column, levels in zip(columns, self.levels_, strict=True)
        ]
        return np.hstack([self.scaler_.transform(X)[:, ~self.categorical], *indicators])

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return self.model_.predict_proba(self.imputer_.transform(self._coded(X)))


class TunedSVM(ClassifierMixin, BaseEstimator):
    """A support vector machine with a grid and calibration, where every class has two rows."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> TunedSVM:
        folds = min(FOLDS, np.unique(y, return_counts=True)[1].min())
        if folds < 2:
            self.model_ = SVC(C=10).fit(X, y)
        else:
            search = GridSearchCV(SVC(), GRID, cv=folds).fit(X, y)
            best = SVC(**search.best_params_)
            model = CalibratedClassifierCV(best, method=METHOD, cv=folds, ensemble=False)
            self.model_ = model.fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        if isinstance(self.model_, CalibratedClassifierCV):
            return self.model_.predict_proba(X)
        score = self.model_.decision_function(X)
        if score.ndim == 1:
            return np.stack([expit(-score), expit(score)], 1)
        return softmax(score, axis=1)


class Trees(ClassifierMixin, BaseEstimator):
    """Trees that take holes, trained on the rows and on copies that lack shares of the entries."""

    def __init__(self, model: Any, shares: tuple[float, ...] = ()) -> None:
        self.model, self.shares = model, shares

    def fit(self, X: np.ndarray, y: np.ndarray) -> Trees:
        copies = [X, *(punch_at_random(X, share, 1) for share in self.shares)]
        rows = np.vstack(copies)
        # scikit-learn's trees refuse columns without any value.
        rows[:, np.isnan(rows).all(0)] = 0.0
        self.model_ = clone(self.model).fit(rows, np.tile(y, len(copies)))
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return self.model_.predict_proba(X)


class LightGBM(ClassifierMixin, BaseEstimator):
    """LightGBM with its defaults, told which columns are categories."""

    def __init__(self, categorical: np.ndarray, seed: int) -> None:
        self.categorical, self.seed = categorical, seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> LightGBM:
        from lightgbm import LGBMClassifier

        columns = np.flatnonzero(self.categorical).tolist() or "auto"
        model = LGBMClassifier(verbose=-1, n_jobs=1, random_state=self.seed)
        self.model_ = model.fit(X, y, categorical_feature=columns)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return self.model_.predict_proba(X)


def _mean() -> SimpleImputer:
    return SimpleImputer(keep_empty_features=True)


def _iterative() -> IterativeImputer:
    return IterativeImputer(max_iter=5, keep_empty_features=True, random_state=0)


Maker = Callable[[Bunch, int], Any]


def _filled_in(model: Callable[[], Any], imputer: Callable[[], Any]) -> Maker:
    return lambda rows, seed: FilledIn(model(), imputer(), rows.categorical)


SPREADING = "label spreading"
#: By name: what makes a classifier for a table and a seed.
CLASSIFIERS: dict[str, Maker] = {
    "SVM, mean": _filled_in(TunedSVM, _mean),
    "SVM, iterative": _filled_in(TunedSVM, _iterative),
    "SVM, KNN": _filled_in(TunedSVM, lambda: KNNImputer(keep_empty_features=True)),
    "logistic, iterative": _filled_in(lambda: LogisticRegression(max_iter=1000), _iterative),
    "boosting": lambda rows, seed: Trees(boosted_trees(rows, seed)),
    "boosting, punched": lambda rows, seed: Trees(boosted_trees(rows, seed), (0.3, 0.6)),
    "LightGBM": lambda rows, seed: LightGBM(rows.categorical, seed),
    SPREADING: _filled_in(lambda: LabelSpreading(kernel="knn"), _mean),
}
ABSENT = () if find_spec("lightgbm") else ("LightGBM",)
