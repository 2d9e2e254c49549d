"""Slopes of columns: one component per class, all of one spread, found by the labels of rows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.sparse import vstack
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from small import in_columns

from mixtura import MixtureClassifier, load, runtime
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.estimators import blending
from mixtura.training import slopes


@pytest.fixture(params=[False, True], ids=["dense", "sparse"])
def taken_over(request, monkeypatch):
    """Rows are taken over by a few, and as sparse ones, as indicators are, or not."""
    monkeypatch.setattr(slopes, "_ROWS", 50)
    if request.param:
        ways = partial(slopes._sparse, dtype=torch.float64), partial(vstack, format="csr")
        monkeypatch.setattr(slopes, "_sparse_or_not", lambda *given: ways)


@pytest.mark.usefixtures("taken_over")
@pytest.mark.parametrize("n_classes", [2, 3, 6])
def test_slopes_are_those_of_logistic_regression(n_classes, monkeypatch):
    """Of complete rows, sparse or not; of two classes, each has half of the slope."""
    monkeypatch.setattr(slopes, "_TOL", 1e-14)
    monkeypatch.setattr(slopes, "_ITERATIONS", 5000)
    monkeypatch.setattr(slopes, "_TOGETHER", 1e6)
    rng = np.random.default_rng(0)
    x = (rng.random((400, 6)) < 0.3).astype(float)
    y = (x[:, 0] + x[:, 1] * (n_classes - 2) + rng.integers(n_classes, size=400) // 2) % n_classes
    y = y.astype(int)
    weight = rng.integers(1, 4, size=400).astype(float)
    prior = torch.full((n_classes,), 1.0 / n_classes).double().log()
    model = slopes.by_slopes(in_columns(x, y, weight), prior)
    strength = slopes._APART * (2.0 if n_classes == 2 else 1.0)
    wanted = LogisticRegression(C=strength, tol=1e-12, max_iter=10_000).fit(x, y, weight)
    joint = model.class_log_joint(in_columns(x, y).all_rows()).numpy()
    np.testing.assert_allclose(softmax(joint, axis=1), wanted.predict_proba(x), atol=2e-4)


@pytest.mark.usefixtures("taken_over")
@pytest.mark.parametrize("told", [False, True])
def test_slopes_of_rows_with_holes_are_the_best(told, monkeypatch):
    """By a plain search for means, whose objective is written down here."""
    monkeypatch.setattr(slopes, "_TOL", 1e-14)
    monkeypatch.setattr(slopes, "_ITERATIONS", 5000)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 3)), rng.integers(3, size=60)
    x[np.arange(60), y] += 1.0
    holes = rng.random(x.shape) < 0.3
    prior = np.log([0.5, 0.3, 0.2])
    seen, center = ~holes, np.where(holes, 0.0, x).sum(0) / (~holes).sum(0)
    base, log_odds = rng.normal(size=3) * told, rng.normal(size=(3, 3)) * told
    by_holes = base + holes @ log_odds.T

    def loss(free):
        slope, moved = free[:9].reshape(3, 3), free[9:]
        off = x[:, None] - (center + moved + slope)
        score = by_holes + prior - 0.5 * (off**2 * seen[:, None]).sum(2)
        held = 0.5 * ((slope**2).sum() / slopes._APART + (moved**2).sum() / slopes._TOGETHER)
        return held - log_softmax(score, axis=1)[np.arange(60), y].sum()

    wanted = minimize(loss, np.zeros(12), method="BFGS", options={"gtol": 1e-8}).x
    evidence = HoleEvidence(base=torch.from_numpy(base), log_odds=torch.from_numpy(log_odds))
    given = in_columns(x, y, holes=holes), torch.from_numpy(prior)
    model = slopes.by_slopes(*given, evidence if told else None)
    mean = center + wanted[9:] + wanted[:9].reshape(3, 3)
    np.testing.assert_allclose(model.density.mean.numpy(), mean, atol=1e-4)
    np.testing.assert_allclose(model.log_prior.numpy(), prior)


@pytest.mark.parametrize("n_classes", [2, 3, 9])
def test_slopes_know_no_order_and_count_weights(n_classes, monkeypatch):
    """Of rows, columns and classes; a weight of two is a row given twice."""
    monkeypatch.setattr(slopes, "_TOL", 1e-14)
    monkeypatch.setattr(slopes, "_ITERATIONS", 5000)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 8)), np.arange(60) % n_classes
    x[:, 0] += y
    prior = np.arange(1.0, n_classes + 1.0)
    prior, weight = np.log(prior / prior.sum()), rng.integers(1, 4, size=60)

    def means(x, y, weight, prior):
        engine = in_columns(x, y, weight.astype(float))
        return slopes.by_slopes(engine, torch.from_numpy(prior)).density.mean.numpy()

    expected = means(x, y, weight, prior)
    rows, columns, names = map(rng.permutation, (60, 8, n_classes))
    moved = means(x[rows][:, columns], names[y[rows]], weight[rows], prior[names.argsort()])
    np.testing.assert_allclose(moved, expected[names.argsort()][:, columns], atol=2e-5)
    twice = means(np.repeat(x, weight, 0), np.repeat(y, weight), np.ones(weight.sum()), prior)
    np.testing.assert_allclose(twice, expected, atol=2e-5)


def test_tables_with_many_columns_have_a_slope_for_each(tmp_path):
    """As logistic regression has, which told genes apart better than all other members."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(160, 60)), np.arange(160) % 2
    X += y[:, None] * rng.normal(scale=0.3, size=60) + rng.normal(size=(160, 1))
    model = MixtureClassifier(random_state=0).fit(X[:120], y[:120])
    member = model.model_.blend.members[model.marginals_.index("slopes") - 1]
    mapped = member.scaling.apply(X)
    wanted = LogisticRegression(C=2.0 * slopes._APART).fit(mapped[:120], y[:120])
    found = member.model.class_log_joint(in_columns(mapped, y).all_rows()).numpy()
    np.testing.assert_allclose(
        found[:, 1] - found[:, 0], wanted.decision_function(mapped), atol=0.1
    )
    X[120::2, ::3], X[-1] = np.nan, np.nan
    proba = model.predict_proba(X)
    np.testing.assert_allclose(proba[-1], 0.5, atol=0.02)  # as many labels of either class
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(X), proba)
    np.testing.assert_allclose(runtime.load(tmp_path / "model").predict_proba(X), proba, atol=1e-9)


