"""A classifier for each pair of classes, and the coupling of their probabilities."""

import warnings

import numpy as np
import pytest
from joblib import parallel_config
from scipy.optimize import minimize
from scipy.sparse import coo_array, csr_array
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted

from mixtura import MixtureClassifier, coupling
from mixtura.coupling import couple
from mixtura.estimators.pairwise import PairwiseClassifier
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.solvers import EM


def pair_probabilities(p):
    """r_ij = p_i / (p_i + p_j)."""
    return p[:, :, None] / (p[:, :, None] + p[:, None, :])


def complete(r):
    """Both halves, from the upper one."""
    upper = np.triu(r, 1)
    return upper + np.tril(1.0 - upper.swapaxes(1, 2), -1)


def pair_weights(n_classes, rng):
    count = rng.integers(1, 1000, n_classes)
    return np.add.outer(count, count)


def divergence(theta, r, weights):
    """Weighted KL divergence of one row up to a constant, theta = log p."""
    gap = theta[:, None] - theta
    cross = r * np.logaddexp(0.0, -gap) + (1.0 - r) * np.logaddexp(0.0, gap)
    return np.triu(weights * cross, 1).sum()


# -- coupling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3, 5, 26])
@pytest.mark.parametrize("spread", [10.0, 1.0, 0.1])
def test_consistent_pairs_give_their_probabilities_back(n_classes, spread, rng):
    """Whatever the weights, and where several classes are improbable together."""
    p = np.maximum(rng.dirichlet(np.full(n_classes, spread), 100), 1e-15)
    p /= p.sum(1, keepdims=True)
    found = couple(pair_probabilities(p), pair_weights(n_classes, rng))
    np.testing.assert_allclose(found, p, rtol=0, atol=1e-8)


