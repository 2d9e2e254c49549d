"""PairwiseClassifier: a classifier for each pair of classes, and what they say together."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin, MetaEstimatorMixin, _fit_context, clone
from sklearn.utils import Tags, _safe_indexing, get_tags
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from mixtura.coupling import coupled
from mixtura.data.given import ArrayLike, Classifier
from mixtura.data.lazy import Opened
from mixtura.estimators.base import Estimator
from mixtura.estimators.reading import check_weight, opened
from mixtura.estimators.rows import labeled_alone, labeled_score, read_classes
from mixtura.exceptions import InvalidInputError, UnsupportedError, warning_once


class PairwiseClassifier(MetaEstimatorMixin, ClassifierMixin, Estimator):
    """One classifier for each pair of classes, their probabilities joined by pairwise coupling.

    Unlike scikit-learn's `OneVsOneClassifier` it has probabilities (Hastie and Tibshirani,
    "Classification by pairwise coupling", 1998), and takes whatever the classifier takes: matrices,
    data frames, lists of sequences. With two classes it is the classifier itself.

    Parameters
    ----------
    estimator : classifier with `predict_proba`
    n_jobs : int or None
        Pairs to work on at the same time, as in scikit-learn.

    Attributes
    ----------
    classes_ : (C,)
    pairs_ : (P, 2), places in `classes_`: (0, 1), (0, 2), ...
    estimators_ : list of the fitted classifiers, one per pair; a single one for a single class
    class_count_ : (C,), rows of each class, by weight
    n_features_in_, feature_names_in_ : where the classifier has them
    """

    _parameter_constraints: dict = {
        "estimator": [HasMethods(["fit", "predict_proba"])],
        "n_jobs": [Integral, None],
    }

    def __init__(self, estimator: Classifier, *, n_jobs: int | None = None) -> None:
        self.estimator = estimator
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    @property
    def _marker(self) -> object:
        return getattr(self.estimator, "unlabeled", None)

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> Self:
        """Fit a classifier to the rows of each pair of classes.

        Parameters
        ----------
        X : n rows, sequences, files, ...: what the classifier takes.
        y : (n,) labels; rows without one, as the classifier reads them, are left out, with a
            warning.
        sample_weight : (n,) non-negative weights, for classifiers that take them.
        """
        if isinstance(self.estimator, Estimator):
            X, y, sample_weight = opened(self.estimator, X, y, sample_weight)
        lazy = isinstance(X, Opened)
        classes, codes = read_classes(self, X.rows if lazy else X, y, self._marker)
        weight = check_weight(sample_weight, len(codes))
        if sample_weight is not None and not has_fit_parameter(self.estimator, "sample_weight"):
            raise UnsupportedError(
                f"{type(self.estimator).__name__} takes no sample_weight: leave it out."
            )
        labeled = labeled_alone(codes)
        if not labeled.all():
            X, codes, weight = _taken(X, labeled), codes[labeled], weight[labeled]
        count = np.bincount(codes, weight)
        if (count == 0).any():
            raise InvalidInputError(
                f"no row with positive weight for the classes {classes[count == 0].tolist()}: drop "
                "these classes, or weigh their rows."
            )
        pairs = np.stack(np.triu_indices(len(classes), 1), axis=1)
        parts: list[np.ndarray | None] = [None]
        if len(pairs) > 1:
            X = X.tocsr() if issparse(X) else X
            parts = [np.flatnonzero((codes == i) | (codes == j)) for i, j in pairs]
        y, given = classes[codes], None if sample_weight is None else weight
        with warning_once():
            estimators = Parallel(n_jobs=None if lazy else self.n_jobs)(
                delayed(_fit_part)(self.estimator, X, y, given, part) for part in parts
            )
        self.classes_, self.pairs_, self.class_count_ = classes, pairs, count
        self.estimators_ = estimators
        return self

    @property
    def n_features_in_(self) -> int:
        """Columns of X that `fit` saw."""
        check_is_fitted(self)
        return self.estimators_[0].n_features_in_

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of these columns."""
        check_is_fitted(self)
        return self.estimators_[0].feature_names_in_

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """p(class | x), (n, C), classes in the order of `classes_`."""
        check_is_fitted(self)
        if len(self.estimators_) == 1:
            return self.estimators_[0].predict_proba(X)
        with warning_once():
            answers = Parallel(n_jobs=self.n_jobs)(
                delayed(estimator.predict_proba)(X) for estimator in self.estimators_
            )
        return coupled(answers, self.pairs_, self.class_count_)

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """log p(class | x), (n, C), classes in the order of `classes_`."""
        check_is_fitted(self)
        if len(self.estimators_) == 1 and hasattr(self.estimators_[0], "predict_log_proba"):
            return self.estimators_[0].predict_log_proba(X)
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> float:
        """The share of the labeled rows, by weight, whose class is predicted."""
        return labeled_score(self.predict(X), y, sample_weight, self._marker, self.classes_)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each row."""
        check_is_fitted(self)
        if len(self.estimators_) == 1:
            return self.estimators_[0].predict(X)
        place = self.predict_proba(X).argmax(1)
        return self.classes_[place]


def _fit_part(
    estimator: Classifier,
    X: ArrayLike,
    y: np.ndarray,
    weight: np.ndarray | None,
    rows: np.ndarray | None,
) -> Classifier:
    """A classifier of some rows; of all rows where `rows` is None."""
    labels = _safe_indexing(y, rows)
    options = {} if weight is None else {"sample_weight": _safe_indexing(weight, rows)}
    fitted = clone(estimator).fit(_taken(X, rows), labels, **options)
    wanted = np.unique(labels)
    if not np.array_equal(fitted.classes_, wanted):
        raise InvalidInputError(
            f"{type(estimator).__name__} was given the classes {wanted.tolist()} and found "
            f"{np.asarray(fitted.classes_).tolist()}: a label that it takes for something else, "
            "as a marker of unlabeled rows, cannot be a class."
        )
    return fitted


def _taken(X: ArrayLike, rows: np.ndarray | None) -> ArrayLike:
    """Some rows, in memory or of files; all where `rows` is None."""
    if isinstance(X, Opened):
        return X if rows is None else replace(X, rows=X.rows.view(rows))
    return _safe_indexing(X, rows)
