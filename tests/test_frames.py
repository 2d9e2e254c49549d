"""Frames and sparse matrices that differ from what training saw, and how often we say so."""

import warnings

import numpy as np
import pytest
from frames import FRAME, FRESH, QUICK, Y
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.feature_selection import SelectKBest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import get_tags

from mixtura import (
    BoostedMixtureClassifier,
    FisherScores,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    PairwiseClassifier,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
    exceptions,
    load,
)
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError
from mixtura.runtime import load as runtime_load
from mixtura.solvers import EM, LinkedEM

pd = pytest.importorskip("pandas")

CLASSIFIER = MixtureClassifier(1, random_state=0, **QUICK)
PLAIN = {"density": "diag", "missingness": "ignore", "random_state": 0}
NETWORK = PLAIN | {"embedding": "log_density", "init": EM(3, 0.01)}
NETWORK["solver"] = LinkedEM(3, end_to_end=False)
SPARSE = SparseMixtureClassifier(1, form="primal", features="linear", random_state=0)
#: Every estimator of rows, small.
ESTIMATORS = [
    CLASSIFIER,
    MixtureDensity(2, **PLAIN),
    BoostedMixtureClassifier(n_stages=1, early_stopping=False, calibrate=False, **PLAIN),
    SPARSE,
    MixtureNetworkClassifier(2, calibrate=False, **NETWORK),
    MixtureNetworkRegressor(3, **NETWORK),
    PairwiseClassifier(CLASSIFIER),
    FisherScores(CLASSIFIER),
]
EVERY = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
NUMBERS = FRAME[["size", "weight"]].fillna(0.0)


def recorded(function, *args):
    """What a call gives, and the messages of all its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = function(*args)
    return found, [str(each.message) for each in caught]


def answer(model):
    """What a fitted model says of rows."""
    return model.predict_proba if hasattr(model, "predict_proba") else model.transform


# -- columns that training did not have --------------------------------------------------------


@pytest.mark.parametrize("columns", [["size", "weight"], list(FRAME)], ids=["numbers", "mixed"])
def test_strange_columns_are_ignored_if_asked(columns):
    """Wherever they stand and whatever they hold, the answer is that of the known columns."""
    train, fresh = FRAME[columns], FRESH[columns]
    model = clone(CLASSIFIER).set_params(unexpected="ignore").fit(train, Y)
    wide = fresh.assign(note="text", when=pd.Timestamp("2020-01-01"))[
        ["note", *reversed(columns), "when"]
    ]
    found, messages = recorded(model.predict_proba, wide)
    np.testing.assert_array_equal(found, model.predict_proba(fresh))
    (message,) = messages
    assert "2 column(s) that the training rows do not ('note', 'when')" in message
    imputed = recorded(model.impute, wide)[0]
    pd.testing.assert_frame_equal(imputed, model.impute(fresh))
    fewer, messages = recorded(model.predict_proba, wide.drop(columns="size"))
    np.testing.assert_array_equal(fewer, model.predict_proba(fresh.assign(size=np.nan)))
    assert len(messages) == 2
    with pytest.raises(InvalidInputError, match="no column of the training rows"):
        model.predict(fresh.add_prefix("other_"))


@pytest.mark.parametrize("unexpected", ["missing", "error"])
def test_strange_columns_are_refused_otherwise(unexpected):
    """In scikit-learn's words; who may ignore them is told how."""
    model = clone(CLASSIFIER).set_params(unexpected=unexpected).fit(NUMBERS, Y)
    with pytest.raises(ValueError, match=r"unseen at fit time:\n- note") as error:
        model.predict(NUMBERS.assign(note=1.0))
    assert ("unexpected='ignore'" in str(error.value)) == (unexpected == "missing")


def test_sparse_mixtures_match_columns_by_name():
    """Another order is the same rows; other names are not."""
    model = clone(SPARSE).fit(NUMBERS, Y)
    turned = NUMBERS[["weight", "size"]]
    np.testing.assert_array_equal(model.predict_proba(turned), model.predict_proba(NUMBERS))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(NUMBERS.rename(columns={"size": "length"}))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(NUMBERS[["size"]])


