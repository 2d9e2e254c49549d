"""MixtureClassifier from the outside: what a user sees."""

import dataclasses
import pickle
import warnings
from io import BytesIO

import joblib
import numpy as np
import pytest
import torch
from gaussians import GAUSSIANS
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from small import PLAIN

from mixtura import MixtureClassifier
from mixtura.data import lazy
from mixtura.densities import Diagonal, Full, LowRank
from mixtura.engines import Engine, table
from mixtura.estimators.plan import spread_prior
from mixtura.exceptions import InvalidInputError
from mixtura.objectives import OBJECTIVES as NAMED
from mixtura.objectives import LogMargin
from mixtura.selection.held_out import Answers
from mixtura.selection.typical import held_out_scores
from mixtura.solvers import EM, LBFGS, SOLVERS, Adam

OBJECTIVES = ["likelihood", "conditional", "margin", "smooth_margin"]


def possible(solver, objective, density):
    """EM is for the likelihood, extended Baum-Welch for densities that have closed forms."""
    closed = GAUSSIANS[density].closed_form
    return (solver != "em" or objective == "likelihood") and (closed or solver != "ebw")


#: Every two of the three meet, as no part knows the others; all three do below the estimators.
COMBINATIONS = [
    (solver, objective, density)
    for i, solver in enumerate(SOLVERS)
    for j, objective in enumerate(OBJECTIVES)
    for k, density in enumerate(GAUSSIANS)
    if possible(solver, objective, density)
    and (solver == "em" or density in ("diag", "precision") or (i + j + k) % 3 == 0)
]


@pytest.fixture(scope="module")
def fitted(iris):
    """A default model of iris."""
    return MixtureClassifier(solver=LBFGS(20), random_state=0).fit(*iris)


# -- fitting -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("solver", "objective", "density"), COMBINATIONS, ids=map("-".join, COMBINATIONS)
)
def test_every_combination_learns(solver, objective, density, holey_wine, wine):
    """From rows with holes, to rows with and without; probabilities are probabilities.

    Calibration does not look at the structure: diagonal covariances have it with every solver and
    objective.
    """
    model = MixtureClassifier(
        1,
        density=GAUSSIANS[density],
        solver=SOLVERS[solver](4),
        init=EM(10, 0.01),
        objective=objective,
        missingness="ignore",
        calibrate=density == "diag",
        random_state=0,
    ).fit(*holey_wine)
    assert model.score(*wine) > 0.9
    assert model.score(*holey_wine) > 0.9
    proba = model.predict_proba(holey_wine[0])
    np.testing.assert_allclose(proba.sum(1), 1.0, 1e-9)
    assert np.isfinite(model.score_samples(holey_wine[0])).all()


@pytest.mark.parametrize(
    "density", ["auto", "spherical", "diag", "full", "low_rank", LowRank(init="eigen")], ids=str
)
def test_wine(density, wine):
    """Held-out accuracy of the default objective, features of very different scale."""
    X_train, X_test, y_train, y_test = train_test_split(*wine, random_state=0, stratify=wine[1])
    settings = {"random_state": 0, "solver": LBFGS(20), "calibrate": density == "auto"}
    model = MixtureClassifier(density=density, **settings)
    assert model.fit(X_train, y_train).score(X_test, y_test) > 0.9


def test_fitting_twice_gives_the_same(wine):
    """A seed decides everything: two fits agree to the bit, for every solver."""
    for solver in ("ebw", "adam", "lbfgs"):
        settings = {"solver": SOLVERS[solver](3), "density": "diag", "random_state": 3}
        first, second = (MixtureClassifier(2, **settings).fit(*wine) for _ in range(2))
        np.testing.assert_array_equal(first.predict_proba(wine[0]), second.predict_proba(wine[0]))
        np.testing.assert_array_equal(first.means_, second.means_)
        np.testing.assert_array_equal(first.covariances_, second.covariances_)


def test_other_seeds_are_fine(wine):
    """Whatever the seed, the model is good."""
    for seed in range(3):
        model = MixtureClassifier(3, objective="likelihood", random_state=seed).fit(*wine)
        assert model.score(*wine) > 0.9


