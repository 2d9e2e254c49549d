"""Many problems over the same rows, trained side by side: each as if it were alone."""

import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from mixed import make_categorical, make_hole_pattern, make_mixed
from named import close

from mixtura.data.atoms import Atoms
from mixtura.densities import Product
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.engines import Contrast, Prepared, Punched
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network, NetworkStack, RegressionNetwork
from mixtura.models.stack import Assignment, MixtureStack
from mixtura.numerics import invert_few
from mixtura.objectives import Conditional, Hybrid, Likelihood, Margin, Regression
from mixtura.progress import Progress
from mixtura.solvers import EM, LBFGS, SpreadPrior, small
from mixtura.solvers.elastic_net import ElasticNet, NetworkPrior
from mixtura.solvers.gradients import Packed
from mixtura.solvers.lbfgs import _function, explicit_sums, read_out_sums, traced_sums
from mixtura.solvers.small import (
    _SMALL,
    small_differentiation,
    small_function,
    small_log_joint,
    small_steps,
)
from mixtura.solvers.small_gaussians import Patterns
from mixtura.solvers.small_networks import small_read_out
from mixtura.testing import KINDS, make_density, make_engine, make_mixture
from mixtura.training.evidence import with_evidence
from mixtura.training.groups import Folds, Groups

COUNTS = [2, 1]


def make_with_atoms(generator):
    """Two values of the second column have chances."""
    numbers = make_density("low_rank", "covariance", generator, n_features=4)
    chances = make_categorical(generator, (3,), n_components=3)
    atoms = Atoms((1,), ((0.5, -1.0),), ((0.5, -1.0),))
    return Product(parts=(numbers, chances), columns=((0, 1, 2, 3),), atoms=atoms)


OBJECTIVES = {
    "conditional": Conditional(),
    "hybrid": Hybrid(Likelihood(0.4), Margin(3.0), 0.5),
}
#: Whatever is shipped.
DENSITIES = {
    **{" ".join(key): lambda g, key=key: make_density(*key, g, n_features=4) for key in KINDS},
    "categories": lambda g: make_categorical(g, (3, 2), n_components=3),
    "mixed": lambda g: make_mixed(g, "full", n_components=3),
    "mixed, informative": lambda g: make_mixed(g, "low_rank", n_components=3, informative=True),
    "atoms": make_with_atoms,
    "hole pattern": lambda g: make_hole_pattern(g, 3, n_components=3),
}
IMPLICIT = {"low_rank precision"}
#: What NumPy is faster at, where rows are few.
SMALL = {
    f"{kind} covariance"
    for kind in ("diag", "full", "low_rank", "student_diag", "student_full", "student_low_rank")
} | {"categories", "mixed", "mixed, informative", "atoms"}


def problems(name, count, generator, holes=True):
    """Mixtures to begin with, rows that they do not fit, and the trials that they belong to.

    A tenth of the rows has no label, a fifth is never held out.
    """
    truth, *starts = (
        make_mixture(DENSITIES[name](generator), COUNTS, generator) for _ in range(count + 1)
    )
    engine = make_engine(truth, 60, generator, holes=holes and name != "hole pattern")
    engine.y[::10] = -1
    number = torch.arange(60) % (count + 1) - 1
    return starts, engine, Folds(number, range(count))


def stacked(starts, engine, folds):
    """The same as one stack, with the rows as it is to meet them."""
    kind, assignment = folds.assignment(engine.y, len(COUNTS))
    return MixtureStack.of(starts, assignment), engine.with_answers(y=kind)


def without(engine, folds, trial):
    """The rows that a trial learns from."""
    return engine.only(folds.number != folds.held_out[trial])


# -- derivatives -------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "prior_rows"), [(1, 0.0), (1, 5.0), (3, 5.0)])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", sorted(DENSITIES.keys() - IMPLICIT))
def test_derivatives_by_statistics_are_those_of_autograd(
    name, objective, count, prior_rows, generator
):
    """Of all parameters of all problems; rows have holes, and some no label."""
    starts, engine, folds = problems(name, count, generator)
    stack, rows = stacked(starts, engine, folds)
    priors = [SpreadPrior(prior_rows, 2.0 * each.density.typical_spread) for each in starts]
    prior = SpreadPrior.stacked(priors, sum(COUNTS)) if prior_rows else None
    free = {name: value.clone() for name, value in stack.free().items()}
    explicit, traced = (
        sums(stack, free, OBJECTIVES[objective], rows, prior)
        for sums in (explicit_sums, traced_sums)
    )
    assert len(explicit["loss"]) == count
    close(explicit, {name: value.detach() for name, value in traced.items()})


