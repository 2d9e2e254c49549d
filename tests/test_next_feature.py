"""Which entry to measure next: against integrals by SciPy, and sums by hand."""

import sys

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import entropy, norm

from mixtura import MixtureClassifier, MixtureNetworkRegressor
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError
from mixtura.solvers import LBFGS, LinkedEM

pd = pytest.importorskip("pandas")

PLAIN = {"objective": "likelihood", "random_state": 0}


def information(model, column):
    """Of one column with the class, nothing else being observed."""
    prior, mean = model.class_prior_, model.means_[:, column]
    deviation = np.sqrt(model.covariances_[:, column, column])

    def integrand(value):
        density = norm.pdf(value, mean, deviation)
        return np.sum(
            prior * density * (norm.logpdf(value, mean, deviation) - np.log(prior @ density))
        )

    low, high = (mean - 8 * deviation).min(), (mean + 8 * deviation).max()
    return quad(integrand, low, high, limit=200, points=mean)[0]


@pytest.fixture(scope="module")
def model(iris):
    return MixtureClassifier(1, density="full", **PLAIN).fit(*iris)


def test_quadrature_is_that_of_scipy(model):
    found = model.next_feature(np.full((1, 4), np.nan))[0]
    by_hand = [information(model, column) for column in range(4)]
    np.testing.assert_allclose(found, by_hand, rtol=1e-5)


