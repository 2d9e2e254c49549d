"""What a regressor says of features: filled in, given some of them, and which one to measure."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.special import softmax

from mixtura import MixtureNetworkRegressor, MixtureRegressor, load, predictive, runtime
from mixtura.densities import Full
from mixtura.exceptions import AmbiguousDataWarning, DegenerateDataWarning, InvalidInputError
from mixtura.solvers import EM, LBFGS

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def linear():
    """One Gaussian over three features and a target; and its mean and covariance."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) @ [[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 2.0]]
    y = X @ [1.0, -2.0, 0.5] + 0.5 * rng.normal(size=200)
    model = MixtureRegressor(1, marginals="linear", density=Full(1e-9), random_state=0).fit(X, y)
    whole = np.column_stack([X, y])
    return model, whole.mean(0), np.cov(whole.T, bias=True)


@pytest.fixture(scope="module")
def mixed():
    """A number and the target depend on a category."""
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b", "c"], p=[0.5, 0.3, 0.2], size=150)
    shift = np.select([kind == "a", kind == "b"], [0.0, 3.0], 6.0)
    size, noise = shift + rng.normal(size=150), rng.normal(size=150)
    X = pd.DataFrame({"kind": kind, "size": size, "noise": noise})
    y = shift + X["size"] + 0.3 * rng.normal(size=150)
    model = MixtureRegressor(
        2, density="full", marginals="linear", solver=LBFGS(3), init=EM(5), random_state=0
    )
    return X, y, model.fit(X, y)


def conditional(mean, covariance, known, values):
    """Mean and covariance of the other columns given some, by the textbook."""
    rest = [place for place in range(len(mean)) if place not in known]
    slope = covariance[np.ix_(rest, known)] @ np.linalg.inv(covariance[np.ix_(known, known)])
    center = mean[rest] + slope @ (np.asarray(values) - mean[known])
    return center, covariance[np.ix_(rest, rest)] - slope @ covariance[np.ix_(known, rest)]


def test_features_are_filled_in_from_others_and_from_targets(linear):
    model, mean, covariance = linear
    row = np.array([[0.5, np.nan, 1.0]])
    center, _ = conditional(mean, covariance, [0, 2], [0.5, 1.0])
    np.testing.assert_allclose(model.impute(row)[0, 1], center[0], rtol=1e-6)
    center, spread = conditional(mean, covariance, [0, 2, 3], [0.5, 1.0, 4.0])
    np.testing.assert_allclose(model.impute(row, [4.0])[0, 1], center[0], rtol=1e-6)
    draws = model.impute(row, [4.0], n_draws=2_000)[:, 0]
    assert (draws[:, [0, 2]] == [0.5, 1.0]).all()
    deviation = np.sqrt(spread[0, 0])
    assert abs(draws[:, 1].mean() - center[0]) < 4 * deviation / np.sqrt(2_000)
    assert draws[:, 1].std() == pytest.approx(deviation, rel=0.07)


def test_categories_are_filled_in_by_their_densities(mixed):
    X, y, model = mixed
    blank = X.assign(kind=pd.Series([None] * len(X), dtype=X["kind"].dtype))
    filled = model.impute(blank, y)
    assert list(filled.columns) == list(X.columns)
    assert (filled["kind"] == X["kind"]).mean() > 0.9
    assert (filled["kind"] == X["kind"]).mean() > (model.impute(blank)["kind"] == X["kind"]).mean()
    between = (blank["size"] - 1.5).abs().argmin()
    row, many = blank.iloc[[between] * 3], blank.iloc[[between] * 1_000]
    density = model.score_samples(row.assign(kind=list("abc")))
    drawn = model.impute(many, n_draws=1, random_state=0)[0]["kind"]
    share = [(drawn == each).mean() for each in "abc"]
    np.testing.assert_allclose(share, softmax(density), atol=0.06)
    assert 0.1 < share[0] < 0.9
    draws = model.impute(X.iloc[:40].assign(size=np.nan), n_draws=3, random_state=0)
    assert len(draws) == 3
    assert not draws[0].isna().any(axis=None)
    means = draws[0].groupby(X["kind"][:40])["size"].mean()
    assert means["a"] < means["b"] < means["c"]


