"""Columns that few rows have: EM does not end before it has learned what these know of them."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression

from mixtura import MixtureClassifier, MixtureDensity, MixtureImputer, MixtureRegressor
from mixtura.densities import Diagonal, Full, LowRank
from mixtura.solvers import EM

FEW = 120


@pytest.fixture(scope="module")
def rows():
    """Three columns, and their sum with noise, which 120 of 3,000 rows have."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3_000, 4))
    X[:, 3] = 100.0 + 10.0 * (X[:, 0] - 2.0 * X[:, 1] + 0.5 * X[:, 3])
    X[FEW:, 3] = np.nan
    return X


def regression(X):
    """What the likelihood says where only one column has holes: least squares on rows with it."""
    fit = LinearRegression().fit(X[:FEW, :3], X[:FEW, 3])
    return fit, np.std(X[:FEW, 3] - fit.predict(X[:FEW, :3]))


def check_covariance(covariance, X, near):
    fit, left = regression(X)
    slope = np.linalg.solve(covariance[:3, :3], covariance[:3, 3])
    np.testing.assert_allclose(slope[:2], fit.coef_[:2], rtol=0.2)  # EM nears it by 4 % at a time
    assert (covariance[3, 3] - slope @ covariance[:3, 3]) ** 0.5 == pytest.approx(left, rel=near)


@pytest.mark.parametrize(
    ("density", "near"),
    [(Full(1e-4), 0.3), (LowRank(3, floor=1e-4), 0.7)],
    ids=["full", "low rank"],
)
def test_densities(density, near, rows):
    model = MixtureDensity(1, density=density, random_state=0).fit(rows)
    check_covariance(model.covariances_[0], rows, near)
    fit, _ = regression(rows)
    expected = fit.predict(rows[FEW:, :3])
    assert np.corrcoef(model.impute(rows)[FEW:, 3], expected)[0, 1] > 0.99


def test_imputers(rows):
    fit, _ = regression(rows)
    found = MixtureImputer(random_state=0).fit_transform(rows)[FEW:, 3]
    assert np.corrcoef(found, fit.predict(rows[FEW:, :3]))[0, 1] > 0.99


def test_generative_classifiers(rows):
    """Whose classes differ in nothing."""
    y = np.arange(len(rows)) % 2
    settings = {"density": Full(1e-4), "objective": "likelihood", "prior_rows": 0.0}
    model = MixtureClassifier(1, marginals="linear", random_state=0, **settings).fit(rows, y)
    for label in (0, 1):
        own = rows[y == label]
        slope = LinearRegression().fit(own[: FEW // 2, :3], own[: FEW // 2, 3]).coef_
        covariance = model.covariances_[label]
        found = np.linalg.solve(covariance[:3, :3], covariance[:3, 3])
        np.testing.assert_allclose(found[:2], slope[:2], rtol=0.2)


def test_targets_that_few_rows_have(rows):
    y = np.column_stack([rows[:, 2], rows[:, 3]])
    model = MixtureRegressor(1, density=Full(1e-4), random_state=0).fit(rows[:, :2], y)
    fit = LinearRegression().fit(rows[:FEW, :2], rows[:FEW, 3])
    mean, std = model.predict(rows[:, :2], return_std=True)
    assert np.corrcoef(mean[:, 1], fit.predict(rows[:, :2]))[0, 1] > 0.99
    left = np.std(rows[:FEW, 3] - fit.predict(rows[:FEW, :2]))
    assert np.median(std[:, 1]) == pytest.approx(left, rel=0.25)


def test_the_spread_of_a_column_is_that_of_the_rows_that_have_it():
    """One row in ten has it; by all rows' gains EM had ended at three quarters of its variance."""
    X = np.random.default_rng(0).normal(size=(2_000, 2))
    X[200:, 1] = np.nan
    model = MixtureDensity(1, density=Diagonal(1e-4), random_state=0).fit(X)
    assert model.covariances_[0][1, 1] == pytest.approx(np.nanvar(X[:, 1]), rel=0.15)


def test_a_column_that_few_rows_of_a_class_have():
    """Though nine rows in ten have it in all."""
    rng = np.random.default_rng(0)
    y = np.arange(2_000) % 10
    X = rng.normal(size=(2_000, 2))
    X[:, 1] = X[:, 0] + 0.3 * X[:, 1]
    X[(y == 1) & (np.arange(2_000) > 100), 1] = np.nan
    settings = {"density": Full(1e-4), "objective": "likelihood", "prior_rows": 0.0}
    model = MixtureClassifier(1, marginals="linear", random_state=0, **settings).fit(X, y)
    for label in (0, 1):
        variance, both = model.covariances_[label][0]
        assert both / variance == pytest.approx(1.0, rel=0.2)


def test_rows_their_order_and_their_weights(rows):
    """A weight of two is a row twice, to those who count who has a column, too."""
    X, y = rows[60:1_060], np.arange(1_000) % 2
    settings = {"density": "full", "objective": "likelihood", "marginals": "linear"}
    order = np.random.default_rng(0).permutation(1_000)
    weighted, twice, turned = (
        MixtureClassifier(1, random_state=0, **settings).fit(*given)
        for given in (
            (X, y, np.full(1_000, 2.0)),
            (np.repeat(X, 2, axis=0), y.repeat(2)),
            (X[order], y[order], np.full(1_000, 2.0)),
        )
    )
    assert weighted.n_iter_ == twice.n_iter_ > 20
    for other in (twice, turned):
        np.testing.assert_allclose(other.covariances_, weighted.covariances_, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("floor", [0.05, 0.3])
def test_floors_hold(floor, rows):
    model = MixtureDensity(1, density=Full(floor), random_state=0).fit(rows)
    covariance = model.mixture_.density.covariances()[0].numpy()
    assert np.linalg.eigvalsh(covariance)[0] > 0.999 * floor


def test_limits_are_kept(rows):
    """Of iterations, though few rows ask for more; and who gains little has settled."""
    few = MixtureDensity(1, density="full", solver=EM(3, tol=1e-6), random_state=0)
    with pytest.warns(ConvergenceWarning, match="before it had settled"):
        few.fit(rows)
    assert (few.n_iter_, few.converged_) == (3, False)
    model = MixtureDensity(1, density="full", solver=EM(100), random_state=0).fit(rows)
    assert model.converged_
