"""Student's t against scipy, loops in NumPy and draws; trained by EM, EBW and gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from mixed import make_categorical
from scipy.optimize import brentq
from scipy.special import digamma
from scipy.stats import t as student
from students import make_student, reference_of

from mixtura.data.batch import Batch
from mixtura.data.scaling import Scaling
from mixtura.densities import DENSITIES, Full, HiddenMarkov, Product, Student
from mixtura.densities.base import Even
from mixtura.densities.student import LEAST_DOF, MOST_DOF
from mixtura.engines import Engine
from mixtura.exceptions import UnsupportedError
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network
from mixtura.nn import MixtureHead
from mixtura.objectives import Conditional, Hybrid, Likelihood, Margin
from mixtura.persistence import _Packer, _Unpacker
from mixtura.progress import Progress
from mixtura.solvers import EBW, EM, LBFGS, Adam, SpreadPrior
from mixtura.solvers.em import online_em_step, past_statistics
from mixtura.solvers.linked import tied
from mixtura.testing import (
    DENSITY_CHECKS,
    REFERENCE_CHECKS,
    STUDENTS,
    check_density,
    check_solver,
    check_valid,
    dense_conditional,
    make_batch,
    make_engine,
    make_mixture,
    penalized_loss,
)
from mixtura.training.groups import Recipe

COUNTS = [2, 1]
SCALES = ["diag", "full", "low_rank"]


@pytest.fixture(params=STUDENTS, ids="-".join)
def density(request, generator):
    """A t of every structure."""
    return make_student(request.param, generator)


# -- the density -------------------------------------------------------------------------------


@pytest.mark.parametrize("check", DENSITY_CHECKS, ids=lambda check: check.__name__)
def test_property(check, density, generator):
    """Every structure has every property."""
    check(density, generator)


@pytest.mark.parametrize("check", REFERENCE_CHECKS, ids=lambda check: check.__name__)
def test_property_against_scipy(check, density, generator):
    """Log densities, marginals and draws, conditional ones too, are those of scipy's t."""
    check(density, generator, reference_of(density))


@pytest.mark.parametrize("n_features", [1, 2, 30])
@pytest.mark.parametrize("structure", STUDENTS, ids="-".join)
def test_other_sizes(structure, n_features, generator):
    """One feature, and many."""
    sizes = {"n_components": 2, "n_features": n_features, "rank": min(2, n_features)}
    density = make_student(structure, generator, **sizes)
    for against in REFERENCE_CHECKS:
        against(density, generator, reference_of(density))
    batch = make_batch(density, 9, generator, holes=True)
    share = torch.rand(9, 2, dtype=torch.float64, generator=generator)
    updated, valid = density.maximize(density.statistics(batch, share))
    assert valid.all()
    assert updated.log_prob(batch).isfinite().all()


def test_one_call_checks_it_all(generator):
    """As a density from elsewhere would be."""
    density = make_student(("student_full", "covariance"), generator, n_components=1)
    known = reference_of(density)
    check_density(
        density,
        generator,
        reference_logpdf=known.logpdf,
        conditional_sampler=known.conditional_sampler,
    )


# -- details -----------------------------------------------------------------------------------


def test_imputation_is_that_of_the_scale_matrix(density, generator):
    """The conditional mean of a t is linear in what is observed."""
    batch = make_batch(density, 20, generator, holes=True)
    expected = dense_conditional(density.scale, batch)[0]
    np.testing.assert_allclose(density.expected(batch), expected, 1e-9, 1e-9)


def test_covariances_are_those_of_draws(generator):
    """nu / (nu - 2) times the scale matrix."""
    density = make_student(("student_full", "covariance"), generator)
    density = replace(density, dof=torch.full((3,), 12.0, dtype=torch.float64))
    rows = density.sample(torch.ones(200_000, dtype=torch.long), generator).numpy()
    expected = density.covariances()[1].numpy()
    np.testing.assert_allclose(np.cov(rows.T), expected, rtol=0.05, atol=0.05 * expected.max())


def test_even_draws_have_the_quantiles_of_a_t(generator):
    """Sobol points in place of random numbers, as networks draw."""
    density = make_student(("student_diag", "covariance"), generator, n_components=1, n_features=1)
    rows = density.sample(torch.zeros(4096, dtype=torch.long), Even(4096, 0)).numpy()[:, 0]
    levels = np.linspace(0.02, 0.98, 25)
    known = student(
        float(density.dof), float(density.location), float(density.scale.variance.sqrt())
    )
    found = known.cdf(np.quantile(rows, levels))
    np.testing.assert_allclose(found, levels, atol=0.01)


