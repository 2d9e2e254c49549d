"""The model given some columns, against SciPy's conditional Gaussians."""

import numpy as np
import pytest
from scipy.stats import kstest, multivariate_normal, norm

from mixtura import (
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    SequenceMixtureClassifier,
)
from mixtura.estimators import base
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, UnsupportedError
from mixtura.models.mixture import Mixture
from mixtura.solvers import LinkedEM

pd = pytest.importorskip("pandas")

PLAIN = {"objective": "likelihood", "random_state": 0}


@pytest.fixture(scope="module")
def one(iris):
    """A single Gaussian."""
    return MixtureDensity(1, random_state=0).fit(iris[0])


@pytest.fixture(scope="module")
def three(iris):
    return MixtureClassifier(1, density="full", **PLAIN).fit(*iris)


def conditional(model, place, value):
    """Mean and covariance of the other columns of a Gaussian."""
    mean, covariance = model.means_[0], model.covariances_[0]
    rest = [column for column in range(4) if column != place]
    slope = covariance[rest, place] / covariance[place, place]
    inner = covariance[np.ix_(rest, rest)] - np.outer(slope, covariance[place, rest])
    return rest, mean[rest] + slope * (value - mean[place]), inner


def test_scores_are_conditional_densities(one, iris):
    rest, mean, covariance = conditional(one, 2, 4.0)
    found = one.condition({2: 4.0}).score_samples(iris[0][:5])
    by_hand = multivariate_normal(mean, covariance).logpdf(iris[0][:5][:, rest])
    np.testing.assert_allclose(found, by_hand, rtol=1e-9)


def test_draws_are_conditional_draws(one):
    rest, mean, covariance = conditional(one, 2, 4.0)
    drawn = one.condition({2: 4.0}).sample(2_000, random_state=0)
    assert (drawn[:, 2] == 4.0).all()
    white = np.linalg.solve(np.linalg.cholesky(covariance), (drawn[:, rest] - mean).T)
    assert min(kstest(row, "norm").pvalue for row in white) > 1e-3
    np.testing.assert_allclose(np.cov(white), np.eye(3), atol=0.12)


def test_what_is_missing_is_filled_in(one):
    rest, mean, _ = conditional(one, 2, 4.0)
    found = one.condition({2: 4.0}).impute(np.full((2, 4), np.nan))
    np.testing.assert_allclose(found[:, rest], [mean, mean], rtol=1e-9)


@pytest.mark.parametrize("at_once", [50_000, 501])
def test_many_completions_take_few_steps(one, iris, monkeypatch, at_once):
    """Two rows, a thousand draws of each: conditional Gaussians, in as many portions as needed."""
    monkeypatch.setattr(base, "_DRAWN_AT_ONCE", at_once)
    steps, draw = [], Mixture.draw
    monkeypatch.setattr(Mixture, "draw", lambda *given: steps.append(1) or draw(*given))
    rows = np.where(np.arange(4) == 2, iris[0][[0, 100]], np.nan)
    draws = one.impute(rows, n_draws=1_000, random_state=0)
    assert draws.shape == (1_000, 2, 4)
    assert len(steps) == (1 if at_once > 2_000 else 4)
    for place, row in enumerate(rows):
        rest, mean, covariance = conditional(one, 2, row[2])
        white = np.linalg.solve(np.linalg.cholesky(covariance), (draws[:, place, rest] - mean).T)
        assert min(kstest(each, "norm").pvalue for each in white) > 1e-3
        assert (draws[:, place, 2] == row[2]).all()


def test_labels_of_draws_are_as_probable_as_they_should_be(three):
    drawn, labels = three.sample(4_000, given={2: 4.9}, random_state=0)
    chance = three.predict_proba(np.array([[np.nan, np.nan, 4.9, np.nan]]))[0]
    found = np.bincount(labels, minlength=3) / 4_000
    np.testing.assert_allclose(found, chance, atol=4 * np.sqrt(chance.max() / 4_000))
    assert (drawn[:, 2] == 4.9).all()