def test_the_global_random_state_is_left_alone(iris):
    """Fitting and sampling neither read nor move the global generators."""
    import torch

    state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    model = MixtureClassifier(2, solver=Adam(2), tradeoff=0.5, random_state=0)
    model.fit(*iris).sample(5)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)


@pytest.mark.parametrize("objective", ["likelihood", "margin", "conditional"])
@pytest.mark.parametrize("density", [Diagonal(1e-3), Full(1e-3), LowRank(floor=1e-3)], ids=str)
def test_weights_are_repetitions(density, objective, iris, rng):
    """A row of weight three counts as three rows; of weight zero, as none."""
    X, y = iris
    weight = rng.integers(0, 4, size=len(X))
    solver = EM(4) if objective == "likelihood" else LBFGS(4)
    settings = {"n_components": 1, "density": density, "objective": objective, "solver": solver}
    # "auto" and calibration hold rows back, which weights do not.
    settings |= {"tradeoff": 0.5, "calibrate": False}
    weighted = MixtureClassifier(**settings).fit(X, y, sample_weight=weight)
    repeated = MixtureClassifier(**settings).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(weighted.means_, repeated.means_, 1e-6)
    np.testing.assert_allclose(
        weighted.class_log_density(X), repeated.class_log_density(X), 1e-6, 1e-6
    )
    assert weighted.margin_bound_ == pytest.approx(repeated.margin_bound_, rel=1e-6)


def test_outliers_are_a_share_of_the_weight(iris, rng):
    """Rows of weight nine count nine times among those that are less likely."""
    X, y = iris
    weight = np.where(rng.random(150) < 0.1, 9.0, 1.0)
    model = MixtureClassifier(**PLAIN).fit(X, y, sample_weight=weight)
    engine = Engine(X, y, weight, scaling=model.scaling_, device=torch.device("cpu"))
    rows, prior = engine.merged(150), spread_prior(model)
    scores = held_out_scores(model.mixture_, rows, prior).numpy()
    for share in (0.25, 0.5, 0.75):
        threshold = np.interp(share, np.linspace(0.0, 1.0, 1001), model.score_quantiles_)
        flagged = rows.weight.numpy()[scores < threshold].sum() / weight.sum()
        assert flagged == pytest.approx(share, abs=9.5 / weight.sum())


def test_scaling_all_weights_changes_nothing(iris):
    """Without a prior of the covariances, only ratios of weights count."""
    X, y = iris
    one, ten = (
        MixtureClassifier(**PLAIN).fit(X, y, sample_weight=np.full(150, w)) for w in (1.0, 10.0)
    )
    np.testing.assert_allclose(one.predict_proba(X), ten.predict_proba(X), 1e-6, 1e-9)


def test_class_weight(iris):
    """A dictionary, or balanced, is a weight of each row."""
    X, y = iris[0][:120], iris[1][:120]
    given = MixtureClassifier(**PLAIN, class_weight={0: 3.0, 1: 1.0, 2: 0.5}).fit(X, y)
    np.testing.assert_allclose(given.class_prior_, np.array([150, 50, 10]) / 210, 1e-9)
    balanced = MixtureClassifier(**PLAIN, class_weight="balanced").fit(X, y)
    np.testing.assert_allclose(balanced.class_prior_, 1 / 3, 1e-9)


def test_balanced_goes_by_the_weights_of_rows(iris, rng):
    """A row of weight two counts as two rows, one of weight zero as none."""
    X, y, model = *iris, MixtureClassifier(**PLAIN, class_weight="balanced")
    weight = rng.integers(3, size=150)
    rows = np.arange(150).repeat(weight)
    weighted, repeated = model.fit(X, y, weight).predict_proba(X), model.fit(X[rows], y[rows])
    np.testing.assert_allclose(weighted, repeated.predict_proba(X), rtol=0, atol=1e-9)
    np.testing.assert_allclose(repeated.class_prior_, 1 / 3)
    with pytest.raises(InvalidInputError, match="balanced"):
        MixtureClassifier(**PLAIN, class_weight="balanced").partial_fit(X, y, [0, 1, 2])


