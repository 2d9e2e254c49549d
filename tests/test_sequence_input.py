"""What a user may pass as sequences, and what is refused."""

import copy
import decimal
import warnings

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from mixtura.data.sequence_input import per_sequence, read_sequences
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

LENGTHS = [3, 1, 4, 2]
IDS = ["d", "a", "c", "b"]
NAMES = ["x", "y"]
OFFSETS = [0, 3, 4, 8, 10]


def parts(dtype=np.float64):
    """Four sequences of two channels with holes, one frame wholly missing in the middle."""
    rng = np.random.default_rng(1)
    found = [rng.normal(size=(length, 2)) for length in LENGTHS]
    found[0][1] = np.nan
    found[2][0, 1] = found[3][1, 0] = np.nan
    return [part.astype(dtype) for part in found]


def panel(fill=np.nan):
    """The same as one array, padded at the end."""
    array = np.full((len(LENGTHS), max(LENGTHS) + 1, 2), fill)
    for row, part in zip(array, parts(), strict=True):
        row[: len(part)] = part
    return array


def objects(entries):
    array = np.empty(len(entries), dtype=object)
    for place, entry in enumerate(entries):
        array[place] = entry
    return array


def table():
    """The same as a long table, as a dict of columns."""
    frames = np.concatenate(parts())
    return {"x": frames[:, 0], "id": np.repeat(IDS, LENGTHS), "y": frames[:, 1]}


def as_polars(columns):
    return pl.DataFrame(columns, nan_to_null=True)


def interleaved(columns):
    """Rows of all sequences in turn; those of each stay in order."""
    turn = np.concatenate([np.arange(length) for length in LENGTHS])
    order = np.lexsort((np.repeat(np.arange(4), LENGTHS), turn))
    return {name: values[order] for name, values in columns.items()}


def backwards(columns):
    """Rows of each sequence from last to first, and a column that tells their time."""
    time = np.concatenate([np.arange(length) for length in LENGTHS])
    order = np.lexsort((-time, np.repeat(np.arange(4), LENGTHS)))
    return {name: values[order] for name, values in (columns | {"t": time}).items()}


def assert_same(found, expected, names=None):
    np.testing.assert_array_equal(found.frames, expected)
    assert found.frames.dtype == np.asarray(expected).dtype
    assert found.offsets.dtype == np.int64
    assert found.names == names


# -- forms that mean the same ------------------------------------------------------------------