def test_draws_of_a_class_are_of_it(three):
    """Rows of one class and value are Gaussian, though that class is improbable there."""
    drawn, labels = three.sample(1_500, y=2, given={2: 3.5}, random_state=0)
    assert (labels == 2).all()
    mean, covariance = three.means_[2], three.covariances_[2]
    slope = covariance[3, 2] / covariance[2, 2]
    center = mean[3] + slope * (3.5 - mean[2])
    spread = np.sqrt(covariance[3, 3] - slope * covariance[2, 3])
    assert kstest(drawn[:, 3], norm(center, spread).cdf).pvalue > 1e-3


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_components_of_draws_given_what_only_one_explains(rng):
    X = rng.standard_normal((40, 2)) + [0, 1e4] * (np.arange(40)[:, None] % 2)
    model = MixtureDensity(2, density="diag", random_state=0).fit(X)
    component = model.sample(20, given={1: 1e4}, random_state=0)[1]
    assert (component == model.means_[:, 1].argmax()).all()


def test_conditions_go_by_name_and_category(iris):
    X, y = iris
    size = np.where(X[:, 2] > 4, "large", "small")
    frame = pd.DataFrame({"width": X[:, 3], "size": size})
    model = MixtureClassifier(1, **PLAIN).fit(frame, y)
    large = model.condition({"size": "large"})
    blank = pd.DataFrame({"width": [np.nan], "size": [None]}).astype(frame.dtypes)
    asked = pd.DataFrame({"width": [np.nan], "size": ["large"]}).astype(frame.dtypes)
    np.testing.assert_allclose(large.predict_proba(blank), model.predict_proba(asked))
    assert large.impute(blank).loc[0, "size"] == "large"
    assert set(large.sample(5)["size"]) == {"large"}
    rows, components = MixtureDensity(2, random_state=0).fit(frame).sample(5, given={"width": 1.0})
    assert rows.shape == (5, 2)
    assert set(components) <= {0, 1}
    with pytest.raises(InvalidInputError, match="categories that the training rows do not"):
        model.condition({"size": "huge"})


def test_networks_draw_given_columns(iris):
    model = MixtureNetworkClassifier(1, embedding="log_density", calibrate=False, random_state=0)
    model.fit(*iris)
    rows, labels = model.sample(5, given={0: 5.0})
    assert (rows[:, 0] == 5.0).all()
    assert len(labels) == 5
    with pytest.raises(UnsupportedError, match="leave y or given out"):
        model.sample(5, y=1, given={0: 5.0})


def test_sequences_have_no_columns_to_give(rng):
    X = [rng.normal(size=(4, 2)) for _ in range(8)]
    model = SequenceMixtureClassifier(n_states=1, method="ml", random_state=0)
    with pytest.raises(UnsupportedError, match="for tables"):
        model.fit(X, [0, 1] * 4).condition({0: 1.0})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "one at least"),
        ([1.0], "must be a dict"),
        ({4: 1.0}, "no column 4"),
        ({"petal": 1.0}, "no column 'petal'"),
        ({0: np.nan}, "leave it out"),
        ({0: None}, "leave it out"),
        ({0: np.inf}, "infinite"),
        ({0: "long"}, "column 0"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(one, given, message):
    with pytest.raises(InvalidInputError, match=message):
        one.condition(given)


def test_conditions_outside_the_data_are_warned_of(one, iris):
    with pytest.warns(DegenerateDataWarning, match="extrapolation"):
        far = one.condition({0: 1e6})
    assert np.isfinite(far.score_samples(iris[0])).all()
    assert np.isfinite(far.sample(3)).all()
    assert "tensor" not in repr(far)


def test_numbers_that_a_network_predicts(rng):
    X = rng.normal(size=(60, 2))
    model = MixtureNetworkRegressor(2, embedding="posterior", solver=LinkedEM(2), random_state=0)
    given = model.fit(X, X[:, 0]).condition({0: 0.5})
    rows, predicted = model.sample(20, given={0: 0.5}, random_state=0)
    assert (rows[:, 0] == 0.5).all()
    assert rows[:, 1].std() > 0.1
    np.testing.assert_array_equal(predicted, model.predict(rows))
    np.testing.assert_array_equal(given.predict(X), model.predict(np.c_[np.full(60, 0.5), X[:, 1]]))
    with pytest.raises(UnsupportedError, match="knows no classes"):
        given.predict_proba(X)