def test_class_weights_of_classes_that_a_part_lacks(iris):
    """A class without a weight has weight one, whatever classes a part shows."""
    X, y = iris
    model = MixtureClassifier(**PLAIN, class_weight={2: 3.0})
    model.partial_fit(X[:50], y[:50], [0, 1, 2]).partial_fit(X[50:], y[50:])
    np.testing.assert_allclose(model.class_prior_, [0.2, 0.2, 0.6])


@pytest.mark.parametrize(
    ("class_prior", "expected"),
    [
        ("empirical", [5 / 12, 5 / 12, 2 / 12]),
        ("uniform", [1 / 3] * 3),
        ([0.7, 0.2, 0.1], [0.7, 0.2, 0.1]),
        (np.array([0.1, 0.1, 0.8]), [0.1, 0.1, 0.8]),
    ],
    ids=["empirical", "uniform", "list", "array"],
)
@pytest.mark.parametrize("objective", ["likelihood", "margin"])
def test_class_prior(class_prior, expected, objective, iris):
    """Given priors stay as they are; the empirical one starts at the frequencies."""
    X, y = iris[0][:120], iris[1][:120]
    solver = EM(5) if objective == "likelihood" else LBFGS(5)
    settings = {"density": "diag", "objective": objective, "solver": solver}
    model = MixtureClassifier(1, class_prior=class_prior, **settings).fit(X, y)
    learned = objective == "margin" and isinstance(class_prior, str) and class_prior == "empirical"
    np.testing.assert_allclose(model.class_prior_, expected, atol=0.1 if learned else 1e-9)
    np.testing.assert_allclose(
        model.predict_proba(np.full((1, 4), np.nan)), model.class_prior_[None], 1e-9
    )


def test_components_a_class(several):
    """Each class has its own number, in the order of the classes."""
    assert several.n_components_ == [2, 1, 3]
    assert several.weights_.shape == (6,)
    assert several.means_.shape == (6, 4)
    assert several.covariances_.shape == (6, 4, 4)
    owner = np.repeat([0, 1, 2], [2, 1, 3])
    np.testing.assert_allclose(np.bincount(owner, several.weights_), 1.0, 1e-9)


def test_automatic_components_follow_the_data(rng):
    """Two clumps get two components, one clump gets one."""
    clumps = np.repeat([[-6.0, 0.0], [6.0, 0.0], [0.0, 20.0]], 60, 0)
    X = clumps + rng.normal(size=(180, 2))
    y = np.repeat([0, 0, 1], 60)
    model = MixtureClassifier(objective="likelihood", random_state=0).fit(X, y)
    assert model.n_components_ == [2, 1]


def test_more_starts_are_no_worse(wine):
    """The best of several starts has at least the likelihood of the first."""
    X, y = wine
    settings = {"density": "diag", "objective": "likelihood", "prior_rows": 0}
    scores = []
    for n_init in (1, 5):
        model = MixtureClassifier(4, solver=EM(n_init=n_init), random_state=0, **settings)
        model.fit(X, y)
        scores.append(model.class_log_density(X)[np.arange(len(y)), y].mean())
    assert scores[1] >= scores[0] - 1e-3