@pytest.mark.parametrize("prior_rows", [0.0, 5.0])
@pytest.mark.parametrize(
    "objective",
    [Conditional(), *(Hybrid(Likelihood(), e, 0.3) for e in (Margin(3.0), Conditional()))],
)
@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.parametrize("holes", [False, True])
def test_small_problems_in_numpy_have_the_derivatives_of_autograd(
    holes, name, objective, prior_rows, generator
):
    """Away from the start too, of one mixture and of a stack of them, also beside copies."""
    starts, engine, folds = problems(name, 3, generator, holes)
    engine.y.clamp_(min=0)
    stack, rows = stacked(starts, engine, folds)
    priors = [SpreadPrior(prior_rows, 2.0 * each.density.typical_spread) for each in starts]
    many = SpreadPrior.stacked(priors, sum(COUNTS))
    cases = [(starts[0], engine, priors[0]), (stack, rows, many)]
    if holes or ("covariance" in name and "student" not in name):
        cases += [(model, each.seen(Contrast(2, 0.3)), prior) for model, each, prior in cases]
    if holes and "informative" not in name:  # which has what holes tell by itself
        size = 3 * len(COUNTS), engine.n_features
        drawn = (torch.randn(*size, dtype=torch.float64, generator=generator) for _ in range(2))
        evidence = HoleEvidence(base=next(drawn)[:, 0], log_odds=next(drawn))
        told, beside = with_evidence(stack, many, evidence)
        cases.append((told, rows, beside))
    for model, each, prior in cases:
        packed, given = Packed(model.free(), model.n_problems), prior if prior_rows else None
        point = packed.pack(model.free())
        point += 0.1 * np.random.default_rng(0).normal(size=point.shape)
        sums = partial(traced_sums, model, objective=objective, engine=each, prior=given)
        wanted = packed.mean(sums, model.total_weight(each.y, each.weight))(point)
        found = small_function(model, objective, each, given)(point)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, 1e-9, 1e-9)


@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.parametrize("holes", [False, True])
def test_minibatches_of_rows_that_are_kept_are_those_of_the_rows_anew(
    holes, name, generator, monkeypatch
):
    """Losses and gradients; what holes tell is beside, where rows have some."""
    (start,), engine, _ = problems(name, 1, generator, holes)
    engine.y.clamp_(min=0)
    prior = SpreadPrior(5.0, 2.0 * start.density.typical_spread)
    if holes and "informative" not in name:
        drawn = torch.randn(len(COUNTS), engine.n_features, dtype=torch.float64)
        start, prior = with_evidence(start, prior, HoleEvidence(base=drawn[:, 0], log_odds=drawn))
    index = torch.randperm(len(engine), generator=generator)[:25]
    found = []
    for kept in (len(engine), 0):
        monkeypatch.setattr(small, "_KEPT", kept)
        free = {name: value.clone().requires_grad_() for name, value in start.free().items()}
        loss = small_differentiation(start, Conditional(), free, engine, 25, prior)(index, 0.3)
        found.append(torch.cat([loss[None], *(leaf.grad.flatten() for leaf in free.values())]))
    np.testing.assert_allclose(*found, 1e-9, 1e-11)
    assert found[0].count_nonzero() > len(start.free())


