"""Checks of densities over vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from mixtura.data import Batch
from mixtura.densities import Density, VectorDensity
from mixtura.testing.parts import (
    DRAWS,
    EXACT,
    SIGMAS,
    make_batch,
    randn,
)


def check_density(density: VectorDensity, generator: torch.Generator) -> None:
    """Everything a density promises; `DENSITY_CHECKS` has the checks one by one."""
    for check in DENSITY_CHECKS:
        check(density, generator)


def check_log_prob(density: VectorDensity, generator: torch.Generator) -> None:
    """Log densities are those of scipy with the dense covariances."""
    batch = make_batch(density, 12, generator)
    np.testing.assert_allclose(density.log_prob(batch), dense_log_prob(density, batch), EXACT)


def check_marginals(density: VectorDensity, generator: torch.Generator) -> None:
    """Missing features are integrated out: what remains are the dense sub-matrices."""
    batch = make_batch(density, 30, generator, holes=True)
    expected = dense_log_prob(density, batch)
    np.testing.assert_allclose(density.log_prob(batch), expected, EXACT, EXACT)
    assert batch.observed is not None
    holes = ~batch.observed.all(1)
    np.testing.assert_allclose(
        density.log_prob(batch.take(holes)), expected[holes.numpy()], EXACT, EXACT
    )


def check_single_precision(density: VectorDensity, generator: torch.Generator) -> None:
    """Rows in float32 give the densities of float64 to single precision."""
    for holes in (False, True):
        batch = make_batch(density, 30, generator, holes=holes)
        single = density.log_prob(batch.to(torch.float32))
        assert single.dtype == torch.float32
        np.testing.assert_allclose(single, density.log_prob(batch), 1e-3, 1e-3)


def check_free(density: VectorDensity, generator: torch.Generator) -> None:
    """Free parameters describe the density, and any values of them a valid one."""
    free = density.free()
    again = density.from_free(free)
    for name, value in density.tensors().items():
        np.testing.assert_allclose(again.tensors()[name], value, EXACT, EXACT)
    wild = {k: v + 10.0 * randn(generator, *v.shape) for k, v in free.items()}
    other = density.from_free(wild)
    eigenvalues = torch.linalg.eigvalsh(other.covariances())
    rounding = 1e-12 * eigenvalues.amax(1)
    assert (eigenvalues.amin(1) > -rounding).all(), "free parameters gave an indefinite covariance"
    assert other.log_prob(make_batch(density, 3, generator)).isfinite().all()


def check_gradient(density: VectorDensity, generator: torch.Generator) -> None:
    """Gradients by the free parameters are those of finite differences, with and without holes."""
    free = {k: v.detach().clone().requires_grad_() for k, v in density.free().items()}
    for holes in (False, True):
        batch = make_batch(density, 4, generator, holes=holes)

        def log_prob(*values: Tensor, batch: Batch = batch) -> Tensor:
            return density.from_free(dict(zip(free, values, strict=True))).log_prob(batch)

        assert torch.autograd.gradcheck(log_prob, tuple(free.values()))


def check_own_statistics(density: VectorDensity, generator: torch.Generator) -> None:
    """The likeliest density for a model's own statistics is the model."""
    if not density.closed_form:
        return
    again, valid = density.maximise(density.own_statistics())
    assert valid.all()
    np.testing.assert_allclose(again.location, density.location, EXACT, EXACT)
    np.testing.assert_allclose(again.covariances(), density.covariances(), EXACT, EXACT)


def check_statistics(density: VectorDensity, generator: torch.Generator) -> None:
    """First and second moments of rows with holes are the dense conditional expectations."""
    if not density.closed_form:
        return
    batch = make_batch(density, 12, generator, holes=True)
    occupancy = randn(generator, 12, density.n_components)
    statistics = density.statistics(batch, occupancy)
    mean, covariance = dense_conditional(density, batch)
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
        np.testing.assert_allclose(statistics[name], value, EXACT, EXACT)


