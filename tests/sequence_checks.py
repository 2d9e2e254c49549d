"""Checks of classifiers of sequences, which the checks of scikit-learn do not know."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

from mixtura.data.given import ArrayLike, Classifier, Parameters, Setting
from mixtura.persistence import load
from mixtura.testing.parts import EXACT


class SequenceClassifier(Classifier, Protocol):
    """What a classifier of sequences answers."""

    @property
    def n_features_in_(self) -> int: ...
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> Self: ...
    def get_params(self, deep: bool = True) -> Parameters: ...
    def set_params(self, **params: Setting) -> Self: ...
    def predict_log_proba(self, X: ArrayLike) -> np.ndarray: ...
    def save(self, path: Path) -> None: ...


class _Long(dict):
    """As much of a data frame as reading one needs: columns of equal length, by name."""

    @property
    def columns(self) -> list[str]:
        return list(self)


def toy_sequences(n_classes: int = 3, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Five short sequences of each class in two channels, with holes: too few to hold any back."""
    rng = np.random.default_rng(seed)
    y = np.arange(5 * n_classes) % n_classes
    X = [label + rng.normal(size=(rng.integers(2, 7), 2)) for label in y]
    X[0][0], X[1][0, 1] = np.nan, np.nan
    return X, y


def check_sequence_estimator(estimator: SequenceClassifier) -> None:
    """Everything that is expected of a classifier of sequences, as scikit-learn's checker does.

    `SEQUENCE_ESTIMATOR_CHECKS` has the checks one by one. The estimator needs a fixed random state.
    """
    for check in SEQUENCE_ESTIMATOR_CHECKS:
        check(estimator)


def check_parameters(estimator: SequenceClassifier) -> None:
    """Parameters come back as they were set, and a clone has nothing else."""
    X, y = toy_sequences()
    params = estimator.get_params(deep=False)
    fitted = clone(estimator).fit(X, y)
    assert fitted.get_params(deep=False) == params, "fit changed the parameters"
    fresh = clone(fitted)
    assert vars(fresh) == params, "a clone of a fitted estimator is not blank"
    assert type(estimator)().set_params(**params).get_params(deep=False) == params
    for method in ("predict", "predict_proba", "predict_log_proba", "score_samples", "sample"):
        with _raises(NotFittedError, "not fitted"):
            getattr(fresh, method)(X)


def check_fit(estimator: SequenceClassifier) -> None:
    """It gives itself, leaves its input alone, repeats itself, and forgets what was before."""
    X, y = toy_sequences()
    copies, labels = [sequence.copy() for sequence in X], y.copy()
    model = clone(estimator)
    assert model.fit(X, y) is model
    for sequence, copied in zip(X, copies, strict=True):
        np.testing.assert_array_equal(sequence, copied)
    np.testing.assert_array_equal(y, labels)
    _same_answers(model, clone(estimator).fit(X, y), X)
    narrow, other = [sequence[:, :1] for sequence in toy_sequences(2, seed=1)[0]], y[:10] % 2 + 5
    again = clone(estimator).fit(narrow, other)
    model.fit(narrow, other)
    assert set(vars(model)) == set(vars(again)), "a refit remembers"
    _same_answers(model, again, narrow)


def check_forms(estimator: SequenceClassifier) -> None:
    """Lists, padded arrays, channels first, one row per frame: the same sequences."""
    X, y = toy_sequences()
    longest, lengths = max(map(len, X)), [len(sequence) for sequence in X]
    padded = np.full((len(X), longest, 2), np.nan)
    for row, sequence in zip(padded, X, strict=True):
        row[: len(sequence)] = sequence
    first, second = np.concatenate(X).T
    long = _Long(id=np.repeat(np.arange(len(X)), lengths), first=first, second=second)
    model, turned = clone(estimator).fit(X, y), clone(estimator).set_params(layout="channels_first")
    _same_answers(model, clone(estimator).fit(padded, y), X)
    _same_answers(model, clone(estimator).fit(long, y), X)
    expected = model.predict_proba(X)
    for form in (padded, long, np.array([*X, None], dtype=object)[:-1]):
        np.testing.assert_allclose(model.predict_proba(form), expected, EXACT, EXACT)
    turned.fit(padded.swapaxes(1, 2), y)
    for panel in (padded.swapaxes(1, 2), [sequence.T for sequence in X]):
        np.testing.assert_allclose(turned.predict_proba(panel), expected, EXACT, EXACT)


def check_answers(estimator: SequenceClassifier) -> None:
    """Probabilities of every class that sum to one; labels, scores and logarithms follow."""
    X, y = toy_sequences()
    model = clone(estimator).fit(X, y)
    assert model.n_features_in_ == 2
    np.testing.assert_array_equal(model.classes_, [0, 1, 2])
    unknown = np.full((4, 2), np.nan)
    proba = model.predict_proba([*X, unknown])
    assert proba.shape == (len(X) + 1, 3)
    assert (proba >= 0).all()
    np.testing.assert_allclose(proba.sum(1), 1.0, EXACT)
    np.testing.assert_allclose(np.exp(model.predict_log_proba([*X, unknown])), proba, EXACT)
    labels = model.predict(X)
    highest = np.take_along_axis(proba[:-1], labels[:, None], 1)[:, 0]
    np.testing.assert_allclose(highest, proba[:-1].max(1), EXACT)
    assert model.score(X, y) == (labels == y).mean() > 0.5, "no better than a guess"


