"""Sums over chunks are sums over rows."""

import tracemalloc

import numpy as np
import pytest
import torch

from mixtura import MixtureClassifier
from mixtura.data import lazy
from mixtura.data.scaling import Scaling
from mixtura.engines import Engine, base, sequences, table
from mixtura.testing import STRUCTURES, make_density, make_engine, make_mixture


@pytest.fixture
def tiny_chunks(monkeypatch):
    """Chunks of seven rows."""
    monkeypatch.setattr(Engine, "most_rows", {"cpu": 7, "cuda": 7})


@pytest.fixture
def problem(generator):
    """A mixture and rows of it, some entries missing."""
    mixture = make_mixture(make_density("full", "covariance", generator), [2, 1], generator)
    return mixture, make_engine(mixture, 50, generator, holes=True)


def test_sums_do_not_depend_on_chunks(problem, tiny_chunks):
    """The sum over chunks of seven equals the sum over all rows."""
    mixture, engine = problem
    share = torch.linspace(-1.0, 1.0, 3, dtype=torch.float64)

    def statistics(batch):
        return mixture.density.statistics(batch, batch.weight[:, None] * share)

    expected = statistics(engine.all_rows())
    for name, value in engine.sum(statistics, mixture.density).items():
        np.testing.assert_allclose(value, expected[name], 1e-9, 1e-9)


def test_concat_keeps_the_order(problem, tiny_chunks):
    """Results of chunks come one after another."""
    mixture, engine = problem
    joined = engine.concat(lambda batch: batch.weight, mixture.density)
    assert torch.equal(joined, engine.weight)


@pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)
def test_memory_of_a_chunk_is_bounded(structure, generator):
    """Many features and components make chunks short, but never empty."""
    small = make_density(*structure, generator, n_features=3)
    large = make_density(*structure, generator, n_components=10, n_features=40, rank=20)
    X = np.full((3, 40), np.nan)
    holey = Engine(X, scaling=Scaling.identity(40), device=torch.device("cpu"))
    rows = [holey.chunk_rows(density) for density in (small, large)]
    assert 1 <= rows[1] <= rows[0]
    assert rows[1] * large.row_cost(True) <= base._CHUNK_NUMBERS["cpu"]


def test_minibatches_are_a_permutation(problem, generator):
    """Every row once, in random order."""
    _, engine = problem
    parts = list(engine.minibatch_indices(8, generator))
    assert [len(part) for part in parts] == [8] * 6 + [2]
    order = torch.cat(parts)
    assert not torch.equal(order, torch.arange(50))
    assert torch.equal(order.sort().values, torch.arange(50))


def test_subsamples(problem, generator):
    """At most so many distinct rows, with their own labels and weights."""
    _, engine = problem
    assert engine.subsample(50, generator) is engine
    part = engine.subsample(20, generator)
    places = [int((engine.weight == w).nonzero()) for w in part.weight]
    assert len(set(places)) == 20
    assert torch.equal(part.y, engine.y[places])
    assert torch.equal(part.all_rows().x, engine.all_rows().x[places])


def test_total_weight(problem):
    """What means are taken over."""
    _, engine = problem
    assert engine.total_weight == pytest.approx(float(engine.weight.sum()))
    assert len(engine) == 50


def test_a_rare_class_is_not_lost_among_very_many_rows(monkeypatch):
    """Of more rows than are searched for copies a sample is merged: every class has its share."""
    monkeypatch.setattr(base, "_SEARCHED", 100)
    y = np.repeat([0, 1], [2_000, 3])
    scaling = Scaling.identity(1)
    engine = Engine(np.arange(2_003.0)[:, None], y, scaling=scaling, device=torch.device("cpu"))
    merged = engine.merged()
    assert torch.bincount(merged.y).tolist() == [100, 2]
    assert engine.merged(50).y.unique().tolist() == [0, 1]


