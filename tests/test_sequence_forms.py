"""Panels, tables with time stamps, and what comes back in the form of what was given."""

import pickle
from datetime import timedelta
from itertools import product

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, cross_val_score

from mixtura import SequenceDensity, SequenceMixtureClassifier, load
from mixtura.data.sequence_input import per_sequence
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError
from mixtura.sequences import Layout, Sequences, from_long, from_panel, with_slopes
from mixtura.solvers import EM

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

LENGTHS, IDS = [3, 2, 4], ["b", "c", "a"]
QUICK = {"n_states": 1, "random_state": 0}


def parts():
    """Three sequences of two channels with holes."""
    found = np.split(np.arange(18.0).reshape(9, 2) ** 1.5, np.cumsum(LENGTHS)[:-1])
    found[0][1], found[2][2, 0] = np.nan, np.nan
    return found


def columns():
    """The same as columns of a table with one row per frame."""
    moments = np.concatenate([np.arange(length) for length in LENGTHS])
    x, y = np.concatenate(parts()).T
    return {"id": np.repeat(IDS, LENGTHS), "when": moments, "x": x, "y": y}


def padded():
    array = np.full((3, 5, 2), np.nan)
    for row, part in zip(array, parts(), strict=True):
        row[: len(part)] = part
    return array


def multiindex():
    table = pd.DataFrame(columns())
    return table.set_index(["id", "when"])


def nested():
    cells = {
        name: [pd.Series(part[:, at]) for part in parts()] for at, name in enumerate(["x", "y"])
    }
    return pd.DataFrame(cells, index=IDS)


PANELS = {
    "array": lambda: padded().swapaxes(1, 2),
    "list": lambda: [part.T for part in parts()],
    "multiindex": multiindex,
    "nested": nested,
    "frames": lambda: [pd.DataFrame(part, columns=["x", "y"]) for part in parts()],
    "Sequences": lambda: from_panel(multiindex()),
}
TABLES = {
    "pandas": lambda given: pd.DataFrame(given, index=np.arange(9) + 100),
    "polars": lambda given: pl.DataFrame(given, nan_to_null=True),
    "arrow": lambda given: pa.table({k: pa.array(v, from_pandas=True) for k, v in given.items()}),
}


@pytest.fixture(scope="module")
def model():
    return SequenceDensity(1, **QUICK).fit(parts())


@pytest.fixture(scope="module")
def filled(model):
    """What a list gives."""
    found = model.impute(parts())
    assert isinstance(found, list)
    return found


def same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# -- panels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PANELS)
def test_panels(name, model, filled):
    """All are read alike, and come back as they were."""
    panel = PANELS[name]()
    found = from_panel(panel)
    same(found.split(), parts())
    same(list(found), parts())
    back = found.form.build(found)
    given = multiindex() if name == "Sequences" else panel
    if name == "nested":
        assert (back.columns.tolist(), back.index.tolist()) == (["x", "y"], IDS)
        for cell, other in zip(back.to_numpy().ravel(), given.to_numpy().ravel(), strict=True):
            pd.testing.assert_series_equal(cell, other)
    elif name == "frames":
        for one, other in zip(back, given, strict=True):
            pd.testing.assert_frame_equal(one, other)
    elif name in ("multiindex", "Sequences"):
        pd.testing.assert_frame_equal(back, given)
    else:
        same(back, given)
    imputed = from_panel(model.impute(found))
    same(imputed.split(), filled)


def test_one_channel_per_row_and_padding():
    """(n, frames) is one channel; NaN at the end of all channels is padding, elsewhere a hole."""
    found = from_panel(np.array([[1.0, np.nan, 2.0], [3.0, 4.0, np.nan]]))
    same(found.split(), [np.array([[1.0], [np.nan], [2.0]]), np.array([[3.0], [4.0]])])