def test_averaged_models_fill_in_what_their_draws_have():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2)) @ [[1.0, 0.8], [0.0, 0.6]]
    y = 2.0 * np.abs(X[:, 0]) + X[:, 1] + 0.4 * rng.normal(size=120)
    model = MixtureRegressor(2, density="full", solver=LBFGS(3), init=EM(5), random_state=0)
    assert len(model.fit(X, y).model_.members) > 1
    row = np.array([[1.0, np.nan]])
    draws = model.impute(np.repeat(row, 2_000, 0), n_draws=1, random_state=0)[0, :, 1]
    # means of what curves map to are nearer to medians
    assert model.impute(row)[0, 1] == pytest.approx(draws.mean(), abs=0.1)


def test_conditions_are_filled_rows(linear, mixed):
    model, mean, covariance = linear
    given = model.condition({1: 0.7})
    rows = np.array([[0.2, np.nan, np.nan], [0.2, 9.0, 1.0]])
    np.testing.assert_allclose(given.predict(rows)[0], model.predict([[0.2, 0.7, np.nan]])[0])
    whole = np.array([[0.2, 0.7, np.nan], [0.2, 0.7, 1.0]])
    own = model.score_samples(np.array([[np.nan, 0.7, np.nan]]))
    np.testing.assert_allclose(given.score_samples(rows), model.score_samples(whole) - own)
    np.testing.assert_allclose(given.impute(rows), model.impute(whole))
    X, y = given.sample(3_000, random_state=0)
    center, spread = conditional(mean, covariance, [1], [0.7])
    drawn = np.column_stack([X[:, [0, 2]], y])
    assert (X[:, 1] == 0.7).all()
    np.testing.assert_allclose(drawn.mean(0), center, atol=4 * np.sqrt(spread.max() / 3_000))
    np.testing.assert_allclose(np.cov(drawn.T), spread, atol=0.08 * spread.max())
    table, _ = mixed[2].condition({"kind": "b"}).sample(5, random_state=0)
    assert set(table["kind"]) == {"b"}


def test_the_entry_that_removes_most_variance_comes_next(linear):
    model, _, covariance = linear
    found = model.next_feature(np.array([[np.nan] * 3, [0.0, np.nan, np.nan], [1.0, 0.0, 0.5]]))
    share = covariance[:3, 3] ** 2 / np.diag(covariance)[:3] / covariance[3, 3]
    np.testing.assert_allclose(found[0], share, rtol=0.05)
    _, rest = conditional(np.zeros(4), covariance, [0], [0.0])
    np.testing.assert_allclose(
        found[1, 1:], rest[:2, 2] ** 2 / np.diag(rest)[:2] / rest[2, 2], rtol=0.05
    )
    assert (found[2] == 0).all()
    cheap = model.next_feature(np.full((1, 3), np.nan), {2: 0.5})
    np.testing.assert_allclose(cheap / found[:1], [[1.0, 1.0, 2.0]], rtol=0.05)


def test_categories_may_come_next(mixed):
    X, _, model = mixed
    blank = X.iloc[:1].assign(kind=pd.Series([None], dtype=X["kind"].dtype), size=np.nan)
    found = model.next_feature(blank)[0]
    assert found[:2].min() > 0.5 > found[2] == 0.0


