"""Estimators on tables of numbers and categories, with holes, as users have them."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from frames import FRAME, FRESH, FRESH_Y, QUICK, Y, make_frame
from memory import Largest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from mixtura import BoostedMixtureClassifier, MixtureClassifier, MixtureDensity
from mixtura.densities import DENSITIES, Product
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, UnsupportedError
from mixtura.nn import MixtureHead
from mixtura.solvers import EM, LBFGS, SOLVERS, Adam

pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def model():
    """A generative classifier with two components a class."""
    return MixtureClassifier(2, random_state=0, **QUICK).fit(FRAME, Y)


@pytest.fixture(scope="module")
def density():
    """A density with two components."""
    return MixtureDensity(2, missingness="ignore", random_state=0).fit(FRAME)


@pytest.fixture(scope="module")
def boosted():
    """Two stages, with calibration."""
    return BoostedMixtureClassifier(
        n_stages=2, early_stopping=False, missingness="ignore", solver=EM(20), random_state=0
    ).fit(FRAME, Y)


# -- learning ----------------------------------------------------------------------------------

TRAININGS = [
    ("likelihood", solver) for solver in ("em", "ebw", "lbfgs", "adam")
] + [
    (objective, solver)
    for objective in ("margin", "conditional", "smooth_margin")
    for solver in ("ebw", "lbfgs", "adam")
]  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "solver", "missingness"),
    [(*each, "informative") for each in TRAININGS]
    + [(*each, "ignore") for each in TRAININGS if "margin" in each or "em" in each],
    ids=lambda name: name,
)
def test_every_objective_and_solver_learns(objective, solver, missingness):
    """From text, truth values and numbers with holes, on rows it has not seen."""
    settings = QUICK | {"objective": objective, "missingness": missingness}
    made = MixtureClassifier(
        2, solver=SOLVERS[solver](5), calibrate=False, random_state=0, **settings
    ).fit(FRAME, Y)
    assert made.score(FRESH, FRESH_Y) > 0.75
    assert made.missingness_ == missingness
    probability = made.predict_proba(FRESH)
    np.testing.assert_allclose(probability.sum(1), 1.0, 1e-9)
    assert np.isfinite(made.score_samples(FRESH)).all()


@pytest.mark.parametrize("density", ["full", "spherical", "low_rank"])
def test_every_structure_learns(density):
    """The real columns may have any covariance."""
    settings = QUICK | {"density": density}
    made = MixtureClassifier(1, random_state=0, **settings).fit(FRAME, Y)
    assert isinstance(made.density_, DENSITIES[density])
    assert made.score(FRESH, FRESH_Y) > 0.75


def test_em_is_refused_for_other_objectives():
    """As for numbers alone."""
    with pytest.raises(UnsupportedError, match="ebw"):
        MixtureClassifier(objective="margin", solver="em").fit(FRAME, Y)


def test_calibrated_probabilities_are_better_than_a_guess():
    """The default way, short: folds, held-back rows and calibration work on mixed tables."""
    made = MixtureClassifier(
        1, density="diag", tradeoff=0.5, solver=LBFGS(5), missingness="ignore", random_state=0
    ).fit(FRAME, Y)
    chance = made.predict_proba(FRESH)[np.arange(len(FRESH)), FRESH_Y]
    assert -np.log(chance).mean() < 0.9 * np.log(2.0)
    assert made.temperature_ != 1.0


def test_the_density_finds_the_classes(density):
    """Two components are the two classes, without a label."""
    agreement = np.mean(density.predict(FRESH) == FRESH_Y)
    assert max(agreement, 1.0 - agreement) > 0.65
    np.testing.assert_allclose(density.predict_proba(FRESH).sum(1), 1.0, 1e-9)
    assert density.bic(FRAME) > density.aic(FRAME)
    assert density.is_outlier(FRAME, 0.05).mean() == pytest.approx(0.05, abs=0.02)


def test_the_number_of_components_is_found():
    """Three clusters that only the categories tell apart."""
    rng = np.random.default_rng(0)
    group = np.arange(240) % 3
    noise = rng.random((240, 4)) < 0.05
    letters = np.array(list("abc"), dtype=object)
    columns = {
        str(i): letters[np.where(noise[:, i], rng.permutation(group), group)] for i in range(4)
    }
    made = MixtureDensity(missingness="ignore", random_state=0).fit(pd.DataFrame(columns))
    assert made.n_components_ == 3
    found = made.predict(pd.DataFrame(columns))
    assert len(set(zip(found[~noise.any(1)], group[~noise.any(1)], strict=True))) == 3


def test_boosting_learns(boosted):
    """And is an ordinary mixture over mixed columns."""
    assert boosted.score(FRESH, FRESH_Y) > 0.75
    assert isinstance(boosted.mixture_.density, Product)
    assert np.isfinite(boosted.score_samples(FRESH)).all()


def test_votes_know_categories():
    """AdaBoost has no density, but reads the same tables."""
    made = BoostedMixtureClassifier(
        method="adaboost", n_stages=2, calibrate=False, early_stopping=False,
        missingness="ignore", random_state=0,
    ).fit(FRAME, Y)  # fmt: skip
    assert made.score(FRESH, FRESH_Y) > 0.7
    with pytest.raises(UnsupportedError, match="votes"):
        made.category_proba(FRESH, "color")


def test_scikit_learn_splits_frames():
    """Cross-validation passes parts of frames, to clones."""
    scores = cross_val_score(MixtureClassifier(1, **QUICK), FRAME, Y, cv=3)
    assert scores.min() > 0.65


# -- what must not matter ----------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["likelihood", "margin"])
def test_units_do_not_matter(objective):
    """Another unit of a column leaves the predictions as they are, and shifts log densities."""
    solver = EM(5) if objective == "likelihood" else LBFGS(5)
    settings = QUICK | {"objective": objective, "calibrate": False, "solver": solver}
    scaled = FRAME.assign(weight=FRAME["weight"] * 1024.0 - 4096.0)
    one, other = (
        MixtureClassifier(2, random_state=0, **settings).fit(X, Y) for X in (FRAME, scaled)
    )
    np.testing.assert_allclose(one.predict_proba(FRAME), other.predict_proba(scaled), 1e-6, 1e-9)
    shift = one.score_samples(FRAME) - other.score_samples(scaled)
    np.testing.assert_allclose(shift, FRAME["weight"].notna() * np.log(1024.0), 1e-6, 1e-6)


@pytest.mark.parametrize(
    ("names", "n_components"),
    [
        ({"blue": "A", "green": "B", "red": "C"}, 2),
        ({"blue": "zinc", "green": "amber", "red": "mauve"}, 1),
        ({"blue": 3.0, "green": -1.0, "red": 0.5}, 1),
    ],
    ids=["same order", "another order", "numbers"],
)
def test_names_of_categories_do_not_matter(names, n_components):
    """Other names, in another order, or numbers that the user calls categories."""
    renamed = FRAME.assign(color=[names.get(value) for value in FRAME["color"]])
    settings = QUICK | {"random_state": 0, "categorical_features": ["color"]}
    one, other = (MixtureClassifier(n_components, **settings).fit(X, Y) for X in (FRAME, renamed))
    np.testing.assert_allclose(one.predict_proba(FRAME), other.predict_proba(renamed), 1e-9, 1e-9)
    np.testing.assert_allclose(one.score_samples(FRAME), other.score_samples(renamed), 1e-9)
    filled = one.impute(FRAME)["color"].map(names).tolist()
    assert other.impute(renamed)["color"].tolist() == filled


def test_order_of_columns_does_not_matter(model):
    """Columns are found by name, and imputed frames have the order of the training rows."""
    turned = FRESH[FRESH.columns[::-1]]
    np.testing.assert_array_equal(model.predict_proba(turned), model.predict_proba(FRESH))
    pd.testing.assert_frame_equal(model.impute(turned), model.impute(FRESH))
    again = MixtureClassifier(1, **QUICK).fit(FRAME[FRAME.columns[::-1]], Y)
    one = MixtureClassifier(1, **QUICK).fit(FRAME, Y)
    np.testing.assert_allclose(again.predict_proba(FRESH), one.predict_proba(FRESH), 1e-6)


def test_a_weight_of_two_is_a_row_twice():
    """Also for the frequencies of categories."""
    weight = 1.0 + (np.arange(len(Y)) % 3 == 0)
    twice = FRAME.loc[np.repeat(np.arange(len(Y)), weight.astype(int))]
    one = MixtureClassifier(1, **QUICK).fit(FRAME, Y, sample_weight=weight)
    other = MixtureClassifier(1, **QUICK).fit(twice, np.repeat(Y, weight.astype(int)))
    np.testing.assert_allclose(one.predict_proba(FRESH), other.predict_proba(FRESH), 1e-4)


def test_forms_of_a_table_do_not_matter(model):
    """Frames of pandas and polars, arrays of objects and lists give one answer."""
    expected = model.predict_proba(FRESH)
    cells = FRESH.astype(object).where(FRESH.notna(), None)
    pl = pytest.importorskip("polars")
    polars = pl.DataFrame({name: cells[name].tolist() for name in cells.columns})
    for form in (polars, cells.to_numpy(), cells.to_numpy().tolist()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # scikit-learn misses the names
            np.testing.assert_array_equal(model.predict_proba(form), expected)
    again = MixtureClassifier(1, **QUICK).fit(cells.to_numpy(), FRESH_Y)
    other = MixtureClassifier(1, **QUICK).fit(FRESH, FRESH_Y)
    np.testing.assert_array_equal(again.predict_proba(cells.to_numpy()), other.predict_proba(FRESH))


# -- what the training rows did not have -------------------------------------------------------


@pytest.mark.parametrize("name", ["color", "size"])
def test_an_absent_column_is_a_missing_one(name, model, boosted, density):
    """With a warning; nothing is told by the other columns' places."""
    hidden = FRESH.assign(**{name: None if name == "color" else np.nan})
    for fitted in (model, boosted, density):
        with pytest.warns(DegenerateDataWarning, match=f"lacks 1 column.*{name}"):
            given = fitted.predict_proba(FRESH.drop(columns=name))
        np.testing.assert_array_equal(given, fitted.predict_proba(hidden))
        with pytest.warns(DegenerateDataWarning, match="lacks"):
            filled = fitted.impute(FRESH.drop(columns=name))
        assert list(filled.columns) == list(FRAME.columns)
        assert filled[name].tolist() == fitted.impute(hidden)[name].tolist()