@pytest.mark.parametrize("prior_rows", [0.0, 5.0])
@pytest.mark.parametrize("unlabeled_weight", [None, 0.3])
@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.parametrize("holes", [False, True])
def test_small_problems_in_numpy_take_the_steps_of_em(
    holes, name, unlabeled_weight, prior_rows, generator, monkeypatch
):
    """Of class mixtures and of single classes, alone and in stacks that settle one by one.

    One component has no rows, and stays where it is unless a prior moves it.
    """
    starts, engine, folds = problems(name, 3, generator, holes)
    if unlabeled_weight is None:
        engine.y.clamp_(min=0)
    far = {key: value.clone() for key, value in starts[0].density.tensors().items()}
    for key in far.keys() & {"mean", "scale.mean", "0.mean"}:
        far[key][1] = 200.0
    starts[0] = replace(starts[0], density=starts[0].density.with_tensors(far))
    stack, rows = stacked(starts, engine, folds)
    priors = [SpreadPrior(prior_rows, 2.0 * each.density.typical_spread) for each in starts]
    cases = [(starts[0], engine, priors[0]), (stack, rows, SpreadPrior.stacked(priors, 3))]
    if unlabeled_weight is None:
        groups = Groups.by_class(engine, 2, folds)
        own, assignment = groups.part([0, 1])
        singles = MixtureStack.of([e.of_class(0) for e in starts for _ in range(2)], assignment)
        again = SpreadPrior.stacked([prior for prior in priors for _ in range(2)], 2)
        cases.append((singles, own, again))
    objective, found = Likelihood(unlabeled_weight), []
    for together, most in ((10**9, 10**9), (0, 10**9), (0, 0)):  # the last by PyTorch
        monkeypatch.setattr(small, "_TOGETHER", together)
        monkeypatch.setattr(small, "_SMALL", {False: most, True: most})
        for model, each, prior in cases:
            given = prior if prior_rows else None
            assert (small_steps(model, objective, each, given) is None) == (most == 0)
            found.append(EM(9, 0.02).run(model, objective, each, Progress(), prior=given))
    wanted = found[2 * len(cases) :] * 2
    for ours, theirs in zip(found[: len(wanted)], wanted, strict=True):
        assert (ours.n_iter, ours.converged) == (theirs.n_iter, theirs.converged)
        close({"loss": ours.losses}, {"loss": theirs.losses})
        close(ours.model.density.tensors(), theirs.model.density.tensors())
        close(ours.model.free(), theirs.model.free(), 1e-7)  # magnified near floors


@pytest.mark.parametrize("name", sorted(DENSITIES.keys() - {"hole pattern"}))
@pytest.mark.parametrize("holes", [False, True])
def test_small_problems_in_numpy_have_the_log_joints(holes, name, generator):
    (start,), engine, _ = problems(name, 1, generator, holes)
    rows = engine.all_rows()
    found = small_log_joint(start, rows)
    assert (found is None) == (name not in SMALL)
    if found is not None:
        np.testing.assert_allclose(found, start.class_log_joint(rows), 1e-10, 1e-10)


def test_parts_of_rows_beside_copies_add_up(generator, monkeypatch):
    """Imagined rows count once."""
    (start,), engine, _ = problems("full covariance", 1, generator, holes=False)
    prior, packed = SpreadPrior(5.0, 2.0 * start.density.typical_spread), Packed(start.free(), 1)
    rows, point = engine.seen(Contrast(2, 0.3)), packed.pack(start.free())
    whole = small_function(start, Likelihood(), rows, prior)(point)
    monkeypatch.setattr(small, "_FEWEST", 16)
    monkeypatch.setattr(small, "_CACHED", 1)
    parts = small_function(start, Likelihood(), rows, prior)(point)
    for one, other in zip(parts, whole, strict=True):
        np.testing.assert_allclose(one, other, 1e-10, 1e-10)


def test_parts_of_rows_beside_copies_keep_nothing_between_passes(generator):
    """What whitens rows, and whitened rows, are many times as much as the rows are."""
    (start,), *_ = problems("full covariance", 1, generator, holes=False)
    engine = make_engine(start, 60_000, generator).seen(Contrast(2, 0.3))
    packed = Packed(start.free(), 1)
    function, point = small_function(start, Conditional(), engine, None), packed.pack(start.free())
    tracemalloc.start()
    function(point)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 8 * len(engine)


