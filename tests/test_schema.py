"""What a user may pass as a table of numbers and categories, and what becomes of it."""

import datetime
import warnings
from decimal import Decimal

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import estimator_checks
from sklearn.utils.validation import validate_data

from mixtura.data import Matrix
from mixtura.data.schema import Schema
from mixtura.exceptions import AmbiguousDataWarning, DegenerateDataWarning, InvalidInputError

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

NAN = np.nan
CODES = np.array([[1.5, 1, 1, 0], [NAN, 0, 0, NAN], [3.0, NAN, 1, 1], [-2.0, 1, 1, 1]])
NAMES = ("size", "color", "round", "grade")
MATCH = "The feature names should match those that were passed during fit.\n"


def encoded(schema, X, unexpected="missing"):
    """The numbers and codes of `Schema.encode`."""
    found = schema.encode(X, unexpected)
    return found.values if isinstance(found, Matrix) else found


def columns():
    """A column of numbers, of text, of booleans and of categories, most with a hole."""
    return {
        "size": [1.5, None, 3.0, -2.0],
        "color": ["red", "blue", None, "red"],
        "round": [True, False, True, True],
        "grade": ["a", None, "b", "b"],
    }


def pandas_frame():
    frame = pd.DataFrame(columns(), index=[10, 10, 5, 7])
    return frame.astype({"grade": pd.CategoricalDtype(["c", "b", "a"], ordered=True)})


def polars_frame(grade=None):
    grades = pl.Enum(["c", "b", "a"]) if grade is None else grade
    return pl.DataFrame(columns(), schema_overrides={"grade": grades})


def objects():
    return np.array(list(columns().values()), dtype=object).T


FORMS = {
    "pandas": pandas_frame,
    "polars": polars_frame,
    "objects": objects,
    "lists": lambda: objects().tolist(),
}


@pytest.fixture(params=FORMS)
def table(request):
    return FORMS[request.param]()


@pytest.fixture(params=["pandas", "polars"])
def frame(request):
    return FORMS[request.param]()


def one(values, **kwargs):
    """A data frame with one column."""
    return pd.DataFrame({"f": pd.Series(values, **kwargs)})


def learned(values, **kwargs):
    categories = Schema.learn(one(values, **kwargs)).categories
    return None if categories is None else categories[0].tolist()


# -- learning ----------------------------------------------------------------------------------


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


# -- other tables than the training rows -------------------------------------------------------


def test_columns_are_aligned_by_name(frame):
    schema = Schema.learn(frame)
    other = frame[list(NAMES[::-1])]
    np.testing.assert_array_equal(encoded(schema, other), CODES)
    with pytest.raises(InvalidInputError) as error:
        encoded(schema, other, "error")
    assert str(error.value) == (
        MATCH + "Feature names must be in the same order as they were in fit.\n"
    )


def test_frames_of_numbers_are_aligned_as_frames():
    X = pd.DataFrame({"a": [1, 2], "b": [1.5, None]})
    for other in (X[["b", "a"]], pl.from_dict({"b": [1.5, None], "a": [1, 2]})):
        found = encoded(Schema.learn(X), other)
        assert type(found) is type(other)
        assert list(found.columns) == ["a", "b"]
    with pytest.warns(DegenerateDataWarning, match=r"lacks 1 column\(s\) .* \('a'\)"):
        np.testing.assert_array_equal(encoded(Schema.learn(X), X[["b"]]), [[NAN, 1.5], [NAN, NAN]])


def test_absent_columns_count_as_missing(frame):
    schema = Schema.learn(frame)
    with pytest.warns(DegenerateDataWarning, match=r"2 column\(s\).*\('color', 'size'\)") as seen:
        found = encoded(schema, frame[["grade", "round"]])
    assert len(seen) == 1
    np.testing.assert_array_equal(found[:, 2:], CODES[:, 2:])
    assert np.isnan(found[:, :2]).all()
    with pytest.raises(InvalidInputError) as error:
        encoded(schema, frame[["size", "round"]], "error")
    assert str(error.value) == (
        MATCH + "Feature names seen at fit time, yet now missing:\n- color\n- grade\n"
    )


@pytest.mark.parametrize("unexpected", ["missing", "error"])
def test_strange_columns_are_refused(unexpected):
    schema = Schema.learn(pandas_frame())
    with pytest.raises(InvalidInputError) as error:
        encoded(schema, pandas_frame().assign(weight=1, length=2), unexpected)
    message = MATCH + "Feature names unseen at fit time:\n- length\n- weight\n"
    assert str(error.value).startswith(message)
    assert ("unexpected='ignore'" in str(error.value)) == (unexpected == "missing")
    with pytest.raises(InvalidInputError) as error:
        encoded(schema, pd.DataFrame(np.eye(7), columns=list("abcdefg")), unexpected)
    assert str(error.value).startswith(
        MATCH + "Feature names unseen at fit time:\n- a\n- b\n- c\n- d\n- e\n- ...\n"
        "Feature names seen at fit time, yet now missing:\n- color\n- grade\n- round\n- size\n"
    )


