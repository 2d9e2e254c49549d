"""SparseMixtureClassifier: what it finds, what it answers, and what it refuses."""

import copy
import pickle
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, log_softmax, logsumexp
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import (
    PAIRWISE_KERNEL_FUNCTIONS,
    polynomial_kernel,
    rbf_kernel,
)
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.utils._param_validation import InvalidParameterError

import mixtura
from mixtura import SparseMixtureClassifier
from mixtura.datasets import make_checkerboard, make_ripley, make_waveform
from mixtura.engines import base
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, UnsupportedError

FORMS = {
    "dual": {},
    "rbf": {"kernel": "rbf"},
    "primal": {"form": "primal"},
    "diagonal": {"features": "diagonal"},
}


@pytest.fixture(scope="module")
def ripley():
    """Two classes of two clouds each, and as many rows to test on as the paper has."""
    train, test = make_ripley(random_state=0), make_ripley(500, random_state=1)
    return train.data, train.target, test.data, test.target


@pytest.fixture(scope="module", params=FORMS)
def fitted(request, ripley):
    """A model of every form."""
    settings = {**FORMS[request.param], "random_state": 0}
    return SparseMixtureClassifier(**settings).fit(*ripley[:2])


@pytest.fixture(scope="module")
def one_start(ripley):
    """Models of every form from a single start, each fitted when it is first asked for."""

    @cache
    def model(form):
        # The evidence may dip by less than `tol` at the end: it does for a quarter of the seeds.
        settings = {**FORMS[form], "n_init": 1, "random_state": 2}
        return SparseMixtureClassifier(**settings).fit(*ripley[:2])

    return model


@pytest.fixture(scope="module")
def machine(ripley):
    """One component a class and a kernel: a relevance vector machine."""
    return SparseMixtureClassifier(1, kernel="rbf", random_state=0).fit(*ripley[:2])


# -- what it finds -----------------------------------------------------------------------------


def test_few_weights_classify_well(fitted, ripley):
    """The best possible error is 8.9 %."""
    assert fitted.score(*ripley[2:]) > 0.88
    assert 2 <= fitted.n_coef_ <= 15
    assert len(fitted.n_components_) == 2
    assert sum(fitted.n_components_) <= 6
    assert fitted.converged_


def test_history_has_the_course_of_the_evidence(one_start):
    model = one_start("dual")
    evidence = [record["evidence"] for record in model.history_]
    assert len(evidence) == model.n_iter_
    assert evidence[-1] == model.evidence_ == max(evidence[-3:])
    assert evidence[-1] > evidence[0]
    weights = [record["n_weights"] for record in model.history_]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] == model.n_coef_


def test_history_is_that_of_the_start_that_was_kept(ripley):
    model = SparseMixtureClassifier(n_init=3, random_state=0).fit(*ripley[:2])
    assert len(model.history_) == model.n_iter_
    assert model.history_[-1]["evidence"] == model.evidence_
    assert model.history_[-1]["n_weights"] == model.n_coef_


def test_one_component_is_enough_where_the_evidence_says_so(wine):
    """Also where training began with more, which do not all die."""
    three, one = (SparseMixtureClassifier(n, random_state=0).fit(*wine) for n in (3, 1))
    assert three.n_components_ == one.n_components_ == [1, 1, 1]
    assert three.evidence_ == pytest.approx(one.evidence_, abs=3.0)


def test_more_starts_never_have_less_evidence(ripley):
    one, more = (SparseMixtureClassifier(n_init=n, random_state=3).fit(*ripley[:2]) for n in (1, 3))
    assert more.evidence_ >= one.evidence_


def test_one_component_and_a_kernel_is_the_relevance_vector_machine(machine, ripley):
    """Ripley's task takes Tipping's machine a handful of vectors."""
    assert machine.n_components_ == [1, 1]
    assert len(machine.relevance_vectors_) <= 12
    rows = {tuple(row) for row in np.round(ripley[0], 9)}
    assert {tuple(row) for row in np.round(machine.relevance_vectors_, 9)} <= rows
    assert machine.score(*ripley[2:]) > 0.88


