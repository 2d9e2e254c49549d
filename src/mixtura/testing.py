"""Property checks for every density, objective and trainer, also for those yet to be written.

Each check compares with something computed another way: dense matrices, scipy's normal
distribution, finite differences, or the moments of many draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from mixtura.data import Batch, Scaling, Table
from mixtura.densities import STRUCTURES, Density
from mixtura.engines import LocalEngine
from mixtura.mixture import Layout, Mixture
from mixtura.objectives import Objective
from mixtura.progress import Progress
from mixtura.trainers.base import FitResult, SpreadPrior, Trainer, penalty

_EXACT = 1e-9
_DRAWS = 20_000
_SIGMAS = 5.0


# -- things to check on ------------------------------------------------------------------------


def make_density(
    covariance: str,
    parameterization: str,
    generator: torch.Generator,
    *,
    n_components: int = 3,
    n_features: int = 5,
    rank: int = 2,
    floor: float = 1e-3,
) -> Density:
    """Components of a known structure, fitted to overlapping clouds of correlated rows."""
    n = 40 * n_components
    mixing = _randn(generator, n_features, n_features)
    centres = _randn(generator, n_components, n_features)
    labels = torch.arange(n) % n_components
    x = centres[labels] + _randn(generator, n, n_features) @ mixing
    membership = torch.nn.functional.one_hot(labels, n_components) + 0.1 * _rand(
        generator, n, n_components
    )
    kind, options = STRUCTURES[covariance, parameterization]
    if covariance == "low_rank":
        options = {**options, "rank": rank}
    return kind.from_clusters(x, membership, floor, generator, **options)


def make_mixture(density: Density, counts: list[int], generator: torch.Generator) -> Mixture:
    """The density's components shared out among classes, with random weights and prior."""
    layout = Layout(counts)
    prior = _randn(generator, len(counts)).log_softmax(0)
    blank = Mixture(density, torch.zeros(layout.n_components).double(), layout, prior)
    weight = blank.normalise_weight(_randn(generator, layout.n_components))
    return replace(blank, log_weight=weight)


def make_batch(
    density: Density, n: int, generator: torch.Generator, *, holes: bool = False
) -> Batch:
    """Rows drawn from all components; with holes, also rows that are complete or wholly missing."""
    component = torch.arange(n) % density.n_components
    x = density.sample(component, generator)
    y, weight = torch.full((n,), -1), torch.ones(n, dtype=x.dtype)
    if not holes:
        return Batch(x, None, y, weight)
    observed = _rand(generator, *x.shape) < 0.6
    observed[0], observed[-1] = True, False
    return Batch(torch.where(observed, x, 0.0), observed, y, weight)


def make_engine(
    mixture: Mixture, n: int, generator: torch.Generator, *, holes: bool = False
) -> LocalEngine:
    """Labelled, weighted rows drawn from a mixture."""
    prior = mixture.log_prior.exp()
    labels = torch.multinomial(prior, n, replacement=True, generator=generator)
    X = mixture.sample(labels, generator).numpy()
    if holes:
        X[_rand(generator, *X.shape).numpy() < 0.2] = np.nan
    weight = 0.5 + _rand(generator, n).numpy()
    scaling = Scaling.identity(X.shape[1])
    return LocalEngine(Table(X, labels.numpy(), weight, scaling=scaling, device=_CPU))


_CPU = torch.device("cpu")


