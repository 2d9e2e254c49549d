"""What a schema makes of other tables than the training rows, and the way back."""

import warnings

import numpy as np
import pytest
from schemas import (
    CODES,
    EVERY_FRAME,
    EVERY_TABLE,
    NAMES,
    NAN,
    encoded,
    objects,
    one,
    pandas_frame,
    polars_frame,
)

from mixtura.data.schema import Schema
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

MATCH = "The feature names should match those that were passed during fit.\n"


@EVERY_FRAME
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


@EVERY_FRAME
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


@EVERY_TABLE
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


@EVERY_FRAME
def test_frames_and_arrays_stand_in_for_each_other_by_position(frame):
    np.testing.assert_array_equal(encoded(Schema.learn(frame), objects()), CODES)
    np.testing.assert_array_equal(encoded(Schema.learn(objects()), frame), CODES)
    numbers = pd.DataFrame(np.eye(2), columns=["a", "b"])
    assert encoded(Schema.learn(np.eye(2)), numbers) is numbers
    rows = np.eye(2)
    assert encoded(Schema.learn(numbers), rows) is rows


@EVERY_FRAME
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


@EVERY_TABLE
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


@EVERY_FRAME
def test_like_has_the_training_columns_in_their_order(frame):
    schema = Schema.learn(frame)
    found = schema.like(CODES, frame[["grade", "size"]])
    assert tuple(found.columns) == NAMES
    assert type(found) is type(frame)
    assert list(found["size"])[2:] == [3.0, -2.0]
    assert list(found["color"])[:2] == ["red", "blue"]
    assert list(found["round"]) == [True, False, True, True]
    assert found["grade"].dtype == frame["grade"].dtype


@EVERY_FRAME
def test_like_takes_the_names_of_a_frame_after_training_on_an_array(frame):
    found = Schema.learn(objects()).like(CODES, frame)
    assert tuple(found.columns) == NAMES
    assert found["round"].dtype == frame["round"].dtype
    numbers = pd.DataFrame([["x", "y"]], columns=[7, "a"])
    pd.testing.assert_frame_equal(Schema.learn(numbers).like(np.zeros((1, 2)), numbers), numbers)


@pytest.mark.parametrize(
    "categories",
    [
        pd.interval_range(0, 3),
        pd.date_range("2020-01-01", periods=3),
        pd.period_range("2020", periods=3, freq="Y"),
        pd.Index([(1, 2), (3, 4), (5, 6)], tupleize_cols=False),
        np.array([3, 5, 7], dtype=np.int8),
        np.array([0.5, 1.5, 2.5]),
    ],
    ids=lambda each: str(each.dtype),
)
def test_categories_of_any_type_come_back(categories):
    """Of intervals and dates names are read; the user's own take their place."""
    column = pd.Categorical.from_codes([0, 2, 1, -1, 0], categories, ordered=True)
    frame = pd.DataFrame({"k": column, "x": np.arange(5.0)})
    schema = Schema.learn(frame)
    values = schema.encode(frame).values
    pd.testing.assert_frame_equal(schema.like(values, frame), frame)
    filled = schema.like(np.where(np.isnan(values), 1.0, values), frame)
    assert filled["k"].dtype == frame["k"].dtype
    assert filled["k"].cat.codes.tolist() == [0, 2, 1, 1, 0]


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