#: Names of columns that are not text.
NAMES = {
    "ints": [7, 3],
    "pairs": [("a", 1), ("a", 2)],
    "dates": list(pd.to_datetime(["2026-01-01", "2026-02-01"])),
    "booleans": [True, False],
    "floats": [0.5, 2.0],
}


@EVERY
@pytest.mark.parametrize("kind", NAMES)
def test_names_need_not_be_text(estimator, kind, tmp_path):
    """Another order is the same rows, also for a model from a file."""
    X = NUMBERS.set_axis(pd.Index(NAMES[kind]), axis=1)
    model = recorded(clone(estimator).fit, X, Y)[0]
    turned = X.iloc[:, ::-1]
    np.testing.assert_array_equal(answer(model)(turned), answer(model)(X))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(answer(again)(turned), answer(model)(X))


@EVERY
def test_columns_that_ints_name(estimator):
    """They may be lacking where text may, and are refused where text is."""
    X = NUMBERS.set_axis([7, 3], axis=1)
    model = recorded(clone(estimator).fit, X, Y)[0]
    if isinstance(estimator, SparseMixtureClassifier):
        with pytest.raises(InvalidInputError, match="seen at fit time, yet now missing:\n- 7"):
            answer(model)(X[[3]])
    else:
        with pytest.warns(DegenerateDataWarning, match="lacks 1 column.*7"):
            absent = answer(model)(X[[3]])
        np.testing.assert_array_equal(absent, answer(model)(X[[3]].reindex(columns=[7, 3])))
    with pytest.raises(InvalidInputError, match="unseen at fit time:\n- 9"):
        answer(model)(X.rename(columns={7: 9}))
    with pytest.warns(UserWarning, match="X has feature names"):  # scikit-learn's, of text
        by_position = answer(model)(NUMBERS)
    np.testing.assert_array_equal(by_position, answer(model)(X))


def test_names_of_whole_numbers_are_stored(tmp_path):
    """They come back as they were; what is filled in has them too."""
    X = NUMBERS.set_axis([7, 3], axis=1)
    X.iloc[::4, 0] = np.nan
    model = recorded(clone(CLASSIFIER).fit, X, Y)[0]
    model.save(tmp_path / "model")
    names = load(tmp_path / "model").schema_.names
    assert names == (7, 3)
    assert {type(name) for name in names} == {int}
    filled = model.impute(X[[3, 7]])
    assert filled.columns.tolist() == [7, 3]
    pd.testing.assert_frame_equal(filled, model.impute(X))