def _randn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _rand(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


# -- densities ---------------------------------------------------------------------------------


def check_density(density: Density, generator: torch.Generator) -> None:
    """Everything a density promises; `DENSITY_CHECKS` has the checks one by one."""
    for check in DENSITY_CHECKS:
        check(density, generator)


def check_log_prob(density: Density, generator: torch.Generator) -> None:
    """Log densities are those of scipy with the dense covariances."""
    batch = make_batch(density, 12, generator)
    np.testing.assert_allclose(density.log_prob(batch), _dense_log_prob(density, batch), _EXACT)


def check_marginals(density: Density, generator: torch.Generator) -> None:
    """Missing features are integrated out: what remains are the dense sub-matrices."""
    batch = make_batch(density, 30, generator, holes=True)
    expected = _dense_log_prob(density, batch)
    np.testing.assert_allclose(density.log_prob(batch), expected, _EXACT, _EXACT)
    assert batch.observed is not None
    holes = ~batch.observed.all(1)
    np.testing.assert_allclose(
        density.log_prob(batch.take(holes)), expected[holes.numpy()], _EXACT, _EXACT
    )


def check_single_precision(density: Density, generator: torch.Generator) -> None:
    """Rows in float32 give the densities of float64 to single precision."""
    for holes in (False, True):
        batch = make_batch(density, 30, generator, holes=holes)
        single = density.log_prob(batch.to(torch.float32))
        assert single.dtype == torch.float32
        np.testing.assert_allclose(single, density.log_prob(batch), 1e-3, 1e-3)


def check_free(density: Density, generator: torch.Generator) -> None:
    """Free parameters describe the density, and any values of them a valid one."""
    free = density.free()
    again = density.from_free(free)
    for name, value in density.tensors().items():
        np.testing.assert_allclose(again.tensors()[name], value, _EXACT, _EXACT)
    wild = {k: v + 10.0 * _randn(generator, *v.shape) for k, v in free.items()}
    other = density.from_free(wild)
    eigenvalues = torch.linalg.eigvalsh(other.covariances())
    rounding = 1e-12 * eigenvalues.amax(1)
    assert (eigenvalues.amin(1) > -rounding).all(), "free parameters gave an indefinite covariance"
    assert other.log_prob(make_batch(density, 3, generator)).isfinite().all()


def check_gradient(density: Density, generator: torch.Generator) -> None:
    """Gradients by the free parameters are those of finite differences, with and without holes."""
    free = {k: v.detach().clone().requires_grad_() for k, v in density.free().items()}
    for holes in (False, True):
        batch = make_batch(density, 4, generator, holes=holes)

        def log_prob(*values: Tensor, batch: Batch = batch) -> Tensor:
            return density.from_free(dict(zip(free, values, strict=True))).log_prob(batch)

        assert torch.autograd.gradcheck(log_prob, tuple(free.values()))


def check_own_statistics(density: Density, generator: torch.Generator) -> None:
    """The likeliest density for a model's own statistics is the model."""
    if not density.closed_form:
        return
    again, valid = density.maximise(density.own_statistics())
    assert valid.all()
    np.testing.assert_allclose(again.mean, density.mean, _EXACT, _EXACT)
    np.testing.assert_allclose(again.covariances(), density.covariances(), _EXACT, _EXACT)


def check_statistics(density: Density, generator: torch.Generator) -> None:
    """First and second moments of rows with holes are the dense conditional expectations."""
    if not density.closed_form:
        return
    batch = make_batch(density, 12, generator, holes=True)
    occupancy = _randn(generator, 12, density.n_components)
    statistics = density.statistics(batch, occupancy)
    mean, covariance = _dense_conditional(density, batch)
    outer = mean[..., :, None] * mean[..., None, :] + covariance
    if statistics["second"].ndim == 2:
        outer = np.diagonal(outer, axis1=2, axis2=3)
    share = occupancy.numpy()
    expected = {
        "mass": share.sum(0),
        "first": np.einsum("nk,nkd->kd", share, mean),
        "second": np.einsum("nk,nk...->k...", share, outer),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(statistics[name], value, _EXACT, _EXACT)


def check_expected(density: Density, generator: torch.Generator) -> None:
    """Imputed values are the dense conditional means; observed values stay to the bit."""
    batch = make_batch(density, 30, generator, holes=True)
    filled = density.expected(batch)
    np.testing.assert_allclose(filled, _dense_conditional(density, batch)[0], _EXACT, _EXACT)
    for component in range(density.n_components):
        _same_where_observed(filled[:, component], batch)


def check_sample(density: Density, generator: torch.Generator) -> None:
    """Draws have the mean and the covariance of their component."""
    covariances = density.covariances().numpy()
    for component in range(density.n_components):
        rows = density.sample(torch.full((_DRAWS,), component), generator).numpy()
        _check_moments(rows, density.mean[component].numpy(), covariances[component])


def check_complete(density: Density, generator: torch.Generator) -> None:
    """Completions keep what was observed, and follow the conditional distribution of the rest."""
    row = make_batch(density, 3, generator, holes=True).take(slice(1, 2))
    assert row.observed is not None
    row.observed[0, 0], row.observed[0, -1] = True, False
    many = row.take(torch.zeros(_DRAWS, dtype=torch.long))
    component = torch.full((_DRAWS,), density.n_components - 1)
    rows = density.complete(many, component, generator)
    _same_where_observed(rows, many)
    mean, covariance = (moment[0, -1] for moment in _dense_conditional(density, row))
    hidden = ~row.observed[0].numpy()
    _check_moments(rows.numpy()[:, hidden], mean[hidden], covariance[np.ix_(hidden, hidden)])


def check_stacking(density: Density, generator: torch.Generator) -> None:
    """Components taken apart and put together again are the same."""
    parts = [density.select(torch.tensor([k])) for k in range(density.n_components)]
    batch = make_batch(density, 6, generator, holes=True)
    together = Density.stack(list(parts)).log_prob(batch)
    np.testing.assert_allclose(together, density.log_prob(batch), _EXACT, _EXACT)


DENSITY_CHECKS: tuple[Callable[[Density, torch.Generator], None], ...] = (
    check_log_prob,
    check_marginals,
    check_single_precision,
    check_free,
    check_gradient,
    check_own_statistics,
    check_statistics,
    check_expected,
    check_sample,
    check_complete,
    check_stacking,
)


def _patterns(density: Density, batch: Batch) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """(row, component, its observed features, the row) for every row and component."""
    seen = torch.ones_like(batch.x, dtype=torch.bool) if batch.observed is None else batch.observed
    for row in range(len(batch)):
        for component in range(density.n_components):
            yield row, component, seen[row].numpy(), batch.x[row].numpy()


def _dense_log_prob(density: Density, batch: Batch) -> np.ndarray:
    means, covariances = density.mean.numpy(), density.covariances().numpy()
    result = np.zeros((len(batch), density.n_components))
    for row, k, seen, x in _patterns(density, batch):
        if seen.any():
            normal = multivariate_normal(means[k][seen], covariances[k][np.ix_(seen, seen)])
            result[row, k] = normal.logpdf(x[seen])
    return result


def _dense_conditional(density: Density, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Conditional means (n, K, D) and covariances (n, K, D, D) by dense linear algebra."""
    means, covariances = density.mean.numpy(), density.covariances().numpy()
    shape = len(batch), density.n_components, density.n_features
    mean, covariance = np.zeros(shape), np.zeros((*shape, shape[2]))
    for row, k, seen, x in _patterns(density, batch):
        hidden, whole = ~seen, covariances[k]
        gain = np.linalg.solve(whole[np.ix_(seen, seen)], whole[np.ix_(seen, hidden)]).T
        mean[row, k, seen] = x[seen]
        mean[row, k, hidden] = means[k][hidden] + gain @ (x[seen] - means[k][seen])
        rest = whole[np.ix_(hidden, hidden)] - gain @ whole[np.ix_(seen, hidden)]
        covariance[row, k][np.ix_(hidden, hidden)] = rest
    return mean, covariance


def _check_moments(rows: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Sample moments within five of their own standard deviations."""
    variance = np.diag(covariance)
    slack = _SIGMAS * np.sqrt(variance / len(rows))
    assert (np.abs(rows.mean(0) - mean) < slack).all(), "the mean of the draws is off"
    centred = rows - mean
    slack = _SIGMAS * np.sqrt((np.outer(variance, variance) + covariance**2) / len(rows))
    error = np.abs(centred.T @ centred / len(rows) - covariance)
    assert (error < slack).all(), "the covariance of the draws is off"


def _same_where_observed(rows: Tensor, batch: Batch) -> None:
    assert torch.equal(rows[batch.observed], batch.x[batch.observed])


# -- objectives --------------------------------------------------------------------------------


def check_objective(
    objective: Objective, generator: torch.Generator, *, unlabelled: bool = False
) -> None:
    """Slopes, totals and occupancies are the derivatives of the loss.

    `unlabelled` includes rows without a label.
    """
    counts = [2, 1, 3]
    n, n_classes = 15, len(counts)
    y = torch.arange(n) % n_classes
    if unlabelled:
        y[::4] = -1
    weight = 0.5 + _rand(generator, n)
    class_log_joint = 3.0 * _randn(generator, n, n_classes)
    _check_slopes(objective, class_log_joint, y, weight)
    mixture = make_mixture(
        make_density("diag", "covariance", generator, n_components=sum(counts)), counts, generator
    )
    _check_occupancy(objective, mixture, 3.0 * _randn(generator, n, sum(counts)), y, weight)


def _check_slopes(objective: Objective, joint: Tensor, y: Tensor, weight: Tensor) -> None:
    leaf = joint.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda j: objective.loss(j, y), (leaf,))
    assert torch.autograd.gradcheck(lambda j: objective.total(j, y, weight), (leaf,))
    losses = objective.loss(leaf, y)
    (slope,) = torch.autograd.grad(losses.sum(), leaf)
    given, given_slope = objective.loss_and_slope(joint, y)
    np.testing.assert_allclose(given, losses.detach(), _EXACT, _EXACT)
    np.testing.assert_allclose(given_slope, slope, _EXACT, _EXACT)
    total = float(objective.total(joint, y, weight))
    np.testing.assert_allclose(total, float((losses.detach() * weight).sum()), _EXACT)


def _check_occupancy(
    objective: Objective, mixture: Mixture, log_joint: Tensor, y: Tensor, weight: Tensor
) -> None:
    def total(values: Tensor) -> float:
        return float((objective.loss(mixture.by_class(values), y) * weight).sum())

    loss, occupancy = objective.occupancy(mixture, log_joint, y, weight)
    np.testing.assert_allclose(float(loss), total(log_joint), _EXACT)
    step = 1e-6
    for row, component in np.ndindex(*log_joint.shape):
        nudge = torch.zeros_like(log_joint)
        nudge[row, component] = step
        slope = (total(log_joint + nudge) - total(log_joint - nudge)) / (2.0 * step)
        np.testing.assert_allclose(float(occupancy[row, component]), -slope, 1e-5, 1e-7)


# -- trainers ----------------------------------------------------------------------------------


def check_trainer(
    trainer_factory: Callable[[torch.Generator], Trainer],
    objective: Objective,
    mixture: Mixture,
    engine: LocalEngine,
    *,
    prior: SpreadPrior | None = None,
) -> FitResult:
    """A trainer ends with a valid model no worse than it began with, and repeats itself.

    `prior` is the one the trainer was made with: it counts in the objective.
    """
    first, second = (
        trainer_factory(torch.Generator().manual_seed(0)).run(
            mixture, objective, engine, Progress()
        )
        for _ in range(2)
    )
    check_valid(first.mixture)
    before, after = (penalised_loss(m, objective, engine, prior) for m in (mixture, first.mixture))
    assert after <= before + _EXACT * abs(before), f"objective rose from {before} to {after}"
    for name, value in first.mixture.free().items():
        assert torch.equal(value, second.mixture.free()[name]), f"{name} differs between two runs"
    return first


def check_valid(mixture: Mixture) -> None:
    """Finite parameters, positive definite covariances, weights and prior that sum to one."""
    for name, value in mixture.free().items():
        assert value.isfinite().all(), f"{name} is not finite"
    assert (torch.linalg.eigvalsh(mixture.density.covariances()) > 0).all()
    sums = mixture.layout.sum(mixture.log_weight.exp())
    np.testing.assert_allclose(sums, 1.0, _EXACT)
    np.testing.assert_allclose(float(mixture.log_prior.exp().sum()), 1.0, _EXACT)


def penalised_loss(
    mixture: Mixture, objective: Objective, engine: LocalEngine, prior: SpreadPrior | None = None
) -> float:
    """The mean loss of all rows plus the prior's share, straight from the definitions."""
    batch = engine.table.batch(slice(None))
    with torch.no_grad():
        losses = objective.loss(mixture.class_log_joint(batch), batch.y)
    total = float((losses * batch.weight).sum()) + penalty(mixture, prior)
    return total / float(batch.weight.sum())