def test_rows_far_out_in_single_precision(density):
    """Log densities fall with the logarithm of the distance, in float32 too."""
    far = 10.0 ** torch.arange(0, 9, 2, dtype=torch.float64)
    x = density.location[:1] + far[:, None]
    batch = Batch(x, None, torch.zeros(5).long(), torch.ones(5))
    exact, single = density.log_prob(batch), density.log_prob(batch.to(torch.float32))
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, exact, 1e-3)


def test_many_degrees_of_freedom_are_a_gaussian(density, generator):
    """At the upper bound a t and its Gaussian are hardly told apart."""
    near = replace(density, dof=torch.full_like(density.dof, MOST_DOF))
    batch = make_batch(density, 20, generator, holes=True)
    weight = torch.rand(20, 3, dtype=torch.float64, generator=generator)
    squared = 2.0 * (near.log_prob(batch) - near.scale.log_prob(batch)).abs()
    assert squared.median() < 0.05
    assert near.statistics(batch, weight)["tail"].isfinite().all()


def test_parameters_are_counted(generator):
    """One more than those of the Gaussian."""
    density = make_student(("student_full", "covariance"), generator)
    assert density.n_parameters == density.scale.n_parameters + 1 == 5 + 15 + 1


def test_impossible_statistics_are_reported(density):
    """Negative masses, scatter and tails are flagged, component by component."""
    statistics = density.own_statistics()
    mass, tail = statistics["mass"].clone(), statistics["tail"].clone()
    second = statistics["scale.second"].clone()
    mass[0], tail[1] = -1.0, -0.1
    _, valid = density.maximize({**statistics, "mass": mass, "tail": tail})
    assert valid.tolist() == [False, False, True]
    second[2] -= 100.0 * (second[2].abs() + 1.0)
    _, valid = density.maximize({**statistics, "scale.second": second})
    assert valid.tolist() == [True, True, False]


# -- EM ----------------------------------------------------------------------------------------


def slow_em_step(location, scale, dof, rows, weight):
    """One step of EM of one t on rows with holes (NaN), row by row."""
    size = len(location)
    mass, first, second, tail = 0.0, np.zeros(size), np.zeros((size, size)), 0.0
    for x, share in zip(rows, weight, strict=True):
        seen = ~np.isnan(x)
        inverse = np.linalg.inv(scale[np.ix_(seen, seen)])
        missed = x[seen] - location[seen]
        u = (dof + seen.sum()) / (dof + missed @ inverse @ missed)
        whole = location.copy()
        whole[seen] = x[seen]
        across = scale[np.ix_(~seen, seen)]
        whole[~seen] += across @ inverse @ missed
        rest = np.zeros((size, size))
        rest[np.ix_(~seen, ~seen)] = scale[np.ix_(~seen, ~seen)] - across @ inverse @ across.T
        mass += share * u
        first += share * u * whole
        second += share * (u * np.outer(whole, whole) + rest)
        log_u = digamma((dof + seen.sum()) / 2) - np.log((dof + missed @ inverse @ missed) / 2)
        tail += share * (u - log_u - 1.0)
    mean = first / mass
    scatter = second - mass * np.outer(mean, mean)
    total = weight.sum()
    solved = brentq(lambda v: np.log(v / 2) - digamma(v / 2) - tail / total, LEAST_DOF, MOST_DOF)
    return mean, scatter / total, solved


def test_an_update_is_that_of_a_loop(generator):
    """Means, scale matrices and degrees of freedom after one step on rows with holes."""
    density = make_student(("student_full", "covariance"), generator)
    batch = make_batch(density, 200, generator, holes=True)
    weight = torch.rand(200, 3, dtype=torch.float64, generator=generator)
    updated, valid = density.maximize(density.statistics(batch, weight))
    assert valid.all()
    rows = torch.where(batch.observed, batch.x, torch.nan).numpy()
    for k in range(3):
        now = density.location[k].numpy(), density.scale.covariances()[k].numpy()
        mean, scale, dof = slow_em_step(*now, float(density.dof[k]), rows, weight[:, k].numpy())
        np.testing.assert_allclose(updated.location[k], mean, 1e-8, 1e-8)
        np.testing.assert_allclose(updated.scale.covariances()[k], scale, 1e-8, 1e-8)
        assert float(updated.dof[k]) == pytest.approx(dof, rel=1e-6)


