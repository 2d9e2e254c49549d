"""Categories that are indicators of a Gaussian: what goes together tells the class."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import expit, logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from small import mean_prior

from mixtura import MixtureClassifier, load, runtime
from mixtura.data.indicators import Indicators, quantile_knots
from mixtura.engines import Punched
from mixtura.solvers import LBFGS


@pytest.fixture(scope="module")
def pairs():
    """Two columns of three categories, whose equality is the class; one constant; a number."""
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=(400, 2))
    y = (codes[:, 0] == codes[:, 1]).astype(int)
    X = np.column_stack([codes, np.zeros(400), rng.normal(size=400)]).astype(float)
    X[:, :2][rng.random((400, 2)) < 0.1] = np.nan
    return X, y


@pytest.fixture(scope="module")
def fitted(pairs):
    X, y = pairs
    return MixtureClassifier(categorical_features=[0, 1, 2], random_state=0).fit(X[:200], y[:200])


def indicated(model):
    """The member that has indicators."""
    return model.model_.blend.members[model.marginals_.index("indicators") - 1]


def test_categories_that_go_together_tell_the_class(fitted, pairs):
    """No column alone tells anything; rows that have both are told apart."""
    X, y = (each[200:] for each in pairs)
    both = ~np.isnan(X).any(1)
    assert {"linear", "indicators", "kernels"} <= {*fitted.marginals_}
    assert fitted.score(X[both], y[both]) > 0.97
    alone = MixtureClassifier(density="diag", n_components=1, categorical_features=[0, 1, 2])
    assert alone.fit(pairs[0][:200], pairs[1][:200]).score(X[both], y[both]) < 0.8


def test_tables_of_categories_alone_have_such_a_model(pairs):
    X, y = pairs
    model = MixtureClassifier(categorical_features=[0, 1], random_state=0).fit(X[:200, :2], y[:200])
    both = ~np.isnan(X[200:, :2]).any(1)
    assert model.marginals_ == ("linear", "indicators", "kernels")
    assert model.score(X[200:, :2][both], y[200:][both]) > 0.97


def test_many_rows_have_them_beside_one_model():
    """The model of the rows stays one that has a density of them."""
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=(4000, 2)).astype(float)
    y = codes[:, 0] == codes[:, 1]
    settings = {"categorical_features": [0, 1], "solver": LBFGS(10), "random_state": 0}
    model = MixtureClassifier(1, **settings).fit(codes[:3500], y[:3500])
    assert model.marginals_ == ("linear", "indicators")
    assert model.score(codes[3500:], y[3500:]) > 0.97
    assert set(np.unique(model.sample(20)[0])) <= {0.0, 1.0, 2.0}


def same(X, y, columns=(0, 1, 2), sample_weight=None):
    """A fit that has settled: until then, iterates depend on the order of columns."""
    settled = {
        "solver": LBFGS(300, 1e-10),
        "random_state": 0,
        "categorical_features": list(columns),
    }
    return MixtureClassifier(1, **settled).fit(X, y, sample_weight)


def of_member(model, X):
    """Class log-joints by the model of indicators alone: folds, and so calibration, go by rows."""
    engine, member = model.model_.engine(model._rows(X), "cpu"), model.model_.blend.members[-1]
    assert member.scaling.indicators is not None
    return member.class_log_joint(engine.under(member.scaling))


@pytest.mark.filterwarnings("ignore")
def test_what_must_not_matter(pairs, tmp_path):
    """Names of categories and classes, order of columns, units, the type, copies, files."""
    X, y = (each[:200] for each in pairs)
    model, order = same(X, y), [3, 1, 0, 2]
    wanted = of_member(model, X)
    # Another path to the same flat optimum: LBFGS's tolerance is of the objective, not the place.
    assert_same = partial(np.testing.assert_allclose, desired=wanted, rtol=1e-3)
    names = np.array([30.0, 10.0, 20.0])
    renamed = np.where(np.isnan(X), np.nan, names[np.nan_to_num(X).astype(int).clip(0, 2)])
    renamed[:, 3] = 7.0 * X[:, 3] - 100.0
    assert_same(of_member(same(renamed, y), renamed))
    assert_same(of_member(same(X, np.where(y == 1, "a", "b")), X)[:, ::-1])
    columns = same(X[:, order], y, [1, 2, 3])
    assert_same(of_member(columns, X[:, order]))
    assert_same(of_member(same(X.astype(np.float32), y), X.astype(np.float32)))
    weight = 1.0 + np.arange(200) % 2
    copies = np.repeat(np.arange(200), weight.astype(int))
    weighted = same(X, y, sample_weight=weight)
    np.testing.assert_allclose(
        of_member(weighted, X), of_member(same(X[copies], y[copies]), X), rtol=1e-5, atol=1e-7
    )
    model.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(of_member(load(tmp_path / "model.safetensors"), X), wanted)


def test_an_empty_row_gets_the_prior(fitted):
    empty = fitted.predict_proba(np.full((1, 4), np.nan))[0]
    np.testing.assert_allclose(empty, mean_prior(fitted), rtol=1e-9)


def test_missing_categories_are_integrated_out(fitted, pairs):
    """SciPy's normal densities of the indicators and numbers that a row has."""
    rows, member = fitted._rows(pairs[0][:40]), indicated(fitted)
    scaling, mixture = member.scaling, member.mixture
    numbers = (scaling.indicators.apply(rows.values) - scaling.location) / scaling.scale
    mean, covariance = mixture.density.location.numpy(), mixture.density.covariances().numpy()
    wanted = np.zeros((len(rows), mixture.n_components))
    for row, values in enumerate(numbers):
        seen = ~np.isnan(values)
        for k in range(mixture.n_components):
            own = multivariate_normal(mean[k][seen], covariance[k][np.ix_(seen, seen)])
            wanted[row, k] = own.logpdf(values[seen])
    wanted += mixture.log_joint_weight.numpy()
    owner = mixture.layout.owner.numpy()
    by_class = np.stack([logsumexp(wanted[:, owner == c], axis=1) for c in range(2)], axis=1)
    engine = fitted.model_.engine(rows, "cpu").under(scaling)
    np.testing.assert_allclose(member.class_log_joint(engine), by_class, rtol=1e-9, atol=1e-9)


