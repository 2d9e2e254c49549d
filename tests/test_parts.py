"""Parts of estimators as objects: names are shorthand, users bring their own."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils._param_validation import InvalidParameterError

import mixtura
from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    SequenceMixtureClassifier,
)
from mixtura.datasets import make_hmm_sequences
from mixtura.densities import Auto, Chain, Diagonal, Full, LowRank, Spherical, Student
from mixtura.exceptions import FileFormatError, InvalidInputError
from mixtura.objectives import Conditional, Margin, Objective, SmoothMargin
from mixtura.sequences import Layout
from mixtura.solvers import EBW, EM, LBFGS, Adam, Boosted, LinkedEM

SETTINGS = {"density": "diag", "solver": LBFGS(5), "calibrate": False, "random_state": 0}


def classifier(**parts):
    """A classifier of one component per class that is soon fitted."""
    return MixtureClassifier(1, **{**SETTINGS, **parts})


def network(**parts):
    """The same of networks."""
    short = {"solver": LinkedEM(5), "init": EM(5), "calibrate": False, "random_state": 0}
    return MixtureNetworkClassifier(1, embedding="log_density", **{**short, **parts})


def stages(**parts):
    """The same of boosted mixtures."""
    return BoostedMixtureClassifier(n_stages=1, calibrate=False, random_state=0, **parts)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("model", "parameter", "name", "part"),
    [
        (classifier, "objective", "conditional", Conditional()),
        (classifier, "objective", "margin", Margin(20.0)),
        (classifier, "objective", "smooth_margin", SmoothMargin(1.0)),
        (classifier, "density", "auto", Auto()),
        (classifier, "density", "full", Full(0.01)),
        (classifier, "density", "spherical", Spherical(0.01)),
        (classifier, "density", "low_rank", LowRank("auto", 0.01)),
        (classifier, "density", "student", Student("full", floor=0.01)),
        (classifier, "solver", "ebw", EBW(100)),
        (classifier, "solver", "lbfgs", LBFGS(40)),
        (classifier, "solver", "adam", Adam("auto")),
        (classifier, "init", "em", EM(100, tol=0.01)),
        (partial(classifier, objective="likelihood"), "solver", "em", EM(100, tol=1e-3)),
        (network, "objective", "margin", Margin(5.0)),
        (network, "density", "low_rank", LowRank()),
        (network, "solver", "linked_em", LinkedEM(50)),
        (network, "init", "em", EM(50, tol=0.01)),
        (stages, "density", "full", Full()),
        (stages, "solver", "em", EM(100, tol=0.01)),
    ],
)
def test_a_name_is_shorthand(model, parameter, name, part, iris):
    """For the same bits."""
    named, given = (
        model(**{parameter: each}).fit(*iris).predict_proba(iris[0]) for each in (name, part)
    )
    np.testing.assert_array_equal(named, given)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("model", "part", "most"), [(network, "init", 50), (stages, "solver", 100)]
)
def test_em_settles_by_the_gain_per_number(model, part, most, rng):
    """Its name is that with a tolerance for so many columns of numbers."""
    X, y = rng.normal(size=(90, 40)), np.arange(90) % 3
    X[:, 20:] += rng.normal(size=(90, 1))
    named, given, less = (
        model(**{part: em}).fit(X, y).predict_proba(X)
        for em in ("em", EM(most, tol=0.04), EM(most, tol=0.01))
    )
    np.testing.assert_array_equal(named, given)
    assert (named != less).any()


@pytest.mark.parametrize(
    ("parameter", "name", "part"),
    [
        ("density", "full", Full(1e-5)),
        ("density", "low_rank", LowRank(floor=1e-5)),
        ("solver", "em", EM(100, tol=1e-3)),
    ],
)
def test_names_of_a_density(parameter, name, part, iris):
    """Their floor is lower, where nothing but a density is wanted."""
    named, given = (
        MixtureDensity(2, random_state=0, **{parameter: each}).fit(iris[0]).score_samples(iris[0])
        for each in (name, part)
    )
    np.testing.assert_array_equal(named, given)


BAD = [
    ({"objective": Margin(0.0)}, "'margin' parameter of Margin"),
    ({"objective": Margin(np.nan)}, "'margin' parameter of Margin"),
    ({"objective": Margin(smoothness=-1.0)}, "'smoothness' parameter of Margin"),
    ({"density": Diagonal(0.0)}, "'floor' parameter of Diagonal"),
    ({"density": LowRank(0)}, "'rank' parameter of LowRank"),
    ({"density": LowRank(init="random")}, "'init' parameter of LowRank"),
    ({"density": Student("diagonal")}, "'scale' parameter of Student"),
    ({"init": EM(0)}, "'max_iter' parameter of EM"),
    ({"init": EM(tol=-1.0)}, "'tol' parameter of EM"),
]
BAD_SOLVERS = [
    (MixtureClassifier, Adam(learning_rate=0.0), "'learning_rate' parameter of Adam"),
    (MixtureClassifier, Adam(schedule="exponential"), "'schedule' parameter of Adam"),
    (MixtureClassifier, EBW(factor=0.0), "'factor' parameter of EBW"),
    (MixtureClassifier, LBFGS(0), "'max_iter' parameter of LBFGS"),
    (MixtureNetworkClassifier, LinkedEM(l1=-1.0), "'l1' parameter of LinkedEM"),
    (MixtureNetworkClassifier, LinkedEM(specialize=2.0), "'specialize' parameter of LinkedEM"),
]


@pytest.mark.parametrize(
    ("model", "parts", "message"),
    [(kind, *bad) for kind in (MixtureClassifier, MixtureNetworkClassifier) for bad in BAD]
    + [(kind, {"solver": solver}, message) for kind, solver, message in BAD_SOLVERS],
)
def test_bad_settings_are_refused(model, parts, message, iris):
    """By name, as those of estimators are; before any work is done."""
    begun = []
    with pytest.raises(InvalidParameterError, match=message):
        model(**parts).set_callbacks(begun.append).fit(*iris)
    assert not begun


def test_parts_are_cloned_printed_and_compared():
    """As scikit-learn's own objects are; an estimator never shares or changes one."""
    model = MixtureClassifier(objective=Margin(3.0), density=LowRank(5), solver=Adam(7))
    twin = clone(model).set_params(
        objective__margin=4.0, density__rank=2, solver__learning_rate=0.1
    )
    assert model.get_params()["objective__margin"] == 3.0
    assert (model.objective, twin.objective) == (Margin(3.0), Margin(4.0))
    assert (model.density, twin.density) == (LowRank(5), LowRank(2))
    assert (model.solver, twin.solver) == (Adam(7), Adam(7, learning_rate=0.1))
    assert "Margin(margin=3.0" in repr(model.objective)
    assert "Adam(max_iter=7)" in repr(model)