@pytest.mark.parametrize("n_classes", [2, 3, 4, 7])
def test_coupling_minimizes_the_divergence(n_classes, rng):
    """SciPy finds the same minimum, slowly."""
    r, weights = complete(rng.random((8, n_classes, n_classes))), pair_weights(n_classes, rng)
    found = couple(r, weights)
    for row, p in zip(r, found, strict=True):
        args = (row, weights / weights.max())
        best = minimize(divergence, np.zeros(n_classes), args, "BFGS", options={"gtol": 1e-9})
        expected = np.exp(best.x - best.x.max())
        np.testing.assert_allclose(p, expected / expected.sum(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_classes", [3, 5, 10])
@pytest.mark.parametrize("kind", ["random", "ordered", "steep"])
def test_coupling_survives_certainty(n_classes, kind, rng):
    """Pairs of exactly 0 and 1, contradicting one another or not: the slope is zero in the end."""
    r = {
        "random": np.round(rng.random((200, n_classes, n_classes))),
        "ordered": np.ones((2, n_classes, n_classes)),
        "steep": 1.0 / (1.0 + np.exp(-20.0 * rng.normal(size=(200, n_classes, n_classes)))),
    }[kind]
    r, weights = complete(r), pair_weights(n_classes, rng)
    found = couple(r, weights)
    assert (found > 0.0).all()
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-12)
    pulls = weights / weights.max() * (r - pair_probabilities(found))
    slope = np.where(np.eye(n_classes, dtype=bool), 0.0, pulls).sum(2)
    np.testing.assert_allclose(slope, 0.0, atol=1e-9)


def test_a_cycle_is_even():
    """Scissors, paper, stone: nobody wins."""
    r = np.array([[[0.5, 1.0, 0.0], [0.0, 0.5, 1.0], [1.0, 0.0, 0.5]]])
    np.testing.assert_allclose(couple(r, np.ones((3, 3))), 1 / 3, rtol=1e-9)


def test_certain_winner():
    """Who wins against everybody has it all."""
    found = couple(complete(np.ones((1, 3, 3))), np.ones((3, 3)))
    np.testing.assert_allclose(found, [[1.0, 0.0, 0.0]], atol=1e-9)


def test_coupling_takes_chunks_and_leaves_its_input_alone(rng, monkeypatch):
    """Rows do not depend on one another, nor on the diagonal."""
    r, weights = complete(rng.random((7, 4, 4))), pair_weights(4, rng)
    for array in (r, weights):
        array.flags.writeable = False
    whole = couple(r, weights)
    monkeypatch.setattr(coupling, "_CHUNK", 32)
    np.testing.assert_allclose(couple(r, weights), whole, rtol=1e-12)
    np.testing.assert_allclose(couple(r + np.diag([np.nan] * 4), weights), whole, rtol=1e-12)


@pytest.mark.parametrize("n_classes", [1, 3])
@pytest.mark.parametrize("n", [0, 2])
def test_coupling_of_little(n, n_classes):
    """No rows, one class."""
    found = couple(np.full((n, n_classes, n_classes), 0.5), np.ones((n_classes, n_classes)))
    np.testing.assert_allclose(found, np.full((n, n_classes), 1 / n_classes))


BAD_COUPLES = {
    "shapes": (np.full((2, 3, 3), 0.5), np.ones((2, 2)), "shape"),
    "no matrix": (np.full((2, 3, 3), 0.5), np.ones(3), "shape"),
    "one row": (np.full((3, 3), 0.5), np.ones((3, 3)), "shape"),
    "above one": (np.full((2, 3, 3), 1.5), np.ones((3, 3)), "probabilities"),
    "NaN": (np.full((2, 3, 3), np.nan), np.ones((3, 3)), "probabilities"),
    "no weight": (np.full((2, 3, 3), 0.5), np.zeros((3, 3)), "positive"),
    "crooked": (np.full((2, 3, 3), 0.5), np.arange(1.0, 10.0).reshape(3, 3), "symmetric"),
}


@pytest.mark.parametrize("name", BAD_COUPLES)
def test_coupling_refuses(name):
    """Each with a message that names the problem."""
    r, weights, message = BAD_COUPLES[name]
    with pytest.raises(InvalidInputError, match=message):
        couple(r, weights)


# -- the classifier ----------------------------------------------------------------------------


@parametrize_with_checks([PairwiseClassifier(LogisticRegression())])
def test_estimator(estimator, check):
    """Every check of scikit-learn."""
    check(estimator)


def test_pairs_are_fitted_and_joined(iris):
    """Each classifier is that of its two classes, and the probabilities are good."""
    X, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = PairwiseClassifier(LogisticRegression(C=10.0)).fit(X, names)
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert model.pairs_.tolist() == [[0, 1], [0, 2], [1, 2]]
    np.testing.assert_array_equal(model.class_count_, 50.0)
    for (i, j), fitted in zip(model.pairs_, model.estimators_, strict=True):
        rows = (y == i) | (y == j)
        alone = LogisticRegression(C=10.0).fit(X[rows], names[rows])
        np.testing.assert_array_equal(fitted.coef_, alone.coef_)
    proba = model.predict_proba(X)
    np.testing.assert_allclose(proba.sum(1), 1.0)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(proba))
    np.testing.assert_array_equal(model.predict(X), model.classes_[proba.argmax(1)])
    assert model.score(X, names) > 0.95
    assert log_loss(names, proba) < 0.1
    assert model.n_features_in_ == 4
    assert not hasattr(model, "feature_names_in_")


def test_two_classes_are_the_classifier_itself(iris):
    """The same answers, to the bit."""
    X, y = iris[0][50:], iris[1][50:]
    model, alone = (
        kind.fit(X, y) for kind in (PairwiseClassifier(LogisticRegression()), LogisticRegression())
    )
    assert model.pairs_.tolist() == [[0, 1]]
    for method in ("predict", "predict_proba", "predict_log_proba"):
        np.testing.assert_array_equal(getattr(model, method)(X), getattr(alone, method)(X))


def test_log_probabilities_without_the_classifiers_help(iris):
    """k nearest neighbors know none, and some of their probabilities are zero."""
    X, y = iris[0][50:], iris[1][50:]
    model = PairwiseClassifier(KNeighborsClassifier()).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.predict_log_proba(X)
    np.testing.assert_array_equal(np.exp(found), model.predict_proba(X))