@pytest.mark.parametrize("solver", ["ebw", "lbfgs"])
def test_warm_start_continues(solver, iris):
    """Training on from a model improves it where starting anew repeats it."""
    settings = {
        "n_components": 1,
        "density": "diag",
        "objective": "margin",
        "tradeoff": 0.0,
        "prior_rows": 0,
        "solver": SOLVERS[solver](3),
        "random_state": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixtureClassifier(**settings, warm_start=True).fit(*iris)
        before = min(record["objective"] for record in model.history_ if record["stage"] != "EM")
        model.fit(*iris)
    assert model.history_[0]["objective"] <= before + 1e-6
    assert min(record["objective"] for record in model.history_) < before


def test_max_iter_limits_the_solver(iris):
    """EM takes no more iterations than asked for, and says that it did not settle."""
    model = MixtureClassifier(3, solver=EM(2, 0.0), objective="likelihood")
    with pytest.warns(Warning, match="max_iter"):
        model.fit(*iris)
    assert max(record["iteration"] for record in model.history_) <= 2


# -- labels and unlabeled rows ----------------------------------------------------------------


def test_unlabeled_rows_help(rng):
    """Few labels, many rows: the unlabeled ones show where the classes are."""
    X = np.repeat([[-2.0, 0.0], [2.0, 0.0]], 300, 0) + rng.normal(size=(600, 2)) * [0.7, 5.0]
    y = np.repeat([0, 1], 300)
    few = np.full(600, -1)
    few[[0, 1, 2, 300, 301, 302]] = [0, 0, 0, 1, 1, 1]
    settings = {"n_components": 1, "density": "diag", "objective": "likelihood"}
    alone = MixtureClassifier(**settings).fit(X[few >= 0], few[few >= 0])
    helped = MixtureClassifier(unlabeled_weight=0.5, **settings).fit(X, few)
    assert helped.score(X, y) >= alone.score(X, y)
    assert helped.score(X, y) > 0.98


@pytest.mark.parametrize("solver", ["ebw", "adam", "lbfgs"])
@pytest.mark.parametrize("objective", ["margin", "conditional", "smooth_margin"])
def test_unlabeled_rows_do_not_break_training(objective, solver, holey_iris, iris):
    """Labels and entries missing at once, for every solver.

    With the default objective they are also calibrated, and the default solver chooses a structure.
    """
    X, y = holey_iris
    some = np.where(np.arange(150) % 3 == 0, y, -1)
    open_questions = (objective, solver) == ("margin", "lbfgs")
    model = MixtureClassifier(
        1,
        density="auto" if open_questions else "low_rank",
        objective=objective,
        solver=SOLVERS[solver](5),
        missingness="auto" if open_questions else "ignore",
        unlabeled_weight="auto" if open_questions else 0.5,
        calibrate=objective == "margin",
        random_state=0,
    )
    assert model.fit(X, some).classes_.tolist() == [0, 1, 2]
    assert model.score(*iris) > 0.9


@pytest.mark.parametrize("labels", [["a", "b", "c"], [10, 20, 30], [True, False, "x"]])
def test_none_marks_unlabeled_rows_in_object_arrays(labels, iris):
    """Any labels that can be sorted; None among them is no label."""
    X, y = iris
    if len({type(label) for label in labels}) > 1:
        labels = [str(label) for label in labels]
    named = np.array([labels[c] for c in y], dtype=object)
    named[::2] = None
    settings = {"density": "diag", "objective": "likelihood", "unlabeled_weight": 0.5}
    model = MixtureClassifier(1, **settings).fit(X, named)
    assert sorted(model.classes_.tolist()) == sorted(labels)
    assert np.mean(model.predict(X) == np.array([labels[c] for c in y], dtype=object)) > 0.9


def test_string_marker(iris):
    """`unlabeled` may be any label."""
    X, y = iris
    named = np.array(["?", "one", "two"])[y]
    model = MixtureClassifier(1, objective="likelihood", unlabeled="?").fit(X, named)
    assert model.classes_.tolist() == ["one", "two"]


def test_minus_one_is_a_class_where_nothing_is_unlabeled(iris):
    """`unlabeled=None` takes labels as they come."""
    X, y = iris
    model = MixtureClassifier(1, density="diag", unlabeled=None, solver=LBFGS(5)).fit(X, y - 1)
    assert model.classes_.tolist() == [-1, 0, 1]
    assert model.score(X, y - 1) > 0.9


@pytest.mark.parametrize("dtype", [str, object, float, bool, np.int8])
def test_predictions_have_the_type_of_the_labels(dtype, iris):
    """What went in comes out; numbers as numbers, for scikit-learn's scores refuse objects."""
    X, y = iris[0][:100], iris[1][:100].astype(dtype)
    model = MixtureClassifier(1, density="diag", solver=LBFGS(3), calibrate=False).fit(X, y)
    assert model.predict(X).dtype == (np.int64 if dtype is object else y.dtype)
    assert (model.predict(X) == y).mean() > 0.9
    words = np.array(["a", "b"], dtype=object)[iris[1][:100]]
    assert model.fit(X, words).predict(X).dtype == object


# -- predictions -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["fitted", "several"])
def test_probabilities(model, request, iris, rng):
    """They sum to one, agree with the logarithms, and their largest is the prediction."""
    model = request.getfixturevalue(model)
    X = np.where(rng.random(iris[0].shape) < 0.3, np.nan, iris[0])
    proba = model.predict_proba(X)
    np.testing.assert_allclose(proba.sum(1), 1.0, 1e-12)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), proba, 1e-12)
    np.testing.assert_array_equal(model.classes_[proba.argmax(1)], model.predict(X))