def test_a_fit_leaves_its_parts_alone(iris):
    """What was chosen stands beside them."""
    parts = {"density": Auto(floor=0.05), "solver": LBFGS(5), "init": EM(5, tol=0.01)}
    model = MixtureClassifier(1, calibrate=False, random_state=0, **parts).fit(*iris)
    assert parts == {"density": Auto(floor=0.05), "solver": LBFGS(5), "init": EM(5, tol=0.01)}
    assert all(getattr(model, name) is part for name, part in parts.items())
    assert model.density_ in (LowRank(1, 0.05), Diagonal(0.05))


@pytest.mark.parametrize(
    "model",
    [
        classifier(objective=Margin(3.0), density=LowRank(2, init="eigen"), solver=Adam(2)),
        network(density=Student("diag"), solver=LinkedEM(2, end_to_end=False)),
        stages(density=Full(0.02), solver=EM(3)),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_parts_are_stored(model, iris, tmp_path):
    """All of them, with their settings."""
    model.fit(*iris).save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    assert getattr(again, "density_", None) == getattr(model, "density_", None)
    np.testing.assert_array_equal(again.predict_proba(iris[0]), model.predict_proba(iris[0]))


def test_the_objective_of_sequences_is_an_object_too():
    """`method` takes one, and its name is shorthand."""
    rows = make_hmm_sequences(10, length=(5, 9), random_state=0)
    settings = {"solver": LBFGS(3), "init": EM(3), "early_stopping": False, "calibrate": False}
    named, given, other = (
        SequenceMixtureClassifier(2, method=each, random_state=0, **settings)
        .fit(rows.data, rows.target)
        .predict_proba(rows.data)
        for each in ("margin", Margin(20.0), Margin(1.0))
    )
    np.testing.assert_array_equal(named, given)
    assert not np.array_equal(given, other)


def test_parts_of_sequences_are_named_searched_and_stored(tmp_path):
    """Names are shorthand for objects; settings are found by scikit-learn, and come back."""
    rows = make_hmm_sequences(6, length=(5, 9), random_state=0)
    settings = {"init": EM(2), "early_stopping": False, "calibrate": False, "random_state": 0}
    X, y = [part.T for part in rows.data], rows.target
    named, given = (
        SequenceMixtureClassifier(2, method=method, chain=chain, layout=layout, **settings)
        for method, chain, layout in (
            ("adaboost", "left_to_right", "channels_first"),
            (Boosted("adaboost"), Chain("left_to_right"), Layout(channels_first=True)),
        )
    )
    found = given.fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(named.fit(X, y).predict_proba(X), found)
    grid = {"chain__durations": [2], "chain__n_mixtures": [2], "method__n_stages": [1]}
    search = GridSearchCV(given, grid, cv=2).fit(X, y)
    best = search.best_estimator_
    assert (best.chain, best.n_stages_) == (Chain("left_to_right", 2, 2), 1)
    best.save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    assert again.get_params() == best.get_params() == clone(best).get_params()
    np.testing.assert_array_equal(again.predict_proba(X), best.predict_proba(X))


def test_a_part_that_cannot_be_found_again_is_not_saved(iris, tmp_path):
    """An error when saving, not when loading; the file that stood there stays."""

    @dataclass
    class Local(Objective):
        def loss(self, class_log_joint, y):
            return Conditional().loss(class_log_joint, y)

    path = tmp_path / "model"
    path.write_text("kept")
    model = classifier(objective=Local(), calibrate=True).fit(*iris)
    with pytest.raises(InvalidInputError, match="cannot be found again"):
        model.save(path)
    assert path.read_text() == "kept"
    with pytest.raises(FileFormatError):
        mixtura.load(path)