def test_one_class(iris):
    """The constant where the classifier can, its own error where it cannot."""
    X, y = iris[0], np.full(150, 7)
    model = PairwiseClassifier(DummyClassifier()).fit(X, y)
    assert model.pairs_.shape == (0, 2)
    np.testing.assert_array_equal(model.predict_proba(X), np.ones((150, 1)))
    np.testing.assert_array_equal(model.predict_log_proba(X), np.zeros((150, 1)))
    np.testing.assert_array_equal(model.predict(X), y)
    with pytest.raises(ValueError, match="2 classes"):
        PairwiseClassifier(LogisticRegression()).fit(X, y)


def test_weights_count_as_rows(iris, rng):
    """A weight of two is two rows, in the classifiers and in the coupling."""
    X, y = iris[0][::2], iris[1][::2]
    weight = rng.integers(0, 4, len(y))
    model = PairwiseClassifier(GaussianNB())
    weighted = clone(model).fit(X, y, sample_weight=weight)
    repeated = clone(model).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    np.testing.assert_array_equal(weighted.class_count_, repeated.class_count_)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), 1e-6, 1e-9)


@pytest.mark.parametrize("form", [list, tuple, csr_array, coo_array])
def test_forms_of_matrices(form, iris):
    """Whatever the classifier takes."""
    X, y = iris
    expected = PairwiseClassifier(LogisticRegression()).fit(X, y).predict_proba(X)
    model = PairwiseClassifier(LogisticRegression()).fit(form(X), y)
    np.testing.assert_allclose(model.predict_proba(form(X)), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_data_frames(package, iris):
    """Probabilities of the matrix, and the names of its columns."""
    X, y = iris
    frame = pytest.importorskip(package).DataFrame(dict(zip("abcd", X.T, strict=True)))
    plain, named = (PairwiseClassifier(LogisticRegression()).fit(x, y) for x in (X, frame))
    expected = plain.predict_proba(X)
    np.testing.assert_allclose(named.predict_proba(frame), expected, rtol=1e-6, atol=1e-9)
    assert named.feature_names_in_.tolist() == list("abcd")


class Level(ClassifierMixin, BaseEstimator):
    """Tells sequences apart by their mean; knows nothing of matrices."""

    def _means(self, X):
        return np.array([[np.mean(sequence)] for sequence in X])

    def fit(self, X, y):
        self.model_ = GaussianNB().fit(self._means(X), y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X):
        return self.model_.predict_proba(self._means(X))


def sequences(form, rng):
    """Sequences of three levels, in one of the forms that a user may keep them in."""
    y = np.repeat(["a", "b", "c"], 10)
    lengths = np.full(30, 6) if form == "array" else rng.integers(3, 9, 30)
    X = [rng.normal(3.0 * (i // 10), size=(length, 2)) for i, length in enumerate(lengths)]
    if form == "array":
        return np.stack(X), y
    if form == "objects":
        objects = np.empty(30, dtype=object)
        objects[:] = X
        return objects, y
    return X, y


@pytest.mark.parametrize("form", ["list", "array", "objects"])
def test_sequences(form, rng):
    """Lists of sequences and arrays of three axes pass through untouched."""
    X, y = sequences(form, rng)
    model = PairwiseClassifier(Level()).fit(X, y)
    assert model.score(X, y) > 0.9
    assert not hasattr(model, "n_features_in_")
    assert cross_val_score(PairwiseClassifier(Level()), X, y, cv=3).min() > 0.8


def test_parallel_is_serial(iris):
    """Two workers give what one gives."""
    X, y = iris
    with parallel_config("threading"):
        serial, parallel = (
            PairwiseClassifier(GaussianNB(), n_jobs=n).fit(X, y).predict_proba(X) for n in (None, 2)
        )
    np.testing.assert_array_equal(parallel, serial)


def test_inner_parameters_can_be_searched(iris):
    """As those of any estimator within another, a pipeline too."""
    model = PairwiseClassifier(make_pipeline(StandardScaler(), LogisticRegression()))
    grid = {"estimator__logisticregression__C": [1e-6, 1.0]}
    search = GridSearchCV(model, grid, cv=3).fit(*iris)
    assert search.best_params_ == {"estimator__logisticregression__C": 1.0}


def test_tags_are_those_of_the_classifier():
    """What X may be is for the classifier to say; the number of classes is not."""
    assert get_tags(PairwiseClassifier(MixtureClassifier())).input_tags.allow_nan
    assert not get_tags(PairwiseClassifier(LogisticRegression())).input_tags.allow_nan
    assert get_tags(PairwiseClassifier(LogisticRegression())).input_tags.sparse
    assert get_tags(PairwiseClassifier(LogisticRegression())).estimator_type == "classifier"


def test_mixtures_with_holes(holey_iris):
    """Our own classifier inside, values missing."""
    X, y = holey_iris
    inner = MixtureClassifier(1, objective="likelihood", missingness="ignore", random_state=0)
    assert PairwiseClassifier(inner).fit(X, y).score(X, y) > 0.9


REFUSED = {
    "no probabilities": (SVC(), {}, "predict_proba"),
    "no classifier": (None, {}, "predict_proba"),
    "no y": (GaussianNB(), {"y": None}, "requires y"),
    "lengths": (GaussianNB(), {"y": [0, 1]}, "inconsistent numbers of samples"),
    "continuous y": (GaussianNB(), {"y": np.linspace(0, 1, 150)}, "Unknown label type"),
    "infinite label": (GaussianNB(), {"y": np.r_[np.inf, np.ones(149)]}, "infinity"),
    "no label": (GaussianNB(), {"y": np.full(150, np.nan)}, "no labeled row"),
    "2-D y": (GaussianNB(), {"y": np.zeros((150, 2))}, "1d array"),
    "unlabeled": (
        make_pipeline(
            MixtureClassifier(1, objective="likelihood", solver=EM(tol=1.0), unlabeled=-1)
        ),
        {"y": np.repeat([-1, 0, 1], 50)},
        r"classes \[-1, 0\] and found \[0\]",
    ),
    "negative weight": (GaussianNB(), {"sample_weight": np.full(150, -1.0)}, "not negative"),
    "short weight": (GaussianNB(), {"sample_weight": np.ones(3)}, "one weight per row"),
    "lost class": (
        GaussianNB(),
        {"sample_weight": np.repeat([1.0, 0.0, 1.0], 50)},
        r"positive weight for the classes \[1\]",
    ),
}


@pytest.mark.filterwarnings("ignore:only the class")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, iris):
    """Each with a message that names the problem."""
    estimator, changes, message = REFUSED[name]
    options = {"X": iris[0], "y": iris[1]} | changes
    with pytest.raises(ValueError, match=message):
        PairwiseClassifier(estimator).fit(**options)


def test_weights_that_nobody_takes(iris):
    """An error of our own rather than an unexpected argument somewhere inside."""
    with pytest.raises(UnsupportedError, match="KNeighborsClassifier takes no sample_weight"):
        PairwiseClassifier(KNeighborsClassifier()).fit(*iris, sample_weight=np.ones(150))


def test_labels_in_a_column(iris):
    """Taken, with scikit-learn's warning."""
    X, y = iris
    with pytest.warns(DataConversionWarning):
        model = PairwiseClassifier(GaussianNB()).fit(X, y[:, None])
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_log_proba"])
def test_unfitted(method, iris):
    """Nothing works before fit, and the error says so."""
    model = PairwiseClassifier(LogisticRegression())
    with pytest.raises(NotFittedError, match="not fitted"):
        getattr(model, method)(iris[0])
    assert not hasattr(model, "n_features_in_")
    assert not hasattr(model, "feature_names_in_")


def test_a_failed_fit_leaves_the_old_model(iris):
    """A refit that raises answers as before."""
    X, y = iris
    model = PairwiseClassifier(GaussianNB()).fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.full_like(X, np.inf), y)
    check_is_fitted(model)
    np.testing.assert_array_equal(model.predict_proba(X), before)