def test_several_classes_of_different_sizes():
    train, test = make_waveform(300, random_state=0), make_waveform(500, random_state=1)
    keep = np.r_[:240]
    model = SparseMixtureClassifier([2, 1, 3], kernel="rbf", random_state=0)
    model.fit(train.data[keep], train.target[keep])
    assert model.score(test.data, test.target) > 0.78
    assert all(left <= given for left, given in zip(model.n_components_, [2, 1, 3], strict=True))


def test_moderated_probabilities_have_the_lower_loss():
    train, test = make_waveform(120, random_state=0), make_waveform(500, random_state=1)
    model = SparseMixtureClassifier(kernel="rbf", random_state=0).fit(train.data, train.target)
    moderated = log_loss(test.target, model.predict_proba(test.data))
    certain = log_loss(test.target, unmoderated(model).predict_proba(test.data))
    assert moderated < certain


# -- names of the classes ----------------------------------------------------------------------


def assert_names_do_not_matter(settings, X, y, X_test, names, counts=None):
    """Class c becomes class names[c]: its probability moves along and stays what it was."""
    plain, renamed = (SparseMixtureClassifier(**settings) for _ in range(2))
    if counts is not None:
        plain.set_params(n_components=counts)
        renamed.set_params(n_components=np.array(counts)[np.argsort(names)].tolist())
    expected = plain.fit(X, y).predict_proba(X_test)
    found = renamed.fit(X, names[y]).predict_proba(X_test)
    np.testing.assert_allclose(found[:, names], expected, atol=1e-6)
    assert renamed.n_coef_ == plain.n_coef_


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_two_classes_may_swap_their_names(form, seed, ripley):
    settings = {**FORMS[form], "random_state": seed}
    assert_names_do_not_matter(settings, *ripley[:3], np.array([1, 0]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [[1, 2, 0], [2, 1, 0]])
def test_three_classes_may_swap_their_names(form, names, wine):
    X, y = wine
    settings = {**FORMS[form], "random_state": 0}
    assert_names_do_not_matter(settings, X[::2], y[::2], X[1::2], np.array(names), [2, 1, 3])


def test_names_do_not_matter_where_training_begins_with_some_rows(ripley, monkeypatch):
    monkeypatch.setattr("mixtura.training.sparse_bayes._FIRST_ROWS", 90)
    settings = {"form": "primal", "random_state": 0}
    assert_names_do_not_matter(settings, *ripley[:3], np.array([1, 0]))


# -- what it answers ---------------------------------------------------------------------------


def columns_of(model, X):
    """The columns of the fitted weights, by other means."""
    x = (X - model.scaling_.location) / model.scaling_.scale
    if model.form_ == "dual":
        centers = (model.relevance_vectors_ - model.scaling_.location) / model.scaling_.scale
        if model.kernel == "rbf":
            values = rbf_kernel(x, centers, gamma=1 / (2 * X.shape[1]))
        else:
            values = polynomial_kernel(x, centers, degree=2, gamma=1.0, coef0=1.0)
        return np.column_stack([np.ones(len(x)), values])
    values = dict(zip(["x0", "x1"], x.T, strict=True))
    terms = [term.replace(" ", "*").replace("^", "**") for term in model.terms_]
    return np.column_stack([eval(term, values) * np.ones(len(x)) for term in terms])


def unmoderated(model):
    """The same fit, without moderation."""
    found = copy.deepcopy(model)
    found.model_ = replace(found.model_, model=replace(found.model_.model, moderate=False))
    return found


def class_log_joint(model, X):
    joint = np.log(model.weights_) + columns_of(model, X) @ model.coef_.T
    ends = np.cumsum(model.n_components_)
    return np.stack([logsumexp(part, 1) for part in np.split(joint, ends[:-1], axis=1)], 1)


def test_probabilities_follow_from_the_fitted_attributes(fitted, ripley):
    certain = unmoderated(fitted)
    X = ripley[2][:50]
    expected = log_softmax(class_log_joint(fitted, X), 1)
    np.testing.assert_allclose(certain.predict_log_proba(X), expected, atol=1e-9)
    assert np.count_nonzero(fitted.coef_) == fitted.n_coef_
    assert fitted.coef_covariance_.shape == (fitted.n_coef_,) * 2
    assert len(fitted.terms_) == fitted.coef_.shape[1]
    assert fitted.terms_[0] == "1"


def test_responsibilities_add_up_to_the_certain_probabilities(fitted, ripley):
    X = ripley[2][:50]
    parts = np.split(fitted.responsibilities(X), np.cumsum(fitted.n_components_)[:-1], axis=1)
    expected = np.exp(log_softmax(class_log_joint(fitted, X), 1))
    np.testing.assert_allclose(np.stack([part.sum(1) for part in parts], 1), expected, atol=1e-9)


def test_moderation_is_the_mean_over_the_posterior_of_the_weights(machine, ripley):
    """For one component a class the logit is normal, and MacKay's factor close to its mean."""
    X = ripley[2][:20]
    certain = class_log_joint(machine, X)
    component, column = np.nonzero(machine.coef_)
    live = columns_of(machine, X)[:, column] * np.where(component == 0, 1.0, -1.0)
    deviation = np.sqrt(np.einsum("nl,lm,nm->n", live, machine.coef_covariance_, live))
    for row, found in enumerate(machine.predict_proba(X)[:, 0]):
        mean = certain[row, 0] - certain[row, 1]

        def integrand(z, mean=mean, sd=deviation[row]):
            return expit(mean + sd * z) * norm.pdf(z)

        assert found == pytest.approx(quad(integrand, -8, 8)[0], abs=0.012)
        factor = 1 / np.sqrt(1 + np.pi / 8 * deviation[row] ** 2)
        assert found == pytest.approx(expit(factor * mean), abs=1e-9)


def test_moderation_of_several_components_and_classes():
    """Against the mean over weights that are drawn from their posterior."""
    rows = make_checkerboard(20, random_state=0)
    model = SparseMixtureClassifier([5, 5, 6], random_state=0)
    model.fit(rows.data, rows.component % 3)
    assert sum(model.n_components_) > 6
    X, rng = rows.data[::8], np.random.default_rng(0)
    live = np.nonzero(model.coef_)
    drawn = unmoderated(model)
    total = np.zeros((40, 3))
    draws = rng.multivariate_normal(model.coef_[live], model.coef_covariance_, size=400)
    for weight in draws:
        drawn.coef_[live] = weight
        total += drawn.predict_proba(X) / len(draws)
    moderated = model.predict_proba(X)
    certain = unmoderated(model).predict_proba(X)
    assert np.abs(moderated - total).mean() < 0.6 * np.abs(certain - total).mean()
    assert np.abs(moderated - total).max() < 0.08


def test_probabilities_are_probabilities(fitted, ripley):
    proba = fitted.predict_proba(ripley[2])
    np.testing.assert_allclose(proba.sum(1), 1.0)
    assert (proba >= 0).all()
    np.testing.assert_array_equal(fitted.classes_[proba.argmax(1)], fitted.predict(ripley[2]))
    far = fitted.predict_proba(1e9 * np.array([[1.0, 1.0], [-1.0, 1.0]]))
    assert np.isfinite(far).all()


@pytest.mark.parametrize("form", FORMS)
def test_units_do_not_matter(form, one_start, ripley):
    X, y, X_test, _ = ripley
    model = one_start(form)
    plain = model.predict_proba(X_test)
    units = np.array([1e6, 1e-3])
    moved = clone(model).fit(X * units + [5e6, 0.0], y).predict_proba(X_test * units + [5e6, 0.0])
    np.testing.assert_allclose(moved, plain, atol=1e-3)


def test_single_precision(one_start, ripley):
    X, y, X_test, _ = ripley
    double = one_start("primal").predict_proba(X_test)
    single = clone(one_start("primal")).fit(X.astype("f"), y)
    np.testing.assert_allclose(single.predict_proba(X_test.astype("f")), double, atol=1e-2)


def test_same_seed_same_model(ripley):
    first, second = (
        SparseMixtureClassifier(random_state=7).fit(*ripley[:2]).predict_proba(ripley[2])
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


def test_file_gives_the_model_back(fitted, ripley, tmp_path):
    fitted.save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(ripley[2]), fitted.predict_proba(ripley[2]))
    assert again.terms_ == fitted.terms_


def test_terms_bear_the_names_of_the_features(ripley):
    frame = pytest.importorskip("pandas").DataFrame(ripley[0], columns=["height", "width"])
    model = SparseMixtureClassifier(form="primal", random_state=0).fit(frame, ripley[1])
    allowed = {"1", "height", "width", "height^2", "width^2", "height width"}
    assert set(model.terms_) <= allowed
    assert model.products_.shape == (len(model.terms_), 2)


def test_a_new_fit_forgets_the_other_form(one_start, ripley):
    model = copy.deepcopy(one_start("dual"))
    assert model.form_ == "dual"
    model.set_params(form="primal").fit(*ripley[:2])
    assert not hasattr(model, "relevance_vectors_")
    assert model.predict(ripley[2]).shape == (1000,)


def test_many_rows_take_the_primal_form(rng):
    X = rng.normal(size=(3200, 2))
    y = (X[:, 0] ** 2 + X[:, 1] ** 2 > 1.4).astype(int)
    model = SparseMixtureClassifier(1, random_state=0).fit(X, y)
    assert model.form_ == "primal"
    assert {"x0^2", "x1^2"} <= set(model.terms_)
    assert model.score(X, y) > 0.99


def test_search_over_kernels(ripley):
    grid = {"kernel": ["poly2", "rbf"], "n_components": [1, 2]}
    search = GridSearchCV(SparseMixtureClassifier(n_init=1, random_state=0), grid, cv=2)
    assert search.fit(*ripley[:2]).best_score_ > 0.85


# -- kernels -----------------------------------------------------------------------------------


def test_functions_and_scikit_learn_kernels_are_alike(ripley):
    X, y, X_test, _ = ripley
    settings = {"n_components": 2, "n_init": 1, "random_state": 0}
    named = SparseMixtureClassifier(kernel="rbf", **settings).fit(X, y)
    gaussian = SparseMixtureClassifier(kernel=RBF(np.sqrt(2.0)), **settings).fit(X, y)
    np.testing.assert_allclose(
        gaussian.predict_proba(X_test), named.predict_proba(X_test), atol=1e-6
    )


@pytest.mark.parametrize("kernel", sorted(PAIRWISE_KERNEL_FUNCTIONS))
def test_every_kernel_of_scikit_learn(kernel, ripley):
    """Those of chi squares take no negative values, and say so."""
    X, y = ripley[0] - ripley[0].min(0) + 0.1, ripley[1]
    model = SparseMixtureClassifier(2, kernel=kernel, random_state=0)
    if kernel.endswith("chi2"):
        with pytest.raises(InvalidInputError, match="standardize=False"):
            model.fit(X, y)
        model.set_params(standardize=False)
    assert model.fit(X, y).score(X, y) > 0.8


def test_predictions_keep_the_kernel_of_the_fit(machine, ripley):
    model = copy.deepcopy(machine)
    before = model.predict_proba(ripley[2])
    np.testing.assert_array_equal(model.set_params(kernel="poly2").predict_proba(ripley[2]), before)


def test_a_function_cannot_be_stored(ripley, tmp_path):
    model = SparseMixtureClassifier(1, kernel=RBF(1.0), random_state=0).fit(*ripley[:2])
    with pytest.raises(InvalidInputError, match="pickle"):
        model.save(tmp_path / "model")
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(ripley[2]), model.predict(ripley[2]))