@pytest.mark.parametrize("targets", [False, True], ids=["classes", "targets"])
def test_samples_of_very_many_rows_take_no_order_of_them(targets, monkeypatch, generator):
    """Every class has its share, no row comes twice, and all are as likely as others."""
    monkeypatch.setattr(base, "_MANY", 100)
    monkeypatch.setattr(base, "_AT_ONCE", 64)
    y = np.random.default_rng(0).permutation(np.repeat([-1, 0, 1, 2], [200, 700, 99, 1]))
    given = np.where(y < 0, np.nan, y) if targets else y.astype(np.int8)
    X, drawn = np.arange(1_000.0)[:, None], np.zeros(1_000)
    engine = Engine(X, given, scaling=Scaling.identity(1), device=torch.device("cpu"))
    shares = [40, 40] if targets else [40, 35, 5, 1]
    kind = np.minimum(y, 0) if targets else y
    for _ in range(200):
        place = engine.sample(40, generator).all_rows().x.flatten().long().numpy()
        assert np.bincount(kind[place] + 1).tolist() == shares
        assert (np.diff(place) > 0).all()
        drawn[place] += 1
    for label, share in enumerate(shares, -1):
        chances = drawn[kind == label] / 200
        expected = share / len(chances)
        deviation = np.sqrt(expected * (1.0 - expected) / 200)
        assert abs(chances - expected).max() <= 5 * deviation
    place = engine.subsample(100, generator).all_rows().x.flatten()
    assert len(place.unique()) == 100
    assert np.array_equal(base._places(engine.labeled), np.flatnonzero(y >= 0))


def test_a_share_of_very_many_rows_is_held_out_without_an_order_of_them(monkeypatch, generator):
    """Of every class its share, rounded down, all rows as likely; the others are trained on."""
    monkeypatch.setattr(base, "_MANY", 100)
    monkeypatch.setattr(table, "_AT_ONCE", 64)
    y = np.random.default_rng(0).permutation(np.repeat([-1, 0, 1, 2], [200, 700, 97, 3]))
    X, drawn = np.arange(1_000.0)[:, None], np.zeros(1_000)
    units = {"scaling": Scaling.identity(1), "device": torch.device("cpu")}
    engine = Engine(X, y.astype(np.int8), **units)
    for _ in range(200):
        parts = engine.hold_out(0.3, generator)
        shown, held = (part.all_rows().x.flatten().long().numpy() for part in parts)
        assert np.array_equal(np.sort(np.append(shown, held)), np.arange(1_000))
        assert np.bincount(y[held] + 1).tolist() == [0, 210, 29]
        drawn[held] += 1
    for label, share in ((0, 0.3), (1, 29 / 97)):
        assert abs(drawn[y == label] / 200 - share).max() <= 5 * np.sqrt(0.3 * 0.7 / 200)
    whole, nobody = engine.take(np.flatnonzero((y < 0) | (y == 2))).hold_out(0.3, generator)
    assert nobody is None
    assert len(whole) == 203


