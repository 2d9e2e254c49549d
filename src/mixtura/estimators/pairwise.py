"""PairwiseClassifier: a classifier for each pair of classes, and what they say together."""

from __future__ import annotations

from numbers import Integral
from typing import Self

import numpy as np
from scipy.sparse import issparse
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, MetaEstimatorMixin, _fit_context, clone
from sklearn.utils import Tags, _safe_indexing, get_tags
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from mixtura.data.given import ArrayLike, Classifier
from mixtura.estimators.base import Estimator, check_weight
from mixtura.estimators.rows import labeled_alone, labeled_score, read_classes
from mixtura.exceptions import InvalidInputError, UnsupportedError, warning_once

#: Probabilities of a pair keep so far away from 0 and 1.
_HAIR = 1e-12
_TOLERANCE, _SWEEPS = 1e-10, 1_000
#: Keeps Newton's matrix invertible; relative to the largest weight.
_RIDGE = 1e-14
#: Coupling makes arrays of about so many numbers.
_CHUNK = 2**21


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
    estimators_ : list of the fitted classifiers, one a pair; a single one for a single class
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
        X : n rows, sequences, ...: what the classifier takes.
        y : (n,) labels; rows without one, as the classifier reads them, are left out, with a
            warning.
        sample_weight : (n,) non-negative weights, for classifiers that take them.
        """
        classes, codes = read_classes(self, X, y, self._marker)
        weight = check_weight(sample_weight, len(codes))
        if sample_weight is not None and not has_fit_parameter(self.estimator, "sample_weight"):
            raise UnsupportedError(
                f"{type(self.estimator).__name__} takes no sample_weight: leave it out."
            )
        labeled = labeled_alone(codes)
        if not labeled.all():
            X, codes, weight = _safe_indexing(X, labeled), codes[labeled], weight[labeled]
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
            estimators = Parallel(n_jobs=self.n_jobs)(
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
                delayed(_predict_proba)(estimator, X) for estimator in self.estimators_
            )
        n_classes = len(self.classes_)
        r = np.full((len(answers[0]), n_classes, n_classes), 0.5)
        for (i, j), proba in zip(self.pairs_, answers, strict=True):
            r[:, i, j], r[:, j, i] = proba.T
        return couple(r, np.add.outer(self.class_count_, self.class_count_))

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
    fitted = clone(estimator).fit(_safe_indexing(X, rows), labels, **options)
    wanted = np.unique(labels)
    if not np.array_equal(fitted.classes_, wanted):
        raise InvalidInputError(
            f"{type(estimator).__name__} was given the classes {wanted.tolist()} and found "
            f"{np.asarray(fitted.classes_).tolist()}: a label that it takes for something else, "
            "as a marker of unlabeled rows, cannot be a class."
        )
    return fitted


def _predict_proba(estimator: Classifier, X: ArrayLike) -> np.ndarray:
    return estimator.predict_proba(X)


def couple(r: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Class probabilities that agree best with those of the pairs.

    They minimize the Kullback-Leibler divergence of Hastie and Tibshirani (1998), the sum over
    pairs of `weights_ij KL(r_ij || p_i / (p_i + p_j))`.

    Parameters
    ----------
    r : (n, C, C), `r_ij = P(i | i or j)`; the diagonal does not matter.
    weights : (C, C), symmetric: rows that each pair was learned from.

    Returns
    -------
    (n, C) probabilities.
    """
    r, weights = np.asarray(r, dtype=np.float64), np.array(weights, dtype=np.float64)
    n_classes = len(weights)
    if weights.shape != (n_classes, n_classes) or r.shape[1:] != weights.shape:
        raise InvalidInputError(
            f"r has the shape {r.shape} and weights {weights.shape}: give (n, C, C) and (C, C)."
        )
    pair = ~np.eye(n_classes, dtype=bool)
    if not ((r >= 0) & (r <= 1))[:, pair].all():
        raise InvalidInputError("r must hold probabilities, from 0 to 1.")
    if not ((weights > 0) & (weights == weights.T) & (weights < np.inf))[pair].all():
        raise InvalidInputError("weights must be positive, finite and symmetric.")
    if n_classes == 1:
        return np.ones((len(r), 1))
    weights = np.where(pair, weights / weights[pair].max(), 0.0)
    size = max(1, _CHUNK // n_classes**2)
    starts = range(0, max(len(r), 1), size)
    return np.concatenate([_couple(r[at : at + size], weights) for at in starts])


def _couple(r: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Newton's method for theta = log p, from the theta that fit the log-odds by least squares.

    The paper's own iteration crawls where several classes are improbable together. The divergence
    is generalized self-concordant in the differences of theta, so a step of range d shortened to
    log(1 + d) never overshoots (Sun and Tran-Dinh, 2019).
    """
    r = np.where(weights > 0, np.clip(r, _HAIR, 1.0 - _HAIR), 0.5)
    r /= r + r.swapaxes(1, 2)
    odds = np.log(r) - np.log(r.swapaxes(1, 2))
    theta = _solve(weights[None], (weights * odds).sum(2).T[None])[0].T
    proba, active = softmax(theta, axis=1), np.arange(len(r))
    for _ in range(_SWEEPS):
        if not len(active):
            break
        share = expit(theta[active, :, None] - theta[active, None, :])
        slope = (weights * (r[active] - share)).sum(2)
        step = _solve(weights * share * share.swapaxes(1, 2), slope[:, :, None])[:, :, 0]
        reach = np.ptp(step, axis=1, keepdims=True)
        theta[active] += step * np.log1p(reach) / np.maximum(reach, np.finfo(float).tiny)
        better = softmax(theta[active], axis=1)
        left = np.maximum(np.abs(better - proba[active]), np.abs(slope)).max(1)
        proba[active] = better
        active = active[left > _TOLERANCE]
    return proba


def _solve(links: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve with the Laplacian of (m, C, C) links; the solutions sum to about zero."""
    n_classes = links.shape[-1]
    matrix = np.eye(n_classes) * (links.sum(2)[:, :, None] + _RIDGE) - links
    return np.linalg.solve(matrix + 1.0 / n_classes, right)
