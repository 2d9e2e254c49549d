"""Poor data still give a sound model, with a warning where something was wrong."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from small import X, Y, with_value

from mixtura import BoostedMixtureClassifier, MixtureClassifier, MixtureDensity
from mixtura.densities import Diagonal, Full, LowRank, Spherical
from mixtura.exceptions import AmbiguousDataWarning, DegenerateDataWarning, InvalidInputError
from mixtura.solvers import EBW, EM, LBFGS, Adam

QUICK_SOLVERS = {"auto": "auto", "ebw": EBW(3), "adam": Adam(3), "lbfgs": LBFGS(3)}
#: With these "auto" is EM, with all others L-BFGS.
ONE_CLASS = ["one row", "one class", "one label"]


def columns(**changes):
    changed = X.copy()
    for name, values in changes.items():
        changed[:, int(name[1:])] = values
    return changed


ONE_ROW_A_CLASS = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 3.0], [0.0, 5.0, 1.0]])
POOR = {
    "empty column": (columns(c1=np.nan), Y, "no observed value"),
    "empty rows": (np.vstack([X, np.full((3, 3), np.nan)]), np.r_[Y, 0, 1, 2], None),
    "class of empty rows": (np.where(Y[:, None] == 2, np.nan, X), Y, None),
    "constant column": (columns(c1=7.0), Y, "constant"),
    "constant in a class": (columns(c1=np.where(Y == 0, 0.0, X[:, 1])), Y, None),
    "all constant": (np.ones((30, 3)), Y, "constant"),
    "duplicated rows": (np.repeat(X[::10], 10, 0), Y, None),
    "duplicated columns": (X[:, [0, 0, 1, 1]], Y, None),
    "one row a class": (ONE_ROW_A_CLASS, np.array([0, 1, 2]), None),
    "one row": (X[:1], Y[:1], "only the class 0"),
    "one class": (X, np.zeros(30, dtype=int), "every row will be predicted"),
    "one label": (X, np.r_[0, np.full(29, np.nan)], "the others are unlabeled"),
    "tiny and huge columns": (X * [1e-12, 1.0, 1e12], Y, None),
    "tiny columns": (X * 1e-150, Y, None),
    "huge columns": (X * 1e150, Y, None),
    "large offset": (X + 1e8, Y, None),
    "float32": (X.astype(np.float32), Y, None),
    "float32 offset": ((X + 1e4).astype(np.float32), Y, None),
    "integers": (np.round(X).astype(int), Y, None),
    "booleans": (X > 0, Y, None),
    "outlier": (with_value(1e12), Y, None),
    "string labels": (X, np.array(["a", "b", "c"])[Y], None),
    "object labels": (X, np.array(["a", "b", None], dtype=object)[Y], None),
    "some unlabeled": (X, np.where(np.arange(30) % 2, Y, -1), None),
    "wide": (np.random.default_rng(1).normal(size=(6, 40)), np.array([0, 1] * 3), None),
    "fortran": (np.asfortranarray(X), Y, None),
    "lists": (X.tolist(), Y.tolist(), None),
}


def fit_quietly(model, rows, y, expected=None):
    """Fit; warnings other than the expected ones must name a remedy."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(rows, y)
    messages = [str(w.message) for w in caught if issubclass(w.category, DegenerateDataWarning)]
    assert all("emedy" in message or "says the same" in message for message in messages)
    if expected is not None:
        assert any(expected in message for message in messages)
    others = (DegenerateDataWarning, AmbiguousDataWarning, ConvergenceWarning)
    stray = [str(w.message) for w in caught if not issubclass(w.category, others)]
    assert not stray, f"stray warnings: {stray}"
    return model


def assert_sound(model, rows):
    """Nothing that a model answers is NaN; chances add up, and imputing keeps what is there."""
    rows = np.asarray(rows, dtype=float)
    proba, filled = model.predict_proba(rows), model.impute(rows)
    assert (proba >= 0.0).all()
    np.testing.assert_allclose(proba.sum(1), 1.0, 1e-6)
    assert np.isfinite(filled).all()
    there = ~np.isnan(rows)
    np.testing.assert_allclose(filled[there], rows[there], 1e-6)
    assert np.isfinite(model.score_samples(rows)).all()
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.sample(5, random_state=0)[0]).all()


@pytest.mark.parametrize(
    ("name", "solver"),
    [(n, s) for n in POOR for s in QUICK_SOLVERS if s != "auto" or n in ONE_CLASS],
)
def test_poor_data_give_sound_models(name, solver):
    """No NaN anywhere; what cannot be used is named together with the remedy."""
    rows, y, expected = POOR[name]
    settings = {"solver": QUICK_SOLVERS[solver], "init": EM(10, 0.01), "random_state": 0}
    # Nothing is compared: every candidate meets such data in the tests of structures below.
    settings |= {"density": "low_rank", "calibrate": False, "unlabeled_weight": 0.5}
    model = MixtureClassifier(**settings)
    assert_sound(fit_quietly(model, rows, y, expected), rows)


@pytest.mark.parametrize("name", POOR)
def test_poor_data_give_sound_boosted_models(name):
    """The same for a mixture that is grown; rows without a label are no use to it."""
    rows, y, expected = POOR[name]
    model = BoostedMixtureClassifier(
        n_stages=2,
        solver=EM(5),
        missingness="ignore",
        calibrate=False,
        early_stopping=False,
        random_state=0,
    )
    if name == "one label":
        with pytest.raises(InvalidInputError, match="needs two"):
            model.fit(rows, y)
        return
    known = np.array([label is not None and label != -1 for label in np.asarray(y)])
    if not known.all():
        expected = "unlabeled row"
    assert_sound(fit_quietly(model, rows, y, expected), rows)


