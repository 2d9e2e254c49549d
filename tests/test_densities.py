"""Densities against scipy, dense linear algebra, finite differences and draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mixtura.data import Batch
from mixtura.densities import STRUCTURES, LowRankGaussian, LowRankPrecision, add_statistics
from mixtura.exceptions import UnsupportedError
from mixtura.testing import (
    DENSITY_CHECKS,
    check_density,
    dense_conditional,
    make_batch,
    make_density,
)

CLOSED_FORM = [key for key, (kind, _) in STRUCTURES.items() if kind.closed_form]


@pytest.fixture(params=STRUCTURES, ids="-".join)
def density(request, generator):
    """A density of every structure."""
    return make_density(*request.param, generator)


@pytest.mark.parametrize("check", DENSITY_CHECKS, ids=lambda check: check.__name__)
def test_property(check, density, generator):
    """Every structure has every property."""
    check(density, generator)


@pytest.mark.parametrize("n_features", [1, 2, 30])
@pytest.mark.parametrize("structure", [("full", "covariance"), ("low_rank", "covariance")])
def test_other_sizes(structure, n_features, generator):
    """One feature, and as many as need several bands of a triangle, are no special case."""
    density = make_density(
        *structure, generator, n_components=2, n_features=n_features, rank=min(2, n_features)
    )
    for check in DENSITY_CHECKS:
        if check.__name__ != "check_gradient" or n_features < 5:
            check(density, generator)


def test_check_density_runs_every_check(generator):
    """A new density inherits all checks by one call."""
    check_density(make_density("diag", "covariance", generator, n_components=1), generator)


@pytest.mark.parametrize("kind", [LowRankGaussian, LowRankPrecision])
def test_low_rank_is_diagonal_plus_outer_products(kind, generator):
    """The dense matrix is a + S S^T, of the covariance or of its inverse."""
    form = "covariance" if kind is LowRankGaussian else "precision"
    density = make_density("low_rank", form, generator)
    loading = density.loading.numpy()
    dense = np.einsum("kdr,ker->kde", loading, loading)
    dense += np.stack([np.diag(a) for a in density.diagonal.numpy()])
    if form == "precision":
        dense = np.linalg.inv(dense)
    np.testing.assert_allclose(density.covariances(), dense, 1e-9, 1e-12)


@pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)
def test_free_parameters_respect_the_floor(structure, generator):
    """No direction has less variance than it; of full covariances the pivots are bounded alone."""
    floor = 0.3
    for scale in (0.1, 1.0, 10.0):
        density = make_density(*structure, generator, floor=floor)
        free = {
            k: v + scale * torch.randn(v.shape, dtype=v.dtype, generator=generator)
            for k, v in density.free().items()
        }
        wild = density.from_free(free)
        if structure[0] == "full":
            pivots = wild.factor.diagonal(dim1=1, dim2=2)
            assert pivots.min() >= 0.1 * floor**0.5
        else:
            for found in (density, wild):
                smallest = torch.linalg.eigvalsh(found.covariances()).min()
                assert smallest >= floor * (1.0 - 1e-9)


def test_a_precision_below_the_floor_is_lifted(generator):
    """The free parameters of a density that breaks its own floor are finite, and mend it."""
    density = make_density("low_rank", "precision", generator)
    floor = 3.0 * float(torch.linalg.eigvalsh(density.covariances()).max())
    mended = replace(density, floor=floor)
    mended = mended.from_free(mended.free())
    eigenvalues = torch.linalg.eigvalsh(mended.covariances())
    assert eigenvalues.min() >= floor * (1.0 - 1e-9)
    assert eigenvalues.isfinite().all()


def test_spherical_shares_one_variance(generator):
    """All features of a component have one variance, also after an update."""
    density = make_density("spherical", "covariance", generator)
    batch = make_batch(density, 40, generator, holes=True)
    share = torch.rand(40, 3, dtype=torch.float64, generator=generator)
    updated, _ = density.maximise(density.statistics(batch, share))
    for variance in (density.variance, updated.variance):
        assert torch.equal(variance, variance[:, :1].expand_as(variance))


@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_statistics_are_additive(structure, generator):
    """Statistics of two halves add up to those of the whole."""
    density = make_density(*structure, generator)
    batch = make_batch(density, 20, generator, holes=True)
    share = torch.randn(20, 3, dtype=torch.float64, generator=generator)
    whole = density.statistics(batch, share)
    halves = [
        density.statistics(batch.take(part), share[part]) for part in (slice(7), slice(7, 20))
    ]
    for name, value in add_statistics(*halves).items():
        np.testing.assert_allclose(value, whole[name], 1e-9, 1e-9)


def test_latent_statistics_of_factor_analysers(generator):
    """E[z], E[z z^T] and E[x z^T] of rows with holes, from the joint normal of x and z."""
    density = make_density("low_rank", "covariance", generator)
    batch = make_batch(density, 10, generator, holes=True)
    share = torch.randn(10, 3, dtype=torch.float64, generator=generator)
    wide, rows = _with_latent_features(density, batch)
    mean, covariance = dense_conditional(wide, rows)
    outer = mean[..., :, None] * mean[..., None, :] + covariance
    d = density.n_features
    expected = {
        "latent": np.einsum("nk,nkr->kr", share, mean[..., d:]),
        "latent_second": np.einsum("nk,nkrs->krs", share, outer[..., d:, d:]),
        "cross": np.einsum("nk,nkdr->kdr", share, outer[..., :d, d:]),
    }
    statistics = density.statistics(batch, share)
    for name, value in expected.items():
        np.testing.assert_allclose(statistics[name], value, 1e-9, 1e-9)


def _with_latent_features(density, batch):
    """The joint normal of features and factors, and rows in which the factors are missing."""

    class Joint:
        n_components, n_features = density.n_components, density.n_features + density.rank
        location = torch.cat([density.mean, torch.zeros(density.n_components, density.rank)], 1)

        @staticmethod
        def covariances():
            top = torch.cat([density.covariances(), density.loading], 2)
            eye = torch.eye(density.rank, dtype=top.dtype).expand(density.n_components, -1, -1)
            return torch.cat([top, torch.cat([density.loading.mT, eye], 2)], 1)

    blank = torch.zeros(len(batch), density.rank, dtype=torch.float64)
    observed = torch.cat([batch.observed, blank.bool()], 1)
    return Joint, Batch(torch.cat([batch.x, blank], 1), observed, batch.y, batch.weight)


@pytest.mark.parametrize("structure", [("diag", "covariance"), ("full", "covariance")])
def test_spread_log_prob_is_an_expected_log_density(structure, generator):
    """Of normal rows with another spread: -(log det + trace) / 2, up to a constant."""
    density, other = (make_density(*structure, generator) for _ in range(2))
    given = density.spread_log_prob(other.spread[0]).numpy()
    covariance, reference = density.covariances().numpy(), other.covariances()[0].numpy()
    expected = [
        -0.5 * (np.linalg.slogdet(c)[1] + np.trace(np.linalg.solve(c, reference)))
        for c in covariance
    ]
    np.testing.assert_allclose(given, expected, 1e-9)


@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_updates_respect_the_floor(structure, generator):
    """Rows without any spread leave variances at the floor, not at zero."""
    density = make_density(*structure, generator, floor=1e-2)
    x = torch.ones(20, density.n_features, dtype=torch.float64)
    batch = Batch(x, None, torch.zeros(20), torch.ones(20))
    updated, valid = density.maximise(density.statistics(batch, torch.ones(20, 3).double()))
    assert valid.all()
    smallest = torch.linalg.eigvalsh(updated.covariances()).min()
    assert smallest >= 1e-2 * (1.0 - 1e-9)


@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_impossible_statistics_are_reported(structure, generator):
    """Negative masses and negative variances are flagged, component by component."""
    density = make_density(*structure, generator)
    statistics = density.own_statistics()
    mass, second = statistics["mass"].clone(), statistics["second"].clone()
    mass[0] = -1.0
    second[1] -= 100.0 * (second[1].abs() + 1.0)
    _, valid = density.maximise({**statistics, "mass": mass, "second": second})
    assert valid.tolist() == [False, False, True]


def test_precision_has_no_closed_form(generator):
    """What cannot be done says what can."""
    density = make_density("low_rank", "precision", generator)
    batch = make_batch(density, 6, generator)
    for refused in (
        lambda: density.statistics(batch, torch.ones(6, 3)),
        lambda: density.maximise({}),
        density.own_statistics,
    ):
        with pytest.raises(UnsupportedError, match="lbfgs"):
            refused()


@pytest.mark.parametrize("structure", [("full", "covariance"), ("low_rank", "covariance")])
def test_parameters_are_counted(structure, generator):
    """As many as there are directions in which the density can change (Jacobian's rank)."""
    density = make_density(*structure, generator, n_components=1, n_features=6)
    names, values = zip(*density.free().items(), strict=True)

    def moments(*free):
        made = density.from_free(dict(zip(names, free, strict=True)))
        return torch.cat([made.mean.flatten(), made.covariances().flatten()])

    jacobian = torch.autograd.functional.jacobian(moments, values)
    wide = torch.cat([part.flatten(1) for part in jacobian], 1)
    assert torch.linalg.matrix_rank(wide) == density.n_parameters
