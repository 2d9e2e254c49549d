"""What a user may pass as a table of numbers and categories, and what becomes of it."""

import datetime
import warnings
from decimal import Decimal

import numpy as np
import pytest
import torch
from schemas import CODES, EVERY_FRAME, EVERY_TABLE, NAMES, NAN, encoded, objects, one
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import estimator_checks
from sklearn.utils.validation import validate_data

from mixtura.data.schema import Schema
from mixtura.exceptions import AmbiguousDataWarning, DegenerateDataWarning, InvalidInputError

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")


def learned(values, **kwargs):
    categories = Schema.learn(one(values, **kwargs)).categories
    return None if categories is None else categories[0].tolist()


# -- learning ----------------------------------------------------------------------------------


@EVERY_TABLE
def test_every_form_of_a_table_gives_the_same_matrix(table):
    schema = Schema.learn(table)
    assert schema.names == (NAMES if hasattr(table, "columns") else None)
    assert schema.categories[0] is None
    assert schema.categories[1].tolist() == ["blue", "red"]
    assert schema.categories[2].tolist() == [False, True]
    assert schema.categories[2].dtype == bool
    assert schema.categories[3].tolist() == ["a", "b"]  # "c" occurs in no row
    assert schema.levels(4).tolist() == [0, 2, 2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matrix = encoded(schema, table)
    np.testing.assert_array_equal(matrix, CODES)
    assert matrix.dtype == np.float64
    assert matrix.flags.c_contiguous


@pytest.mark.parametrize("missing", [None, NAN, np.float32("nan"), pd.NA, pd.NaT, Decimal("NaN")])
@pytest.mark.parametrize(("value", "code"), [("x", 0), (True, 0), (2.5, 2.5), (7, 7)])
def test_all_that_is_missing_becomes_nan(missing, value, code):
    for X in (one([value, missing], dtype=object), np.array([[value], [missing]], dtype=object)):
        np.testing.assert_array_equal(encoded(Schema.learn(X), X), [[code], [NAN]])


def test_text_and_booleans_are_categories_and_numbers_are_not():
    for dtype in ("category", "string", "str", "object"):
        assert learned(["b", "a", None, "b"], dtype=dtype) == ["a", "b"]
    for dtype in ("boolean", "object"):
        assert learned([True, None, False], dtype=dtype) == [False, True]
    assert learned([True, True]) == [True]
    assert learned([5, 3, None], dtype="category") == [3, 5]
    assert learned(["3.5", "10"]) == ["10", "3.5"]
    assert learned([np.str_("b"), "a"], dtype=object) == ["a", "b"]
    for dtype in ("Int64", "Float64", "int8", "float32", "object"):
        assert learned([1, 2], dtype=dtype) is None
    assert learned([1.5, None, pd.NA, Decimal(2), 3], dtype=object) is None
    assert learned(pd.arrays.SparseArray([0.0, 1.0])) is None


def test_polars_types():
    texts = ["b", None, "a"]
    for dtype in (pl.String, pl.Categorical, pl.Enum(["b", "a"])):
        schema = Schema.learn(pl.DataFrame({"f": pl.Series(texts, dtype=dtype)}))
        assert schema.categories[0].tolist() == ["a", "b"]
    for dtype in (pl.Int8, pl.UInt64, pl.Float32, pl.Decimal(10, 2)):
        X = pl.DataFrame({"f": pl.Series([1, None], dtype=dtype), "g": ["a", "b"]})
        np.testing.assert_array_equal(encoded(Schema.learn(X), X), [[1, 0], [NAN, 1]])
        assert Schema.learn(X).categories[0] is None
    X = pl.DataFrame({"f": [None, None], "g": ["a", "b"]})
    np.testing.assert_array_equal(encoded(Schema.learn(X), X), [[NAN, 0], [NAN, 1]])


def test_numbers_beside_text_in_a_list_stay_numbers():
    X = [[1, "a"], [2.5, "b"]]
    schema = Schema.learn(X)
    assert schema.categories[0] is None
    assert encoded(schema, X).tolist() == [[1.0, 0.0], [2.5, 1.0]]
    assert Schema.learn(np.array(X)).categories[0].tolist() == ["1", "2.5"]  # NumPy's doing


@pytest.mark.parametrize(
    "X",
    [
        np.arange(6.0).reshape(3, 2),
        np.eye(2, dtype=np.int32),
        np.eye(2, dtype=bool),
        [[1, 2], [3, 4.5]],
        np.ones(3),
        ["a", "b"],
        np.ones((2, 2, 2)),
        [[1, 2], [3]],
        [],
        csr_array(np.eye(3)),
        torch.eye(2),
        np.eye(2) * 1j,
        np.array([["2020-01-01"]], dtype="M8[D]"),
        pd.Series(["a", "b"]),
        pl.LazyFrame({"a": ["x"]}),
        "text",
        None,
        {"a": 1},
        pd.DataFrame({"a": [1, 2], "b": [1.5, None]}),
        pd.DataFrame({"a": [1, None]}, dtype="Int64"),
        pl.DataFrame({"a": [1, None]}),
        pd.DataFrame(np.eye(2)),
        pd.DataFrame(),
    ],
    ids=lambda X: type(X).__name__,
)
def test_what_has_no_categories_passes_through_untouched(X):
    schema = Schema.learn(X)
    assert schema.categories is None
    assert encoded(schema, X) is X
    assert encoded(schema, X, "error") is X


def test_unusual_tables_pass_through_a_schema_with_categories():
    schema = Schema.learn(objects())
    for X in (np.ones(4), np.ones((1, 4, 1)), csr_array(np.eye(4)), [[1, 2], [3]], None):
        assert encoded(schema, X) is X


def test_objects_that_are_numbers_become_floats():
    X = np.array([[1, 2.5], [None, pd.NA], [Decimal("0.5"), np.float32(2)]], dtype=object)
    schema = Schema.learn(X)
    assert schema == Schema(None, None)
    np.testing.assert_array_equal(encoded(schema, X), [[1, 2.5], [NAN, NAN], [0.5, 2]])
    assert schema.levels(2).tolist() == [0, 0]


def test_rows_of_plain_numbers_need_no_more_looking_at():
    """Arrays, and frames with the names of training; without a copy where that can be."""
    X = np.array([[1.0, NAN], [3.0, 4.0]])
    frame = pd.DataFrame(X, columns=["a", "b"])
    assert np.shares_memory(Schema().plain(X), X)
    for given in (frame, frame.astype(np.float32), pl.DataFrame(frame), frame.iloc[::-1][::-1]):
        found = Schema(("a", "b")).plain(given)
        np.testing.assert_array_equal(found, X)
        assert found.flags.c_contiguous
    assert Schema().plain(np.array([[1, 2]])).dtype == np.float64
    assert Schema(("a", "b")).plain(frame.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize(
    "X",
    [
        *([[1.0, 2.0]], np.ones(2), np.float64(1.0), np.array(1.0), np.ones((1, 1, 2)), None),
        *(np.ones((0, 2)), np.array([[1.0, np.inf]]), np.ones((1, 2), ">f8"), csr_array([[1.0]])),
        *(np.ones((1, 2), dtype=t) for t in (object, complex, bool, np.float16)),
        *(pd.DataFrame({"b": [1.0], "a": [1.0]}), pd.DataFrame({"a": [1.0]})),
        *(pd.DataFrame({"a": ["x"], "b": [1.0]}), pd.DataFrame({"a": [None], "b": [1.0]})),
        pd.DataFrame([[1.0, 1.0]], columns=["a", "a"]),
    ],
)
def test_all_else_is_looked_at(X):
    """What may have to be converted, refused or warned about is left to the long way."""
    named = hasattr(X, "columns")
    assert Schema(("a", "b") if named else None).plain(X) is None
    assert Schema(None if named else ("a", "b")).plain(X) is None


def test_infinity_in_numbers_is_left_to_others():
    X = pd.DataFrame({"a": [np.inf, 1.0], "b": ["x", "y"]})
    assert encoded(Schema.learn(X), X)[0, 0] == np.inf


def test_a_column_without_values_has_no_categories_and_one_level():
    X = pd.DataFrame({"a": pd.Series([None, None], dtype="category"), "b": ["x", "y"]})
    schema = Schema.learn(X)
    assert len(schema.categories[0]) == 0
    assert schema.levels(2).tolist() == [1, 2]
    np.testing.assert_array_equal(encoded(schema, X), [[NAN, 0], [NAN, 1]])
    for value in ("new", 3.0, True):
        with pytest.warns(DegenerateDataWarning, match="column 'a': "):
            found = encoded(schema, pd.DataFrame({"a": [value], "b": ["x"]}))
        np.testing.assert_array_equal(found, [[NAN, 0]])
    assert schema.decode([[0.0, 1.0]]).tolist() == [[None, "y"]]
    assert Schema.learn(one([None, None], dtype=object)).categories is None
    empty = np.full((3, 1), NAN)
    assert Schema.learn(empty, [0]).levels(1).tolist() == [1]
    np.testing.assert_array_equal(Schema.learn(empty, [0]).decode(empty), empty)


def test_what_was_empty_and_still_is_stays_as_it_is():
    """A matrix of numbers is not copied (it may be a file) as long as there is nothing to tell."""
    X = np.array([[1.0, NAN], [NAN, NAN]], dtype=np.float32)
    schema = Schema.learn(X).with_empty(X)
    assert schema.empty == (1,)
    assert schema.encode(X) is X
    with pytest.warns(DegenerateDataWarning, match="column 1: 2.0"):
        found = schema.encode(np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal(found.values, [[1.0, NAN]])
    np.testing.assert_array_equal(found.untold, [[False, True]])


@EVERY_FRAME
def test_no_rows(frame):
    schema, none = Schema.learn(frame), frame[:0]
    assert encoded(schema, none).shape == (0, 4)
    assert schema.like(np.empty((0, 4)), none).shape == (0, 4)
    assert encoded(Schema.learn(none), frame[:0]).shape == (0, 4)


def test_names_that_are_not_text():
    """They are names too; a number that asks for a column is its position all the same."""
    X = pd.DataFrame({7: [1.0, 2.0], 1: ["x", "y"]})
    schema = Schema.learn(X)
    assert schema.names == (7, 1)
    assert encoded(schema, X[[1, 7]]).tolist() == [[1.0, 0.0], [2.0, 1.0]]
    assert schema.like(encoded(schema, X), X[[1, 7]]).equals(X)
    assert [schema.position(column, 2) for column in (0, 1, "7")] == [0, 1, 0]
    with pytest.raises(InvalidInputError, match="there is no column 7"):
        schema.position(7, 2)
    with pytest.warns(DegenerateDataWarning, match=r"lacks 1 column\(s\).*\(1\)"):
        lacking = schema.like(encoded(schema, X[[7]]), X[[7]])
    assert lacking.columns.tolist() == [7, 1]
    turned = X.set_axis(pd.MultiIndex.from_tuples([("a", 1), ("b", 2)]), axis=1)
    pairs = Schema.learn(turned)
    assert encoded(pairs, turned.iloc[:, ::-1]).tolist() == [[1.0, 0.0], [2.0, 1.0]]
    assert pairs.like(encoded(pairs, turned), turned.iloc[:, ::-1]).equals(turned)


def test_names_of_two_kinds_are_positions():
    X = pd.DataFrame({0: [1.0, 2.0], "b": ["x", "y"]})
    schema = Schema.learn(X)
    assert schema.names is None
    assert encoded(schema, X[["b", 0]].iloc[:, ::-1]).tolist() == [[1.0, 0.0], [2.0, 1.0]]


@pytest.mark.parametrize("name", ["a", 7])
def test_one_name_for_two_columns(name):
    with pytest.raises(InvalidInputError, match=rf"several columns named \[{name!r}\]"):
        Schema.learn(pd.DataFrame([["x", "y"]], columns=[name, name]))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (pd.to_datetime(["2020-01-01"]), "datetime64"),
        (pd.to_datetime(["2020-01-01"], utc=True), "UTC"),
        (pd.to_timedelta([1], unit="D"), "timedelta64"),
        (pd.period_range("2020", periods=1, freq="D"), "period"),
        (pd.interval_range(0, 1), "interval"),
        ([1j], "complex128"),
        (pl.Series([datetime.date(2020, 1, 1)]), "Date"),
        (pl.Series([datetime.time(1)]), "Time"),
        (pl.Series([datetime.timedelta(1)]), "Duration"),
        (pl.Series([[1, 2]]), "List"),
        (pl.Series([{"a": 1}]), "Struct"),
        (pl.Series([b"a"]), "Binary"),
    ],
)
def test_types_that_are_neither_numbers_nor_categories(values, what):
    X = pl.DataFrame({"f": values}) if isinstance(values, pl.Series) else one(values)
    for schema in (None, Schema(("f",), None), Schema(("f",), (np.array(["a"], dtype=object),))):
        with pytest.raises(InvalidInputError, match="turn it into a number or a category") as error:
            Schema.learn(X) if schema is None else encoded(schema, X)
        assert "column 'f' is of the type" in str(error.value)
        assert what in str(error.value)


def test_bytes_are_refused():
    with pytest.raises(InvalidInputError, match=r"column 0 is of the type \|S1"):
        Schema.learn(np.array([[b"a"]]))
    with pytest.raises(TypeError, match="not 'bytes'"):
        Schema.learn([[1, b"a"]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b", None, 3], r"column 'f' mixes text \(row 0\) and numbers \(row 3\)"),
        ([None, 2.0, "a"], r"column 'f' mixes numbers \(row 1\) and text \(row 2\)"),
        ([True, "a"], r"column 'f' mixes booleans \(row 0\) and text \(row 1\)"),
        ([1, True], r"column 'f' mixes numbers \(row 0\) and booleans \(row 1\)"),
        ([NAN, "a", False, 1], r"text \(row 1\) and booleans \(row 2\) and numbers \(row 3\)"),
    ],
)
def test_mixed_columns_are_refused(values, message):
    for flagged in (None, [0]):
        with pytest.raises(InvalidInputError, match=message + r": make all of it one type"):
            Schema.learn(one(values, dtype=object), flagged)
    with pytest.raises(InvalidInputError, match=message):
        encoded(Schema.learn(one(["a"])), one(values, dtype=object))


@pytest.mark.parametrize("strange", [{"a": 1}, [1], (1,), object(), 1j, datetime.date(2020, 1, 1)])
def test_cells_that_are_no_values_are_refused(strange):
    X = np.array([[1.0, 2.0], [1.0, 2.0]], dtype=object)
    X[1, 0] = strange
    with pytest.raises(TypeError, match=r"column 0, row 1: argument must be .* string.* number"):
        Schema.learn(X)
    frame = pl.DataFrame({"f": pl.Series(["a", strange], dtype=pl.Object)})
    with pytest.raises(TypeError, match=r"column 'f', row 1: argument must be .* string.* number"):
        Schema.learn(frame)


def test_categories_of_other_things_go_by_their_names():
    """Intervals, say, as cutting a column into bins gives."""
    bins = one(pd.cut([1.0, 2.0, np.nan], 2))
    schema = Schema.learn(bins)
    assert schema.categories[0].tolist() == sorted(map(str, bins.iloc[:2, 0]))
    np.testing.assert_array_equal(encoded(schema, bins)[:, 0], [0.0, 1.0, np.nan])


def test_what_cannot_be_known_is_marked():
    """Absent columns and unseen categories are NaN, and told apart from plain holes."""
    frame = pd.DataFrame({"a": ["x", "y", None], "b": [1.0, 2.0, np.nan], "k": [3, 4, 3]})
    schema = Schema.learn(frame, ["k"])
    assert schema.encode(frame).untold is None
    with pytest.warns(DegenerateDataWarning):
        strange = schema.encode(frame[["k", "a"]].replace({"x": "z", 4: 9}))
    expected = [[True, True, False], [False, True, True], [False, True, False]]
    np.testing.assert_array_equal(strange.untold, expected)
    np.testing.assert_array_equal(np.isnan(strange.values[:, 0]), [True, False, True])


def test_text_of_many_numbers_may_have_been_meant_as_numbers():
    texts = [f"{number / 4}" for number in range(21)]
    with pytest.warns(AmbiguousDataWarning, match="column 'f'.* turn them into numbers"):
        Schema.learn(one([*texts, None]))
    with pytest.warns(AmbiguousDataWarning, match="column 'f'"):
        Schema.learn(one([f"$ {number:,}" for number in range(990, 1011)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Schema.learn(one(texts[1:]))
        Schema.learn(one([*texts, "many"]))


def test_many_categories_look_like_an_identifier():
    names = [f"n{number}" for number in range(1_001)]
    for values in (names, np.arange(1_001.0)):
        warning = pytest.warns(DegenerateDataWarning, match="column 0: 1001 in 1001 rows")
        with warning as caught:
            Schema.learn(np.array([values], dtype=object).T, [0])
        assert len(caught) == 1
        assert "look like identifiers" in str(caught[0].message)
        assert "drop them" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Schema.learn(one(names[:1_000]))
        Schema.learn(one(names * 2))  # half as many categories as rows, no more
    with pytest.warns(DegenerateDataWarning, match="identifier"):
        Schema.learn(one(names * 2 + [None] * 9 + ["one more"]).iloc[1:])


# -- categorical_features ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "chosen", [[2, 0], (0, 2), np.array([0, 2]), [True, False, True], np.array([1, 0, 1], bool)]
)
def test_numbers_become_categories_where_the_user_says_so(chosen):
    X = np.array([[3.0, 0.5, 10], [1.0, 0.5, NAN], [3.0, 0.25, -10]])
    schema = Schema.learn(X, chosen)
    assert schema.levels(3).tolist() == [2, 0, 2]
    assert schema.categories[0].tolist() == [1.0, 3.0]
    assert schema.categories[0].dtype.kind == "f"
    matrix = encoded(schema, X)
    np.testing.assert_array_equal(matrix, [[1, 0.5, 1], [0, 0.5, NAN], [1, 0.25, 0]])
    np.testing.assert_array_equal(schema.decode(matrix), X)
    assert Schema.learn(X.astype(np.float32)[:1].astype(int), [0]).categories[0].dtype.kind == "i"


@pytest.mark.parametrize("chosen", [["age"], [0], np.array(["age"]), pd.Index(["age"]), {"age"}])
def test_chosen_columns_add_to_those_that_the_type_shows(chosen):
    for X in (
        pd.DataFrame({"age": [30, 20], "name": ["x", "y"]}),
        pd.DataFrame({"age": [30, 20], "name": ["x", "y"]}).astype({"age": "Int64"}),
        pl.DataFrame({"age": [30, 20], "name": ["x", "y"]}),
    ):
        schema = Schema.learn(X, chosen)
        assert schema.categories[0].tolist() == [20, 30]
        assert schema.categories[1].tolist() == ["x", "y"]
        assert encoded(schema, X).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("chosen", [None, "from_dtype", [], [False, False]])
def test_nothing_chosen(chosen):
    assert Schema.learn(np.eye(2), chosen).categories is None


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("all", "is not understood"),
        (b"all", "is not understood"),
        (1, "is not understood"),
        (True, "is not understood"),
        ([0.0], "is not understood"),
        ([0, "b"], "is not understood"),
        ([0, True], "is not understood"),
        ([None], "is not understood"),
        ([[0, 1]], "is not understood"),
        (np.eye(2, dtype=bool), "is not understood"),
        ([True], "is a mask of another length: X has 2 columns"),
        ([2], r"asks for what is not there \(2\): X has 2 columns"),
        ([-1], r"asks for what is not there \(-1\)"),
        (["c", "a"], r"asks for what is not there \('c'\): X has 2 columns, named 'a', 'b'"),
        ([1, 1], "asks for a column twice"),
        (["a", "a"], "asks for a column twice"),
    ],
)
def test_choices_that_make_no_sense(chosen, message):
    X = pd.DataFrame({"a": [1, 2], "b": [1, 2]})
    with pytest.raises(InvalidInputError, match=message) as error:
        Schema.learn(X, chosen)
    assert "pass None, 'from_dtype', or a list" in str(error.value)


def test_names_need_a_data_frame():
    with pytest.raises(
        InvalidInputError, match=r"not there \('a'\): X has 2 columns without names"
    ):
        Schema.learn(np.eye(2), ["a"])


def test_infinity_is_no_category():
    X = np.array([[1.0], [NAN], [-np.inf]])
    with pytest.raises(InvalidInputError, match=r"column 0 is categorical .* infinity \(row 2\)"):
        Schema.learn(X, [0])
    with pytest.raises(InvalidInputError, match=r"holds infinity \(row 2\)"):
        encoded(Schema.learn(X[:2], [0]), X)


# -- scikit-learn, and time --------------------------------------------------------------------


class Majority(ClassifierMixin, BaseEstimator):
    """The smallest classifier that reads its tables through a schema."""

    def fit(self, X, y):
        self.schema_ = Schema.learn(X)
        _, y = validate_data(self, encoded(self.schema_, X), y, ensure_all_finite="allow-nan")
        self.classes_, counts = np.unique(y, return_counts=True)
        self.majority_ = self.classes_[counts.argmax()]
        return self

    def predict(self, X):
        X = validate_data(
            self, encoded(self.schema_, X, "error"), reset=False, ensure_all_finite="allow-nan"
        )
        return np.full(len(X), self.majority_)


@pytest.mark.parametrize(
    "check",
    [
        "check_dataframe_column_names_consistency",
        "check_dtype_object",
        "check_complex_data",
        "check_estimator_sparse_array",
        "check_fit1d",
        "check_n_features_in_after_fitting",
        "check_estimators_dtypes",
        "check_fit2d_predict1d",
        "check_estimators_empty_data_messages",
    ],
)
def test_scikit_learns_checks(check):
    getattr(estimator_checks, check)("Majority", Majority())


@pytest.mark.parametrize("form", ["objects", "pandas", "category", "polars"])
def test_ten_thousand_categories(form, rng):
    names = np.array([f"category {number}" for number in range(10_000)], dtype=object)
    codes = rng.integers(10_000, size=(50_000, 1))
    codes[:10_000, 0] = np.arange(10_000)
    X = names[codes]
    if form != "objects":
        X = pl.DataFrame({"f": X[:, 0].tolist()}) if form == "polars" else one(X[:, 0])
    X = X.astype("category") if form == "category" else X
    schema = Schema.learn(X)
    found = encoded(schema, X)
    assert schema.levels(1).tolist() == [10_000]
    np.testing.assert_array_equal(schema.categories[0][found[:, 0].astype(int)], names[codes[:, 0]])
