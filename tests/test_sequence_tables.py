"""Sequences in data frames with one row per frame: channels by name, labels and weights by id."""

import numpy as np
import pytest
from sequence_checks import toy_sequences
from sklearn.base import clone
from small_sequences import small

from mixtura.exceptions import DegenerateDataWarning, InvalidInputError
from mixtura.sequences import Layout

TOY, LABELS = toy_sequences()
ML = small("ml", 3)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_data_frames(package):
    """One row a frame, sorted by time on the way; labels one a sequence or one a row."""
    X, y = toy_sequences()
    expected = clone(ML).fit(X, y)
    lengths = [len(sequence) for sequence in X]
    first, second = np.concatenate(X).T
    columns = {
        "who": np.repeat([f"s{place:02d}" for place in range(len(X))], lengths),
        "when": np.concatenate([np.arange(length) for length in lengths]),
        "first": first,
        "second": second,
        "label": np.repeat(y, lengths),
    }
    order = np.argsort(columns["when"], kind="stable")[::-1]
    order = np.concatenate([order[np.argsort(columns["who"][order], kind="stable")]])
    frame = pytest.importorskip(package).DataFrame(
        {name: values[order] for name, values in columns.items()}
    )
    rows = frame[["who", "when", "first", "second"]]
    model = small("ml", 3, layout=Layout(id_column="who", time_column="when"))
    for labels in (y, frame["label"]):
        model.fit(rows, labels)
        np.testing.assert_allclose(
            model.predict_proba(rows), expected.predict_proba(X), 1e-9, 1e-12
        )


@pytest.fixture
def frames():
    """A long frame of toy sequences, and the labels by id."""
    pd = pytest.importorskip("pandas")
    parts = [
        pd.DataFrame(sequence, columns=["a", "b"]).assign(id=f"s{place}")
        for place, sequence in enumerate(TOY)
    ]
    ids = [f"s{place}" for place in range(len(TOY))]
    return pd.concat(parts), pd.Series(LABELS, index=ids)


def test_channels_are_matched_by_name(frames):
    """Columns may come in another order; what becomes of others is as for tables."""
    X, y = frames
    model = clone(ML).fit(X, y)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    expected = model.predict_proba(X)
    assert np.array_equal(model.predict_proba(X[["b", "id", "a"]]), expected)
    with pytest.raises(InvalidInputError, match=r"unseen at fit time:\n- z\n.*missing:\n- b"):
        model.predict(X.rename(columns={"b": "z"}))


def test_a_channel_that_is_lacking(frames):
    """It counts as missing, with a warning, as a lost channel of NaN does."""
    X, y = frames
    model = clone(ML).fit(X, y)
    expected = model.predict_proba(X.assign(b=np.nan))
    with pytest.warns(DegenerateDataWarning, match=r"lacks 1 column\(s\).*\('b'\)") as seen:
        found = model.predict_proba(X[["id", "a"]])
    assert len(seen) == 1
    np.testing.assert_array_equal(found, expected)
    strict = clone(model).set_params(unexpected="error").fit(X, y)
    for other in (X[["id", "a"]], X[["b", "id", "a"]], X.assign(c=0.0)):
        with pytest.raises(InvalidInputError, match="feature names should match"):
            strict.predict(other)
    lenient = clone(model).set_params(unexpected="ignore").fit(X, y)
    with pytest.warns(DegenerateDataWarning, match=r"1 column\(s\).*\('c'\).*ignored"):
        assert np.array_equal(lenient.predict_proba(X.assign(c=0.0)), model.predict_proba(X))


def test_labels_and_weights_go_by_id(frames):
    """In fit, score and log_margin alike."""
    X, y = frames
    weight = y * 0.0 + np.arange(1, len(y) + 1)
    model = clone(ML).fit(X, y, weight)
    turned = clone(ML).fit(X, y[::-1], weight[::-1])
    assert np.array_equal(model.means_, turned.means_)
    assert model.score(X, y) == model.score(X, y[::-1]) == model.score(TOY, LABELS)
    assert np.array_equal(model.log_margin(X, y), model.log_margin(X, y[::-1]))
