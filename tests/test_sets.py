"""Prediction sets, and rows that are rejected."""

import numpy as np
import pytest
from scipy.special import softmax

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    SequenceMixtureClassifier,
    load,
    runtime,
)
from mixtura.conformal import HeldBack, conformal_sets
from mixtura.data.matrix import Matrix
from mixtura.exceptions import InvalidInputError, UnsupportedError

PLAIN = {"density": "full", "objective": "likelihood", "random_state": 0}
CENTERS = np.array([[0.0, 0, 0, 0], [1.5, 1.5, 0, 0], [0, 1.5, 1.5, 1.5]])


def draw(n_rows, seed, share=0.0):
    """Three classes that overlap, and holes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n_rows)
    X = rng.normal(CENTERS[y])
    return np.where(rng.random(X.shape) < share, np.nan, X), y


@pytest.fixture(scope="module")
def by_margin():
    """Trained to discriminate: what it says of rows of training is too good."""
    return MixtureClassifier(2, density="full", random_state=0).fit(*draw(400, 0))


def covered(model, share, coverage=0.9, seed=1):
    X, y = draw(1_500, seed, share)
    found = model.predict_set(X, coverage)
    return found[np.arange(len(y)), y].mean()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_sets_cover_whatever_is_missing(by_margin, share):
    """Standard deviation over 400 held-back rows: 0.015, and 0.008 over 1,500 new ones."""
    assert 0.87 <= covered(by_margin, share) <= 0.94
    assert 0.75 <= covered(by_margin, share, 0.8) <= 0.88 + 0.04 * (share > 0.5)


def test_averages_of_models_cover(tmp_path):
    """Models of each fold stand in for all that are averaged."""
    model = MixtureClassifier(1, random_state=0).fit(*draw(150, 0))
    held_back = model.model_.held_back
    assert {len(fold) for fold in held_back.models} == {1 + len(model.model_.blend.members)}
    assert 0.85 <= covered(model, 0.3) <= 0.96
    model.save(tmp_path / "model")
    X, _ = draw(20, 4, 0.3)
    again = load(tmp_path / "model").predict_set(X)
    np.testing.assert_array_equal(again, model.predict_set(X))


@pytest.mark.parametrize("seed", range(4))
def test_a_row_of_which_nothing_is_known_may_be_of_any_class(seed, tmp_path):
    """Three classes, a third of the rows each: no two of them cover nine in ten."""
    X, _ = draw(150, seed)
    y = np.arange(150) % 3
    model = MixtureClassifier(1, density="full", random_state=0).fit(X + CENTERS[y], y)
    unknown = np.full((1, 4), np.nan)
    assert model.predict_set(unknown, 0.9).all()
    model.save(tmp_path / "model")
    assert runtime.load(tmp_path / "model").predict_set(unknown, 0.9).all()


def test_sets_of_generative_models_cover_too():
    """Few rows and many parameters: rows of training are not what new ones are like."""
    shown = [MixtureClassifier(1, **PLAIN).fit(*draw(60, seed)) for seed in range(8)]
    assert 0.86 <= np.mean([covered(model, 0.3) for model in shown]) <= 0.94


def test_sets_grow_with_coverage_and_with_what_is_missing(by_margin):
    X, _ = draw(200, 2)
    small, large = by_margin.predict_set(X, 0.6), by_margin.predict_set(X, 0.95)
    assert (large >= small).all()
    X[:, 1:] = np.nan
    assert by_margin.predict_set(X).sum() > by_margin.predict_set(draw(200, 2)[0]).sum()
    assert by_margin.predict_set(X, 1.0).all()
    assert not by_margin.predict_set(X, 0.0).any()
    assert by_margin.predict_set(X, 0.9).dtype == bool


def test_rows_of_ones_own_are_gone_by():
    """The definition: at most a share of held-back rows gave their class so low a probability."""
    X, y = draw(300, 0)
    model = MixtureClassifier(1, **PLAIN).fit(X[:100], y[:100])
    new, _ = draw(20, 3)
    found = model.predict_set(new, 0.8, calibration=(X[100:], y[100:]))
    own = model.predict_proba(X[100:])[np.arange(200), y[100:]]
    as_low = (own[:, None, None] <= model.predict_proba(new)).sum(0)
    np.testing.assert_array_equal(found, (1 + as_low) / 201 > 1 - 0.8)
    new[:, 0] = X[:, 0] = np.nan
    found = model.predict_set(new, 0.8, calibration=(X[100:], y[100:]))
    own = model.predict_proba(X[100:])[np.arange(200), y[100:]]
    as_low = (own[:, None, None] <= model.predict_proba(new)).sum(0)
    np.testing.assert_array_equal(found, (1 + as_low) / 201 > 1 - 0.8)


def test_held_back_rows_were_not_seen(by_margin):
    """Each stands in one fold, in the units of the user, and its model is not the final one."""
    held, (X, y) = by_margin.model_.held_back, draw(400, 0)
    place = np.abs(held.values[:, None] - X).sum(2).argmin(1)
    np.testing.assert_allclose(held.values, X[place], atol=1e-9)
    np.testing.assert_array_equal(held.y, y[place])
    assert set(held.fold) == set(range(len(held.models)))
    assert len(held.models) > 1


def test_only_held_back_rows_that_have_what_a_row_has_are_asked(rng):
    """They are counted, and sets are those of a loop over rows; all are, where these are few."""
    values, y, asked = rng.normal(size=(300, 3)), rng.integers(3, size=300), []
    values[::2, 0], values[50:, 1] = np.nan, np.nan
    X = np.where(rng.random((20, 3)) < 0.3, np.nan, rng.normal(size=(20, 3)))
    X[0], X[1] = 1.0, np.nan

    def proba(_, rows):
        asked.append(len(rows))
        return softmax(np.nan_to_num(rows.values), axis=1)

    found = conformal_sets(None, Matrix(X), HeldBack.unseen(values, y), proba, 0.8)
    patterns = np.unique(~np.isnan(X), axis=0)
    half = patterns[:, 0] & ~patterns[:, 1]
    assert sum(asked) == len(X) + 300 * len(patterns) - 150 * half.sum()
    for row, own in zip(X, found, strict=True):
        like = ~np.isnan(values[:, ~np.isnan(row)]).any(1)
        like |= like.sum() < 100
        masked = np.where(np.isnan(row), 0.0, np.nan_to_num(values[like]))
        scores = softmax(masked, axis=1)[np.arange(like.sum()), y[like]]
        below = (scores <= softmax(np.nan_to_num(row))[:, None]).sum(1)
        np.testing.assert_array_equal(own, (1 + below) / (1 + like.sum()) > 0.2)


@pytest.mark.parametrize("generative", [False, True])
def test_sets_are_stored(by_margin, generative, tmp_path):
    model = MixtureClassifier(1, **PLAIN).fit(*draw(60, 0)) if generative else by_margin
    model.save(tmp_path / "model")
    X, _ = draw(20, 4, 0.3)
    again = load(tmp_path / "model").predict_set(X)
    np.testing.assert_array_equal(again, model.predict_set(X))


def test_what_cannot_be_told_is_refused(by_margin):
    X, y = draw(30, 0)
    for share in (-0.1, 1.1, np.nan, "half", None):
        with pytest.raises(InvalidInputError, match="coverage must lie between 0 and 1"):
            by_margin.predict_set(X, share)
        with pytest.raises(InvalidInputError, match="share must lie between 0 and 1"):
            by_margin.is_outlier(X, share)
    other = BoostedMixtureClassifier(1, n_stages=1, random_state=0).fit(X, y)
    with pytest.raises(UnsupportedError, match="calibration"):
        other.predict_set(X)
    assert other.predict_set(X, calibration=(X, y)).shape == (30, 3)
    with pytest.raises(InvalidInputError, match="needs labels"):
        other.predict_set(X, calibration=(X, None))


def test_one_class_is_in_every_set():
    X, _ = draw(30, 0)
    model = MixtureClassifier(1, **PLAIN).fit(X, np.zeros(30))
    assert model.predict_set(X).all()


def test_what_was_never_seen_is_rejected(by_margin):
    X, _ = draw(300, 5)
    X[:3] += 100.0
    found = by_margin.predict(X, reject=0.01, unknown=-1)
    assert found.dtype == by_margin.classes_.dtype
    assert (found[:3] == -1).all()
    assert (found == -1).mean() < 0.06
    kept = found != -1
    np.testing.assert_array_equal(found[kept], by_margin.predict(X)[kept])
    assert by_margin.predict(X, reject=0.01, unknown="new")[0] == "new"
    assert by_margin.predict(X, reject=0.01)[0] is None


def test_sequences_are_rejected_too(rng):
    X = [rng.normal(size=(6, 2)) + 3 * (i % 2) for i in range(30)]
    model = SequenceMixtureClassifier(n_states=1, method="ml", random_state=0)
    model.fit(X, np.arange(30) % 2)
    assert model.predict([X[0] + 50.0], reject=0.01, unknown=9)[0] == 9
    with pytest.raises(UnsupportedError, match="sequences"):
        model.predict_set(X)