def check_labels(estimator: SequenceClassifier) -> None:
    """Labels of any type mean the same."""
    X, y = toy_sequences(2)
    plain = clone(estimator).fit(X, y)
    for names in (
        np.array(["left", "right"]),
        np.array(["left", "right"], dtype=object),
        np.array([False, True]),
    ):
        model = clone(estimator).fit(X, names[y])
        assert model.classes_.dtype == names.dtype
        np.testing.assert_array_equal(model.predict(X), names[plain.predict(X)])
    listed = clone(estimator).fit(X, names[y].tolist())
    np.testing.assert_array_equal(listed.predict(X), model.predict(X))


def check_independence(estimator: SequenceClassifier) -> None:
    """What is said of a sequence does not depend on those beside it."""
    X, y = toy_sequences()
    model = clone(estimator).fit(X, y)
    expected = model.predict_proba(X)
    apart = np.concatenate([model.predict_proba([sequence]) for sequence in X])
    np.testing.assert_allclose(apart, expected, EXACT, EXACT)
    order = np.random.default_rng(0).permutation(len(X))
    shuffled = model.predict_proba([X[place] for place in order])
    np.testing.assert_allclose(shuffled, expected[order], EXACT, EXACT)


def check_storage(estimator: SequenceClassifier) -> None:
    """Pickles and files bring the whole model back."""
    X, y = toy_sequences()
    model = clone(estimator).fit(X, np.array(["a", "b", "c"])[y])
    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        loaded = load(Path(folder) / "model")
    for again in (pickle.loads(pickle.dumps(model)), loaded):
        assert type(again) is type(model)
        assert again.get_params(deep=False) == model.get_params(deep=False)
        assert set(vars(again)) == set(vars(model))
        _same_answers(model, again, X)


def check_weights(estimator: SequenceClassifier) -> None:
    """A weight of two is a sequence given twice, and a weight of zero one left out."""
    X, y = toy_sequences()
    weight = np.where(np.arange(len(X)) % 4 == 1, 2.0, 1.0)
    weight[-3:] = 0.0
    places = np.repeat(np.arange(len(X)), weight.astype(int))
    model = clone(estimator).set_params(early_stopping=False, calibrate=False)
    weighted = clone(model).fit(X, y, sample_weight=weight)
    _same_answers(weighted, model.fit([X[place] for place in places], y[places]), X, 1e-5)


def check_selection(estimator: SequenceClassifier) -> None:
    """Cross-validation and searches take lists of sequences."""
    X, y = toy_sequences()
    scores = cross_val_score(clone(estimator), X, y, cv=2)
    assert scores.shape == (2,)
    search = GridSearchCV(clone(estimator), {"prior_rows": [0.07]}, cv=2).fit(X, y)
    assert search.best_estimator_.prior_rows == 0.07
    assert search.predict(X).shape == y.shape


def check_refusals(estimator: SequenceClassifier) -> None:
    """Input that makes no sense is refused in words that name the problem, and nothing is lost."""
    X, y = toy_sequences()
    model = clone(estimator).fit(X, y)
    before = model.predict_proba(X)
    infinite, empty = np.array([[0.0, np.inf]]), np.empty((0, 2))
    refused: dict[str, ArrayLike] = {
        "sequence 15 is empty": [*X, empty],
        "sequence 15 has 3 channel": [*X, np.ones((4, 3))],
        "sequence 15 contains infinity": [*X, infinite],
        "may mean two things": np.ones((16, 2)),
        "one row of 16": np.ones(16),
        "no sequences": [],
    }
    for message, given in refused.items():
        with _raises(ValueError, message):
            model.fit(given, np.append(y, 0)[: len(given)])
        with _raises(ValueError, message):
            model.predict(given)
    with _raises(ValueError, "1 features.*2 features"):
        model.predict([sequence[:, :1] for sequence in X])
    for labels, message in (
        (y[:-1], "inconsistent numbers of samples"),
        (np.full(len(y), np.nan), "no labeled row"),
        (np.linspace(0.0, 1.0, len(y)), "Unknown label type"),
        (None, "requires y"),
    ):
        with _raises(ValueError, message):
            model.fit(X, labels)
    for weight in (np.ones(3), -np.ones(len(y)), np.zeros(len(y)), np.full(len(y), np.nan)):
        with _raises(ValueError, "sample_weight"):
            model.fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(model.predict_proba(X), before)


def check_one_class(estimator: SequenceClassifier) -> None:
    """With a single class there is nothing to decide, and no error."""
    X, y = toy_sequences(1)
    model = clone(estimator).fit(X, y + 4)
    np.testing.assert_array_equal(model.predict(X), 4)
    np.testing.assert_allclose(model.predict_proba(X), 1.0)


SEQUENCE_ESTIMATOR_CHECKS: tuple[Callable[[SequenceClassifier], None], ...] = (
    check_parameters,
    check_fit,
    check_forms,
    check_answers,
    check_labels,
    check_independence,
    check_storage,
    check_weights,
    check_selection,
    check_refusals,
    check_one_class,
)


def _same_answers(
    first: Classifier, second: Classifier, X: ArrayLike, tolerance: float = EXACT
) -> None:
    assert first.classes_.dtype == second.classes_.dtype
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    proba = first.predict_proba(X), second.predict_proba(X)
    np.testing.assert_allclose(*proba, tolerance, tolerance)


@contextmanager
def _raises(kind: type[Exception], message: str) -> Iterator[None]:
    """Fails unless such an error comes, with words that fit."""
    said = None
    try:
        yield
    except kind as error:
        said = str(error)
    assert said is not None, f"no {kind.__name__} that says {message!r}"
    assert re.search(message, said), f"{said!r} does not say {message!r}"