def test_channels_that_ints_name():
    """Sequences in a frame: the same."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal([0.0, 5.0], size=(80, 2)), columns=[7, 3])
    X["id"] = np.arange(80) // 4
    model = SequenceMixtureClassifier(1, method="ml", calibrate=False, random_state=0)
    model.fit(X, np.arange(20) % 2)
    np.testing.assert_array_equal(model.predict_proba(X[["id", 3, 7]]), model.predict_proba(X))


@EVERY
def test_a_frame_without_columns_is_refused(estimator):
    """In our words, with rows or without, before fitting and after."""
    for X, y in ((pd.DataFrame(), Y[:0]), (NUMBERS[[]], Y)):
        if len(y) or not isinstance(estimator, PairwiseClassifier):  # pairs need labels first
            with pytest.raises(InvalidInputError, match="data frame without columns"):
                clone(estimator).fit(X, y)
    model = recorded(clone(estimator).fit, NUMBERS, Y)[0]
    with pytest.raises(InvalidInputError, match="data frame without columns"):
        answer(model)(NUMBERS[[]])


STRANGE = {
    "dates": (pd.date_range("2026", periods=len(FRAME)), "column 't' is of the type datetime64"),
    "lists": ([[1.0]] * len(FRAME), "column 't', row 0: .*not 'list'"),
    "text": (["x"] * len(FRAME), "column 't' holds text|held numbers .* holds text now"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_sparse_mixtures_refuse_other_columns_in_words(what):
    """As the others do, at fitting and at prediction."""
    column, message = STRANGE[what]
    error = TypeError if what == "lists" else InvalidInputError
    with pytest.raises(error, match=message):
        clone(SPARSE).fit(NUMBERS.assign(t=column), Y)
    model = clone(SPARSE).fit(NUMBERS.assign(t=NUMBERS["size"] ** 2), Y)
    with pytest.raises(error, match=message):
        model.predict(NUMBERS.assign(t=column))


@EVERY
@pytest.mark.parametrize("name", ["a", 7])
def test_one_name_for_two_columns_is_refused(estimator, name):
    twice = NUMBERS.set_axis([name, name], axis=1)
    with pytest.raises(InvalidInputError, match=rf"several columns named \[{name!r}\]"):
        clone(estimator).fit(twice, Y)


def test_sparse_mixtures_take_all_that_is_a_number():
    """Booleans, numbers as objects and categories of numbers are the numbers that they are."""
    plain = NUMBERS.assign(b=(NUMBERS["size"] > 0).astype(float), c=np.arange(len(Y)) % 3 + 0.0)
    dressed = plain.assign(
        b=plain["b"].astype(bool),
        c=plain["c"].astype("category"),
        size=plain["size"].astype(object),
    )[plain.columns]
    models = [clone(SPARSE).fit(X, Y) for X in (plain, dressed)]
    for X in (plain, dressed):
        one, other = (model.predict_proba(X) for model in models)
        np.testing.assert_array_equal(one, other)
    assert models[1].feature_names_in_.tolist() == list(plain)


@EVERY
def test_a_series_is_not_a_table(estimator):
    """One row of a frame: the message says how to pass it, and that works."""
    model = recorded(clone(estimator).fit, NUMBERS, Y)[0]
    predict = getattr(model, "predict", None) or model.transform
    with pytest.raises(InvalidInputError, match=r"X is a Series.*frame\.iloc\[\[i\]\]"):
        predict(NUMBERS.iloc[0])
    assert len(predict(NUMBERS.iloc[[0]])) == 1


def test_rows_that_are_no_tables():
    """One row with words, and rows by name."""
    model = MixtureDensity(1)
    for row in ([1.0, "x"], np.array([1.0, "x"], dtype=object), np.array(["x", "y"])):
        with pytest.raises(InvalidInputError, match=r"one row, or one column, of 2 .* \[row\]"):
            model.fit(row)
    for row in ({"a": 1.0}, [{"a": 1.0}], {1.0}):
        with pytest.raises(InvalidInputError, match=r"a dict or set.*DataFrame\(\[row\]\)"):
            model.fit(row)
    with pytest.raises(InvalidInputError, match=r"structured array.*DataFrame\(X\)"):
        model.fit(NUMBERS.to_records(index=False))


def test_columns_of_arrow_tables_go_by_their_names(tmp_path):
    """As those of data frames do, in all answers, messages, and without training's library."""
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pandas(FRAME.set_axis([*range(100, 100 + len(FRAME))]))
    assert "__index_level_0__" in table.column_names
    backwards = table.select(FRAME.columns[::-1].tolist())
    model = clone(CLASSIFIER).fit(FRAME, Y)
    model.save(tmp_path / "model")
    for each in (model, clone(CLASSIFIER).fit(table, Y), runtime_load(tmp_path / "model")):
        assert each.feature_names_in_.tolist() == list(FRAME)
        found = each.predict_proba(backwards)
        np.testing.assert_allclose(found, model.predict_proba(FRAME), rtol=1e-12)
        pd.testing.assert_frame_equal(
            each.impute(backwards), model.impute(FRAME), check_dtype=False
        )
    names = pa.array([str(i) for i in range(len(FRAME))])
    with pytest.warns(exceptions.AmbiguousDataWarning, match="column 'name': text"):
        MixtureDensity(1, **PLAIN).fit(table.append_column("name", names))


