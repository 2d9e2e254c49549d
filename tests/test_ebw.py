"""Extended Baum-Welch: EM as its special case, valid and better models on other objectives."""

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

from mixtura import MixtureClassifier
from mixtura.data.scaling import Scaling
from mixtura.datasets import make_spirals
from mixtura.densities import DiagonalGaussian
from mixtura.engines import Engine
from mixtura.exceptions import UnsupportedError
from mixtura.models.mixture import Layout, Mixture
from mixtura.objectives import Conditional, Hybrid, Likelihood, Margin, SmoothMargin
from mixtura.progress import Progress
from mixtura.solvers import EBW, EM, LBFGS, SOLVERS, SpreadPrior
from mixtura.solvers.ebw import _grow, _Place, _Walk
from mixtura.testing import (
    STRUCTURES,
    check_solver,
    check_valid,
    make_density,
    make_engine,
    make_mixture,
    penalized_loss,
)

CLOSED_FORM = [key for key, (kind, _) in STRUCTURES.items() if kind.closed_form]
COUNTS = [2, 1, 3]
OBJECTIVES = {
    "conditional": Conditional(),
    "margin": Margin(3.0),
    "smooth margin": SmoothMargin(3.0),
    "hybrid": Hybrid(Likelihood(), Margin(3.0), 0.2),
}


def summed(ebw, mixture, objective, engine):
    """What an update needs of a pass over the rows."""
    sums = ebw.sums(mixture, objective, engine)
    sums.pop("loss")
    return sums


def problem(structure, generator, holes=False):
    """A start, and rows of overlapping classes that it does not fit yet."""
    make = partial(make_density, *structure, generator, n_components=6, n_features=4)
    truth, start = (make_mixture(make(), COUNTS, generator) for _ in range(2))
    return start, make_engine(truth, 80, generator, holes=holes)


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_without_damping_the_likelihood_step_is_ems(structure, holes, generator):
    """Means, covariances, weights and prior are those of one EM iteration."""
    start, engine = problem(structure, generator, holes)
    sums = summed(EBW(), start, Likelihood(), engine)
    stepped = EBW(damping=0.0).update(start, sums)
    expected = EM(1).run(start, Likelihood(), engine, Progress()).model
    for name, value in expected.density.tensors().items():
        np.testing.assert_allclose(stepped.density.tensors()[name], value, 1e-9, 1e-9)
    np.testing.assert_allclose(stepped.log_weight, expected.log_weight, 1e-9, 1e-9)
    np.testing.assert_allclose(stepped.log_prior, expected.log_prior, 1e-9, 1e-9)


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_improves(structure, name, holes, generator):
    """Valid, repeatable, and a fifth of a discriminative loss is gone in a few iterations."""
    start, engine = problem(structure, generator, holes)
    objective = OBJECTIVES[name]
    result = check_solver(EBW(10), objective, start, engine)
    before, after = (
        penalized_loss(mixture, objective, engine) for mixture in (start, result.model)
    )
    assert after < before - (0.2 * before if name != "hybrid" else 1e-3)


@pytest.mark.parametrize("per_component", [True, False])
@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_every_iterate_is_valid(structure, per_component, generator):
    """Not only the best one: each update keeps covariances positive definite."""
    mixture, engine = problem(structure, generator)
    ebw = EBW(per_component=per_component)
    for _ in range(8):
        sums = summed(ebw, mixture, Conditional(), engine)
        mixture = ebw.update(mixture, sums)
        check_valid(mixture)


@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_imagined_rows_keep_components_in_place(structure):
    """With a prior of the spread, means stay among the rows whatever the signs of the masses."""
    for seed in range(3):
        mixture, engine = problem(structure, torch.Generator().manual_seed(seed))
        x = engine.all_rows().x
        reach = 10.0 * (x - x.mean(0)).abs().max()
        ebw, prior = EBW(), SpreadPrior(5.0, mixture.density.spread[0])
        for _ in range(15):
            sums = summed(ebw, mixture, Conditional(), engine)
            mixture = ebw.update(mixture, sums, prior)
            check_valid(mixture)
            assert (mixture.density.mean - x.mean(0)).abs().max() < reach