def test_which_problems_are_not_small(generator, monkeypatch):
    """Holes at random, many rows or columns, and densities of other kinds are PyTorch's."""
    for name in DENSITIES.keys() - SMALL - {"hole pattern"}:
        (start,), engine, _ = problems(name, 1, generator, holes=False)
        assert small_function(start, Conditional(), engine, None) is None
    (start,), engine, _ = problems("full covariance", 1, generator)
    assert small_function(start, Conditional(), engine.seen(Punched(0.3, generator)), None) is None
    wide = make_mixture(
        make_density("full", "covariance", generator, n_features=13), COUNTS, generator
    )
    many = make_engine(wide, 60, generator, holes=True)
    assert small_function(wide, Conditional(), many, None) is None
    (start,), engine, _ = problems("student_full covariance", 1, generator, holes=False)
    assert small_function(start, Conditional(), engine.seen(Contrast(1, 0.3)), None) is None
    (start,), engine, _ = problems("full covariance", 1, generator, holes=False)
    numbers = len(engine) * start.n_components * engine.n_features
    for most in (numbers, numbers - 1):
        monkeypatch.setitem(_SMALL, False, most)
        assert (small_function(start, Conditional(), engine, None) is None) == (most < numbers)


def test_which_densities_have_derivatives_by_statistics(generator):
    """All but those without an M step in closed form."""
    found = {name for name, make in DENSITIES.items() if not make(generator).explicit}
    assert found == IMPLICIT


@pytest.mark.parametrize("name", DENSITIES)
def test_one_mixture_or_a_stack_of_it(name, generator):
    """A stack of one has the loss and the slopes of its mixture."""
    (start,), engine, _ = problems(name, 1, generator)
    stack = MixtureStack.of([start], Assignment(torch.ones(1, 3).bool(), torch.tensor([0, 1, -1])))
    rows = engine.with_answers(y=engine.y % 3)
    one, other = (
        traced_sums(model, model.free(), OBJECTIVES["hybrid"], each, None)
        for model, each in ((start, engine), (stack, rows))
    )
    close({k: v.view(one[k].shape) for k, v in other.items()}, one)


# -- networks ----------------------------------------------------------------------------------


def networks(embedding, name, count, holes, generator, kind=Network):
    """Networks with random read-outs, rows, trials, and penalties."""
    starts, engine, folds = problems(name, count, generator, holes)
    if kind is RegressionNetwork:
        starts = [replace(Mixture.single(each.density), learn_prior=True) for each in starts]

    def draw(like):
        return torch.randn(like.shape, dtype=like.dtype, generator=generator)

    found = [
        replace(kind.blank(each, embedding), n_draws=4).with_read_out(
            draw(each.log_weight),
            draw(each.log_prior),
            draw(each.log_weight),
            draw(each.log_weight).exp(),
        )
        for each in starts
    ]
    spreads = [SpreadPrior(5.0, 2.0 * each.density.typical_spread) for each in starts]
    return found, engine, folds, spreads