def test_a_polars_series_is_not_a_table():
    """The same of polars."""
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({name: NUMBERS[name].to_numpy() for name in NUMBERS})
    model = clone(CLASSIFIER).fit(frame, Y)
    with pytest.raises(InvalidInputError, match="X is a Series"):
        model.predict(frame["size"])
    assert len(model.predict(frame[0:1])) == 1
    with pytest.raises(InvalidInputError, match=r"lazy.*X\.collect\(\)"):
        model.predict(frame.lazy())


# -- masked arrays -----------------------------------------------------------------------------


def test_what_is_masked_is_missing():
    """Whatever stands under the mask; so it is for labels and targets."""
    values, hidden = NUMBERS.to_numpy(), np.random.default_rng(0).random(NUMBERS.shape) < 0.2
    unknown = np.arange(len(Y)) % 5 == 0
    masked = np.ma.masked_array(np.where(hidden, -9999.0, values), hidden)
    holes = np.where(hidden, np.nan, values)
    codes = np.unique(Y, return_inverse=True)[1]
    labels = np.ma.masked_array(codes, unknown), np.where(unknown, np.nan, codes)
    for model in (CLASSIFIER, MixtureNetworkRegressor(3, **NETWORK)):
        one, other = (
            recorded(clone(model).fit, X, y)[0].predict(X)
            for X, y in zip((masked, holes), labels, strict=True)
        )
        np.testing.assert_array_equal(one, other)
    with pytest.raises(InvalidInputError, match="contains NaN"):
        clone(SPARSE).fit(masked, Y)
    text = np.ma.masked_array(FRAME[["color"]].to_numpy(), hidden[:, :1])
    found = clone(CLASSIFIER).fit(text, Y).predict_proba(text)
    row = found[hidden[:, 0]][0]
    np.testing.assert_allclose(found[hidden[:, 0]], np.broadcast_to(row, (hidden[:, 0].sum(), 2)))


# -- sparse matrices ---------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_matrices_are_their_dense_arrays(estimator, kind):
    """In training and in prediction; a density alone refuses them.

    scikit-learn's checks of sparse input take everything with `predict_proba` for a classifier.
    """
    dense = np.where(np.abs(NUMBERS.to_numpy()) > 0.5, NUMBERS.to_numpy(), 0.0)
    assert get_tags(estimator).input_tags.sparse != isinstance(estimator, MixtureDensity)
    if isinstance(estimator, MixtureDensity):
        with pytest.raises(InvalidInputError, match=r"X is a sparse matrix.*toarray"):
            estimator.fit(kind(dense))
        return
    from_sparse, from_dense = (
        recorded(clone(estimator).fit, X, Y)[0] for X in (kind(dense), dense)
    )
    expected = answer(from_dense)(dense)
    for model in (from_sparse, from_dense):
        for X in (dense, kind(dense)):
            np.testing.assert_array_equal(answer(model)(X), expected)


def test_the_commonest_pipeline():
    """One-hot columns come as a sparse matrix, and may be selected and searched."""
    encode = make_column_transformer(
        (OneHotEncoder(), ["color", "member"]), remainder="passthrough", sparse_threshold=1.0
    )
    table = FRAME.fillna({"size": 0.0, "weight": 0.0}).fillna("none").astype({"member": str})
    assert sparse.issparse(encode.fit_transform(table))
    model = make_pipeline(encode, SelectKBest(k=3), CLASSIFIER)
    assert recorded(model.fit, table, Y)[0].score(table, Y) > 0.8
    search = GridSearchCV(model, {"selectkbest__k": [2, 4]}, cv=2)
    assert recorded(search.fit, table, Y)[0].best_score_ > 0.7


def test_a_sparse_matrix_too_large_to_be_dense():
    """An error of our own instead of a machine without memory."""
    X = sparse.csr_array((1_000_000, 100_000))
    with pytest.raises(InvalidInputError, match=r"745\.1 GiB.*data frame.*fewer rows"):
        CLASSIFIER.fit(X, np.zeros(1_000_000))


# -- how often we say it -----------------------------------------------------------------------


