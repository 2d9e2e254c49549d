"""Thresholds of `is_outlier`: those of rows that a model was not fitted to."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

from mixtura import MixtureClassifier, MixtureDensity, MixtureNetworkClassifier
from mixtura.data import Scaling, Table
from mixtura.densities import STRUCTURES
from mixtura.estimators.typicality import held_out_scores, log_density
from mixtura.mixture import Mixture
from mixtura.trainers.base import SpreadPrior


@pytest.mark.parametrize("prior_rows", [0.0, 7.0])
@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_scores_are_those_of_a_fit_without_the_row(covariance, prior_rows, rng):
    """One component: every tenth row is judged by the moments of the others, prior included."""
    X = rng.normal(size=(43, 3)) @ rng.normal(size=(3, 3))
    scaling = Scaling.identity(3)
    table = Table(X, np.zeros(43, dtype=int), scaling=scaling, device=torch.device("cpu"))
    x, ones = torch.from_numpy(X), torch.ones(43, 1, dtype=torch.float64)
    kind, options = STRUCTURES[covariance, "covariance"]
    mixture = Mixture.single(kind.from_clusters(x, ones, 1e-9, torch.Generator(), **options))
    prior = SpreadPrior(prior_rows, 2.0 * mixture.density.spread[0])
    if prior_rows:
        imagined = prior.statistics(mixture.density, mixture.density.mean)
        own = mixture.density._statistics_complete(x, ones)
        total = {name: own[name] + imagined[name] for name in own}
        mixture = Mixture.single(mixture.density.maximise(total)[0])
    found = held_out_scores(mixture, table, log_density, prior if prior_rows else None)
    reference = 2.0 * np.cov(X.T, bias=True)
    for row in range(43):
        rest = np.delete(X, np.arange(row % 10, 43, 10), axis=0)
        scatter = len(rest) * np.cov(rest.T, bias=True) + prior_rows * reference
        spread = scatter / (len(rest) + prior_rows)
        spread = spread if covariance == "full" else np.diag(np.diag(spread))
        expected = multivariate_normal(rest.mean(0), spread).logpdf(X[row])
        own = float(log_density(mixture, table.batch(slice(row, row + 1))))
        assert float(found[row]) == pytest.approx(min(expected, own), rel=1e-9)


def test_densities_without_closed_form_are_scored_as_they_are(wine):
    """A low-rank precision keeps in-sample thresholds."""
    model = MixtureClassifier(
        1, parameterization="precision", rank=2, max_iter=3, calibrate=False, random_state=0
    ).fit(*wine)
    assert model.is_outlier(wine[0], share=0.1).sum() in (17, 18)


def normal_rows(random_state):
    rng = np.random.default_rng(random_state)
    y = rng.integers(2, size=2000)
    return rng.normal(size=(2000, 8)) + y[:, None], y


def every_other_pixel(X, y):
    return X[:, ::2], y


TABLES = {
    "normal": (normal_rows, 0.85),
    "breast cancer": (lambda seed: load_breast_cancer(return_X_y=True), 0.5),
    "digits": (lambda seed: every_other_pixel(*load_digits(return_X_y=True)), 0.5),
}
MODELS = {
    "density, full": lambda: MixtureDensity(random_state=0),
    "density, low rank": lambda: MixtureDensity(2, covariance="low_rank", random_state=0),
    "likelihood": lambda: MixtureClassifier(
        1, covariance="full", objective="likelihood", random_state=0
    ),
    "margin": lambda: MixtureClassifier(
        1, covariance="low_rank", rank=3, max_iter=15, calibrate=False, random_state=0
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_about_the_share_of_new_rows_is_flagged(name):
    """At one in a hundred, on the average of tables and splits."""
    shares = {}
    for table, (load, held_back) in TABLES.items():
        for seed in range(2):
            X, y = load(seed)
            train, test = train_test_split(
                np.arange(len(y)), test_size=held_back, random_state=seed, stratify=y
            )
            model = MODELS[name]().fit(X[train], y[train])
            shares.setdefault(table, []).append(model.is_outlier(X[test]).mean())
    means = {table: np.mean(found) for table, found in shares.items()}
    assert 0.005 < np.mean(list(means.values())) < 0.016, means
    assert max(means.values()) < 0.025, means


def test_about_the_share_is_flagged_by_networks():
    """Whose mixtures are fitted to all rows as well as to those of a class."""
    shares = []
    for seed in range(3):
        X, y = normal_rows(seed)
        model = MixtureNetworkClassifier(
            2, embedding="posterior", specialize=1.0, calibrate=False, max_iter=5, random_state=0
        ).fit(X[:300], y[:300])
        shares.append(model.is_outlier(X[300:]).mean())
    assert 0.004 < np.mean(shares) < 0.02
