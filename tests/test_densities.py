"""Densities against scipy, dense linear algebra, finite differences and draws."""

import sys
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import logistic, multivariate_normal

from mixtura.data.batch import Batch
from mixtura.densities import (
    FullGaussian,
    LowRankGaussian,
    LowRankPrecision,
    VectorDensity,
    base,
    full_covariance,
    low_rank,
    low_rank_covariance,
)
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EBW, EM, LBFGS, SpreadPrior
from mixtura.testing import (
    DENSITY_CHECKS,
    GAUSSIAN_CHECKS,
    REFERENCE_CHECKS,
    STRUCTURES,
    Reference,
    check_density,
    dense_conditional,
    make_batch,
    make_density,
    make_engine,
    make_mixture,
)

CLOSED_FORM = [key for key, (kind, _) in STRUCTURES.items() if kind.closed_form]


@pytest.fixture(params=STRUCTURES, ids="-".join)
def density(request, generator):
    """A density of every structure."""
    return make_density(*request.param, generator)


@pytest.mark.parametrize(
    "check", DENSITY_CHECKS + GAUSSIAN_CHECKS, ids=lambda check: check.__name__
)
def test_property(check, density, generator):
    """Every structure has every property."""
    check(density, generator)


@pytest.mark.parametrize("check", REFERENCE_CHECKS, ids=lambda check: check.__name__)
def test_property_against_scipy(check, density, generator):
    """Every structure is the normal distribution of its dense covariance."""
    check(density, generator, Reference.normal(density))


@pytest.mark.parametrize("n_features", [1, 2, 30])
@pytest.mark.parametrize("structure", [("full", "covariance"), ("low_rank", "covariance")])
def test_other_sizes(structure, n_features, generator):
    """One feature, and as many as need several bands of a triangle, are no special case."""
    density = make_density(
        *structure, generator, n_components=2, n_features=n_features, rank=min(2, n_features)
    )
    for check in DENSITY_CHECKS + GAUSSIAN_CHECKS:
        slow = check.__name__ in ("check_gradient", "check_updates")
        if not slow or n_features < 5:
            check(density, generator)
    for against in REFERENCE_CHECKS:
        against(density, generator, Reference.normal(density))


def test_check_density_runs_every_check(generator):
    """A new density inherits all checks by one call."""
    check_density(make_density("diag", "covariance", generator, n_components=1), generator)


# -- a density that has only what it must ------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Logistic(VectorDensity):
    """Independent logistic features: the members that every density must write, and no more."""

    middle: torch.Tensor
    width: torch.Tensor

    @classmethod
    def from_clusters(cls, x, membership, floor, generator, **options):
        share = membership / membership.sum(0)
        middle = share.mT @ x
        variance = share.mT @ x.square() - middle.square()
        return cls(middle=middle, width=variance.clamp_min(floor).sqrt() / 1.8)

    @property
    def location(self):
        return self.middle

    def log_prob(self, batch):
        middle, width = self.middle.to(batch.x.dtype), self.width.to(batch.x.dtype)
        z = (batch.x[:, None] - middle) / width
        each = -z - 2.0 * torch.nn.functional.softplus(-z) - width.log()
        seen = torch.ones_like(batch.x) if batch.observed is None else batch.observed.to(z)
        return (each * seen[:, None]).sum(2)

    def sample(self, component, generator, **options):
        shape = len(component), self.n_features
        z = torch.rand(shape, dtype=torch.float64, generator=generator).logit()
        return self.middle[component] + self.width[component] * z

    def free(self):
        return {"middle": self.middle, "log_width": self.width.log()}

    def from_free(self, free):
        return replace(self, middle=free["middle"], width=free["log_width"].exp())


def logistic_logpdf(density, component, x, observed):
    """The same by scipy."""
    middle, width = density.middle[component, observed], density.width[component, observed]
    return logistic(middle.numpy(), width.numpy()).logpdf(x).sum(1)


@pytest.fixture
def minimal(generator):
    """Three components of five features."""
    x = 3.0 * torch.randn(60, 5, dtype=torch.float64, generator=generator)
    share = torch.rand(60, 3, dtype=torch.float64, generator=generator)
    return Logistic.from_clusters(x, share, 1e-3, generator)


def test_a_density_of_six_members_passes_every_check(minimal, generator):
    """And one that is not what it is compared with does not."""
    check_density(minimal, generator, reference_logpdf=partial(logistic_logpdf, minimal))
    wider = replace(minimal, width=1.1 * minimal.width)
    with pytest.raises(AssertionError):
        check_density(wider, generator, reference_logpdf=partial(logistic_logpdf, minimal))