def problem(structure, generator, holes=False, n=120):
    """A start, and rows that it does not fit yet."""
    truth, start = (
        make_mixture(make_student(structure, generator, n_features=4), COUNTS, generator)
        for _ in range(2)
    )
    return start, make_engine(truth, n, generator, holes=holes)


@pytest.mark.parametrize("prior_rows", [0.0, 7.0, 300.0], ids="{:g} imagined rows".format)
@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("structure", STUDENTS, ids="-".join)
def test_em_never_goes_down(structure, holes, prior_rows):
    """Every iteration improves the likelihood, or the likelihood plus the log prior."""
    for seed in (0, 14):
        start, engine = problem(structure, torch.Generator().manual_seed(seed), holes)
        prior = SpreadPrior(prior_rows, 0.5 * start.density.spread[0]) if prior_rows else None
        progress = Progress()
        found = EM(15, -1.0).run(start, Likelihood(), engine, progress, prior=prior).model
        check_valid(found)
        losses = np.array([record["objective"] for record in progress.history])
        assert (np.diff(losses) <= 1e-9 * np.abs(losses[1:])).all()
        assert (found.density.dof >= LEAST_DOF).all()
        assert (found.density.dof <= MOST_DOF).all()


@pytest.mark.parametrize("scale", SCALES)
def test_em_at_the_floor_never_goes_down(scale, generator):
    """A constant column, a row of nothing, and as many rows as a scale matrix can do without."""
    X = torch.randn(7, 4, dtype=torch.float64, generator=generator).numpy()
    X[:, 1] = 3.0
    X[2] = np.nan
    X[4, 2:] = np.nan
    engine = engine_of(X)
    start = Recipe(Student(scale, rank=2, floor=1e-3), EM()).start(engine, 1, generator)
    progress = Progress()
    found = EM(30, -1.0).run(start, Likelihood(), engine, progress).model
    check_valid(found)
    losses = np.array([record["objective"] for record in progress.history])
    assert (np.diff(losses) <= 1e-9 * np.abs(losses[1:])).all()


def engine_of(X, y=None):
    """Rows in their own units."""
    y = np.zeros(len(X), dtype=int) if y is None else y
    return Engine(X, y, scaling=Scaling.identity(X.shape[1]), device=CPU)


CPU = torch.device("cpu")


@pytest.mark.parametrize("scale", SCALES)
def test_a_single_row_is_enough_to_stay_finite(scale, generator):
    """Of one row there is a location; everything else is at its bounds."""
    engine = engine_of(np.array([[1.0, np.nan, 2.0]]))
    start = Recipe(Student(scale, floor=1e-3), EM()).start(engine, 1, generator)
    found = EM(10, 0.0).run(start, Likelihood(), engine, Progress()).model
    check_valid(found)
    assert float(found.density.location[0, 0]) == pytest.approx(1.0, abs=1e-6)


def heavy_rows(generator, n=3000, dof=3.0):
    """Correlated rows of a t, a tenth of the entries missing."""
    mixing = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.5, 0.3, 0.8]]).double()
    drawn = torch.randn(n, 3, dtype=torch.float64, generator=generator) @ mixing.mT
    weight = torch._standard_gamma(torch.full((n, 1), dof / 2).double(), generator) / (dof / 2)
    X = (drawn / weight.sqrt()).numpy()
    X[torch.rand(n, 3, generator=generator).numpy() < 0.1] = np.nan
    return X, mixing @ mixing.mT


@pytest.mark.parametrize("scale", SCALES)
def test_heavy_tails_are_found_and_pay(scale, generator):
    """Held-out rows are likelier than under the Gaussian of the same form."""
    X, truth = heavy_rows(generator, 2400)
    train, held_out = engine_of(X[:1600]), engine_of(X[1600:])
    losses = []
    for density in (DENSITIES[scale](floor=1e-6), Student(scale, floor=1e-6)):
        start = Recipe(density, EM()).start(train, 1, torch.Generator().manual_seed(0))
        model = EM(200, 1e-4).run(start, Likelihood(), train, Progress()).model
        losses.append(penalized_loss(model, Likelihood(), held_out))
    assert losses[1] < losses[0] - 0.1
    if scale == "full":
        found = model.density
        assert float(found.dof) == pytest.approx(3.0, abs=0.5)
        np.testing.assert_allclose(found.scale.covariances()[0], truth, atol=0.12)


