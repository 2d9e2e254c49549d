"""Which rows are whose: groups of classes, and trials that do without the rows of a fold."""

import gc
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import torch
from named import close
from sklearn.base import clone

from mixtura import MixtureClassifier
from mixtura.data.scaling import Scaling
from mixtura.densities import Diagonal, Full, LowRank, Student
from mixtura.densities.product import numeric_part
from mixtura.engines import Engine
from mixtura.objectives import Margin
from mixtura.progress import Progress
from mixtura.solvers import EM, LBFGS, Adam
from mixtura.training.groups import Folds, Groups, Recipe, fit_groups
from mixtura.training.hybrid import Plan

CPU = torch.device("cpu")


def engine_of(X, y, levels=None):
    """Rows as they are."""
    scaling = Scaling.identity(X.shape[1])
    scaling = scaling if levels is None else scaling.sparing(np.array(levels))
    return Engine(X, y, scaling=scaling, device=CPU)


#: Rows that are told by their only column; classes 0 to 2 and none, folds 0 to 2 and none.
Y, NUMBER = np.array([0, 0, 1, 1, -1, 0, 1, -1, 0]), torch.tensor([0, 1, 0, 2, 1, -1, -1, -1, 2])


def seen_by(engine, assignment):
    """The rows of every problem, told by their column, and their labels."""
    rows = engine.all_rows()
    weight, label = assignment.weight(rows.y, rows.weight), assignment.label[rows.y]
    return [
        {int(x): int(y) for x, y in zip(rows.x[mine > 0, 0], label[mine > 0], strict=True)}
        for mine in weight.mT
    ]


def test_a_trial_sees_all_rows_but_those_of_its_fold():
    """With their labels; rows without one, or without a fold, too."""
    engine = engine_of(np.arange(9.0)[:, None], Y)
    folds = Folds(NUMBER, [2, 0])
    kind, assignment = folds.assignment(engine.y, 3)
    found = seen_by(engine.with_answers(y=kind), assignment)
    for trial, held_out in zip(found, [2, 0], strict=True):
        kept = [row for row in range(9) if NUMBER[row] != held_out]
        assert trial == {row: Y[row] for row in kept}
    labeled = folds.only(engine.labeled)
    assert labeled.number.tolist() == [0, 1, 0, 2, -1, -1, 2]
    (every,) = seen_by(
        engine.with_answers(y=Folds.none(engine).kinds(engine.y, 3)[0]),
        Folds.none(engine).assignment(engine.y, 3)[1],
    )
    assert every == dict(enumerate(Y))


def test_a_group_has_the_labeled_rows_of_its_class_and_trial():
    """All that are labeled stand in for a class without rows, in the trials that lack it."""
    engine = engine_of(np.arange(9.0)[:, None], np.where(np.arange(9) == 3, 2, Y))
    y, held_out = engine.y.numpy(), [0, 1, 2]
    groups = Groups.by_class(engine, 4, Folds(NUMBER, held_out))
    assert groups.sees.shape[:2] == (3, 4)
    for classes in ([0, 1, 2, 3], [2], [3, 1]):
        found = seen_by(*groups.part(classes))
        for place, (trial, label) in enumerate((t, c) for t in held_out for c in classes):
            kept = [r for r in range(9) if NUMBER[r] != trial and y[r] >= 0]
            own = [row for row in kept if y[row] == label]
            assert sorted(found[place]) == (own or kept)
    weight = [[sum((y == c) & (NUMBER.numpy() != t)) for c in range(3)] for t in (0, 1)]
    np.testing.assert_array_equal(groups.effective_rows()[:2, :3], weight)


def test_rows_without_any_label_are_everyones():
    """Then there is nothing else to begin with."""
    engine = engine_of(np.arange(6.0)[:, None], np.full(6, -1))
    groups = Groups.by_class(engine, 2, Folds.none(engine))
    assert [sorted(group) for group in seen_by(*groups.part([0, 1]))] == [list(range(6))] * 2


