"""Input that makes no sense is refused with a telling message, before any work."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import InvalidParameterError
from small import X, Y, with_value

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    SequenceMixtureClassifier,
)
from mixtura.densities import DENSITIES, Auto, Chain, Diagonal, Full, LowRank, Spherical, Student
from mixtura.estimators.reading import check_weight
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, UnsupportedError
from mixtura.objectives import Conditional, Margin
from mixtura.sequences import Layout
from mixtura.solvers import EBW, EM, LBFGS, SOLVERS, Adam, Boosted


@pytest.fixture
def no_work(monkeypatch):
    """Fails if training begins."""

    def begin(*args, **kwargs):
        raise AssertionError("work began before the input was refused")

    monkeypatch.setattr("mixtura.training.beginnings.fit_groups", begin)
    monkeypatch.setattr("mixtura.estimators.density.fit_groups", begin)
    monkeypatch.setattr("mixtura.training.boosting.Learner.fit", begin)


@pytest.fixture(scope="module")
def model():
    """A small fitted model."""
    return MixtureClassifier(1, objective="likelihood").fit(X, Y)


REFUSED = {
    "infinity": (with_value(np.inf), Y, {}, r"column \d+ holds infinity \(row \d+\).*NaN"),
    "minus infinity": (with_value(-np.inf), Y, {}, "infinity"),
    "1-D X": (X[:, 0], Y, {}, "2D array"),
    "3-D X": (X[:, :, None], Y, {}, "dim 3"),
    "no rows": (X[:0], Y[:0], {}, "0 sample"),
    "no columns": (X[:, :0], Y, {}, "0 feature"),
    "bytes": (np.full((30, 3), b"a"), Y, {}, "neither numbers nor categories"),
    "complex": (X.astype(complex), Y, {}, "Complex data"),
    "lengths": (X, Y[:-1], {}, "inconsistent numbers of samples"),
    "2-D y": (X, np.stack([Y, Y], 1), {}, "1d array"),
    "y None": (X, None, {}, "requires y"),
    "all NaN": (X, np.full(30, np.nan), {}, "no labeled row.*unlabeled=None"),
    "all None": (X, np.full(30, None), {}, "no labeled row"),
    "continuous y": (X, np.linspace(0, 1, 30), {}, "Unknown label type"),
    "rounded y": (
        X,
        np.where(Y == 0, 0.1 + 0.2, 0.3),
        {},
        r"0\.3 and 0\.30000000000000004, .*round",
    ),
    "rounded text": (X, np.where(Y == 0, "0.3", "0.30000000000000004"), {}, "by rounding alone"),
    "infinite label": (X, np.where(Y == 0, np.inf, Y), {}, "infinity"),
    "negative weight": (X, Y, {"sample_weight": np.where(Y == 0, -1.0, 1.0)}, "not negative"),
    "NaN weight": (X, Y, {"sample_weight": np.full(30, np.nan)}, "finite"),
    "infinite weight": (X, Y, {"sample_weight": np.full(30, np.inf)}, "finite"),
    "short weight": (X, Y, {"sample_weight": np.ones(29)}, "one weight per row"),
    "2-D weight": (X, Y, {"sample_weight": np.ones((30, 1))}, "one weight per row"),
    "zero weight": (X, Y, {"sample_weight": np.zeros(30)}, "zero for every row"),
    "text weight": (X, Y, {"sample_weight": np.full(30, "1")}, "must hold numbers"),
    "object weight": (
        X,
        Y,
        {"sample_weight": np.array([1.0, "1"] * 15, object)},
        "must hold numbers",
    ),
    "date weight": (X, Y, {"sample_weight": np.full(30, "2020", "M8[D]")}, "must hold numbers"),
    "lost class": (X, Y, {"sample_weight": np.where(Y == 2, 0.0, 1.0)}, r"classes \[2\]"),
}


def test_large_whole_numbers_are_classes_beside_fractions():
    """Those that differ by one are two, whatever the others are."""
    names = np.array(["1000000000000000", "1000000000000001", "0.5"])
    model = MixtureClassifier(1, density="diag").fit(X, names[np.arange(30) % 3])
    assert sorted(model.classes_) == sorted(names)


def test_weights_that_hardly_count_rows_are_told():
    with pytest.warns(AmbiguousDataWarning, match=r"0\.0333 in the mean.*divide the weights"):
        MixtureClassifier(1, density="diag").fit(X, Y, np.full(30, 1 / 30))


@pytest.mark.parametrize("name", REFUSED)
def test_data_are_refused_before_any_work(name, no_work):
    """Each with a message that names the problem."""
    rows, y, options, message = REFUSED[name]
    for classifier in (MixtureClassifier(), BoostedMixtureClassifier()):
        with pytest.raises(ValueError, match=message):
            classifier.fit(rows, y, **options)


@pytest.mark.parametrize(
    "name", ["infinity", "1-D X", "no rows", "negative weight", "NaN weight", "zero weight"]
)
def test_density_data_are_refused_too(name, no_work):
    """The unsupervised estimator is no less careful."""
    rows, _, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        MixtureDensity().fit(rows, **options)


PRECISION = LowRank(parameterization="precision")
BAD_PARAMETERS = {
    "categorical_features": ["by dtype", 3],
    "unexpected": ["drop", None],
    "missingness": ["at random", True],
    "marginals": ["log", None],
    "n_components": [0, -1, 1.5, "many", None],
    "density": ["round", None, Full],
    "objective": ["hinge", None, Margin],
    "tradeoff": [-0.1, 1.1, np.nan, "half"],
    "unlabeled_weight": [-0.1, 1.1],
    "solver": ["sgd", None, EM],
    "init": ["random", None, LBFGS()],
    "max_time": [0.0, -1.0, np.nan],
    "class_prior": ["flat", 0.5],
    "class_weight": ["even", 2.0],
    "prior_rows": [-1.0, "some", np.nan],
    "standardize": ["yes"],
    "early_stopping": ["never"],
    "calibrate": ["yes"],
    "warm_start": ["yes"],
    "device": [3],
    "random_state": ["seed"],
    "verbose": [-1],
}
BAD_GROWTH = {
    "n_states": [0, -1, 1.5, "many", None],
    "method": ["mcmc", None],
    "multiclass": ["one_vs_rest"],
    "representation": ["shapelets", None],
    "chain": ["circle", None],
    "layout": ["sideways", None],
    "n_stages": [0, 1.5],
}
PAIRS = [
    (name, value) for name, values in {**BAD_PARAMETERS, **BAD_GROWTH}.items() for value in values
]
ESTIMATORS = [
    MixtureClassifier,
    MixtureDensity,
    BoostedMixtureClassifier,
    SequenceMixtureClassifier,
]


@pytest.mark.parametrize(("name", "value"), PAIRS, ids=str)
def test_parameters_are_refused_before_any_work(name, value, no_work):
    """The message names the parameter, whatever the estimator."""
    asked = [kind for kind in ESTIMATORS if name in kind().get_params()]
    assert asked
    for kind in asked:
        with pytest.raises(InvalidParameterError, match=name):
            kind(**{name: value}).fit(X, Y)


def test_every_constrained_parameter_is_tried():
    """A new parameter must say what it refuses."""
    known = {name for kind in ESTIMATORS for name in kind().get_params()}
    assert known - set(BAD_PARAMETERS) - set(BAD_GROWTH) == {"unlabeled"}


ITERATIONS, GAINS = [0, 1.5, "many"], [-1e-3, np.nan]
FLOORS, RANKS = [0.0, -1.0, np.nan], [0, "low", 1.5]
STOPPING = {"early_stopping": ["never"], "validation_fraction": [0.0, 1.0], "patience": [0]}
SOLVER_SETTINGS = {
    EM: {"max_iter": ITERATIONS, "tol": GAINS, "n_init": [0]},
    EBW: {
        "max_iter": ITERATIONS,
        "tol": GAINS,
        "factor": [0.0, -1.0, np.nan],
        "per_component": ["all"],
        "damping": [-1.0, np.nan],
        "finish": ["lbfgs", 3],
        **STOPPING,
    },
    LBFGS: {"max_iter": ITERATIONS, "tol": GAINS, **STOPPING},
    Adam: {
        "max_iter": ITERATIONS,
        "batch_size": [0, 1.5],
        "learning_rate": [0.0, -1.0, np.nan],
        "schedule": ["step"],
        "averaging": [1.0, -0.1],
        **STOPPING,
    },
}
DENSITY_SETTINGS = {
    Full: {"floor": FLOORS},
    Diagonal: {"floor": FLOORS},
    Spherical: {"floor": FLOORS},
    LowRank: {
        "rank": RANKS,
        "floor": FLOORS,
        "parameterization": ["cholesky"],
        "init": ["random"],
    },
    Student: {"scale": ["round"], "rank": RANKS, "floor": FLOORS},
    Auto: {"floor": [*FLOORS, "low"], "rank": RANKS},
}
SHARES = [-0.1, 0.6, np.nan]
OBJECTIVE_SETTINGS = {
    Margin: {"margin": [0.0, -1.0, np.nan, np.inf], "holes": SHARES},
    Conditional: {"holes": SHARES},
}
PART_SETTINGS = [
    (role, kind, name, value)
    for role, kinds in (
        ("solver", SOLVER_SETTINGS),
        ("density", DENSITY_SETTINGS),
        ("objective", OBJECTIVE_SETTINGS),
    )
    for kind, settings in kinds.items()
    for name, values in settings.items()
    for value in values
]


def named(value):
    """Short names of cases."""
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("role", "kind", "name", "value"), PART_SETTINGS, ids=named)
def test_settings_of_parts_are_refused_before_any_work(role, kind, name, value, no_work):
    """The message names the setting and the part, in every estimator that takes it."""
    part, message = kind(**{name: value}), f"'{name}' parameter of {kind.__name__}"
    asked = [
        (estimator, each)
        for estimator in (MixtureClassifier, MixtureDensity, BoostedMixtureClassifier)
        for each in (role, "init")
        if takes(estimator, each, kind)
    ]
    assert asked
    for estimator, each in asked:
        with pytest.raises(InvalidParameterError, match=message):
            estimator(**{each: part}).fit(X, Y)


SEQUENCE_SETTINGS = {
    "chain": {
        Chain: {
            "topology": ["circle"],
            "durations": [0, -1, 1.5, "long", None],
            "n_mixtures": [0, -1, 1.5, "many", None],
        }
    },
    "layout": {
        Layout: {"channels_first": ["yes"], "id_column": [3, None], "time_column": [3]},
    },
    "method": {Boosted: {"kind": ["bagged"], "n_stages": [0, 1.5]}},
}


@pytest.mark.parametrize(
    "options",
    [
        *(
            {role: kind(**{name: value})}
            for role, kinds in SEQUENCE_SETTINGS.items()
            for kind, settings in kinds.items()
            for name, values in settings.items()
            for value in values
        ),
        {"init": EM(0)},
        {"density": Diagonal(0.0)},
        {"method": "margin", "solver": Adam(learning_rate=-1.0)},
        {"method": Margin(0.0)},
    ],
    ids=str,
)
def test_settings_of_parts_of_sequences_are_refused_too(options, no_work):
    """Sequences are no exception."""
    sequences = list(np.repeat(X[:, None], 5, 1))
    with pytest.raises(InvalidParameterError, match="parameter of"):
        SequenceMixtureClassifier(2, **options).fit(sequences, Y)


@pytest.mark.parametrize("name", ["objective", "method"])
def test_holes_are_refused_where_no_rows_get_any(name, no_work):
    """They would be left out silently."""
    kind, shape = {
        "objective": (MixtureNetworkClassifier, (len(Y), -1)),
        "method": (SequenceMixtureClassifier, (len(Y), -1, 1)),
    }[name]
    with pytest.raises(UnsupportedError, match="holes are for MixtureClassifier"):
        kind(2, **{name: Margin(holes=0.3)}).fit(X.reshape(shape), Y)


def takes(estimator, name, kind):
    """Whether an estimator has this parameter, and it may be a part of this kind."""
    wanted = estimator._parameter_constraints[name] if name in estimator().get_params() else []
    return any(isinstance(each, type) and issubclass(kind, each) for each in wanted)


@pytest.mark.parametrize(
    ("kinds", "names"), [(SOLVER_SETTINGS, SOLVERS), (DENSITY_SETTINGS, DENSITIES)]
)
def test_every_setting_of_a_part_is_tried(kinds, names):
    """A new setting must say what it refuses."""
    assert set(kinds) == set(names.values())
    for kind, settings in kinds.items():
        assert set(kind().get_params()) == set(settings)


CONTRADICTIONS = [
    ({"solver": "em"}, UnsupportedError, "solver='em'.*ebw"),
    ({"solver": "ebw", "density": PRECISION}, UnsupportedError, "adam"),
    ({"n_components": [1, 2]}, InvalidInputError, "2 entries.*3 classes"),
    ({"n_components": [1, 0, 2]}, InvalidInputError, "positive int"),
    ({"n_components": [1.5, 1, 2]}, InvalidInputError, "positive int"),
    ({"n_components": [[1, 1, 1]]}, InvalidInputError, "positive int"),
    ({"class_prior": [0.5, 0.5]}, InvalidInputError, "3 positive numbers"),
    ({"class_prior": [0.5, 0.5, 0.5]}, InvalidInputError, "sum to one"),
    ({"class_prior": [1.0, 0.0, 0.0]}, InvalidInputError, "positive"),
    ({"class_prior": [np.nan, 0.5, 0.5]}, InvalidInputError, "positive"),
    ({"class_prior": ["a", "b", "c"]}, ValueError, "class_prior|convert"),
    ({"device": "abacus"}, InvalidInputError, "device='abacus'.*cpu"),
    ({"class_weight": {0: -1.0}}, ValueError, "weight"),
    ({"class_weight": {0: np.nan}}, ValueError, "weight"),
    ({"class_weight": {0: 0.0}}, InvalidInputError, "positive weight"),
]
GROWTH_CONTRADICTIONS = [
    ({"device": "abacus"}, InvalidInputError, "device='abacus'.*cpu"),
    ({"class_weight": {0: 0.0}}, InvalidInputError, "positive weight"),
]


@pytest.mark.parametrize(("parameters", "error", "message"), CONTRADICTIONS, ids=str)
def test_contradictions_are_refused_before_any_work(parameters, error, message, no_work):
    """Parameters that do not go together, or not with the data."""
    with pytest.raises(error, match=message):
        MixtureClassifier(**parameters).fit(X, Y)


@pytest.mark.parametrize(("parameters", "error", "message"), GROWTH_CONTRADICTIONS, ids=str)
def test_grown_classifiers_refuse_too(parameters, error, message, no_work):
    """Rows or sequences, before any work."""
    with pytest.raises(error, match=message):
        BoostedMixtureClassifier(**parameters).fit(X, Y)
    with pytest.raises(error, match=message):
        SequenceMixtureClassifier(**parameters).fit(X[:, :, None], Y)


QUESTIONS = {
    "unknown label": (lambda m: m.log_margin(X[:1], [7]), "not among the classes"),
    "unlabeled margin": (lambda m: m.log_margin(X[:1], [-1]), "label for every row"),
    "missing labels": (lambda m: m.log_margin(X[:2], [0]), "1 entries.*2 rows"),
    "no labels": (lambda m: m.log_margin(X[:2], None), "label for every row"),
    "unknown sample": (lambda m: m.sample(2, y=7), "not among the classes"),
    "half a label": (lambda m: m.sample(2, y=0.5), "not among the classes"),
    "text label": (lambda m: m.sample(2, y="a"), "not among the classes"),
    "labels a sample": (lambda m: m.sample(3, y=[0, 1]), "2.*3|3.*2"),
    "no samples": (lambda m: m.sample(0), "positive and whole"),
    "half a sample": (lambda m: m.sample(1.5), "positive and whole"),
    "no draws": (lambda m: m.impute(X, n_draws=0), "positive and whole"),
    "labels to impute": (lambda m: m.impute(X, [0]), "1 entries.*30 rows"),
    "negative share": (lambda m: m.is_outlier(X, share=-0.1), "between 0 and 1"),
    "NaN share": (lambda m: m.is_outlier(X, share=np.nan), "between 0 and 1"),
    "columns": (lambda m: m.predict(X[:, :2]), "2 features.*3 features"),
    "one row": (lambda m: m.predict(X[0]), "2D array"),
    "infinity": (lambda m: m.predict(with_value(np.inf)), "infinity"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_are_refused(name, model):
    """Each with a message that names the problem."""
    ask, message = QUESTIONS[name]
    with pytest.raises(ValueError, match=message):
        ask(model)


@pytest.mark.parametrize("wanted", ["virginicas", "set", "", None])
def test_labels_are_compared_whole(wanted):
    """A label that begins like a class is not that class."""
    names = np.array(["setosa", "virginica"])
    model = MixtureClassifier(1, objective="likelihood").fit(X[:20], names[Y[:20]])
    with pytest.raises(ValueError, match=r"not among the classes|label for every row"):
        model.log_margin(X[:1], np.array([wanted], dtype=object))
    if wanted is not None:
        with pytest.raises(ValueError, match="not among the classes"):
            model.sample(1, y=wanted)


@pytest.mark.parametrize(
    "method",
    ["predict", "predict_proba", "score_samples", "transform", "impute", "is_outlier", "sample"],
)
@pytest.mark.parametrize("estimator", [MixtureClassifier(), MixtureDensity()], ids=str)
def test_unfitted(estimator, method):
    """Nothing works before fit, and the error says so."""
    with pytest.raises(NotFittedError, match="not fitted"):
        getattr(estimator, method)(3 if method == "sample" else X)


def test_unfitted_attributes_and_files(tmp_path):
    """Nor do covariances, margins and saving."""
    with pytest.raises(NotFittedError):
        MixtureClassifier().covariances_  # noqa: B018
    with pytest.raises(NotFittedError):
        MixtureClassifier().log_margin(X, Y)
    with pytest.raises(NotFittedError):
        MixtureClassifier().save(tmp_path / "model")


STREAMS = {
    "no classes": ({}, "needs all classes"),
    "too few classes": ({"classes": [0, 1]}, "not among the classes"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_need_all_classes(name):
    """The first call must know them."""
    options, message = STREAMS[name]
    with pytest.raises(ValueError, match=message):
        MixtureClassifier().partial_fit(X, Y, **options)


def test_streams_keep_their_classes():
    """Later calls cannot bring others."""
    model = MixtureClassifier(1, objective="likelihood").partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="differ from those of the first call"):
        model.partial_fit(X, Y, classes=[0, 1, 2, 3])
    with pytest.raises(ValueError, match="not among the classes"):
        model.partial_fit(X, Y + 1)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2], Y)


@pytest.mark.parametrize(
    ("rows", "labels"),
    [(X[:, :2], Y), (X[Y < 2], Y[Y < 2]), (X, Y + 5)],
    ids=["features", "fewer classes", "other classes"],
)
def test_warm_starts_need_the_same_problem(rows, labels):
    """Other features, fewer classes or other classes cannot continue."""
    model = MixtureClassifier(1, objective="likelihood", warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match="warm_start"):
        model.fit(rows, labels)


def test_a_refused_fit_leaves_the_model_alone(model):
    """What was fitted still predicts the same, with the same labels."""
    fitted = MixtureClassifier(1, objective="likelihood").fit(X, Y)
    before = fitted.predict(X)
    with pytest.raises(ValueError, match="finite"):
        fitted.fit(X, Y + 5, sample_weight=np.full(30, np.nan))
    np.testing.assert_array_equal(fitted.predict(X), before)


def test_objects_that_mix_types():
    """Labels that cannot be sorted are refused, not a crash deep inside."""
    y = np.array(["a", 1, None], dtype=object)[Y]
    with pytest.raises(ValueError, match=r"[Ll]abel"):
        MixtureClassifier().fit(X, y)


def test_callbacks_are_functions():
    """And what was there before stays."""
    model = MixtureClassifier().set_callbacks(print)
    with pytest.raises(InvalidInputError, match="callbacks must be functions"):
        model.set_callbacks(3)
    assert model._callbacks == (print,)


def test_a_failed_fit_leaves_the_old_model(iris):
    """A refit that raises half-way answers as before."""

    def fail(record):
        raise RuntimeError("stop here")

    X, y = iris
    model = MixtureClassifier(1, random_state=0, objective="likelihood").fit(X, y)
    before = model.predict_proba(X)
    model.set_callbacks(fail)
    with pytest.raises(RuntimeError, match="stop here"):
        model.fit(X[:, :2], np.array(["x", "y", "z"])[y])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert model.classes_.tolist() == [0, 1, 2]


def test_a_weight_that_all_rows_share_is_kept_once():
    """Twenty million rows in files would take 160 MB for it."""
    assert check_weight(np.broadcast_to(2.0, 1000), 1000).strides == (0,)