FORMS = {
    "list": (parts(), {}),
    "tuple": (tuple(parts()), {}),
    "objects": (objects(parts()), {}),
    "series of arrays": (pd.Series(parts()), {}),
    "nested lists": ([part.tolist() for part in parts()], {}),
    "None for NaN": (
        [np.where(np.isnan(part), None, part.astype(object)) for part in parts()],
        {},
    ),
    "torch": ([torch.tensor(part, requires_grad=True) for part in parts()], {}),
    "masked": (
        [np.ma.masked_array(np.nan_to_num(part, nan=-9999.0), np.isnan(part)) for part in parts()],
        {},
    ),
    "data frames": ([pd.DataFrame(part) for part in parts()], {}),
    "Fortran": ([np.asfortranarray(part) for part in parts()], {}),
    "aeon's list": ([part.T for part in parts()], {"channels_first": True}),
    "array": (panel(), {}),
    "torch array": (torch.tensor(panel()), {}),
    "array of objects": (panel().astype(object), {}),
    "aeon's array": (panel().swapaxes(1, 2), {"channels_first": True}),
}
FRAMES = {
    "pandas": (pd.DataFrame(table()), {}),
    "polars": (as_polars(table()), {}),
    "polars with NaN": (pl.DataFrame(table()), {}),
    "interleaved": (pd.DataFrame(interleaved(table())), {}),
    "interleaved polars": (as_polars(interleaved(table())), {}),
    "nullable": (pd.DataFrame(table()).convert_dtypes(), {}),
    "objects": (
        pd.DataFrame(table()).astype({"x": object}).replace({"x": {np.nan: None}}),
        {},
    ),
    "sorted by time": (pd.DataFrame(backwards(table())), {"time_column": "t"}),
    "sorted by time, polars": (as_polars(backwards(table())), {"time_column": "t"}),
    "sorted by date": (
        pd.DataFrame(backwards(table())).assign(t=lambda f: pd.to_datetime(f["t"], unit="D")),
        {"time_column": "t"},
    ),
    "sorted by aware date": (
        pd.DataFrame(backwards(table())).assign(
            t=lambda f: pd.to_datetime(f["t"], unit="D", utc=True)
        ),
        {"time_column": "t"},
    ),
    "sorted by text": (
        as_polars(backwards(table())).with_columns(pl.col("t").cast(pl.String)),
        {"time_column": "t"},
    ),
    "another name": (pd.DataFrame(table()).rename(columns={"id": "run"}), {"id_column": "run"}),
    "category": (pd.DataFrame(table()).astype({"id": "category"}), {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_lists_and_arrays(name):
    """All give the same frames."""
    X, options = FORMS[name]
    found = read_sequences(X, **options)
    assert_same(found, np.concatenate(parts()))
    assert found.offsets.tolist() == OFFSETS


@pytest.mark.parametrize("name", FRAMES)
def test_data_frames(name):
    """The same frames once more, with the names of their channels."""
    X, options = FRAMES[name]
    found = read_sequences(X, **options)
    assert_same(found, np.concatenate(parts()), NAMES)
    assert found.offsets.tolist() == OFFSETS


@pytest.mark.parametrize("ids", [[9, 2, 7, 5], [0.5, -1.0, 3.0, 2.0], ["d", "aaaa", "", "b"]])
@pytest.mark.parametrize("make", [pd.DataFrame, as_polars])
def test_ids_of_any_type(ids, make):
    """Sequences come in the order in which their ids appear."""
    columns = interleaved(table() | {"id": np.repeat(ids, LENGTHS)})
    assert_same(read_sequences(make(columns)), np.concatenate(parts()), NAMES)


def test_equal_times_keep_their_order():
    """Sorting is stable."""
    X = pd.DataFrame({"id": [1, 1, 1, 1], "t": [1, 0, 1, 0], "x": [1.0, 2.0, 3.0, 4.0]})
    assert read_sequences(X, time_column="t").frames[:, 0].tolist() == [2.0, 4.0, 1.0, 3.0]


NUMERIC = {
    "integers": pd.array([1, None, 3], dtype="Int64"),
    "floats": pd.array([1.0, None, 3.0], dtype="Float32"),
    "objects": np.array([1, None, 3.0], dtype=object),
    "NA": np.array([1, pd.NA, 3.0], dtype=object),
    "decimals": np.array([decimal.Decimal(1), None, decimal.Decimal(3)], dtype=object),
    "polars integers": pl.Series([1, None, 3]),
    "polars floats": pl.Series([1.0, None, 3.0]),
    "polars decimals": pl.Series([decimal.Decimal(1), None, decimal.Decimal(3)]),
}


@pytest.mark.parametrize("name", NUMERIC)
def test_missing_numbers(name):
    """None and NA are NaN."""
    make = pl.DataFrame if isinstance(NUMERIC[name], pl.Series) else pd.DataFrame
    found = read_sequences(make({"id": [0, 0, 1], "x": NUMERIC[name]}))
    np.testing.assert_array_equal(found.frames, [[1.0], [np.nan], [3.0]])


@pytest.mark.parametrize("column", [pd.array([True, None]), pl.Series([True, None])], ids=str)
def test_truth_is_a_number(column):
    """Also where some of it is missing, or all."""
    make = pl.DataFrame if isinstance(column, pl.Series) else pd.DataFrame
    found = read_sequences(make({"id": [0, 1], "x": column, "y": [None, None]}))
    np.testing.assert_array_equal(found.frames, [[1.0, np.nan], [np.nan, np.nan]])


def test_names_become_strings():
    """Columns may be numbered."""
    X = pd.DataFrame({"id": ["a", "a"], 0: [1.0, 2.0], 1: [3, 4]})
    assert_same(read_sequences(X), np.array([[1.0, 3.0], [2.0, 4.0]]), ["0", "1"])


@pytest.mark.parametrize("channels_first", [False, True])
def test_one_channel(channels_first):
    """Rows of numbers are sequences of one channel, whichever axis comes first."""
    found = read_sequences([[1, 2, 3], np.array([4.0])], channels_first=channels_first)
    assert_same(found, np.array([[1.0], [2.0], [3.0], [4.0]]))
    assert found.lengths.tolist() == [3, 1]


TYPES = {
    "float32": (parts(np.float32), np.float32),
    "one float64": ([*parts(np.float32), np.ones((1, 2))], np.float64),
    "float16": (parts(np.float16), np.float64),
    "integers": ([np.ones((2, 2), dtype=np.int8)], np.float64),
    "booleans": ([np.ones((2, 2), dtype=bool)], np.float64),
    "array float32": (panel().astype(np.float32), np.float32),
    "array of integers": (np.ones((2, 3, 1), dtype=int), np.float64),
    "torch float32": ([torch.ones(2, 2)], np.float32),
    "torch bfloat16": ([torch.ones(2, 2, dtype=torch.bfloat16)], np.float64),
    "pandas float32": (pd.DataFrame({"id": [0], "x": np.float32([1.0])}), np.float32),
    "pandas mixed": (pd.DataFrame({"id": [0], "x": np.float32([1.0]), "y": [2.0]}), np.float64),
    "polars float32": (
        pl.DataFrame({"id": [0, 0], "x": pl.Series([1.0, None], dtype=pl.Float32)}),
        np.float32,
    ),
}


@pytest.mark.parametrize("name", TYPES)
def test_types(name):
    """Double precision unless everything is single."""
    X, dtype = TYPES[name]
    assert read_sequences(X).frames.dtype == dtype


def test_padding_ends_where_something_is_observed():
    """Missing frames inside stay; a sequence of nothing keeps one frame."""
    nan = np.nan
    X = np.array(
        [
            [[nan, nan], [1.0, nan], [nan, nan], [nan, 2.0], [nan, nan]],
            [[nan, nan]] * 5,
            [[1.0, 2.0]] * 5,
        ]
    )
    found = read_sequences(X)
    assert found.lengths.tolist() == [4, 1, 5]
    np.testing.assert_array_equal(found.frames, np.concatenate([X[0, :4], X[1, :1], X[2]]))


@pytest.mark.parametrize("name", FORMS)
def test_input_is_left_alone(name):
    """Neither reading nor changing what was read changes X."""
    X, options = copy.deepcopy(FORMS[name])
    read_sequences(X, **options).frames[:] = 7.0
    assert_same(read_sequences(X, **options), np.concatenate(parts()))


@pytest.mark.parametrize("name", FRAMES)
def test_data_frames_are_left_alone(name):
    """Nor that of a data frame."""
    X, options = FRAMES[name]
    before = X.clone() if hasattr(X, "clone") else X.copy(deep=True)
    read_sequences(X, **options).frames[:] = 7.0
    per_sequence(np.arange(len(X)) * 0, X, options.get("id_column", "id"))
    assert X.equals(before)


# -- what was read -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "places"),
    [
        ([2, 0], [2, 0]),
        (np.array([-1, 1, 1]), [3, 1, 1]),
        (np.array([True, False, False, True]), [0, 3]),
        (slice(1, 3), [1, 2]),
        ([], []),
    ],
    ids=str,
)
def test_take(index, places):
    """The same as reading only these."""
    whole = read_sequences(FRAMES["pandas"][0])
    assert len(whole) == 4
    assert whole.lengths.tolist() == LENGTHS
    found = whole.take(index)
    assert len(found) == len(places)
    assert found.lengths.tolist() == [LENGTHS[place] for place in places]
    expected = np.concatenate([np.empty((0, 2)), *(parts()[place] for place in places)])
    assert_same(found, expected, NAMES)


# -- refused -----------------------------------------------------------------------------------


def changed(place, value):
    """The sequences with another one at a place."""
    found = parts()
    found[place] = value
    return found


def with_columns(**columns):
    return pd.DataFrame(table()).assign(**columns)


FRAME = pd.DataFrame(table())
REFUSED = {
    "matrix": (np.ones((3, 4)), {}, r"\(3, 4\).*X\[:, :, None\].*\[X\]"),
    "matrix of objects": (np.ones((3, 4), dtype=object), {}, r"X\[:, :, None\]"),
    "torch matrix": (torch.ones(3, 4), {}, r"X\[:, :, None\]"),
    "vector": (np.ones(3), {}, r"3 numbers.*\[X\]"),
    "series": (pd.Series([1.0, 2.0]), {}, r"2 numbers.*\[X\]"),
    "list of numbers": ([1.0, 2.0], {}, r"sequence 0 is a single float.*\[X\]"),
    "4-D": (np.ones((2, 3, 4, 5)), {}, "4 axes"),
    "list of 3-D": ([np.ones((2, 3, 4))], {}, r"sequence 0 has the shape \(2, 3, 4\)"),
    "sparse": (csr_array(np.eye(3)), {}, "X is a sparse matrix"),
    "sparse entry": (changed(1, csr_array(np.eye(2))), {}, "sequence 1 is a sparse matrix"),
    "scalar": (3.0, {}, "X is a single float"),
    "None": (None, {}, "X is a single NoneType"),
    "string": ("abc", {}, "X is a single str"),
    "dict": ({"a": [1, 2]}, {}, "X is a single dict"),
    "dict entry": (changed(1, {}), {}, "sequence 1 is a single dict"),
    "generator": ((part for part in parts()), {}, "X is a single generator"),
    "empty list": ([], {}, "no sequences"),
    "empty objects": (objects([]), {}, "no sequences"),
    "empty array": (np.ones((0, 3, 2)), {}, "no sequences"),
    "no time": (np.ones((3, 0, 2)), {}, "sequence 0 is empty"),
    "empty sequence": (changed(2, np.ones((0, 2))), {}, "sequence 2 is empty"),
    "empty univariate": ([[1.0], [2.0], []], {}, "sequence 2 is empty"),
    "empty, channels first": (
        [np.ones((2, 3)), np.ones((2, 0))],
        {"channels_first": True},
        "sequence 1 is empty",
    ),
    "widths": (changed(2, np.ones((3, 5))), {}, r"sequence 2 has 5 channel.*0 has 2: every"),
    "transposed": ([part.T for part in parts()], {}, "1 has 1.*0 has 3.*layout='channels_first'"),
    "not transposed": (parts(), {"channels_first": True}, "layout='frames_first'"),
    "no channels": ([np.ones((2, 0))], {}, "no channels"),
    "array without channels": (np.ones((2, 3, 0)), {}, "no channels"),
    "infinity": (changed(2, [[1.0, np.inf]]), {}, "sequence 2 contains infinity"),
    "infinity in the end": (changed(3, [[1.0, -np.inf]]), {}, "sequence 3 contains infinity"),
    "array with infinity": (
        np.where(np.arange(4)[:, None, None] == 2, np.inf, panel()),
        {},
        "sequence 2 contains infinity",
    ),
    "complex": (changed(1, [[1j, 2.0]]), {}, "sequence 1 holds.*complex128"),
    "complex array": (np.ones((2, 3, 1), dtype=complex), {}, "X holds.*complex128"),
    "complex objects": (changed(1, np.array([[1j, 2]], dtype=object)), {}, "sequence 1 cannot"),
    "text": (changed(3, [["a", "b"]]), {}, r"\['0', '1'\] hold neither numbers alone nor words"),
    "text array": (np.full((2, 3, 1), "a"), {}, "X holds values of the type <U1"),
    "text list": (["ab", "cd"], {}, "sequence 0 is a single str"),
    "text vector": (np.array(["ab", "cd"]), {}, "X holds values of the type <U2"),
    "dates": (np.zeros((2, 3, 1), dtype="M8[s]"), {}, "datetime64"),
    "ragged entry": (changed(1, [[1.0, 2.0], [3.0]]), {}, "sequence 1 cannot be read"),
    "no id": (FRAME, {"id_column": "run"}, r"no column 'run'.*\['x', 'id', 'y'\].*id_column"),
    "no time column": (FRAME, {"time_column": "t"}, r"no column 't'.*time_column"),
    "ids alone": (FRAME[["id"]], {}, "no channels"),
    "ids and time": (FRAME[["id", "x"]], {"time_column": "x"}, "no channels"),
    "no rows": (FRAME[:0], {}, "no sequences"),
    "polars without rows": (as_polars(table())[:0], {}, "no sequences"),
    "some text": (
        with_columns(a=np.array([1, 2.0, "c"] + [None] * 7, dtype=object)),
        {},
        r"\['a'\] hold neither numbers",
    ),
    "a date": (with_columns(a=pd.Timestamp("2020-01-01")), {}, r"\['a'\].*time_column"),
    "aware dates": (with_columns(a=pd.Timestamp("2020-01-01", tz="UTC")), {}, r"\['a'\]"),
    "complex column": (with_columns(a=1j), {}, r"\['a'\] hold neither numbers"),
    "polars lists": (
        pl.DataFrame({"id": [0, 1], "x": [[1.0], [2.0]], "y": [[1], [1, 2]], "z": [1, 2]}),
        {},
        r"\['x', 'y'\]",
    ),
    "missing ids": (with_columns(id=["a", None] + ["b"] * 8), {}, "'id' has 1 missing.*row 1"),
    "NaN ids": (with_columns(id=[0.0] * 9 + [np.nan]), {}, "'id' has 1 missing.*row 9"),
    "polars missing ids": (
        as_polars(table() | {"id": [None] * 2 + [4] * 8}),
        {},
        "'id' has 2 missing.*row 0",
    ),
    "missing times": (
        with_columns(t=[pd.NaT] + [pd.Timestamp("2020-01-01")] * 9),
        {"time_column": "t"},
        "'t' has 1 missing.*row 0",
    ),
    "mixed ids": (
        with_columns(id=np.array(["a", 1] * 5, dtype=object)),
        {},
        "'id' mixes values that have no order",
    ),
    "columns of one name": (
        FRAME.rename(columns={"y": "x"}),
        {},
        r"several columns named \['x'\]",
    ),
    "infinite column": (with_columns(x=[0.0] * 5 + [np.inf] * 5), {}, "sequence 'c' contains"),
}


WORDS = ["b", "a", None, "b"]


@pytest.mark.parametrize(
    "X",
    [
        [[["b", 1.0], ["a", 2.0]], np.array([[None, 3.0], ["b", np.nan]], dtype=object)],
        pd.DataFrame({"id": [0, 0, 1, 1], "w": WORDS, "x": [1.0, 2.0, 3.0, np.nan]}),
        pd.DataFrame({"id": [0, 0, 1, 1], "w": pd.Categorical(WORDS), "x": [1, 2, 3, None]}),
        pl.DataFrame({"id": [0, 0, 1, 1], "w": WORDS, "x": [1.0, 2.0, 3.0, None]}),
    ],
    ids=["list", "pandas", "categories", "polars"],
)
def test_words_become_codes(X):
    """Of sorted categories; what is missing stays missing."""
    found = read_sequences(X)
    nan = np.nan
    np.testing.assert_array_equal(found.frames, [[1, 1], [0, 2], [nan, 3], [1, nan]])
    words, numbers = found.categories
    assert words.tolist() == ["a", "b"]
    assert numbers is None
    assert next(iter(found.by_name().values())).tolist() == WORDS


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """Each with a message that names the problem and the place."""
    X, options, message = REFUSED[name]
    with pytest.raises(InvalidInputError, match=message):
        read_sequences(X, **options)


# -- labels ------------------------------------------------------------------------------------

LABELS = ["u", "v", "u", "w"]


@pytest.mark.parametrize("X", [parts(), tuple(parts()), panel()], ids=["list", "tuple", "array"])
@pytest.mark.parametrize("y", [LABELS, np.arange(7), None], ids=str)
def test_labels_of_arrays_pass_through(X, y):
    """Nothing is checked here."""
    assert per_sequence(y, X) is y


@pytest.mark.parametrize("make", [list, np.array, pl.Series, pd.Series])
@pytest.mark.parametrize("frame", ["pandas", "interleaved", "interleaved polars"])
def test_one_label_a_sequence(make, frame):
    """Returned as they are."""
    y = make(LABELS)
    assert per_sequence(y, FRAMES[frame][0]) is y


@pytest.mark.parametrize("labels", [LABELS, [3, 1, 3, 2], [1.0, np.nan, 2.0, np.nan]], ids=str)
@pytest.mark.parametrize("make", [list, np.array, pl.Series, pd.Series])
@pytest.mark.parametrize("frame", [pd.DataFrame, as_polars])
def test_one_label_a_frame(make, frame, labels):
    """Reduced to one a sequence, of the same kind."""
    columns = interleaved(table() | {"label": np.repeat(labels, LENGTHS)})
    y = make(columns.pop("label"))
    found = per_sequence(y, frame(columns))
    assert type(found) is type(y)
    np.testing.assert_array_equal(np.asarray(found), labels)


@pytest.mark.parametrize("missing", [None, pd.NA, np.nan], ids=str)
def test_missing_labels_agree(missing):
    """A sequence without labels has none; one with some is refused."""
    y = pd.Series(np.repeat(np.array(["u", missing, "u", "w"], dtype=object), LENGTHS))
    found = per_sequence(y, FRAME)
    assert found.isna().tolist() == [False, True, False, False]
    y[1] = missing
    with pytest.raises(InvalidInputError, match="id 'd' carry different labels, 'u' and"):
        per_sequence(y, FRAME)


def test_labels_by_id():
    """A series whose index are the ids is aligned, whatever its order."""
    y = pd.Series({"a": "v", "b": "w", "c": "u", "d": "u"})
    for X in (FRAME, as_polars(table()), FRAMES["interleaved"][0]):
        assert per_sequence(y, X).tolist() == LABELS
    renamed = FRAME.rename(columns={"id": "run"})
    assert per_sequence(y, renamed, id_column="run").tolist() == LABELS


def test_a_channel_that_is_called_time():
    """Rows are not sorted by it unless one says so."""
    X = FRAME.assign(time=np.arange(len(FRAME)))
    with pytest.warns(AmbiguousDataWarning, match="time_column='time'"):
        assert read_sequences(X).names == [*read_sequences(FRAME).names, "time"]
    with warnings.catch_warnings(action="error"):
        shuffled = read_sequences(X.sample(frac=1, random_state=0), time_column="time")
        found = {name: part for name, part in zip(shuffled.ids, shuffled.split(), strict=True)}
        for name, part in zip(IDS, read_sequences(FRAME).split(), strict=True):
            np.testing.assert_array_equal(found[name], part)


def test_labels_by_number():
    """Ids that are numbers: pandas' own index may mean them, or nothing."""
    X, y = FRAME.assign(id=np.repeat([3, 0, 2, 1], LENGTHS)), pd.Series(["v", "w", "u", "U"])
    with pytest.warns(AmbiguousDataWarning, match="taken by id"):
        assert per_sequence(y, X).tolist() == ["U", "v", "u", "w"]
    with warnings.catch_warnings(action="error"):
        assert per_sequence(y[[3, 0, 2, 1]], X).tolist() == ["U", "v", "u", "w"]
        assert per_sequence(y.to_numpy(), X).tolist() == y.tolist()
        assert per_sequence(y, FRAME.assign(id=np.repeat(range(4), LENGTHS))).tolist() == y.tolist()


@pytest.mark.parametrize("index", [["d", "a", "c", "c"], ["d", "a", "c", "e"], [0, 1, 2, 3]])
def test_other_indices_do_not_count(index):
    """Ids twice or others: the order of the sequences it is."""
    y = pd.Series(LABELS, index=index)
    assert per_sequence(y, FRAME) is y


def test_a_column_of_labels():
    """A matrix of one column is as good."""
    y = np.repeat([3, 1, 3, 2], LENGTHS)[:, None]
    assert np.ravel(per_sequence(y, FRAME)).tolist() == [3, 1, 3, 2]


BAD_LABELS = {
    "differ": (np.repeat([0, 1, 2, 3, 4], 2), "id 'd' carry different labels, 0 and 1"),
    "differ late": (["u"] * 9 + ["v"], "id 'b' carry different labels, 'u' and 'v'"),
    "length": (np.zeros(5), "y has 5 entries.*4 sequences in 10 rows"),
    "2-D": (np.zeros((10, 2)), "1d array"),
}


@pytest.mark.parametrize("name", BAD_LABELS)
def test_labels_refused(name):
    """Each with a message that names the problem and the place."""
    y, message = BAD_LABELS[name]
    with pytest.raises(ValueError, match=message):
        per_sequence(y, FRAME)


def test_labels_need_ids():
    """The same message as for X."""
    with pytest.raises(InvalidInputError, match="no column 'run'"):
        per_sequence(LABELS, FRAME, id_column="run")