@pytest.mark.parametrize(
    "density",
    [
        Spherical(),
        Diagonal(),
        Full(),
        LowRank(rank=2),
        LowRank(rank=2, parameterization="precision"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "name",
    ["empty column", "all constant", "duplicated rows", "one row a class", "wide", "outlier"],
)
def test_poor_data_with_every_structure(name, density):
    """Several components a class, without a prior that could help."""
    rows, y, expected = POOR[name]
    model = MixtureClassifier(
        2,
        density=density,
        prior_rows=0,
        solver=LBFGS(3),
        init=EM(10, 0.01),
        random_state=0,
    )
    assert_sound(fit_quietly(model, rows, y, expected), rows)


@pytest.mark.parametrize("name", ["tiny and huge columns", "large offset", "float32 offset"])
def test_poor_data_without_standardizing(name):
    """The user's units as they are, however unfortunate."""
    rows, y, _ = POOR[name]
    model = MixtureClassifier(marginals="raw", solver=LBFGS(3), random_state=0)
    assert_sound(fit_quietly(model, rows, y), rows)


@pytest.mark.parametrize("density", ["diag", "full"])
def test_offsets_do_not_eat_variances(density, iris):
    """Whatever the units."""
    X, y = iris[0] + 1e8, iris[1]
    options = {"objective": "likelihood", "prior_rows": 0, "marginals": "raw"}
    model = MixtureClassifier(1, density=density, **options).fit(X, y)
    for label, found in enumerate(model.covariances_):
        variance = np.maximum(X[y == label].var(0), 0.01)
        np.testing.assert_allclose(
            found.diagonal(), variance, rtol=0.2 if density == "full" else 1e-6
        )


@pytest.mark.parametrize(
    "name", ["tiny and huge columns", "tiny columns", "huge columns", "large offset", "float32"]
)
def test_units_do_not_cost_accuracy(name):
    """The classes lie apart, and are found apart in any units."""
    rows, y, _ = POOR[name]
    model = MixtureClassifier(solver=LBFGS(5), random_state=0).fit(rows, y)
    assert model.score(rows, y) > 0.9


def test_more_components_than_rows():
    """One component a row, with a warning that names the remedy."""
    model = MixtureClassifier([20, 2, 1], objective="likelihood", random_state=0)
    fit_quietly(model, X, Y, "more components than distinct labeled rows")
    assert model.n_components_ == [10, 2, 1]
    assert_sound(model, X)


@pytest.mark.parametrize("rank", [3, 50])
def test_rank_beyond_the_features(rank):
    """The full rank is used, with a warning that names the plainer choice."""
    model = MixtureClassifier(1, density=LowRank(rank), objective="likelihood")
    with pytest.warns(DegenerateDataWarning, match="density='full'"):
        model.fit(X, Y)
    assert_sound(model, X)


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (MixtureClassifier(1, objective="likelihood"), columns(c1=7.0)),
        (MixtureClassifier(50, objective="likelihood"), X),
        (MixtureClassifier(1, density=LowRank(9), objective="likelihood"), X),
        (MixtureDensity(1), columns(c1=7.0)),
        (MixtureDensity(50), X),
        (MixtureDensity(1, density=LowRank(9, floor=1e-5)), X),
    ],
    ids=lambda value: "" if isinstance(value, np.ndarray) else str(value),
)
def test_warnings_point_at_the_caller(model, rows):
    """Not into a library: the line to change is the user's."""
    with pytest.warns(DegenerateDataWarning) as caught:
        model.fit(rows, Y)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("value", [1e20, -1e100, 1e200, 1e300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("density", ["diag", "full", "low_rank"])
def test_rows_a_world_away_have_probabilities(density, dtype, value):
    """Whatever finite number is asked about, the answer is not NaN."""
    if dtype == np.float32 and abs(value) > 1e38:
        pytest.skip("not a float32")
    model = MixtureClassifier(1, density=density, objective="likelihood").fit(X, Y)
    rows = with_value(value)[:5].astype(dtype)
    proba = model.predict_proba(rows)
    np.testing.assert_allclose(proba.sum(1), 1.0, 1e-6)
    assert not np.isnan(model.score_samples(rows)).any()
    assert model.is_outlier(rows)[3]


@pytest.mark.parametrize(
    ("value", "density"),
    [
        (0.0, "low_rank"),
        (0.1, "auto"),
        (0.5, "low_rank"),
        (1.0, "full"),
        (-1.0, "diag"),
        (1e6, "low_rank"),
    ],
)
def test_a_constant_column_changes_nothing(value, density, iris):
    """Whatever its value, it is noticed, and a hair's breadth off it later does no harm."""
    X, y = iris
    padded = np.c_[X, np.full(len(X), value)]
    settings = {"calibrate": density == "auto", "solver": LBFGS(5), "random_state": 0}
    model = MixtureClassifier(1, density=density, **settings)
    with pytest.warns(DegenerateDataWarning, match="constant"):
        model.fit(padded, y)
    expected = model.score(padded, y)
    padded[:, 4] += 1e-9
    assert model.score(padded, y) == expected > 0.9


def test_a_marker_that_may_be_a_class_is_noticed(iris):
    """If unlabeled rows leave one class, we say so."""
    X, y = iris
    with pytest.warns(DegenerateDataWarning, match="unlabeled=None"):
        MixtureClassifier(1, unlabeled=-1, random_state=0).fit(X, np.where(y == 1, 1, -1))
