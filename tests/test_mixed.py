"""Densities over mixed columns, and their training, against loops and enumeration."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from memory import Largest
from mixed import (
    MIXED_CHECKS,
    check_frequencies,
    check_mixed,
    check_mixed_valid,
    make_categorical,
    make_mixed,
    plain,
    slow_hole_counts,
    slow_log_prob,
)
from scipy.special import softmax

import mixtura.densities.categorical as categorical
from mixtura.data.batch import Batch
from mixtura.data.scaling import Scaling
from mixtura.densities import Categorical, Product
from mixtura.engines import Engine, Punched
from mixtura.exceptions import UnsupportedError
from mixtura.objectives import Conditional, Hybrid, Likelihood, Margin, SmoothMargin
from mixtura.progress import Progress
from mixtura.solvers import EBW, EM, LBFGS, Adam, SpreadPrior
from mixtura.testing import STRUCTURES, dense_conditional, make_batch, make_mixture, penalized_loss

CLOSED_FORM = [key for key, (kind, _) in STRUCTURES.items() if kind.closed_form]
CPU = torch.device("cpu")
#: What the columns are, and whether holes tell anything.
KINDS = {
    **{f"{c} {p}": {"covariance": c, "parameterization": p} for c, p in STRUCTURES},
    "informative": {"covariance": "diag", "informative": True},
    "only categories": {"n_numbers": 0},
    "only categories, informative": {"n_numbers": 0, "levels": (2, 3), "informative": True},
    "only numbers, informative": {"levels": (), "informative": True},
}


# -- densities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("check", MIXED_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_property(kind, check, generator):
    """Every kind of table has every property."""
    check(make_mixed(generator, **KINDS[kind]), generator)


def test_check_mixed_runs_every_check(generator):
    """One component, one column of each kind, by one call."""
    check_mixed(make_mixed(generator, n_components=1, n_numbers=1, levels=(2,)), generator)


@pytest.mark.parametrize(
    "check",
    [c for c in MIXED_CHECKS if "sample" not in c.__name__ and "complete" not in c.__name__],
    ids=lambda check: check.__name__,
)
def test_looking_up_is_no_special_case(check, generator, monkeypatch):
    """The path for very many categories has every property too."""
    monkeypatch.setattr(categorical, "_FEW", 0)
    monkeypatch.setattr(categorical, "_PER_COLUMN", 0)
    check(make_mixed(generator, "diag", informative=True), generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_paths_agree_with_very_many_categories(dtype, generator, monkeypatch):
    """600 categories are looked up; a product with indicators says the same, and so does a loop."""
    density = make_categorical(generator, (600, 1, 5))
    batch = make_batch(density, 60, generator, holes=True).to(dtype)
    share = torch.randn(60, 2, dtype=dtype, generator=generator)
    looked_up = density.log_prob(batch), density.statistics(batch, share)["count"]
    monkeypatch.setattr(categorical, "_FEW", 10_000)
    multiplied = density.log_prob(batch), density.statistics(batch, share)["count"]
    exact = 1e-12 if dtype == torch.float64 else 1e-5
    for one, other in zip(looked_up, multiplied, strict=True):
        assert one.dtype == other.dtype == dtype
        np.testing.assert_allclose(one, other, exact, exact)
    whole = Product(parts=(density,), columns=((0, 1, 2),))
    expected = slow_log_prob(whole, batch.to(torch.float64))
    np.testing.assert_allclose(looked_up[0], expected, exact, exact)


def test_few_categories_per_column_are_multiplied_however_many_columns(generator, monkeypatch):
    """A look-up would read a chance per row, column and component: ten times the work."""
    density = make_categorical(generator, (2,) * 300)
    batch = make_batch(density, 20, generator, holes=True)
    multiplied = density.log_prob(batch)
    monkeypatch.setattr(categorical.Categorical, "indicators", None)
    with pytest.raises(TypeError, match="not callable"):
        density.log_prob(batch)
    monkeypatch.setattr(categorical, "_PER_COLUMN", 0)
    np.testing.assert_allclose(multiplied, density.log_prob(batch), 1e-12, 1e-12)


def test_gradients_of_very_many_categories(generator):
    """By the logits of 600 categories: observed minus expected counts, as textbooks have it."""
    density = make_categorical(generator, (600, 5))
    batch = make_batch(density, 40, generator, holes=True)
    share = torch.rand(40, 2, dtype=torch.float64, generator=generator)
    logit = density.free()["logit"].clone().requires_grad_()
    (density.from_free({"logit": logit}).log_prob(batch) * share).sum().backward()
    seen = share.mT @ batch.observed.double()
    total = torch.cat([seen[:, [0]].expand(2, 600), seen[:, [1]].expand(2, 5)], 1)
    expected = density.statistics(batch, share)["count"] - total * density.spread
    np.testing.assert_allclose(logit.grad, expected, 1e-9, 1e-9)


@pytest.mark.parametrize(
    "task",
    [
        "log_prob",
        "statistics",
        "fill",
    ],
)
def test_memory_is_as_promised(task, generator):
    """What a row takes is what the size of a chunk is chosen by, however many categories."""
    density = make_categorical(generator, (1000,))
    batch = make_batch(density, 2000, generator, holes=True)
    share = torch.full((2000, 2), 0.5).double()
    with torch.no_grad(), Largest() as seen:
        if task == "log_prob":
            density.log_prob(batch)
        else:
            getattr(density, task)(batch, share)
    assert seen.most <= 2000 * density.row_cost(missing=True)


def test_updates_respect_the_floor(generator):
    """A category that no row has keeps a small chance, and the others share the rest."""
    density = replace(make_categorical(generator, (4,), n_components=1), floor=1e-3)
    codes = torch.tensor([[0.0]] * 3 + [[1.0]]).double()
    batch = Batch(codes, None, torch.zeros(4).long(), torch.ones(4).double())
    updated, valid = density.maximize(density.statistics(batch, torch.ones(4, 1).double()))
    assert valid.all()
    expected = [0.75 * 0.998, 0.25 * 0.998, 1e-3, 1e-3]
    np.testing.assert_allclose(updated.spread[0], expected, 1e-9)


def test_raising_some_chances_does_not_sink_others(generator):
    """A chance just above the floor is raised as well once the others have taken their share."""
    density = replace(make_categorical(generator, (5,), n_components=1), floor=0.1)
    count = torch.tensor([[0.0, 0.0, 0.101, 0.4, 0.499]], dtype=torch.float64)
    updated, _ = density.maximize({"mass": torch.ones(1).double(), "count": count})
    chance = updated.spread[0].numpy()
    np.testing.assert_allclose(chance[:3], 0.1, 1e-9)
    np.testing.assert_allclose(chance[3:], 0.7 * np.array([0.4, 0.499]) / 0.899, 1e-9)


def test_impossible_counts_are_reported(generator):
    """Negative masses and negative counts are flagged, component by component."""
    density = make_categorical(generator, (3, 2), n_components=3)
    statistics = density.own_statistics()
    mass, count = statistics["mass"].clone(), statistics["count"].clone()
    mass[0], count[1, 2] = -1.0, -0.5
    assert density.maximize({"mass": mass, "count": count})[1].tolist() == [False, False, True]


def test_a_column_never_observed_stays(generator):
    """A component that saw nothing of a column keeps its chances there."""
    density = make_categorical(generator, (3, 2))
    codes = torch.zeros(5, 2).double()
    observed = torch.tensor([[True, False]] * 5)
    batch = Batch(codes, observed, torch.zeros(5).long(), torch.ones(5).double())
    updated, valid = density.maximize(density.statistics(batch, torch.ones(5, 2).double()))
    assert valid.all()
    np.testing.assert_allclose(updated.spread[:, 3:], density.spread[:, 3:], 1e-12)
    assert (updated.spread[:, 0] > 0.99).all()


@pytest.mark.parametrize("kind", ["informative", "only categories"])
def test_parameters_are_counted(kind, generator):
    """As many as there are directions in which the density can change (Jacobian's rank)."""
    density = make_mixed(generator, **KINDS[kind], n_components=1)
    names, values = zip(*density.free().items(), strict=True)

    def moments(*free):
        made = density.from_free(dict(zip(names, free, strict=True)))
        return torch.cat([made.location.flatten(), made.spread.flatten()])

    jacobian = torch.autograd.functional.jacobian(moments, values)
    wide = torch.cat([part.flatten(1) for part in jacobian], 1)
    assert torch.linalg.matrix_rank(wide) == density.n_parameters


def test_columns_find_their_part(generator):
    """Every column is found where it stands, and covariances are those of the real columns."""
    density = make_mixed(generator, n_numbers=2, levels=(3, 2))
    assert density.columns == ((3, 1), (0, 2))
    assert [density.find(column) for column in range(4)] == [(1, 0), (0, 1), (1, 1), (0, 0)]
    dense, own = density.covariances(), density.parts[0].covariances()
    np.testing.assert_allclose(dense[:, [3, 1]][:, :, [3, 1]], own, 1e-12)
    assert dense[:, [0, 2]][:, :, [0, 2]].isnan().all()
    assert (dense[:, [0, 2]][:, :, [3, 1]] == 0).all()


def test_clusters_have_their_frequencies(rng):
    """A start has the weighted frequencies of its rows."""
    codes, share = rng.integers(0, 3, size=(50, 2)), rng.uniform(0.1, 1.0, size=(50, 2))
    made = Categorical.from_clusters(
        torch.from_numpy(codes).double(), torch.from_numpy(share), (3, 3)
    )
    expected = [
        [np.average(codes[:, column] == code, weights=share[:, k]) for column in (0, 1)
         for code in range(3)]
        for k in (0, 1)
    ]  # fmt: skip
    np.testing.assert_allclose(made.spread, expected, 1e-9)


# -- training ----------------------------------------------------------------------------------

COUNTS = [2, 1]


def problem(kind, generator, n=60, holes=True, unlabeled=False):
    """A start, and labeled, weighted rows that it does not fit yet, some of them wholly empty."""
    truth, start = (
        make_mixture(make_mixed(generator, **kind, n_components=3), COUNTS, generator)
        for _ in range(2)
    )
    labels = torch.arange(n) % 2
    X = truth.sample(labels, generator).numpy()
    if holes:
        X[torch.rand(X.shape, generator=generator).numpy() < 0.25] = np.nan
        X[:4] = np.nan
    weight = 0.5 + torch.rand(n, generator=generator).double().numpy()
    y = np.where(np.arange(n) % 3 == 0, -1, labels) if unlabeled else labels.numpy()
    engine = Engine(X, y, weight, scaling=Scaling.identity(X.shape[1]), device=CPU)
    return start, engine


def slow_em_step(mixture, batch, rows=0.0, reference=None, unlabeled=None):
    """Weights, prior, means, covariances, tables and chances of absence after one step of EM."""
    density, known = mixture.density, plain(mixture.density)
    owner, y, weight = mixture.owner.numpy(), batch.y.numpy(), batch.weight.numpy()
    log_joint = slow_log_prob(density, batch)
    log_joint = log_joint + mixture.log_weight.numpy() + mixture.log_prior.numpy()[owner]
    share = np.zeros_like(log_joint)
    for i in range(len(y)):
        own = owner == y[i] if y[i] >= 0 else np.ones(len(owner), bool)
        counts = 1.0 if unlabeled is None else (1.0 - unlabeled if y[i] >= 0 else unlabeled)
        share[i, own] = counts * weight[i] * softmax(log_joint[i, own])
    mass = share.sum(0)
    by_class = np.array([mass[owner == c].sum() for c in range(mixture.n_classes)])
    found = {"weight": mass / by_class[owner], "prior": by_class / by_class.sum()}
    seen = np.ones(batch.x.shape, bool) if batch.observed is None else batch.observed.numpy()
    reference = None if reference is None else reference.numpy()
    at = 0
    if known.numbers is not None:
        d, spread = len(known.places), known.numbers.spread[0].numpy()
        imagined = 0.0 if reference is None else reference[: spread.size].reshape(spread.shape)
        at = spread.size
        view = Batch(
            batch.x[:, known.places],
            torch.from_numpy(seen[:, known.places]),
            batch.y,
            batch.weight,
        )
        expected, covariance = dense_conditional(known.numbers, view)
        found["mean"], found["covariance"] = np.zeros((len(mass), d)), np.zeros((len(mass), d, d))
        for k in range(len(mass)):
            mean = sum(share[i, k] * expected[i, k] for i in range(len(y))) / mass[k]
            total = np.zeros((d, d))
            for i in range(len(y)):
                off = expected[i, k] - mean
                total += share[i, k] * (np.outer(off, off) + covariance[i, k])
            if spread.ndim == 1:
                total = np.diag(np.diag(total) + rows * imagined)
            else:
                total = total + rows * imagined
            found["mean"][k], found["covariance"][k] = mean, total / (mass[k] + rows)
    x = batch.x.numpy()
    counts = []
    for column, table in known.tables.items():
        count = np.zeros_like(table)
        for i in np.flatnonzero(seen[:, column]):
            count[:, int(x[i, column])] += share[i]
        counts.append((count, 1e-6))
    if known.holes is not None:
        holes = slow_hole_counts(known.holes, ~seen, share)
        counts += [(count, 0.01) for count in np.split(holes, x.shape[1], 1)]
    for number, (count, floor) in enumerate(counts):
        if reference is not None:
            count += rows * reference[at : at + count.shape[1]]
            at += count.shape[1]
        found[f"table {number}"] = np.array([floored(row / row.sum(), floor) for row in count])
    return found


def floored(chance, floor):
    """Chances raised to the floor, at the cost of the others."""
    low = chance < floor
    return np.where(low, floor, chance * (1.0 - floor * low.sum()) / chance[~low].sum())


def as_found(mixture):
    """The same numbers of a mixture."""
    density, known = mixture.density, plain(mixture.density)
    found = {"weight": mixture.log_weight.exp(), "prior": mixture.log_prior.exp()}
    if known.numbers is not None:
        found |= {"mean": known.numbers.mean, "covariance": known.numbers.covariances()}
    tables = list(known.tables.values())
    if known.holes is not None:
        tables += known.holes.by_column(known.holes.spread)
    assert len(density.parts) == len(density.columns) + density.informative
    return found | {f"table {number}": table for number, table in enumerate(tables)}


@pytest.mark.parametrize("rows", [0.0, 4.0], ids="{:g} imagined rows".format)
@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize(
    "kind", ["full covariance", "diag covariance", "informative", "only categories"]
)
def test_one_step_of_em_is_that_of_the_textbook(kind, holes, rows, generator):
    """Weights, prior, moments and frequencies are those of loops over rows and components."""
    start, engine = problem(KINDS[kind], generator, holes=holes)
    reference = start.density.typical_spread
    prior = SpreadPrior(rows, reference) if rows else None
    stepped = EM(1).run(start, Likelihood(), engine, Progress(), prior=prior).model
    batch = engine.all_rows()
    expected = slow_em_step(start, batch, rows, reference if rows else None)
    given = as_found(stepped)
    assert given.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(given[name], value, 1e-9, 1e-9, err_msg=name)


def test_one_step_of_em_with_unlabeled_rows(generator):
    """Rows without a label are shared among the components of all classes."""
    start, engine = problem(KINDS["full covariance"], generator, unlabeled=True)
    stepped = EM(1).run(start, Likelihood(0.3), engine, Progress()).model
    expected = slow_em_step(start, engine.all_rows(), unlabeled=0.3)
    for name, value in expected.items():
        np.testing.assert_allclose(as_found(stepped)[name], value, 1e-9, 1e-9, err_msg=name)


@pytest.mark.parametrize("rows", [0.0, 7.0], ids="{:g} imagined rows".format)
@pytest.mark.parametrize("informative", [False, True], ids=["ignored", "informative"])
@pytest.mark.parametrize("structure", [*CLOSED_FORM, None], ids=str)
def test_em_never_goes_down(structure, informative, rows):
    """Every iteration improves the likelihood, or the likelihood plus the log prior."""
    kind = {"n_numbers": 0} if structure is None else dict(zip(NAMES, structure, strict=True))
    for seed in (0, 3):
        generator = torch.Generator().manual_seed(seed)
        start, engine = problem({**kind, "informative": informative}, generator)
        prior = SpreadPrior(rows, start.density.typical_spread) if rows else None
        progress = Progress()
        result = EM(10, -1.0).run(start, Likelihood(), engine, progress, prior=prior)
        losses = np.array([record["objective"] for record in progress.history])
        assert len(losses) == 10
        assert (np.diff(losses) <= 1e-9 * np.abs(losses[1:])).all()
        assert losses[-1] < losses[0] - 1e-3
        check_mixed_valid(result.model)


NAMES = ("covariance", "parameterization")
OBJECTIVES = {
    "conditional": Conditional(),
    "margin": Margin(3.0),
    "smooth margin": SmoothMargin(3.0),
    "hybrid": Hybrid(Likelihood(), Margin(3.0), 0.2),
}


def run_twice(solver, objective, start, engine, prior=None):
    """Valid, repeatable, and better than the start, by how much."""
    first, second = (
        solver.run(
            start,
            objective,
            engine,
            Progress(),
            generator=torch.Generator().manual_seed(0),
            prior=prior,
        )
        for _ in range(2)
    )
    check_mixed_valid(first.model)
    for name, value in first.model.free().items():
        assert torch.equal(value, second.model.free()[name])
    before, after = (
        penalized_loss(each, objective, engine, prior) for each in (start, first.model)
    )
    return before - after, before


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", ["full covariance", "informative", "only categories"])
def test_ebw_improves(kind, name, generator):
    """A tenth of a discriminative loss is gone in a few iterations."""
    start, engine = problem(KINDS[kind], generator)
    gain, before = run_twice(EBW(8), OBJECTIVES[name], start, engine)
    assert gain > (0.1 * before if name != "hybrid" else 1e-3)


@pytest.mark.parametrize("kind", ["full covariance", "informative", "only categories"])
def test_every_iterate_of_ebw_is_valid(kind, generator):
    """Not only the best one: chances stay above nothing whatever the signs of the masses."""
    mixture, engine = problem(KINDS[kind], generator)
    prior = SpreadPrior(2.0, mixture.density.typical_spread)
    for _ in range(6):
        sums = EBW().sums(mixture, Conditional(), engine)
        sums.pop("loss")
        mixture = EBW().update(mixture, sums, prior)
        check_mixed_valid(mixture)
        for part in mixture.density.parts:
            if isinstance(part, Categorical):
                assert part.spread.min() >= 1e-6 * (1.0 - 1e-9)


def test_ebw_without_damping_is_em(generator):
    """On the likelihood, the update is that of one EM iteration."""
    start, engine = problem(KINDS["informative"], generator)
    sums = EBW().sums(start, Likelihood(), engine)
    sums.pop("loss")
    stepped = EBW(damping=0.0).update(start, sums)
    expected = EM(1).run(start, Likelihood(), engine, Progress()).model
    for name, value in as_found(expected).items():
        np.testing.assert_allclose(as_found(stepped)[name], value, 1e-9, 1e-9)


@pytest.mark.parametrize("rows", [0.0, 3.0], ids="{:g} imagined rows".format)
@pytest.mark.parametrize("name", ["conditional", "hybrid"])
@pytest.mark.parametrize("kind", ["low_rank precision", "informative", "only categories"])
def test_gradients_improve(kind, name, rows, generator):
    """L-BFGS and Adam bring their loss down, with and without a prior."""
    start, engine = problem(KINDS[kind], generator)
    prior = SpreadPrior(rows, start.density.typical_spread) if rows else None
    for solver in (LBFGS(5), Adam(5, batch_size=20, learning_rate=0.03, schedule="constant")):
        gain, before = run_twice(solver, OBJECTIVES[name], start, engine, prior)
        assert gain > 0.02 * abs(before)


def test_gradients_with_punched_holes(generator):
    """Holes that training punches are marginalized, and none that a row came with."""
    start, engine = problem(KINDS["informative"], generator)
    punched = engine.seen(Punched(0.3, generator))
    batch = next(punched.chunks(1000))
    assert torch.equal(batch.lacks(), engine.all_rows().lacks().repeat(2, 1))
    assert (batch.lacks() & batch.observed).sum() == 0
    assert (~batch.observed).sum() > batch.lacks().sum()
    result = LBFGS(8).run(start, Conditional(), punched, Progress())
    check_mixed_valid(result.model)
    before, after = (penalized_loss(m, Conditional(), engine) for m in (start, result.model))
    assert after < before


def test_closed_forms_are_refused_where_a_part_has_none(generator):
    """A low-rank precision beside categories: EM's M step goes by gradients, EBW has none."""
    start, engine = problem(KINDS["low_rank precision"], generator)
    with pytest.raises(UnsupportedError, match="lbfgs"):
        EBW().run(start, Likelihood(), engine, Progress())
    before, after = (EM(n, -1.0).run(start, Likelihood(), engine, Progress()) for n in (1, 10))
    assert after.objective < before.objective


def test_draws_of_a_mixture(generator):
    """Rows of a class have the frequencies of its components, each with its weight."""
    mixture = make_mixture(make_mixed(generator, n_components=3), COUNTS, generator)
    rows = mixture.sample(torch.zeros(20_000, dtype=torch.long), generator).numpy()
    weight = mixture.log_weight.exp().numpy()[:2]
    for column, table in plain(mixture.density).tables.items():
        check_frequencies(rows[:, column], weight @ table[:2])