def test_entries_given_others_are_those_of_whole_rows(iris, monkeypatch):
    """Several components, and columns by ranks: against a grid, and the way of other densities."""
    model = MixtureClassifier(3, density="full", marginals="ranks", **PLAIN).fit(*iris)
    X = np.where([False, True, False, True], np.nan, iris[0][60:120:20])
    found = model.next_feature(X)
    grid = np.linspace(-2.0, 6.0, 4_001)
    for row, own in zip(X, found, strict=True):
        rows = np.tile(row, (len(grid), 1))
        rows[:, 3] = grid
        density = np.exp(model.class_log_density(rows))
        density /= np.trapezoid(density, grid, axis=0)
        joint = density * model.predict_proba(row[None])
        ratio = np.log(np.maximum(density, 1e-300) / np.maximum(joint.sum(1), 1e-300)[:, None])
        assert own[3] == pytest.approx(np.trapezoid((joint * ratio).sum(1), grid), rel=1e-3)
    monkeypatch.setattr(sys.modules["mixtura.answers.next_feature"], "has_entries", lambda _: False)
    np.testing.assert_allclose(model.next_feature(X), found, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("marginals", ["linear", "power"])
def test_entries_of_students_t_are_those_of_a_fine_grid(rng, marginals):
    """Heavy tails, some columns observed: the mutual information by brute force, to 1e-4."""
    y = np.arange(120) % 2
    X = rng.standard_t(2.5, size=(120, 3)) @ rng.normal(size=(3, 3)) + 1.2 * y[:, None]
    model = MixtureClassifier(2, density="student", marginals=marginals, **PLAIN).fit(X, y)
    row = np.array([X[7, 0], np.nan, X[7, 2] + 3.0])
    found = model.next_feature(np.array([row, [np.nan] * 3]))
    for own, given in zip(found, (row, np.full(3, np.nan)), strict=True):
        level = np.linspace(-9.0, 9.0, 4_001)
        value = np.median(X[:, 1]) + X[:, 1].std() * np.sinh(level)
        rows = np.tile(given, (len(value), 1))
        rows[:, 1] = value
        density = np.exp(model.class_log_density(rows))
        density /= np.trapezoid(density, value, axis=0)
        joint = density * model.predict_proba(given[None])
        ratio = np.log(density / joint.sum(1, keepdims=True))
        assert own[1] == pytest.approx(np.trapezoid((joint * ratio).sum(1), value), rel=1e-4)


def test_many_columns_take_no_longer_than_allowed(rng, clock):
    X, y = rng.normal(size=(60, 60)), np.arange(60) % 2
    model = MixtureClassifier(1, density="diag", **PLAIN).fit(X, y)
    blank = np.full((2, 60), np.nan)
    assert np.isfinite(model.next_feature(blank, max_time=None)).all()
    with pytest.warns(DegenerateDataWarning, match="sufficed for .* of 120 missing entries"):
        found = model.next_feature(blank, max_time=0.05)
    assert 0 < np.isnan(found).sum() < 120


def test_progress_is_shown(model, capsys):
    clone = MixtureClassifier(verbose=1)
    clone.model_, clone.n_features_in_ = model.model_, 4
    clone.next_feature(np.full((1, 4), np.nan))
    shown = capsys.readouterr().out
    assert "missing entries" in shown
    assert "4/4" in shown


def test_what_is_observed_has_nothing_to_tell(model, iris):
    X = np.where([False, True, False, True], np.nan, iris[0][48:55])
    found = model.next_feature(X)
    assert (found[:, [0, 2]] == 0).all()
    assert (found[:, [1, 3]] >= 0).all()
    assert (model.next_feature(iris[0][:3]) == 0).all()


def test_more_is_told_where_more_is_open(model):
    """Between two kinds of flowers the width of the petal says most; far from both, nothing."""
    between, clear = model.next_feature(
        np.array([[np.nan, np.nan, 4.9, np.nan], [np.nan, np.nan, 1.4, np.nan]])
    )
    assert between.argmax() == 3
    assert between[3] > 0.2 > 1e-3 > clear.max()


def test_it_cannot_exceed_what_is_open(model, iris, rng):
    X = np.where(rng.random((40, 4)) < 0.6, np.nan, iris[0][5:125:3])
    proba = model.predict_proba(X)
    assert (model.next_feature(X).max(1) <= entropy(proba, axis=1) + 1e-3).all()


def test_categories_are_summed(rng):
    y = rng.integers(2, size=400)
    kind = np.where(rng.random(400) < 0.2 + 0.5 * y, "a", np.where(rng.random(400) < 0.5, "b", "c"))
    frame = pd.DataFrame({"kind": kind, "x": rng.normal(size=400)})
    model = MixtureClassifier(1, **PLAIN).fit(frame, y)
    blank = pd.DataFrame({"kind": [None], "x": [0.3]}).astype(frame.dtypes)
    each = pd.DataFrame({"kind": ["a", "b", "c"], "x": 0.3}).astype(frame.dtypes)
    prior, given = model.predict_proba(blank)[0], model.predict_proba(each)
    chance = model.category_proba(blank, "kind")[0]
    by_hand = np.sum(chance[:, None] * given * np.log(given / prior))
    assert model.next_feature(blank)[0, 0] == pytest.approx(by_hand, rel=1e-9)


def test_what_is_measured_is_no_longer_absent(rng, monkeypatch):
    """Where absence tells, against the answers to rows that have each category in place."""
    y = rng.integers(0, 2, 200)
    X = (rng.random((200, 3)) < 0.3 + 0.3 * y[:, None]).astype(float)
    X[rng.random((200, 3)) < 0.1 + 0.4 * y[:, None]] = np.nan
    settings = {"categorical_features": [0, 1, 2], "missingness": "informative"}
    model = MixtureClassifier(2, **settings, **PLAIN).fit(X, y)
    found = model.next_feature(X[:20])
    monkeypatch.setattr(sys.modules["mixtura.answers.next_feature"], "has_entries", lambda _: False)
    np.testing.assert_allclose(model.next_feature(X[:20]), found, atol=1e-9)


def test_no_more_is_promised_than_calibrated_probabilities_hold(rng):
    """One column, nothing observed: values as probable as rows are, probabilities as predicted."""
    X = rng.integers(0, 3, (200, 1)).astype(float)
    y = (rng.random(200) < 0.3 + 0.2 * X[:, 0]).astype(int)
    model = MixtureClassifier(
        1, marginals="linear", categorical_features=[0], solver=LBFGS(5), random_state=0
    ).fit(X, y)
    assert model.temperature_ != 1.0
    levels = np.arange(3.0)[:, None]
    chance, after = np.exp(model.score_samples(levels)), model.predict_proba(levels)
    mean = chance @ after
    wanted = entropy(mean) - chance @ entropy(after, axis=1)
    assert model.next_feature([[np.nan]])[0, 0] == pytest.approx(wanted, rel=1e-6)


def test_information_is_per_unit_of_cost(model):
    X = np.full((2, 4), np.nan)
    plain = model.next_feature(X)
    np.testing.assert_allclose(model.next_feature(X, [1, 2, 4, 8]), plain / [1, 2, 4, 8])
    np.testing.assert_allclose(model.next_feature(X, {2: 4.0}), plain / [1, 1, 4, 1])


@pytest.mark.parametrize(
    "cost",
    [0.0, [1, 1, 0, 1], [1, 2], {0: -1.0}, {1: np.nan}, np.inf, "dear", {0: "dear"}],
)
def test_costs_that_make_no_sense_are_refused(model, cost):
    with pytest.raises(InvalidInputError, match="above zero"):
        model.next_feature(np.full((1, 4), np.nan), cost)
    with pytest.raises(InvalidInputError, match="no column 7"):
        model.next_feature(np.full((1, 4), np.nan), {7: 1.0})


def test_one_class_leaves_nothing_open(iris):
    model = MixtureClassifier(1, density="full", **PLAIN).fit(iris[0], np.zeros(150))
    assert (model.next_feature(np.full((2, 4), np.nan)) < 1e-9).all()


def test_a_network_tells_which_entry_its_predictions_depend_on(rng):
    """Against draws of whole rows, and predictions from one of their columns alone."""
    X = rng.normal(size=(150, 3)) @ [[1.0, 0.6, 0.0], [0.0, 0.8, 0.0], [0.0, 0.0, 1.0]]
    model = MixtureNetworkRegressor(
        4, embedding="posterior", density="full", solver=LinkedEM(3), random_state=0
    ).fit(X, X @ [2.0, 1.0, 0.2])
    rows, predicted = model.sample(3_000, random_state=1)
    alone = np.full((3, 3_000, 3), np.nan)
    for column, each in enumerate(alone):
        each[:, column] = rows[:, column]
    wanted = [model.predict(each).var() / predicted.var() for each in alone]
    found = model.next_feature(np.array([[np.nan] * 3, rows[0]]), [1, 1, 2])
    shares = found[0] * [1, 1, 2]
    np.testing.assert_allclose(shares / shares.sum(), wanted / np.sum(wanted), atol=0.02)
    assert shares.sum() == pytest.approx(np.sum(wanted), rel=0.2)  # a variance of 256 draws
    assert not found[1].any()
