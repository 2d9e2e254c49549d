"""What a user passes as tensors: scaling, tables, labels, devices."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from mixtura.data import lazy
from mixtura.data.labels import encode_labels, labeled_mask, read_labels
from mixtura.data.lazy import is_memory_mapped
from mixtura.data.scaling import Scaling
from mixtura.engines import Engine, SequenceEngine, resolve_device, table
from mixtura.estimators.blending import curved
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError

CPU = torch.device("cpu")


def holes(X, rng, share=0.2):
    """The same matrix with missing entries."""
    return np.where(rng.random(X.shape) < share, np.nan, X)


@pytest.fixture
def memory_mapped(tmp_path):
    """Writes an array to a file and maps it."""

    def write(X):
        np.save(tmp_path / "X.npy", X)
        return np.load(tmp_path / "X.npy", mmap_mode="r")

    return write


# -- scaling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [50, 40_000])
def test_scaling_is_that_of_sklearn(n, rng):
    """Weighted means and deviations over observed entries, also over several chunks."""
    X = holes(rng.normal([1.0, -3.0, 1e6], [1.0, 0.1, 1e3], size=(n, 3)), rng)
    weight = rng.uniform(0.1, 2.0, size=n)
    expected = StandardScaler().fit(X, sample_weight=weight)
    scaling = Scaling.measure(X, weight)
    np.testing.assert_allclose(scaling.location, expected.mean_, 1e-9)
    np.testing.assert_allclose(scaling.scale, expected.scale_, 1e-6)
    np.testing.assert_allclose(scaling.invert(scaling.apply(X)), X, 1e-12)


def test_numbers_that_dwarf_all_others_are_told(rng):
    """In float64 the others would be one value: a code for "missing", or a slip."""
    X = np.column_stack(
        [rng.normal(size=(200, 12)), np.zeros(200), np.exp(5 * rng.normal(size=200))]
    )
    X[0, 12] = X[0, 0] = 1e12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Scaling.measure(X, np.ones(200))
    X[0, :11] = 1e20
    with pytest.warns(DegenerateDataWarning, match=r"11 column.*dwarf.*\(0, 1, .*9, \.\.\.\).*NaN"):
        Scaling.measure(X, np.ones(200))
    X[1:100, :11] = np.nan  # and what is not there is not counted
    with pytest.warns(DegenerateDataWarning, match="11 column"):
        Scaling.measure(X, np.ones(200))


@pytest.mark.parametrize("factor", [1e-300, 1e-12, 1e12, 1e300])
def test_scaling_takes_any_magnitude(factor, rng):
    """Units do not matter, however small or large."""
    X = rng.normal(size=(100, 2))
    plain, scaled = (Scaling.measure(x, np.ones(100)) for x in (X, X * factor))
    np.testing.assert_allclose(scaled.apply(X * factor), plain.apply(X), 1e-9, 1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e9, 1e-9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_columns_are_reported_and_harmless(value, dtype):
    """A constant column keeps a finite, positive scale; rounding does not hide it."""
    X = np.full((100, 2), value, dtype=dtype)
    X[:, 1] = np.arange(100)
    with pytest.warns(DegenerateDataWarning, match="1 column.*constant.*drop"):
        scaling = Scaling.measure(X, np.ones(100))
    assert (scaling.scale > 0).all()
    np.testing.assert_allclose(scaling.apply(X)[:, 0], 0.0, atol=1e-6)


def test_empty_columns_are_reported_once():
    """A column without any value is named, and is not called constant too."""
    X = np.array([[np.nan, 1.0], [np.nan, 2.0]])
    with pytest.warns(DegenerateDataWarning, match="no observed value") as caught:
        scaling = Scaling.measure(X, np.ones(2))
    assert len(caught) == 1
    assert np.isfinite(scaling.location).all()
    assert (scaling.scale > 0).all()


def test_good_columns_give_no_warning(rng):
    """A small spread on a large offset is not constant."""
    X = 1e6 + rng.normal(size=(100, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaling = Scaling.measure(X, np.ones(100))
    np.testing.assert_allclose(scaling.scale, X.std(0), rtol=1e-6)


# -- tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mapped", [False, True], ids=["memory", "mapped"])
def test_batches_are_the_rows(mapped, rng, memory_mapped):
    """Whole, sliced, indexed, subset of a subset: values, masks, labels and weights agree."""
    X, y, weight = holes(rng.normal(size=(50, 3)), rng), rng.integers(3, size=50), rng.random(50)
    source = memory_mapped(X) if mapped else X
    engine = Engine(source, y, weight, scaling=Scaling.identity(3), device=CPU)
    assert len(engine) == 50
    assert engine.n_features == 3

    def check(batch, index):
        missing = np.isnan(X[index])
        np.testing.assert_array_equal(batch.x, np.where(missing, 0.0, X[index]))
        np.testing.assert_array_equal(batch.observed, ~missing)
        np.testing.assert_array_equal(batch.y, y[index])
        np.testing.assert_array_equal(batch.weight, weight[index])

    check(engine.batch(slice(None)), np.arange(50))
    order = rng.permutation(50)
    check(engine.batch(torch.from_numpy(order)), order)
    part = engine.take(order[:20])
    check(part.batch(slice(5, 15)), order[5:15])
    again = part.take(np.array([3, 1, 7]))
    check(again.batch(slice(None)), order[[3, 1, 7]])
    check(engine.labeled_as(1).all_rows(), np.flatnonzero(y == 1))
    sizes = [len(batch) for batch in engine.chunks(16)]
    assert sizes == [16, 16, 16, 2]


def test_large_tables_stay_where_they_are(rng, monkeypatch):
    """Complete rows in the units of the user: parts are views until they are few."""
    X, y = np.exp(rng.normal(size=(60, 3))), rng.integers(3, size=60)
    options = {"scaling": Scaling.measure(X, np.ones(60)), "device": CPU}
    copied = Engine(X, y, **options)
    monkeypatch.setattr(Engine, "most_copied", X.size - 1)
    monkeypatch.setattr(lazy, "_COPIED", 29)
    engine = Engine(X, y, **options)
    assert engine.uniform
    assert not engine.may_have_missing
    assert np.shares_memory(engine._lazy[:5], X)
    order = rng.permutation(60)
    curves, other = curved(copied, "power"), Scaling(np.zeros(3), np.full(3, 2.0))
    for index in (np.arange(60), order[:10], order[:9]):
        part, whole = engine.take(index), copied.take(index)
        assert (part._lazy is None) == (len(index) < 10)
        for mine, theirs in zip(part.chunks(16), whole.chunks(16), strict=True):
            np.testing.assert_array_equal(mine.x, theirs.x)
            np.testing.assert_array_equal(mine.y, theirs.y)
        np.testing.assert_array_equal(part.batch(slice(2, 5)).x, whole.batch(slice(2, 5)).x)
        moved, expected = part.under(curves), whole.under(curves)
        assert moved._lazy is None
        assert (part.under(other)._lazy is None) == (len(index) < 10)
        np.testing.assert_allclose(part.under(other).all_rows().x, whole.under(other).all_rows().x)
        lazily = part.lazily().under(curves)
        assert lazily._lazy is not None
        np.testing.assert_allclose(lazily.all_rows().x, expected.all_rows().x, 1e-12, 1e-12)
        np.testing.assert_allclose(moved.all_rows().x, expected.all_rows().x, 1e-12, 1e-12)
    monkeypatch.setattr(Engine, "most_numbers", 60)
    parts = [each.all_rows().x for each in engine.in_units(curves)]
    assert list(map(len, parts)) == [20, 20, 20]
    np.testing.assert_allclose(torch.cat(parts), copied.under(curves).all_rows().x, 1e-12, 1e-12)
    assert Engine(holes(X, rng), y, **options)._lazy is None
    assert Engine(X, y, scaling=curves, device=CPU)._lazy is None


def test_large_tables_in_single_precision_have_indicators(rng, monkeypatch):
    """Rows that stay where they are come as they were given."""
    X = rng.normal(size=(60, 3)).astype(np.float32)
    options = {"scaling": Scaling.measure(X, np.ones(60)), "device": CPU}
    copied = Engine(X, np.arange(60) % 2, **options)
    monkeypatch.setattr(Engine, "most_copied", 0)
    knots = curved(copied, "additive")
    found, expected = (each.under(knots).all_rows().x for each in (Engine(X, **options), copied))
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


def test_large_frames_of_sequences_are_copied(rng, monkeypatch):
    """Those of one are looked at together; in other units there are as many."""
    X, lengths = rng.normal(size=(20, 2)), np.array([4, 1, 9, 6])
    monkeypatch.setattr(table.Table, "most_copied", 0)
    engine = SequenceEngine(X, lengths, scaling=Scaling.identity(2), device=CPU)
    other = Scaling(np.zeros(2), np.full(2, 2.0))
    np.testing.assert_allclose(
        next(engine.under(other).chunks(99)).x, next(engine.chunks(99)).x / 2
    )


def test_complete_tables_have_no_mask(rng):
    """Nothing missing, nothing to carry."""
    engine = Engine(rng.normal(size=(5, 2)), scaling=Scaling.identity(2), device=CPU)
    assert engine.batch(slice(None)).observed is None
    assert not engine.may_have_missing


@pytest.mark.parametrize("mapped", [False, True], ids=["memory", "mapped"])
def test_casting(mapped, rng, memory_mapped):
    """Another floating type for rows and weights; the original stays."""
    X = rng.normal(size=(5, 2))
    source = memory_mapped(X) if mapped else X
    engine = Engine(source, scaling=Scaling.identity(2), device=CPU)
    single = engine.cast(torch.float32)
    assert single.batch(slice(None)).x.dtype == single.weight.dtype == torch.float32
    assert engine.batch(slice(None)).x.dtype == torch.float64
    assert engine.cast(torch.float64) is engine


def test_single_class(rng):
    """Labels become zero; the original stays."""
    y = rng.integers(3, size=20)
    engine = Engine(rng.normal(size=(20, 2)), y, scaling=Scaling.identity(2), device=CPU)
    assert not engine.single_class().y.any()
    np.testing.assert_array_equal(engine.y, y)


@pytest.mark.parametrize("mapped", [False, True])
def test_values_per_row(mapped, rng, memory_mapped, monkeypatch):
    """Entries that are there, in the weighted mean over rows; of sequences, in all their frames.

    Of rows that stay on disk, nothing is kept per row.
    """
    X, weight = holes(rng.normal(size=(300, 7)), rng, 0.6), rng.uniform(0.5, 2.0, 300)
    given = memory_mapped(X) if mapped else X
    engine = Engine(given, weight=weight, scaling=Scaling.identity(7), device=CPU)
    expected = np.average((~np.isnan(X)).sum(1), weights=weight)
    if mapped:
        monkeypatch.setattr(engine, "joined", None)
    np.testing.assert_allclose(engine.values_per_row, expected, 1e-12)
    lengths = np.array([100, 150, 50])
    whole = SequenceEngine(X, lengths, scaling=Scaling.identity(7), device=CPU)
    np.testing.assert_allclose(whole.values_per_row, (~np.isnan(X)).sum() / 3, 1e-12)


def test_some_sequences_look_at_the_frames_of_all(rng):
    """In any order, and some of some; nothing is copied until they are looked through."""
    X, lengths = holes(rng.normal(size=(20, 2)), rng, 0.3), np.array([4, 1, 9, 6])
    whole = SequenceEngine(X, lengths, scaling=Scaling.identity(2), device=CPU)
    part = whole.take(np.array([3, 1, 0])).take(np.array([2, 0]))
    assert part._x is whole._x
    expected = SequenceEngine(
        np.vstack([X[:4], X[14:]]), lengths[[0, 3]], scaling=Scaling.identity(2), device=CPU
    )
    found, wanted = next(part.chunks(99)), next(expected.chunks(99))
    np.testing.assert_array_equal(found.x, wanted.x)
    np.testing.assert_array_equal(found.frames.observed, wanted.frames.observed)
    np.testing.assert_array_equal(part.row_keys(), whole.row_keys()[[0, 3]])


def test_offsets_do_not_eat_the_digits(rng):
    """Float32 rows are centered in float64, and only then rounded."""
    X = (1e4 + rng.normal(size=(1000, 1))).astype(np.float32)
    scaling = Scaling.measure(X, np.ones(1000))
    engine = Engine(X, scaling=scaling, device=CPU, dtype=torch.float32)
    expected = (X.astype(float) - X.astype(float).mean()) / X.astype(float).std()
    np.testing.assert_allclose(engine.batch(slice(None)).x, expected, 1e-5, 1e-5)


def test_memory_maps_are_recognized(rng, memory_mapped):
    """Also behind views and plain array wrappers."""
    X = rng.normal(size=(5, 2))
    mapped = memory_mapped(X)
    assert is_memory_mapped(mapped)
    assert is_memory_mapped(np.asarray(mapped)[1:])
    assert not is_memory_mapped(X)
    assert not is_memory_mapped(np.array(mapped))


def test_taking_rows_of_a_batch(rng):
    """Every part follows, and another type keeps the mask."""
    X = holes(rng.normal(size=(10, 2)), rng, 0.5)
    batch = Engine(X, scaling=Scaling.identity(2), device=CPU).batch(slice(None))
    part = batch.take(slice(2, 5))
    assert len(part) == 3
    assert torch.equal(part.observed, batch.observed[2:5])
    assert part.to(torch.float32).x.dtype == torch.float32


# -- labels ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "unlabeled", "expected"),
    [
        (np.array([0, -1, 1]), -1, [True, False, True]),
        (np.array([0, -1, 1]), None, [True, True, True]),
        (np.array(["a", "-1", "b"]), -1, [True, True, True]),
        (np.array(["a", "?", "b"]), "?", [True, False, True]),
        (np.array(["a", None, -1], dtype=object), -1, [True, False, False]),
        (np.array([1.0, np.nan, 2.0], dtype=object), -1, [True, False, True]),
        (np.array([0, 1, 2]), "?", [True, True, True]),
        (np.array([True, False]), -1, [True, True]),
        (np.array([0, -1, 1]), "auto", [True, False, True]),
        (np.array([0.0, -1.0, 1.0, np.nan]), "auto", [True, False, True, False]),
        (np.array([0, -1, 0]), "auto", [True, True, True]),
        (np.array([-1.0, 1.0, np.nan]), "auto", [True, True, False]),
        (np.array([-1, -1]), "auto", [True, True]),
        (np.array([200, 255, 0], dtype=np.uint8), "auto", [True, True, True]),
        (np.array(["-1", "a", "b"]), "auto", [True, True, True]),
        (np.array(["a", "b", -1, None], dtype=object), "auto", [True, True, False, False]),
        (np.array(["a", "auto", "b"]), "auto", [True, True, True]),
        (np.array([1.0, np.nan]), None, [True, False]),
        (np.array(["a", None, np.nan], dtype=object), None, [True, False, False]),
        (np.array(["?", "b", np.nan], dtype=object), "?", [False, True, False]),
    ],
)
def test_labeled_mask(y, unlabeled, expected):
    """None, NaN and the marker; -1 beside two others, where the marker is left open."""
    assert labeled_mask(y, unlabeled).tolist() == expected


@pytest.mark.parametrize(
    ("y", "classes", "expected"),
    [
        ([-1, 0, 1], [-1, 0, 1], [0, 1, 2]),
        ([-1, 0, 1], [0, 1], [-1, 0, 1]),
        ([-1, 1], [-1, 1], [0, 1]),
        ([-1, 0], [0, 1], [-1, 0]),
        ([-1.0, np.nan], [-1.0, 1.0], [0, -1]),
    ],
)
def test_known_classes_decide(y, classes, expected):
    """-1 is a label if it is a class, whatever else y happens to hold."""
    assert encode_labels(np.array(y), np.array(classes), "auto").tolist() == expected


@pytest.mark.parametrize("nothing", [None, np.nan])
def test_what_stands_beside_text_does_not_become_text(nothing):
    """In lists as in arrays."""
    for labels in (["a", nothing, -1], ("a", nothing, -1)):
        read = read_labels(labels)
        assert read.dtype == object
        assert read[0] == "a"
        assert read[1] is nothing
        assert read[2] == -1
    assert read_labels(["a", "b"]).dtype.kind == "U"


@pytest.mark.parametrize(
    ("classes", "y"),
    [
        (np.array([2, 5, 9]), np.array([9, 2, -1, 5])),
        (np.array(["a", "bb"]), np.array(["bb", None, "a"], dtype=object)),
        (np.array(["a", "bb"]), np.array(["bb", "a"])),
        (np.array(["a", 3.5], dtype=object)[:1], np.array(["a"], dtype=object)),
    ],
)
def test_labels_become_indices(classes, y):
    """In the order of the classes, -1 without a label."""
    codes = encode_labels(y, classes, -1)
    marked = [v is None or v == -1 for v in y.tolist()]
    assert codes[marked].tolist() == [-1] * sum(marked)
    known = np.flatnonzero(~np.array(marked))
    assert [classes[codes[i]] for i in known] == [y[i] for i in known]


@pytest.mark.parametrize(
    ("classes", "y"),
    [
        (np.array([2, 5]), np.array([3])),
        (np.array([2, 5]), np.array([7])),
        (np.array([0, 1]), np.array([0.5])),
        (np.array([0, 1]), np.array([0.5], dtype=object)),
        (np.array([0, 1]), np.array(["0"])),
        (np.array([0, 1]), np.array(["x"], dtype=object)),
        (np.array(["a", "b"]), np.array([0])),
        (np.array(["a", "b"]), np.array(["c"])),
        (np.array(["a", "b"]), np.array(["ab"])),
        (np.array(["a", "b"]), np.array(["ab"], dtype=object)),
    ],
    ids=str,
)
def test_unknown_labels_are_named(classes, y):
    """A label that is not among the classes is an error, never a neighbor or a prefix."""
    with pytest.raises(InvalidInputError, match="not among the classes"):
        encode_labels(y, classes, -1)


# -- devices -----------------------------------------------------------------------------------


def test_devices():
    """'auto' keeps small tables on the CPU; what cannot be used is refused with a way out."""
    assert resolve_device("auto", 10) == CPU
    assert resolve_device("cpu", 10**9) == CPU
    assert resolve_device(torch.device("cpu"), 10) == CPU
    with pytest.raises(InvalidInputError, match="use device='cpu'"):
        resolve_device("abacus", 10)
