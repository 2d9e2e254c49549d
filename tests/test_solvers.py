"""Solvers and densities as objects: their settings reach training, and are searched."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    SequenceMixtureClassifier,
    load,
)
from mixtura.densities import LowRank, LowRankGaussian, LowRankPrecision, Student
from mixtura.engines import Engine
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.objectives import Conditional, Likelihood, Objective
from mixtura.progress import Progress
from mixtura.solvers import EBW, EM, LBFGS, Adam
from mixtura.solvers.gradients import evaluate
from mixtura.testing import make_density, make_engine, make_mixture

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
#: Nothing is compared, held back or calibrated: a fit is its start and its solver.
BARE = {"n_components": 1, "density": "diag", "objective": "conditional", "tradeoff": 0.0}
BARE |= {"prior_rows": 0, "calibrate": False, "random_state": 0}


# -- early stopping of extended Baum-Welch -------------------------------------------------------


@pytest.fixture
def problem(generator):
    """A start, and 80 rows that it does not fit yet."""
    truth, start = (
        make_mixture(make_density("full", "covariance", generator), [2, 1], generator)
        for _ in range(2)
    )
    return start, make_engine(truth, 80, generator)


def test_ebw_keeps_the_best_iterate_on_held_out_rows(problem):
    """Its error and loss there are the smallest of the history; without them, those of training."""
    start, engine = problem
    held, train = engine.take(np.arange(40)), engine.take(np.arange(40, 80))
    progress, plain = Progress(), Progress()
    result = EBW(30).run(start, Conditional(), train, progress, held_out=held)
    scores = [(r["validation_error"], r["validation_objective"]) for r in progress.history]
    best = min([*scores, evaluate(start, Conditional(), held)])
    np.testing.assert_allclose(evaluate(result.model, Conditional(), held), best, 1e-9)
    alone = EBW(30).run(start, Conditional(), train, plain)
    assert evaluate(alone.model, Conditional(), held) > best
    assert "validation_error" not in plain.history[0]


def test_ebw_stops_after_its_patience(problem):
    """Where the labels of held-out rows are wrong, every iteration from the best start is worse."""
    start, engine = problem
    flipped = engine.with_answers(y=1 - engine.y)
    perfect = EM(50, 0.0).run(start, Likelihood(), engine, Progress()).model
    progress = Progress()
    result = EBW(50, patience=4).run(perfect, Conditional(), engine, progress, held_out=flipped)
    assert result.converged
    assert result.n_iter == len(progress.history) < 50
    best, gained_at = evaluate(perfect, Conditional(), flipped), 0
    for iteration, record in enumerate(progress.history, 1):
        score = record["validation_error"], record["validation_objective"]
        if score < best:
            best, gained_at = score, iteration
    assert result.n_iter == gained_at + 4


def test_early_stopping_of_the_classifier_holds_rows_back(wine):
    """Records of training say how held-out rows fare, for every solver that can stop early."""
    for solver in (EBW(6, early_stopping=True), LBFGS(6, early_stopping=True), Adam(3)):
        model = MixtureClassifier(solver=solver, **BARE).fit(*wine)
        records = [each for each in model.history_ if each["stage"] != "EM"]
        assert all(0.0 <= each["validation_error"] <= 1.0 for each in records)
    plain = MixtureClassifier(solver=EBW(3), **BARE).fit(*wine)
    assert not any("validation_error" in each for each in plain.history_)


# -- settings reach training ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver",
    [EBW(7, factor=2.0), EBW(7, factor=9.0, per_component=False), EBW(7, damping=500.0)],
    ids=str,
)
def test_a_classifier_is_ebw_from_the_start_of_em(solver, wine):
    """F and D reach training: the same run by hand from the same start gives the same model."""
    X, y = wine
    start = MixtureClassifier(**BARE | {"objective": "likelihood"}, solver=EM(100, 0.01))
    start.fit(X, y)
    model = MixtureClassifier(solver=solver, **BARE).fit(X, y)
    rows = Engine(X, y, scaling=start.scaling_, device=torch.device("cpu"))
    expected = solver.run(start.mixture_, Conditional(), rows, Progress()).model
    for name, value in expected.free().items():
        np.testing.assert_allclose(model.mixture_.free()[name], value, 1e-7, 1e-7)
    other = MixtureClassifier(solver=EBW(7), **BARE).fit(X, y)
    assert not np.allclose(other.means_, model.means_, 1e-4)


@pytest.mark.parametrize(
    ("part", "name", "values"),
    [
        ({"solver": Adam(2)}, "solver__learning_rate", [1e-4, 0.05]),
        ({"solver": EBW(2)}, "solver__factor", [2.0, 8.0]),
        ({"density": LowRank(), "solver": LBFGS(2)}, "density__rank", [1, 3]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_are_searched_and_cloned(part, name, values, iris):
    """By nested names; each value gives another model, and leaves the given object alone."""
    model, role = MixtureClassifier(**BARE | part), name.partition("__")[0]
    before = clone(part[role])
    search = GridSearchCV(model, {name: values}, cv=2).fit(*iris)
    assert search.best_estimator_.get_params()[name] == search.best_params_[name]
    first, second = (clone(model).set_params(**{name: value}).fit(*iris) for value in values)
    assert not np.allclose(first.class_log_density(iris[0]), second.class_log_density(iris[0]))
    assert getattr(model, role) is part[role]
    assert part[role] == before == getattr(clone(model), role)
    assert getattr(clone(model), role) is not part[role]
    if role == "density":
        assert [each.density_.rank for each in (first, second)] == values


@pytest.mark.parametrize("name", ["solver__learning_rat", "density__ranks", "solver__tol"])
def test_misspelt_settings_are_refused(name):
    """Where they are set; an object takes no other names either."""
    model = MixtureClassifier(solver=Adam(), density=LowRank())
    with pytest.raises(ValueError, match=f"Invalid parameter '{name.partition('__')[2]}'"):
        model.set_params(**{name: 1})
    with pytest.raises(TypeError, match="learning_rat"):
        Adam(learning_rat=1)


# -- heavy tails ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "likelihood", "solver": EM(10)},
        {"objective": "margin", "solver": LBFGS(3)},
        {"objective": "conditional", "solver": EBW(3)},
    ],
    ids=lambda settings: settings["objective"],
)
def test_a_classifier_of_heavy_tails(settings, holey_iris, iris, tmp_path):
    """The name is enough: it is fitted to rows with holes, predicts them, is saved and loaded."""
    model = MixtureClassifier(1, density="student", calibrate=False, random_state=0, **settings)
    model.set_params(missingness="ignore").fit(*holey_iris)
    assert model.density_ == Student()
    assert (model.mixture_.density.dof > 0).all()
    assert model.score(*holey_iris) > 0.85
    assert model.score(*iris) > 0.9
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    for ask in ("predict_proba", "score_samples", "impute"):
        np.testing.assert_array_equal(
            getattr(again, ask)(holey_iris[0]), getattr(model, ask)(holey_iris[0])
        )
    assert again.density == "student"


@pytest.mark.parametrize(
    "density", [LowRank(2, init="eigen"), LowRank(2, parameterization="precision")]
)
def test_every_estimator_keeps_to_the_structure_it_was_given(density, iris):
    """Also where training begins with full covariances."""
    kind = LowRankPrecision if density.parameterization == "precision" else LowRankGaussian
    (X, y), settings = iris, {"density": density, "solver": EM(2)}
    boosted = BoostedMixtureClassifier(n_stages=1, calibrate=False, **settings).fit(X, y)
    assert type(boosted.mixture_.density) is kind
    chains = SequenceMixtureClassifier(1, method="ml", calibrate=False, **settings)
    chains.fit(np.split(X, 30), y[::5])
    assert type(chains.mixture_.density.emission) is kind
    plain = MixtureDensity(1, **settings).fit(X)
    assert type(plain.mixture_.density) is kind


def test_a_setting_of_a_name_is_refused(iris):
    """With what to pass instead; an object that comes along is what it is a setting of."""
    with pytest.raises(InvalidInputError, match=r"density__rank.*density='low_rank' is a name"):
        MixtureClassifier(density="low_rank").set_params(density__rank=2)
    model = MixtureClassifier().set_params(density=LowRank(), density__rank=2)
    assert model.density.rank == 2


def test_parts_that_contradict_each_other_are_refused(iris):
    """Before any work: EM does not discriminate, and a stream keeps its density."""
    sequences = np.split(iris[0], 30), iris[1][::5]
    for settings in (
        {"method": "margin", "solver": EM()},
        {"method": "margin", "solver": "ebw", "density": LowRank(1, parameterization="precision")},
    ):
        with pytest.raises(UnsupportedError, match="lbfgs"):
            SequenceMixtureClassifier(2, **settings).fit(*sequences)
    weighed = MixtureClassifier(objective=Likelihood(0.3))
    with pytest.raises(InvalidInputError, match="unlabeled_weight"):
        weighed.fit(*iris)
    stream = MixtureClassifier(1, density="diag", objective="likelihood")
    stream.partial_fit(*iris, classes=[0, 1, 2])
    with pytest.raises(InvalidInputError, match="stream so far"):
        stream.set_params(density="full").partial_fit(*iris)


class Constant(Objective):
    """Its slope is one number, seen from everywhere."""

    def loss(self, class_log_joint, y):
        return class_log_joint.sum(1)


class Mean(Objective):
    """One loss for all rows."""

    def loss(self, class_log_joint, y):
        return class_log_joint.mean()


def test_objectives_of_odd_shapes(iris):
    """An expanded slope is no obstacle; a loss that is not one per row is named."""
    settings = {"density": "diag", "tradeoff": 0.5, "solver": LBFGS(2), "calibrate": False}
    MixtureClassifier(1, objective=Constant(), **settings).fit(*iris)
    with pytest.raises(InvalidInputError, match=r"Mean.loss.*one loss per row"):
        MixtureClassifier(1, objective=Mean(), **settings).fit(*iris)
