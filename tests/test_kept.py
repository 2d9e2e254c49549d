"""Values of very many rows, in a file that is mapped."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from mixtura import MixtureClassifier
from mixtura.data import kept, lazy
from mixtura.data.lazy import is_memory_mapped
from mixtura.data.scaling import Scaling
from mixtura.engines import Engine, base, table
from mixtura.training.groups import Folds

pytestmark = pytest.mark.filterwarnings("ignore:.*stopped")


@pytest.fixture
def few(monkeypatch):
    """Files begin after 100 values."""
    monkeypatch.setattr(kept, "_MANY", 100)


@pytest.fixture
def seen(monkeypatch):
    """Whether values that were kept are mapped, each time that all are asked for."""
    noted, whole = [], kept.Kept.whole

    def noting(self):
        found = whole(self)
        noted.append(is_memory_mapped(found))
        return found

    monkeypatch.setattr(kept.Kept, "whole", noting)
    return noted


@pytest.mark.parametrize("most", [10, 100, 10**6])
@pytest.mark.parametrize("dtypes", [["u1"], ["u1", "u2", "u1", "i4"], ["f4", "f8"], ["i1", "u1"]])
def test_values_come_back_as_numpy_joins_them(dtypes, most, rng, monkeypatch):
    monkeypatch.setattr(kept, "_MANY", most)
    parts = [rng.integers(100, size=60).astype(dtype) for dtype in dtypes for _ in range(2)]
    values = kept.Kept()
    for part in parts:
        values.add(part)
    found = values.whole()
    assert found.dtype == np.concatenate(parts).dtype
    np.testing.assert_array_equal(found, np.concatenate(parts))
    assert is_memory_mapped(found) == (len(dtypes) == 1 and most <= 100)
    assert len(kept.Kept().whole()) == 0


def test_labels_of_very_many_rows_are_mapped(few, seen, files, monkeypatch):
    """And give the model that those in memory give."""
    settings = {"density": "diag", "objective": "likelihood", "random_state": 0}
    mapped = MixtureClassifier(1, **settings).fit(files / "*.parquet", "label", "weight")
    assert seen == [True] * 3
    monkeypatch.setattr(kept, "_MANY", 10**6)
    inside = MixtureClassifier(1, **settings).fit(files / "*.parquet", "label", "weight")
    assert seen == [True] * 3 + [False] * 3
    np.testing.assert_array_equal(mapped.means_, inside.means_)
    np.testing.assert_array_equal(mapped.class_count_, inside.class_count_)


def test_what_follows_from_labels_of_very_many_rows_is_mapped_too(few, seen, rng, monkeypatch):
    """Which rows are of a class, or have a label, and the labels and weights of such rows."""
    monkeypatch.setattr(table, "_AT_ONCE", 64)
    monkeypatch.setattr(base, "_MANY", 100)
    monkeypatch.setattr(lazy, "_FEW", 0)
    X, y = rng.normal(size=(1_000, 2)), rng.integers(-1, 2, size=1_000).astype(np.int8)
    units = {"scaling": Scaling.identity(2), "device": torch.device("cpu")}
    rows = Engine(lazy.MappedRows(X), y, 2.0 + y, **units)
    known, ones = rows.only(rows.labeled), rows.labeled_as(1)
    among = rows.labeled_among(torch.tensor([True, False]))  # without a label is the last one
    kind, label, _ = Folds.none(rows).kinds(rows.y, 2)
    assert seen == [True] * 10
    for part, mask in ((known, y >= 0), (ones, y == 1), (among, y == 0)):
        np.testing.assert_array_equal(part.y, y[mask])
        np.testing.assert_array_equal(part.weight, 2.0 + y[mask])
        np.testing.assert_array_equal(part.all_rows().x, X[mask])
    np.testing.assert_array_equal(label[kind.long()], y)


@pytest.mark.parametrize("place", ["/dev/full", "/nowhere/at/all"])
def test_a_full_or_absent_folder_is_told(place, few, files, monkeypatch):
    """Not by a signal that ends the process, as writing to a mapped file would be."""
    monkeypatch.setattr(kept, "TemporaryFile", partial(Path(place).open, "wb+"))
    with pytest.raises(OSError, match=r"none can be written .*: make room .*TMPDIR"):
        MixtureClassifier(1).fit(files / "*.parquet", "label")


def test_the_folder_goes_by_the_environment(few, tmp_path, monkeypatch):
    """Nothing stays there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    values = kept.Kept()
    values.add(np.zeros(200))
    assert is_memory_mapped(values.whole())
    assert not list(tmp_path.iterdir())