def test_what_has_no_reference_is_not_checked(minimal, generator):
    """Nobody knows what a new density should be, unless told."""
    with pytest.raises(InvalidInputError, match="reference_logpdf"):
        check_density(minimal, generator)


def test_defaults_are_right_or_say_what_to_write(minimal, generator):
    """Sizes are counted, complete rows stay; what no rule serves is refused by name."""
    assert minimal.n_parameters == 10
    assert minimal.row_cost(True) >= 2 * minimal.middle.numel()
    whole = make_batch(minimal, 6, generator)
    holes = make_batch(minimal, 6, generator, holes=True)
    share, component = torch.full((6, 3), 1.0 / 3.0, dtype=torch.float64), torch.zeros(6).long()
    np.testing.assert_allclose(minimal.fill(whole, share), whole.x, 1e-12)
    assert torch.equal(minimal.complete(whole, component, generator), whole.x)
    peak = [logistic_logpdf(minimal, k, minimal.middle[[k]], np.ones(5, bool)) for k in range(3)]
    np.testing.assert_allclose(minimal.log_peak(), np.ravel(peak), 1e-12)
    for refused, word in (
        (lambda: minimal.fill(holes, share), "`expected`"),
        (lambda: minimal.complete(holes, component, generator), "`agree`"),
        (minimal.covariances, "`covariances`"),
        (lambda: minimal.at(minimal.middle), "`at`"),
        (minimal.own_statistics, "`own_statistics`"),
        (lambda: minimal.statistics(whole, share), "`statistics`"),
        (lambda: EBW().run(*_training(minimal, generator)), "lbfgs"),
    ):
        with pytest.raises(UnsupportedError, match=word):
            refused()


def _training(density, generator):
    mixture = make_mixture(density, [2, 1], generator)
    return mixture, Likelihood(), make_engine(mixture, 80, generator, holes=True), Progress()


@pytest.mark.parametrize("solver", [EM(15, -1.0), LBFGS(15)], ids=["em", "lbfgs"])
def test_a_density_of_six_members_is_trained(solver, minimal, generator):
    """EM's M step goes by gradients; a prior of a spread that it lacks says nothing."""
    _, objective, engine, progress = _training(minimal, generator)
    start = make_mixture(replace(minimal, middle=minimal.middle + 1.0), [2, 1], generator)
    prior = SpreadPrior.pooled([start.density], torch.ones(1), 50.0)
    assert prior.reference.numel() == 0
    found = solver.run(start, objective, engine, progress, prior=prior)
    alone = solver.run(start, objective, engine, Progress())
    losses = np.array([record["objective"] for record in progress.history])
    assert (np.diff(losses) <= 1e-9 * np.abs(losses[1:])).all()
    assert losses[-1] < losses[0] - 0.1
    np.testing.assert_allclose(found.model.density.middle, alone.model.density.middle, 1e-9)


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
    updated, _ = density.maximize(density.statistics(batch, share))
    for variance in (density.variance, updated.variance):
        assert torch.equal(variance, variance[:, :1].expand_as(variance))


def test_latent_statistics_of_factor_analyzers(generator):
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


@pytest.mark.parametrize("copied", [0, 16_000])
@pytest.mark.parametrize("form", ["covariance", "precision"])
def test_rows_of_one_pattern_and_component_share_a_factorization(
    form, copied, generator, monkeypatch
):
    """Their conditional means are those of dense matrices; also in float32, and of no rows."""
    monkeypatch.setattr(base, "_COPIED", copied)
    factored, inverse = [], low_rank.LowRankForm._own_inverse

    def counted(self, observed, component):
        factored.extend(zip(observed.tolist(), component.tolist(), strict=True))
        return inverse(self, observed, component)

    monkeypatch.setattr(low_rank.LowRankForm, "_own_inverse", counted)
    density = make_density("low_rank", form, generator, n_components=3, n_features=5)
    batch = make_batch(density, 40, generator, holes=True)
    batch = replace(batch, observed=batch.observed[torch.arange(40) % 7])
    batch = replace(batch, x=batch.x * batch.observed)
    component = torch.randint(3, (40,), generator=generator)
    found = density.own_expected(batch, component)
    wanted = dense_conditional(density, batch)[0][np.arange(40), component]
    np.testing.assert_allclose(found, wanted, 1e-9, 1e-9)
    kinds = {(tuple(o), int(k)) for o, k in zip(batch.observed.tolist(), component, strict=True)}
    assert len(factored) == len(kinds) < 40
    single = density.own_expected(batch.to(torch.float32), component)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, wanted, 1e-4, 1e-4)
    assert density.own_expected(batch.take(slice(0)), component[:0]).shape == (0, 5)


