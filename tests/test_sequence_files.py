"""Sequences in Parquet files, whose frames stay on disk."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import mixtura
from mixtura import SequenceDensity, SequenceMixtureClassifier
from mixtura.data.lazy import is_memory_mapped
from mixtura.datasets import make_hmm_sequences
from mixtura.distributed import Shard
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.sequences import Layout

pd = pytest.importorskip("pandas")
Source = pytest.importorskip("mixtura.parquet").Source


@pytest.fixture(scope="module")
def data():
    """Sequences of two channels with holes, one row per frame, in no order of time."""
    made, rng = make_hmm_sequences(30, random_state=0), np.random.default_rng(0)
    lengths = [len(frames) for frames in made.data]
    frames = pd.DataFrame(np.concatenate(made.data), columns=["x", "y"])
    frames.loc[rng.random(len(frames)) < 0.1, "y"] = np.nan
    number = np.repeat(np.arange(len(lengths)), lengths)
    frames.insert(0, "id", [f"s{each:02}" for each in number])
    frames["at"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(len(frames)), "s")
    frames["label"] = np.where(made.target[number] == 1, "walk", "run")
    frames["heavy"] = 1.0 + number % 2
    order = np.lexsort((rng.random(len(frames)), number))
    return frames.iloc[order].reset_index(drop=True)


@pytest.fixture
def path(data, tmp_path):
    """Row groups end within sequences."""
    half = len(data) // 2 + 3
    data[:half].to_parquet(tmp_path / "a.parquet", row_group_size=37)
    data[half:].to_parquet(tmp_path / "b.parquet", row_group_size=1000)
    return str(tmp_path / "*.parquet")


def quick(**options):
    return SequenceMixtureClassifier(2, layout=Layout(time_column="at"), random_state=0, **options)


@pytest.mark.parametrize("options", [{}, {"method": "ml"}])
def test_files_are_the_frames_in_memory(options, data, path, tmp_path):
    table, labels = data[["id", "at", "x", "y"]], data.groupby("id").label.first()
    weight = data.groupby("id").heavy.first()
    inside = quick(**options).fit(table, labels, sample_weight=weight)
    outside = quick(**options).fit(path, "label", sample_weight="heavy")
    assert outside.feature_names_in_.tolist() == ["x", "y"]
    expected = inside.predict_proba(table)
    assert_allclose(outside.predict_proba(table), expected, atol=1e-9)
    outside.save(tmp_path / "model")
    assert_allclose(mixtura.load(tmp_path / "model").predict_proba(path), expected, atol=1e-9)
    assert_array_equal(inside.model_.limits, outside.model_.limits)


def test_frames_stay_in_a_file(path):
    rows = quick()._opened(path, "label")[0]
    assert is_memory_mapped(rows.frames)
    assert rows.ids[:2].tolist() == ["s00", "s01"]


def test_densities_and_chunks(data, path):
    table = data[["id", "at", "x", "y"]]
    density = SequenceDensity(2, n_states=2, layout=Layout(time_column="at"), random_state=0)
    names = ["id", "at", "x", "y"]
    expected = density.fit(table).score_samples(table)
    found = density.fit(Source(path, columns=names)).score_samples(path)
    assert_allclose(found, expected, atol=1e-9)
    chunks = [table[:50], table[50:]]
    assert_allclose(density.score_samples(Source(chunks)), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frames: frames.sample(frac=1, random_state=0), "do not stand together"),
        (lambda frames: frames.assign(label=np.arange(len(frames))), "differ in 'label'"),
        (lambda frames: frames.assign(x="word"), "hold words"),
        (lambda frames: frames.assign(x=np.inf), "'s00' contains infinity"),
        (lambda frames: frames.drop(columns="at"), "no column 'at'"),
        (lambda frames: frames.assign(id=None), "missing values"),
        (lambda frames: frames[["id", "at", "label"]], "no channels"),
        (lambda frames: frames[:0], "no rows"),
    ],
)
def test_what_cannot_be_read_is_refused(change, message, data, tmp_path):
    change(data).to_parquet(tmp_path / "one.parquet")
    with pytest.raises(InvalidInputError, match=message):
        quick().fit(str(tmp_path / "one.parquet"), "label")


def test_shards_are_refused(path):
    with pytest.raises(UnsupportedError, match="one process"):
        quick().fit(Shard(Source(path)), "label")
