"""A model beside the first whose class log-odds are quadratic: shells around each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import make_hastie_10_2
from sklearn.preprocessing import PolynomialFeatures

from mixtura import MixtureClassifier
from mixtura.data.scaling import Scaling
from mixtura.densities import Full
from mixtura.engines import Engine
from mixtura.estimators.blending import kinds_for


@pytest.fixture(scope="module")
def shells():
    """Rows near the origin, and rows that are not."""
    X = make_hastie_10_2(1_200, random_state=0)[0][:, :6]
    return X, (np.square(X).sum(1) > 5.35).astype(int)  # the median of chi-square


@pytest.fixture(scope="module")
def fitted(shells):
    X, y = shells
    return MixtureClassifier(random_state=0).fit(X[:500], y[:500])


def test_shells_are_told_apart(fitted, shells):
    """Gaussians of maximum likelihood end at 8 %, since the outer class is no Gaussian."""
    X, y = shells
    generative = MixtureClassifier(1, density="full", tradeoff=1.0).fit(X[:500], y[:500])
    assert 1.0 - generative.score(X[500:], y[500:]) > 0.07
    assert 1.0 - fitted.score(X[500:], y[500:]) < 0.05
    said = dict(zip(fitted.marginals_, fitted.model_.blend.weights, strict=True))
    assert said["quadratic"] > 0.3


def test_log_odds_are_quadratic_in_its_units(fitted, shells):
    X, _ = shells
    place = fitted.marginals_.index("quadratic") - 1
    member = fitted.model_.blend.members[place]
    joint = member.class_log_joint(member.engine(fitted._rows(X), "cpu"))
    assert list(member.model.layout.counts) == [1, 1]
    squares = PolynomialFeatures(2).fit_transform(member.scaling.apply(X))
    odds = joint[:, 1] - joint[:, 0]
    coef = np.linalg.lstsq(squares, odds, rcond=None)[0]
    np.testing.assert_allclose(squares @ coef, odds, rtol=1e-7, atol=1e-7)


def test_how_it_is_trained(fitted, shells):
    """By powers, with little say for the likelihood; only where nothing is named."""
    X, y = (each[:500] for each in shells)
    (way,) = (each for each in fitted.choice_ if each["marginals"] == "quadratic")
    assert way["tradeoff"] == 0.1
    assert way["density"] == repr(Full(0.1))
    member = fitted.model_.blend.members[fitted.marginals_.index("quadratic") - 1]
    np.testing.assert_allclose(member.scaling.apply(X), by_powers(X, y), atol=1e-9)
    for named in ({"solver": "lbfgs"}, {"n_components": 2}, {"objective": "conditional"}):
        other = MixtureClassifier(random_state=0, **named).fit(X, y)
        assert "quadratic" not in [each["marginals"] for each in other.choice_]


def by_powers(X, y):
    """The units of "power"."""
    alone = MixtureClassifier(1, density="diag", marginals="power", tradeoff=1.0).fit(X, y)
    return alone.scaling_.apply(X)


def test_where_it_is_tried(shells):
    """Not of one number, nor of very many, nor where rows lack a fifth of what others have."""

    def tried(X, levels=None):
        scaling = Scaling.identity(X.shape[1])
        scaling = scaling if levels is None else replace(scaling, levels=np.array(levels))
        engine = Engine(X, shells[1][: len(X)], scaling=scaling, device=torch.device("cpu"))
        return "quadratic" in kinds_for(engine)

    X, rng = shells[0][:300], np.random.default_rng(0)
    codes = (X > 0.0).astype(float)
    empty = np.full((300, 4), np.nan)
    assert tried(X)
    assert tried(np.hstack([X, empty]))
    assert not tried(X[:, :1])
    assert not tried(np.hstack([X[:, :1], empty]))
    assert not tried(np.hstack([X[:, :1], codes]), [0] + [2] * 6)
    assert tried(np.where(rng.random(X.shape) < 0.15, np.nan, X))
    assert not tried(np.where(rng.random(X.shape) < 0.25, np.nan, X))
    assert not tried(rng.normal(size=(300, 301)))
