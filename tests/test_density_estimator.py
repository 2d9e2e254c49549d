"""MixtureDensity from the outside."""

import warnings

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from mixtura import MixtureDensity
from mixtura.densities import Auto, Diagonal, LowRank
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError
from mixtura.solvers import EM

COVARIANCES = ["auto", "full", "diag", "spherical", "low_rank"]


@pytest.fixture(scope="module")
def model(iris):
    """Three components of iris."""
    model = MixtureDensity(3, density="full", random_state=0, solver=EM(500, 1e-6))
    return model.fit(iris[0])


def mixture_log_density(model, X):
    """The log density of complete rows by scipy, from the published parameters."""
    parts = zip(model.weights_, model.means_, model.covariances_, strict=True)
    joint = [np.log(w) + multivariate_normal(m, c).logpdf(X) for w, m, c in parts]
    return np.stack(joint, 1)


@pytest.mark.parametrize("density", COVARIANCES)
def test_scores_are_log_densities_of_the_published_parameters(density, iris):
    """In the user's units, for every structure."""
    X = iris[0] * [1.0, 100.0, 0.01, 1.0]
    model = MixtureDensity(2, density=density, random_state=0).fit(X)
    joint = mixture_log_density(model, X)
    np.testing.assert_allclose(model.score_samples(X), logsumexp(joint, axis=1), 1e-6, 1e-6)
    proba = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    np.testing.assert_allclose(model.predict_proba(X), proba, 1e-5, 1e-8)
    np.testing.assert_array_equal(model.predict(X), joint.argmax(1))
    assert model.score(X) == pytest.approx(model.score_samples(X).mean())


def test_one_component_has_the_moments_of_the_rows(iris):
    """Mean and maximum-likelihood covariance."""
    X = iris[0]
    model = MixtureDensity(1, density="full").fit(X)
    np.testing.assert_allclose(model.means_[0], X.mean(0), 1e-9)
    np.testing.assert_allclose(model.covariances_[0], np.cov(X.T, bias=True), 1e-5, 1e-6)


def test_as_likely_as_sklearn(model, iris):
    """The fit is no worse than scikit-learn's, up to where EM stops."""
    theirs = GaussianMixture(3, random_state=0, tol=1e-6, max_iter=500).fit(iris[0])
    assert model.score(iris[0]) > theirs.score(iris[0]) - 0.05


