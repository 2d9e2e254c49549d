"""EM: monotone, the same as scikit-learn's, and streamed."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from mixtura import MixtureClassifier
from mixtura.data.scaling import Scaling
from mixtura.densities import Diagonal, DiagonalGaussian, Full, FullGaussian, LowRank
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM, SpreadPrior, em
from mixtura.testing import (
    STRUCTURES,
    check_solver,
    check_valid,
    make_density,
    make_engine,
    make_mixture,
)
from mixtura.training.groups import Recipe

CLOSED_FORM = [key for key, (kind, _) in STRUCTURES.items() if kind.closed_form]
COUNTS = [2, 1]
#: Fixtures: nothing, so that small tables go by NumPy; or as large ones go.
SIZES = ["request", "large"]


def problem(structure, generator, holes, unlabeled=False, counts=COUNTS):
    """A start, and rows that it does not fit yet."""
    truth, start = (
        make_mixture(make_density(*structure, generator, n_features=4), counts, generator)
        for _ in range(2)
    )
    engine = make_engine(truth, 120, generator, holes=holes)
    if unlabeled:
        engine.y[::2] = -1
    return start, engine


@pytest.mark.parametrize("prior_rows", [0.0, 7.0, 300.0], ids="{:g} imagined rows".format)
@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("unlabeled", [False, True], ids=["labeled", "unlabeled"])
@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
@pytest.mark.parametrize("size", SIZES)
def test_never_goes_down(size, structure, unlabeled, holes, prior_rows, request):
    """Every iteration improves the likelihood, or the likelihood plus the log prior."""
    request.getfixturevalue(size)
    for seed in (0, 14):
        generator = torch.Generator().manual_seed(seed)
        start, engine = problem(structure, generator, holes, unlabeled)
        prior = SpreadPrior(prior_rows, 0.5 * start.density.spread[0]) if prior_rows else None
        progress = Progress()
        objective = Likelihood(0.4 if unlabeled else None)
        EM(10, -1.0).run(start, objective, engine, progress, prior=prior)
        losses = np.array([record["objective"] for record in progress.history])
        assert len(losses) == 10
        assert (np.diff(losses) <= 1e-9 * np.abs(losses[1:])).all()


@pytest.mark.parametrize("structure", [("full", "covariance"), ("low_rank", "covariance")])
def test_large_tables_take_the_same_steps(structure, request):
    """There, components look for their own rows, and rows without holes stand apart."""
    losses = []
    for _ in range(2):
        start, engine = problem(structure, torch.Generator().manual_seed(0), True, counts=[1, 1, 1])
        progress = Progress()
        EM(10, -1.0).run(start, Likelihood(), engine, progress)
        losses.append([record["objective"] for record in progress.history])
        request.getfixturevalue("large")
    np.testing.assert_allclose(*losses, 1e-10)


@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_solver_properties(structure, generator):
    """A valid model no worse than the start, the same every time."""
    start, engine = problem(structure, generator, holes=True)
    prior = SpreadPrior(5.0, start.density.spread[0])
    check_solver(EM(10, 0.0), Likelihood(), start, engine)
    check_solver(EM(10, 0.0), Likelihood(), start, engine, prior=prior)


def sklearn_start(kind, X, rng, n_components=3):
    """The same start for both: means at rows, unit weights, and some covariances."""
    means = X[rng.choice(len(X), n_components, replace=False)]
    weights = np.array([0.5, 0.3, 0.2])
    d = X.shape[1]
    variances = rng.uniform(0.5, 2.0, size=(n_components, d))
    if kind == "spherical":
        variances = np.repeat(variances[:, :1], d, axis=1)
    precisions = {
        "spherical": 1.0 / variances[:, 0],
        "diag": 1.0 / variances,
        "full": np.stack([np.diag(1.0 / v) for v in variances]),
    }
    return means, weights, variances, precisions[kind]


def our_mixture(kind, means, weights, variances):
    """A single-class mixture with the given moments."""
    mean, variance = torch.from_numpy(means), torch.from_numpy(variances)
    if kind == "full":
        density = FullGaussian(mean=mean, factor=torch.diag_embed(variance.sqrt()), floor=1e-12)
    else:
        tied = kind == "spherical"
        density = DiagonalGaussian(mean=mean, variance=variance, tied=tied, floor=1e-12)
    single = Mixture.single(density)
    return Mixture(density, torch.from_numpy(np.log(weights)), single.layout, single.log_prior)


@pytest.mark.parametrize("n_iter", [1, 8])
@pytest.mark.parametrize("kind", ["full", "diag", "spherical"])
@pytest.mark.parametrize("size", SIZES)
def test_agrees_with_sklearn(size, kind, n_iter, iris, rng, request):
    """From the same start, the same iterations end at the same model."""
    request.getfixturevalue(size)
    X = iris[0] - iris[0].mean(0)
    means, weights, variances, precisions = sklearn_start(kind, X, rng)
    theirs = GaussianMixture(
        3,
        covariance_type=kind,
        tol=0.0,
        reg_covar=0.0,
        max_iter=n_iter,
        weights_init=weights,
        means_init=means,
        precisions_init=precisions,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs.fit(X)
    engine = Engine(X, scaling=Scaling.identity(4), device=torch.device("cpu"))
    start = our_mixture(kind, means, weights, variances)
    ours = EM(n_iter, 0.0).run(start, Likelihood(), engine, Progress()).model
    covariances = theirs.covariances_
    if kind != "full":
        rows = covariances[:, None] * np.ones((1, 4)) if kind == "spherical" else covariances
        covariances = np.stack([np.diag(row) for row in rows])
    np.testing.assert_allclose(ours.log_weight.exp(), theirs.weights_, 1e-6)
    np.testing.assert_allclose(ours.density.mean, theirs.means_, 1e-6, 1e-6)
    np.testing.assert_allclose(ours.density.covariances(), covariances, 1e-6, 1e-6)


@pytest.mark.parametrize("kind", [Full(1e-6), Diagonal(1e-6)], ids=["full", "diag"])
def test_rows_in_single_precision_end_as_in_double(kind, rng, monkeypatch):
    """Also a component so narrow, and so far out, that float32 cannot tell its variances."""
    X = (rng.normal(size=(300, 3)) * [0.1, 0.5, 1.0]).astype(np.float32)
    X[:100] = 20.0 + 2e-3 * X[:100]
    casts, cast = [], Engine.cast
    monkeypatch.setattr(em, "_WORTH", 0)
    monkeypatch.setattr(Engine, "cast", lambda table, to: casts.append(to) or cast(table, to))
    ends = []
    for rows in (X, X.astype(np.float64)):
        engine = Engine(rows, scaling=Scaling.identity(3), device=torch.device("cpu"))
        start = Recipe(kind, EM()).start(engine, 2, torch.Generator().manual_seed(0))
        ends.append(EM(50, 1e-9).run(start, Likelihood(), engine, Progress()).objective)
    assert casts == [torch.float32]
    assert ends[0] == pytest.approx(ends[1], abs=1e-6)


def test_factor_analysis_agrees_with_sklearn(wine):
    """One low-rank component is factor analysis: the same likelihood at the maximum."""
    from sklearn.decomposition import FactorAnalysis
    from sklearn.preprocessing import StandardScaler

    X = StandardScaler().fit_transform(wine[0])
    theirs = FactorAnalysis(2, tol=1e-10, max_iter=20_000, svd_method="lapack").fit(X).score(X)
    engine = Engine(X, scaling=Scaling.identity(13), device=torch.device("cpu"))
    structure = LowRank(2, floor=1e-6)
    start = Recipe(structure, EM()).start(engine, 1, torch.Generator().manual_seed(0))
    result = EM(600, 1e-8).run(start, Likelihood(), engine, Progress())
    assert -result.objective == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_a_component_without_rows_stays(structure, generator):
    """A component far from all rows keeps its parameters, and nothing becomes NaN."""
    start, engine = problem(structure, generator, holes=True)
    mean = start.density.mean.clone()
    mean[0] = 1e4
    density = start.density.with_tensors({"mean": mean})
    lost = Mixture(density, start.log_weight, start.layout, start.log_prior)
    result = EM(5, 0.0).run(lost, Likelihood(), engine, Progress())
    check_valid(result.model)


@pytest.mark.parametrize("prior_rows", [0.0, 7.0], ids="{:g} imagined rows".format)
@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
def test_an_m_step_by_gradients_never_goes_down(holes, prior_rows, generator):
    """A low-rank precision has no closed form: each M step raises what it would maximize."""
    start, engine = problem(("low_rank", "precision"), generator, holes=holes)
    prior = SpreadPrior(prior_rows, 0.5 * start.density.spread[0]) if prior_rows else None
    progress = Progress()
    found = EM(12, -1.0).run(start, Likelihood(), engine, progress, prior=prior)
    check_valid(found.model)
    losses = np.array([record["objective"] for record in progress.history])
    assert (np.diff(losses) <= 1e-9 * np.abs(losses[1:])).all()
    assert losses[0] > losses[-1] + 0.2


def test_an_m_step_by_gradients_ends_at_the_closed_form(generator):
    """The same Gaussians, told that they have no closed form, end at the same model."""

    class Open(DiagonalGaussian):
        closed_form = False

    start, engine = problem(("diag", "covariance"), generator, holes=True)
    parts = {"mean": start.density.mean, "variance": start.density.variance}
    same = replace(start, density=Open(**parts, floor=start.density.floor))
    exact, found = (
        EM(200, -1.0).run(each, Likelihood(), engine, Progress()).model for each in (start, same)
    )
    np.testing.assert_allclose(found.density.mean, exact.density.mean, 1e-4, 1e-4)
    np.testing.assert_allclose(found.density.variance, exact.density.variance, 1e-4)
    np.testing.assert_allclose(found.log_weight, exact.log_weight, 1e-4, 1e-4)


def test_priors_pull_the_spread_towards_the_reference(generator):
    """Many imagined rows decide the covariance, and leave the mean to the real ones."""
    start, engine = problem(("full", "covariance"), generator, holes=False)
    reference = torch.eye(4, dtype=torch.float64) * 3.0
    free = EM(30, 0.0).run(start, Likelihood(), engine, Progress()).model.density
    prior = SpreadPrior(1e9, reference)
    held = EM(30, 0.0).run(start, Likelihood(), engine, Progress(), prior=prior).model.density
    np.testing.assert_allclose(held.covariances(), reference.expand(3, -1, -1), 1e-5, 1e-5)
    np.testing.assert_allclose(held.mean[2], free.mean[2], 1e-9)


# -- streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize("class_prior", ["empirical", "uniform"])
@pytest.mark.parametrize("density", [Diagonal(1e-9), Full(1e-9)], ids=str)
def test_a_stream_ends_where_fit_would(density, class_prior, iris):
    """One component a class, complete rows: parts of any size add up to the whole."""
    X, y = iris
    keep = np.r_[0:50, 50:80, 100:120]
    order = np.random.default_rng(0).permutation(keep)
    settings = {
        "n_components": 1,
        "density": density,
        "objective": "likelihood",
        "class_prior": class_prior,
        "prior_rows": 0,
        "marginals": "raw",
    }
    whole = MixtureClassifier(**settings).fit(X[order], y[order])
    stream = MixtureClassifier(**settings)
    for part in np.split(order, [40, 47, 80]):
        stream.partial_fit(X[part], y[part], classes=[0, 1, 2])
    np.testing.assert_allclose(stream.means_, whole.means_, 1e-6)
    np.testing.assert_allclose(stream.covariances_, whole.covariances_, 1e-6, 1e-9)
    np.testing.assert_allclose(stream.class_prior_, whole.class_prior_, 1e-6)


def test_a_class_may_join_a_stream_late(iris):
    """A class that the first parts lack is learned when it comes, and is not predicted before."""
    X, y = iris
    model = MixtureClassifier(
        1, density="diag", objective="likelihood", prior_rows=0, marginals="raw"
    )
    early, late = np.flatnonzero(y < 2), np.flatnonzero(y == 2)
    model.partial_fit(X[early], y[early], classes=[0, 1, 2])
    assert 2 not in model.predict(X)
    model.partial_fit(X[late], y[late])
    np.testing.assert_allclose(model.means_[2], X[late].mean(0), 1e-6)
    np.testing.assert_allclose(model.class_prior_, [1 / 3] * 3, 1e-6)
    assert model.score(X, y) > 0.9


def test_discriminative_streams_improve(wine):
    """Other objectives take an epoch of Adam a part, and stay finite."""
    X, y = wine
    model = MixtureClassifier(1, density="diag", random_state=0)
    order = np.random.default_rng(1).permutation(len(X))
    for part in np.array_split(order, 6):
        model.partial_fit(X[part], y[part], classes=[0, 1, 2])
        assert np.isfinite(model.predict_proba(X)).all()
    assert model.score(X, y) > 0.9