def test_normal_rows_are_left_nearly_normal(generator):
    """Of rows without tails there are many degrees of freedom, and nothing is lost."""
    X = torch.randn(2000, 3, dtype=torch.float64, generator=generator).numpy()
    engine = engine_of(X)
    losses = []
    for density in (Full(1e-6), Student(floor=1e-6)):
        start = Recipe(density, EM()).start(engine, 1, generator)
        result = EM(300, 1e-9).run(start, Likelihood(), engine, Progress())
        losses.append(result.objective)
    assert result.model.density.dof.min() > 50.0
    assert losses[1] <= losses[0] + 1e-3


@pytest.mark.parametrize("structure", STUDENTS, ids="-".join)
def test_a_stream_moves_towards_its_rows(structure, generator):
    """Online EM: the model stands for the rows it has seen."""
    start, engine = problem(structure, generator, holes=True)
    seen = torch.tensor([10.0, 10.0], dtype=torch.float64)
    past = past_statistics(start, seen)
    moved, come = online_em_step(start, Likelihood(), engine, past)
    check_valid(moved)
    assert float(come.sum()) == pytest.approx(engine.total_weight)
    before, after = (penalized_loss(m, Likelihood(), engine) for m in (start, moved))
    assert after < before


# -- extended Baum-Welch and gradients -----------------------------------------------------------


@pytest.mark.parametrize("structure", STUDENTS, ids="-".join)
def test_ebw_without_damping_is_em(structure, generator):
    """With the likelihood and D = 0."""
    start, engine = problem(structure, generator, holes=True)
    by_em = EM(1, 0.0).run(start, Likelihood(), engine, Progress()).model
    ebw = EBW(damping=0.0)
    stepped = ebw.update(start, drop_loss(ebw.sums(start, Likelihood(), engine)))
    for name, value in by_em.density.tensors().items():
        np.testing.assert_allclose(stepped.density.tensors()[name], value, 1e-9, 1e-9)
    np.testing.assert_allclose(stepped.log_weight, by_em.log_weight, 1e-9, 1e-9)


def drop_loss(sums):
    """What an update takes."""
    return {name: value for name, value in sums.items() if name != "loss"}


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("structure", STUDENTS, ids="-".join)
def test_ebw_improves(structure, holes, generator):
    """Negative occupancies move degrees of freedom too, damped by the model's own statistics."""
    start, engine = problem(structure, generator, holes)
    prior = SpreadPrior(5.0, start.density.spread[0])
    for objective in (Conditional(), Hybrid(Likelihood(), Margin(3.0), 0.5)):
        found = check_solver(EBW(12), objective, start, engine, prior=prior)
        assert not torch.equal(found.model.density.dof, start.density.dof)
    published = EBW(5, per_component=False).run(start, Conditional(), engine, Progress())
    check_valid(published.model)


@pytest.mark.parametrize("solver", [Adam(4, batch_size=16, schedule="constant"), LBFGS(8)], ids=str)
@pytest.mark.parametrize("structure", STUDENTS, ids="-".join)
def test_gradients_improve(structure, solver, generator):
    """A valid model no worse than the start, the same every time; rows have holes."""
    start, engine = problem(structure, generator, holes=True)
    found = check_solver(solver, Conditional(), start, engine)
    assert not torch.equal(found.model.density.dof, start.density.dof)


def test_adam_in_single_precision(density, generator):
    """Parameters and rows in float32 come near to what float64 gives."""
    mixture = make_mixture(density, COUNTS, generator)
    engine = make_engine(mixture, 200, generator, holes=True)
    losses = []
    for dtype in (torch.float32, torch.float64):
        adam, random = Adam(5, schedule="constant"), torch.Generator().manual_seed(0)
        rows = engine.cast(dtype)
        found = adam.run(mixture, Conditional(), rows, Progress(), generator=random).model
        assert (torch.linalg.eigvalsh(found.density.covariances()) > 0).all()
        losses.append(penalized_loss(found, Conditional(), engine))
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
    assert losses[0] < penalized_loss(mixture, Conditional(), engine)