@pytest.mark.parametrize("kernel", ["sigmoid", lambda a, b: -np.abs(a[:, None] - b).sum(-1)])
def test_kernel_need_not_be_positive_definite(kernel, ripley):
    model = SparseMixtureClassifier(kernel=kernel, n_init=1, random_state=0).fit(*ripley[:2])
    assert model.score(*ripley[2:]) > 0.85


def test_kernels_that_go_wrong_are_named(ripley):
    for kernel, message in (
        (lambda a, b: a, "shape"),
        (lambda a, b: np.full((len(a), len(b)), np.inf), "not finite"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            SparseMixtureClassifier(kernel=kernel).fit(*ripley[:2])
    with pytest.raises(InvalidInputError, match=r"'degree'.*takes"):
        SparseMixtureClassifier(kernel="rbf", kernel_params={"degree": 3}).fit(*ripley[:2])


# -- hard data ---------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)
def test_separable_classes(settings, rng):
    X = np.concatenate([rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) + 50.0])
    y = np.repeat([0, 1], 30)
    model = SparseMixtureClassifier(**settings, random_state=0).fit(X, y)
    assert model.score(X, y) == 1.0
    assert np.isfinite(model.predict_log_proba(X)).all()


@pytest.mark.filterwarnings("ignore:1 column:mixtura.exceptions.DegenerateDataWarning")
@pytest.mark.parametrize("constant", [0.0, 0.1, 1.0, 1 / 3, 1e6])
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_constant_column_changes_nothing(form, constant, ripley):
    X, y, X_test, _ = ripley
    model = SparseMixtureClassifier(form=form, kernel_params=None, random_state=0)
    more = np.column_stack([X, np.full(len(X), constant)])
    test = np.column_stack([X_test, np.full(len(X_test), constant * (1 + 1e-9))])
    model.fit(more, y)
    assert np.abs(model.coef_).max() < 1e4
    assert model.score(test, ripley[3]) > 0.88
    if form == "primal":
        assert not any("x2" in term for term in model.terms_)


def test_other_units_without_standardizing(ripley):
    X, y, X_test, y_test = ripley
    for unit in (1e-5, 1e5):
        model = SparseMixtureClassifier(form="primal", standardize=False, random_state=0)
        assert model.fit(X * unit, y).score(X_test * unit, y_test) > 0.85


def test_huge_weights(ripley):
    """Certainty without bounds still separates the rows as well as a straight line."""
    weight = np.full(len(ripley[0]), 1e12)
    model = SparseMixtureClassifier(n_init=1, max_iter=20, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(*ripley[:2], sample_weight=weight)
    np.testing.assert_allclose(model.predict_proba(ripley[2]).sum(1), 1.0)
    line = LogisticRegression().fit(*ripley[:2])
    assert model.score(*ripley[2:]) >= line.score(*ripley[2:])


def test_the_clock_is_heeded_from_the_first_step(rng, clock):
    X, y = rng.normal(size=(400, 20)), np.arange(400) % 20
    X[np.arange(400), y] += 4.0
    model = SparseMixtureClassifier(max_time=0.05, random_state=0).fit(X, y)
    assert clock.now < 0.2
    assert model.n_iter_ <= 5


def test_nothing_to_learn_predicts_the_class_shares(rng):
    X, y = np.tile(rng.normal(size=(100, 3)), (3, 1)), np.repeat([0, 1], [200, 100])
    with pytest.warns(DegenerateDataWarning, match="no weight is left.*Remedy"):
        model = SparseMixtureClassifier(1, features="linear", random_state=0).fit(X, y)
    assert model.n_coef_ == 0
    np.testing.assert_allclose(model.predict_proba(X), np.tile([2 / 3, 1 / 3], (300, 1)))


def test_one_row_a_component(rng):
    X, y = rng.normal(size=(6, 2)), np.repeat([0, 1], 3)
    model = SparseMixtureClassifier(3, random_state=0).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    with pytest.warns(DegenerateDataWarning, match="more components than distinct labeled rows"):
        SparseMixtureClassifier(9, random_state=0).fit(X, y)


def test_one_class(rng):
    model = SparseMixtureClassifier().fit(rng.normal(size=(10, 2)), np.zeros(10))
    np.testing.assert_array_equal(model.predict_proba(rng.normal(size=(3, 2))), np.ones((3, 1)))


def test_unlabeled_rows_are_left_out_and_said_so(ripley):
    X, y = ripley[:2]
    some = np.where(np.arange(len(y)) % 5 == 0, -1, y)
    with pytest.warns(DegenerateDataWarning, match="50 unlabeled row.*MixtureClassifier"):
        model = SparseMixtureClassifier(n_init=1, random_state=0).fit(X, some)
    alone = SparseMixtureClassifier(n_init=1, random_state=0).fit(X[some >= 0], y[some >= 0])
    np.testing.assert_allclose(model.predict_proba(X), alone.predict_proba(X))


def test_minus_one_as_a_class_is_not_taken_for_a_marker(ripley):
    X, y = ripley[0], 2 * ripley[1] - 1
    with pytest.raises(InvalidInputError, match="set unlabeled=None"):
        SparseMixtureClassifier(unlabeled=-1).fit(X, y)
    model = SparseMixtureClassifier(1, random_state=0).fit(X, y)
    assert model.classes_.tolist() == [-1, 1]


def test_missing_values_are_referred_to_the_other_classifier(ripley, fitted):
    holey = ripley[0].copy()
    holey[3, 1] = np.nan
    for call in (
        lambda: SparseMixtureClassifier().fit(holey, ripley[1]),
        lambda: fitted.predict(holey),
    ):
        with pytest.raises(InvalidInputError, match=r"NaN, in the column\(s\) \[1\].*Use Mixture"):
            call()


def test_limits_end_training(ripley):
    quick = SparseMixtureClassifier(max_time=1e-6, random_state=0).fit(*ripley[:2])
    assert quick.n_iter_ == 1
    assert np.isfinite(quick.predict_proba(ripley[2])).all()
    seen = []
    watched = SparseMixtureClassifier(random_state=0)
    watched.set_callbacks(lambda record: seen.append(record) or len(seen) == 3)
    assert watched.fit(*ripley[:2]).n_iter_ == len(seen) == 3
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        SparseMixtureClassifier(max_iter=2, random_state=0).fit(*ripley[:2])


def test_large_problem_is_computed_in_pieces(one_start, ripley, monkeypatch):
    """Neither columns that are not kept nor small chunks change the model."""
    X, y, X_test, _ = ripley
    whole = one_start("primal").predict_proba(X_test)
    monkeypatch.setattr("mixtura.estimators.sparse._KEPT", 0)
    monkeypatch.setitem(base._CHUNK_NUMBERS, "cpu", 500)
    parts = clone(one_start("primal")).fit(X, y).predict_proba(X_test)
    np.testing.assert_allclose(parts, whole, atol=1e-6)


# -- what it refuses ---------------------------------------------------------------------------

BAD_PARAMETERS = {
    "n_components": [0, 1.5, None, "auto"],
    "form": ["both"],
    "kernel": ["cubic", None],
    "kernel_params": [3],
    "features": ["cubic"],
    "moderate": ["yes"],
    "n_init": [0],
    "max_iter": [0],
    "max_time": [0.0],
    "tol": [-1.0],
    "ceiling": [0.0],
    "max_weights": [0],
    "class_weight": ["even"],
    "standardize": ["yes"],
    "device": [3],
    "random_state": ["seed"],
    "verbose": [-1],
}


@pytest.mark.parametrize("name", BAD_PARAMETERS)
def test_parameters_are_refused(name, ripley):
    for value in BAD_PARAMETERS[name]:
        with pytest.raises(InvalidParameterError, match=name):
            SparseMixtureClassifier(**{name: value}).fit(*ripley[:2])


def test_every_parameter_is_tried():
    assert set(BAD_PARAMETERS) == set(SparseMixtureClassifier().get_params()) - {"unlabeled"}


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"n_components": [1, 2, 3]}, InvalidInputError, "3 entries.*2 classes"),
        ({"kernel": "rbf", "form": "primal"}, UnsupportedError, "dual form"),
        ({"kernel": "rbf", "features": "linear"}, UnsupportedError, "primal"),
        ({"form": "dual", "features": "linear"}, UnsupportedError, "form='primal'"),
        ({"device": "abacus"}, InvalidInputError, "abacus"),
    ],
)
def test_contradictions_are_refused(parameters, error, message, ripley):
    with pytest.raises(error, match=message):
        SparseMixtureClassifier(**parameters).fit(*ripley[:2])


def test_a_failed_fit_leaves_the_old_model(fitted, ripley):
    before = fitted.predict_proba(ripley[2])
    with pytest.raises(ValueError, match="inconsistent"):
        fitted.fit(ripley[0], ripley[1][:-1])
    np.testing.assert_array_equal(fitted.predict_proba(ripley[2]), before)


def test_wide_rows(rng):
    """More products than could ever start: each component starts from those that tell."""
    X, y = rng.normal(size=(120, 60)), np.arange(120) % 2
    X[:, 5] += 3.0 * y
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = SparseMixtureClassifier(1, form="primal", random_state=0).fit(X_train, y_train)
    assert "x5" in " ".join(model.terms_).split()
    assert model.score(X_test, y_test) > 0.8