def test_draws_have_the_form_of_the_training_sequences(tmp_path):
    """Also those of a model that was stored."""
    for name, panel in PANELS.items():
        model = SequenceDensity(1, **QUICK).fit(from_panel(panel()))
        model.save(tmp_path / name)
        drawn, _ = load(tmp_path / name).sample(4, lengths=[2, 3, 1, 2], random_state=0)
        again = from_panel(drawn)
        assert again.lengths.tolist() == [2, 3, 1, 2]
        assert type(drawn) is type(panel()) or name == "Sequences"
        same(again.split(), from_panel(model.sample(4, lengths=[2, 3, 1, 2], random_state=0)[0]))
    drawn, _ = SequenceDensity(1, **QUICK).fit(padded()).sample(2, lengths=3)
    assert drawn.shape == (2, 3, 2)
    first = SequenceDensity(1, layout="channels_first", **QUICK).fit([part.T for part in parts()])
    assert [part.shape for part in first.sample(2, lengths=3)[0]] == [(2, 3), (2, 3)]


# -- tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_tables_come_back_filled(name, filled):
    """Rows in their order, with what is filled in; columns without holes as they are."""
    order = np.random.default_rng(0).permutation(9)
    shuffled = {key: values[order] for key, values in columns().items()}
    shuffled["whole"] = np.arange(9)
    table = TABLES[name](shuffled)
    model = SequenceDensity(1, layout=Layout(time_column="when"), **QUICK).fit(table)
    found = model.impute(table)
    assert type(found) is type(table)
    for key in ("id", "when", "whole"):
        np.testing.assert_array_equal(np.asarray(found[key]), shuffled[key])
        assert np.asarray(found[key]).dtype == np.asarray(table[key]).dtype
    for key in ("x", "y"):
        seen = ~np.isnan(shuffled[key])
        np.testing.assert_array_equal(np.asarray(found[key])[seen], shuffled[key][seen])
        assert np.isfinite(np.asarray(found[key], dtype=float)).all()
    if name == "pandas":
        assert found.index.equals(table.index)
    drawn, _ = model.sample(2, lengths=[2, 1], random_state=0)
    assert type(drawn) is type(table)
    assert np.asarray(drawn["id"]).tolist() == [0, 0, 1]
    assert np.asarray(drawn["when"]).tolist() == [0, 1, 0]
    assert np.isfinite(model.score_samples(drawn)).all()


@pytest.mark.parametrize("name", TABLES)
def test_time_stamps_on_a_grid(name):
    """The nearest moment; what lies between rows is lost frames."""
    times = np.array([0.0, 0.9, 4.1, 10.0, 11.0, 12.0, 0.0, 1.0, 2.0])
    table = TABLES[name](columns() | {"when": times, "id": np.repeat(["u", "v", "w"], 3)})
    with pytest.warns(AmbiguousDataWarning, match=r"longer than usual, up to 3\.2 times.*step"):
        plain = from_long(table, time_column="when")
    assert plain.lengths.tolist() == [3, 3, 3]
    found = from_long(table, time_column="when", step=1.0)
    assert found.lengths.tolist() == [5, 3, 3]
    expected = np.full((11, 2), np.nan)
    expected[[0, 1, 4, 5, 6, 7, 8, 9, 10]] = np.concatenate(parts())
    np.testing.assert_array_equal(found.frames, expected)
    np.testing.assert_array_equal(found.times[:5], [0.0, 0.9, 2.0, 3.0, 4.1])
    back = SequenceDensity(1, **QUICK).fit(found).impute(found)
    assert type(back) is type(table)
    np.testing.assert_array_equal(np.asarray(back["when"]), found.times)
    assert np.isfinite(np.asarray(back["x"])).all()


def test_dates_on_a_grid():
    when = pd.to_datetime(["2026-01-01", "2026-01-02", "2026-01-05"] * 3)
    table = pd.DataFrame(columns() | {"when": when, "id": np.repeat([7, 8, 9], 3)})
    for step in (timedelta(days=1), np.timedelta64(24, "h"), pd.Timedelta("1D")):
        found = from_long(table, time_column="when", step=step)
        assert found.lengths.tolist() == [5, 5, 5]
        assert found.times[3] == np.datetime64("2026-01-04")
    assert found.ids.tolist() == [7, 8, 9]
    fine = table.assign(when=when[0] + (when - when[0]) / 86_400_000)
    found = from_long(fine, time_column="when", step=timedelta(milliseconds=1))
    expected = np.datetime64("2026-01-01", "ns") + np.arange(5) * np.timedelta64(1, "ms")
    np.testing.assert_array_equal(found.times[:5], expected)  # to the nanosecond