def test_em_and_lbfgs_end_at_the_same_maximum(generator):
    """Two ways to the likeliest t."""
    X, _ = heavy_rows(generator, 400)
    engine = engine_of(X)
    start = Recipe(Student(floor=1e-6), EM()).start(engine, 1, generator)
    by_em = EM(500, 1e-12).run(start, Likelihood(), engine, Progress()).model.density
    by_gradient = LBFGS(500, 1e-14).run(start, Likelihood(), engine, Progress()).model.density
    np.testing.assert_allclose(by_em.dof, by_gradient.dof, 1e-3)
    np.testing.assert_allclose(by_em.location, by_gradient.location, 1e-2, 1e-3)
    np.testing.assert_allclose(by_em.covariances(), by_gradient.covariances(), 1e-2, 1e-3)


# -- in company ----------------------------------------------------------------------------------


def test_beside_categories(generator):
    """A product of a t and categories is trained, imputed and completed."""
    numbers = make_student(("student_full", "covariance"), generator, n_features=3)
    coded = make_categorical(generator, (3, 2), n_components=3)
    density = Product(parts=(numbers, coded), columns=((0, 2, 4), (1, 3)))
    mixture = make_mixture(density, COUNTS, generator)
    x = mixture.sample(torch.arange(60) % 2, generator)
    observed = torch.rand(60, 5, generator=generator) < 0.7
    labels = torch.arange(60) % 2
    batch = Batch(torch.where(observed, x, 0.0), observed, labels, torch.ones(60).double())
    for whole in (mixture.impute(batch), mixture.draw(batch, generator)):
        np.testing.assert_allclose(whole[observed], x[observed], 1e-12)
        assert whole.isfinite().all()
    occupancy = mixture.posterior(batch)
    moved, valid = density.maximize(density.statistics(batch, occupancy))
    assert valid.all()
    before, after = ((d.log_prob(batch) * occupancy).sum() for d in (density, moved))
    assert after > before


@pytest.mark.parametrize("embedding", ["posterior", "density"])
def test_in_a_network(embedding, density, generator):
    """Rows with holes are completed by draws; answers are probabilities, and follow gradients."""
    mixture = make_mixture(density, COUNTS, generator)
    network = Network.blank(mixture, embedding)
    weight = torch.randn(3, dtype=torch.float64, generator=generator)
    network = replace(network, weight=weight, n_draws=16)
    batch = make_batch(density, 12, generator, holes=True)
    chance = network.class_log_proba(batch, mixture.log_joint(batch)).exp()
    np.testing.assert_allclose(chance.sum(1), 1.0, 1e-9)
    assert (chance > 0.0).all()
    engine = make_engine(mixture, 60, generator, holes=True)
    found = LBFGS(3).run(network, Conditional(), engine, Progress())
    assert found.objective < penalized_loss(network, Conditional(), engine)


def test_as_frames_of_a_chain(generator):
    """Hidden Markov models emit heavy tails: their statistics are those of the emissions."""
    emission = make_student(("student_diag", "covariance"), generator, n_features=2)
    counts = torch.ones(3, 3, dtype=torch.float64)
    chain = HiddenMarkov.from_states(emission, counts[0], counts)
    assert chain.closed_form
    again, valid = chain.maximize(chain.own_statistics())
    assert valid.all()
    np.testing.assert_allclose(again.emission.dof, emission.dof, 1e-9)


def test_scale_matrices_can_be_shared(density):
    """Components of a class with one scale matrix and one number of degrees of freedom."""
    mixture = make_mixture(density, [3], torch.Generator().manual_seed(0))
    rows = torch.tensor([5.0, 1.0, 2.0], dtype=torch.float64)
    shared = tied(density, rows, mixture.layout)
    np.testing.assert_allclose(shared.location, density.location, 1e-9)
    np.testing.assert_allclose(shared.dof, density.dof[:1].expand(3), 1e-9)


def test_a_file_holds_it(density, generator):
    """Packed and unpacked, it is the same to the bit."""
    mixture = make_mixture(density, COUNTS, generator)
    packer = _Packer()
    packed = packer.pack(mixture, "mixture")
    again = _Unpacker(packer.arrays).value(packed)
    assert isinstance(again, Mixture)
    for name, value in mixture.free().items():
        assert torch.equal(again.free()[name], value)
    batch = make_batch(density, 10, generator, holes=True)
    np.testing.assert_allclose(again.log_joint(batch), mixture.log_joint(batch), 1e-14)


def test_a_head_of_gaussians_is_refused(density, generator):
    """The last layer of a network is quadratic; a t is not."""
    with pytest.raises(UnsupportedError, match="Gaussian"):
        MixtureHead.from_mixture(make_mixture(density, COUNTS, generator))
