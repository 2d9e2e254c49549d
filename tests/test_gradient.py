"""Gradient training: Adam and L-BFGS on every structure and objective."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import check_grad, minimize

from mixtura import MixtureClassifier
from mixtura.data.scaling import Scaling
from mixtura.densities import DiagonalGaussian, LowRank
from mixtura.engines import Engine
from mixtura.models.mixture import Layout, Mixture
from mixtura.objectives import Conditional, Hybrid, Likelihood, Margin, SmoothMargin
from mixtura.progress import Progress
from mixtura.solvers import EM, LBFGS, Adam, SpreadPrior, near
from mixtura.solvers.adam import SCHEDULES, make_step
from mixtura.solvers.gradients import Packed, evaluate
from mixtura.solvers.lbfgs import Minimization, explicit_sums, traced_sums
from mixtura.testing import (
    STRUCTURES,
    check_solver,
    make_density,
    make_engine,
    make_mixture,
    penalized_loss,
)

COUNTS = [2, 1]
SOLVERS = {"adam": Adam(3, batch_size=16, schedule="constant"), "lbfgs": LBFGS(5)}
OBJECTIVES = {
    "likelihood": Likelihood(),
    "conditional": Conditional(),
    "hybrid": Hybrid(Likelihood(), Margin(3.0), 0.5),
    "smooth margin": SmoothMargin(3.0),
}


def problem(structure, generator, holes=False, n=64):
    """A start, and rows that it does not fit yet."""
    make = partial(make_density, *structure, generator, n_features=4)
    truth, start = (make_mixture(make(), COUNTS, generator) for _ in range(2))
    return start, make_engine(truth, n, generator, holes=holes)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)
def test_improves(structure, name, solver, generator):
    """A valid model no worse than the start, the same every time; rows have holes."""
    start, engine = problem(structure, generator, holes=True)
    check_solver(SOLVERS[solver], OBJECTIVES[name], start, engine)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)
def test_improves_under_a_prior(structure, solver, generator):
    """The prior counts in what is minimized."""
    start, engine = problem(structure, generator)
    prior = SpreadPrior(20.0, 0.5 * start.density.spread[0])
    check_solver(SOLVERS[solver], OBJECTIVES["hybrid"], start, engine, prior=prior)


@pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)
def test_gradient_of_the_whole_objective(structure, generator):
    """What L-BFGS sees, prior included, against finite differences."""
    start, engine = problem(structure, generator, holes=True, n=20)
    prior = SpreadPrior(3.0, start.density.spread[0])
    packed = Packed(start.free())

    def value_and_gradient(vector):
        free = packed.unpack(vector[None])
        found = traced_sums(start, free, OBJECTIVES["hybrid"], engine, prior)
        return float(found["loss"]), packed.pack(found)[0]

    at = packed.pack(start.free())[0]
    error = check_grad(lambda v: value_and_gradient(v)[0], lambda v: value_and_gradient(v)[1], at)
    assert error < 1e-4 * np.linalg.norm(value_and_gradient(at)[1])


@pytest.mark.parametrize("term", [Conditional(), Margin(2.0)], ids=repr)
def test_components_far_from_a_row_are_not_looked_at(term, generator, large, monkeypatch):
    """Losses and gradients are those of autograd, over all components, wherever parameters go."""
    monkeypatch.setattr(near, "_MANY", 0)
    monkeypatch.setattr(near, "_COSTLY", 0)
    make = partial(make_density, "low_rank", "covariance", generator, n_components=8, rank=2)
    model = make_mixture(make(n_features=12), [2, 2, 2, 2], generator)
    apart = 12.0 * torch.eye(4, dtype=torch.float64).repeat(1, 3).repeat_interleave(2, 0)
    model = replace(model, density=model.density.at(model.density.mean + apart))
    engine = make_engine(model, 100, generator, holes=True)
    objective = Hybrid(Likelihood(), term, 0.3)
    known, free = near.Near.of(model, objective, engine), model.free()
    assert known is not None
    for _ in range(5):
        found = explicit_sums(model, free, objective, engine, None, known)
        wanted = traced_sums(
            model, {k: v.clone() for k, v in free.items()}, objective, engine, None
        )
        for name, value in found.items():
            np.testing.assert_allclose(value, wanted[name].view_as(value), 1e-6, 1e-6, err_msg=name)
        free = {k: v + 0.3 * torch.randn(v.shape, generator=generator) for k, v in free.items()}


def test_a_class_that_comes_near_alone_is_noticed(generator, large, monkeypatch):
    """Components that matter stay; another comes from far, and to look again finds it."""
    monkeypatch.setattr(near, "_MANY", 0)
    monkeypatch.setattr(near, "_COSTLY", 0)
    density = make_density("low_rank", "covariance", generator, n_components=3, n_features=12)
    model = make_mixture(density, [1, 1, 1], generator)
    apart = 12.0 * torch.eye(3, dtype=torch.float64).repeat(1, 4)
    model = replace(model, density=density.at(apart))
    engine = make_engine(model, 100, generator, holes=True)
    objective = Hybrid(Likelihood(), Conditional(), 0.3)
    engine = engine.only(engine.y != 2)  # no row of its own moves with it
    known, free = near.Near.of(model, objective, engine), model.free()
    assert known is not None
    free["density.mean"][2] = free["density.mean"][0]
    stale = explicit_sums(model, free, objective, engine, None, known)
    known.look_again()
    found = explicit_sums(model, free, objective, engine, None, known)
    wanted = traced_sums(model, {k: v.clone() for k, v in free.items()}, objective, engine, None)
    assert stale["loss"] < wanted["loss"] - 1.0
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name].view_as(value), 1e-6, 1e-6, err_msg=name)


def test_lbfgs_ends_with_the_loss_of_all_components(generator, large, monkeypatch):
    """That of autograd at the model that it gives, though what is far was left out on the way."""
    monkeypatch.setattr(near, "_MANY", 0)
    monkeypatch.setattr(near, "_COSTLY", 0)
    looks, look = [], near.Near.look_again
    monkeypatch.setattr(near.Near, "look_again", lambda self: looks.append(1) or look(self))
    density = make_density("low_rank", "covariance", generator, n_components=6, n_features=12)
    truth = make_mixture(density, [1] * 6, generator)
    apart = 20.0 * torch.eye(6, dtype=torch.float64).repeat(1, 2)
    start = replace(truth, density=density.at(apart))
    truth = replace(truth, density=density.at(apart[[0, 1, 0, 3, 4, 5]]))  # the third is to walk
    engine = make_engine(truth, 100, generator, holes=True)
    objective = Hybrid(Likelihood(), Conditional(), 0.3)
    result = LBFGS(40).run(start, objective, engine, Progress())
    free = result.model.free()
    wanted = traced_sums(result.model, free, objective, engine, None)["loss"] / engine.total_weight
    assert len(looks) > 2
    np.testing.assert_allclose(result.objective, float(wanted), rtol=1e-9)


def test_a_search_goes_on_where_its_function_changes():
    """Also one that had settled; one whose function stays stays settled."""
    minimum = np.array([[1.0, 2.0], [3.0, -1.0]])

    def function(points):
        return ((points - minimum) ** 2).sum(1), 2.0 * (points - minimum)

    search = Minimization(function, np.zeros((2, 2)), 40, 1e-12)
    for settled in (np.array([False, False]), np.array([False, True])):
        np.testing.assert_array_equal(search.settled, settled)
        while not search.settled.all():
            search.advance()
        np.testing.assert_allclose(search.point, minimum, atol=1e-6)
        minimum[0] += 5.0
        search.begin_again()


def test_lbfgs_reaches_the_maximum_of_em(generator):
    """One diagonal component a class: the maximum of the likelihood is known in closed form."""
    start, engine = problem(("diag", "covariance"), generator)
    single = make_mixture(start.density.select(torch.tensor([0, 1])), [1, 1], generator)
    by_em = EM(50, 0.0).run(single, Likelihood(), engine, Progress()).model
    by_gradient = LBFGS(500, 1e-14).run(single, Likelihood(), engine, Progress()).model
    np.testing.assert_allclose(by_gradient.density.mean, by_em.density.mean, 1e-3, 1e-3)
    np.testing.assert_allclose(by_gradient.density.variance, by_em.density.variance, 1e-3)
    np.testing.assert_allclose(by_gradient.log_prior, by_em.log_prior, 1e-3)


def test_conditional_training_is_logistic_regression(rng):
    """Two classes of equal fixed spread: the optimum is that of a linear logit, found by scipy."""
    X = rng.normal(size=(80, 2))
    y = (X @ [1.0, -0.5] + rng.logistic(size=80) > 0).astype(int)

    def logistic(w):
        logit = X @ w[:2] + w[2]
        return np.logaddexp(0.0, np.where(y == 1, -logit, logit)).mean()

    best = minimize(logistic, np.zeros(3)).fun
    density = DiagonalGaussian(
        mean=torch.tensor([[-0.1, 0.0], [0.1, 0.0]]).double(),
        variance=torch.ones(2, 2).double(),
        floor=1e-3,
    )
    layout = Layout([1, 1])
    start = Mixture(
        density, torch.zeros(2).double(), layout, torch.full((2,), -math.log(2.0)).double()
    )
    engine = Engine(X, y, scaling=Scaling.identity(2), device=torch.device("cpu"))
    result = LBFGS(300).run(start, Conditional(), engine, Progress())
    # Free variances make the logit quadratic, which contains the linear one.
    assert penalized_loss(result.model, Conditional(), engine) <= best + 1e-4


def test_evaluate_counts_errors_of_labeled_rows(generator):
    """Weighted share of wrong labels, and the mean loss of all rows."""
    start, engine = problem(("diag", "covariance"), generator)
    engine.y[::3] = -1
    error, loss = evaluate(start, Conditional(), engine)
    batch = engine.all_rows()
    joint, y, weight = (v.numpy() for v in (start.class_log_joint(batch), batch.y, batch.weight))
    labeled = y >= 0
    wrong = joint.argmax(1) != y
    assert error == pytest.approx((weight * wrong)[labeled].sum() / weight[labeled].sum())
    assert loss == pytest.approx(penalized_loss(start, Conditional(), engine))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_best_iterate_on_validation_rows_is_kept(solver, generator):
    """Its error and loss there are the smallest of the history, start included."""
    start, engine = problem(("full", "covariance"), generator)
    held = engine.take(np.arange(30))
    train = engine.take(np.arange(30, 64))
    progress = Progress()
    result = SOLVERS[solver].run(
        start, Conditional(), train, progress, generator=generator, held_out=held
    )
    scores = [(r["validation_error"], r["validation_objective"]) for r in progress.history]
    best = min([*scores, evaluate(start, Conditional(), held)])
    np.testing.assert_allclose(evaluate(result.model, Conditional(), held), best, 1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_patience_ends_training(solver, generator):
    """No gain on the validation rows for so many iterations is enough."""
    start, engine = problem(("diag", "covariance"), generator)
    flipped = engine.take(np.arange(40))
    flipped = flipped.with_answers(y=1 - flipped.y)
    progress = Progress()
    patient = replace(SOLVERS[solver], max_iter=50, patience=2)
    perfect = EM(50, 0.0).run(start, Likelihood(), engine, Progress()).model
    result = patient.run(
        perfect, Conditional(), engine, progress, generator=generator, held_out=flipped
    )
    assert result.n_iter == len(progress.history) < 50


@pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)
def test_adam_survives_absurd_steps(structure, generator):
    """However far the steps go, the model that is returned is finite."""
    start, engine = problem(structure, generator)
    for epochs in (1, 2, 3):
        adam = Adam(epochs, 16, learning_rate=1e200, schedule="constant")
        result = adam.run(start, Conditional(), engine, Progress(), generator=generator)
        for value in result.model.free().values():
            assert value.isfinite().all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_a_world_away_are_survived(solver, generator):
    """A row whose gradient overflows while its loss does not leaves the model finite."""
    start, engine = problem(("full", "covariance"), generator)
    engine.all_rows().x[0] = 1e150
    made = SOLVERS[solver]
    if solver == "adam":
        made = replace(made, learning_rate=1e6, max_iter=3, batch_size=64)
    result = made.run(start, Conditional(), engine, Progress(), generator=generator)
    for value in result.model.free().values():
        assert value.isfinite().all()


def test_schedules():
    """Full step size at the beginning; constant stays, the others end at nothing."""
    for name, schedule in SCHEDULES.items():
        assert schedule(0.0) == 1.0
        assert schedule(1.0) == pytest.approx(1.0 if name == "constant" else 0.0)
        shares = [schedule(t) for t in np.linspace(0, 1, 11)]
        assert (np.diff(shares) <= 0).all()


@pytest.mark.parametrize("options", [{"averaging": 0.9}, {"schedule": "linear"}], ids=str)
def test_adam_options(options, generator):
    """Averaged parameters and decaying steps make valid models too."""
    start, engine = problem(("low_rank", "covariance"), generator)
    plain, other = (
        check_solver(adam, Conditional(), start, engine).model
        for adam in (SOLVERS["adam"], replace(SOLVERS["adam"], **options))
    )
    assert not torch.equal(plain.density.mean, other.density.mean)


def test_single_precision_training(generator):
    """Rows in float32 train in float32 and end close to where float64 does."""
    start, engine = problem(("diag", "covariance"), generator)
    single = engine.cast(torch.float32)
    results = [
        SOLVERS["adam"].run(
            start, Conditional(), each, Progress(), generator=torch.Generator().manual_seed(0)
        )
        for each in (engine, single)
    ]
    assert results[1].model.density.mean.dtype == torch.float64
    np.testing.assert_allclose(
        results[1].model.density.mean, results[0].model.density.mean, 1e-3, 1e-3
    )


def weighted_and_repeated(engine, times):
    """The same rows with whole weights, and each as often as its weight says."""
    weighted = engine.with_answers(weight=torch.from_numpy(times).double())
    repeated = engine.take(np.repeat(np.arange(len(engine)), times))
    ones = torch.ones(len(repeated), dtype=torch.float64)
    return weighted, repeated.with_answers(weight=ones)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_weights_are_repetitions(name, solver, generator, rng):
    """Where every step sees all rows, a weight of two is the row twice; the prior counts once."""
    start, engine = problem(("diag", "covariance"), generator, holes=True)
    prior = SpreadPrior(5.0, start.density.spread[0])
    made = SOLVERS[solver]
    made = replace(made, batch_size=1000) if solver == "adam" else made
    reached = [
        made.run(start, OBJECTIVES[name], each, Progress(), prior=prior).model.free()
        for each in weighted_and_repeated(engine, rng.integers(1, 4, len(engine)))
    ]
    for name_, value in reached[0].items():
        np.testing.assert_allclose(value, reached[1][name_], 1e-6, 1e-8)


def test_class_weights_count_whatever_the_minibatch(rng):
    """Tenfold weight of the rarer class moves the decisions by as much in minibatches of one."""
    X = np.concatenate([rng.normal(0, 1, (90, 1)), rng.normal(1, 1, (30, 1))])
    y = np.repeat([0, 1], [90, 30])
    shares = []
    for batch_size, epochs in ((1, 4), (5, 6), (120, 80)):
        model = MixtureClassifier(
            1,
            density="diag",
            objective="conditional",
            tradeoff=0.0,
            solver=Adam(epochs, batch_size, learning_rate=0.03, early_stopping=False),
            prior_rows=0,
            calibrate=False,
            class_weight={0: 1.0, 1: 10.0},
            random_state=0,
        ).fit(X, y)
        shares.append(np.mean(model.predict(X) == 1))
    assert min(shares) > 0.75
    assert max(shares) - min(shares) < 0.05


def test_the_average_forgets_the_start(generator):
    """It is that of the parameters after every step, recent ones more, and of nothing else."""
    start, engine = problem(("diag", "covariance"), generator)
    decay = 0.9

    def trained(epochs, averaging):
        adam = Adam(epochs, 1000, schedule="constant", averaging=averaging)
        return adam.run(start, Conditional(), engine, Progress()).model.density.mean

    visited = torch.stack([trained(epochs, 0.0) for epochs in range(1, 6)])
    weight = decay ** torch.arange(4, -1, -1).double()
    expected = torch.tensordot(weight / weight.sum(), visited, 1)
    np.testing.assert_allclose(trained(5, decay), expected, 1e-9, 1e-12)


@pytest.mark.parametrize("solver", [Adam(10), LBFGS(10)], ids=str)
@pytest.mark.parametrize("form", ["covariance", "precision"])
def test_low_rank_keeps_to_the_floor_that_was_asked_for(form, solver, wine):
    """In every direction, in units in which every feature has variance one."""
    model = MixtureClassifier(
        1,
        density=LowRank(3, floor=0.3, parameterization=form),
        solver=solver,
        calibrate=False,
        random_state=0,
    ).fit(*wine)
    smallest = torch.linalg.eigvalsh(model.mixture_.density.covariances()).min()
    assert smallest >= 0.3 * (1.0 - 1e-9)


def test_steps_are_those_of_torch(generator):
    """The iterates of torch.optim.Adam; what the loss does not depend on stays."""
    start, engine = problem(("low_rank", "covariance"), generator, holes=True)
    free, other = (
        {
            k: v.detach().clone().requires_grad_()
            for k, v in {"aside": torch.ones(2), **start.free()}.items()
        }
        for _ in "ab"
    )
    step, optimizer = (
        make_step(start.from_free, Conditional(), free, engine, 20),
        torch.optim.Adam(other.values()),
    )
    for rate in (0.1, 0.05, 0.02):
        step(torch.randint(len(engine), (20,), generator=generator), rate)
        for name, value in other.items():
            value.grad = free[name].grad
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    for name, value in other.items():
        np.testing.assert_allclose(free[name].detach(), value.detach(), rtol=1e-9)