def test_groups_are_fitted_one_by_one_or_together(flowers, monkeypatch):
    """One component per class and trial: the mean and covariance of its rows, by NumPy."""
    X, y = flowers
    number = torch.arange(len(y)) % 4
    groups = Groups.by_class(engine_of(X, y), 3, Folds(number, range(4)))
    found = []
    for most in (1, 10**9):
        monkeypatch.setattr("mixtura.training.groups._TOGETHER", {False: most, True: most})
        assert groups.portions([0, 1, 2]) == ([[0], [1], [2]] if most == 1 else [[0, 1, 2]])
        recipe, random = Recipe(Full(floor=1e-6), EM(3)), torch.Generator().manual_seed(0)
        found.append(fit_groups(groups, [1, 1, 1], recipe, random, Progress()).results)
    for trial, label in np.ndindex(4, 3):
        own = X[(y == label) & (number.numpy() != trial)]
        for results in found:
            density = results[trial][label].model.density
            np.testing.assert_allclose(density.mean[0], own.mean(0), 1e-9)
            np.testing.assert_allclose(density.covariances()[0], np.cov(own.T, ddof=0), 1e-6, 1e-9)


# -- trials ------------------------------------------------------------------------------------


STRUCTURES = {"diag": Diagonal(), "full": Full(), "low rank": LowRank(2), "student": Student()}


def plan_of(structure, informative=False):
    """All that a plan says, small."""
    return Plan(
        solver=LBFGS(3),
        term=Margin(),
        tradeoff=0.5,
        recipe=Recipe(structure, EM(5, 1e-2), None, informative),
        counts=[2, 1, 2],
        log_prior=torch.full((3,), 1 / 3).double().log(),
        learn_prior=True,
    )


@pytest.mark.parametrize("holes", [0.0, 0.3])
def test_factors_that_few_rows_leave_idle_are_not_carried_along(holes, rng, monkeypatch):
    """In trials, and in a fit of all rows; models have them, and are as if trained with them."""
    X, y = rng.normal(size=(24, 70)), np.arange(24) % 3
    X[rng.random(X.shape) < holes] = np.nan
    engine, folds = engine_of(X, y), Folds(torch.arange(24) // 3 % 4, range(4))
    plan, found = replace(plan_of(LowRank(15)), counts=[1, 1, 1]), []
    carried, run = [], LBFGS.run

    def seen(self, model, *args, **options):
        carried.append(numeric_part(model.density).rank)
        return run(self, model, *args, **options)

    monkeypatch.setattr(LBFGS, "run", seen)
    for ranks in ([5, 7], [15, 15]):  # of six and of eight rows per class
        random = torch.Generator().manual_seed(0)
        models = [trial.model for trial in plan.trials(engine, folds, random, Progress())]
        models.append(plan.train(engine, random, Progress()).model)
        assert [each.density.rank for each in models] == [15] * 5
        assert carried[-2:] == ranks
        found.append([each.class_log_joint(engine.all_rows()) for each in models])
        monkeypatch.setattr(Plan, "_without_idle", lambda self, model: model)
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-9, 1e-9)


@pytest.mark.parametrize("solver", ["lbfgs", "auto"])
def test_factors_wake_where_more_rows_come(solver, rng, monkeypatch):
    """A model of few rows keeps the rank of its structure, and goes on as if trained with it."""
    factors, y = rng.normal(size=(3, 40, 12)), np.arange(624) % 3
    X = np.einsum("nr,ndr->nd", rng.normal(size=(624, 12)), factors[y]) + rng.normal(size=(624, 40))
    model = MixtureClassifier(
        1, density=LowRank(12), marginals="linear", solver=solver, calibrate=False, random_state=0
    )
    found = []
    for _ in range(2):
        warm = clone(model).set_params(warm_start=True).fit(X[:24], y[:24])
        assert warm.mixture_.density.rank == 12
        found.append(warm.fit(X[24:], y[24:]).score_samples(X).mean())
        monkeypatch.setattr(Plan, "_without_idle", lambda self, model: model)
    np.testing.assert_allclose(*found, atol=1.0)