def test_unseen_categories(table):
    schema = Schema.learn(table)
    other = pandas_frame().reset_index(drop=True)
    other["color"] = ["red", "pink", "blue", "jade"]
    other["grade"] = ["c", "a", None, "b"]
    wrong = r"\(column (1|'color'): 'jade', 'pink'; column (3|'grade'): 'c'\)"
    with pytest.warns(DegenerateDataWarning, match=wrong) as seen:
        found = encoded(schema, other)
    assert len(seen) == 1
    np.testing.assert_array_equal(found[:, 1], [1, NAN, 0, NAN])
    np.testing.assert_array_equal(found[:, 3], [NAN, 0, NAN, 1])
    with pytest.raises(InvalidInputError, match=wrong):
        encoded(schema, other, "error")


def test_few_unseen_categories_are_named():
    schema = Schema.learn(np.arange(3.0)[:, None], [0])
    X = np.array([[1.0], [9.5], [-1], [7], [NAN], [2], [8], [6], [5]])
    with pytest.warns(DegenerateDataWarning, match=r"0: -1.0, 5.0, 6.0, 7.0, 8.0, \.\.\.\)"):
        found = encoded(schema, X)
    np.testing.assert_array_equal(found[:6, 0], [1, NAN, NAN, NAN, NAN, 2])


def test_frames_and_arrays_stand_in_for_each_other_by_position(frame):
    np.testing.assert_array_equal(encoded(Schema.learn(frame), objects()), CODES)
    np.testing.assert_array_equal(encoded(Schema.learn(objects()), frame), CODES)
    numbers = pd.DataFrame(np.eye(2), columns=["a", "b"])
    assert encoded(Schema.learn(np.eye(2)), numbers) is numbers
    rows = np.eye(2)
    assert encoded(Schema.learn(numbers), rows) is rows


def test_another_number_of_columns(frame):
    for schema in (Schema.learn(frame), Schema.learn(objects())):
        X = np.ones((2, 3))
        assert encoded(schema, X) is X
        with pytest.raises(InvalidInputError, match=r"has 3 features, but .* fitted with 4"):
            encoded(schema, objects()[:, :3])
    with pytest.raises(InvalidInputError, match=r"has 3 features, but .* fitted with 4"):
        encoded(Schema.learn(objects()), frame[["size", "color", "grade"]])


@pytest.mark.parametrize("unexpected", ["missing", "error"])
@pytest.mark.parametrize(
    ("train", "now", "message"),
    [
        ([1.0, 2.0], ["1", "2"], "held numbers in training and holds text now"),
        (["1", "2"], [1, 2], "held text in training and holds numbers now"),
        (["1", "2"], [True, False], "held text in training and holds booleans now"),
        ([True, False], ["True", "False"], "held booleans in training and holds text now"),
    ],
)
def test_a_column_keeps_its_kind(train, now, message, unexpected):
    for X in (one(now), one(now, dtype=object), one(now, dtype="category")):
        with pytest.raises(InvalidInputError, match="column 'f' " + message):
            encoded(Schema.learn(one(train)), X, unexpected)
    schema = Schema.learn(np.array([train], dtype=object).T)
    with pytest.raises(InvalidInputError, match="column 0 " + message):
        encoded(schema, np.array([now], dtype=object).T, unexpected)


def test_numeric_categories_refuse_text():
    schema = Schema.learn(np.array([[1.0], [2.0]]), [0])
    with pytest.raises(InvalidInputError, match="held numbers in training and holds text now"):
        encoded(schema, np.array([["1"]], dtype=object))


@pytest.mark.parametrize("dtype", ["float64", "object", "category", "str", "boolean"])
def test_a_column_wholly_missing_is_of_any_kind(dtype):
    nothing = one([None, None], dtype=dtype)
    for train in (one(["a", "b"]), one([True, False]), one([1.5, 2.0])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = encoded(Schema.learn(train), nothing, "error")
        assert np.isnan(np.asarray(found, dtype=float)).all()


def test_booleans_are_the_numbers_zero_and_one():
    schema = Schema.learn(one([True, False]))
    assert encoded(schema, np.array([[1.0], [0.0]])).tolist() == [[1.0], [0.0]]
    with pytest.warns(DegenerateDataWarning, match=r"'f': 2.0\)"):
        assert np.isnan(encoded(schema, np.array([[2.0]]))).all()
    assert encoded(Schema.learn(one([0.5, 2.0])), one([True, False])).tolist() == [[1.0], [0.0]]
    marked = Schema.learn(np.array([[0], [1]]), [0])
    assert encoded(marked, one([True, False])).tolist() == [[1.0], [0.0]]


# -- the way back ------------------------------------------------------------------------------


def test_decode_gives_plain_objects(table):
    found = Schema.learn(table).decode(CODES)
    assert found.dtype == object
    assert found[[0, 2, 3]].tolist() == objects()[[0, 2, 3]].tolist()
    assert np.isnan(found[1, 0])
    assert found[1, 1:].tolist() == ["blue", False, None]
    assert [type(value) for value in found[0]] == [float, str, bool, str]


def test_decode_rounds_and_clips():
    schema = Schema.learn(objects())
    found = schema.decode(np.array([[0.3, 0.6, -5, 99], [0.3, 0.4, 1.2, NAN]]))
    assert found.tolist() == [[0.3, "red", False, "b"], [0.3, "blue", True, None]]
    numbers = Schema.learn(np.array([[10, 5], [20, 6]]), [0])
    found = numbers.decode(np.array([[0.6, 0.6], [NAN, NAN], [7, 7]]))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [[20, 0.6], [NAN, NAN], [20, 7]])
    beside_text = Schema.learn(pd.DataFrame({"a": [3, 4], "b": ["x", "y"]}), ["a"])
    assert beside_text.decode(np.zeros((1, 2))).tolist() == [[3.0, "x"]]
    assert type(beside_text.decode(np.zeros((1, 2)))[0, 0]) is float