def test_rows_of_nothing_get_the_prior(fitted, iris):
    """Nothing observed: the class prior, or the average of several, and density one."""
    X = np.full((2, 4), np.nan)
    alone = MixtureClassifier(1, marginals="linear", random_state=0).fit(*iris)
    np.testing.assert_allclose(alone.predict_proba(X), np.tile(alone.class_prior_, (2, 1)), 1e-9)
    off = np.abs(np.stack([*fitted.predict_proba(X), fitted.class_prior_]) - 1.0 / 3.0).max(1)
    assert (off[:2] < 0.4 * off[2]).all()
    np.testing.assert_allclose(fitted.score_samples(X), 0.0, atol=1e-9)
    np.testing.assert_allclose(fitted.class_log_density(X), 0.0, atol=1e-9)


@pytest.mark.parametrize("model", ["fitted", "several"])
def test_density_is_the_sum_over_classes(model, request, holey_iris):
    """log p(x) = log sum of prior times class density."""
    model = request.getfixturevalue(model)
    X = holey_iris[0]
    expected = logsumexp(model.class_log_density(X) + np.log(model.class_prior_), axis=1)
    np.testing.assert_allclose(model.score_samples(X), expected, 1e-9)


@pytest.mark.parametrize("marginals", ["linear", "raw"])
def test_densities_are_in_the_users_units(marginals, iris):
    """One full component a class: scipy's normal density of the rows of that class."""
    X, y = iris
    model = MixtureClassifier(**PLAIN | {"density": Full(1e-9)}, marginals=marginals).fit(X, y)
    for c in range(3):
        rows = X[y == c]
        normal = multivariate_normal(rows.mean(0), np.cov(rows.T, bias=True))
        np.testing.assert_allclose(model.class_log_density(X)[:, c], normal.logpdf(X), 1e-6, 1e-6)
        np.testing.assert_allclose(model.means_[c], normal.mean, 1e-9)
        np.testing.assert_allclose(model.covariances_[c], normal.cov, 1e-6, 1e-9)


def test_units_do_not_change_predictions(iris):
    """Metres or micrometers, with an offset or without."""
    X, y = iris
    other = X * [1e6, 1.0, 1e-6, 1.0] + [0.0, 100.0, 0.0, 0.0]
    settings = {"tradeoff": 0.5, "solver": LBFGS(5), "random_state": 0}
    plain, scaled = (MixtureClassifier(**settings).fit(x, y) for x in (X, other))
    np.testing.assert_array_equal(plain.predict(X), scaled.predict(other))
    np.testing.assert_allclose(plain.predict_proba(X), scaled.predict_proba(other), 1e-3, 1e-3)


def test_log_margin(fitted, iris):
    """Positive exactly where the first model, whose class log-joints these are, is right."""
    X, y = iris
    margin = fitted.log_margin(X, y)
    own = fitted.model_.class_log_joint(fitted.model_.engine(fitted._rows(X), "cpu"))
    np.testing.assert_array_equal(margin > 0, own.argmax(1) == y)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("data", ["iris", "wine", "noise"])
def test_margin_bound(data, objective, request, rng):
    """Never below the number of training errors, whatever the model."""
    if data == "noise":
        X, y = rng.normal(size=(100, 3)), rng.integers(3, size=100)
    else:
        X, y = request.getfixturevalue(data)
    for margin, smoothness in ((0.5, 1.0), (5.0, 10.0)):
        term = NAMED[objective]()
        if isinstance(term, LogMargin):
            term.set_params(margin=margin, smoothness=smoothness)
        solver = EM(3) if objective == "likelihood" else LBFGS(3)
        model = MixtureClassifier(
            1, density="diag", objective=term, solver=solver, calibrate=False
        ).fit(X, y)
        assert model.margin_bound_ >= (model.predict(X) != y).sum() - 1e-9