def test_a_time_that_comes_twice_is_told():
    table = pd.DataFrame({"id": [1, 2, 1, 1], "when": [0, 0, 1, 1], "x": [1.0, 2.0, 3.0, 4.0]})
    with pytest.warns(AmbiguousDataWarning, match=r"1 row\(s\) have the id and the time"):
        found = from_long(table, time_column="when")
    same(found.split(), [[[1.0], [3.0], [4.0]], [[2.0]]])


def test_labels_go_by_place_where_ids_come_twice():
    """Those of tables that were joined, say."""
    y = pd.Series(list("uvw"))
    X = from_panel(nested().set_axis([0, 0, 1]))
    assert per_sequence(y, X).tolist() == ["u", "v", "w"]
    assert per_sequence(y, from_panel(nested().set_axis([2, 0, 1]))).tolist() == ["w", "u", "v"]


TIMES = pd.DataFrame(columns())
REFUSED = {
    "one moment": (lambda: from_long(TIMES, time_column="when", step=2), "0 and 1 .* sequence b"),
    "no column": (lambda: from_long(TIMES, step=1), "time_column"),
    "zero": (lambda: from_long(TIMES, time_column="when", step=0), "positive"),
    "text": (lambda: from_long(TIMES, time_column="when", step="1h"), "give a number"),
    "hours": (
        lambda: from_long(TIMES, time_column="when", step=np.timedelta64(1, "h")),
        "give a number",
    ),
    "tiny": (lambda: from_long(TIMES, time_column="when", step=1e-9), "longer one"),
    "infinite": (
        lambda: from_long(TIMES.assign(when=[*range(8), np.inf]), time_column="when", step=1.0),
        "infinite",
    ),
    "names": (
        lambda: from_long(TIMES.assign(when=list("abcdefghi")), time_column="when", step=1),
        "numbers, or dates",
    ),
    "no panel": (lambda: from_panel(TIMES), "from_long"),
    "no id": (lambda: SequenceDensity().fit(multiindex()), "from_panel"),
    "lazy": (lambda: SequenceDensity().fit(pl.LazyFrame(columns())), "collect"),
    "unequal channels": (
        lambda: from_panel(pd.DataFrame({"x": [pd.Series([1.0])], "y": [pd.Series([1.0, 2.0])]})),
        r"\[1, 2\] frames",
    ),
    "unequal times": (
        lambda: from_panel(
            nested().assign(y=[part.set_axis(part.index + 1) for part in nested().y])
        ),
        "different times",
    ),
    "backward": (lambda: from_panel([TIMES.set_index("when")[["x"]]]), "go back"),
    "one name": (lambda: from_long(TIMES.rename(columns={"x": 1, "y": "1"})), "several columns"),
    "unequal tables": (
        lambda: from_panel([pd.DataFrame({"x": [1.0]}), pd.DataFrame({"y": [1.0]})]),
        "columns of sequence 1",
    ),
    "axes": (lambda: SequenceDensity().fit([np.ones((2, 5)), np.ones((2, 3))]), "from_panel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    ask, message = REFUSED[name]
    with pytest.raises(InvalidInputError, match=message):
        ask()


def test_wide_arrays_are_asked_about():
    """(n, channels, frames) passes for few frames of many channels."""
    with pytest.warns(AmbiguousDataWarning, match=r"2 frames of 9 channels.*from_panel"):
        SequenceDensity(1, **QUICK).fit(np.random.default_rng(0).normal(size=(4, 2, 9)))


# -- cross-validation --------------------------------------------------------------------------


def long_table(rng):
    """Twelve sequences of two classes from four people, one row per frame."""
    lengths = rng.integers(3, 6, size=12)
    label, person = np.arange(12) % 2, np.arange(12) // 3
    return pd.DataFrame(
        {
            "id": np.repeat([f"s{place}" for place in range(12)], lengths),
            "x": 4.0 * np.repeat(label, lengths) + rng.normal(size=lengths.sum()),
            "label": np.repeat(label, lengths),
            "person": np.repeat(person, lengths),
        }
    )


def test_group_folds_by_id():
    """Rows of a sequence stay together; labels come one per row."""
    table = long_table(np.random.default_rng(0))
    model = SequenceMixtureClassifier(1, method="ml", init=EM(2), calibrate=False, random_state=0)
    for frame in (table[["id", "x"]], pl.from_pandas(table[["id", "x"]])):
        folds = {"groups": table["id"], "cv": GroupKFold(3)}
        assert cross_val_score(model, frame, table["label"], **folds).mean() > 0.9
        assert np.isfinite(cross_val_score(SequenceDensity(1, **QUICK), frame, **folds)).all()


def test_sequences_are_split_like_rows():
    """Labels and groups one per sequence, or by id; any scorer."""
    table = long_table(np.random.default_rng(0))
    X = from_long(table[["id", "x"]])
    first = table.groupby("id").first()
    model = SequenceMixtureClassifier(1, method="ml", init=EM(2), calibrate=False, random_state=0)
    by_id = model.fit(X, first["label"]).predict(X)
    in_order = first.loc[X.ids]
    np.testing.assert_array_equal(by_id, in_order["label"])
    scores = cross_val_score(
        model, X, in_order["label"].to_numpy(), groups=in_order["person"].to_numpy(),
        cv=GroupKFold(4), scoring="balanced_accuracy",
    )  # fmt: skip
    assert scores.mean() > 0.9
    part = X[np.array([4, 2])]
    assert isinstance(part, Sequences)
    assert part.ids.tolist() == ["s4", "s2"]
    same(part.split(), [X[4], X[2]])
    same(pickle.loads(pickle.dumps(part)).split(), part.split())


@pytest.mark.parametrize("window", [1, 3])
def test_slopes_are_those_of_lines(window, rng):
    """By numpy; missing where a frame of the window lacks the value, and nowhere else."""
    X = [1e9 + rng.normal(size=(length, 2)) for length in (1, 2, 9, 4)]
    X[2][3, 1] = np.nan
    found = with_slopes(X, window)
    assert found.lengths.tolist() == [1, 2, 9, 4]
    for frames, both in zip(X, found.split(), strict=True):
        np.testing.assert_array_equal(both[:, :2], frames)
        if window == 1 and len(frames) > 1:
            np.testing.assert_allclose(both[:, 2], np.gradient(frames[:, 0]), 1e-6, 1e-6)
        for t, channel in product(range(len(frames)), range(2)):
            near = np.arange(max(0, t - window), min(len(frames), t + window + 1))
            values = frames[near, channel] - frames[0, channel]
            known = len(near) > 1 and not np.isnan(values).any()
            expected = np.polyfit(near, values, 1)[0] if known else np.nan
            np.testing.assert_allclose(both[t, 2 + channel], expected, 1e-6, 1e-6)


def test_slopes_of_tables():
    """They have names; words have none. What comes back has the form of the table."""
    table = pd.DataFrame({"id": [0, 0, 0, 1], "w": list("abaa"), "x": [1.0, 3.0, 4.0, 0.0]})
    found = with_slopes(from_long(table))
    assert found.names == ["w", "x", "slope of x"]
    assert found.categories_of(0).tolist() == ["a", "b"]
    np.testing.assert_array_equal(found.frames[:, 2], [2.0, 1.5, 1.0, np.nan])
    model = SequenceDensity(1, n_states=1, random_state=0).fit(found)
    assert model.impute(found).columns.tolist() == ["id", "w", "x", "slope of x"]
    with pytest.raises(InvalidInputError, match="window=0"):
        with_slopes([[1.0]], 0)
