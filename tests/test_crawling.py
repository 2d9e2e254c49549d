"""Columns that few rows have: EM would end before it has learned what these know of them."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from mixtura import MixtureClassifier, MixtureDensity, MixtureImputer, MixtureRegressor
from mixtura.data.batch import Batch
from mixtura.densities import Diagonal, Full, LowRank
from mixtura.training.start import completed

FEW = 60


@pytest.fixture(scope="module")
def rows():
    """Three columns, and their sum with noise, which 60 of 3,000 rows have."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3_000, 4))
    X[:, 3] = 100.0 + 10.0 * (X[:, 0] - 2.0 * X[:, 1] + 0.5 * X[:, 3])
    X[FEW:, 3] = np.nan
    return X


def regression(X):
    """What the likelihood says where only one column has holes: least squares on rows with it."""
    fit = LinearRegression().fit(X[:FEW, :3], X[:FEW, 3])
    return fit, np.std(X[:FEW, 3] - fit.predict(X[:FEW, :3]))


def check_covariance(covariance, X):
    fit, left = regression(X)
    slope = np.linalg.solve(covariance[:3, :3], covariance[:3, 3])
    np.testing.assert_allclose(slope, fit.coef_, atol=0.6)  # of 10 and 20
    assert covariance[3, 3] - slope @ covariance[:3, 3] == pytest.approx(left**2, rel=0.15)


@pytest.mark.parametrize("density", [Full(1e-4), LowRank(3, floor=1e-4)])
def test_densities(density, rows):
    model = MixtureDensity(1, density=density, random_state=0).fit(rows)
    check_covariance(model.covariances_[0], rows)
    fit, _ = regression(rows)
    expected = fit.predict(rows[FEW:, :3])
    assert np.abs(model.impute(rows)[FEW:, 3] - expected).max() < 0.1 * np.ptp(expected)


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
        np.testing.assert_allclose(found, slope, atol=1.5)


def test_targets_that_few_rows_have(rows):
    y = np.column_stack([rows[:, 2], rows[:, 3]])
    model = MixtureRegressor(1, density=Full(1e-4), random_state=0).fit(rows[:, :2], y)
    fit = LinearRegression().fit(rows[:FEW, :2], rows[:FEW, 3])
    mean, std = model.predict(rows[:, :2], return_std=True)
    assert np.corrcoef(mean[:, 1], fit.predict(rows[:, :2]))[0, 1] > 0.99
    left = np.std(rows[:FEW, 3] - fit.predict(rows[:FEW, :2]))
    assert np.median(std[:, 1]) == pytest.approx(left, rel=0.05)


def test_the_spread_of_a_column_is_that_of_the_rows_that_have_it():
    """One row in ten has it; a variance by EM would be a quarter too small."""
    X = np.random.default_rng(0).normal(size=(2_000, 2))
    X[200:, 1] = np.nan
    model = MixtureDensity(1, density=Diagonal(1e-4), random_state=0).fit(X)
    assert model.covariances_[0][1, 1] == pytest.approx(np.nanvar(X[:, 1]), rel=0.01)


def test_what_all_rows_have_is_left_to_em(rows):
    model = MixtureDensity(1, density="full", random_state=0).fit(rows[:, :3])
    assert {record["stage"] for record in model.history_} == {"EM"}


def test_rows_are_completed_without_another_spread():
    """Codes stay, and so do a column that does not vary, and one that a single row has."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(400, 4)))
    x[:, 1], x[:, 2] = torch.from_numpy(rng.integers(3, size=400)), 0.7
    observed = torch.from_numpy(rng.random((400, 4)) < 0.3)
    observed[:, 3] = torch.arange(400) < 1
    kind = torch.arange(400) % 2
    batch = Batch(x.where(observed, 0.0), observed, kind, torch.ones(400, dtype=torch.float64))
    found = completed(batch, (0, 3, 0, 0), torch.Generator().manual_seed(0))
    assert found.isfinite().all()
    assert torch.equal(found[observed[:, 1], 1], x[observed[:, 1], 1])
    np.testing.assert_allclose(found[:, 2], 0.7, atol=1e-6)
    for each in (0, 1):
        mine, known = kind == each, observed[kind == each, 0]
        own = x[mine, 0][known]
        assert float(found[mine, 0].mean()) == pytest.approx(float(own.mean()), abs=1e-12)
        assert float(found[mine, 0].var()) == pytest.approx(float(own.var()), rel=0.05)
    assert float(found[kind == 0, 3].var()) == pytest.approx(1.0, rel=0.3)