def test_auto_is_good_for_rows_it_has_not_seen():
    """Forty rows have too few numbers for full covariances of 20 features; held-out rows say so."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 3)) @ rng.normal(size=(3, 20)) + rng.normal(size=(240, 20))
    model, full = (
        MixtureDensity(density=density, random_state=0).fit(X[:40]) for density in ("auto", "full")
    )
    assert model.score(X[40:]) > full.score(X[40:]) + 5.0
    assert isinstance(model.density_, LowRank | Diagonal)
    assert {row["question"] for row in model.choice_} == {"density"}


def test_auto_is_shorthand_for_an_object(iris):
    """Which is compared as its name is; one that leaves less open has fewer candidates."""
    found = [
        [str(row["density"]) for row in MixtureDensity(1, density=given).fit(iris[0][:60]).choice_]
        for given in ("auto", Auto(), Auto(floor=0.1))
    ]
    assert found[0] == found[1]
    assert found[2] == [str(each) for each in Auto(floor=0.1).candidates(4)]


def test_information_criteria(model, iris):
    """As scikit-learn counts parameters."""
    X = iris[0]
    parameters = GaussianMixture(3).fit(X)._n_parameters()
    total = model.score_samples(X).sum()
    assert model.bic(X) == pytest.approx(-2 * total + parameters * np.log(150))
    assert model.aic(X) == pytest.approx(-2 * total + 2 * parameters)


@pytest.mark.parametrize("density", COVARIANCES)
def test_missing_entries(density, holey_iris):
    """Holes in training and in prediction; EM still never goes down."""
    X = holey_iris[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MixtureDensity(2, density=density, random_state=0, solver=EM(10, 0.0)).fit(X)
    assert np.isfinite(model.score_samples(X)).all()
    losses = [record["objective"] for record in model.history_]
    assert (np.diff(losses) <= 1e-9).all()


def test_marginals_of_missing_entries(model, iris):
    """The density of a row with holes is that of the sub-matrices."""
    X = iris[0][:10].copy()
    X[:, [1, 3]] = np.nan
    joint = [
        np.log(w) + multivariate_normal(m[[0, 2]], c[np.ix_([0, 2], [0, 2])]).logpdf(X[:, [0, 2]])
        for w, m, c in zip(model.weights_, model.means_, model.covariances_, strict=True)
    ]
    np.testing.assert_allclose(model.score_samples(X), logsumexp(joint, axis=0), 1e-6)


def test_automatic_components(rng):
    """Three clumps get three components."""
    X = np.repeat([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], 60, 0) + rng.normal(size=(180, 2))
    assert MixtureDensity(random_state=0).fit(X).n_components_ == 3


def test_weights_are_repetitions(iris, rng):
    """A row of weight three counts as three rows."""
    X, weight = iris[0], rng.integers(0, 4, size=150)
    weighted = MixtureDensity(1, random_state=0).fit(X, sample_weight=weight)
    repeated = MixtureDensity(1, random_state=0).fit(np.repeat(X, weight, 0))
    np.testing.assert_allclose(weighted.means_, repeated.means_, 1e-9)
    np.testing.assert_allclose(weighted.covariances_, repeated.covariances_, 1e-6, 1e-9)


def test_sampling(model, iris):
    """Rows and the components they came from, in proportion to the weights."""
    X, component = model.sample(4000, random_state=0)
    assert X.shape == (4000, 4)
    np.testing.assert_allclose(np.bincount(component) / 4000, model.weights_, atol=0.04)
    np.testing.assert_allclose(X.mean(0), iris[0].mean(0), atol=0.15)
    np.testing.assert_array_equal(
        model.sample(5, random_state=1)[0], model.sample(5, random_state=1)[0]
    )


def test_services(model, iris, holey_iris):
    """Imputation, outliers and the embedding work without classes."""
    holey = holey_iris[0]
    filled = model.impute(holey)
    seen = ~np.isnan(holey)
    np.testing.assert_array_equal(filled[seen], holey[seen])
    assert model.impute(holey, n_draws=2, random_state=0).shape == (2, 150, 4)
    assert model.is_outlier(iris[0] + 50).all()
    assert model.is_outlier(iris[0]).mean() < 0.03
    assert model.transform(iris[0]).shape == (150, 3)
    assert len(model.get_feature_names_out()) == 3
    with pytest.raises(InvalidInputError, match="leave y out"):
        model.impute(holey, y=np.zeros(150))


def test_warm_start(iris):
    """A second fit continues where the first one ended."""
    X = iris[0]
    model = MixtureDensity(3, solver=EM(3, 0.0), warm_start=True, random_state=0)
    with pytest.warns(ConvergenceWarning, match="raise max_iter or tol of the solver"):
        model.fit(X)
    first = model.history_
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    assert model.history_[0]["objective"] <= first[-1]["objective"]


def test_more_starts_are_no_worse(wine):
    """The best of several starts has at least the likelihood of the first."""
    scores = [
        MixtureDensity(4, density="diag", solver=EM(n_init=n), random_state=0)
        .fit(wine[0])
        .score(wine[0])
        for n in (1, 4)
    ]
    assert scores[1] >= scores[0] - 1e-2


def test_seeds(iris):
    """The same seed, the same model."""
    first, second = (MixtureDensity(3, random_state=5).fit(iris[0]) for _ in range(2))
    np.testing.assert_array_equal(first.means_, second.means_)


@pytest.mark.filterwarnings("ignore::mixtura.exceptions.DegenerateDataWarning")
@pytest.mark.parametrize("density", COVARIANCES)
@pytest.mark.parametrize(
    "X",
    [
        np.zeros((5, 3)),
        np.repeat([[1.0, 2.0, 3.0]], 10, 0),
        np.array([[1.0, 2.0, 3.0]]),
        np.vstack([np.eye(3), np.full((1, 3), np.nan)]),
        np.hstack([np.arange(20.0)[:, None], np.full((20, 1), np.nan)]),
        np.random.default_rng(0).normal(size=(10, 3)) * [1e-12, 1.0, 1e12],
        np.random.default_rng(0).normal(size=(4, 30)),
    ],
    ids=["zeros", "duplicates", "one row", "empty row", "empty column", "scales", "wide"],
)
def test_degenerate_rows_give_finite_models(X, density):
    """Constant, duplicated, single, empty: never NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MixtureDensity(2, density=density, random_state=0).fit(X)
    assert np.isfinite(model.score_samples(X)).all()
    assert np.isfinite(model.impute(X)).all()


def test_more_components_than_rows(iris):
    """One a row, with a warning that names the remedy."""
    with pytest.warns(DegenerateDataWarning, match="Remedy: a smaller n_components"):
        model = MixtureDensity(9, random_state=0).fit(iris[0][:4])
    assert model.n_components_ == 4


@pytest.mark.parametrize("density", ["diag", LowRank(5, floor=1e-5), "full"], ids=str)
def test_float32_at_the_floor(density, rng):
    """Log densities of 200 features, some of no variance but the floor, are scipy's in float64."""
    latent = rng.normal(size=(400, 5)) @ rng.normal(size=(5, 200))
    X = (latent + 1e-4 * rng.normal(size=latent.shape)).astype(np.float32)
    model = MixtureDensity(1, density=density, random_state=0).fit(X)
    normal = multivariate_normal(model.means_[0], model.covariances_[0], allow_singular=True)
    expected = normal.logpdf(X.astype(np.float64))
    np.testing.assert_allclose(model.score_samples(X), expected, atol=0.06, rtol=1e-6)