def test_kernels_get_some_rows_and_places_of_32_bits(generator, monkeypatch):
    """Latent factors of all rows and components are the largest array, 64 of each."""
    kernel, name = torch.autograd.Function, "mixtura.densities.low_rank_kernel"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(KernelLogProb=kernel))
    monkeypatch.setattr(low_rank_covariance, "compiles", lambda device: True)
    monkeypatch.setattr(low_rank_covariance, "_COMPILED", 0)
    density, most = make_density("low_rank", "covariance", generator), 2**31 // (3 * 64)
    shapes = (0, 3), (1, 3), (most, 3), (most + 1, 3), (2**20, 2**11)
    chosen = [density._differentiable(torch.zeros(1, 1).expand(shape)) for shape in shapes]
    assert [each is kernel for each in chosen] == [False, True, True, False, False]


@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_updates_respect_the_floor(structure, generator):
    """Rows without any spread leave variances at the floor, not at zero."""
    density = make_density(*structure, generator, floor=1e-2)
    x = torch.ones(20, density.n_features, dtype=torch.float64)
    batch = Batch(x, None, torch.zeros(20), torch.ones(20))
    updated, valid = density.maximize(density.statistics(batch, torch.ones(20, 3).double()))
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
    _, valid = density.maximize({**statistics, "mass": mass, "second": second})
    assert valid.tolist() == [False, False, True]


def test_precision_has_no_closed_form(generator):
    """What cannot be done says what can."""
    density = make_density("low_rank", "precision", generator)
    batch = make_batch(density, 6, generator)
    for refused in (
        lambda: density.statistics(batch, torch.ones(6, 3)),
        lambda: density.maximize({}),
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


@pytest.mark.parametrize(("away", "cancels"), [(0.0, False), (5.0, False), (1e4, True)])
def test_products_of_features_serve_full_covariances_unless_they_cancel(
    away, cancels, monkeypatch, generator
):
    """Log densities and moments of many components, near the origin and far from it."""
    used = []
    products = full_covariance._products
    monkeypatch.setattr(full_covariance, "_products", lambda x: used.append(x) or products(x))
    noise = partial(torch.randn, dtype=torch.float64, generator=generator)
    mean, factor = away + noise(4, 3), 0.2 * torch.eye(3) + 0.05 * noise(4, 3, 3).tril()
    density = FullGaussian(mean=mean, factor=factor, floor=1e-9)
    x, share = mean[torch.arange(40) % 4] + 0.3 * noise(40, 3), noise(40, 4)
    log_prob, statistics = density.expectation(Batch(x, None, torch.zeros(40), torch.ones(40)))
    pairs = zip(mean.numpy(), density.covariances().numpy(), strict=True)
    wanted = np.stack([multivariate_normal(*pair).logpdf(x.numpy()) for pair in pairs], 1)
    np.testing.assert_allclose(log_prob.numpy(), wanted, rtol=1e-11, atol=1e-9)
    found = statistics(share)
    assert bool(used) != cancels
    for name, form in (("mass", "nk->k"), ("first", "nk,nd->kd"), ("second", "nk,nd,ne->kde")):
        wanted = torch.einsum(form, share, *[x] * form.count(","))
        np.testing.assert_allclose(found[name], wanted, rtol=1e-9)


def test_products_of_features_are_not_taken_of_a_mean_far_from_the_rows():
    """A wide component far away, of almost the same features: products of its mean cancel."""
    far, wide, tight = 1e3, 1e2, 1e-3
    across, along = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    spread = 0.5 * (wide**2 * along.outer(along) + tight**2 * across.outer(across))
    factor = torch.stack([torch.linalg.cholesky(spread), torch.eye(2, dtype=torch.float64)])
    density = FullGaussian(mean=torch.stack([far * along, 0.0 * along]), factor=factor, floor=1e-9)
    x = 0.5 * along + torch.linspace(-1e-3, 1e-3, 5, dtype=torch.float64)[:, None] * across
    log_prob, _ = density.expectation(Batch(x, None, torch.zeros(5), torch.ones(5)))
    squared = ((x @ along - 2.0 * far) / wide) ** 2 + ((x @ across) / tight) ** 2
    wanted = -0.5 * squared / 2.0 - np.log(2.0 * np.pi * wide * tight)
    np.testing.assert_allclose(log_prob[:, 0], wanted, rtol=0.0, atol=1e-6)