def test_decode_without_categories_changes_nothing():
    np.testing.assert_array_equal(Schema(None, None).decode(CODES), CODES)


def test_round_trip_through_pandas():
    X = pandas_frame()
    found = Schema.learn(X).like(CODES, X)
    pd.testing.assert_frame_equal(found, X)
    assert found is not X


@pytest.mark.parametrize("grade", [None, pl.Categorical, pl.String])
def test_round_trip_through_polars(grade):
    X = polars_frame(grade)
    found = Schema.learn(X).like(CODES, X)
    assert found.schema == X.schema
    assert found.equals(X)


def test_round_trip_through_arrays_and_lists():
    for X in (objects(), objects().tolist()):
        schema = Schema.learn(X)
        found = schema.like(encoded(schema, X), X)
        assert isinstance(found, np.ndarray)
        assert found[0].tolist() == objects()[0].tolist()


def test_like_has_the_training_columns_in_their_order(frame):
    schema = Schema.learn(frame)
    found = schema.like(CODES, frame[["grade", "size"]])
    assert tuple(found.columns) == NAMES
    assert type(found) is type(frame)
    assert list(found["size"])[2:] == [3.0, -2.0]
    assert list(found["color"])[:2] == ["red", "blue"]
    assert list(found["round"]) == [True, False, True, True]
    assert found["grade"].dtype == frame["grade"].dtype


def test_like_takes_the_names_of_a_frame_after_training_on_an_array(frame):
    found = Schema.learn(objects()).like(CODES, frame)
    assert tuple(found.columns) == NAMES
    assert found["round"].dtype == frame["round"].dtype
    numbers = pd.DataFrame([["x", "y"]], columns=[7, "a"])
    pd.testing.assert_frame_equal(Schema.learn(numbers).like(np.zeros((1, 2)), numbers), numbers)


def test_like_widens_types_that_cannot_hold_the_values():
    grades = pd.DataFrame({"f": pd.Categorical(["c"], ["c"])})
    found = Schema.learn(one(["a", "b"])).like(np.array([[1.0]]), grades)["f"]
    assert found.tolist() == ["b"]
    assert found.cat.categories.tolist() == ["c", "b"]

    found = Schema.learn(one([True, False])).like(np.array([[1.0], [NAN]]), one([True, True]))["f"]
    assert found.tolist() == [True, None]

    found = Schema.learn(one([1, 2])).like(np.array([[1.5], [2.0]]), one([1, 2]))["f"]
    assert found.tolist() == [1.5, 2.0]

    enum = pl.DataFrame({"f": pl.Series(["a"], dtype=pl.Enum(["a"]))})
    found = Schema.learn(one(["a", "b"])).like(np.array([[1.0]]), enum)["f"]
    assert found.to_list() == ["b"]

    small = pl.DataFrame({"f": pl.Series([1], dtype=pl.UInt8)})
    found = Schema.learn(one([1, 300]), [0]).like(np.array([[1.0]]), small)["f"]
    assert found.to_list() == [300.0]

    gone = pd.DataFrame({"f": [NAN]})
    assert Schema.learn(one(["1", "2"])).like(np.array([[1.0]]), gone)["f"].tolist() == ["2"]


def test_like_keeps_nullable_and_whole_numbers():
    X = pd.DataFrame(
        {
            "a": pd.Series([1, None], dtype="Int64"),
            "b": pd.Series([True, None], dtype="boolean"),
            "c": pd.Series([0.5, None], dtype="Float32"),
            "d": pd.Series([2, 1], dtype="int16"),
            "e": pd.Series([2, 1], dtype="category"),
            "f": pd.Series([None, None], dtype="str"),
        }
    )
    schema = Schema.learn(X, ["d"])
    pd.testing.assert_frame_equal(schema.like(encoded(schema, X), X), X)
    X = pl.DataFrame({"a": [1, None], "b": [True, None], "c": [None, None], "d": [3, None]})
    X = X.with_columns(pl.col("c").cast(pl.String))
    schema = Schema.learn(X, ["d"])
    found = schema.like(encoded(schema, X), X)
    assert found.schema == X.schema
    assert found.equals(X)


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