def test_indicators_are_lost_together_and_count_as_one_column(fitted, pairs):
    """The same holes are punched, and the same shares are missing, as where codes are codes."""
    engine = fitted.model_.engine(fitted._rows(pairs[0]), "cpu")
    scaling = indicated(fitted).scaling
    plain, spread = (
        each.seen(Punched(0.3, torch.Generator().manual_seed(1))).all_rows()
        for each in (engine, engine.under(scaling))
    )
    assert torch.equal(plain.observed[:, list(scaling.origin[0])], spread.observed)
    assert torch.equal(plain.missing_share(), spread.missing_share())


def test_each_column_has_an_indicator():
    """Also one in which all rows have the same category."""
    values = np.array([[0.0, 1.0, 5.0], [1.0, 1.0, 6.0], [2.0, np.nan, 7.0], [2.0, 1.0, 8.0]])
    found = Indicators.learn(values, np.ones(4), np.array([3, 2, 0]))
    assert found.column.tolist() == [0, 0, 1, 2]
    np.testing.assert_array_equal(found.knot, [0, 1, 1, np.nan])
    wanted = [[1, 0, 1, 5], [0, 1, 1, 6], [0, 0, np.nan, 7], [0, 0, 1, 8]]
    np.testing.assert_array_equal(found.apply(values), wanted)


def test_numbers_alone_are_a_copy():
    """Units are found in place: the user's rows stay as they are."""
    values = np.arange(6.0).reshape(3, 2)
    found = Indicators.learn(values, np.ones(3), np.zeros(2, dtype=int)).apply(values)
    np.testing.assert_array_equal(found, values)
    assert not np.shares_memory(found, values)


def test_numbers_fade_from_knot_to_knot():
    """NumPy's interpolation of the indicator's values at the knots, between them and beyond."""
    values, knots = np.array([[-9.0, 0.0, 0.5, 1.0, 2.5, 4.0, 1e300, np.nan]]).T, [0, 1, 4]
    found = Indicators.learn(values, np.ones(8), np.zeros(1, dtype=int), {0: np.array(knots)})
    assert found.knot.tolist() == [0.0, 4.0]  # the one between tells nothing more
    wanted = [np.interp(values[:, 0], knots, corner) for corner in ([1, 0, 0], [0, 0, 1])]
    np.testing.assert_allclose(found.apply(values), np.transpose(wanted), atol=1e-15)
    tiny = np.array([0.0, 5e-324, 1e-323])
    near = Indicators.learn(tiny[:, None], np.ones(3), np.zeros(1, dtype=int), {0: tiny})
    assert np.isfinite(near.apply(tiny[:, None])).all()


def test_huge_numbers_are_not_missing():
    knots = {0: np.array([-1e308, 0.0, 1e308])}
    found = Indicators.learn(np.zeros((2, 1)), np.ones(2), np.array([0]), knots)
    values = np.array([[1.7e308], [-1.7e308], [1e308], [0.0]])
    wanted = [[0, 1], [1, 0], [0, 1], [0, 0]]
    np.testing.assert_allclose(found.apply(values), wanted, atol=1e-15)