def test_streams_may_begin_with_few_rows():
    """Components that later rows ask for are tried beside those of fewer rows than the rank."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 40)), np.arange(400) % 2
    model = MixtureClassifier(random_state=0)
    model.partial_fit(X[:16], y[:16], classes=[0, 1])
    assert model.mixture_.density.rank == 10
    model.partial_fit(X[16:], y[16:])
    assert np.isfinite(model.predict_proba(X)).all()


def changed_trials(plan, X, y, changed, levels=None):
    """Trials on four folds, and others from their ends on; before and after rows of one change."""
    number = torch.arange(len(y)) % 4
    folds, other = Folds(number, range(4)), np.where((number == 1)[:, None], changed, X)
    for values in (X, other):
        random, engine = torch.Generator().manual_seed(0), engine_of(values, y, levels)
        first = plan.trials(engine, folds, random, Progress())
        further = replace(plan, tradeoff=0.9, begin=first)
        yield [*first, *further.trials(engine, folds, random, Progress())]


def only_their_own_trial_is_as_before(before, after):
    """Up to rounding: sums have other zeros in them."""
    for place, (one, other) in enumerate(zip(before, after, strict=True)):
        free, again = one.model.free(), other.model.free()
        if place % 4 == 1:
            close(again, free)
        else:
            with pytest.raises(AssertionError):
                close(again, free, 1e-3)


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_a_trial_never_sees_the_rows_that_it_is_judged_by(name, holes, flowers, rng):
    """Other values there change the other trials alone; each begins and ends on its own."""
    X, y = (flowers[0] - flowers[0].mean(0)) / flowers[0].std(0), flowers[1]
    X = np.where(rng.random(X.shape) < 0.1, np.nan, X) if holes else X
    changed = X + rng.normal(size=X.shape)
    found = changed_trials(plan_of(STRUCTURES[name]), X, y, changed)
    only_their_own_trial_is_as_before(*found)


def test_rows_are_released_when_their_trials_are_over(holey_iris):
    """Folds serve rows in many units, and outlast them."""
    engine, plan = engine_of(*holey_iris), plan_of(Diagonal())
    folds, rows = Folds(torch.arange(len(engine)) % 2, range(2)), ref(engine)
    plan.trials(engine, folds, torch.Generator().manual_seed(0), Progress())
    assert len(folds.kept) == len(folds.groups) == 1
    del engine
    gc.collect()
    assert rows() is None
    assert not folds.kept


def test_what_stands_in_for_adam_works_in_double_precision(flowers):
    """As it does where it is asked for itself."""
    engine, plan = engine_of(*flowers), replace(plan_of(Diagonal()), dtype=torch.float32)
    folds, found = Folds(torch.arange(len(engine)) % 2, range(2)), []
    for solver in (LBFGS(), Adam()):
        random = torch.Generator().manual_seed(0)
        trials = replace(plan, solver=solver).trials(engine, folds, random, Progress())
        found.append(trials[0].model.free())
    close(*found, 1e-12)


def test_a_trial_never_sees_categories_that_it_is_judged_by(flowers, rng):
    """What is absent of them is drawn from rows that it sees."""
    y, absent = flowers[1], rng.random((len(flowers[1]), 3)) < 0.15
    X, changed = (
        np.where(absent, np.nan, np.column_stack([flowers[0][:, :2], codes]))
        for codes in ((y + rng.integers(0, 2, len(y))) % 3, rng.integers(0, 3, len(y)))
    )
    found = changed_trials(plan_of(Diagonal(), informative=True), X, y, changed, [0, 0, 3])
    only_their_own_trial_is_as_before(*found)
