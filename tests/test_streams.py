"""Rows that come in parts: where a stream ends, what it forgets, and what it refuses."""

import warnings

import numpy as np
import pytest
import torch
from scipy.stats import sem
from sklearn.base import clone

from mixtura import MixtureClassifier
from mixtura.densities import Diagonal, Full, Student
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError
from mixtura.solvers import LBFGS
from mixtura.training.streams import mean_and_error


def test_parts_of_a_stream_may_be_smaller_than_a_mixture(iris):
    """Components are those of the first part: two rows per class are enough afterwards."""
    X, y = iris
    model = MixtureClassifier(3, density="diag", objective="likelihood", random_state=0)
    model.partial_fit(X[::2], y[::2], classes=[0, 1, 2])
    few = [0, 1, 60, 61, 120, 121]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X[few], y[few])
    assert model.n_components_ == [3, 3, 3]


def test_a_first_part_of_few_rows_is_told(iris):
    """It settles the calibration; a larger one says nothing, nor does a stream without any."""
    X, y = iris
    model = MixtureClassifier(1, density="diag", random_state=0)
    with pytest.warns(DegenerateDataWarning, match="only 5 labeled rows of a class.* Remedy"):
        clone(model).partial_fit(X[::10], y[::10], classes=[0, 1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error", DegenerateDataWarning)
        clone(model).partial_fit(X[::5], y[::5], classes=[0, 1, 2])
        weight = np.full(15, 2.0)  # as often as each row is there
        clone(model).partial_fit(X[::10], y[::10], [0, 1, 2], weight)
        model.set_params(calibrate=False).partial_fit(X[::10], y[::10], classes=[0, 1, 2])


@pytest.mark.parametrize("density", [Full, Diagonal])
def test_a_stream_ends_where_a_fit_does(density, iris, rng):
    """Where the floor acts on no part; with the floor and the prior of the defaults, near it."""
    order = rng.permutation(150)
    X, y = iris[0][order], iris[1][order]
    for settings, tolerance in (
        ({"prior_rows": 0, "density": density(1e-3)}, 1e-9),
        ({"density": density()}, 0.1),
    ):
        whole, stream = (MixtureClassifier(1, objective="likelihood", **settings) for _ in range(2))
        whole.fit(X, y)
        for part in np.split(np.arange(150), 3):
            stream.partial_fit(X[part], y[part], classes=[0, 1, 2])
        np.testing.assert_allclose(
            stream.predict_proba(X), whole.predict_proba(X), atol=tolerance, rtol=0
        )


@pytest.mark.parametrize("density", [Full(), Diagonal()], ids=str)
def test_components_of_a_stream_follow_its_rows(density, rng):
    """Three clusters come, where there was one, and two of them leave; a given number stays."""
    free, fixed = (
        MixtureClassifier(size, density=density, objective="likelihood", random_state=0)
        for size in ("auto", 1)
    )
    sizes = []
    for n_rows, clusters in ((20, 1), (500, 3), (500, 1), (100, 1), (100, 1)):
        y, place = np.arange(n_rows) % 2, rng.integers(clusters, size=n_rows)
        X = rng.normal(size=(n_rows, 2)) + 8.0 * np.column_stack([place % 2, place // 2])
        X[:, 0] -= 8.0 * y
        for model in (free, fixed):
            model.partial_fit(X, y, classes=[0, 1], memory=20)
        sizes.append(free.n_components_)
    assert sizes[0] == sizes[-1] == fixed.n_components_ == [1, 1]
    assert min(sizes[1]) >= 3
    assert max(sizes[1]) <= 4
    assert free.drift_[-1] > fixed.drift_[-1] - 0.05


def test_a_stream_that_forgets_follows_a_shift(rng):
    """Two shifts in nine parts; `drift_` falls where rows have changed, and errors come back."""
    told, errors = [], {None: [], 200.0: []}
    for memory, wrong in errors.items():
        model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
        for part in range(9):
            y = np.arange(200) % 2
            X = (
                np.random.default_rng(part).normal(size=(200, 2))
                + 4.0 * (y ^ (part // 3 % 2))[:, None]
            )
            if part:
                wrong.append(1.0 - model.score(X, y))
                told.append(model.score_samples(X).mean())
            model.partial_fit(X, y, classes=[0, 1], memory=memory)
        np.testing.assert_allclose(model.drift_, told[-8:], 1e-9)
    assert wrong[1] < 0.05 < 0.5 < wrong[2]
    assert max(wrong[4], wrong[7]) < 0.2 < max(errors[None][4], errors[None][7])
    assert not hasattr(model.fit(X, y), "drift_")
    with pytest.raises(ValueError, match="memory=0"):
        model.partial_fit(X, y, memory=0)
    with pytest.raises(ValueError, match="memory='all'"):
        model.partial_fit(X, y, memory="all")


def test_what_a_stream_has_not_shown_and_what_it_refuses(rng):
    """A class to come is not predicted before; one absurd value would stay for good."""
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    X = rng.normal(size=(50, 2))
    model.partial_fit(X, np.zeros(50), classes=[0, 1])
    np.testing.assert_allclose(model.class_prior_, [1.0, 0.0], atol=1e-90)
    assert model.drift_ == []
    model.partial_fit(X + 4.0, np.ones(50))
    np.testing.assert_allclose(model.class_prior_, [0.5, 0.5])
    means = model.means_
    X[3, 1] = 1e300
    with pytest.raises(ValueError, match=r"column 1: 1e\+300 is more than 1e\+09 deviations"):
        model.partial_fit(X, np.zeros(50))
    np.testing.assert_array_equal(model.means_, means)


@pytest.mark.parametrize("objective", ["likelihood", "conditional", "margin"])
def test_streams_learn_classes_that_come_late(objective, iris):
    """A stream sorted by class ends with a model of all classes."""
    X, y = iris
    model = MixtureClassifier(1, random_state=0, objective=objective)
    for label in range(3):
        model.partial_fit(X[y == label], y[y == label], classes=[0, 1, 2])
    assert model.score(X, y) > 0.9
    np.testing.assert_allclose(model.class_count_, 50.0)


def test_components_grow_where_rows_shift_late(rng):
    """Much has been seen of one cluster per class when each becomes two, that cross over."""
    model = MixtureClassifier(density="diag", objective="likelihood", random_state=0)
    sizes, errors = [], []
    for n_rows, late in ((2_000, False), (2_000, False), (200, True), (200, True)):
        y, side = np.arange(n_rows) % 2, late * rng.integers(2, size=n_rows)
        X = rng.normal(size=(n_rows, 2)) + np.column_stack([6 * (y ^ side), 8 * side])
        errors += [1.0 - model.score(X, y)] if sizes else []
        sizes.append(model.partial_fit(X, y, classes=[0, 1]).n_components_)
    assert sizes[1] == [1, 1]
    assert 2 <= min(sizes[-1]) <= max(sizes[-1]) <= 4
    assert errors[-1] < 0.05 < 0.4 < errors[1]
    assert np.argmin(model.drift_) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_class_that_becomes_two_clusters_later_gets_two_components(seed):
    """Once its one component has become as wide as both together, its past may be split too."""
    rng = np.random.default_rng(seed)
    stream = MixtureClassifier(density="diag", objective="likelihood", random_state=seed)

    def part(late, n_rows=150):
        y = rng.integers(2, size=n_rows)
        X = rng.normal(size=(n_rows, 2)) + np.outer(y, [0.0, 4.0])
        X[:, 0] += np.where(late & (y == 0), rng.choice([-6.0, 6.0], size=n_rows), 0.0)
        return X, y

    for number in range(12):
        stream.partial_fit(*part(number >= 5), classes=[0, 1], memory=300)
    assert np.atleast_1d(stream.n_components_).tolist() == [2, 1]
    assert sorted(stream.means_[:2, 0].round(-1).tolist()) == [-10.0, 10.0]
    assert stream.score(*part(True, 2_000)) > 0.99


@pytest.mark.parametrize("density", [Student(), Full(0.3), Diagonal(0.3)], ids=str)
def test_a_stream_goes_on_with_what_auto_chose(density, iris):
    """It also has structures that are compared for some rows alone: heavy tails, few labels."""
    X, y = iris
    model = MixtureClassifier(1, density=density, objective="likelihood", random_state=0).fit(X, y)
    model.set_params(density="auto").partial_fit(X, y)
    assert model.density_ == density
    np.testing.assert_allclose(model.class_count_, 100.0)
    with pytest.raises(InvalidInputError, match="fit anew"):
        model.set_params(density="spherical").partial_fit(X, y)


def test_a_stream_after_few_labels(iris):
    """Classes then share a covariance."""
    few = np.r_[0:5, 50:55, 100:105]
    model = MixtureClassifier(solver=LBFGS(5), random_state=0).fit(iris[0][few], iris[1][few])
    assert model.density_ == Full(0.3)
    assert model.partial_fit(*iris).score(*iris) > 0.9


def test_means_and_their_errors_go_by_weight(rng):
    """Equal weights: SciPy's. Rows that weigh next to nothing are as good as absent."""
    values = torch.from_numpy(rng.normal(size=40))
    mean, error = mean_and_error(values, torch.full((40,), 0.3, dtype=torch.float64))
    assert mean == pytest.approx(float(values.mean()), abs=1e-12)
    assert error == pytest.approx(sem(values.numpy()), rel=1e-12)
    few = torch.where(torch.arange(40) < 25, 2.0, 1e-12).double()
    assert mean_and_error(values, few) == pytest.approx(
        mean_and_error(values[:25], torch.ones(25, dtype=torch.float64)), rel=1e-9
    )
