"""Pairs of columns that tell of classes together: found, multiplied, and answered for."""

from __future__ import annotations

from itertools import permutations, product
from math import factorial

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.metrics import log_loss
from small import mean_prior

from mixtura import MixtureClassifier, load, runtime
from mixtura.data.indicators import Indicators, quantile_knots
from mixtura.data.scaling import Scaling
from mixtura.densities import DiagonalGaussian
from mixtura.engines import Punched
from mixtura.estimators import blending
from mixtura.selection.pairs import crossed

LEVELS = np.array([0, 0, 0, 3, 0])


def table(n, seed=0, together=6.0):
    """Numbers, one of them 0 or 1, categories and noise: the first tells with the third alone."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    X[:, 2], X[:, 3] = rng.integers(2, size=n), rng.integers(3, size=n)
    wave = np.sin(2.5 * X[:, 0])
    side = np.where(X[:, 2] == 1.0, wave, -wave)
    score = together * side + np.sin(2.0 * X[:, 1]) + X[:, 3] - 1.0
    return X, (rng.random(n) < expit(score)).astype(int)


def found_in(X, y, weight=None):
    """The pairs that have products."""
    weight = np.ones(len(X)) if weight is None else weight
    numbers = np.flatnonzero(LEVELS == 0)
    knots = {column: quantile_knots(X[:, column], weight, 4) for column in numbers}
    units = Scaling.measure(X, weight).sparing(LEVELS)
    units = units.with_indicators(Indicators.learn(X, weight, LEVELS, knots))
    found = crossed(units, X, y, weight, LEVELS)
    if found is None:
        return []
    return sorted(set(zip(*found.factors.column[found.products].tolist(), strict=True)))


@pytest.fixture(scope="module")
def fitted():
    """A model of complete rows whose classes only pairs tell apart."""
    X, y = table(700)
    return MixtureClassifier(1, random_state=0, categorical_features=[3]).fit(X, y)


def additive(model):
    """The member that is a sum of curves and of products."""
    return model.model_.blend.members[model.marginals_.index("additive") - 1]


def test_pairs_that_tell_are_found():
    X, y = table(700)
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)
    assert found_in(X, y) == found_in(holes, y) == [(0, 2)]
    assert found_in(X[:, [2, 1, 0, 3, 4]], 1 - y) == [(0, 2)]
    some = np.where(np.arange(700) % 5 == 0, -1, y)  # no label
    assert found_in(X, some) == [(0, 2)]


@pytest.mark.parametrize("seed", range(5))
def test_pairs_are_not_found_where_columns_tell_alone(seed):
    X, y = table(1500, seed, together=0.0)
    assert found_in(X, y) == []
    assert found_in(X, np.random.default_rng(seed).integers(4, size=len(y))) == []
    assert found_in(X, np.zeros(len(y), dtype=int)) == []
    assert found_in(X[:20], y[:20]) == []


def test_copies_of_rows_tell_nothing_more(fitted):
    """Nor do weights: what is clear goes by the rows that there are."""
    X, y = table(700)
    assert found_in(*table(120, 3, together=0.0), np.full(120, 1e3)) == []
    assert found_in(X, y, np.full(700, 1e-3)) == [(0, 2)]
    found = []
    for times, weight in ((1, 1.0), (3, 1.0), (1, 3.0)):
        engine = fitted.model_.engine(fitted._rows(np.tile(X, (times, 1))), "cpu")
        labels, weights = np.tile(y, times), torch.full((times * 700,), weight).double()
        engine = engine.with_answers(y=torch.from_numpy(labels), weight=weights)
        found.append(blending.curved(engine, "additive").origin)
    assert found[0] == found[1] == found[2]
    assert set(zip(*found[0], strict=True)) >= {(0, 2)}


@pytest.mark.parametrize("seed", range(3))
def test_uneven_weights_make_nothing_clear(seed):
    """Nor do weights of classes; what rows tell together is found by uneven ones, too."""
    rng = np.random.default_rng(seed)
    X, weight = table(1500, seed)[0], np.exp(rng.normal(size=1500))
    assert found_in(X, rng.integers(2, size=1500), weight) == []
    rare = (rng.random(1500) < 0.05).astype(int)
    assert found_in(X, rare, np.where(rare, 10.0, 0.53)) == []
    assert found_in(*table(1500, seed), weight) == [(0, 2)]


def test_products_are_those_of_their_factors():
    """NumPy's interpolation between knots, times what a category tells."""
    X = table(50)[0]
    X[::7, 0], X[::9, 3] = np.nan, np.nan
    knots = {0: np.array([-1.0, 0.0, 1.0]), 2: np.array([0.0, 1.0])}
    factors = Indicators.learn(X, np.ones(50), LEVELS, knots, fewest=2)
    alone = Indicators.learn(X, np.ones(50), LEVELS)
    found = alone.crossed([(0, 2), (0, 3)], factors).apply(X)
    np.testing.assert_array_equal(found[:, : len(alone.column)], alone.apply(X))
    hats = [np.interp(X[:, 0], [-1.0, 0.0, 1.0], corner) for corner in ([1, 0, 0], [0, 0, 1])]
    hats = [np.where(np.isnan(X[:, 0]), np.nan, hat) for hat in hats]
    code = X[:, [3]] == factors.knot[factors.column == 3]
    told = np.where(np.isnan(X[:, [3]]), np.nan, code)
    others = [1.0 - X[:, 2]], told.T
    wanted = [hat * other for group in others for other, hat in product(group, hats)]
    np.testing.assert_allclose(found[:, len(alone.column) :], np.transpose(wanted), atol=1e-15)