def prepared(model, engine):
    """The rows beside draws of what is missing."""
    return engine.seen(Prepared(model.completed)) if engine.may_have_missing else engine


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("kind", [Network, RegressionNetwork])
@pytest.mark.parametrize("embedding", ["posterior", "log_density"])
@pytest.mark.parametrize("name", ["low_rank covariance", "mixed, informative"])
def test_derivatives_of_networks_by_statistics_are_those_of_autograd(
    name, embedding, kind, holes, generator
):
    """Of mixtures, priors and read-out; draws of what is missing stay, and rows follow them."""
    (network,), engine, _, (spread,) = networks(embedding, name, 1, holes, generator, kind)
    objective, rows = OBJECTIVES["hybrid"], prepared(network, engine)
    if kind is RegressionNetwork:
        objective, rows = Regression(0.3), prepared(network, engine.with_answers(y=engine.weight))
    prior = NetworkPrior(ElasticNet(0.1, 0.2), torch.tensor([7.0]).double(), spread)
    next(rows.chunks(10**9))  # what completes the rows is not what is asked
    moved = {name: value + 0.1 for name, value in network.free().items()}
    explicit, traced = (
        sums(network, {k: v.clone() for k, v in moved.items()}, objective, rows, prior)
        for sums in (read_out_sums, traced_sums)
    )
    close(explicit, {name: value.detach() for name, value in traced.items()}, 1e-8)


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("kind", [Network, RegressionNetwork])
@pytest.mark.parametrize("embedding", ["posterior", "log_density"])
@pytest.mark.parametrize("name", sorted(SMALL - {"atoms"}))
def test_small_networks_in_numpy_have_the_derivatives_of_autograd(
    name, embedding, kind, holes, generator
):
    """Of one network, some rows unlabeled, and of a stack; stacks with draws have no autograd."""
    found, engine, folds, spreads = networks(embedding, name, 3, holes, generator, kind)
    net, rows = ElasticNet(0.1, 0.2), torch.arange(5.0, 8.0).double()
    cases = [(found[0], engine, NetworkPrior(net, rows[:1], spreads[0]))]
    objective = OBJECTIVES["hybrid"]
    if kind is RegressionNetwork:
        cases = [(found[0], engine.with_answers(y=engine.weight), cases[0][2])]
        objective = Regression(0.3)
    else:
        label, assignment = folds.assignment(engine.y, len(COUNTS))
        stack, prior = NetworkStack.of(found, assignment), SpreadPrior.stacked(spreads, sum(COUNTS))
        cases += [(stack, engine.with_answers(y=label), NetworkPrior(net, rows, prior))]
    for model, rows, prior in cases:
        each = prepared(model, rows)
        packed = Packed(model.free(), model.n_problems)
        point = packed.pack(model.free())
        point += 0.1 * np.random.default_rng(0).normal(size=point.shape)
        drawn = holes and model.n_problems > 1
        sums = partial(
            read_out_sums if drawn else traced_sums,
            model,
            objective=objective,
            engine=each,
            prior=prior,
        )
        wanted = packed.mean(sums, model.total_weight(each.y, each.weight))(point)
        for one, other in zip(
            small_read_out(model, objective, each, prior)(point), wanted, strict=True
        ):
            np.testing.assert_allclose(one, other, 1e-9, 1e-9)


@pytest.mark.parametrize("n_draws", [1, 40])
def test_which_networks_are_not_small(n_draws, generator, monkeypatch):
    """Rows with holes stand beside their draws: few of both are NumPy's, also in L-BFGS."""
    found, engine, _, spreads = networks("posterior", "low_rank covariance", 1, True, generator)
    network = replace(found[0], n_draws=n_draws)
    rows, density = prepared(network, engine), network.density
    prior = NetworkPrior(ElasticNet(0.1, 0.2), torch.ones(1).double(), spreads[0])
    (batch,) = rows.chunks(len(engine))
    numbers = len(batch) * density.row_cost(True), len(batch.drawn[0]) * density.row_cost(False)
    assert (numbers[1] > numbers[0]) == (n_draws > 1)
    packed = Packed(network.free(), 1)
    for most in (max(numbers), max(numbers) - 1):
        monkeypatch.setitem(_SMALL, True, most)
        small_one = small_read_out(network, Conditional(), rows, prior)
        assert (small_one is None) == (most < max(numbers))
        chosen, _ = _function(network, Conditional(), rows, prior, packed)
        assert (type(chosen) is type(small_one)) == (most == max(numbers))


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("embedding", ["posterior", "log_density"])
def test_networks_of_a_stack_are_those_alone(embedding, holes, generator):
    """Each has the loss and slopes that it has on the rows of its trial, with its own draws."""
    found, engine, folds, spreads = networks(embedding, "low_rank covariance", 3, holes, generator)
    kind, assignment = folds.assignment(engine.y, len(COUNTS))
    stack, rows = NetworkStack.of(found, assignment), engine.with_answers(y=kind)
    weight, net = torch.arange(1.0, 4.0).double(), ElasticNet(0.1, 0.2)
    prior = NetworkPrior(net, weight, SpreadPrior.stacked(spreads, sum(COUNTS)))
    objective = OBJECTIVES["hybrid"]
    together = read_out_sums(stack, stack.free(), objective, prepared(stack, rows), prior)
    for place, network in enumerate(found):
        own = NetworkPrior(net, weight[place : place + 1], spreads[place])
        shown = prepared(network, without(engine, folds, place))
        alone = read_out_sums(network, network.free(), objective, shown, own)
        close(
            {k: v.reshape(3, -1)[place] for k, v in together.items()},
            {k: v.reshape(-1) for k, v in alone.items()},
        )
    back = stack.networks()
    assert all(torch.equal(each.weight, one.weight) for each, one in zip(back, found, strict=True))


