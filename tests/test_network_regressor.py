"""Mixture networks that predict numbers, from the outside."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score

from mixtura import MixtureNetworkRegressor, load
from mixtura.solvers import LinkedEM


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@pytest.fixture(scope="module")
def predictor(diabetes):
    return MixtureNetworkRegressor(3, embedding="log_density", random_state=0).fit(*diabetes)


def test_diabetes(predictor, diabetes):
    """It predicts, and its mixture has the usual services."""
    X, y = diabetes
    assert predictor.score(X, y) > 0.5
    assert np.isfinite(predictor.score_samples(X)).all()
    assert predictor.transform(X).shape == (442, 3)
    holes = X.copy()
    holes[:, 2] = np.nan
    assert 0.2 < predictor.score(holes, y) < predictor.score(X, y)
    assert np.isfinite(predictor.impute(holes)).all()
    weight = np.random.default_rng(0).integers(3, size=442)
    by_hand = r2_score(y, predictor.predict(X), sample_weight=weight)
    assert predictor.score(X, y, weight) == pytest.approx(by_hand)
    for wrong in ((y, -weight), (y, weight[:-1]), (y[:-1], None), (y, 0 * weight)):
        with pytest.raises(ValueError, match=r"weight|inconsistent"):
            predictor.score(X, *wrong)


def test_units_of_the_target_do_not_matter(predictor, diabetes):
    """Predictions follow them."""
    X, y = diabetes
    other = MixtureNetworkRegressor(3, embedding="log_density", random_state=0)
    other.fit(X, 1e3 * y + 5.0)
    np.testing.assert_allclose(other.predict(X), 1e3 * predictor.predict(X) + 5.0, rtol=1e-3)


def test_rows_without_target_take_part(diabetes):
    """In the mixture: they move its means, and nothing breaks."""
    X, y = diabetes
    known = np.where(np.arange(442) % 3 == 0, y, np.nan)
    settings = {"embedding": "posterior", "random_state": 0}
    linked = settings | {"solver": LinkedEM(end_to_end=False)}
    some = MixtureNetworkRegressor(3, **linked).fit(X, known)
    all_rows = MixtureNetworkRegressor(3, **linked).fit(X, y)
    np.testing.assert_allclose(some.means_, all_rows.means_, rtol=1e-6)
    trained = MixtureNetworkRegressor(3, **settings).fit(X, known)
    assert trained.score(X, y) > 0.3


def test_saved_regressors_predict_the_same(predictor, diabetes, tmp_path):
    """To the bit."""
    predictor.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(diabetes[0]), predictor.predict(diabetes[0]))


@pytest.mark.parametrize("unit", [1e-200, 1e160])
def test_targets_of_any_magnitude(unit, diabetes):
    """Have finite predictions that follow them."""
    X, y = diabetes[0][:100], diabetes[1][:100]
    settings = {"embedding": "log_density", "random_state": 0}
    settings["solver"] = LinkedEM(end_to_end=False)
    plain = MixtureNetworkRegressor(2, **settings).fit(X, y).predict(X)
    scaled = MixtureNetworkRegressor(2, **settings).fit(X, y * unit).predict(X)
    np.testing.assert_allclose(scaled / unit, plain, rtol=1e-6)


def test_the_unit_of_weights_does_not_matter(diabetes):
    """Nor does it change the way of training."""
    X, y = diabetes[0][:150], diabetes[1][:150]
    model = MixtureNetworkRegressor(3, embedding="posterior", prior_rows=0.0, random_state=0)
    one, many = (clone(model).fit(X, y, np.full(150, w)).predict(X) for w in (1.0, 1e3))
    np.testing.assert_allclose(many, one, rtol=1e-6)  # a start that settles: rounding stays small


def test_the_likelihood_alone_leaves_the_read_out_alone(diabetes):
    """With nothing but the likelihood to raise, gradients have nothing to teach."""
    settings = {"embedding": "posterior", "random_state": 0}
    linked = MixtureNetworkRegressor(3, solver=LinkedEM(end_to_end=False), **settings)
    linked.fit(*diabetes)
    likely = MixtureNetworkRegressor(3, tradeoff=1.0, **settings).fit(*diabetes)
    np.testing.assert_allclose(linked.predict(diabetes[0]), likely.predict(diabetes[0]))


def test_draws_of_a_regressor(predictor):
    """Rows and what is predicted for them."""
    X, y = predictor.sample(20, random_state=0)
    np.testing.assert_allclose(predictor.predict(X), y)


def test_scores_look_at_known_targets(predictor, diabetes):
    """Rows without one are left out."""
    X, y = diabetes
    known = np.where(np.arange(442) < 300, y, np.nan)
    assert predictor.score(X, known) == pytest.approx(predictor.score(X[:300], y[:300]))


def test_constant_target():
    """Is predicted."""
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = MixtureNetworkRegressor(2, random_state=0).fit(X, np.full(30, 3.0))
    np.testing.assert_allclose(model.predict(X), 3.0, atol=1e-6)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([np.nan] * 4, "no row has a target"),
        (["a", "b", "c", "d"], "y must hold numbers"),
        (["1", "2", "3", "4"], "y must hold numbers, and holds text"),
        ([1.0, np.inf, 2.0, 3.0], "infinity"),
        ([1.0, 2.0], "inconsistent numbers of samples"),
    ],
)
def test_bad_targets(y, message):
    """Are refused in words."""
    with pytest.raises(ValueError, match=message):
        MixtureNetworkRegressor(1).fit(np.arange(8.0).reshape(4, 2), y)