@pytest.mark.parametrize(
    ("n", "weight", "change", "expected"),
    [
        (99, 1.0, {}, True),
        (100, 1.0, {}, False),  # five per column
        (33, 3.0, {}, True),
        (34, 3.0, {}, False),  # a weight of three is three rows
        (99, 1.0, {"word": True}, False),  # codes of words are no numbers
        (99, 1.0, {"n_components": 2}, False),
        (99, 1.0, {"density": "diag"}, False),
    ],
)
def test_where_columns_have_slopes(n, weight, change, expected, monkeypatch):
    tried, given = [], blending._tried
    monkeypatch.setattr(
        blending, "_tried", lambda decision, *way: tried.append(way[0]) or given(decision, *way)
    )
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, 20)), np.arange(n) % 2
    if change.pop("word", False):
        X, change = np.column_stack([X, rng.integers(3, size=n)]), {"categorical_features": [20]}
    MixtureClassifier(random_state=0, **change).fit(X, y, sample_weight=np.full(n, weight))
    found = [(way.marginals, way.recipe.structure.floor) for way in tried if way.name == "slopes"]
    assert found == [("power", 1.0)] * expected


@pytest.mark.parametrize(("n", "weight"), [(3000, 1.0), (1500, 2.0), (3001, 0.5), (1501, 2.0)])
def test_many_rows_have_no_slopes(n, weight):
    """However many columns there are; whether rows are copies or weigh more."""
    X, y = np.random.default_rng(0).normal(size=(n, 700)), np.arange(n) % 2
    engine = in_columns(X, y, np.full(n, weight))
    expected = max(n, n * weight) <= 3000
    kinds = blending.kinds_for(engine)
    assert ("slopes" in kinds, "kernels" in kinds) == (expected, expected)