def test_calibration_does_not_hurt_on_held_back_rows(wine, monkeypatch, rng):
    """Held-back labels are nearly as probable as with the best temperature, and far more than
    without."""
    X, y = wine
    noisy = np.where(rng.random(len(y)) < 0.2, rng.integers(3, size=len(y)), y)
    seen = []
    original = Answers.of

    def spy(*args):
        seen.append(original(*args))
        return seen[-1]

    monkeypatch.setattr(Answers, "of", spy)
    settings = {"density": LowRank(3), "tradeoff": 0.5, "random_state": 0}
    settings["solver"] = LBFGS(10, early_stopping=True, validation_fraction=0.3)
    model = MixtureClassifier(1, **settings).fit(X, noisy)
    (unseen,) = seen
    assert set(np.round(unseen.missing[: len(unseen) // 2], 9)) == {0.0}  # whole rows,
    assert unseen.missing[len(unseen) // 2 :].mean() > 0.2  # and their copies with holes

    def log_loss(temperature, doubt=0.0, fade=0.0):
        scaled = unseen.class_log_joint / temperature ** ((1 - unseen.missing) ** fade)[:, None]
        sharp = np.exp(scaled - logsumexp(scaled, axis=1, keepdims=True))
        proba = (1 - doubt) * sharp + doubt / scaled.shape[1]
        return -np.average(np.log(proba[np.arange(len(unseen)), unseen.y]), weights=unseen.weight)

    fitted = log_loss(model.temperature_, model.doubt_, model.fade_)
    assert fitted <= min(log_loss(t) for t in np.geomspace(0.1, 1000, 200)) + 1e-2
    assert fitted < log_loss(1.0) - 0.1
    plain = MixtureClassifier(1, calibrate=False, **settings)
    plain.fit(X, noisy)
    assert (plain.temperature_, plain.doubt_) == (1.0, 0.0)
    np.testing.assert_array_equal(plain.score_samples(X), model.score_samples(X))
    np.testing.assert_array_equal(plain.predict(X), model.predict(X))


def test_a_few_surprises_do_not_set_the_temperature(iris, rng):
    """Mislabeled rows far from their class leave the other probabilities sharp."""
    X, y = np.tile(iris[0], (3, 1)) + rng.normal(scale=0.05, size=(450, 4)), np.tile(iris[1], 3)
    wrong = rng.random(450) < 0.05
    noisy = np.where(wrong, (y + 1) % 3, y)
    model = MixtureClassifier(1, density="low_rank", random_state=0, solver=LBFGS(20))
    proba = model.fit(X, noisy).predict_proba(X)
    assert np.median(proba.max(1)) > 0.8
    assert -np.log(proba[np.arange(450), noisy]).mean() < 0.5


# -- inputs of all kinds -----------------------------------------------------------------------


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_data_frames(package, holey_iris):
    """The same model, feature names kept, and not one warning about them."""
    X, y = holey_iris
    named = pytest.importorskip(package).DataFrame({f"f{i}": X[:, i] for i in range(4)})
    settings = {"density": "diag", "objective": "likelihood", "missingness": "ignore"}
    plain = MixtureClassifier(1, **settings).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = MixtureClassifier(1, **settings).fit(named, y)
        assert model.feature_names_in_.tolist() == ["f0", "f1", "f2", "f3"]
        np.testing.assert_array_equal(model.predict_proba(named), plain.predict_proba(X))
        for method in ("predict", "predict_log_proba", "score_samples", "class_log_density"):
            getattr(model, method)(named)
        for method in ("transform", "impute", "is_outlier", "responsibilities"):
            getattr(model, method)(named)
        model.log_margin(named, y)
        model.impute(named, n_draws=2, random_state=0)


def test_memory_mapped_matrices(holey_iris, tmp_path):
    """A matrix on disk gives the model of the matrix in memory."""
    X, y = holey_iris[0][::2], holey_iris[1][::2]
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for solver in ("ebw", "adam", "lbfgs"):
        # Calibration, which holds rows back, is the same whatever the solver.
        settings = {"solver": SOLVERS[solver](3), "density": "diag"}
        settings |= {"missingness": "ignore", "random_state": 0, "calibrate": solver == "lbfgs"}
        ours, theirs = (MixtureClassifier(1, **settings).fit(x, y) for x in (X, mapped))
        np.testing.assert_allclose(ours.means_, theirs.means_, 1e-6)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(mapped), 1e-5, 1e-9)


@pytest.mark.parametrize("settings", [{}, {"marginals": "power"}, {"solver": Adam(2)}], ids=str)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_large_matrices_are_not_copied(kind, settings, wine, monkeypatch):
    """They give the same model, which keeps none of their rows."""
    X, y = wine[0].astype(kind), wine[1]
    ours = MixtureClassifier(random_state=0, **settings).fit(X, y)
    monkeypatch.setattr(table.Table, "most_copied", 0)
    monkeypatch.setattr(lazy, "_COPIED", 100)
    theirs = MixtureClassifier(random_state=0, **settings).fit(X, y)
    np.testing.assert_allclose(theirs.predict_proba(X), ours.predict_proba(X), 1e-6, 1e-7)
    assert len(pickle.dumps(theirs)) == pytest.approx(len(pickle.dumps(ours)), rel=0.01)


@pytest.mark.parametrize("solver", ["ebw", "adam", "lbfgs"])
def test_single_precision(solver, wine):
    """Float32 rows give nearly the model of float64 rows."""
    X, y = wine
    settings = {"solver": SOLVERS[solver](5), "random_state": 0, "density": "low_rank"}
    settings["calibrate"] = solver == "adam"  # the same whatever the solver, and quickest here
    double, single = (MixtureClassifier(1, **settings).fit(x, y) for x in (X, X.astype("f")))
    np.testing.assert_allclose(single.means_, double.means_, 1e-2)
    assert (single.predict(X.astype("f")) == double.predict(X)).mean() > 0.99
    np.testing.assert_allclose(
        double.predict_proba(X.astype("f")), double.predict_proba(X), atol=1e-2
    )


def test_model_selection(iris):
    """Cross-validation, grid search, pipelines and clones."""
    X, y = iris
    model = MixtureClassifier(1, objective="likelihood", random_state=0)
    assert cross_val_score(model, X, y, cv=3).mean() > 0.9
    search = GridSearchCV(model, {"density": ["diag", "full"]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.9
    assert make_pipeline(StandardScaler(), model).fit(X, y).score(X, y) > 0.9
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


def test_pickles(several, iris):
    """Pickle and joblib give the same model back."""
    buffer = BytesIO()
    joblib.dump(several, buffer)
    buffer.seek(0)
    for again in (pickle.loads(pickle.dumps(several)), joblib.load(buffer)):
        np.testing.assert_array_equal(again.predict_proba(iris[0]), several.predict_proba(iris[0]))


def test_a_pickle_does_not_hold_what_predictions_keep(iris):
    """Factors that are kept for the next row are not part of the model."""
    model = MixtureClassifier(1, density="full", objective="likelihood").fit(*iris)
    several = pickle.loads(pickle.dumps(model))
    size = len(pickle.dumps(several))
    several.predict_proba(iris[0])
    several.score_samples(iris[0])
    density = several.mixture_.density
    assert len(vars(density)) > len(dataclasses.fields(density))
    assert len(pickle.dumps(several)) < size + 500


def test_em_that_is_given_as_init_is_the_one_that_fits_the_likelihood(iris):
    """Where nothing else says how the likelihood is maximized."""
    settings = {"n_components": 2, "density": "diag", "objective": "likelihood", "random_state": 0}
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        by_init = MixtureClassifier(init=EM(max_iter=2), **settings).fit(*iris)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        by_solver = MixtureClassifier(solver=EM(max_iter=2), **settings).fit(*iris)
    np.testing.assert_array_equal(by_init.means_, by_solver.means_)