def test_bad_questions(linear, clock):
    model, *_ = linear
    blank = np.full((1, 3), np.nan)
    for given, message in (
        ({}, "one at least"),
        ({7: 1.0}, "no column 7"),
        ({0: np.nan}, "missing or infinite"),
        ({0: np.inf}, "infin"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            model.condition(given)
    with pytest.warns(DegenerateDataWarning, match="extrapolation"):
        model.condition({0: 100.0})
    with pytest.raises(InvalidInputError, match="above zero"):
        model.next_feature(blank, 0.0)
    with pytest.raises(InvalidInputError, match="positive and whole"):
        model.impute(blank, n_draws=0)
    with pytest.raises(InvalidInputError, match=r"target\(s\)"):
        model.impute(blank, [[1.0, 2.0]])
    with pytest.warns(DegenerateDataWarning, match="missing entries"):
        assert np.isnan(model.next_feature(blank, max_time=0.01)).any()
    nothing = model.explain(blank)
    assert (nothing.values == 0).all()
    np.testing.assert_allclose(nothing.base_values, model.predict(blank))


@pytest.mark.parametrize("seed", [0, 1])
def test_rare_categories_have_no_leverage(seed):
    """Six columns of categories, most of few rows, five of which tell nothing."""
    rng = np.random.default_rng(seed)
    X = np.minimum(rng.geometric(0.4, (400, 6)), 8).astype(float)
    y = (X[:, 0] == 1) + rng.normal(size=400)
    model = MixtureRegressor(1, categorical_features=range(6), random_state=0)
    assert model.fit(X[:120], y[:120]).score(X[120:], y[120:]) > -0.05


def test_numbers_far_outside_of_training_are_told_and_followed_no_farther(linear, tmp_path):
    """Predictions are those three deviations beyond the range; densities still see the number."""
    model, _, _ = linear
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) @ [[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 2.0]]
    end = X.max(0) + 3.0 * X.std(0)
    inside, beyond = np.array([[0.1, 0.2, end[2] - 1e-9]]), np.array([[0.1, 0.2, 1e6]])
    model.save(path := tmp_path / "model.safetensors")
    for each in (model, load(path), runtime.load(path)):
        told = each.predict(inside)
        with pytest.warns(DegenerateDataWarning, match=r"1e\+06 in row 0, column 2"):
            np.testing.assert_allclose(each.predict(beyond), told, rtol=1e-6)
        with pytest.warns(DegenerateDataWarning, match="far outside"):
            interval = each.predict_interval(beyond)
        np.testing.assert_allclose(interval, each.predict_interval(inside), rtol=1e-6)
    with pytest.warns(DegenerateDataWarning, match="far outside"):
        explained = model.explain(beyond)
    np.testing.assert_allclose(explained.values.sum() + explained.base_values, told, rtol=1e-6)
    with pytest.warns(DegenerateDataWarning, match="far outside"):
        assert abs(model.sample(beyond, 50, random_state=0) - told).max() < 5.0
    assert model.score_samples(beyond) < model.score_samples(inside) - 1e6
    judged = [model.score_samples(each, told) for each in (beyond, inside)]
    np.testing.assert_allclose(*judged, rtol=1e-6)
    asked, far = X[:40].copy(), X[:40].copy()
    asked[::4, 2], far[::4, 2] = end[2] - 1e-9, 1e6
    found = [model.predict_interval(inside, calibration=(each, X[:40, 0])) for each in (far, asked)]
    np.testing.assert_allclose(*found, rtol=1e-6)
    earlier = load(path)  # a file of a version that did not know how far to go
    earlier.model_ = replace(earlier.model_, reach=np.zeros((2, 0)))
    assert abs(earlier.predict(beyond)) > 1e5


def test_targets_weights_and_shares_that_cannot_be(linear):
    """They are refused, or told of, in words."""
    X = np.arange(12.0).reshape(6, 2)
    with pytest.raises(InvalidInputError, match="y has no columns"):
        MixtureRegressor().fit(X, np.zeros((6, 0)))
    for each in (MixtureRegressor, MixtureNetworkRegressor):
        with pytest.warns(AmbiguousDataWarning, match="sample_weight is 0.01 in the mean"):
            each(1, random_state=0).fit(X, X[:, 0], np.full(6, 0.01))
    for shares in ([], "half", [0.5, 1.0]):
        with pytest.raises(InvalidInputError, match="quantiles must be shares between 0 and 1"):
            linear[0].predict_quantiles(X[:, [0, 1, 1]], shares)


def test_many_rows_are_asked_of_some_at_a_time(mixed, tmp_path, monkeypatch):
    """Distributions of all at once would fill memory; answers are the same, with holes too."""
    X, y, model = mixed
    X = X.mask(np.random.default_rng(1).random(X.shape) < 0.3)
    model.save(tmp_path / "model")
    asked = [partial(model.score, y=y)]
    for each in (model, runtime.load(tmp_path / "model")):
        ways = (each.predict, partial(each.predict, return_std=True), each.predict_quantiles)
        asked += [*ways, partial(each.predict_interval, coverage=0.5)]
    whole, seen = [each(X) for each in asked], []
    part = predictive.FeaturesAndTargets.near

    def near(own, rows):
        seen.append(len(rows))
        return part(own, rows)

    monkeypatch.setattr(predictive.FeaturesAndTargets, "near", near)
    monkeypatch.setattr(predictive, "_AT_ONCE", 7)
    for each, expected in zip(asked, whole, strict=True):
        seen.clear()
        np.testing.assert_allclose(each(X), expected, rtol=1e-9)
        assert seen == [7] * (len(X) // 7) + [len(X) % 7]