@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_improves_under_a_prior(structure, generator):
    """The objective with the prior's share goes down too."""
    start, engine = problem(structure, generator, holes=True)
    prior = SpreadPrior(5.0, start.density.spread[0])
    check_solver(EBW(15), OBJECTIVES["hybrid"], start, engine, prior=prior)


def published_step(X, y, weight, mu, var, alpha, rho, factor, margin=None, eta=10.0):
    """One iteration as printed, row by row, class by class, component by component.

    The conditional likelihood, or the margin with d = 2 reached at `margin`.
    """
    (C, M), N = alpha.shape, len(y)
    joint, gamma = np.zeros((N, C)), np.zeros((N, C, M))
    for n, c in np.ndindex(N, C):
        density = alpha[c] * np.prod(norm.pdf(X[n], mu[c], np.sqrt(var[c])), axis=1)
        joint[n, c], gamma[n, c] = rho[c] * density.sum(), density / density.sum()
    plus, minus = np.zeros((N, C)), np.zeros((N, C))
    for n in range(N):
        if margin is None:
            plus[n, y[n]], minus[n] = 1.0, joint[n] / joint[n].sum()
            continue
        lam = np.log(2.0) / margin
        rivals = np.where(np.arange(C) == y[n], 0.0, joint[n] ** eta)
        d = (joint[n, y[n]] / rivals.sum() ** (1.0 / eta)) ** lam
        s = lam * d / (d + 0.5) if d <= 1 else lam * (2 - d) / (2 - d / 2) if d < 2 else 0.0
        plus[n, y[n]], minus[n] = s, s * rivals / rivals.sum()
    plus, minus = (weight[:, None, None] * gamma * each[:, :, None] for each in (plus, minus))

    def gaussians(damping):
        mass = (plus - minus).sum(0)[..., None] + damping
        mean = (np.einsum("ncm,nd->cmd", plus - minus, X) + damping * mu) / mass
        second = np.einsum("ncm,nd->cmd", plus - minus, X**2) + damping * (var + mu**2)
        return mass, mean, second / mass - mean**2

    damping = 1.0
    while (gaussians(damping)[0] <= 0).any() or (gaussians(damping)[2] <= 0).any():
        damping *= 2.0
    damping *= factor
    _, mean, variance = gaussians(damping)
    up, down = plus.sum(0), minus.sum(0)
    robust = up / up.sum(1, keepdims=True) - down / down.sum(1, keepdims=True)
    new_alpha = alpha * (robust + damping)
    robust = up.sum(1) / up.sum() - down.sum(1) / down.sum()
    new_rho = rho * (robust + damping)
    new_alpha, new_rho = new_alpha / new_alpha.sum(1, keepdims=True), new_rho / new_rho.sum()
    return mean, variance, new_alpha, new_rho


@pytest.mark.parametrize("objective", [Conditional(), SmoothMargin(1.0)], ids=repr)
def test_the_published_step(objective, rng):
    """Means, variances, weights and prior against the paper's equations in plain loops."""
    C, M, D, N = 3, 2, 2, 60
    y = rng.integers(C, size=N)
    X = rng.normal(size=(N, D)) + 0.8 * y[:, None]
    mu = rng.normal(size=(C, M, D)) + 0.8 * np.arange(C)[:, None, None]
    var, weight = rng.uniform(0.5, 1.5, (C, M, D)), rng.uniform(0.5, 1.5, N)
    alpha, rho = rng.dirichlet(np.ones(M), C), rng.dirichlet(np.full(C, 5.0))
    mean, variance, log_alpha, log_rho = (
        torch.from_numpy(a) for a in (mu, var, np.log(alpha), np.log(rho))
    )
    density = DiagonalGaussian(mean=mean.flatten(0, 1), variance=variance.flatten(0, 1), floor=1e-9)
    mixture = Mixture(density, log_alpha.flatten(), Layout([M] * C), log_rho)
    scaling = Scaling.identity(D)
    engine = Engine(X, y, weight, scaling=scaling, device=torch.device("cpu"))
    ebw = EBW(factor=4.0, per_component=False)
    found = ebw.update(mixture, summed(ebw, mixture, objective, engine))
    margin = getattr(objective, "margin", None)
    expected = published_step(X, y, weight, mu, var, alpha, rho, 4.0, margin)
    for ours, theirs in zip(
        (found.density.mean, found.density.variance, found.log_weight.exp()),
        expected[:3],
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs.reshape(ours.shape), 1e-9)
    np.testing.assert_allclose(found.log_prior.exp(), expected[3], 1e-9)