def check_expected(density: VectorDensity, generator: torch.Generator) -> None:
    """Imputed values are the dense conditional means; observed values stay to the bit."""
    batch = make_batch(density, 30, generator, holes=True)
    filled = density.expected(batch)
    np.testing.assert_allclose(filled, dense_conditional(density, batch)[0], EXACT, EXACT)
    for component in range(density.n_components):
        same_where_observed(filled[:, component], batch)


def check_sample(density: VectorDensity, generator: torch.Generator) -> None:
    """Draws have the mean and the covariance of their component."""
    covariances = density.covariances().numpy()
    for component in range(density.n_components):
        rows = density.sample(torch.full((DRAWS,), component), generator).numpy()
        check_moments(rows, density.location[component].numpy(), covariances[component])


def check_complete(density: VectorDensity, generator: torch.Generator) -> None:
    """Completions keep what was observed, and follow the conditional distribution of the rest."""
    row = make_batch(density, 3, generator, holes=True).take(slice(1, 2))
    assert row.observed is not None
    row.observed[0, 0], row.observed[0, -1] = True, False
    many = row.take(torch.zeros(DRAWS, dtype=torch.long))
    component = torch.full((DRAWS,), density.n_components - 1)
    rows = density.complete(many, component, generator)
    same_where_observed(rows, many)
    mean, covariance = (moment[0, -1] for moment in dense_conditional(density, row))
    hidden = ~row.observed[0].numpy()
    check_moments(rows.numpy()[:, hidden], mean[hidden], covariance[np.ix_(hidden, hidden)])


def check_stacking(density: VectorDensity, generator: torch.Generator) -> None:
    """Components taken apart and put together again are the same."""
    parts = [density.select(torch.tensor([k])) for k in range(density.n_components)]
    batch = make_batch(density, 6, generator, holes=True)
    together = Density.stack(list(parts)).log_prob(batch)
    np.testing.assert_allclose(together, density.log_prob(batch), EXACT, EXACT)


DENSITY_CHECKS: tuple[Callable[[VectorDensity, torch.Generator], None], ...] = (
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


def _patterns(
    density: VectorDensity, batch: Batch
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """(row, component, its observed features, the row) for every row and component."""
    seen = torch.ones_like(batch.x, dtype=torch.bool) if batch.observed is None else batch.observed
    for row in range(len(batch)):
        for component in range(density.n_components):
            yield row, component, seen[row].numpy(), batch.x[row].numpy()


def dense_log_prob(density: VectorDensity, batch: Batch) -> np.ndarray:
    means, covariances = density.location.numpy(), density.covariances().numpy()
    result = np.zeros((len(batch), density.n_components))
    for row, k, seen, x in _patterns(density, batch):
        if seen.any():
            normal = multivariate_normal(means[k][seen], covariances[k][np.ix_(seen, seen)])
            result[row, k] = normal.logpdf(x[seen])
    return result


def dense_conditional(density: VectorDensity, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Conditional means (n, K, D) and covariances (n, K, D, D) by dense linear algebra."""
    means, covariances = density.location.numpy(), density.covariances().numpy()
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


def check_moments(rows: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Sample moments within five of their own standard deviations."""
    slack = SIGMAS * np.sqrt(np.diag(covariance) / len(rows))
    assert (np.abs(rows.mean(0) - mean) < slack).all(), "the mean of the draws is off"
    centred = rows - mean
    found = centred.T @ centred / len(rows)
    slack = SIGMAS * np.sqrt(((centred**2).T @ centred**2 / len(rows) - found**2) / len(rows))
    assert (np.abs(found - covariance) < slack).all(), "the covariance of the draws is off"


def same_where_observed(rows: Tensor, batch: Batch) -> None:
    assert torch.equal(rows[batch.observed], batch.x[batch.observed])