def test_a_warning_is_given_once_in_a_call():
    """However many models have it to say."""
    y = np.arange(len(Y)) % 4
    constant = NUMBERS.assign(same=1.0)
    models = PairwiseClassifier(MixtureClassifier(1, random_state=0, **QUICK))
    fitted, messages = recorded(models.fit, constant, y)
    assert len(fitted.estimators_) == 6
    assert len([each for each in messages if "constant" in each]) == 1
    for method in (fitted.predict, fitted.predict_proba, fitted.predict_log_proba):
        assert len(recorded(method, NUMBERS)[1]) == 1
    plain = recorded(clone(CLASSIFIER).fit, constant, Y)[0]
    for method in (plain.predict, plain.predict_proba, plain.score_samples, plain.impute):
        assert len(recorded(method, NUMBERS)[1]) == 1
    assert len(recorded(plain.score, NUMBERS, Y)[1]) == 1


def test_different_warnings_are_all_given():
    """An empty column and a constant one, in one call."""
    X = NUMBERS.assign(same=1.0, empty=np.nan)
    messages = recorded(clone(CLASSIFIER).fit, X, Y)[1]
    assert [("constant" in each, "no observed" in each) for each in messages] == [
        (False, True),
        (True, False),
    ]


SCRIPT = """
import numpy as np
from sklearn.model_selection import GridSearchCV
from mixtura import MixtureClassifier
from mixtura.densities import Diagonal
rng = np.random.default_rng(0)
y = rng.integers(0, 3, 150)
X = np.column_stack([y + 0.3 * rng.normal(size=150), np.ones(150), rng.random(150) < 0.02])
y[rng.random(150) < 0.3] = -1
model = MixtureClassifier(1, density=Diagonal(), objective="likelihood", unlabeled_weight=0.5)
search = GridSearchCV(model, {"density__floor": [1e-3, 1e-2, 0.1, 0.2]}, scoring="accuracy")
search.fit(X, y)
search.best_estimator_.fit(X, y)
"""


def test_a_search_does_not_flood():
    """Under Python's own filters 20 fits and a refit say each thing once, at the user's line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        exec(compile(SCRIPT, "search.py", "exec"), {"__name__": "search"})
    for words in ("taken for unlabeled", "constant"):
        said = [(each.filename, each.lineno) for each in caught if words in str(each.message)]
        assert said == [("search.py", 12), ("search.py", 13)]


REPEATED = """
for absent in ("size", "weight", "size"):
    model.predict(X.drop(columns=absent))
"""


@pytest.mark.parametrize("wrap", [lambda model: model, make_pipeline], ids=["alone", "pipeline"])
def test_a_line_says_every_different_thing_once(wrap, monkeypatch):
    """Under Python's own filters, a line that lacks other columns each time says which."""
    monkeypatch.setattr(exceptions, "_said_at", set())
    model = wrap(clone(CLASSIFIER)).fit(NUMBERS, Y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        exec(compile(REPEATED, "repeated.py", "exec"), {"model": model, "X": NUMBERS})
    said = [str(each.message).partition("('")[2].partition("'")[0] for each in caught]
    assert said == ["size", "weight"]


def test_what_was_said_is_not_remembered_without_end(monkeypatch):
    """A service whose messages all differ keeps a bounded number of them."""
    remembered = set()
    monkeypatch.setattr(exceptions, "_said_at", remembered)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for number in range(2_500):
            exceptions.warn(f"{number} rows", UserWarning)
    assert (len(caught), len(remembered) <= 1_000) == (2_500, True)


def test_filters_are_obeyed():
    """What is asked for always comes always, and what is made an error is one."""
    X = NUMBERS.assign(same=1.0)
    for action, expected in (("always", 3), ("ignore", 0), ("default", 1)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            for _ in range(3):
                clone(CLASSIFIER).fit(X, Y)
        assert len(caught) == expected, action
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*constant")
        with pytest.raises(DegenerateDataWarning):
            clone(CLASSIFIER).fit(X, Y)
