"""Checks of densities over vectors.

Those of `DENSITY_CHECKS` compare the members of a density with each other, those of
`REFERENCE_CHECKS` with a log density (and conditional draws) that was written another way, and
those of `GAUSSIAN_CHECKS` with dense linear algebra.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities import Density, Gaussian, VectorDensity
from mixtura.densities.base import add_statistics, scale_statistics
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.testing.parts import DRAWS, EXACT, SIGMAS, make_batch, rand, randn
from mixtura.testing.references import ConditionalSampler, Logpdf, Reference, dense_conditional

#: Chance that a right sampler is called wrong by one comparison of distributions.
_CHANCE = 1e-6
#: Patterns of missing entries that draws are completed under; quantiles between which frequencies
#: of draws are compared; and parts of the draws by which an error is told.
_PATTERNS, _LEVELS, _PARTS = 4, np.linspace(0.05, 0.95, 19), 100
#: How much a model's own statistics outweigh those of the rows where an update is to be small.
_DAMPING = 1e5


def check_density(
    density: VectorDensity,
    generator: torch.Generator,
    *,
    reference_logpdf: Logpdf | None = None,
    conditional_sampler: ConditionalSampler | None = None,
) -> None:
    """Everything a density promises.

    Parameters
    ----------
    reference_logpdf : log densities written another way, `(component, x, observed) -> (n,)`, where
        `x` (n, d) holds the d features that `observed` (D,) names. None: those of scipy's normal
        distribution, if the density is a Gaussian.
    conditional_sampler : draws of the other features given those of a row,
        `(component, x, observed, n, rng) -> (n, D - d)`.
    """
    gaussian = isinstance(density, Gaussian)
    if reference_logpdf is not None:
        reference = Reference(reference_logpdf, conditional_sampler)
    elif gaussian:
        reference = Reference.normal(density)
    else:
        raise InvalidInputError(
            f"{type(density).__name__} is no Gaussian: pass reference_logpdf, the log density that "
            "it should have."
        )
    for check in DENSITY_CHECKS + (GAUSSIAN_CHECKS if gaussian else ()):
        check(density, generator)
    for against in REFERENCE_CHECKS:
        against(density, generator, reference)


# -- against a reference -----------------------------------------------------------------------


def check_log_prob(
    density: VectorDensity, generator: torch.Generator, reference: Reference
) -> None:
    """Log densities of complete rows are those of the reference."""
    batch = make_batch(density, 12, generator)
    np.testing.assert_allclose(density.log_prob(batch), reference.log_prob(density, batch), EXACT)


def check_marginals(
    density: VectorDensity, generator: torch.Generator, reference: Reference
) -> None:
    """Missing features are integrated out, whatever other rows are in the batch."""
    batch = make_batch(density, 30, generator, holes=True)
    expected = reference.log_prob(density, batch)
    np.testing.assert_allclose(density.log_prob(batch), expected, EXACT, EXACT)
    assert batch.observed is not None
    holes = ~batch.observed.all(1)
    np.testing.assert_allclose(
        density.log_prob(batch.take(holes)), expected[holes.numpy()], EXACT, EXACT
    )


def check_frequencies_of_draws(
    density: VectorDensity, generator: torch.Generator, reference: Reference
) -> None:
    """Between two quantiles of the draws lies what the reference's density has there."""
    for component in range(density.n_components):
        rows = density.sample(torch.full((DRAWS,), component), generator).numpy()
        for feature, values in enumerate(rows.T):
            alone = np.arange(rows.shape[1]) == feature
            points, weights = _quadrature(np.quantile(values, _LEVELS))
            found = np.exp(reference.logpdf(component, points.reshape(-1, 1), alone))
            found = (found.reshape(points.shape) * weights).sum(1)
            share = np.diff(_LEVELS)
            slack = SIGMAS * np.sqrt(share * (1.0 - share) / DRAWS)
            assert (np.abs(found - share) < slack).all(), "the draws have another distribution"