def test_knots_are_all_of_few_values_or_quantiles():
    """Weights are repetitions; NumPy's inverted distribution function agrees."""
    rng = np.random.default_rng(0)
    few, many = rng.integers(5, size=80) * 2.5, np.append(rng.exponential(size=79), np.nan)
    count = rng.integers(1, 4, size=80)
    assert quantile_knots(few, count, 8).tolist() == [0.0, 2.5, 5.0, 7.5, 10.0]
    wanted = np.quantile(
        np.repeat(many, count)[: -count[-1]], np.arange(1, 9) / 9, method="inverted_cdf"
    )
    np.testing.assert_array_equal(quantile_knots(many, count, 8), wanted)


def test_zeros_that_most_rows_have_leave_knots_to_the_other_values():
    rng = np.random.default_rng(0)
    some = rng.exponential(size=100)
    values, count = np.append(np.zeros(900), some), np.ones(1000)
    wanted = np.quantile(some, np.arange(1, 8) / 8, method="inverted_cdf")
    np.testing.assert_array_equal(quantile_knots(values, count, 8), [0.0, *wanted])
    once, repeated = np.append(0.0, some), np.append(900.0, np.ones(100))
    np.testing.assert_array_equal(quantile_knots(once, repeated, 8), [0.0, *wanted])


def test_a_sum_of_curves_is_learned_as_one():
    """Waves, folds, and amounts that most rows have none of, beside trees and the truth."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 8))
    X[:, 7] = np.where(rng.random(4000) < 0.8, 0.0, np.exp(2.0 * X[:, 7]))
    curves = np.sin(3.0 * X[:, :3]).sum(1) + np.abs(X[:, 3:6]).sum(1) - 2.4
    chance = expit(2.0 * curves + 4.0 * np.sin(2.0 * np.log1p(X[:, 7])))
    y = (rng.random(4000) < chance).astype(int)
    model = MixtureClassifier(random_state=0).fit(X[:1000], y[:1000])
    weights = dict(zip(model.marginals_, model.model_.blend.weights, strict=True))
    assert max(weights, key=weights.get) == "additive"
    trees = HistGradientBoostingClassifier(random_state=0).fit(X[:1000], y[:1000])
    proba = [each.predict_proba(X[1000:])[:, 1] for each in (model, trees)]
    ours, theirs, least = (log_loss(y[1000:], each) for each in (*proba, chance[1000:]))
    assert ours - least < 0.75 * (theirs - least)


def test_weights_are_repetitions_where_a_sum_of_curves_begins():
    """210 rows that count twice are 420: enough for one more model."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(210, 3))
    y = (rng.random(210) < expit(6.0 * np.sin(3.0 * X).sum(1))).astype(int)
    once = MixtureClassifier(random_state=0).fit(X, y, sample_weight=np.full(210, 2.0))
    twice = MixtureClassifier(random_state=0).fit(X.repeat(2, axis=0), y.repeat(2))
    assert "additive" in once.marginals_
    assert once.marginals_ == twice.marginals_
    np.testing.assert_allclose(once.predict_proba(X), twice.predict_proba(X), atol=1e-5)


def test_units_names_files_and_precision_do_not_matter_to_a_sum_of_curves(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(420, 3))
    X[:, 2] = np.where(rng.random(420) < 0.7, 0.0, np.exp(X[:, 2]))
    y = (rng.random(420) < expit(6.0 * np.sin(3.0 * X[:, :2]).sum(1) + X[:, 2])).astype(int)
    model = MixtureClassifier(1, solver=LBFGS(5), random_state=0).fit(X, y)
    assert "additive" in model.marginals_
    rows = np.where(rng.random((60, 3)) < 0.3, np.nan, X[:60])
    proba = model.predict_proba(rows)
    again = clone(model).fit(1024.0 * X, np.array(["a", "b"])[y])
    np.testing.assert_allclose(again.predict_proba(1024.0 * rows), proba, atol=1e-8)
    single = model.predict_proba(rows.astype(np.float32))
    np.testing.assert_allclose(single, proba, atol=1e-5)
    nothing = model.predict_proba(np.full((1, 3), np.nan))[0]
    np.testing.assert_allclose(nothing, mean_prior(model), 1e-9)
    path = tmp_path / "curves.safetensors"
    model.save(path)
    np.testing.assert_array_equal(load(path).predict_proba(rows), proba)
    np.testing.assert_allclose(runtime.load(path).predict_proba(rows), proba, atol=1e-12)


def test_thresholds_and_values_out_of_order_tell_the_class():
    """The class depends on one number of five values, and on no line of it."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(5, size=300), rng.normal(size=300)])
    y = np.isin(X[:, 0], [1, 3]).astype(int)
    model = MixtureClassifier(1, random_state=0).fit(X[:200], y[:200])
    member = model.model_.blend.members[-1]
    assert member.scaling.indicators.column.tolist() == [0] * 4 + [1] * 7
    own = member.class_log_joint(model.model_.engine(model._rows(X), "cpu").under(member.scaling))
    assert (own.argmax(1) == y).all()