@pytest.mark.parametrize("marks", [8, 64])
def test_places_by_marks_are_those_of_the_mask(marks, rng, monkeypatch):
    """Slices, places in any order, and counts, as NumPy has them; few bytes of very many rows."""
    monkeypatch.setattr(lazy, "_MARKS", marks)
    for share, n in ((0.0, 9), (0.3, 1), (0.3, 64), (0.5, 200), (1.0, 100)):
        mask = rng.random(n) < share
        marked, places, ends = lazy.Marked(mask), np.flatnonzero(mask), [0, n // 2, n]
        for at in (
            slice(None),
            slice(3, 9),
            slice(9, 3),
            slice(1, None, 3),
            slice(None, None, -1),
            slice(7, 2, -2),
            rng.integers(len(places) or 1, size=20),
        ):
            at = at if len(places) or isinstance(at, slice) else at[:0]
            np.testing.assert_array_equal(marked[at], places[at])
        np.testing.assert_array_equal(np.searchsorted(marked, ends), np.searchsorted(places, ends))


def test_classes_of_very_many_rows_that_stay_where_they_are(rng, monkeypatch):
    """A view of one class has its rows, a part of it those of the part; one weight is for all."""
    monkeypatch.setattr(base, "_MANY", 0)
    monkeypatch.setattr(lazy, "_FEW", 0)
    X, y = rng.normal(size=(1_000, 3)), rng.integers(3, size=1_000).astype(np.int8)
    rows = Engine(
        lazy.MappedRows(X), y, y + 1.0, scaling=Scaling.identity(3), device=torch.device("cpu")
    )
    plain = Engine(lazy.MappedRows(X), scaling=Scaling.identity(3), device=torch.device("cpu"))
    single = plain.cast(torch.float32)
    assert single.weight.stride() == (0,)
    assert set(single.batch(slice(5)).weight.tolist()) == {1.0}
    mine = rows.labeled_as(1)
    half = mine.only(torch.arange(len(mine)) % 2 == 0)
    for part, at in ((mine, slice(None)), (half, slice(None, None, 2))):
        whole = part.all_rows()
        np.testing.assert_array_equal(whole.x, X[y == 1][at])
        assert set(whole.y.tolist()) == {1}
        assert set(whole.weight.tolist()) == {2.0}


@pytest.mark.parametrize(
    ("weight", "parts"),
    [
        ([2, 3, 9, 5], [2, 3, 4, 1]),  # the last one alone is of its class
        ([0.5, 1.0, 1.5, 0.7], [1, 2, 3, 1]),
        ([0.5, 1.0, 1.7, 0.7], [1, 1, 1, 1]),  # importance, not repetitions
        ([5, 5, 10, 5], [1, 1, 2, 1]),
        ([1, 1, 2**30, 5], [1, 1, 4, 1]),
        ([0.5, 1.0, 1e30, 1e-30], [1, 1, 1, 1]),  # too large for whole numbers
        ([1e-7, 0.7071067811865476, 0.31830988618379067, 5], [1, 1, 1, 1]),
    ],
)
def test_rows_that_stand_for_several_come_in_parts(weight, parts):
    """Where other classes have them, so that folds can share them; nothing is added or lost."""
    for first, shared in ((0, True), (10, False)):
        others = np.arange(first, first + 30)
        engine = Engine(
            np.append(np.arange(4.0), others)[:, None],
            np.append([0, 0, 0, 1], np.full(30, 2)),
            np.append(weight, np.ones(30)),
            scaling=Scaling.identity(1),
            device=torch.device("cpu"),
        )
        split = engine.in_parts(4)
        mine = split.y < 2
        place = split.all_rows().x[mine, 0].long()
        assert torch.bincount(place).tolist() == (parts if shared else [1, 1, 1, 1])
        np.testing.assert_allclose(torch.bincount(place, split.weight[mine]), weight)


def test_whole_weights_do_not_show_held_out_rows(rng):
    """Rows that no other class has are held out as one, whatever their weights."""
    X, y = rng.normal(size=(300, 4)), rng.integers(2, size=300)
    weight = rng.integers(1, 10, size=300).astype(float)
    model = MixtureClassifier(random_state=0).fit(X[:200], y[:200], sample_weight=weight[:200])
    assert model.predict_proba(X[200:]).max(1).mean() < 0.7


def test_copies_of_sequences_are_searched_for_some_frames_at_a_time(rng, monkeypatch):
    """Keys are the same however many are looked at together, and take less room than the frames."""
    frames, lengths = rng.normal(size=(100_000, 10)), np.full(1_000, 100)
    frames[300:400] = frames[:100]
    frames[250, 3] = np.nan
    engine = sequences.SequenceEngine(
        frames, lengths, scaling=Scaling.identity(10), device=torch.device("cpu")
    )
    tracemalloc.start()
    keys = engine.row_keys()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * frames.nbytes
    assert keys[0] == keys[3]
    assert len(np.unique(keys)) == 999
    monkeypatch.setattr(sequences, "_SCAN_FRAMES", 7_919)
    np.testing.assert_array_equal(engine.row_keys(), keys)
