"""Rows with holes, by whichever side of their patterns is smaller, against dense linear algebra."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from named import close

from mixtura.data.batch import Batch
from mixtura.data.scaling import Scaling
from mixtura.densities import (
    Full,
    StudentT,
    low_rank,
    low_rank_covariance,
    patterns,
    submatrices,
)
from mixtura.engines import Engine
from mixtura.numerics import eliminated, quadratic_log_det
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM
from mixtura.testing import make_density
from mixtura.testing.references import dense_conditional, dense_log_prob
from mixtura.training.groups import Recipe

STRUCTURES = [("full", "covariance"), ("low_rank", "covariance"), ("low_rank", "precision")]
SHARES = [0.1, 0.5, 0.9]


@pytest.fixture(params=[False, True], ids=["as_few", "as_many"])
def as_many(request, monkeypatch):
    """Few rows of few features go their own way, or that of many: one stack per side and size."""
    monkeypatch.setattr(submatrices, "WHOLE", 0 if request.param else 14)
    if request.param:
        request.getfixturevalue("large")
        monkeypatch.setattr(patterns, "STACK", 1)
        monkeypatch.setattr(submatrices, "STACK", 1)
        monkeypatch.setattr(submatrices, "_MANY", 0)
        monkeypatch.setattr(low_rank, "_SMALL", 0)


@pytest.fixture(params=STRUCTURES, ids="-".join)
def density(request, as_many, generator):
    """Two components with 14 features."""
    return make_density(*request.param, generator, n_components=2, n_features=14, rank=3)


def with_holes(density, share, generator, dtype=torch.float64):
    """Rows whose patterns differ, but for a few; some with a single entry, or a single hole."""
    x = density.sample(torch.arange(40) % 2, generator)
    observed = torch.rand(x.shape, generator=generator) >= share
    observed[:6] = observed[0]
    observed[6], observed[7] = torch.arange(14) == 3, torch.arange(14) != 3
    observed[8] = False
    x = torch.where(observed, x, 0.0).to(dtype)
    return Batch(x, observed, torch.full((40,), -1), torch.ones(40, dtype=dtype))


@pytest.mark.parametrize("share", SHARES)
def test_log_densities_and_means_are_those_of_dense_matrices(density, share, generator):
    """Whichever side is summed over."""
    batch = with_holes(density, share, generator)
    found, expected = density.log_prob(batch), dense_log_prob(density, batch)
    np.testing.assert_allclose(found, expected, 1e-10, 1e-10)
    means = dense_conditional(density, batch)[0]
    np.testing.assert_allclose(density.expected(batch), means, 1e-9, 1e-9)


@pytest.mark.parametrize("density", STRUCTURES[1:], indirect=True, ids="-".join)
def test_no_large_table_is_kept(density, monkeypatch, generator):
    """Sums then run over one side of every pattern, and come to the same."""
    batch, expected = with_holes(density, 0.5, generator), []
    for kept in (10**9, 0):
        monkeypatch.setattr(low_rank, "_KEPT", kept)
        fresh = replace(density)
        expected.append(fresh.log_prob(batch))
        assert ("_gram_table" in vars(fresh)) == bool(kept)
    np.testing.assert_allclose(*expected, 1e-10, 1e-10)


@pytest.mark.parametrize("density", STRUCTURES[1:], indirect=True, ids="-".join)
@pytest.mark.parametrize("reaches", [0, 1, 3])
def test_factors_that_reach_no_feature_make_no_difference(density, reaches, generator):
    """Those go that are idle in all components, in whichever place; one stays in any case."""
    loading = density.loading.clone()
    loading[0, :, [1, 2]] = loading[1, :, [0, 1]] = 1e-9 if reaches else 0.0
    if reaches == 0:
        loading[:] = 0.0
    if reaches == 3:
        loading[1] = density.loading[1]
    carried = density.with_tensors({**density.tensors(), "loading": loading})
    found, batch = carried.without_idle(), with_holes(density, 0.5, generator)
    assert found.rank == max(reaches, 1)
    np.testing.assert_allclose(found.log_prob(batch), carried.log_prob(batch), 1e-10, 1e-10)
    close(found.beside_idle(carried).tensors(), carried.tensors())
    moved = found.with_tensors({**found.tensors(), "loading": 2.0 * found.loading})
    again = moved.beside_idle(carried)
    assert again.rank == carried.rank
    np.testing.assert_allclose(again.log_prob(batch), moved.log_prob(batch), 1e-10, 1e-10)


@pytest.mark.parametrize("density", STRUCTURES[:2], indirect=True, ids="-".join)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("negligible", [False, True])
def test_statistics_are_those_of_dense_matrices(density, share, negligible, generator, monkeypatch):
    """Also where what is missing scatters by itself, and where components hardly matter.

    Of few components at a time.
    """
    monkeypatch.setattr(low_rank_covariance, "_BLOCK", 1)
    batch = with_holes(density, share, generator)
    occupancy, scatter = torch.randn(2, 40, 2, dtype=torch.float64, generator=generator)
    if negligible:
        occupancy[:25, 0] = scatter[:25, 0] = 1e-25
        occupancy[20:, 1] = scatter[20:, 1] = 1e-25
    found = density.statistics(batch, occupancy, scatter=scatter)
    mean, covariance = dense_conditional(density, batch)
    outer = np.einsum("nk,nki,nkj->kij", occupancy, mean, mean)
    outer += np.einsum("nk,nkij->kij", scatter, covariance)
    if found["second"].ndim == 2:
        outer = np.diagonal(outer, axis1=1, axis2=2)
    np.testing.assert_allclose(found["first"], np.einsum("nk,nki->ki", occupancy, mean), 1e-9, 1e-9)
    np.testing.assert_allclose(found["second"], outer, 1e-9, 1e-9)


@pytest.mark.parametrize("density", STRUCTURES[:2], indirect=True, ids="-".join)
def test_rows_that_share_patterns_count_as_they_do_alone(density, generator):
    batch = with_holes(density, 0.5, generator)
    observed = batch.observed[torch.arange(40) % 7]
    batch = replace(batch, x=torch.where(observed, batch.x + 1.0, 0.0), observed=observed)
    occupancy, scatter = torch.rand(2, 40, 2, dtype=torch.float64, generator=generator)
    log_prob, sums = density.expectation(batch)
    found, alone = sums(occupancy, scatter), []
    for row in torch.arange(40).split(1):
        its_log_prob, its_sums = density.expectation(batch.take(row))
        np.testing.assert_allclose(its_log_prob, log_prob[row], 1e-9, 1e-9)
        alone.append(its_sums(occupancy[row], scatter[row]))
    for name, value in found.items():
        np.testing.assert_allclose(
            value, sum(each[name] for each in alone), 1e-9, 1e-9, err_msg=name
        )


@pytest.mark.parametrize("together", [False, True])
def test_components_that_do_not_count_for_a_row_are_left_out(together, generator, monkeypatch):
    """Each goes through its own rows; also where features are missing together, as indicators."""
    monkeypatch.setattr(low_rank_covariance, "_FEW", 0)
    kind = "low_rank", "covariance"
    density = make_density(*kind, generator, n_components=5, n_features=14, rank=3)
    batch = with_holes(density, 0.4, generator)
    if together:
        observed = batch.observed[:, torch.arange(14) // 2]
        batch = replace(batch, x=torch.where(observed, batch.x + 1.0, 0.0), observed=observed)
    among = torch.rand(40, 5, generator=generator) < 0.3
    monkeypatch.setattr(type(density), "_expectation_masked", None)  # it is for all components
    log_prob, statistics = density.expectation_among(batch, among)
    wanted = dense_log_prob(density, batch)[among]
    np.testing.assert_allclose(log_prob[among], wanted, 1e-9, 1e-9)
    single = density.expectation_among(batch.to(torch.float32), among)[0]
    np.testing.assert_allclose(single[among], wanted, 1e-4, 1e-3)
    share = torch.randn(40, 5, dtype=torch.float64, generator=generator) * among
    found, (mean, covariance) = statistics(share), dense_conditional(density, batch)
    outer = np.einsum("nk,nki->ki", share, mean**2)
    outer += np.einsum("nk,nkii->ki", share, covariance)
    np.testing.assert_allclose(found["first"], np.einsum("nk,nki->ki", share, mean), 1e-9, 1e-9)
    np.testing.assert_allclose(found["second"], outer, 1e-9, 1e-9)


@pytest.mark.parametrize("share", SHARES)
def test_distances_make_up_log_densities(density, share, generator):
    """At the means distances are zero, and log densities are the second of the two answers."""
    batch = with_holes(density, share, generator)
    squared, peak = density.distances(batch)
    np.testing.assert_allclose(peak - 0.5 * squared, density.log_prob(batch), 1e-12, 1e-12)
    for k, mean in enumerate(density.mean):
        at_mean = replace(batch, x=torch.where(batch.observed, mean, 0.0))
        np.testing.assert_allclose(density.distances(at_mean)[0][:, k], 0.0, atol=1e-10)


@pytest.mark.parametrize("share", SHARES)
def test_gradients_are_those_of_finite_differences(density, share, generator):
    """By the parameters and by the rows."""
    batch = with_holes(density, share, generator).take(torch.arange(4, 9))
    free = {name: value.clone().requires_grad_() for name, value in density.free().items()}

    def log_prob(x, *values):
        changed = density.from_free(dict(zip(free, values, strict=True)))
        return changed.log_prob(replace(batch, x=torch.where(batch.observed, x, 0.0)))

    rows = batch.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(log_prob, (rows, *free.values()), fast_mode=True)


@pytest.mark.parametrize("share", SHARES)
def test_single_precision_stays_near(density, share, generator):
    """Also where most of the spread lies in features that are missing."""
    small = {name: value.clone() for name, value in density.tensors().items()}
    if "loading" in small:
        small["loading"][:, :3] *= 100.0
    density = density.with_tensors(small)
    batch = with_holes(density, share, generator)
    batch = replace(batch, x=batch.x.float().double())
    single = replace(batch, x=batch.x.float(), weight=batch.weight.float())
    found, expected = density.log_prob(single), density.log_prob(batch)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, 2e-3, 2e-3)


def test_a_t_density_evaluates_its_scale_matrices_once(density, monkeypatch, generator):
    """Distances and determinants come together."""
    student = StudentT(scale=density, dof=torch.tensor([4.0, 9.0], dtype=torch.float64))
    calls, marginal = [], type(density)._marginal

    def counted(self, x, observed):
        calls.append(len(x))
        return marginal(self, x, observed)

    monkeypatch.setattr(type(density), "_marginal", counted)
    student.log_prob(with_holes(density, 0.9, generator))
    assert calls == [40]


def test_patterns_are_looked_for_once_in_a_fit(monkeypatch, generator):
    """Chunks are kept with what follows from their holes; a copy of a table has its own."""
    calls, of = [], patterns.PatternBlocks.of
    monkeypatch.setattr(patterns.PatternBlocks, "of", lambda seen: calls.append(1) or of(seen))
    x = torch.randn(60, 13, generator=generator).numpy().astype(float)
    x[torch.rand(60, 13, generator=generator).numpy() < 0.2] = np.nan
    engine = Engine(x, scaling=Scaling.identity(13), device=torch.device("cpu"))
    start = Recipe(Full(), EM()).start(engine, 1, generator)
    for rows in (engine, engine.take(np.arange(30))):
        calls.clear()
        EM(max_iter=4, tol=0.0).run(start, Likelihood(), rows, Progress())
        assert len(calls) == 1


@pytest.mark.parametrize("n_features", [1, 52, 53, 120])
def test_distinct_patterns_are_those_of_torch(n_features, generator):
    """However many words a pattern has."""
    observed = torch.rand(60, n_features, generator=generator) < 0.5
    observed[20:40] = observed[:20]
    observed[40:50, :-1] = observed[:10, :-1]
    found, place = patterns.distinct_patterns(observed)
    assert torch.equal(found[place], observed)
    assert len(found) == len(torch.unique(observed, dim=0))


@pytest.mark.parametrize("size", [3, 20, 40])
@pytest.mark.parametrize("last", [False, True], ids=["rows_first", "rows_last"])
def test_stacks_of_matrices_are_those_of_numpy_however_they_lie_in_memory(size, last, generator):
    half = torch.randn(size, size, 2, 5, dtype=torch.float64, generator=generator)
    matrix = torch.einsum("ijkn,ljkn->ilkn", half, half)
    matrix.diagonal().add_(1.0)
    matrix = matrix.permute(2, 3, 0, 1)
    matrix = matrix if last else matrix.contiguous()
    vectors = torch.randn(2, 5, size, 1, dtype=torch.float64, generator=generator)
    inverse, log_det = np.linalg.inv(matrix.numpy()), np.linalg.slogdet(matrix.numpy())[1]
    for found, single, expected in zip(
        eliminated(matrix), eliminated(matrix[1, 2]), (inverse, log_det), strict=True
    ):
        np.testing.assert_allclose(found, expected, 1e-8, 1e-8)
        np.testing.assert_allclose(single, expected[1, 2], 1e-8, 1e-8)
    quadratic = vectors.mT.numpy() @ inverse @ vectors.numpy()
    expected = quadratic[..., 0], log_det
    for found, value in zip(quadratic_log_det(matrix, vectors), expected, strict=True):
        np.testing.assert_allclose(found, value, 1e-8, 1e-8)