def test_strong_damping_does_not_move(generator):
    """The model's own statistics outweigh the data."""
    start, engine = problem(("full", "covariance"), generator)
    sums = summed(EBW(), start, Conditional(), engine)
    stepped = EBW(damping=1e12).update(start, sums)
    np.testing.assert_allclose(stepped.density.mean, start.density.mean, 1e-6, 1e-6)
    np.testing.assert_allclose(
        stepped.density.covariances(), start.density.covariances(), 1e-6, 1e-6
    )


def test_refuses_a_density_without_closed_form(generator):
    """A low-rank precision is refused before any work."""
    start, engine = problem(("low_rank", "precision"), generator)
    with pytest.raises(UnsupportedError, match="adam"):
        EBW().run(start, Conditional(), engine, Progress())


def test_stops_when_nothing_is_gained(generator):
    """A solved problem ends after the patience, and says that it converged."""
    start, engine = problem(("diag", "covariance"), generator)
    engine = engine.with_answers(weight=torch.full_like(engine.weight, 1e-3))
    result = EBW(200, patience=3, damping=1e15).run(start, Conditional(), engine, Progress())
    assert result.converged
    assert result.n_iter < 200


@pytest.mark.parametrize("objective", ["conditional", "smooth_margin"])
def test_settles_where_gradients_vanish(objective, iris):
    """The optimum that L-BFGS finds for a hybrid is a fixed point: EBW finds it and stays."""
    reached = []
    for solver in ("ebw", "lbfgs"):
        model = MixtureClassifier(
            1,
            density="diag",
            objective=objective,
            tradeoff=0.5,
            solver=SOLVERS[solver](25),
            prior_rows=0,
            calibrate=False,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(*iris)
        reached.append(model.history_[-1]["objective"])
    assert reached[0] == pytest.approx(reached[1], abs=1e-3)


@pytest.mark.parametrize("bad", [1.5, float("nan")])
def test_a_worse_step_is_taken_back(bad, generator):
    """The next step leaves from the last good place, with twice the damping and no momentum."""
    start, engine = problem(("full", "covariance"), generator)
    sums = summed(EBW(), start, Conditional(), engine)
    ebw, factor = EBW(), torch.full_like(start.log_weight, 4.0)
    walk = _Walk(ebw, None, factor)
    worse = walk.on(_Place(start, sums, 1.0))
    again = walk.on(_Place(worse, sums, bad))
    expected = ebw.update(start, sums, factor=2.0 * factor)
    assert not torch.equal(again.density.mean, worse.density.mean)
    np.testing.assert_array_equal(again.density.mean, expected.density.mean)
    np.testing.assert_array_equal(again.log_weight, expected.log_weight)


@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_the_best_iterate_is_kept(structure, generator):
    """Also when the last ones were worse, whose objectives the history has all the same."""
    start, engine = problem(structure, generator)
    progress = Progress()
    result = EBW(40, factor=1.0).run(start, Conditional(), engine, progress)
    seen = [record["objective"] for record in progress.history]
    assert max(np.diff(seen)) > 0.0
    assert result.objective == min(seen) < seen[0]
    reached = penalized_loss(result.model, Conditional(), engine)
    assert reached == pytest.approx(result.objective, rel=1e-9)


def test_momentum_respects_the_floor(generator):
    """The smallest variance in any direction, though free parameters allow smaller ones."""
    start, engine = problem(("full", "covariance"), generator)
    floor = 0.5 * float(torch.linalg.eigvalsh(start.density.covariances()).max())
    start = replace(start, density=replace(start.density, floor=floor))
    mixture = EBW(15).run(start, Conditional(), engine, Progress()).model
    assert mixture is not start
    smallest = torch.linalg.eigvalsh(mixture.density.covariances()).min()
    assert smallest > (1.0 - 1e-6) * floor


def test_a_vanishing_weight_does_not_leap():
    """Its derivative is huge, its mass is not."""
    log_share = torch.tensor([1.0 - 1e-9, 1e-9, 0.0]).double().log().clamp_min(-300.0)
    positive, negative = torch.tensor([40.0, 5.0, 5.0]).double(), torch.full((3,), 4.0).double()
    grown = _grow(log_share, positive, negative, factor=1.0, damping=None)
    assert (grown - log_share).abs().max() <= np.log(2.0) + 1e-12
    assert (grown > log_share)[1:].all()


@pytest.mark.parametrize("objective", [Conditional(), SmoothMargin(1.0)], ids=repr)
def test_keeps_up_with_lbfgs_on_the_spirals(objective, spirals_start):
    """In as many passes over the rows, of which it needs one an iteration."""
    start, engine = spirals_start
    first = penalized_loss(start, objective, engine)
    lbfgs = LBFGS(100, tol=0.0).run(start, objective, engine, Progress()).objective
    ours, published = (
        EBW(100, per_component=adaptive).run(start, objective, engine, Progress()).objective
        for adaptive in (True, False)
    )
    assert first - ours > 0.9 * (first - lbfgs)
    assert first - ours > 1.05 * (first - published)


def test_another_solver_may_finish(spirals_start):
    """It goes on from the best iterate, and ends lower."""
    start, engine = spirals_start
    solvers = EBW(20), EBW(20, tol=0.02, patience=2, finish=LBFGS(80, tol=0.0))
    alone, both = (each.run(start, Conditional(), engine, Progress()) for each in solvers)
    assert both.objective < alone.objective
    assert both.objective == pytest.approx(penalized_loss(both.model, Conditional(), engine))
    assert both.n_iter > 80


@pytest.fixture(scope="module")
def spirals_start():
    """EM on few rows of the spirals, with too few components: one start of many.

    Over eight of them EBW gains 0.78 to 1.13 of what L-BFGS does, 0.93 (conditional) and 0.98
    (smooth margin) in the mean.
    """
    spirals = make_spirals(500, radius=13.0, random_state=1)
    model = MixtureClassifier(
        6, density="diag", objective="likelihood", prior_rows=0, random_state=1
    ).fit(spirals.data, spirals.target)
    rows = spirals.data, spirals.target, np.ones(1000)
    engine = Engine(*rows, scaling=model.scaling_, device=torch.device("cpu"))
    return model.mixture_, engine


@pytest.fixture(scope="module")
def score_on_spirals():
    """Trains a classifier with the given settings; its accuracy on other rows."""
    train, test = (make_spirals(1500, radius=13.0, random_state=seed) for seed in (2, 3))

    def score(**settings):
        # Calibration leaves decisions alone.
        model = MixtureClassifier(6, density="diag", random_state=2, calibrate=False, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(train.data, train.target)
        return model.score(test.data, test.target)

    return score


@pytest.fixture(scope="module")
def score_of_em(score_on_spirals):
    """What EM reaches."""
    return score_on_spirals(objective="likelihood")


@pytest.mark.parametrize("objective", ["conditional", "smooth_margin"])
def test_the_classifier_gains_on_the_spirals(objective, score_on_spirals, score_of_em):
    """More than three points over EM, with solver and margin as they come."""
    assert score_on_spirals(solver="ebw", tradeoff=0.0, objective=objective) > score_of_em + 0.03