def _quadrature(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights (intervals, 20) that integrate between neighboring edges."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    middle, half = (edges[1:] + edges[:-1]) / 2.0, np.diff(edges) / 2.0
    return middle[:, None] + half[:, None] * nodes, half[:, None] * weights


def check_conditional_draws(
    density: VectorDensity, generator: torch.Generator, reference: Reference
) -> None:
    """Completions of one row, far from typical, are distributed as the reference's."""
    if reference.conditional_sampler is None:
        return
    row = _far_row(density, generator)
    assert row.observed is not None
    seen, component = row.observed[0].numpy(), density.n_components - 1
    many = row.take(torch.zeros(DRAWS, dtype=torch.long))
    rows = density.complete(many, torch.full((DRAWS,), component), generator)
    rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
    given = row.x[0].numpy()[seen]
    expected = reference.conditional_sampler(component, given, seen, DRAWS, rng)
    same_distribution(rows.numpy()[:, ~seen], expected)


def _far_row(density: VectorDensity, generator: torch.Generator) -> Batch:
    """One row, three times as far from its component as it was drawn; some entries are missing."""
    center = density.location[-1:]
    drawn = density.sample(torch.tensor([density.n_components - 1]), generator)
    x = center + 3.0 * (drawn - center)
    observed = _pattern(density, generator)[None]
    return Batch(torch.where(observed, x, 0.0), observed, torch.tensor([-1]), torch.ones(1))


def _pattern(density: VectorDensity, generator: torch.Generator) -> Tensor:
    """Which features (D,) are observed: the first, not the last, and some of the others."""
    observed = rand(generator, density.n_features) < 0.5
    observed[0], observed[-1] = True, False
    return observed


def same_distribution(found: np.ndarray, expected: np.ndarray) -> None:
    """Two samples (n, D) have the same distribution in every column and along some directions."""
    directions = np.random.default_rng(0).normal(size=(found.shape[1], 3))
    for one, other in ((found, expected), (found @ directions, expected @ directions)):
        for mine, theirs in zip(one.T, other.T, strict=True):
            assert ks_2samp(mine, theirs).pvalue > _CHANCE, "the draws have another distribution"


REFERENCE_CHECKS: tuple[Callable[[VectorDensity, torch.Generator, Reference], None], ...] = (
    check_log_prob,
    check_marginals,
    check_frequencies_of_draws,
    check_conditional_draws,
)


# -- the members of a density against each other -----------------------------------------------


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
    assert other.log_prob(make_batch(density, 3, generator)).isfinite().all()
    with suppress(UnsupportedError):
        eigenvalues = torch.linalg.eigvalsh(other.covariances())
        rounding = 1e-12 * eigenvalues.amax(1)
        assert (eigenvalues.amin(1) > -rounding).all(), "an indefinite covariance"


def check_gradient(density: VectorDensity, generator: torch.Generator) -> None:
    """Gradients by the free parameters are those of finite differences, with and without holes."""
    free = {k: v.detach().clone().requires_grad_() for k, v in density.free().items()}
    for holes in (False, True):
        batch = make_batch(density, 4, generator, holes=holes)

        def log_prob(*values: Tensor, batch: Batch = batch) -> Tensor:
            return density.from_free(dict(zip(free, values, strict=True))).log_prob(batch)

        assert torch.autograd.gradcheck(log_prob, tuple(free.values()))


def check_slope(density: VectorDensity, generator: torch.Generator) -> None:
    """Derivatives by statistics are those of the log densities, and of the prior of the spread."""
    if not density.explicit:
        return
    free = {k: v.detach().clone().requires_grad_() for k, v in density.free().items()}
    for holes in (False, True):
        batch = make_batch(density, 12, generator, holes=holes)
        occupancy = randn(generator, 12, density.n_components)
        found = density.slope(density.statistics(batch, occupancy))
        same_slopes(found, (occupancy * density.from_free(free).log_prob(batch)).sum(), free)
    if density.spread.numel():
        imagined = density.spread_statistics(2.0 * density.typical_spread, density.location)
        wanted = density.from_free(free).spread_log_prob(2.0 * density.typical_spread).sum()
        same_slopes(density.slope(imagined), wanted, free)


def same_slopes(found: dict[str, Tensor], value: Tensor, free: dict[str, Tensor]) -> None:
    """These are the derivatives of a value by free parameters."""
    assert found.keys() == free.keys()
    wanted = torch.autograd.grad(value, list(free.values()), materialize_grads=True)
    slack = EXACT * max(float(slope.abs().max()) for slope in wanted if slope.numel())
    for name, slope in zip(free, wanted, strict=True):
        np.testing.assert_allclose(found[name], slope.detach(), EXACT, slack, err_msg=name)


def check_own_statistics(density: VectorDensity, generator: torch.Generator) -> None:
    """The likeliest density for a model's own statistics is the model."""
    if not density.closed_form:
        return
    again, valid = density.maximize(density.own_statistics())
    assert valid.all()
    for name, value in density.tensors().items():
        np.testing.assert_allclose(again.tensors()[name], value, EXACT, EXACT)


def check_additive(density: VectorDensity, generator: torch.Generator) -> None:
    """Statistics of two halves add up to those of the whole, which come with its log densities."""
    if not density.closed_form:
        return
    batch = make_batch(density, 20, generator, holes=True)
    share = randn(generator, 20, density.n_components)
    log_prob, whole = density.expectation(batch)
    np.testing.assert_allclose(log_prob, density.log_prob(batch), EXACT, EXACT)
    halves = [density.statistics(batch.take(p), share[p]) for p in (slice(7), slice(7, 20))]
    for name, value in whole(share).items():
        np.testing.assert_allclose(add_statistics(*halves)[name], value, EXACT, EXACT)


def check_updates(density: VectorDensity, generator: torch.Generator) -> None:
    """Statistics agree with gradients: rows that pull a density nowhere do not move it.

    Occupancies for which the gradient of the weighted log-likelihood is zero leave a density where
    it is, to first order; others of the same size do not. Rows have holes.
    """
    if not density.closed_form:
        return
    for component in range(density.n_components):
        one = density.select(torch.tensor([component]))
        size = sum(value.numel() for value in one.free().values())
        batch = make_batch(one, size + 10, generator, holes=True)
        pulls = torch.stack([_pull(one, batch.take(slice(n, n + 1))) for n in range(len(batch))])
        basis, sizes, _ = torch.linalg.svd(pulls, full_matrices=False)
        basis = basis[:, sizes > 1e-9 * sizes[0]]
        some = randn(generator, len(batch), 1)
        neutral = some - basis @ (basis.mT @ some)
        assert _move(one, batch, neutral) < 1e-3 * _move(one, batch, some), "statistics are off"


def _pull(density: VectorDensity, batch: Batch) -> Tensor:
    """The gradient (P,) of the rows' summed log densities by all free parameters."""
    free = {k: v.detach().clone().requires_grad_() for k, v in density.free().items()}
    total = density.from_free(free).log_prob(batch).sum()
    gradients = torch.autograd.grad(total, list(free.values()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def _move(density: VectorDensity, batch: Batch, occupancy: Tensor) -> float:
    """How far a strongly damped update moves the free parameters."""
    damping = torch.full((density.n_components,), _DAMPING * float(occupancy.abs().max()))
    own = scale_statistics(density.own_statistics(), damping)
    moved, valid = density.maximize(add_statistics(density.statistics(batch, occupancy), own))
    assert valid.all()
    pairs = zip(moved.free().values(), density.free().values(), strict=True)
    return max(float((after - before).abs().max()) for after, before in pairs)


def check_sample(density: VectorDensity, generator: torch.Generator) -> None:
    """Draws pull the parameters nowhere: the mean gradient of their log density is zero."""
    for component in range(density.n_components):
        one = density.select(torch.tensor([component]))
        rows = one.sample(torch.zeros(DRAWS, dtype=torch.long), generator)
        batch = Batch(rows, None, torch.full((DRAWS,), -1), torch.ones(DRAWS))
        parts = torch.arange(DRAWS).split(DRAWS // _PARTS)
        pulls = torch.stack([_pull(one, batch.take(part)) for part in parts])
        slack = SIGMAS * pulls.std(0) / len(parts) ** 0.5 + EXACT
        assert (pulls.mean(0).abs() < slack).all(), "the draws are of another density"


def check_expected(density: VectorDensity, generator: torch.Generator) -> None:
    """What imputed values miss of draws is nothing on average, whatever is observed."""
    for component in range(density.n_components):
        rows, batch = _hidden(density, component, generator)
        try:
            filled = density.expected(batch)[:, component]
        except UnsupportedError:
            return
        same_where_observed(filled, batch)
        missed = (rows - filled)[:, -1].numpy()
        seen = np.tanh(batch.x.numpy() / batch.x.std(0).numpy().clip(1e-9))
        products = missed[:, None] * np.column_stack([np.ones(len(missed)), seen])
        slack = SIGMAS * products.std(0) / len(missed) ** 0.5 + EXACT
        assert (np.abs(products.mean(0)) < slack).all(), "the imputed values are off"


def check_complete(density: VectorDensity, generator: torch.Generator) -> None:
    """Draws of which a part was hidden and drawn again are distributed as before."""
    for component in range(density.n_components):
        rows, batch = _hidden(density, component, generator)
        chosen = torch.full((DRAWS,), component)
        try:
            again = density.complete(batch, chosen, generator)
        except UnsupportedError:
            return
        same_where_observed(again, batch)
        fresh = density.sample(chosen, generator)
        found, expected = (
            np.column_stack([each, density.log_prob(replace(batch, x=each, observed=None))])
            for each in (again, fresh)
        )
        same_distribution(found, expected)
        assert not torch.equal(again, rows)


def _hidden(
    density: VectorDensity, component: int, generator: torch.Generator
) -> tuple[Tensor, Batch]:
    """Draws of a component (n, D), and the same with some of their entries hidden."""
    rows = density.sample(torch.full((DRAWS,), component), generator)
    patterns = torch.stack([_pattern(density, generator) for _ in range(_PATTERNS)])
    observed = patterns[torch.arange(DRAWS) % _PATTERNS]
    nobody = torch.full((DRAWS,), -1)
    batch = Batch(torch.where(observed, rows, 0.0), observed, nobody, torch.ones(DRAWS))
    return rows, batch


def check_stacking(density: VectorDensity, generator: torch.Generator) -> None:
    """Components taken apart and put together again are the same."""
    parts = [density.select(torch.tensor([k])) for k in range(density.n_components)]
    batch = make_batch(density, 6, generator, holes=True)
    together = Density.stack(list(parts)).log_prob(batch)
    np.testing.assert_allclose(together, density.log_prob(batch), EXACT, EXACT)


DENSITY_CHECKS: tuple[Callable[[VectorDensity, torch.Generator], None], ...] = (
    check_single_precision,
    check_free,
    check_gradient,
    check_slope,
    check_own_statistics,
    check_additive,
    check_updates,
    check_sample,
    check_expected,
    check_complete,
    check_stacking,
)


# -- Gaussians against dense linear algebra ----------------------------------------------------


def check_gaussian_statistics(density: VectorDensity, generator: torch.Generator) -> None:
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


def check_gaussian_expected(density: VectorDensity, generator: torch.Generator) -> None:
    """Imputed values are the dense conditional means; observed values stay to the bit."""
    batch = make_batch(density, 30, generator, holes=True)
    filled = density.expected(batch)
    np.testing.assert_allclose(filled, dense_conditional(density, batch)[0], EXACT, EXACT)
    for component in range(density.n_components):
        same_where_observed(filled[:, component], batch)


def check_gaussian_sample(density: VectorDensity, generator: torch.Generator) -> None:
    """Draws have the mean and the covariance of their component."""
    covariances = density.covariances().numpy()
    for component in range(density.n_components):
        rows = density.sample(torch.full((DRAWS,), component), generator).numpy()
        check_moments(rows, density.location[component].numpy(), covariances[component])


def check_gaussian_complete(density: VectorDensity, generator: torch.Generator) -> None:
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


GAUSSIAN_CHECKS: tuple[Callable[[VectorDensity, torch.Generator], None], ...] = (
    check_gaussian_statistics,
    check_gaussian_expected,
    check_gaussian_sample,
    check_gaussian_complete,
)


def check_moments(rows: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Sample moments within five of their own standard deviations."""
    slack = SIGMAS * np.sqrt(np.diag(covariance) / len(rows))
    assert (np.abs(rows.mean(0) - mean) < slack).all(), "the mean of the draws is off"
    centered = rows - mean
    found = centered.T @ centered / len(rows)
    slack = SIGMAS * np.sqrt(((centered**2).T @ centered**2 / len(rows) - found**2) / len(rows))
    assert (np.abs(found - covariance) < slack).all(), "the covariance of the draws is off"


def same_where_observed(rows: Tensor, batch: Batch) -> None:
    assert torch.equal(rows[batch.observed], batch.x[batch.observed])
