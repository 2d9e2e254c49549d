"""Channels of sequences that are stuck at one value, and spikes."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.signal import find_peaks

import mixtura
from mixtura import SequenceDensity, SequenceMixtureClassifier
from mixtura.data.failures import _stretches, limits_of, stuck
from mixtura.data.sequence_input import read_sequences
from mixtura.exceptions import DegenerateDataWarning


def waves(rng, n=36):
    """Two channels, and a third that is often constant; three classes."""
    X, y = [], np.arange(n) % 3
    for label in y:
        t = np.arange(rng.integers(20, 30)) / 4.0
        both = np.sin(np.outer(t, [1.0 + label, 2.0 - label])) + 0.3 * rng.normal(size=(len(t), 2))
        X.append(np.column_stack([both, np.full(len(t), float(rng.integers(2)))]))
    return X, y


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return *waves(rng), *waves(rng)


@pytest.fixture(scope="module")
def model(data):
    return SequenceMixtureClassifier(random_state=0).fit(*data[:2])


def counted(frames, channels):
    """Frames of each frame's stretch, and of all, by plain loops."""
    held, total = np.zeros(len(frames), int), np.ones(len(frames), int)
    groups, last = [], {}
    for t, frame in enumerate(frames):
        new = {at: frame[at] for at in channels if not np.isnan(frame[at])}
        if not new:
            continue
        if any(last.get(at) != value for at, value in new.items()):
            groups.append([])
        groups[-1].append(t)
        last |= new
    for group in groups:
        held[group], total[group] = len(group), sum(map(len, groups))
    return held, total


def test_stretches_are_those_of_plain_loops(rng):
    X = [np.round(rng.normal(size=(length, 3))) for length in (5, 9, 1, 40)]
    X = [np.where(rng.random(frames.shape) < 0.3, np.nan, frames) for frames in X]
    X[2][:] = np.nan
    found = [*_stretches(read_sequences(X))]
    for each, channels in zip(found, ([0], [1], [2], [0, 1, 2]), strict=True):
        expected = zip(*(counted(frames, channels) for frames in X), strict=True)
        for mine, theirs in zip(each, expected, strict=True):
            assert_array_equal(mine, np.concatenate(theirs))


@pytest.mark.filterwarnings("ignore:some peaks have a prominence of 0")
def test_limits_are_those_of_training(rng):
    """Heights of spikes are prominences by SciPy; one value for 4 of 10 frames is the most."""
    X = [rng.normal(size=(length, 1)) for length in (10, 30)]
    X[0][3:7] = X[0][3]
    signs = [sign * frames[:, 0] for frames in X for sign in (1, -1)]
    peaks = [find_peaks(values, prominence=1e-6, wlen=3)[1]["prominences"] for values in signs]
    expected = [[0.7] * 2, [4] * 2, [2 * np.concatenate(peaks).max(), np.inf]]
    assert_allclose(limits_of(read_sequences(X), np.array([0.1])), expected)


@pytest.mark.parametrize("options", [{}, {"n_states": 2, "method": "ml", "multiclass": "pairwise"}])
def test_dead_channels_count_as_lost(options, data, tmp_path):
    X, y, test, _ = data
    model = SequenceMixtureClassifier(random_state=0, **options).fit(X, y)
    dead, lacking = ([frames.copy() for frames in test[:4]] for _ in range(2))
    dead[1][:, 1], lacking[1][:, 1] = 0.1, np.nan
    dead[2][6:], lacking[2][6:] = dead[2][6], np.nan
    model.save(tmp_path / "model")
    for each in (model, mixtura.load(tmp_path / "model")):
        with pytest.warns(
            DegenerateDataWarning, match="2 sequence.*: 0.1 in frame 0 .* 1, channel 1"
        ):
            found = each.predict_proba(dead)
        assert_array_equal(found, each.predict_proba(lacking))
    if not options:
        assert model.is_outlier(dead).tolist() == [False, True, True, False]


def test_where_all_is_dead_nothing_is_known(model):
    still = [np.tile([0.1, -0.2, 1.0], (25, 1))]
    with pytest.warns(DegenerateDataWarning, match="count as missing"):
        assert_allclose(model.predict_proba(still), 1 / 3, atol=1e-6)


def test_spikes_within_the_range_count_as_lost(model, data):
    spiky, lacking = ([frames.copy() for frames in data[2][:4]] for _ in range(2))
    spiky[3][7, 0], lacking[3][7, 0] = spiky[3][6, 0] - 4.0, np.nan
    with pytest.warns(DegenerateDataWarning, match="spikes .* in frame 7 of sequence 3, channel 0"):
        found = model.predict_proba(spiky)
    assert_array_equal(found, model.predict_proba(lacking))


def test_what_training_had_is_no_failure(model, data, rng):
    """Nor are holes, and few frames; a channel that some sequence has one value of goes on."""
    X = data[2]
    holes = [np.where(rng.random(frames.shape) < 0.8, np.nan, frames) for frames in X]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict_proba([*X, *holes])
    assert not stuck(read_sequences([frames[:1] for frames in X]), model.model_.limits).any()
    assert_array_equal(model.model_.limits[0, 2], 1.0)


def test_words_are_never_stuck():
    sequences = read_sequences([np.array([["a", 1.0], ["b", 2.0], ["a", 4.0]], dtype=object)])
    assert np.isinf(limits_of(sequences, np.ones(2))).tolist() == [
        [True, False, False],
        [True, False, False],
        [True, False, True],
    ]


def test_densities_tell_frames_that_are_stuck(data):
    density = SequenceDensity(1, n_states=2, random_state=0).fit(
        [frames[:, :2] for frames in data[0]]
    )
    X = [frames[:, :2].copy() for frames in data[2][:2]]
    X[1][5:, 0] = 0.2
    assert density.is_outlier(X).tolist() == [False, True]
    by_channel = density.outlier_frames(X, 1e-3, by_channel=True)[1]
    assert by_channel[5:, 0].all()
    assert not by_channel[:, 1].any()
    assert density.outlier_frames(X, 1e-3)[1][5:].all()