def test_a_sum_learns_what_pairs_tell(fitted, monkeypatch):
    """One of single columns, which tell little, would have no say."""
    X, y = table(3000, 9)
    monkeypatch.setattr(blending, "crossed", lambda *given: None)
    without = clone(fitted).fit(*table(700))
    assert "additive" not in without.marginals_
    ours, theirs = (log_loss(y, each.predict_proba(X)) for each in (fitted, without))
    assert ours < 0.98 * theirs
    member = additive(fitted)
    engine = fitted.model_.engine(fitted._rows(X), "cpu").under(member.scaling)
    assert log_loss(y, softmax(member.class_log_joint(engine), axis=1)) < 0.65 * np.log(2.0)


def test_products_are_lost_with_either_column(fitted):
    """The same holes are punched as into columns, and the same shares are missing."""
    engine = fitted.model_.engine(fitted._rows(table(40)[0]), "cpu")
    scaling = additive(fitted).scaling
    plain, derived = (
        each.seen(Punched(0.4, torch.Generator().manual_seed(1))).all_rows()
        for each in (engine, engine.under(scaling))
    )
    first, second = (plain.observed[:, list(each)] for each in scaling.origin)
    assert torch.equal(first & second, derived.observed)
    assert not torch.equal(first, derived.observed)
    assert torch.equal(plain.missing_share(), derived.missing_share())


def test_values_of_columns_are_those_of_masked_rows(fitted):
    """Shapley's by their definition, over all orders in which columns may be told."""
    row = table(1, 7)[0][0]
    subsets = [*product([False, True], repeat=5)]
    masked = np.where(subsets, row, np.nan)
    value = dict(zip(subsets, fitted.predict_proba(masked)[:, 1], strict=True))
    wanted = np.zeros(5)
    for order in permutations(range(5)):
        for place, column in enumerate(order):
            before = tuple(each in order[:place] for each in range(5))
            after = tuple(each in order[: place + 1] for each in range(5))
            wanted[column] += (value[after] - value[before]) / factorial(5)
    found = fitted.explain(row[None]).values[0][:, 1]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_values_take_no_array_of_rows_and_subsets_and_products(fitted, monkeypatch):
    """Columns of the sum are independent: what each adds is found once."""
    calls = []
    log_prob = DiagonalGaussian.log_prob
    monkeypatch.setattr(
        DiagonalGaussian, "log_prob", lambda self, b: calls.append(len(b)) or log_prob(self, b)
    )
    fitted.explain(table(3, 7)[0])
    assert max(calls, default=0) <= 3


def test_units_names_order_and_precision_do_not_matter(fitted):
    X, y = table(700)
    rows = np.where(np.random.default_rng(0).random((60, 5)) < 0.3, np.nan, X[:60])
    wanted, units = fitted.predict_proba(rows), np.array([1024.0, 1024.0, 1.0, 1.0, 0.5])
    again = clone(fitted).fit(units * X, np.array(["a", "b"])[y])
    np.testing.assert_allclose(again.predict_proba(units * rows), wanted, atol=1e-7)
    single = fitted.predict_proba(rows.astype(np.float32))
    np.testing.assert_allclose(single, wanted, atol=1e-5)
    order = np.random.default_rng(2).permutation(700)
    assert found_in(X[order], y[order]) == found_in(X, y)
    nothing = fitted.predict_proba(np.full((1, 5), np.nan))[0]
    np.testing.assert_allclose(nothing, mean_prior(fitted), rtol=1e-9)


def test_files_and_graphs_answer_the_same(fitted, tmp_path):
    X = table(60, 5)[0]
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.3, np.nan, X)
    wanted = fitted.predict_proba(X)
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    np.testing.assert_array_equal(load(path).predict_proba(X), wanted)
    np.testing.assert_allclose(runtime.load(path).predict_proba(X), wanted, atol=1e-12)
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    fitted.export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    found = session.run(["probabilities"], {"X": X})[0]
    np.testing.assert_allclose(found, wanted, atol=1e-9)