def test_an_unseen_category_is_a_missing_one(model, boosted, density):
    """With a warning that names it; what was observed is not filled in."""
    strange = FRESH.assign(color=["octarine"] * len(FRESH))
    hidden = FRESH.assign(color=None)
    for fitted in (model, boosted, density):
        with pytest.warns(DegenerateDataWarning, match="'color'.*'octarine'.*count as missing"):
            given = fitted.predict_proba(strange)
        np.testing.assert_array_equal(given, fitted.predict_proba(hidden))
        with pytest.warns(DegenerateDataWarning, match="octarine"):
            assert set(fitted.impute(strange)["color"]) == {"octarine"}


@pytest.mark.parametrize(
    "estimator",
    [
        MixtureClassifier(1, unexpected="error", **QUICK),
        MixtureDensity(1, unexpected="error", missingness="ignore"),
        BoostedMixtureClassifier(
            n_stages=1, unexpected="error", calibrate=False, missingness="ignore"
        ),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_the_unexpected_is_refused_where_asked_for(estimator):
    """Absent columns, other columns and unseen categories; all else goes through."""
    fitted = clone(estimator).fit(FRAME, Y)
    fitted.predict(FRESH)
    with pytest.raises(InvalidInputError, match=r"(?s)now missing.*size"):
        fitted.predict(FRESH.drop(columns="size"))
    with pytest.raises(InvalidInputError, match="octarine"):
        fitted.impute(FRESH.assign(color="octarine"))
    with pytest.raises(InvalidInputError, match=r"(?s)unseen at fit time.*price"):
        fitted.predict(FRESH.assign(price=1.0))


def test_where_holes_tell_an_absent_column_tells_nothing():
    """It is not absent in the way of the training rows; nor is a category that was never seen."""
    often = (np.arange(len(Y)) % 4 > 0) & (Y[0] == Y)
    table = FRAME.assign(size=FRAME["size"].mask(often), color=FRAME["color"].mask(often))
    made = MixtureClassifier(1, **QUICK | {"missingness": "informative"}).fit(table, Y)
    with pytest.warns(DegenerateDataWarning, match="lacks"):
        given = made.predict_proba(FRESH.drop(columns="size"))
    holes = made.predict_proba(FRESH.assign(size=np.nan))
    assert np.abs(given - holes).max() > 0.01
    absent = FRESH.assign(size=np.nan).isna().to_numpy().astype(np.int8)
    absent[:, FRESH.columns.get_loc("size")] = -1
    batch = made._engine(FRESH.assign(size=np.nan)).all_rows()
    told = replace(batch, absent=torch.from_numpy(absent))
    expected = made.mixture_.class_log_joint(told).softmax(1)
    np.testing.assert_allclose(given, expected, rtol=1e-9)
    with pytest.warns(DegenerateDataWarning, match="do not"):
        strange = made.predict_proba(FRESH.assign(color="ultraviolet"))
    assert np.abs(strange - made.predict_proba(FRESH.assign(color=None))).max() > 1e-3


REFUSED = {
    "text became numbers": (lambda: FRESH.assign(color=1.0), "held text in training"),
    "numbers became text": (lambda: FRESH.assign(size="large"), "held numbers in training"),
    "mixed types": (lambda: FRESH.assign(color=[1, "red"] * 100), "mixes numbers.*and text"),
    "another column": (lambda: FRESH.assign(price=1.0), "unseen at fit time"),
    "infinity": (lambda: FRESH.assign(size=np.inf), "infinity"),
    "dates": (lambda: FRESH.assign(size=pd.Timestamp(0)), "neither numbers nor categories"),
    "too few columns": (lambda: FRESH.to_numpy()[:, :3], "3 features"),
    "no rows": (lambda: FRESH[:0], "0 sample"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_tables_that_changed_are_refused(name, model, density, boosted):
    """Each with a message that names the problem."""
    make, message = REFUSED[name]
    for fitted in (model, density, boosted):
        with pytest.raises(ValueError, match=message):
            fitted.predict(make())


@pytest.mark.parametrize("estimator", [MixtureClassifier, MixtureDensity, BoostedMixtureClassifier])
def test_columns_of_several_types_are_refused_in_training(estimator):
    """Before any work, and nothing of a failed fit is left."""
    made = estimator()
    with pytest.raises(InvalidInputError, match=r"'color' mixes text.*and numbers"):
        made.fit(FRAME.assign(color=["red", 1] * 60), Y)
    assert not hasattr(made, "mixture_")
    assert not hasattr(made, "schema_")


def test_labels_must_be_there():
    """A classifier without any label says what to use instead."""
    for labels in (np.full(len(Y), np.nan), np.full(len(Y), None)):
        with pytest.raises(InvalidInputError, match=r"no labeled row.*MixtureDensity"):
            MixtureClassifier().fit(FRAME, labels)


def test_questions_about_columns_that_make_no_sense(model):
    """Numbers have no categories, and unknown columns no chances."""
    with pytest.raises(InvalidInputError, match="holds numbers"):
        model.category_proba(FRESH, "size")
    for strange in ("price", 4, -1, True):
        with pytest.raises(InvalidInputError, match="no column"):
            model.category_proba(FRESH, strange)


# -- poor tables -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:1 column.* are constant")
def test_a_single_category_tells_nothing():
    """The rest of the table decides."""
    one = FRAME.assign(color="red")
    made = MixtureClassifier(2, random_state=0, **QUICK).fit(one, Y)
    without = MixtureClassifier(2, random_state=0, **QUICK).fit(one.drop(columns="color"), Y)
    np.testing.assert_allclose(
        made.predict_proba(one), without.predict_proba(one.drop(columns="color")), 1e-6
    )
    np.testing.assert_allclose(made.category_proba(one, "color"), 1.0)


def test_only_categories():
    """A table without any number."""
    table, fresh = FRAME[["color", "member"]], FRESH[["color", "member"]]
    for density in ("auto", "full", "low_rank"):
        settings = QUICK | {"density": density}
        made = MixtureClassifier(2, random_state=0, **settings).fit(table, Y)
        assert made.score(fresh, FRESH_Y) > 0.65
    mass = [
        np.exp(made.score_samples(pd.DataFrame({"color": [color], "member": [member]})))
        for color in ("blue", "green", "red")
        for member in (False, True)
    ]
    np.testing.assert_allclose(np.sum(mass), 1.0, 1e-9)


def test_two_thousand_categories():
    """A column that looks like an identifier is looked up, and a warning says so.

    No tensor has an entry for every row and category.
    """
    rng = np.random.default_rng(0)
    n = 2_400
    labels = np.arange(n) % 2
    table = pd.DataFrame(
        {
            "id": [f"c{i}" for i in rng.permutation(n) % 2_000],
            "x": 2.0 * labels + rng.normal(size=n),
        }
    )
    trained = QUICK | {"objective": "margin", "solver": Adam(1), "calibrate": False}
    models = [MixtureClassifier(1, **QUICK), MixtureClassifier(1, **trained)]
    models.append(MixtureDensity(2, solver=EM(3)))
    with Largest() as seen:
        for model in models:
            with pytest.warns(DegenerateDataWarning, match="'id': 2000 in 2400.*identifier"):
                model.fit(table, labels)
    assert seen.most < n * 2_000 / 20
    for model in models[:2]:
        assert model.score(table, labels) > 0.8
    assert models[0].category_proba(table[:3], "id").shape == (3, 2_000)


@pytest.mark.filterwarnings("ignore::mixtura.exceptions.DegenerateDataWarning")
def test_one_row():
    """Gives a model, as it does for numbers alone."""
    row = FRAME[FRAME.notna().all(axis=1)][:1]
    assert MixtureClassifier().fit(row, ["a"]).predict(FRESH).tolist() == ["a"] * len(FRESH)
    made = MixtureDensity(1).fit(row)
    assert np.isfinite(made.score_samples(row)).all()
    two = BoostedMixtureClassifier(n_stages=2).fit(FRAME[:2], Y[:2])
    assert np.isfinite(two.predict_proba(FRESH)).all()
    assert MixtureClassifier(1, **QUICK).fit(FRAME, Y).predict(row).shape == (1,)


def test_columns_without_any_value():
    """They tell nothing, whatever their type, and a warning says so."""
    empty = FRAME.assign(color=pd.Series([None] * len(Y), dtype="category"), size=np.nan)
    with pytest.warns(DegenerateDataWarning, match="no observed value"):
        made = MixtureClassifier(1, **QUICK).fit(empty, Y)
    left = FRAME[["member", "weight"]]
    without = MixtureClassifier(1, **QUICK).fit(left, Y)
    np.testing.assert_allclose(made.predict_proba(empty), without.predict_proba(left), 1e-6)
    filled = made.impute(empty)
    assert filled["color"].isna().all()
    assert filled["size"].notna().all()
    for later in (FRAME["size"].to_numpy(), "large"):
        with pytest.warns(DegenerateDataWarning, match="values that the training rows do not"):
            found = made.predict_proba(empty.assign(size=later))
        np.testing.assert_array_equal(found, made.predict_proba(empty))
    rows, _ = made.sample(3, random_state=0)
    assert rows["color"].isna().all()
    np.testing.assert_allclose(made.category_proba(empty, "color"), 1.0)


def test_a_column_of_a_matrix_that_fills_after_training():
    """It tells nothing; a stream learns from it."""
    X = np.random.default_rng(0).normal(size=(60, 3)) + 3.0 * np.arange(2).repeat(30)[:, None]
    y, later = np.arange(2).repeat(30), X.copy()
    later[:, 1] = 1e3 * (1 - y)
    X[:, 1] = np.nan
    made = MixtureClassifier(1, **QUICK).fit(X, y)
    with pytest.warns(DegenerateDataWarning, match="column 1: 0.0, 1000.0"):
        found = made.score_samples(later)
    np.testing.assert_array_equal(found, made.score_samples(X))
    nothing_else = np.where(np.arange(3) == 1, later, np.nan)
    for stream in (made, MixtureClassifier(1, **QUICK).partial_fit(X, y, classes=[0, 1])):
        assert stream.partial_fit(later, y).score(nothing_else, y) == 1.0


def test_rows_without_any_value(model):
    """Get the class prior, and the likeliest of everything."""
    nothing = pd.DataFrame({name: [None] for name in FRAME.columns})
    np.testing.assert_allclose(model.predict_proba(nothing)[0], model.class_prior_, 1e-9)
    assert not model.impute(nothing).isna().any().any()
    assert model.score_samples(nothing)[0] == pytest.approx(0.0, abs=1e-9)


def test_unlabeled_rows_help():
    """Half a dozen labels and many rows without one."""
    table, truth = make_frame(200, seed=3, holes=0.1)
    labels = np.where(np.arange(200) < 6, truth, -1)
    both = MixtureClassifier(1, unlabeled_weight=0.5, **QUICK).fit(table, labels)
    assert both.score(FRESH, FRESH_Y) > 0.75
    alone = MixtureClassifier(1, **QUICK).fit(table[:6], truth[:6])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)  # six rows lack a category
        assert both.score(FRESH, FRESH_Y) > alone.score(FRESH, FRESH_Y)
    with pytest.warns(DegenerateDataWarning, match="194 unlabeled"):
        BoostedMixtureClassifier(n_stages=1, calibrate=False, missingness="ignore").fit(
            table, labels
        )


def test_single_precision():
    """Float32 numbers beside codes give the answers of float64."""
    X = np.column_stack([FRAME["size"], FRAME["member"].astype(float)]).astype(np.float32)
    settings = QUICK | {"categorical_features": [1]}
    one = MixtureClassifier(1, **settings).fit(X, Y)
    other = MixtureClassifier(1, **settings).fit(X.astype(float), Y)
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), 1e-5)
    frame = FRAME.astype({"size": np.float32})
    made = MixtureClassifier(
        1, solver=Adam(2), calibrate=False, **QUICK | {"objective": "margin"}
    ).fit(frame, Y)
    assert np.isfinite(made.predict_proba(frame)).all()
    assert made.impute(frame)["size"].dtype == np.float32


# -- answers in the user's own words -----------------------------------------------------------


def test_draws_have_the_users_categories(model, density, boosted):
    """Text, truth values and numbers, in the columns where they were."""
    for fitted in (model, density, boosted):
        rows, _ = fitted.sample(300, random_state=0)
        assert rows.shape == (300, 4)
        assert set(rows["color"]) == {"blue", "green", "red"}
        assert set(rows["member"]) == {False, True}
        assert abs(rows["weight"].mean() - 100.0) < 5.0
        again, _ = fitted.sample(300, random_state=0)
        assert rows.equals(again)
        fitted.predict(rows)


def test_draws_of_a_class(model):
    """Have the frequencies that the class shows."""
    for label in (0, 1):
        rows, labels = model.sample(2000, label, random_state=0)
        assert (labels == label).all()
        drawn = np.mean(rows["color"] == "red")
        seen = (FRAME["color"][label == Y].dropna() == "red").mean()
        assert abs(drawn - seen) < 0.08


def test_imputing_pandas_gives_pandas(model):
    """Types, index and order are those of what was given."""
    given = FRESH.assign(
        color=FRESH["color"].astype("category"), member=FRESH["member"].astype("boolean")
    ).set_index(pd.Index(range(7, 207), name="key"))
    filled = model.impute(given)
    assert isinstance(filled, pd.DataFrame)
    assert filled.dtypes.equals(given.dtypes)
    assert filled.index.equals(given.index)
    assert not filled.isna().any().any()
    for name in given.columns:
        known = given[name].notna()
        assert filled[name][known].equals(given[name][known])
    draws = model.impute(given, n_draws=2, random_state=0)
    assert [type(draw) for draw in draws] == [pd.DataFrame] * 2
    assert not draws[0].equals(draws[1])


def test_imputing_polars_gives_polars(density):
    """A model that was fitted to pandas fills frames of polars."""
    pl = pytest.importorskip("polars")
    cells = FRESH.astype(object).where(FRESH.notna(), None)
    given = pl.DataFrame({name: cells[name].tolist() for name in cells.columns})
    filled = density.impute(given)
    assert isinstance(filled, pl.DataFrame)
    assert filled.schema == given.schema
    assert sum(filled.null_count().row(0)) == 0
    expected = density.impute(FRESH)
    for name in FRESH.columns:
        assert filled[name].to_list() == expected[name].tolist()
    made = MixtureDensity(1, missingness="ignore").fit(given)
    assert made.impute(given)["color"].dtype == pl.String


def test_imputing_arrays_gives_arrays(model):
    """Of objects where there is text, of floats where categories are numbers."""
    cells = FRAME.astype(object).where(FRAME.notna(), None).to_numpy()
    filled = MixtureClassifier(1, **QUICK).fit(cells, Y).impute(cells)
    assert filled.dtype == object
    assert not pd.isna(filled).any()
    assert (filled[~pd.isna(cells)] == cells[~pd.isna(cells)]).all()
    X = np.column_stack([FRAME["size"], 5.0 * FRAME["member"].astype(float) - 2.0])
    made = MixtureClassifier(1, categorical_features=[1], **QUICK).fit(X, Y)
    filled = made.impute(X)
    assert filled.dtype == np.float64
    assert set(filled[:, 1]) == {-2.0, 3.0}
    assert set(made.sample(50, random_state=0)[0][:, 1]) == {-2.0, 3.0}


def test_whole_numbers_that_floats_cannot_hold():
    """Categories may be numbers of 64 bits, floats hold 53: text is the remedy."""
    table = pd.DataFrame({"key": [2**53 + 1, 2**53 + 3] * 30, "x": np.arange(60.0)})
    model = MixtureClassifier(1, categorical_features=["key"], **QUICK)
    with pytest.raises(InvalidInputError, match="text by str"):
        model.fit(table, np.arange(60) % 2)
    text = table.assign(key=table["key"].astype(str))
    made = model.fit(text, np.arange(60) % 2)
    assert made.impute(text)["key"].tolist() == text["key"].tolist()


# -- heads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("missingness", ["ignore", "informative"])
def test_a_head_of_categories_is_refused(missingness):
    """A head knows numbers alone."""
    table = FRAME if missingness == "ignore" else FRAME[["size", "weight"]]
    fitted = MixtureClassifier(1, **QUICK | {"missingness": missingness}).fit(table, Y)
    for made in (fitted, fitted.mixture_):
        with pytest.raises((UnsupportedError, InvalidInputError), match=r"categor|absent|holes"):
            MixtureHead.from_mixture(made)