# -- training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("name", DENSITIES)
def test_em_of_a_stack_is_that_of_each(name, holes, generator):
    """Same starts, same iterations, each with its own prior: the same mixtures and losses."""
    starts, engine, folds = problems(name, 3, generator, holes)
    stack, rows = stacked(starts, engine, folds)
    priors = [SpreadPrior(3.0, (1 + i) * s.density.typical_spread) for i, s in enumerate(starts)]
    em, likelihood = EM(2, -1.0), Likelihood(0.4)
    prior = SpreadPrior.stacked(priors, sum(COUNTS))
    found = em.run(stack, likelihood, rows, Progress(), prior=prior)
    for trial, start in enumerate(starts):
        alone = em.run(
            start, likelihood, without(engine, folds, trial), Progress(), prior=priors[trial]
        )
        close(found.model[trial].free(), alone.model.free())
        assert float(found.losses[trial]) == pytest.approx(alone.objective, rel=1e-9)


def test_em_of_each_stops_when_it_has_settled(generator):
    """After as many iterations as it takes alone, with the loss that it has then."""
    starts, engine, folds = problems("full covariance", 3, generator)
    em, (stack, rows) = EM(50, 1e-2), stacked(starts, engine, folds)
    found = em.run(stack, Likelihood(0.4), rows, Progress())
    each = [
        em.run(start, Likelihood(0.4), without(engine, folds, trial), Progress())
        for trial, start in enumerate(starts)
    ]
    assert len({alone.n_iter for alone in each}) > 1
    assert found.n_iter == max(alone.n_iter for alone in each) < 50
    for trial, alone in enumerate(each):
        close(found.model[trial].free(), alone.model.free())
        assert float(found.losses[trial]) == pytest.approx(alone.objective, rel=1e-9)


@pytest.mark.parametrize("name", ["full covariance", "student_diag covariance", "mixed"])
def test_lbfgs_of_a_stack_is_that_of_each(name, generator):
    """Also where one settles before the others."""
    starts, engine, folds = problems(name, 3, generator)
    objective, lbfgs = OBJECTIVES["hybrid"], LBFGS(6, 1e-2)
    starts[1] = LBFGS(15).run(starts[1], objective, without(engine, folds, 1), Progress()).model
    stack, rows = stacked(starts, engine, folds)
    found = lbfgs.run(stack, objective, rows, Progress())
    each = [
        lbfgs.run(start, objective, without(engine, folds, trial), Progress())
        for trial, start in enumerate(starts)
    ]
    assert each[1].n_iter < max(alone.n_iter for alone in each)
    for trial, alone in enumerate(each):
        close(found.model[trial].free(), alone.model.free(), 1e-7)
        assert float(found.losses[trial]) == pytest.approx(alone.objective, rel=1e-9)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_few_matrices_are_inverted_as_numpy_does(rng, size):
    root = rng.normal(size=(30, size, size + 2))
    matrix = root @ root.swapaxes(1, 2)
    work = matrix.transpose(1, 2, 0).copy()
    log_det = invert_few(work)
    np.testing.assert_allclose(work.transpose(2, 0, 1), np.linalg.inv(matrix), rtol=1e-8)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(matrix)[1], rtol=1e-10)


def test_sums_over_what_is_observed_take_little_memory():
    """Of many columns, some missing together: as by a loop, and no matrix of columns by columns."""
    rng = np.random.default_rng(0)
    observed = rng.random((40, 3000)) < 0.7
    observed[:, 1:900:3] = observed[:, :1]
    values = rng.normal(size=(4, 3000))
    tracemalloc.start()
    patterns = Patterns(torch.from_numpy(observed))
    found = patterns.over_observed(values)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    wanted = [values[:, row].sum(1) for row in observed]
    np.testing.assert_allclose(found[:, patterns.place].T, wanted, atol=1e-10)
    assert most < 8 * 3000**2 / 4
